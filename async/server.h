// Server: the weights that Local-SGD trains, in fp32 on the host. Workers pull them and push the
// pseudo-gradients of their rounds; each push is weighed, corrected and checked before the outer
// optimizer sees it. One bad worker must not poison the rest: what is not finite, or far larger
// than usual, is refused.
#pragma once
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/json_fwd.h"
#include "optim/outer.h"

namespace loqal {

using Snapshot = std::shared_ptr<const std::vector<float>>;

/// What a worker sends after a round.
struct Push {
  int worker = 0;
  int64_t steps = 1;       ///< of the round
  int64_t staleness = 0;   ///< pushes that the server handled since the worker's pull
  std::span<float> delta;  ///< start - end; the server may use it as scratch memory
  Snapshot start;          ///< for delay compensation only
  std::string failure;     ///< why there is no delta, or ""
};

/// What the server answers.
struct Verdict {
  bool accepted = false;
  std::string reason;                         ///< of a refusal
  bool distrust = false;                      ///< refused for what it is, not for being late
  double weight = 1;                          ///< that the push was multiplied by
  double norm = 0;                            ///< of delta as it came
  double cos_momentum = 0, cos_previous = 0;  ///< cosines with the server's momentum and with the
                                              ///< last accepted push; 0 without one
};

/// All that workers and server say to each other. A transport over a network would be a second
/// implementation.
class ServerLink {
 public:
  virtual ~ServerLink() = default;
  virtual Snapshot pull() = 0;
  virtual Verdict push(const Push& push) = 0;
  /// Synchronous mode: all pushes of the round are here.
  virtual void end_round() = 0;
};

struct PushWeight {
  enum class Kind { constant, poly, polythres };
  Kind kind = Kind::constant;
  double value = 1;  ///< constant: the weight; polythres: the highest staleness that is accepted

  /// constant; poly and polythres: 1 / sqrt(1 + staleness).
  double of(int64_t staleness) const;
};

struct ServerConfig {
  OuterConfig outer;
  PushWeight weight;
  /// L: g becomes g + L g^2 (weights - start), elementwise: DC-ASGD (Zheng et al. 2017) on
  /// pseudo-gradients.
  double delay_compensation = 0;
};

class Server final : public ServerLink {
 public:
  Server(const ServerConfig& config, std::vector<float> weights);

  Snapshot pull() override { return weights_; }
  /// Refused, with nothing changed: a failed round; a norm that is not finite; once there are 8
  /// accepted ones, a norm more than 10 times the median of the last 64, and so for its steps too:
  /// with DyLU rounds differ in length, and the norm grows between the root of their number (a
  /// random walk) and the number; under polythres what is too stale.
  Verdict push(const Push& push) override;
  void end_round() override;

  const std::vector<float>& weights() const { return *weights_; }
  /// For a resume.
  std::vector<float>& mutable_weights() { return *weights_; }
  int64_t accepted() const { return accepted_; }
  /// For what they are, not for being late.
  int64_t distrusted_in_a_row() const { return distrusted_in_a_row_; }

  /// Every vector besides the weights, by name, and the counters.
  std::vector<std::pair<std::string, std::span<float>>> vectors();
  Json state() const;
  void restore(const Json& state, const std::string& where);
  /// Bytes of a server of `size` weights, its own and `versions` - 1 older ones, from which rounds
  /// in flight began.
  static int64_t bytes(const ServerConfig& config, int64_t size, int64_t versions);

 private:
  bool too_stale(const Push& push) const;
  std::string refusal(const Push& push, double norm) const;
  std::span<float> writable();

  ServerConfig config_;
  std::shared_ptr<std::vector<float>> weights_;
  std::vector<float> previous_;  // the last accepted push
  OuterOptimizer outer_;
  std::deque<double> norms_, step_norms_;  // of the last accepted pushes; norm / steps
  int64_t accepted_ = 0, distrusted_in_a_row_ = 0;
};

}  // namespace loqal
