#include "async/option_table.h"

#include <charconv>
#include <cmath>

#include "core/error.h"
#include "core/suggest.h"

namespace loqal {

namespace {

double parse_number(const std::string& name, const std::string& word, const std::string& where,
                    const std::string& expected) {
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || !std::isfinite(value))
    fail_usage(cat(where, name, " ", word, ": expected ", expected));
  return value;
}

std::string default_text(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array() || value.is_boolean()) return "";
  if (value.is_number_integer() && value.get<int64_t>() < 0) return "";
  if (value.is_number_float() && value.get<double>() < 0) return "";
  return value.is_number_float() ? cat(value.get<double>()) : dump_json(value);
}

}  // namespace

void OptionTable::section(const std::string& title) { section_ = title; }

void OptionTable::add(Entry entry) {
  entry.section = section_;
  entries_.push_back(std::move(entry));
}

void OptionTable::text(const std::string& name, std::string& field, const std::string& help,
                       Scope scope) {
  add({name, help, "TEXT", Kind::text, scope,
       [&field](const auto& words, const auto&) { field = words.at(0); },
       [&field] { return Json(field); }, ""});
}

void OptionTable::choice(const std::string& name, std::string& field,
                         std::vector<std::string> allowed, const std::string& help, Scope scope) {
  const auto set = [&field, name, allowed](const std::vector<std::string>& words,
                                           const std::string& where) {
    const std::string& word = words.at(0);
    bool known = false;
    for (const std::string& a : allowed) known = known || a == word;
    if (!known)
      fail_usage(cat(where, name, " ", word, ": choose one of ", join(allowed)),
                 cat("did you mean ", closest(word, allowed), "?"));
    field = word;
  };
  std::string value_name;
  for (const std::string& a : allowed) value_name += (value_name.empty() ? "" : "|") + a;
  add({name, help, value_name, Kind::text, scope, set, [&field] { return Json(field); }, ""});
}

void OptionTable::integer(const std::string& name, int64_t& field, int64_t low, int64_t high,
                          const std::string& help, Scope scope) {
  const auto set = [&field, name, low, high](const std::vector<std::string>& words,
                                             const std::string& where) {
    const std::string expected = cat("a whole number from ", low, " to ", high);
    const std::string& word = words.at(0);
    int64_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size()) {
      const double real = parse_number(name, word, where, expected);  // 1e6
      if (real != std::floor(real) || std::abs(real) > 9e15)
        fail_usage(cat(where, name, " ", word, ": expected ", expected));
      value = int64_t(real);
    }
    if (value < low || value > high)
      fail_usage(cat(where, name, " ", word, ": expected ", expected));
    field = value;
  };
  add({name, help, "N", Kind::integer, scope, set, [&field] { return Json(field); }, ""});
}

void OptionTable::real(const std::string& name, double& field, double low, double high,
                       const std::string& help, Scope scope) {
  const auto set = [&field, name, low, high](const std::vector<std::string>& words,
                                             const std::string& where) {
    const std::string expected = cat("a number from ", low, " to ", high);
    const double value = parse_number(name, words.at(0), where, expected);
    if (!(value >= low && value <= high))
      fail_usage(cat(where, name, " ", words[0], ": expected ", expected));
    field = value;
  };
  add({name, help, "X", Kind::real, scope, set, [&field] { return Json(field); }, ""});
}

void OptionTable::flag(const std::string& name, bool& field, const std::string& help, Scope scope) {
  const auto set = [&field, name](const std::vector<std::string>& words, const std::string& where) {
    if (words.at(0) != "true" && words[0] != "false")
      fail_usage(cat(where, name, " ", words[0], ": expected true or false"));
    field = words[0] == "true";
  };
  add({name, help, "", Kind::flag, scope, set, [&field] { return Json(field); }, ""});
}

void OptionTable::list(const std::string& name, std::vector<std::string>& field,
                       const std::string& help, Scope scope) {
  add({name, help, "FILES", Kind::list, scope,
       [&field](const auto& words, const auto&) { field = words; },
       [&field] { return Json(field); }, ""});
}

std::vector<std::string> OptionTable::names() const {
  std::vector<std::string> names;
  for (const Entry& e : entries_) names.push_back(e.name);
  return names;
}

const OptionTable::Entry* OptionTable::find(const std::string& name) const {
  for (const Entry& e : entries_)
    if (e.name == name) return &e;
  return nullptr;
}

const OptionTable::Entry& OptionTable::at(const std::string& name) const {
  const Entry* entry = find(name);
  LOQAL_ASSERT(entry, "no option ", name);
  return *entry;
}

std::string OptionTable::closest_to(const std::string& name) const {
  return closest(name, names());
}

void OptionTable::set(const std::string& name, const std::vector<std::string>& words,
                      const std::string& where) {
  const Entry& entry = at(name);
  if (entry.kind != Kind::list && words.size() != 1)
    fail_usage(cat(where, name, ": expected one value, found ", words.size()));
  entry.set(words, where);
}

std::string OptionTable::help() const {
  std::string text, section;
  for (const Entry& e : entries_) {
    if (e.section != section) text += "\n" + (section = e.section) + "\n";
    std::string left = "  " + e.name + (e.value_name.empty() ? "" : " " + e.value_name);
    if (left.size() > 26) left += "\n";
    left.resize(left.ends_with("\n") ? left.size() + 27 : 27, ' ');
    const std::string shown = default_text(e.get());
    text += left + e.help + (shown.empty() ? "" : " [" + shown + "]") + "\n";
  }
  return text;
}

std::string OptionTable::join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& w : words) text += (text.empty() ? "" : " ") + w;
  return text;
}

std::vector<std::string> words_of(const Json& value) {
  if (value.is_array()) return value.get<std::vector<std::string>>();
  return {value.is_string() ? value.get<std::string>() : dump_json(value)};
}

}  // namespace loqal
