#include "data/shard.h"

#include <algorithm>
#include <bit>
#include <climits>
#include <cstring>
#include <string_view>

#include "core/error.h"
#include "data/sniff.h"

namespace loqal {
namespace {

static_assert(std::endian::native == std::endian::little, "ids are read as they lie");

constexpr int32_t kTag = 0x6c61716c;  // "lqal"
constexpr int32_t kTagVersion = 1;

/// Positions of the header's words.
enum Word {
  magic,
  version,
  count,
  tag,
  tag_version,
  vocab,
  bos,
  eos,
  pad,
  hash_low,
  hash_high,
  row_length,
  unused
};

constexpr const char* kRewrite = "write the shard again with ./tokenize, or copy it again";

struct Words {
  int32_t w[256];
  int32_t operator[](int i) const { return w[i]; }
};

void check_magic(const Words& h, std::string_view start, const std::string& name) {
  const bool narrow = h[magic] == kShardMagic16;
  if (!narrow && h[magic] != kShardMagic32) {
    const FileKind kind = sniff(start);
    const std::string found = kind == FileKind::other ? cat("magic ", h[magic]) : describe(kind);
    fail(cat(name, ": not a token shard: expected magic ", kShardMagic16, " or ", kShardMagic32,
             ", found ", found),
         "make shards from text with ./tokenize");
  }
  const int32_t expected = narrow ? kShardVersion16 : kShardVersion32;
  if (h[version] != expected)
    fail(cat(name, ": expected shard version ", expected, " for magic ", h[magic], ", found ",
             h[version]),
         kRewrite);
}

/// loqal's own words. All zero is a file of llm.c; anything else must be complete and consistent.
void parse_spare_words(const Words& h, const std::string& name, ShardHeader* out) {
  const auto first_set = [&](int from) {
    return std::find_if(h.w + from, h.w + 256, [](int32_t x) { return x != 0; });
  };
  if (first_set(tag) == h.w + 256) return;
  if (h[tag] != kTag || h[tag_version] != kTagVersion)
    fail(cat(name, ": header words 3 and 4: expected 0 (llm.c) or ", kTag, " and ", kTagVersion,
             " (loqal), found ", h[tag], " and ", h[tag_version]),
         "the header is damaged or from a newer loqal");
  if (first_set(unused) != h.w + 256)
    fail(cat(name, ": header word ", first_set(unused) - h.w, ": expected 0, found ",
             *first_set(unused)),
         kRewrite);
  if (h[vocab] < 1 || (out->bytes_per_token != bytes_per_token(h[vocab])))
    fail(cat(name, ": header: vocabulary ", h[vocab], " does not fit ", out->bytes_per_token,
             "-byte tokens"),
         kRewrite);
  for (const Word w : {bos, eos, pad})
    if (h[w] < -1 || h[w] >= h[vocab])
      fail(cat(name, ": header word ", int(w), ": expected an id below ", h[vocab],
               " or -1, found ", h[w]),
           kRewrite);
  if (h[row_length] < 0)
    fail(cat(name, ": header: row length ", h[row_length], " is negative"), kRewrite);
  if (h[row_length] > 0 && (h[pad] < 0 || out->tokens % h[row_length] != 0))
    fail(
        cat(name, ": header: rows of ", h[row_length], ": expected a pad id and whole rows, found ",
            "pad ", h[pad], " and ", out->tokens, " tokens"),
        kRewrite);
  out->vocab_size = h[vocab];
  out->bos = h[bos], out->eos = h[eos], out->pad = h[pad];
  out->tokenizer_hash = uint64_t(uint32_t(h[hash_high])) << 32 | uint32_t(h[hash_low]);
  out->row_length = h[row_length];
}

ShardHeader read_header(const ReadOnlyFile& file) {
  uint8_t bytes[kShardHeaderBytes];
  const size_t available = size_t(std::min<int64_t>(file.size(), kShardHeaderBytes));
  file.read(0, bytes, available);
  return parse_shard_header(bytes, available, uint64_t(file.size()), file.path());
}

template <class Id>
void widen(const uint8_t* bytes, int64_t count, int32_t* out) {
  const Id* ids = reinterpret_cast<const Id*>(bytes);  // a vector's memory: aligned
  std::copy(ids, ids + count, out);
}

/// Offset of the first id >= limit, or -1.
template <class Id>
int64_t find_bad_id(const uint8_t* bytes, int64_t count, uint32_t limit) {
  const Id* ids = reinterpret_cast<const Id*>(bytes);
  constexpr int64_t kBlock = 1 << 14;  // a branch-free maximum per block vectorizes
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, count);
    Id largest = 0;
    for (int64_t i = begin; i < end; i++) largest = std::max(largest, ids[i]);
    if (largest < limit) continue;
    return std::find_if(ids + begin, ids + end, [&](Id id) { return id >= limit; }) - ids;
  }
  return -1;
}

}  // namespace

int bytes_per_token(int vocab_size) { return vocab_size <= 65536 ? 2 : 4; }

ShardHeader parse_shard_header(const uint8_t* data, size_t available, uint64_t file_size,
                               const std::string& name) {
  const std::string_view start(reinterpret_cast<const char*>(data), available);
  if (available < size_t(kShardHeaderBytes)) {
    const FileKind kind = sniff(start);
    fail(
        cat(name, ": not a token shard: expected a header of ", kShardHeaderBytes, " bytes, found ",
            file_size, " bytes", kind == FileKind::other ? "" : cat(", ", describe(kind))),
        kRewrite);
  }
  Words h;
  std::memcpy(h.w, data, sizeof h.w);
  check_magic(h, start, name);
  ShardHeader out;
  out.bytes_per_token = h[magic] == kShardMagic16 ? 2 : 4;
  if (h[count] < 0) fail(cat(name, ": header: token count ", h[count], " is negative"), kRewrite);
  out.tokens = h[count];
  parse_spare_words(h, name, &out);
  if (file_size != uint64_t(out.file_bytes()))
    fail(cat(name, ": expected ", out.file_bytes(), " bytes (header + ", out.tokens, " tokens x ",
             out.bytes_per_token, "), found ", file_size),
         kRewrite);
  return out;
}

ShardHeader read_shard_header(const std::string& path) { return read_header(ReadOnlyFile(path)); }

void format_shard_header(const ShardHeader& header, uint8_t* out) {
  LOQAL_ASSERT(header.tokens >= 0 && header.tokens <= kMaxShardTokens, header.tokens);
  Words h = {};
  const bool narrow = header.bytes_per_token == 2;
  h.w[magic] = narrow ? kShardMagic16 : kShardMagic32;
  h.w[version] = narrow ? kShardVersion16 : kShardVersion32;
  h.w[count] = int32_t(header.tokens);
  h.w[tag] = kTag;
  h.w[tag_version] = kTagVersion;
  h.w[vocab] = header.vocab_size;
  h.w[bos] = header.bos, h.w[eos] = header.eos, h.w[pad] = header.pad;
  h.w[hash_low] = int32_t(uint32_t(header.tokenizer_hash));
  h.w[hash_high] = int32_t(uint32_t(header.tokenizer_hash >> 32));
  h.w[row_length] = header.row_length;
  std::memcpy(out, h.w, sizeof h.w);
}

Shard::Shard(const std::string& path, int vocab_size)
    : file_(path), header_(read_header(file_)), limit_(INT_MAX) {
  for (const int size : {vocab_size, header_.vocab_size})
    if (size > 0) limit_ = std::min(limit_, size);
}

void Shard::read_bytes(int64_t begin, int64_t count, std::vector<uint8_t>* bytes) const {
  const int64_t width = header_.bytes_per_token;
  bytes->resize(size_t(count * width));
  file_.read(kShardHeaderBytes + begin * width, bytes->data(), bytes->size());
}

void Shard::check_ids(const std::vector<uint8_t>& bytes, int64_t begin) const {
  const int width = header_.bytes_per_token;
  const int64_t count = int64_t(bytes.size()) / width;
  const int64_t bad = width == 2 ? find_bad_id<uint16_t>(bytes.data(), count, uint32_t(limit_))
                                 : find_bad_id<uint32_t>(bytes.data(), count, uint32_t(limit_));
  if (bad < 0) return;
  uint32_t id = 0;
  std::memcpy(&id, &bytes[size_t(bad * width)], size_t(width));
  fail(cat(file_.path(), ": token ", begin + bad, " has id ", id,
           ", expected below the vocabulary size ", limit_),
       "tokenize with the model's tokenizer, or give the model the shard's vocabulary (--vocab)");
}

void Shard::read(int64_t begin, int64_t count, int32_t* out) const {
  LOQAL_ASSERT(begin >= 0 && count >= 0 && begin + count <= header_.tokens, begin, "+", count,
               " of ", header_.tokens, " in ", file_.path());
  std::vector<uint8_t> bytes;
  read_bytes(begin, count, &bytes);
  check_ids(bytes, begin);
  header_.bytes_per_token == 2 ? widen<uint16_t>(bytes.data(), count, out)
                               : widen<uint32_t>(bytes.data(), count, out);
}

void Shard::scan() const {
  constexpr int64_t kPiece = 1 << 20;
  std::vector<uint8_t> bytes;
  for (int64_t begin = 0; begin < header_.tokens; begin += kPiece) {
    read_bytes(begin, std::min(kPiece, header_.tokens - begin), &bytes);
    check_ids(bytes, begin);
  }
}

}  // namespace loqal
