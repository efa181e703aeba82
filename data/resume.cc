#include "data/resume.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "core/file.h"
#include "data/sha256.h"

namespace loqal {
namespace {

namespace fs = std::filesystem;

Source source_from(const Json& json, const std::string& where) {
  return {get<std::string>(json, "path", where), get<int64_t>(json, "bytes", where),
          get<int64_t>(json, "modified", where), get<std::string>(json, "sha256", where),
          get<int64_t>(json, "documents", where)};
}

SkipReport skipped_from(const Json& json, const std::string& where) {
  SkipReport skipped;
  for (const auto& [reason, entry] : json.items())
    skipped.set(reason, {get<int64_t>(entry, "count", where),
                         get<std::vector<std::string>>(entry, "first", where)});
  return skipped;
}

bool unchanged(const Source& known, const std::string& path) {
  if (known.path != path) return false;
  const Source now = describe_source(path);
  return known.bytes == now.bytes && known.modified == now.modified;
}

/// A run that stops at bad documents must not take over that some were skipped.
bool acceptable(const SkipReport& skipped, const TokenizeOptions& options) {
  return options.read.skip_bad || skipped.total() == 0;
}

/// Adds what a line of the journal says. False if it is about another input than the next one.
bool take_entry(const Json& line, const TokenizeOptions& options, const std::string& where,
                Resumed* out) {
  const Source source = source_from(get<Json>(line, "source", where), where);
  if (out->sources.size() == options.inputs.size() ||
      !unchanged(source, options.inputs[out->sources.size()]))
    return false;
  const SkipReport skipped = skipped_from(get<Json>(line, "skipped", where), where);
  if (!acceptable(skipped, options)) return false;
  out->sources.push_back(source);
  out->skipped = skipped;
  out->counts = Counts::from_json(get<Json>(line, "counts", where), where);
  for (const Json& shard : get<std::vector<Json>>(line, "complete", where))
    out->progress.complete.push_back(
        {shard_path(options.out, int64_t(out->progress.complete.size())),
         get<int64_t>(shard, "tokens", where), get<std::string>(shard, "sha256", where)});
  out->progress.tokens = get<int64_t>(line, "tokens", where);
  out->progress.sum = {get<int64_t>(line, "bytes", where), get<uint32_t>(line, "crc32", where)};
  return true;
}

}  // namespace

Source describe_source(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) fail(cat(path, ": cannot examine: ", std::strerror(errno)));
  Source source;
  source.path = path;
  source.bytes = info.st_size;
  source.modified = int64_t(info.st_mtim.tv_sec) * 1'000'000'000 + info.st_mtim.tv_nsec;
  return source;
}

int64_t input_bytes(const std::string& path) { return describe_source(path).bytes; }

Json to_json(const Source& source) {
  return {{"path", source.path},
          {"bytes", source.bytes},
          {"modified", source.modified},
          {"sha256", source.sha256},
          {"documents", source.documents}};
}

Json to_json(const SkipReport& skipped) {
  Json json = Json::object();
  for (const auto& [reason, entry] : skipped.entries())
    json[reason] = {{"count", entry.count}, {"first", entry.first}};
  return json;
}

Json describe_work(const TokenizeOptions& options, const Tokenizer& tokenizer,
                   const Layout& layout) {
  return {
      {"tokenizer", {{"vocab_size", tokenizer.vocab_size()}, {"hash", to_hex(tokenizer.hash())}}},
      {"options",
       {{"separators", layout.description},
        {"pad_to", layout.row_length},
        {"split", options.split},
        {"text_field", options.read.text_field},
        {"max_doc_bytes", options.read.max_doc_bytes},
        {"shard_tokens", options.shard_tokens}}}};
}

Json journal_entry(const Source& source, const Counts& counts, const SkipReport& skipped,
                   const ShardProgress& progress, size_t known) {
  Json complete = Json::array();
  for (size_t i = known; i < progress.complete.size(); i++)
    complete.push_back(
        {{"tokens", progress.complete[i].tokens}, {"sha256", progress.complete[i].sha256}});
  return {{"source", to_json(source)},  {"counts", counts.to_json()}, {"skipped", to_json(skipped)},
          {"complete", complete},       {"tokens", progress.tokens},  {"bytes", progress.sum.bytes},
          {"crc32", progress.sum.crc32}};
}

Resumed resumable_work(const Journal& journal, const TokenizeOptions& options, const Json& work) {
  Resumed out;
  const std::vector<Json>& lines = journal.lines();
  if (lines.empty() || lines[0] != work) return out;
  for (size_t i = 1; i < lines.size(); i++)
    if (!take_entry(lines[i], options, cat(journal.path(), ":", i + 1), &out)) break;
  return out;
}

bool is_up_to_date(const TokenizeOptions& options, const Json& work) {
  const std::string path = options.out + ".json";
  if (!fs::exists(path)) return false;
  try {
    const Json manifest = parse_json(read_file(path), path);
    for (const char* part : {"tokenizer", "options"})
      for (const auto& [key, value] : work[part].items())
        if (get<Json>(get<Json>(manifest, part, path), key, path) != value) return false;
    if (!acceptable(skipped_from(get<Json>(manifest, "skipped", path), path), options))
      return false;
    const auto sources = get<std::vector<Json>>(manifest, "sources", path);
    if (sources.size() != options.inputs.size()) return false;
    for (size_t i = 0; i < sources.size(); i++)
      if (!unchanged(source_from(sources[i], path), options.inputs[i])) return false;
    int64_t index = 0;
    for (const Json& shard : get<std::vector<Json>>(manifest, "shards", path))
      if (read_shard_header(shard_path(options.out, index++)).tokens !=
          get<int64_t>(shard, "tokens", path))
        return false;
    return true;
  } catch (const Error&) {  // not a manifest of this version, a shard is missing ...
    return false;
  }
}

}  // namespace loqal
