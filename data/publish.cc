#include "data/publish.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>

#include "core/error.h"
#include "core/file.h"

namespace loqal {
namespace {

namespace fs = std::filesystem;

std::string pending_path(const std::string& prefix) { return prefix + ".json.new"; }

fs::path folder_of(const std::string& prefix) {
  const fs::path parent = fs::path(prefix).parent_path();
  return parent.empty() ? "." : parent;
}

/// Bytes of the name without "_nnnnnn.bin" (six digits or more), or npos.
size_t stem_length(const std::string& name) {
  if (!name.ends_with(".bin")) return std::string::npos;
  const size_t digits = name.size() - 4;
  const size_t mark = name.find_last_not_of("0123456789", digits - 1);
  const bool numbered = mark != std::string::npos && name[mark] == '_' && digits - mark > 6;
  return numbered ? mark : std::string::npos;
}

}  // namespace

std::string shard_path(const std::string& prefix, int64_t index) {
  char number[32];
  std::snprintf(number, sizeof number, "_%06lld.bin", static_cast<long long>(index));
  return prefix + number;
}

std::string prefix_of(const std::string& path) {
  const size_t length = stem_length(path);
  return length == std::string::npos ? "" : path.substr(0, length);
}

void check_prefix(const std::string& prefix) {
  const fs::path path(prefix), parent = path.parent_path();
  if (path.filename().empty())
    fail(cat("--out ", prefix, ": expected a file prefix, found a folder"));
  if (!parent.empty()) create_directories(parent.string());
}

std::vector<std::string> existing_shards(const std::string& prefix, const std::string& suffix) {
  const fs::path path(prefix);
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder_of(prefix))) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(suffix)) continue;
    const std::string shard = name.substr(0, name.size() - suffix.size());
    if (prefix_of(shard) == path.filename().string())
      found.push_back((path.parent_path() / name).string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

void publish_shards(const std::string& prefix, const Json& manifest) {
  write_file_atomic(pending_path(prefix), dump_json(manifest, 1));
  finish_publication(prefix);
}

void finish_publication(const std::string& prefix) {
  const std::string pending = pending_path(prefix);
  if (!fs::exists(pending)) return;
  const Json manifest = parse_json(read_file(pending), pending);
  remove_tree(prefix + ".json");
  std::set<std::string> names;
  for (const Json& shard : get<std::vector<Json>>(manifest, "shards", pending)) {
    const std::string name = get<std::string>(shard, "file", pending);
    const std::string path = (fs::path(prefix).parent_path() / name).string();
    names.insert(name);
    if (fs::exists(tmp_path(path))) rename_path(tmp_path(path), path);
    else if (!fs::exists(path))
      fail(cat(path, ": this shard is lost, though ", pending, " says it was complete"),
           cat("remove ", pending, " and tokenize again"));
  }
  // Names, not paths: "a//b" and "a/b" are the same folder.
  for (const std::string& path : existing_shards(prefix))
    if (!names.contains(fs::path(path).filename().string())) remove_tree(path);
  sync_directory(folder_of(prefix).string());  // the names before what says that they are there
  rename_path(pending, prefix + ".json");
  sync_directory(folder_of(prefix).string());
}

void check_published(const std::string& path) {
  const std::string prefix = prefix_of(path);
  if (prefix.empty() || !fs::exists(pending_path(prefix))) return;
  fail(cat(path, ": ./tokenize was interrupted while it replaced these shards: old and new ones ",
           "may be mixed (", pending_path(prefix), " is there)"),
       "run the same ./tokenize command again: it finishes in a moment");
}

}  // namespace loqal
