#include "data/tokenize.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "data/sha256.h"
#include "data/shard_writer.h"
#include "data/tokenizer.h"

namespace loqal {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// Which ids surround each document; -1: none.
struct Separators {
  int before = -1, second_before = -1, after = -1;  // bos, eos, eos
  std::string description;
};

struct Counts {
  int64_t documents = 0, empty = 0, bytes = 0, unknown = 0, text_tokens = 0;
  int64_t sampled = 0, changed = 0;  // encode and decode again
};

constexpr int64_t kRoundTripSample = 200;

Separators choose_separators(const TokenizeOptions& options, const Tokenizer& tokenizer) {
  std::string bos = options.bos, eos = options.eos;
  if (bos.empty() && eos.empty()) {
    if (tokenizer.eos() >= 0) eos = tokenizer.eos_goes_before() ? "before" : "after";
    else if (tokenizer.bos() >= 0) bos = "before";
  }
  if (bos.empty()) bos = "none";
  if (eos.empty()) eos = "none";
  const auto need = [&](const std::string& option, const std::string& value, int id) {
    if (value != "none" && id < 0)
      fail_usage(cat(option, " ", value, ": the tokenizer ", options.tokenizer, " has no ",
                     option.substr(2), " id"),
                 cat("give ", option, " none, or take another tokenizer"));
  };
  need("--bos", bos, tokenizer.bos());
  need("--eos", eos, tokenizer.eos());
  Separators s;
  if (bos == "before") s.before = tokenizer.bos();
  if (eos == "before") s.second_before = tokenizer.eos();
  if (eos == "after") s.after = tokenizer.eos();
  const auto id_text = [](const std::string& place, int id) {
    return place == "none" ? place : cat(place, " (id ", id, ")");
  };
  s.description =
      cat("bos ", id_text(bos, tokenizer.bos()), ", eos ", id_text(eos, tokenizer.eos()));
  return s;
}

/// The run itself: one tokenizer, one writer, all inputs.
class Job {
 public:
  Job(const TokenizeOptions& options, std::ostream& log)
      : options_(options),
        log_(log),
        tokenizer_(load_tokenizer(options.tokenizer)),
        separators_(choose_separators(options, *tokenizer_)),
        writer_(options.out, header(), options.shard_tokens) {}

  bool run() {
    log_ << "tokenizer  " << options_.tokenizer << ", vocabulary " << tokenizer_->vocab_size()
         << "\nseparators " << separators_.description << "\n";
    for (const std::string& input : options_.inputs)
      if (!read_file(input)) return false;
    if (writer_.tokens() == 0) {
      print_skipped(skipped_, log_);
      fail(cat("nothing to write: ", counts_.documents, " documents read, ", counts_.empty,
               " of them empty, ", skipped_.total(), " skipped"),
           "check the inputs");
    }
    const std::vector<WrittenShard>& shards = writer_.finish();
    const std::string manifest = options_.out + ".json";
    const std::string text = manifest_json(shards);
    // No manifest at all, if the machine stops in here, rather than one that names other shards.
    fs::remove(manifest);
    writer_.publish();
    write_file_atomic(manifest, text);
    summarize(shards);
    return true;
  }

 private:
  ShardHeader header() const {
    ShardHeader h;
    h.vocab_size = tokenizer_->vocab_size();
    h.bos = tokenizer_->bos(), h.eos = tokenizer_->eos(), h.pad = tokenizer_->pad();
    h.tokenizer_hash = tokenizer_->hash();
    return h;
  }

  bool read_file(const std::string& path) {
    TextReader reader(path, options_.read, &skipped_);
    const int64_t tokens_before = writer_.tokens();
    std::string document;
    while (reader.next(&document)) {
      if (options_.interrupted && options_.interrupted()) return false;
      add(document);
    }
    sources_.push_back({{"path", path},
                        {"bytes", fs::file_size(path)},
                        {"sha256", sha256_file(path)},
                        {"documents", reader.documents()}});
    log_ << path << ": " << reader.documents() << " documents, " << writer_.tokens() - tokens_before
         << " tokens" << std::endl;
    return true;
  }

  void add(const std::string& document) {
    counts_.documents++;
    counts_.bytes += int64_t(document.size());
    ids_.clear();
    if (separators_.before >= 0) ids_.push_back(separators_.before);
    if (separators_.second_before >= 0) ids_.push_back(separators_.second_before);
    const std::vector<int32_t> text = tokenizer_->encode(document);
    if (counts_.documents <= kRoundTripSample) {
      counts_.sampled++;
      counts_.changed += tokenizer_->decode(text) != document;
    }
    if (text.empty()) {
      counts_.empty++;
      return;
    }
    counts_.text_tokens += int64_t(text.size());
    const int unk = tokenizer_->unk();
    if (unk >= 0) counts_.unknown += std::count(text.begin(), text.end(), unk);
    ids_.insert(ids_.end(), text.begin(), text.end());
    if (separators_.after >= 0) ids_.push_back(separators_.after);
    writer_.write(ids_);
  }

  std::string manifest_json(const std::vector<WrittenShard>& shards) const {
    Json m = {{"format", "loqal tokens"}, {"version", 1}};
    m["tokenizer"] = {{"path", options_.tokenizer},
                      {"vocab_size", tokenizer_->vocab_size()},
                      {"hash", to_hex(tokenizer_->hash())}};
    for (const std::string& file : tokenizer_->files())
      m["tokenizer"]["files"].push_back({{"path", file}, {"sha256", sha256_file(file)}});
    m["options"] = {{"separators", separators_.description},
                    {"split", options_.split},
                    {"text_field", options_.read.text_field},
                    {"max_doc_bytes", options_.read.max_doc_bytes},
                    {"on_error", options_.read.skip_bad ? "skip" : "stop"},
                    {"shard_tokens", options_.shard_tokens}};
    m["sources"] = sources_;
    m["documents"] = counts_.documents - counts_.empty;
    m["empty"] = counts_.empty;
    m["skipped"] = Json::object();
    for (const auto& [reason, entry] : skipped_.entries()) m["skipped"][reason] = entry.count;
    m["bytes"] = counts_.bytes;
    m["tokens"] = writer_.tokens();
    m["shards"] = Json::array();
    for (const WrittenShard& s : shards)
      m["shards"].push_back({{"file", fs::path(s.path).filename().string()},
                             {"tokens", s.tokens},
                             {"sha256", s.sha256}});
    // Names of files need not be UTF-8.
    return m.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  }

  void summarize(const std::vector<WrittenShard>& shards) const {
    const int64_t written = counts_.documents - counts_.empty;
    log_ << "documents  " << written << " written, " << counts_.empty << " empty, "
         << skipped_.total() << " skipped\n";
    print_skipped(skipped_, log_);
    log_ << "separators " << writer_.tokens() - counts_.text_tokens << "\n"
         << "tokens     " << writer_.tokens() << " in " << shards.size()
         << (shards.size() == 1 ? " shard, " : " shards, ") << std::setprecision(3)
         << double(counts_.text_tokens) / double(std::max<int64_t>(1, counts_.bytes))
         << " a byte of text\n";
    if (tokenizer_->unk() >= 0)
      log_ << "unknown    " << counts_.unknown << " tokens ("
           << 100.0 * double(counts_.unknown) / double(counts_.text_tokens) << " %)\n";
    if (counts_.changed > 0)
      log_ << "warning: the tokenizer changes text: " << counts_.changed << " of the first "
           << counts_.sampled << " documents decode to something else\n";
    log_ << "wrote      " << shards.front().path << (shards.size() > 1 ? " ... " : " ")
         << (shards.size() > 1 ? shards.back().path + " " : "") << "and " << options_.out << ".json"
         << std::endl;
  }

  const TokenizeOptions& options_;
  std::ostream& log_;
  const std::unique_ptr<Tokenizer> tokenizer_;
  const Separators separators_;
  ShardWriter writer_;
  SkipReport skipped_;
  Counts counts_;
  Json sources_ = Json::array();
  std::vector<int32_t> ids_;  // of one document
};

}  // namespace

void check_inputs(const std::vector<std::string>& inputs) {
  for (const std::string& path : inputs) {
    if (!fs::exists(path)) fail(cat(path, ": no such input file"));
    if (!fs::is_regular_file(path))
      fail(cat(path, ": expected a file"), "name the files of a folder, for example DIR/*.json.gz");
    if (!std::ifstream(path)) fail(cat(path, ": cannot be read: check its permissions"));
  }
}

void print_skipped(const SkipReport& skipped, std::ostream& log) {
  for (const auto& [reason, entry] : skipped.entries()) {
    log << "  skipped " << entry.count << ": " << reason << ", first at\n";
    for (const std::string& where : entry.first) log << "    " << where << "\n";
  }
}

bool tokenize(const TokenizeOptions& options, std::ostream& log) {
  check_inputs(options.inputs);
  return Job(options, log).run();
}

}  // namespace loqal
