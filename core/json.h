// JSON for configurations, logs and file headers: nlohmann-json, with errors that name the place.
//
// Two forms of the same thing: Json keeps the order of keys, as humans wrote them, and looks keys
// up one by one; JsonMap sorts them and is for objects with very many keys (vocabularies, headers).
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.h"

namespace loqal {

using Json = nlohmann::ordered_json;
using JsonMap = nlohmann::json;

/// Strict JSON (RFC 8259). Errors say "WHERE:LINE:COLUMN". Also refused, because two programs could
/// read them differently or run out of stack: a key twice in one object, nesting deeper than 64.
/// J is Json or JsonMap.
template <class J = Json>
J parse_json(std::string_view text, const std::string& where);

/// The file at `path`, up to 64 MiB.
Json read_json(const std::string& path);

/// Text of a value: on one line, or indented by `indent` spaces with a line feed at the end.
/// Doubles are written so that they read back as the same double; invalid UTF-8 becomes U+FFFD
/// instead of an error.
std::string dump_json(const Json& json, int indent = -1);

/// A number for JSON, which has no NaN and no infinity: those become the strings "nan", "inf",
/// "-inf". get<double>() reads them back.
Json number(double value);

namespace json_detail {
template <class T>
struct is_vector : std::false_type {};
template <class T>
struct is_vector<std::vector<T>> : std::true_type {};

template <class T>
constexpr const char* expected_type() {
  if constexpr (std::is_same_v<T, bool>) return "true or false";
  else if constexpr (std::is_integral_v<T>) return "a whole number";
  else if constexpr (std::is_floating_point_v<T>) return "a number";
  else if constexpr (std::is_same_v<T, std::string>) return "a string";
  else return "a list";
}

/// False if the value is of another type or does not fit into T.
template <class T, class J>
bool convert(const J& json, T& out) {
  if constexpr (std::is_same_v<T, J>) {
    out = json;
  } else if constexpr (is_vector<T>::value) {
    if (!json.is_array()) return false;
    out.clear();
    for (const J& item : json) {
      typename T::value_type value{};
      if (!convert(item, value)) return false;
      out.push_back(value);
    }
  } else if constexpr (std::is_same_v<T, bool>) {
    if (!json.is_boolean()) return false;
    out = json.template get<bool>();
  } else if constexpr (std::is_integral_v<T>) {
    if (!json.is_number_integer()) return false;
    const bool fits = json.is_number_unsigned() ? std::in_range<T>(json.template get<uint64_t>())
                                                : std::in_range<T>(json.template get<int64_t>());
    if (!fits) return false;
    out = json.template get<T>();
  } else if constexpr (std::is_floating_point_v<T>) {
    if (json == "nan") out = std::numeric_limits<T>::quiet_NaN();
    else if (json == "inf") out = std::numeric_limits<T>::infinity();
    else if (json == "-inf") out = -std::numeric_limits<T>::infinity();
    else if (json.is_number()) out = json.template get<T>();
    else return false;
  } else {
    static_assert(std::is_same_v<T, std::string>,
                  "get<T>: T is a number, bool, string, vector or Json");
    if (!json.is_string()) return false;
    out = json.template get<std::string>();
  }
  return true;
}

template <class J>
std::string shortened(const J& json) {
  std::string text = json.dump(-1, ' ', true, J::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}
}  // namespace json_detail

/// json[key] as T: bool, an integer type, double, float, std::string, a vector of those, or Json
/// itself. Error if the key is missing, of another type, or an integer that T cannot hold.
template <class T, class J>
T get(const J& json, const std::string& key, const std::string& where) {
  if (!json.is_object())
    fail(cat(where, ": expected an object with \"", key, "\", found ",
             json_detail::shortened(json)));
  const auto it = json.find(key);
  if (it == json.end())
    fail(cat(where, ": \"", key, "\" is missing; expected ", json_detail::expected_type<T>()));
  T value{};
  if (!json_detail::convert(*it, value))
    fail(cat(where, ": \"", key, "\": expected ", json_detail::expected_type<T>(), ", found ",
             json_detail::shortened(*it)));
  return value;
}

/// The same for an optional key: `fallback` if it is missing or null.
template <class T, class J>
T get_or(const J& json, const std::string& key, const std::string& where, const T& fallback) {
  if (json.is_object() && (!json.contains(key) || json.find(key)->is_null())) return fallback;
  return get<T>(json, key, where);
}

}  // namespace loqal
