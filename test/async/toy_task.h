// The small task of the authors' notebook (spec/async.md 4): a two-layer network that tells four
// noisy Gaussian clusters apart, trained by four workers, as Trainers for the engine. Data, random
// numbers and the quirks of its learning rate are the notebook's.
#pragma once
#include <numeric>

#include "async/engine.h"
#include "test/async/toy_random.h"

namespace loqal {

constexpr int kToyPoints = 4096, kToyInputs = 512, kToyHidden = 128, kToyClasses = 4;
constexpr int64_t kToyW1 = int64_t(kToyHidden) * kToyInputs, kToyW2 = kToyClasses * kToyHidden,
                  kToySize = kToyW1 + kToyHidden + kToyW2 + kToyClasses;

struct ToyData {
  std::vector<float> x;                   // [points, inputs]
  std::vector<int> y;                     // class
  std::vector<std::vector<int>> batches;  // per shard: points in the order of training
  std::vector<float> start;               // W1, b1, W2, b2

  static const ToyData& get() {
    static const ToyData data;
    return data;
  }

 private:
  ToyData() {
    NumpyRandom numpy(42);
    PythonRandom python(42);
    numpy.skip_normals((32 + 128'000) * int64_t(kToyInputs));  // the large task comes first
    python.shuffled(128'000);
    std::vector<bool> seen(128'000);  // Python's sample(): draws again what it has
    for (int i = 0; i < 10'000;)
      if (const uint32_t j = python.below(128'000); !seen[j]) seen[j] = true, i++;
    const std::vector<int> order = python.shuffled(kToyPoints);
    make_points(numpy);
    PythonRandom experiment(42);
    constexpr int n = kToyPoints / 4, shuffles = 62;
    for (int shard = 0; shard < 4; shard++) {
      std::vector<int> all;
      for (int i = 0; i < shuffles; i++)
        for (const int j : experiment.shuffled(n)) all.push_back(order[size_t(shard * n + j)]);
      batches.push_back(std::move(all));
    }
    make_start();
  }
  void make_points(NumpyRandom& numpy) {
    std::vector<double> centres(kToyClasses * kToyInputs);
    for (double& c : centres) c = numpy.normal();
    for (int k = 0; k < kToyClasses; k++) {
      double squares = 0;
      for (int i = 0; i < kToyInputs; i++)
        squares += std::pow(centres[size_t(k * kToyInputs + i)], 2);
      for (int i = 0; i < kToyInputs; i++)
        centres[size_t(k * kToyInputs + i)] /= std::sqrt(squares);
    }
    for (int p = 0; p < kToyPoints; p++) {
      const int k = p / (kToyPoints / kToyClasses);
      y.push_back(k);
      for (int i = 0; i < kToyInputs; i++)
        x.push_back(float(centres[size_t(k * kToyInputs + i)] + 0.5 * numpy.normal()));
    }
  }
  // torch.manual_seed(42), then two nn.Linear.
  void make_start() {
    std::mt19937 torch(42);
    const auto fill = [&](int64_t n, int fan_in) {
      const float high = float(1 / std::sqrt(double(fan_in))), low = -high;
      for (int64_t i = 0; i < n; i++)
        start.push_back(float(double(torch() & 0xFFFFFFu) * 0x1p-24 * (double(high) - double(low)) +
                              double(low)));
    };
    fill(kToyW1, kToyInputs), fill(kToyHidden, kToyInputs);
    fill(kToyW2, kToyHidden), fill(kToyClasses, kToyHidden);
  }
};

/// Loss and gradient of the network on some points; its weights lie end to end. In double: the task
/// amplifies roundings, and fp32 products have others on each kind of CPU.
class ToyNetwork {
 public:
  /// Mean loss; the gradient unless it is null.
  double loss(const float* w, const std::vector<int>& points, float* gradient) {
    std::fill(g_.begin(), g_.end(), 0.0);
    double sum = 0;
    for (size_t i = 0; i < points.size(); i += 32)
      sum += block(w, &points[i], double(points.size()));
    if (gradient) std::copy(g_.begin(), g_.end(), gradient);
    return sum / double(points.size());
  }

 private:
  // 32 of n points: the sum of their losses; their share of the gradient is added to g_.
  __attribute__((optimize("O3"))) double block(const float* w, const int* points, double n) {
    const ToyData& data = ToyData::get();
    const float *b1 = w + kToyW1, *w2 = b1 + kToyHidden, *b2 = w2 + kToyW2;
    double *g1 = g_.data(), *gb1 = g1 + kToyW1, *g2 = gb1 + kToyHidden, *gb2 = g2 + kToyW2;
    const auto x = [&](int r) { return data.x.data() + int64_t(points[r]) * kToyInputs; };
    double h[32][kToyHidden], dh[32][kToyHidden] = {}, sum = 0;
    for (int j = 0; j < kToyHidden; j++)
      for (int r = 0; r < 32; r++)
        h[r][j] = std::max(double(b1[j]) + dot<kToyInputs>(w + j * kToyInputs, x(r)), 0.0);
    for (int r = 0; r < 32; r++) {
      double z[kToyClasses];
      for (int c = 0; c < kToyClasses; c++)
        z[c] = double(b2[c]) + dot<kToyHidden>(w2 + c * kToyHidden, h[r]);
      sum += softmax(z, data.y[size_t(points[r])], n);
      for (int c = 0; c < kToyClasses; c++) {
        gb2[c] += z[c];
        for (int j = 0; j < kToyHidden; j++) {
          g2[c * kToyHidden + j] += z[c] * h[r][j];
          dh[r][j] += h[r][j] > 0 ? z[c] * w2[c * kToyHidden + j] : 0;
        }
      }
    }
    for (int j = 0; j < kToyHidden; j++)
      for (int r = 0; r < 32; r++) {
        gb1[j] += dh[r][j];
        add(g1 + j * kToyInputs, dh[r][j], x(r));
      }
    return sum;
  }

  template <int n, class T>
  __attribute__((optimize("O3"))) static double dot(const float* a, const T* b) {
    double sums[16] = {};  // so that the compiler may use vectors
    for (int i = 0; i < n; i += 16)
      for (int k = 0; k < 16; k++) sums[k] += double(a[i + k]) * double(b[i + k]);
    return std::accumulate(sums, sums + 16, 0.0);
  }
  // y += a x
  __attribute__((optimize("O3"))) static void add(double* __restrict y, double a,
                                                  const float* __restrict x) {
    for (int i = 0; i < kToyInputs; i++) y[i] += a * x[i];
  }

  // Returns -log p(y) and leaves the gradient (p - [y]) / n.
  static double softmax(double* z, int y, double n) {
    const double most = *std::max_element(z, z + kToyClasses);
    double sum = 0;
    for (int c = 0; c < kToyClasses; c++) sum += std::exp(z[c] - most);
    const double nll = std::log(sum) - (z[y] - most);
    for (int c = 0; c < kToyClasses; c++) z[c] = (std::exp(z[c] - most) / sum - double(c == y)) / n;
    return nll;
  }

  std::vector<double> g_ = std::vector<double>(size_t(kToySize));
};

/// AdamW with torch 1.13's order of roundings: the task amplifies them a thousandfold.
__attribute__((optimize("O3", "fp-contract=off"))) inline void torch_adamw(
    float* __restrict p, const float* __restrict g, float* __restrict m, float* __restrict v,
    double lr, int64_t step) {
  const auto decay = float(1 - lr * 1e-3), part1 = float(1 - 0.9), part2 = float(1 - 0.999);
  const auto rate = float(-lr / (1 - std::pow(0.9, double(step))));
  const auto root = float(std::sqrt(1 - std::pow(0.999, double(step))));
  for (int64_t i = 0; i < kToySize; i++) {
    p[i] *= decay;
    m[i] = std::fma(g[i], part1, m[i] * 0.9f);
    v[i] = v[i] * 0.999f + part2 * g[i] * g[i];
    p[i] += rate * m[i] / (std::sqrt(v[i]) / root + 1e-8f);
  }
}

/// 20 AdamW steps or so, with a new optimizer each round, whose first step has the full rate.
class ToyTrainer final : public Trainer {
 public:
  Round train(const Job& job, std::span<const float> start, bool) override {
    std::vector<float> m(size_t(kToySize), 0.0f), v = m, g = m;
    weights_.assign(start.begin(), start.end());
    const std::vector<int>& order = ToyData::get().batches[size_t(job.shard)];
    Round round;
    for (int64_t j = 0; j < job.steps; j++) {
      const int64_t s = job.first_step + j;
      const double progress = std::min(double(s) / (20 * 50), 1.0);
      const double lr =
          j == 0 ? 2e-4 : 1e-6 + 0.5 * (2e-4 - 1e-6) * (1 + std::cos(M_PI * progress));
      const std::vector<int> points(order.begin() + 32 * s, order.begin() + 32 * (s + 1));
      round.steps.push_back(
          {.loss = network_.loss(weights_.data(), points, g.data()), .lr = lr, .targets = 32});
      torch_adamw(weights_.data(), g.data(), m.data(), v.data(), lr, j + 1);
    }
    for (size_t i = 0; i < weights_.size(); i++) weights_[i] = start[i] - weights_[i];
    return round;
  }
  std::span<float> delta() override { return weights_; }

 private:
  ToyNetwork network_;
  std::vector<float> weights_;  // and then their change
};

}  // namespace loqal
