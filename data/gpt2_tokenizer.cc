// GPT-2's byte-level BPE: a regular expression cuts text into words, each word's bytes are merged
// pair by pair in the order of the merge list (Radford et al. 2019, section 2.2; Sennrich et al.
// 2016).
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "core/error.h"
#include "data/bpe_merge.h"
#include "data/tokenizer.h"
#include "data/utf8.h"

namespace loqal {
namespace {

// GPT-2's pattern. Its \s is Unicode's White_Space, which is not quite PCRE2's: it is spelled out.
#define WHITE "\\t-\\r\\x{85}\\p{Z}"
constexpr char kWords[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" WHITE
                          "\\p{L}\\p{N}]+|"
                          "[" WHITE "]+(?![^" WHITE "])|[" WHITE "]+";
#undef WHITE

constexpr size_t kCachedWords = size_t(1) << 15;  // 4 MB for each thread; most words are these
constexpr size_t kCachedWordBytes = 32;
constexpr const char* kCopyAgain = "copy the tokenizer's files again";

/// Cuts text into GPT-2's words.
class WordPattern {
 public:
  WordPattern() {
    int error;
    PCRE2_SIZE offset;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kWords), sizeof kWords - 1,
                          PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
    LOQAL_ASSERT(code_, "PCRE2 error ", error, " at ", offset);
    pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE);  // may be unsupported: then it is interpreted
    match_ = pcre2_match_data_create(1, nullptr);
  }
  WordPattern(const WordPattern&) : WordPattern() {}
  WordPattern& operator=(const WordPattern&) = delete;
  ~WordPattern() {
    pcre2_match_data_free(match_);
    pcre2_code_free(code_);
  }

  /// Bytes of the word that starts at text[begin]. Every character belongs to one.
  size_t word_length(std::string_view text, size_t begin) {
    // encode() has checked the UTF-8 once; PCRE2 would check the rest again for every word.
    const int rc = pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), begin,
                               PCRE2_NO_UTF_CHECK, match_, nullptr);
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match_);
    LOQAL_ASSERT(rc > 0 && range[0] == begin && range[1] > begin, "PCRE2 ", rc, " at ", begin);
    return range[1] - begin;
  }

 private:
  pcre2_code* code_;
  pcre2_match_data* match_;
};

/// The files write a byte as a printable character: itself if it is printable Latin-1 and no blank,
/// otherwise the next free one from U+0100. Inverse of that.
std::unordered_map<std::string, char> printable_bytes() {
  std::unordered_map<std::string, char> byte_of;
  int next = 256;
  for (int byte = 0; byte < 256; byte++) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    const int c = printable ? byte : next++;
    std::string utf8;
    if (c >= 128) utf8.push_back(char(0xC0 | c >> 6));
    utf8.push_back(c >= 128 ? char(0x80 | (c & 63)) : char(c));
    byte_of[utf8] = char(byte);
  }
  return byte_of;
}

class Gpt2Tokenizer : public Tokenizer {
 public:
  Gpt2Tokenizer(const std::string& vocab_path, const std::string& merges_path) {
    auto tables = std::make_shared<Tables>();
    const IdOf id_of = load_vocabulary(vocab_path, tables.get());
    load_merges(merges_path, vocab_path, id_of, tables.get());
    tables_ = std::move(tables);
  }

  std::unique_ptr<Tokenizer> clone() const override {
    return std::make_unique<Gpt2Tokenizer>(*this);
  }

  std::vector<int32_t> encode(std::string_view text) override {
    const size_t bad = invalid_utf8(text);
    if (bad != std::string_view::npos) fail(cat("text is not valid UTF-8 at byte ", bad));
    std::vector<int32_t> ids;
    for (size_t begin = 0; begin < text.size();) {
      const size_t length = pattern_.word_length(text, begin);
      append_word(text.substr(begin, length), &ids);
      begin += length;
    }
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (id < 0 || id >= vocab_size())
        fail(cat(files()[0], ": cannot decode id ", id, ": the vocabulary has ", vocab_size()));
      text += tables_->pieces[size_t(id)];
    }
    return text;
  }

  int vocab_size() const override { return int(tables_->pieces.size()); }
  int bos() const override { return tables_->end_of_text; }
  int eos() const override { return tables_->end_of_text; }
  int pad() const override { return -1; }
  int unk() const override { return -1; }
  bool eos_goes_before() const override { return true; }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
  };

  using IdOf = std::unordered_map<std::string, int32_t>;  // by the files' spelling
  struct Tables {                                         // never change once they are loaded
    std::vector<std::string> pieces;                      // bytes of each id
    std::array<int32_t, 256> byte_ids;  // -1: the vocabulary has no piece for that byte alone
    BpeMerges merges;
    int end_of_text = -1;
  };

  IdOf load_vocabulary(const std::string& path, Tables* tables);
  void load_merges(const std::string& path, const std::string& vocab_path, const IdOf& id_of,
                   Tables* tables);
  void append_word(std::string_view word, std::vector<int32_t>* ids);

  WordPattern pattern_;
  std::shared_ptr<const Tables> tables_;
  std::unordered_map<std::string, std::vector<int32_t>, Hash, std::equal_to<>> cache_;
};

Gpt2Tokenizer::IdOf Gpt2Tokenizer::load_vocabulary(const std::string& path, Tables* tables) {
  IdOf id_of;
  try {
    id_of = nlohmann::json::parse(load_file(path)).get<IdOf>();
  } catch (const nlohmann::json::exception& e) {
    fail(cat(path, ": expected a JSON object of pieces and ids: ", e.what()), kCopyAgain);
  }
  const auto byte_of = printable_bytes();
  std::vector<bool> seen(id_of.size());
  tables->pieces.resize(id_of.size());
  for (const auto& [piece, id] : id_of) {
    if (id < 0 || size_t(id) >= seen.size() || seen[size_t(id)])
      fail(cat(path, ": piece '", piece, "' has id ", id, ": expected each id from 0 to ",
               int64_t(seen.size()) - 1, " once"),
           kCopyAgain);
    seen[size_t(id)] = true;
    for (size_t i = 0; i < piece.size();) {
      const size_t n = std::max<size_t>(1, utf8_length(piece, i));
      const auto byte = byte_of.find(piece.substr(i, n));
      // Added tokens may hold characters that spell no byte: they stand for themselves.
      if (byte == byte_of.end()) tables->pieces[size_t(id)] += piece.substr(i, n);
      else tables->pieces[size_t(id)] += byte->second;
      i += n;
    }
  }
  for (const auto& [spelling, byte] : byte_of) {
    const auto found = id_of.find(spelling);
    tables->byte_ids[uint8_t(byte)] = found == id_of.end() ? -1 : found->second;
  }
  const auto end = id_of.find("<|endoftext|>");
  if (end != id_of.end()) tables->end_of_text = end->second;
  return id_of;
}

void Gpt2Tokenizer::load_merges(const std::string& path, const std::string& vocab_path,
                                const IdOf& id_of, Tables* tables) {
  const std::string text = load_file(path);
  int rank = 0;
  int64_t line_number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    line_number++;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty() || (line_number == 1 && line.starts_with("#version"))) continue;
    const size_t blank = line.find(' ');
    const std::string left = line.substr(0, blank);
    const std::string right = blank == std::string::npos ? "" : line.substr(blank + 1);
    const auto l = id_of.find(left), r = id_of.find(right), merged = id_of.find(left + right);
    if (l == id_of.end() || r == id_of.end() || merged == id_of.end())
      fail(cat(path, ":", line_number, ": expected two pieces of ", vocab_path,
               " whose union is one too, found '", line, "'"),
           "use the two files of one tokenizer");
    tables->merges.add(l->second, r->second, rank++, merged->second);
  }
}

void Gpt2Tokenizer::append_word(std::string_view word, std::vector<int32_t>* ids) {
  const auto cached = word.size() <= kCachedWordBytes ? cache_.find(word) : cache_.end();
  if (cached != cache_.end()) {
    ids->insert(ids->end(), cached->second.begin(), cached->second.end());
    return;
  }
  std::vector<int32_t> merged;
  for (const char c : word) {
    const int byte = uint8_t(c);
    if (tables_->byte_ids[size_t(byte)] < 0)
      fail(cat(files()[0], ": no piece for byte ", byte, ", which is in the text: \"",
               word.substr(0, 60), "\""),
           "use a tokenizer that knows all 256 bytes");
    merged.push_back(tables_->byte_ids[size_t(byte)]);
  }
  tables_->merges.apply(&merged);
  ids->insert(ids->end(), merged.begin(), merged.end());
  if (word.size() <= kCachedWordBytes && cache_.size() < kCachedWords) cache_.emplace(word, merged);
}

}  // namespace

std::unique_ptr<Tokenizer> load_gpt2(const std::string& vocab_json, const std::string& merges) {
  return std::make_unique<Gpt2Tokenizer>(vocab_json, merges);
}

}  // namespace loqal
