// One field of one JSON line. Two readers of the same language: a fast one that understands the
// usual line and declines the rest, and nlohmann-json's, which decides what is JSON and says why
// not. A line of C4 costs the first one a hundredth of its tokenization, the second one a tenth.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace loqal {

/// True: `line` (valid UTF-8) is one flat JSON object, and `text` is the string that its one field
/// `field` holds. False: anything else, or anything unusual; `text` is then useless and the line is
/// for read_json_text.
bool plain_json_text(std::string_view line, std::string_view field, std::string* text);

struct JsonText {
  std::string error;               ///< what is wrong with the JSON; "": nothing
  std::string type;                ///< of the field: "string", "number" ...; "": there is none
  std::string text;                ///< if it is a string
  std::vector<std::string> names;  ///< the first fields of the object, for a suggestion
};

/// The full parser. Memory grows with the line's longest string, not with what is nested in it. Of
/// a field that occurs twice the last one counts, as usual.
JsonText read_json_text(std::string_view line, const std::string& field);

}  // namespace loqal
