#include "data/spm_model.h"

#include <algorithm>
#include <cstring>

#include "data/utf8.h"

namespace loqal {
namespace {

constexpr std::string_view kBlank = "\u2581";

/// Fields of a protobuf message, one after the other (protobuf.dev, "Encoding").
class ProtoReader {
 public:
  explicit ProtoReader(std::string_view bytes) : rest_(bytes) {}

  /// False at the end or at something malformed: ok() tells.
  bool next() {
    if (rest_.empty() || !ok_) return false;
    uint64_t tag = 0;
    ok_ = varint(&tag);
    field = int(tag >> 3);
    uint64_t length = 0;
    switch (tag & 7) {
      case 0: return ok_ = ok_ && varint(&number);
      case 1: return take(8);
      case 2: return (ok_ = ok_ && varint(&length)) && take(length);
      case 5: return take(4);
      default: return ok_ = false;
    }
  }
  bool ok() const { return ok_; }
  float as_float() const {
    float value = 0;
    if (bytes.size() == sizeof value) std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }

  int field = 0;
  uint64_t number = 0;     ///< of a varint
  std::string_view bytes;  ///< of anything else

 private:
  bool varint(uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const uint8_t byte = uint8_t(rest_[0]);
      rest_.remove_prefix(1);
      *value |= uint64_t(byte & 127) << shift;
      if (byte < 128) return true;
    }
    return false;
  }
  bool take(uint64_t length) {
    ok_ = ok_ && length <= rest_.size();
    if (!ok_) return false;
    bytes = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return true;
  }

  std::string_view rest_;
  bool ok_ = true;
};

bool parse_piece(std::string_view bytes, SpmPiece* piece) {
  ProtoReader r(bytes);
  while (r.next()) {
    if (r.field == 1) piece->text = r.bytes;
    if (r.field == 2) piece->score = r.as_float();
    if (r.field == 3) piece->type = int(r.number);
  }
  return r.ok();
}

bool parse_trainer(std::string_view bytes, SpmModel* model) {
  ProtoReader r(bytes);
  while (r.next()) {
    if (r.field == 3) model->type = int(r.number);
    if (r.field == 24) model->blank_is_suffix = r.number;
    if (r.field == 35) model->byte_fallback = r.number;
  }
  return r.ok();
}

bool parse_normalizer(std::string_view bytes, SpmModel* model) {
  ProtoReader r(bytes);
  while (r.next()) {
    if (r.field == 2) model->charsmap = r.bytes;
    if (r.field == 3) model->add_dummy_prefix = r.number;
    if (r.field == 4) model->remove_extra_blanks = r.number;
    if (r.field == 5) model->escape_blanks = r.number;
  }
  return r.ok();
}

// Units of a Darts-clone double array (github.com/s-yata/darts-clone, "Units").
uint32_t unit_offset(uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }
uint32_t unit_label(uint32_t unit) { return unit & ((1u << 31) | 0xFF); }
uint32_t unit_value(uint32_t unit) { return unit & ((1u << 31) - 1); }
bool unit_has_leaf(uint32_t unit) { return unit >> 8 & 1; }

void append_with_blanks(std::string_view text, std::string* out) {
  for (size_t i = 0; i < text.size();) {
    const bool blank = text.substr(i).starts_with(kBlank);
    out->push_back(blank ? ' ' : text[i]);
    i += blank ? kBlank.size() : 1;
  }
}

}  // namespace

std::string SpmPiece::spelled() const {
  std::string out;
  append_with_blanks(text, &out);
  return out;
}

SpmUnknown::SpmUnknown(const SpmModel& model) {
  std::vector<int32_t> bytes;
  for (size_t i = 0; i < model.pieces.size(); i++) {
    if (model.pieces[i].type == SpmPiece::unknown) id_ = int32_t(i);
    if (model.pieces[i].type == SpmPiece::byte) bytes.push_back(int32_t(i));
  }
  if (model.byte_fallback && bytes.size() == 256) byte_ids_ = bytes;  // <0x00> ... <0xFF>
}

void SpmUnknown::append(std::string_view character, bool after_unknown,
                        std::vector<int32_t>* ids) const {
  if (byte_ids_.empty()) {
    if (!after_unknown) ids->push_back(id_);
    return;
  }
  for (const char c : character == " " ? kBlank : character) ids->push_back(byte_ids_[uint8_t(c)]);
}

bool SpmModel::has(SpmPiece::Type piece_type) const {
  return std::any_of(pieces.begin(), pieces.end(),
                     [&](const SpmPiece& p) { return p.type == piece_type; });
}

bool parse_spm_model(std::string_view bytes, SpmModel* model) {
  ProtoReader r(bytes);
  bool ok = true;
  while (ok && r.next()) {
    if (r.field == 1) ok = parse_piece(r.bytes, &model->pieces.emplace_back());
    if (r.field == 2) ok = parse_trainer(r.bytes, model);
    if (r.field == 3) ok = parse_normalizer(r.bytes, model);
  }
  return ok && r.ok();
}

SpmNormalizer::SpmNormalizer(const SpmModel& model)
    : add_dummy_prefix_(model.add_dummy_prefix), remove_extra_blanks_(model.remove_extra_blanks) {
  // The size of the trie in bytes, the trie, the replacements.
  uint32_t bytes = 0;
  const std::string& map = model.charsmap;
  if (map.size() > sizeof bytes) std::memcpy(&bytes, map.data(), sizeof bytes);
  if (bytes > 0 && bytes % 4 == 0 && bytes < map.size() - sizeof bytes) {
    trie_.resize(bytes / 4);
    std::memcpy(trie_.data(), map.data() + sizeof bytes, bytes);
    replacements_ = map.substr(sizeof bytes + bytes);
  }
  for (const SpmPiece& piece : model.pieces)
    if (piece.type == SpmPiece::user_defined) user_defined_.push_back(piece.text);
  for (int c = 1; c < 128; c++) {
    uint32_t at = unit_offset(unit(0)) ^ uint32_t(c);
    plain_[c] = true;
    if (trie_.empty() || unit_label(unit(at)) != uint32_t(c)) continue;
    plain_[c] = plain_[c] && !unit_has_leaf(unit(at));
    at ^= unit_offset(unit(at));
    for (uint32_t next = 1; next < 128; next++)
      if (unit_label(unit(at ^ next)) == next) plain_[c] = false;
  }
  for (const std::string& piece : user_defined_)
    if (!piece.empty() && uint8_t(piece[0]) < 128) plain_[uint8_t(piece[0])] = false;
}

size_t SpmNormalizer::user_defined(std::string_view text) const {
  size_t longest = 0;
  for (const std::string& piece : user_defined_)
    if (piece.size() > longest && text.starts_with(piece)) longest = piece.size();
  return longest;
}

/// Bytes of the longest rule that `text` begins with, or 0.
size_t SpmNormalizer::longest_rule(std::string_view text, uint32_t* value) const {
  size_t longest = 0;
  uint32_t at = unit_offset(unit(0));
  for (size_t i = 0; i < text.size(); i++) {
    const uint32_t label = uint8_t(text[i]);
    at ^= label;
    const uint32_t here = unit(at);
    if (unit_label(here) != label) break;
    at ^= unit_offset(here);
    if (!unit_has_leaf(here)) continue;
    longest = i + 1;
    *value = unit_value(unit(at));
  }
  return longest;
}

SpmNormalizer::Step SpmNormalizer::step(std::string_view text) const {
  if (const size_t whole = user_defined(text); whole > 0) return {text.substr(0, whole), whole};
  uint32_t value = 0;
  const size_t length = trie_.empty() ? 0 : longest_rule(text, &value);
  if (length == 0) {
    const size_t one = std::max<size_t>(1, utf8_length(text, 0));
    return {text.substr(0, one), one};
  }
  if (value >= replacements_.size()) return {"", length};
  return {replacements_.c_str() + value, length};
}

std::string SpmNormalizer::normalize(std::string_view text) const {
  std::string out;
  if (remove_extra_blanks_)
    while (!text.empty()) {
      const Step s = step(text);
      if (s.text != " ") break;
      text.remove_prefix(s.length);
    }
  if (text.empty()) return out;
  out.reserve(text.size() + text.size() / 8 + 16);
  if (add_dummy_prefix_) out.push_back(' ');
  bool after_blank = remove_extra_blanks_;
  for (size_t i = 0; i < text.size();) {
    const bool ascii_next = i + 1 == text.size() || uint8_t(text[i + 1]) < 128;
    const uint8_t c = uint8_t(text[i]);
    if (c < 128 && c != ' ' && plain_[c] && ascii_next) {  // most text goes this way
      out.push_back(text[i++]);
      after_blank = false;
      continue;
    }
    Step s = step(text.substr(i));
    i += s.length;
    while (after_blank && s.text.starts_with(' ')) s.text.remove_prefix(1);
    if (s.text.empty()) continue;
    append_with_blanks(s.text, &out);
    after_blank = remove_extra_blanks_ && s.text.ends_with(' ');
  }
  if (remove_extra_blanks_) out.resize(out.find_last_not_of(' ') + 1);
  return out;
}

}  // namespace loqal
