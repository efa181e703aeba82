// Block: one transformer layer as a sequence of calls. Two kinds: gpt2.cc and llama.cc.
//
// Memory: `saved` lives from the block's forward to its backward (with --recompute block all blocks
// share one, and forward runs again first); `scratch` is shared by all blocks and dies with each
// call. Norm outputs and activations of the MLP are cheap to compute and large: they are never
// saved.
#pragma once
#include <memory>

#include "model/layers.h"

namespace loqal {

class Block {
 public:
  virtual ~Block() = default;

  /// Carves this block's tensors for run.B x run.T; the sum of both arenas' sizes is the block's
  /// need.
  virtual void carve(const Run& run, Arena& saved, Arena& scratch) = 0;

  /// y = block(x). x, y X[N,C]; y may not be x. Empty y: only what backward() needs is computed
  /// again.
  virtual void forward(const Run& run, const Tensor& y, const Tensor& x) = 0;

  /// g X[N,C]: on entry the gradient of y, on return that of x.
  virtual void backward(const Run& run, const Grads& grads, const Tensor& g, const Tensor& x) = 0;
};

/// Registers the tensors of layer `layer` as group `group`. rope_table: its parameter index
/// (Llama).
std::unique_ptr<Block> make_gpt2_block(ParamTable& table, const ModelConfig& config, int layer,
                                       int group);
std::unique_ptr<Block> make_llama_block(ParamTable& table, const ModelConfig& config, int layer,
                                        int group, int rope_table);

}  // namespace loqal
