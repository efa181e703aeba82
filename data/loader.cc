#include "data/loader.h"

#include <algorithm>
#include <bit>

#include "core/error.h"

namespace loqal {
namespace {

int64_t count_targets(const int32_t* targets, int64_t n) {
  return n - std::count(targets, targets + n, -1);
}

uint64_t checked_rows(const Corpus& corpus, int B, int T, int workers) {
  LOQAL_ASSERT(B > 0 && T > 0 && workers > 0, B, " ", T, " ", workers);
  const int64_t windows = corpus.windows(T);
  const int64_t needed = int64_t(B) * T * workers + 1;
  if (windows / workers < B)
    fail(cat(corpus.role(), " set has ", corpus.tokens(), " tokens (", windows, " windows of T=", T,
             " in ", corpus.files().size(), " shards), one batch",
             workers > 1 ? cat(" of each of ", workers, " workers") : "", " needs ", needed,
             " (B=", B, ")"),
         "reduce B or T, or add data");
  return uint64_t(windows / workers);
}

int64_t checked_windows(const Corpus& corpus, int B, int T, int64_t max_tokens) {
  LOQAL_ASSERT(B > 0 && T > 0 && max_tokens > 0, B, " ", T, " ", max_tokens);
  const int64_t windows = corpus.windows(T);
  if (windows == 0)
    fail(cat(corpus.role(), " set has ", corpus.tokens(), " tokens in ", corpus.files().size(),
             " shards, one window of T=", T, " needs ", T + 1, " in one shard"),
         "reduce T, or add data");
  return std::min(windows, std::max<int64_t>(1, max_tokens / T));
}

}  // namespace

Permutation::Permutation(uint64_t n, uint64_t seed, uint64_t epoch)
    : n_(n),
      half_bits_(std::max(1, (int(std::bit_width(n - 1)) + 1) / 2)),
      stream_(seed, Purpose::shuffle, 0, 0, epoch) {}

uint64_t Permutation::operator()(uint64_t index) const {
  const uint64_t mask = (uint64_t(1) << half_bits_) - 1;
  do {
    uint64_t left = index >> half_bits_, right = index & mask;
    for (uint64_t round = 0; round < 6; round++) {
      const uint64_t mixed = left ^ (stream_.block(round << 32 | right).v[0] & mask);
      left = right;
      right = mixed;
    }
    index = left << half_bits_ | right;
  } while (index >= n_);
  return index;
}

TrainLoader::TrainLoader(Corpus& corpus, int B, int T, uint64_t seed, int worker, int workers)
    : corpus_(corpus),
      B_(B),
      T_(T),
      seed_(seed),
      worker_(worker),
      workers_(workers),
      windows_(corpus.windows(T)),
      rows_per_epoch_(checked_rows(corpus, B, T, workers)) {
  LOQAL_ASSERT(worker >= 0 && worker < workers, worker, " of ", workers);
}

int64_t TrainLoader::next(int32_t* tokens, int32_t* targets) {
  for (int64_t b = 0; b < B_; b++, position_++) {
    const Permutation order(uint64_t(windows_), seed_, epoch());
    const uint64_t row = position_ % rows_per_epoch_;
    const uint64_t window = order(row * uint64_t(workers_) + uint64_t(worker_));
    corpus_.window(int64_t(window), T_, tokens + b * T_, targets + b * T_);
  }
  return count_targets(targets, int64_t(B_) * T_);
}

EvalLoader::EvalLoader(Corpus& corpus, int B, int T, int64_t max_tokens)
    : corpus_(corpus), B_(B), T_(T), windows_(checked_windows(corpus, B, T, max_tokens)) {}

int64_t EvalLoader::batch(int64_t i, int32_t* tokens, int32_t* targets) {
  LOQAL_ASSERT(i >= 0 && i < batches(), i, " of ", batches());
  const int64_t first = i * B_, rows = std::min<int64_t>(B_, windows_ - first);
  for (int64_t b = 0; b < rows; b++)
    corpus_.window(first + b, T_, tokens + b * T_, targets + b * T_);
  std::fill(tokens + rows * T_, tokens + int64_t(B_) * T_, 0);
  std::fill(targets + rows * T_, targets + int64_t(B_) * T_, -1);
  return count_targets(targets, int64_t(B_) * T_);
}

}  // namespace loqal
