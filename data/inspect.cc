#include "data/inspect.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "data/publish.h"
#include "data/sha256.h"
#include "data/shard.h"
#include "data/tokenizer.h"

namespace loqal {
namespace {

namespace fs = std::filesystem;

Json read_manifest(const std::string& path) {
  const Json manifest = parse_json(read_file(path), path);
  if (get_or<std::string>(manifest, "format", path, "") != "loqal tokens")
    fail(cat(path, ": expected a manifest of ./tokenize (\"format\": \"loqal tokens\")"));
  return manifest;
}

/// Everything that a shard's own header and the manifest both say, its ids, its bytes.
void verify_shard(const std::string& path, const Json& entry, const Json& manifest,
                  const std::string& where) {
  const Shard shard(path, 0);
  const ShardHeader& h = shard.header();
  const auto same = [&](const char* what, const auto& expected, const auto& found) {
    if (expected != found)
      fail(cat(path, ": expected ", what, " ", expected, " (", where, "), found ", found));
  };
  same("tokens", get<int64_t>(entry, "tokens", where), h.tokens);
  const Json tokenizer = get_or<Json>(manifest, "tokenizer", where, Json::object());
  same("vocabulary size", get_or<int>(tokenizer, "vocab_size", where, h.vocab_size), h.vocab_size);
  same("tokenizer hash", get_or<std::string>(tokenizer, "hash", where, to_hex(h.tokenizer_hash)),
       to_hex(h.tokenizer_hash));
  const Json options = get_or<Json>(manifest, "options", where, Json::object());
  same("row length", get_or<int>(options, "pad_to", where, h.row_length), h.row_length);
  shard.scan();
  same("SHA-256", get<std::string>(entry, "sha256", where), sha256_file(path));
}

/// Where documents begin and end in a packed shard; -1: not marked.
struct Marks {
  int start = -1, end = -1;
};

Marks find_marks(const Shard& shard, const Json& manifest, const Tokenizer* tokenizer) {
  const ShardHeader& h = shard.header();
  const bool known = h.vocab_size > 0 || !tokenizer;
  const int bos = known ? h.bos : tokenizer->bos(), eos = known ? h.eos : tokenizer->eos();
  const Json options = get_or<Json>(manifest, "options", "manifest", Json::object());
  const auto separators = get_or<std::string>(options, "separators", "manifest", "");
  int32_t first = -1;
  if (h.tokens > 0) shard.read(0, 1, &first);
  // Without a manifest the first token tells, unless a document straddles the shard's border.
  const auto stands = [&](const char* words, bool guess) {
    return separators.empty() ? guess : separators.find(words) != std::string::npos;
  };
  if (bos >= 0 && stands("bos before", first == bos)) return {bos, -1};
  if (eos >= 0 && stands("eos before", first == eos)) return {eos, -1};
  if (eos >= 0 && stands("eos after", true)) return {-1, eos};
  return {};
}

struct Range {
  int64_t begin, end;
};

Range find_document(const Shard& shard, const std::string& path, int64_t number,
                    const Marks& marks) {
  constexpr int64_t kPiece = 1 << 16;
  const int64_t tokens = shard.header().tokens;
  int64_t documents = 0;  // that end before `begin`
  int64_t begin = 0;
  std::vector<int32_t> ids;
  for (int64_t at = 0; at < tokens; at += kPiece) {
    ids.resize(size_t(std::min(kPiece, tokens - at)));
    shard.read(at, int64_t(ids.size()), ids.data());
    for (size_t i = 0; i < ids.size(); i++) {
      const int64_t here = at + int64_t(i);
      int64_t border = -1;  // the next document begins here
      if (ids[i] == marks.start && here > 0) border = here;
      if (ids[i] == marks.end) border = here + 1;
      if (border < 0) continue;
      if (documents == number) return {begin, border};
      documents++;
      begin = border;
    }
  }
  if (begin < tokens && documents == number) return {begin, tokens};
  fail(cat(path, ": has ", documents + (begin < tokens), " documents, numbered from 0; expected ",
           "one with number ", number));
}

/// The tokenizer to read with: the given one, which must be the shard's, or the manifest's if it is
/// at hand.
std::unique_ptr<Tokenizer> find_tokenizer(const std::string& given, const Json& manifest,
                                          const std::string& path, uint64_t hash) {
  const Json entry = get_or<Json>(manifest, "tokenizer", "manifest", Json::object());
  const std::string name =
      !given.empty() ? given : get_or<std::string>(entry, "path", "manifest", "");
  if (given.empty() && (name.empty() || !fs::exists(name))) return nullptr;
  auto tokenizer = load_tokenizer(name);
  if (hash == 0 || tokenizer->hash() == hash) return tokenizer;
  if (given.empty()) return nullptr;
  fail(cat(path, " was made by the tokenizer with hash ", to_hex(hash), ", ", given, " has ",
           to_hex(tokenizer->hash())));
}

}  // namespace

void verify_shards(const std::string& manifest_path, std::ostream& log) {
  if (!manifest_path.ends_with(".json"))
    fail_usage(cat("--verify ", manifest_path, ": expected a manifest, PREFIX.json"));
  const std::string prefix = manifest_path.substr(0, manifest_path.size() - 5);
  check_published(shard_path(prefix, 0));
  const Json manifest = read_manifest(manifest_path);
  std::vector<std::string> others = existing_shards(prefix);
  int64_t bad = 0, tokens = 0, shards = 0;
  for (const Json& entry : get<std::vector<Json>>(manifest, "shards", manifest_path)) {
    const auto name = get<std::string>(entry, "file", manifest_path);
    const std::string path = (fs::path(prefix).parent_path() / name).string();
    std::erase(others, path);
    shards++;
    tokens += get<int64_t>(entry, "tokens", manifest_path);
    try {
      verify_shard(path, entry, manifest, manifest_path);
    } catch (const Error& e) {
      bad++;
      log << "  " << e.what() << std::endl;
    }
  }
  for (const std::string& path : others) {
    bad++;
    log << "  " << path << ": " << manifest_path << " does not name this shard" << std::endl;
  }
  if (tokens != get<int64_t>(manifest, "tokens", manifest_path))
    fail(cat(manifest_path, ": the shards' tokens are ", tokens, ", the sum in it differs"));
  if (bad > 0)
    fail(cat(manifest_path, ": ", bad, " differences, see above; ", shards, " shards named"),
         "copy those shards again, or tokenize again");
  log << manifest_path << ": " << shards << " shards, " << tokens << " tokens, as written"
      << std::endl;
}

void show_document(const std::string& path, int64_t number, const std::string& given,
                   std::ostream& log) {
  const Shard shard(path, 0);
  const ShardHeader& h = shard.header();
  const std::string manifest_path = prefix_of(path) + ".json";
  const Json manifest = fs::exists(manifest_path) ? read_manifest(manifest_path) : Json::object();
  const auto tokenizer = find_tokenizer(given, manifest, path, h.tokenizer_hash);
  log << path << ": " << h.tokens << " tokens of " << h.bytes_per_token << " bytes\n";
  if (h.vocab_size > 0)
    log << "vocabulary " << h.vocab_size << ", bos " << h.bos << ", eos " << h.eos << ", pad "
        << h.pad << ", tokenizer " << to_hex(h.tokenizer_hash) << ", row length " << h.row_length
        << "\n";
  else log << "vocabulary and tokenizer unknown (written by llm.c)\n";

  Range range{number * h.row_length, (number + 1) * h.row_length};
  if (h.row_length == 0) {
    const Marks marks = find_marks(shard, manifest, tokenizer.get());
    if (marks.start < 0 && marks.end < 0)
      fail(cat(path, ": nothing separates the documents, or it is not known what does"),
           "--tokenizer names the tokenizer");
    range = find_document(shard, path, number, marks);
  } else if (range.end > h.tokens) {
    fail(cat(path, ": has ", h.tokens / h.row_length, " rows, numbered from 0; expected one with ",
             "number ", number));
  }
  std::vector<int32_t> ids(size_t(range.end - range.begin));
  shard.read(range.begin, int64_t(ids.size()), ids.data());
  log << (h.row_length > 0 ? "row " : "document ") << number << ", tokens " << range.begin << " to "
      << range.end - 1 << "\nids       ";
  for (const int32_t id : ids) log << " " << id;
  if (tokenizer) {
    std::erase_if(ids, [&](int32_t id) {
      return id == tokenizer->bos() || id == tokenizer->eos() || id == h.pad;
    });
    log << "\ntext       " << tokenizer->decode(ids);
  } else {
    log << "\n(--tokenizer shows the text)";
  }
  log << std::endl;
}

}  // namespace loqal
