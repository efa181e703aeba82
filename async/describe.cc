// What a run prints of its model, method, data and memory.
#include <algorithm>
#include <cmath>
#include <iomanip>

#include "async/setup.h"
#include "core/format.h"

namespace loqal {

void print_model(std::ostream& out, const ModelConfig& c, const ParamTable& table) {
  int64_t embedding = 0, matrices = 0, rest = 0;
  for (const Param& p : table.params()) {
    if (p.role == Role::constant || p.role == Role::factor) continue;
    const bool vocabulary = p.role == Role::embedding || p.role == Role::head;
    const int64_t n = vocabulary ? c.V * p.cols() : p.numel();
    (vocabulary || p.role == Role::position ? embedding
     : p.role == Role::matrix               ? matrices
                                            : rest) += n;
  }
  const auto millions = [](int64_t n) { return double(n) / 1e6; };
  out << std::fixed << std::setprecision(2) << "model       " << c.arch_name() << " (" << c.preset
      << "): " << c.L << " layers, width " << c.C << ", " << c.NH << " heads of " << c.HS;
  if (c.NKV != c.NH) out << " (" << c.NKV << " key/value)";
  out << ", ffn " << c.F << ", vocabulary " << c.V << (c.tied ? " (tied)" : "") << ", T " << c.T
      << "\n"
      << "parameters  " << millions(embedding + matrices + rest) << " M: " << millions(matrices)
      << " M in layers' matrices, " << millions(embedding) << " M in embeddings and head, "
      << millions(rest) << " M in norms and biases\n";
  out.unsetf(std::ios::floatfield);
}

void print_memory(std::ostream& out, const Ops& ops, int64_t program, int64_t server) {
  const auto line = [&](const std::string& name, int64_t bytes) {
    out << "  " << std::left << std::setw(28) << name << std::right << std::setw(12) << std::fixed
        << std::setprecision(1) << double(bytes) / (1 << 20) << " MiB\n";
  };
  out << "memory\n";
  int64_t total = program + server;
  for (const auto& [category, bytes] : ops.memory_table()) {
    if (bytes) line(category, bytes);
    total += bytes;
  }
  if (server) line("server and start weights", server);
  if (program) line("program and staging", program);
  line("total", total);
  out.unsetf(std::ios::floatfield);
}

namespace {

std::string held_as(const Param& p, DType parameter_type) {
  if (p.format) return str(p.format);
  return name_of(p.trainable() && p.shape.size() == 2 ? parameter_type : DType::F32);
}

int64_t bytes_of(const Param& p, DType parameter_type) {
  if (!p.trainable()) return p.frozen_bytes();
  return p.numel() * int64_t(size_of(p.shape.size() == 2 ? parameter_type : DType::F32));
}

}  // namespace

void print_method(std::ostream& out, const Options& o, const ModelConfig& config) {
  const MethodOptions& m = o.method;
  if (m.full()) return;
  out << "method      " << m.method << ", rank " << m.rank << ", s " << m.scale << ", "
      << (m.factors() ? "weights " + m.quant : "weights dense")
      << "; effective learning rate of the weights lr x s = " << o.lr * m.scale << "\n";
  if (m.refreshes()) {
    const std::vector<int64_t> steps =
        m.factors() ? refresh_config(o).steps : refresh_schedule(o).all();
    out << "refreshes   " << steps.size() << " at steps";
    for (size_t i = 0; i < std::min<size_t>(steps.size(), 6); i++) out << " " << steps[i];
    out << (steps.size() > 6 ? cat(" ... ", steps.back()) : "") << "\n";
    if (steps.empty())
      out << "notice      --steps " << o.steps << " is below twice --interval " << m.interval
          << ": the factors are never merged\n";
  }
  const int64_t least = std::min({config.C, config.NKV * config.HS, config.F});
  if (m.rank > least)
    out << "notice      --rank " << m.rank << " is above " << least
        << ", the smaller side of some matrix: each takes at most its own\n";
  if (m.rank < config.C / 16)
    out << "warning     --rank " << m.rank << " is below 1/16 of the width " << config.C
        << ": expect slow learning\n";
}

Json shards_of(const Corpus& corpus) {
  Json files;
  for (const CorpusFile& f : corpus.files())
    files.push_back({{"path", f.path}, {"tokens", f.tokens}});
  return files;
}

void print_data(std::ostream& out, const Options& o, const ModelConfig& config, const Corpus& train,
                const TrainLoader& loader, const EvalLoader* eval) {
  const int T = int(config.T);
  const size_t shards = train.files().size();
  const int64_t per_step = o.batch_size * config.T * o.grad_accum;
  out << "data        " << train.tokens() << " tokens in " << shards
      << (shards == 1 ? " shard, " : " shards, ") << loader.rows_per_epoch() << " windows of " << T
      << (o.local.on() ? cat(" for each of ", o.local.workers, " workers") : "") << ", "
      << train.dropped(T) + T * loader.dropped_per_epoch() << " tokens are no target";
  if (eval) out << "; evaluation on " << eval->tokens() << " tokens";
  out << "\nrun         " << o.steps << " steps x " << per_step << " tokens (batch " << o.batch_size
      << " x " << config.T << (o.grad_accum > 1 ? cat(" x ", o.grad_accum, " accumulated") : "")
      << ") = " << short_number(double(o.steps) * double(per_step))
      << " tokens; a uniform guess has loss " << format("%.3f", std::log(double(config.V))) << "\n";
}

void print_tensors(std::ostream& out, const Options& o, const ParamTable& table,
                   DType parameter_type) {
  const bool projects = o.method.method == "galore";
  out << "tensors     (of one layer)\n";
  for (const Param& p : table.params()) {
    if (p.role == Role::constant || (p.group > 1 && p.group + 1 < table.groups())) continue;
    out << "  " << std::left << std::setw(48) << p.name << std::setw(16)
        << cat(p.rows(), " x ", p.cols()) << std::setw(10) << held_as(p, parameter_type)
        << std::setw(20)
        << (!p.trainable() ? "frozen"
            : projects && p.role == Role::matrix
                ? cat("trained, rank ", std::min({o.method.rank, p.rows(), p.cols()}))
                : "trained")
        << std::right << std::setw(12)
        << format("%.3f", double(bytes_of(p, parameter_type)) / (1 << 20)) << " MiB\n";
  }
}

}  // namespace loqal
