#include "data/tokenize.h"

#include <malloc.h>
#include <sys/stat.h>

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>

#include "core/error.h"
#include "core/file.h"
#include "core/format.h"
#include "core/in_order.h"
#include "data/document_encoder.h"
#include "data/journal.h"
#include "data/progress.h"
#include "data/resume.h"
#include "data/shard_writer.h"
#include "data/tokenizer.h"

namespace loqal {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBatchBytes = int64_t(128) << 10;   // of text: some ten milliseconds of work
constexpr int64_t kReadAhead = int64_t(16) << 20;     // of text that is not written yet
constexpr int64_t kLongDocument = int64_t(64) << 10;  // shorter ones need no budget
constexpr int64_t kLongBudget = int64_t(2) << 20;     // of long documents being encoded

/// Documents of one input on their way from the reader to the shards.
struct Batch {
  int64_t bytes = 0;  // of memory: of text, and what holds it
  int64_t read = 0;   // of all inputs, as they lie on disk, when this batch was complete
  std::vector<std::string> documents;
  std::vector<int32_t> ids;  // in place of the documents
  Counts counts;
  SkipReport skipped;
  std::optional<Source> finished;  // the input ends with this batch
};

/// The inputs, batch by batch.
class BatchReader {
 public:
  BatchReader(const TokenizeOptions& options, size_t first_input)
      : options_(options), input_(first_input) {
    for (size_t i = 0; i < first_input; i++) before_ += input_bytes(options.inputs[i]);
  }

  bool next(Batch* batch) {
    if (input_ == options_.inputs.size()) return false;
    const std::string& path = options_.inputs[input_];
    if (!reader_) {
      source_ = describe_source(path);
      reader_ = std::make_unique<TextReader>(path, options_.read, &skipped_);
    }
    const auto& interrupted = options_.read.interrupted;
    std::string document;
    while (batch->bytes < kBatchBytes) {
      const bool more = reader_->next(&document);
      if (interrupted && interrupted()) return false;
      if (!more) {
        const Source now = describe_source(path);
        if (now.bytes != source_.bytes || now.modified != source_.modified)
          fail(cat(path, ": changed while it was read"), "the same command reads it again");
        batch->finished = source_;
        batch->finished->sha256 = reader_->file_sha256();
        batch->finished->documents = reader_->documents();
        before_ += batch->finished->bytes;
        reader_.reset();
        input_++;
        break;
      }
      batch->bytes += int64_t(document.size() + 2 * sizeof document);  // empty ones cost as well
      batch->documents.push_back(std::move(document));
    }
    batch->read = before_ + (reader_ ? int64_t(reader_->file_offset()) : 0);
    std::swap(batch->skipped, skipped_);
    return true;
  }

 private:
  const TokenizeOptions& options_;
  size_t input_;
  int64_t before_ = 0;  // bytes of complete inputs
  SkipReport skipped_;
  std::unique_ptr<TextReader> reader_;  // of inputs[input_], once it is open
  Source source_;                       // that file then
};

/// Encoding takes tens of bytes of memory a byte, so long documents share a budget; one that is
/// larger than all of it waits until it is alone.
class LongDocuments {
 public:
  template <class Work>
  void run(int64_t bytes, const Work& work) {
    if (bytes < kLongDocument) return work();
    std::unique_lock lock(mutex_);
    left_.wait(lock, [&] { return used_ == 0 || used_ + bytes <= kLongBudget; });
    used_ += bytes;
    lock.unlock();
    const Return whatever_happens{*this, bytes};
    work();
    if (bytes > kLongBudget / 2) malloc_trim(0);  // or each thread keeps what its longest one took
  }

 private:
  struct Return {
    LongDocuments& budget;
    int64_t bytes;
    ~Return() {
      const std::lock_guard lock(budget.mutex_);
      budget.used_ -= bytes;
      budget.left_.notify_all();
    }
  };

  std::mutex mutex_;
  std::condition_variable left_;
  int64_t used_ = 0;
};

/// The run itself: one writer, all inputs.
class Job {
 public:
  Job(const TokenizeOptions& options, std::ostream& log)
      : options_(options),
        log_(log),
        tokenizer_(load_tokenizer(options.tokenizer)),
        layout_(choose_layout(*tokenizer_, options.tokenizer, options.bos, options.eos,
                              options.row_length)),
        work_(describe_work(options, *tokenizer_, layout_)) {
    tokenizer_json_ = work_["tokenizer"];
    tokenizer_json_["path"] = options.tokenizer;
    for (const std::string& file : tokenizer_->files())
      tokenizer_json_["files"].push_back({{"path", file}, {"sha256", sha256_file(file)}});
    if (options.row_length > options.shard_tokens)
      fail_usage(cat("--pad-to ", options.row_length, " is more than --shard-tokens ",
                     options.shard_tokens));
    check_prefix(options.out);
  }

  bool run() {
    log_ << "tokenizer  " << options_.tokenizer << ", vocabulary " << tokenizer_->vocab_size()
         << "\nseparators " << layout_.description << std::endl;
    Journal journal(options_.out);
    journal_ = &journal;
    finish_publication(options_.out);
    if (is_up_to_date(options_, work_)) {
      journal.remove();
      log_ << options_.out << ".json: up to date, nothing to do" << std::endl;
      return true;
    }
    begin();
    keeping_what_is_done([&] { process(); });
    if (sources_.size() < options_.inputs.size()) {
      if (keep_or_clear()) log_ << "stopped: " << resumable() << std::endl;
      return false;
    }
    check_result();
    keeping_what_is_done([&] {
      writer_->finish();
      writer_->publish(manifest());
    });
    journal.remove();
    summarize();
    return true;
  }

 private:
  ShardHeader header() const {
    ShardHeader h;
    h.vocab_size = tokenizer_->vocab_size();
    h.bos = tokenizer_->bos(), h.eos = tokenizer_->eos();
    h.pad = layout_.row_length > 0 ? layout_.pad : tokenizer_->pad();
    h.tokenizer_hash = tokenizer_->hash();
    h.row_length = layout_.row_length;
    return h;
  }

  /// Behind what an interrupted run has done, or from the start.
  void begin() {
    Resumed from = resumable_work(*journal_, options_, work_);
    try {
      writer_ = std::make_unique<ShardWriter>(options_.out, header(), options_.shard_tokens,
                                              from.progress);
    } catch (const Error& e) {
      log_ << "starting over: " << e.what() << std::endl;
      from = {};
      writer_ = std::make_unique<ShardWriter>(options_.out, header(), options_.shard_tokens);
    }
    journal_->cut(from.sources.empty() ? 0 : from.sources.size() + 1);
    if (from.sources.empty()) journal_->append(work_);
    else
      log_ << "going on   behind " << from.sources.size() << " of " << options_.inputs.size()
           << " inputs" << std::endl;
    sources_ = std::move(from.sources);
    counts_ = from.counts;
    skipped_ = from.skipped;
    complete_ = from.progress.complete.size();
  }

  void process() {
    int64_t total = 0, done = 0;
    for (size_t i = 0; i < options_.inputs.size(); i++) {
      total += input_bytes(options_.inputs[i]);
      if (i + 1 == sources_.size()) done = total;
    }
    Progress progress(log_, options_.terminal, total, done);
    BatchReader reader(options_, sources_.size());
    std::vector<DocumentEncoder> encoders;
    for (int i = 0; i < options_.jobs; i++) encoders.emplace_back(tokenizer_->clone(), layout_);
    LongDocuments long_documents;
    const Counts before = counts_;
    const auto encode = [&](int thread, Batch* batch) {
      for (std::string& document : batch->documents)
        long_documents.run(int64_t(document.size()), [&] {
          encoders[size_t(thread)].append(document, &batch->ids, &batch->counts);
          std::string().swap(document);
        });
      std::vector<std::string>().swap(batch->documents);
    };
    const auto write = [&](Batch* batch) {
      writer_->write(batch->ids);
      counts_.add(batch->counts);
      skipped_.add(batch->skipped);
      if (batch->finished) finish_input(*batch->finished);
      progress.update(batch->read, counts_.bytes - before.bytes,
                      counts_.documents - before.documents);
    };
    InOrder<Batch>({[&](Batch* batch) { return reader.next(batch); }, encode, write}, options_.jobs,
                   kReadAhead)
        .run();
  }

  void finish_input(const Source& source) {
    const ShardProgress progress = writer_->flush();
    journal_->append(journal_entry(source, counts_, skipped_, progress, complete_));
    sources_.push_back(source);
    complete_ = progress.complete.size();
  }

  template <class Work>
  void keeping_what_is_done(const Work& work) {
    try {
      work();
    } catch (const Error& e) {
      const bool kept = keep_or_clear();
      throw Error(e.exit_code, e.what(),
                  kept ? cat(e.hint, e.hint.empty() ? "" : "; ", resumable()) : e.hint);
    }
  }

  /// After an interruption: what is complete stays for the next run, if there is anything. Else the
  /// writer's destructor clears up.
  bool keep_or_clear() {
    if (sources_.empty()) {
      journal_->remove();
      return false;
    }
    writer_->keep();
    return true;
  }

  std::string resumable() const {
    return cat(sources_.size(), " of ", options_.inputs.size(),
               " inputs are done: the same command goes on behind them, rm ", options_.out,
               "*.tmp ", options_.out, ".partial clears them away");
  }

  void check_result() {
    const bool nothing = writer_->tokens() == 0;
    if (!nothing && skipped_.total() <= counts_.documents + counts_.empty) return;
    print_skipped(skipped_, log_);
    journal_->remove();
    const std::string found = cat(counts_.documents + counts_.empty, " documents read, ",
                                  counts_.empty, " of them empty, ", skipped_.total(), " skipped");
    if (nothing) fail(cat("nothing to write: ", found), "check the inputs");
    fail(cat("more was skipped than read: ", found), "check the inputs and --text-field");
  }

  Json manifest() const {
    Json m = work_;
    m["tokenizer"] = tokenizer_json_;
    m["options"]["on_error"] = options_.read.skip_bad ? "skip" : "stop";
    m["sources"] = Json::array();
    for (const Source& source : sources_) m["sources"].push_back(to_json(source));
    m.update(counts_.to_json());
    m["skipped"] = to_json(skipped_);
    return m;
  }

  void summarize() {
    const auto percent = [](int64_t part, int64_t whole) {
      return format("%.3g %%", 100.0 * double(part) / double(std::max<int64_t>(1, whole)));
    };
    const Counts& c = counts_;
    const std::vector<WrittenShard>& shards = writer_->finish();
    log_ << "documents  " << c.documents << " written, " << c.empty << " empty, "
         << skipped_.total() << " skipped\n";
    print_skipped(skipped_, log_);
    log_ << "separators " << c.separators << "\n"
         << "tokens     " << writer_->tokens() << " in " << shards.size()
         << (shards.size() == 1 ? " shard, " : " shards, ")
         << format("%.3f", double(c.encoded) / double(std::max<int64_t>(1, c.bytes)))
         << " a byte of text\n";
    if (layout_.row_length > 0)
      log_ << "rows       of " << layout_.row_length << ": " << c.cut << " documents cut ("
           << percent(c.cut, c.documents) << "), padding " << percent(c.padding, writer_->tokens())
           << "\n";
    if (tokenizer_->unk() >= 0)
      log_ << "unknown    " << c.unknown << " tokens (" << percent(c.unknown, c.text_tokens)
           << ")\n";
    log_ << "changed    " << c.changed << " documents ("
         << percent(c.changed, c.documents + c.empty) << ") decode to another text"
         << (c.changed > 0 ? ": the tokenizer does not keep every character" : "") << "\n"
         << "wrote      " << shards.front().path << (shards.size() > 1 ? " ... " : " ")
         << (shards.size() > 1 ? shards.back().path + " " : "") << "and " << options_.out << ".json"
         << std::endl;
  }

  const TokenizeOptions& options_;
  std::ostream& log_;
  const std::unique_ptr<Tokenizer> tokenizer_;
  const Layout layout_;
  const Json work_;
  Json tokenizer_json_;  // work_'s, with its files as they were at the start
  Journal* journal_ = nullptr;
  std::unique_ptr<ShardWriter> writer_;
  std::vector<Source> sources_;  // complete ones
  Counts counts_;
  SkipReport skipped_;
  size_t complete_ = 0;  // shards that the journal knows
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
