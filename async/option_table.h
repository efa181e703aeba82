// OptionTable: names, ranges and help of options, bound to the fields of a struct. One description
// serves the command line, config files, --help, the log, checkpoints and resume.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/json.h"

namespace loqal {

constexpr int64_t kMany = int64_t(1) << 40;  ///< a limit for counts that have none

/// What a resume does with an option that the user does not give, and with one that is given.
enum class Scope {
  trajectory,  ///< takes the saved value; must be equal
  run,         ///< takes the saved value; may change
  call,        ///< belongs to this invocation alone
};

class OptionTable {
 public:
  void section(const std::string& title);
  void text(const std::string& name, std::string& field, const std::string& help, Scope scope);
  void choice(const std::string& name, std::string& field, std::vector<std::string> allowed,
              const std::string& help, Scope scope);
  void integer(const std::string& name, int64_t& field, int64_t low, int64_t high,
               const std::string& help, Scope scope);
  void real(const std::string& name, double& field, double low, double high,
            const std::string& help, Scope scope);
  void flag(const std::string& name, bool& field, const std::string& help, Scope scope);
  void list(const std::string& name, std::vector<std::string>& field, const std::string& help,
            Scope scope);

  std::vector<std::string> names() const;
  bool contains(const std::string& name) const { return find(name) != nullptr; }
  bool is_flag(const std::string& name) const { return at(name).kind == Kind::flag; }
  bool is_list(const std::string& name) const { return at(name).kind == Kind::list; }
  Scope scope(const std::string& name) const { return at(name).scope; }
  std::string closest_to(const std::string& name) const;

  /// From words that a user wrote; usage error "WHERE--steps 56,080: expected a whole number ...".
  void set(const std::string& name, const std::vector<std::string>& words,
           const std::string& where);
  Json value(const std::string& name) const { return at(name).get(); }
  std::string help() const;

  static std::string join(const std::vector<std::string>& words);

 private:
  enum class Kind { text, integer, real, flag, list };
  struct Entry {
    std::string name, help, value_name;
    Kind kind;
    Scope scope;
    std::function<void(const std::vector<std::string>&, const std::string& where)> set;
    std::function<Json()> get;
    std::string section;
  };

  void add(Entry entry);
  const Entry* find(const std::string& name) const;
  const Entry& at(const std::string& name) const;

  std::string section_;
  std::vector<Entry> entries_;
};

/// The words that set an option to a saved value: what OptionTable::set understands.
std::vector<std::string> words_of(const Json& value);

}  // namespace loqal
