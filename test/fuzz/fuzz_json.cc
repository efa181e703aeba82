// libFuzzer: where the fast reader of JSON lines gives an answer, it is the full parser's.
#include <cstdlib>

#include "data/json_text.h"
#include "data/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  if (loqal::invalid_utf8(line) != std::string_view::npos) return 0;
  std::string text;
  const bool plain = loqal::plain_json_text(line, "text", &text);
  const loqal::JsonText full = loqal::read_json_text(line, "text");
  if (plain && (!full.error.empty() || full.type != "string" || full.text != text)) std::abort();
  return 0;
}
