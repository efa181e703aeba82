#include "async/setup.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "core/file.h"
#include "core/threads.h"

namespace loqal {

namespace fs = std::filesystem;

std::string resolve_resume(Options& o) {
  if (o.resume.empty()) return "";
  const bool automatic = o.resume == "auto";
  if (!automatic && fs::exists(o.resume + "/state.json")) {
    fs::path step = fs::path(o.resume + "/").lexically_normal().parent_path();  // without the slash
    if (!step.has_parent_path()) step = fs::canonical(step);                    // "." and the like
    if (!o.is_given("--out")) o.out = step.parent_path().string();
    return step.string();
  }
  const std::string run = automatic ? o.out : o.resume;
  const std::vector<std::string> found = list_checkpoints(run);
  if (found.empty() && automatic) return "";
  if (found.empty())
    fail(cat("--resume ", o.resume,
             ": no checkpoint there (looked for state.json and step_*/state.json)"));
  if (!automatic && !o.is_given("--out")) o.out = run;
  return found.back();
}

namespace {

void must_equal(const Options& o, const char* option, int64_t given, int64_t found) {
  if (o.is_given(option) && given != found)
    fail_usage(cat(option, " ", given, " contradicts --init ", o.init, ", which has ", found));
}

ModelConfig config_of_init(const Options& o) {
  ModelConfig c = read_model_config(o.init);
  must_equal(o, "--layers", o.layers, c.L);
  must_equal(o, "--width", o.width, c.C);
  must_equal(o, "--heads", o.heads, c.NH);
  must_equal(o, "--kv-heads", o.kv_heads, c.NKV);
  must_equal(o, "--head-dim", o.head_dim, c.HS);
  must_equal(o, "--ffn", o.ffn, c.F);
  must_equal(o, "--vocab", o.vocab, c.V);
  const auto must_be = [&](const char* option, const std::string& given, const std::string& found) {
    if (o.is_given(option) && given != found)
      fail_usage(cat(option, " ", given, " contradicts --init ", o.init, ", which has ", found));
  };
  must_be("--arch", o.arch, c.arch_name());
  must_be("--tied", o.tied, c.tied ? "true" : "false");
  if (c.arch == Arch::gpt2) must_equal(o, "--seq-len", o.seq_len, c.T);  // learned positions
  else if (o.seq_len > 0) c.T = o.seq_len;
  return c;
}

ModelConfig config_of_preset(const Options& o) {
  ModelConfig c = preset_config(o.model);
  const Arch preset_arch = c.arch;
  if (!o.arch.empty()) c.arch = o.arch == "gpt2" ? Arch::gpt2 : Arch::llama;
  const bool gpt2 = c.arch == Arch::gpt2, other_arch = c.arch != preset_arch;
  if (other_arch) c.norm_eps = gpt2 ? 1e-5f : 1e-6f, c.tied = gpt2;
  if (o.layers > 0) c.L = o.layers;
  if (o.width > 0) c.C = o.width;
  if (o.heads > 0) c.NH = o.heads;
  c.NKV = o.kv_heads > 0 ? o.kv_heads : c.NH;
  if (o.head_dim > 0) {
    c.HS = o.head_dim;
  } else if (o.width > 0 || o.heads > 0) {
    if (c.C % c.NH)
      fail_usage(cat("--heads ", c.NH, " does not divide --width ", c.C),
                 "give --head-dim as well");
    c.HS = c.C / c.NH;
  }
  // The usual widths: 4 C for GELU; 8/3 C for SwiGLU, which has a third matrix (Shazeer 2020).
  if (o.ffn > 0) c.F = o.ffn;
  else if (o.width > 0 || other_arch) c.F = gpt2 ? 4 * c.C : (8 * c.C / 3 + 15) / 16 * 16;
  if (!o.tied.empty()) c.tied = o.tied == "true";
  if (o.seq_len > 0) c.T = o.seq_len;
  return c;
}

}  // namespace

ModelConfig resolve_model(Options& o, int data_vocab) {
  const bool from_directory = o.init != "random";
  ModelConfig c = from_directory ? config_of_init(o) : config_of_preset(o);
  if (!from_directory) {
    if (o.vocab > 0) c.V = o.vocab;
    else if (data_vocab > 0) c.V = data_vocab;
  }
  validate(c);
  o.arch = c.arch_name(), o.layers = c.L, o.width = c.C, o.heads = c.NH, o.kv_heads = c.NKV,
  o.head_dim = c.HS;
  resolve_method(o, c);
  o.ffn = c.F, o.vocab = c.V, o.seq_len = c.T, o.tied = c.tied ? "true" : "false";
  return c;
}

void resolve_batch(Options& o, const ModelConfig& c) {
  constexpr int64_t most = int64_t(1) << 30;  // all token ids of a step are in memory at once
  const int64_t per_pass = o.batch_size * c.T;
  if (o.total_batch > 0 && o.total_batch % per_pass) {
    const int64_t below = o.total_batch / per_pass * per_pass;
    fail_usage(cat("--total-batch ", o.total_batch, " is no multiple of the ", per_pass,
                   " tokens of one pass (--batch-size ", o.batch_size, " x --seq-len ", c.T, ")"),
               cat("nearest: ", below ? cat(below, " or ") : "", below + per_pass));
  }
  if (o.total_batch > 0) o.grad_accum = o.total_batch / per_pass;
  if (per_pass > most || o.grad_accum > most / per_pass)
    fail_usage(cat("--batch-size ", o.batch_size, " x --seq-len ", c.T, " x --grad-accum ",
                   o.grad_accum, ": a step has at most ", most, " tokens"));
  if (o.per_layer_updates && o.grad_accum > 1)
    fail_usage(cat("--total-batch ", o.total_batch, " needs ", o.grad_accum,
                   " passes, which contradicts --per-layer-updates"));
}

std::unique_ptr<Ops> make_device(Options& o, bool dry, int gpu) {
  LOQAL_ASSERT(o.device != "auto", "choose_device comes first");
  const bool cuda = o.device == "cuda";
  auto ops = cuda ? make_cuda_ops(gpu, dry) : make_cpu_ops(int(o.threads), dry);
  if (o.precision == "auto")
    o.precision = cuda || ops->has_fast_bf16() || o.param_dtype == "bf16" ? "bf16" : "fp32";
  return ops;
}

Parts build_parts(Ops& ops, const ModelConfig& config, const Options& o, bool training) {
  Parts parts;
  const ModelOptions model_options{.B = o.exporting() ? 0 : o.batch_size,
                                   .X = o.precision == "bf16" ? DType::BF16 : DType::F32,
                                   .P = o.param_dtype == "bf16" ? DType::BF16 : DType::F32,
                                   .recompute = o.recompute == "block",
                                   .training = training,
                                   .cache = o.sampling(),
                                   .threads = int(o.threads),
                                   .matrices = matrix_plan(o)};
  parts.model = std::make_unique<Model>(ops, config, model_options);
  if (!training) return parts;
  Model* model = parts.model.get();
  const ParamAccess access{&model->table(), [model](int i) { return model->parameter(i); },
                           [model](int i) { return model->compute_copy(i); },
                           [model](int i) { return model->rule(i); }};
  const AdamWConfig adamw{o.beta1,        o.beta2,          o.adam_eps,
                          o.weight_decay, uint64_t(o.seed), o.optimizer == "adamw8bit" ? 8 : 32};
  Updater* updater = nullptr;
  if (o.method.method == "galore") {
    parts.records = std::make_unique<std::vector<MergeRecord>>();
    GaLoreConfig galore = galore_config(o, adamw, model->table());
    galore.on_refresh = [model, records = parts.records.get()](int i, int64_t gap,
                                                               const BasisReport& basis) {
      records->push_back({.layer = model->table()[i].name,
                          .gap = gap,
                          .energy = basis.energy,
                          .warning = basis.warning});
    };
    parts.optimizer = std::make_unique<GaLore>(ops, access, galore);
    updater = parts.optimizer.get();
  } else {
    auto adam = std::make_unique<AdamW>(ops, access, adamw);
    updater = adam.get();
    if (o.method.factors() && o.method.refreshes()) {
      parts.refresh = std::make_unique<Refresh>(*model, *adam, refresh_config(o));
      updater = parts.refresh.get();
    }
    parts.optimizer = std::move(adam);
  }
  if (o.per_layer_updates)
    parts.sink = std::make_unique<PerLayerSink>(ops, model->table(), *updater);
  else parts.sink = std::make_unique<FullGradSink>(ops, model->table(), *updater, o.grad_clip);
  return parts;
}

std::vector<Parts> build_all_parts(Ops& dry, const ModelConfig& config, const Options& o,
                                   bool training) {
  std::vector<Parts> all;
  for (int64_t w = 0; w < (training ? o.local.workers : 1); w++)
    all.push_back(build_parts(dry, config, o, training));
  return all;
}

int64_t local_sgd_bytes(const Options& o, const ParamTable& table) {
  if (!o.local.on()) return 0;
  const int64_t versions = o.local.sync ? 1 : o.local.workers;  // the newest is the server's own
  return Server::bytes(server_config(o.local), table.elements(), versions);
}

namespace {

int64_t number_after(const char* file, const std::string& key) {
  std::ifstream in(file);
  std::string word;
  int64_t value = 0;
  while (in >> word)
    if (word == key && in >> value) return value;
  return 0;
}

// What the kernel says is available, or what the container's limit leaves.
int64_t available_bytes() {
  int64_t available = number_after("/proc/meminfo", "MemAvailable:") << 10;
  std::ifstream limit("/sys/fs/cgroup/memory.max"), used("/sys/fs/cgroup/memory.current");
  int64_t most = 0, now = 0;
  if (limit >> most && used >> now) {
    const char* stat = "/sys/fs/cgroup/memory.stat";  // the page cache gives way
    now -= std::min(now, number_after(stat, "inactive_file") + number_after(stat, "active_file"));
    available = std::min(available, most - now);
  }
  return available;
}

// On the GPU what Ops allocates, on that with most workers; on the CPU the rest of the process as
// well.
int64_t total_bytes(const ModelConfig& config, Options options, int64_t batch, bool training) {
  options.batch_size = batch;
  const auto gpus = int64_t(options.gpus.size());
  options.local.workers = (options.local.workers + gpus - 1) / gpus;
  const auto dry = make_device(options, true);
  const std::vector<Parts> parts = build_all_parts(*dry, config, options, training);
  constexpr int64_t driver = int64_t(300) << 20;  // context, code, cuBLAS
  if (options.device == "cuda") return dry->peak_bytes() + driver;
  const ParamTable& table = parts[0].model->table();
  return dry->peak_bytes() + program_bytes(config, options) + staging_bytes(options, table) +
         (training ? local_sgd_bytes(options, table) : 0);
}

// Of that GPU which has least.
int64_t free_bytes(const Options& o) {
  int64_t least = cuda_free_bytes(o.gpus[0]);
  for (const int gpu : o.gpus) least = std::min(least, cuda_free_bytes(gpu));
  return least;
}

}  // namespace

int64_t program_bytes(const ModelConfig& config, const Options& o) {
  const int64_t threads = o.threads > 0 ? o.threads : usable_cpus();
  const int64_t resident = number_after("/proc/self/status", "VmRSS:") << 10;
  const int64_t gemm =
      int64_t(2) << 20;  // packing, per thread: between the built-in kernel's 1 MiB and oneDNN's 3
  const int64_t attention =
      6 * config.T * config.HS * int64_t(sizeof(float));  // one head, per thread
  const int64_t ids = 2 * o.grad_accum * o.batch_size * config.T * int64_t(sizeof(int32_t));
  return resident + (int64_t(6) << 20) + threads * (gemm + attention) + ids;
}

int64_t staging_bytes(const Options& o, const ParamTable& table) {
  int64_t largest = 0;
  for (const Param& p : table.params()) largest = std::max(largest, p.numel());
  const int64_t floats = largest * int64_t(sizeof(float));
  int64_t refresh = 0;
  if (o.method.method == "loqt" || o.method.method == "galore")
    for (const Param& p : table.params())
      if (p.role == Role::matrix)
        refresh = std::max(
            refresh,
            subspace_host_bytes({p.rows(), p.cols(), std::min({o.method.rank, p.rows(), p.cols()})},
                                o.method.subspace == "svd"));
  return std::max(floats, refresh);
}

void check_memory(const ModelConfig& config, const Options& o, bool training) {
  const bool cuda = o.device == "cuda";
  const int64_t needed = total_bytes(config, o, o.batch_size, training),
                available = cuda ? free_bytes(o) : available_bytes();
  if (needed <= available || available <= 0) return;
  int64_t fits = 0;
  for (int64_t low = 1, high = o.batch_size - 1; low <= high;) {
    const int64_t middle = (low + high) / 2;
    if (total_bytes(config, o, middle, training) <= available) fits = middle, low = middle + 1;
    else high = middle - 1;
  }
  fail(cat("this needs ", needed >> 20, " MiB of ", cuda ? "the GPU's " : "", "memory, ",
           available >> 20, " MiB are available"),
       fits ? cat("the largest --batch-size that fits is ", fits, "; --dry-run prints the table")
       : training ? "not even --batch-size 1 fits; try --recompute block, --per-layer-updates or a "
                    "smaller model"
                  : "a Llama needs less with a smaller --seq-len");
}

std::string choose_device(Options& o, const ModelConfig& config, bool training) {
  if (o.device == "cpu") return "";
  CudaStatus gpu = cuda_status(o.gpus[0]);
  for (size_t i = 1; i < o.gpus.size() && gpu.usable; i++) {
    const CudaStatus other = cuda_status(o.gpus[i]);
    gpu = {other.usable, other.usable ? gpu.text + "; " + other.text : other.text};
  }
  constexpr int64_t widest = 128;  // of ops/cuda/attention
  if (o.device == "cuda" && config.HS > widest)
    fail_usage(cat("--device cuda: heads are ", config.HS, " wide, at most ", widest, " can be"),
               "more, smaller heads (--heads), or --device cpu");
  if (o.device == "cuda" && !o.dry_run && !gpu.usable)
    fail(cat("--device cuda: ", gpu.text),
         "--device auto takes the CPU where there is no GPU; --dry-run works without one");
  if (o.device == "cuda") return gpu.text;
  o.device = "cpu";
  if (!gpu.usable) return cat("no GPU: ", gpu.text);
  if (config.HS > widest)
    return cat("not the GPU: heads are ", config.HS, " wide, at most ", widest, " can be");
  Options on_gpu = o;
  on_gpu.device = "cuda";
  const int64_t needed = total_bytes(config, on_gpu, o.batch_size, training),
                available = free_bytes(o);
  if (needed > available)
    return cat("not the GPU: this needs ", needed >> 20, " MiB of its memory, ", available >> 20,
               " MiB are free");
  o.device = "cuda";
  return gpu.text;
}

std::unique_ptr<Tokenizer> open_tokenizer(const Options& o, const std::string& checkpoint) {
  std::string path = o.tokenizer;
  const bool moved = !o.is_given("--tokenizer") && !fs::exists(path);
  if ((path.empty() || moved) && !checkpoint.empty()) path = find_tokenizer(checkpoint);
  return path.empty() ? nullptr : load_tokenizer(path);
}

std::map<std::string, std::string> tokenizer_files(const Tokenizer* tokenizer,
                                                   const std::string& directory) {
  std::vector<std::string> files;
  std::string beside = directory;
  if (tokenizer) {
    files = tokenizer->files();
    const fs::path first = files.front();
    const bool hugging_face =
        first.filename() == "tokenizer.model" || first.filename() == "vocab.json";
    beside = hugging_face ? (first.has_parent_path() ? first.parent_path().string() : ".") : "";
  }
  if (!beside.empty())
    for (const std::string& file : companion_files(beside)) files.push_back(file);
  const std::string generation = directory + "/generation_config.json";  // of the model
  if (!directory.empty() && fs::exists(generation)) files.push_back(generation);
  return read_tokenizer_files(files);
}

namespace {

bool lies_in(const fs::path& inner, const fs::path& outer) {  // both canonical
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

}  // namespace

void check_export(const Options& o, const ModelConfig& config) {
  if (!o.is_given("--export")) return;
  if (config.arch == Arch::gpt2 && config.own_heads())
    fail_usage(cat("--export: transformers' GPT-2 has heads of width / heads = ", config.C, " / ",
                   config.NH, ", this model's are ", config.HS, " wide"),
               "its checkpoint is read by loqal alone");
  const std::string target = check_export_path(o.export_to), out = real_path(o.out);
  for (const std::string& written : {target, target + ".tmp"})
    if (lies_in(out, written))
      fail_usage(cat("--export ", o.export_to, ": the run's --out ", o.out, " lies in ", written),
                 "give another directory");
  if (lies_in(target, out))
    fail_usage(cat("--export ", o.export_to, " lies in --out ", o.out,
                   ", where runs write and remove checkpoints"),
               "give a directory outside");
  if (o.dry_run) return;
  const bool there = fs::exists(target);
  AtomicDirectory probe(target);  // the whole way once, with nothing in it
  probe.commit();
  if (!there) fs::remove(target);
}

std::optional<TokenizerInfo> info_of(const Tokenizer* tokenizer) {
  if (!tokenizer) return {};
  return TokenizerInfo{tokenizer->files().front(), tokenizer->vocab_size(), tokenizer->hash()};
}

int data_vocabulary(const std::vector<std::string>& patterns, const Tokenizer* tokenizer) {
  if (tokenizer) return tokenizer->vocab_size();
  for (const std::string& pattern : patterns)
    for (const std::string& file : glob_files(pattern)) return read_shard_header(file).vocab_size;
  return 0;
}

int64_t peak_rss() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t(usage.ru_maxrss) << 10;
}

}  // namespace loqal
