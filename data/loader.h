// Batches from a corpus: shuffled and endless for training, in order and exact for evaluation.
//
// The shuffle is a function, not a list: epoch e visits the windows in the order P_e(0), P_e(1) ...
// where P_e is a keyed bijection of [0, n). So any position is reached at once, resume is exact,
// and a corpus of 10^9 windows costs no memory. Worker k of K takes P_e(k), P_e(k + K) ...
#pragma once
#include <cstdint>

#include "core/philox.h"
#include "data/corpus.h"

namespace loqal {

/// A bijection of [0, n) keyed by (seed, epoch): a six-round Feistel network with Philox as its
/// round function on the next even number of bits, walked along its cycle until it lands below n
/// (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). Below four steps on average.
class Permutation {
 public:
  Permutation(uint64_t n, uint64_t seed, uint64_t epoch);
  uint64_t operator()(uint64_t index) const;  ///< index < n

 private:
  uint64_t n_;
  int half_bits_;
  PhiloxStream stream_;
};

class TrainLoader {
 public:
  /// Error (exit 1) if this worker's share is smaller than one batch of B windows.
  TrainLoader(Corpus& corpus, int B, int T, uint64_t seed, int worker = 0, int workers = 1);

  /// tokens[B, T], targets[B, T]; a batch may cross epochs. Returns the number of targets that are
  /// not -1.
  int64_t next(int32_t* tokens, int32_t* targets);

  /// Rows that this worker has consumed since the start of training; all of the loader's state.
  uint64_t position() const { return position_; }
  void seek(uint64_t position) { position_ = position; }
  uint64_t epoch() const { return position_ / rows_per_epoch_; }
  uint64_t rows_per_epoch() const { return rows_per_epoch_; }  ///< of this worker
  /// Windows that no worker sees in an epoch: the remainder of windows / workers, another one each
  /// epoch.
  int64_t dropped_per_epoch() const { return windows_ - int64_t(rows_per_epoch_) * workers_; }

 private:
  Corpus& corpus_;
  const int B_, T_;
  const uint64_t seed_;
  const int worker_, workers_;
  const int64_t windows_;
  const uint64_t rows_per_epoch_;
  uint64_t position_ = 0;
};

class EvalLoader {
 public:
  /// The first windows of the corpus, at most `max_tokens` targets but at least one window. Error
  /// (exit 1) if there is none.
  EvalLoader(Corpus& corpus, int B, int T, int64_t max_tokens);

  int64_t batches() const { return (windows_ + B_ - 1) / B_; }
  /// Positions of all batches, missing rows aside. An upper bound of the targets: in padded shards
  /// some are -1 and count for nothing. The true number is the sum of what batch() returns.
  int64_t tokens() const { return windows_ * T_; }
  /// tokens[B, T], targets[B, T] of batch i. Missing rows of the last batch: token 0, target -1.
  /// Returns the number of targets that are not -1.
  int64_t batch(int64_t i, int32_t* tokens, int32_t* targets);

 private:
  Corpus& corpus_;
  const int B_, T_;
  const int64_t windows_;
};

}  // namespace loqal
