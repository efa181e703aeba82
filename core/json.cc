#include "core/json.h"

#include <algorithm>
#include <unordered_set>

#include "core/file.h"

namespace loqal {

namespace {
constexpr int kMaxDepth = 64;

/// "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error while parsing
/// value - unexpected ..." without the library's name and position, which we give in our own form.
std::string library_message(const std::string& what) {
  const size_t column = what.find("column ");
  const size_t start = what.find(column == std::string::npos ? "] " : ": ",
                                 column == std::string::npos ? 0 : column);
  return start == std::string::npos ? what : what.substr(start + 2);
}

std::string position(std::string_view text, size_t byte) {
  const std::string_view before = text.substr(0, std::min(byte > 0 ? byte - 1 : 0, text.size()));
  const size_t line_start = before.rfind('\n');
  const size_t column =
      line_start == std::string_view::npos ? before.size() : before.size() - line_start - 1;
  return cat(std::count(before.begin(), before.end(), '\n') + 1, ":", column + 1);
}
}  // namespace

template <class J>
J parse_json(std::string_view text, const std::string& where) {
  std::vector<std::unordered_set<std::string>> keys;  // of each object that is open now
  const auto check = [&](int depth, typename J::parse_event_t event, J& parsed) {
    using Event = typename J::parse_event_t;
    if (depth > kMaxDepth)
      fail(cat(where, ": not usable JSON: nested deeper than ", kMaxDepth, " levels"));
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(parsed.template get<std::string>()).second)
      fail(cat(where, ": not usable JSON: the key ", json_detail::shortened(parsed),
               " stands twice in one object"));
    return true;
  };
  try {
    return J::parse(text.begin(), text.end(), check);
  } catch (const typename J::parse_error& e) {
    fail(cat(where, ":", position(text, e.byte), ": not valid JSON: ", library_message(e.what())));
  } catch (const typename J::exception& e) {
    fail(cat(where, ": not usable JSON: ", library_message(e.what())));
  }
}

template Json parse_json<Json>(std::string_view, const std::string&);
template JsonMap parse_json<JsonMap>(std::string_view, const std::string&);

Json read_json(const std::string& path) { return parse_json(read_file(path, 64 << 20), path); }

std::string dump_json(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace) + (indent >= 0 ? "\n" : "");
}

Json number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

}  // namespace loqal
