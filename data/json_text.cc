#include "data/json_text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace loqal {
namespace {

/// Walks over a line. Every function returns false for what is malformed or merely unusual.
class Cursor {
 public:
  explicit Cursor(std::string_view line) : p_(line.data()), end_(p_ + line.size()) {}

  bool at_end() {
    skip_blanks();
    return p_ == end_;
  }
  /// The next character that is no blank, if it is `c`.
  bool take(char c) {
    skip_blanks();
    if (p_ == end_ || *p_ != c) return false;
    p_++;
    return true;
  }
  /// A string, its quotes removed, its escapes not.
  bool take_string(std::string_view* raw, bool* escaped) {
    if (!take('"')) return false;
    const char* begin = p_;
    *escaped = false;
    for (;; p_++) {
      while (p_ != end_ && !kSpecial[uint8_t(*p_)]) p_++;
      if (p_ == end_ || uint8_t(*p_) < 0x20) return false;
      if (*p_ == '"') break;
      *escaped = true;
      if (++p_ == end_) return false;  // whatever is escaped, a quote too, is passed over
    }
    *raw = {begin, size_t(p_++ - begin)};
    return true;
  }
  /// A whole number, true, false or null.
  bool skip_scalar() {
    skip_blanks();
    const char* begin = p_;
    while (p_ != end_ && std::isalnum(uint8_t(*p_))) p_++;
    const std::string_view word(begin, size_t(p_ - begin));
    if (word == "true" || word == "false" || word == "null") return true;
    const bool digits = word.find_first_not_of("0123456789") == std::string_view::npos;
    return digits && !word.empty() && word.size() < 19 && (word[0] != '0' || word.size() == 1);
  }

 private:
  void skip_blanks() {
    while (p_ != end_ && (*p_ == ' ' || *p_ == '\t' || *p_ == '\r' || *p_ == '\n')) p_++;
  }
  /// What ends the plain stretch of a string: quote, backslash, control characters.
  static constexpr auto kSpecial = [] {
    std::array<bool, 256> special{};
    for (size_t c = 0; c < 0x20; c++) special[c] = true;
    special['"'] = special['\\'] = true;
    return special;
  }();

  const char* p_;
  const char* const end_;
};

/// Four hexadecimal digits at raw[at], or -1.
int hex4(std::string_view raw, size_t at) {
  if (raw.size() < at + 4) return -1;
  int value = 0;
  for (size_t i = at; i < at + 4; i++) {
    const char c = raw[i], lower = char(c | 0x20);
    if (c >= '0' && c <= '9') value = value * 16 + (c - '0');
    else if (lower >= 'a' && lower <= 'f') value = value * 16 + (lower - 'a' + 10);
    else return -1;
  }
  return value;
}

void append_utf8(uint32_t c, std::string* out) {
  const auto tail = [&](int shift) { out->push_back(char(0x80 | (c >> shift & 63))); };
  if (c < 0x80) return out->push_back(char(c));
  if (c < 0x800) {
    out->push_back(char(0xC0 | c >> 6));
  } else if (c < 0x10000) {
    out->push_back(char(0xE0 | c >> 12)), tail(6);
  } else {
    out->push_back(char(0xF0 | c >> 18)), tail(12), tail(6);
  }
  tail(0);
}

/// \uXXXX at raw[*at] (the u), a surrogate pair included. *at moves to its last digit.
bool append_unicode(std::string_view raw, size_t* at, std::string* out) {
  const int high = hex4(raw, *at + 1);
  if (high < 0 || (high & 0xFC00) == 0xDC00) return false;
  *at += 4;
  if ((high & 0xFC00) != 0xD800) {
    append_utf8(uint32_t(high), out);
    return true;
  }
  const int low = raw.substr(*at + 1, 2) == "\\u" ? hex4(raw, *at + 3) : -1;
  if (low < 0 || (low & 0xFC00) != 0xDC00) return false;
  append_utf8(0x10000 + (uint32_t(high & 0x3FF) << 10) + uint32_t(low & 0x3FF), out);
  *at += 6;
  return true;
}

bool unescape(std::string_view raw, std::string* out) {
  out->clear();
  for (size_t at = 0; at < raw.size();) {
    const size_t escape = std::min(raw.find('\\', at), raw.size());
    out->append(raw, at, escape - at);
    if (escape == raw.size()) break;
    at = escape + 1;  // in a string that take_string() accepted there is a character
    switch (raw[at]) {
      case 'n': out->push_back('\n'); break;
      case 't': out->push_back('\t'); break;
      case 'r': out->push_back('\r'); break;
      case 'b': out->push_back('\b'); break;
      case 'f': out->push_back('\f'); break;
      case '"':
      case '\\':
      case '/': out->push_back(raw[at]); break;
      case 'u':
        if (!append_unicode(raw, &at, out)) return false;
        break;
      default: return false;
    }
    at++;
  }
  return true;
}

/// nlohmann-json's events: keeps the one field, builds nothing else.
class FieldSax : public nlohmann::json_sax<nlohmann::json> {
 public:
  FieldSax(const std::string& field, JsonText* out) : field_(field), out_(*out) {}

  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("boolean"); }
  bool number_integer(number_integer_t) override { return value("number"); }
  bool number_unsigned(number_unsigned_t) override { return value("number"); }
  bool number_float(number_float_t, const string_t&) override { return value("number"); }
  bool binary(binary_t&) override { return value("binary"); }
  bool string(string_t& text) override {
    if (depth_ == 1 && wanted_) out_.text = std::move(text);
    return value("string");
  }
  bool start_object(size_t) override {
    value("object");
    is_object_ |= depth_ == 0;
    depth_++;
    return true;
  }
  bool end_object() override { return depth_--, true; }
  bool start_array(size_t) override {
    value("array");
    depth_++;
    return true;
  }
  bool end_array() override { return depth_--, true; }
  bool key(string_t& name) override {
    if (depth_ != 1) return true;
    wanted_ = name == field_;
    if (out_.names.size() < 50) out_.names.push_back(name.substr(0, 100));
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& e) override {
    const std::string_view what = e.what();
    out_.error = what.substr(what.find("] ") + 2);  // less the library's tag
    return false;
  }

  bool is_object() const { return is_object_; }
  const std::string& outermost() const { return outermost_; }

 private:
  bool value(const char* type) {
    if (depth_ == 0) outermost_ = type;
    if (depth_ == 1 && wanted_) out_.type = type;
    return true;
  }

  const std::string& field_;
  JsonText& out_;
  int64_t depth_ = 0;
  bool wanted_ = false, is_object_ = false;
  std::string outermost_;
};

}  // namespace

bool plain_json_text(std::string_view line, std::string_view field, std::string* text) {
  Cursor cursor(line);
  std::string_view key, raw, found;
  bool escaped = false, found_escaped = false;
  bool is_found = false;
  if (!cursor.take('{')) return false;
  do {
    if (!cursor.take_string(&key, &escaped) || escaped || !cursor.take(':')) return false;
    const bool is_string = cursor.take_string(&raw, &escaped);
    if (key == field) {
      if (!is_string || is_found) return false;
      is_found = true;
      found = raw;
      found_escaped = escaped;
    } else if (is_string ? escaped && !unescape(raw, text) : !cursor.skip_scalar()) {
      return false;
    }
  } while (cursor.take(','));
  if (!is_found || !cursor.take('}') || !cursor.at_end()) return false;
  if (found_escaped) return unescape(found, text);
  text->assign(found);
  return true;
}

JsonText read_json_text(std::string_view line, const std::string& field) {
  JsonText out;
  FieldSax sax(field, &out);
  nlohmann::json::sax_parse(line, &sax);
  if (out.error.empty() && !sax.is_object())
    out.error = cat("expected an object, found ", sax.outermost());
  return out;
}

}  // namespace loqal
