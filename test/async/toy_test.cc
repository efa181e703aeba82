// The engine on the notebook's small task, against the losses of independent implementations
// (spec/async.md 4.5 and 4.6), and the identities between its methods.
#include <gtest/gtest.h>

#include "async/devices.h"
#include "test/async/toy_task.h"

namespace loqal {
namespace {

using Kind = OuterConfig::Kind;

struct Result {
  std::vector<double> losses;  // at 800, 1600 ... 4000 local steps
  double time = 0;
  int64_t pushes = 0;
  std::vector<float> weights;
};

Result run_toy(ScheduleConfig schedule, const ServerConfig& server_config, int threads = 2,
               int64_t steps = 4000, bool nudged = false) {
  schedule.inner_steps = 20;
  Scheduler scheduler(schedule, toy_sampler());
  std::vector<float> start = ToyData::get().start;
  if (nudged)
    for (float& v : start) v = std::nextafter(v, 1.0f);
  Server server(server_config, std::move(start));
  std::vector<std::unique_ptr<ToyTrainer>> workers;
  std::vector<Trainer*> trainers;
  for (int w = 0; w < 4; w++) {
    workers.push_back(std::make_unique<ToyTrainer>());
    trainers.push_back(workers.back().get());
  }
  Engine engine(scheduler, server, trainers,
                {.threads = threads, .keep_starts = server_config.delay_compensation > 0});
  ToyNetwork network;
  std::vector<int> everything(kToyPoints);
  std::iota(everything.begin(), everything.end(), 0);
  Result result;
  for (int64_t target = std::min<int64_t>(800, steps); target <= steps; target += 800) {
    while (scheduler.local_steps() < target)
      EXPECT_TRUE(engine.next().verdict.reason.find("norm") == std::string::npos);
    std::vector<float> w = server.weights();
    result.losses.push_back(network.loss(w.data(), everything, nullptr));
  }
  result.time = scheduler.time();
  result.pushes = scheduler.pushes();
  result.weights = server.weights();
  return result;
}

ScheduleConfig equal() { return {.devices = devices_of_speeds("1,1,1,1", 4), .grace = 0.5}; }
ScheduleConfig toy(double grace = 0.5, bool dylu = false) {
  return {.devices = heterogeneous_devices("very", 4), .dylu = dylu, .grace = grace};
}
ScheduleConfig synchronous(ScheduleConfig config) {
  config.sync = true;
  return config;
}
// The weight of each push enters heavy ball and Nesterov as a factor of the rate.
constexpr int64_t kRound = 0;  // as collect: DiLoCo's mean of a round
ServerConfig outer(Kind kind, double lr, int64_t collect = 1, double c = 0) {
  return {
      .outer = {.kind = kind, .lr = lr, .momentum = 0.9, .collect = collect, .period = 4, .c = c}};
}
ServerConfig weighted(Kind kind, double lr, PushWeight weight, double lambda = 0) {
  ServerConfig config = outer(kind, lr);
  config.weight = weight, config.delay_compensation = lambda;
  return config;
}

TEST(Toy, DataAreTheNotebooks) {
  const ToyData& d = ToyData::get();
  const float x[] = {0.1434191f, -0.86196268f, -0.89807451f, -0.05363265f};
  for (size_t i = 0; i < 4; i++) EXPECT_NEAR(d.x[i], x[i], 1e-7);
  double sum = 0;
  for (const float v : d.x) sum += double(v);
  EXPECT_NEAR(sum, -3368.594725038672, 1e-2);  // of doubles, which were rounded to fp32
  EXPECT_EQ(d.batches[0].size(), 63488u);
  const float w1[] = {0.03378814831f, 0.03668151423f, -0.01035347860f, 0.04059726745f};
  for (size_t i = 0; i < 4; i++) EXPECT_NEAR(d.start[i], w1[i], 1e-9);
  EXPECT_NEAR(d.start[size_t(kToyW1)], 0.02184881456f, 1e-9);
  EXPECT_NEAR(d.start[size_t(kToyW1 + kToyHidden)], -0.04144199565f, 1e-9);
  ToyNetwork network;
  std::vector<int> everything(kToyPoints);
  std::iota(everything.begin(), everything.end(), 0);
  std::vector<float> w = d.start;
  EXPECT_NEAR(network.loss(w.data(), everything, nullptr), 1.393106, 1e-6);
}

struct Golden {
  const char* name;
  ScheduleConfig schedule;
  ServerConfig server;
  double losses[5], time;
  int64_t pushes;
};

class ToyGolden : public testing::TestWithParam<Golden> {};

TEST_P(ToyGolden, Losses) {
  const Golden& g = GetParam();
  const Result r = run_toy(g.schedule, g.server);
  ASSERT_EQ(r.losses.size(), 5u);
  // Pushes of weight 1/2 are at the edge of stability: roundings grow a hundredfold from each of
  // the first evaluations to the next, and the golden numbers have those of fp32. How much, a run
  // says whose start differs in the last bit of each weight: 6e-8, 1e-4, 1e-3, 2e-3, 1e-3 of the
  // loss at the five evaluations of notebook_async. Three times that, once it has grown, are
  // allowed beside the 1e-3; of the 85 numbers, one needs it: 3.268e-4, printed as .000325.
  std::vector<double> sensitivity(5);
  if (std::string(g.name) == "notebook_async" || std::string(g.name) == "nesterov_half") {
    const Result twin = run_toy(g.schedule, g.server, 2, 4000, true);
    double largest = 0;
    for (size_t i = 0; i < 5; i++)
      sensitivity[i] = largest = std::max(largest, std::abs(twin.losses[i] / r.losses[i] - 1));
    EXPECT_LT(sensitivity[0], 1e-6);
    EXPECT_LT(sensitivity[4], 0.01);  // what spec/async.md 4.5 saw between runs
  }
  for (size_t i = 0; i < 5; i++)
    EXPECT_NEAR(r.losses[i], g.losses[i], (1e-3 + 3 * sensitivity[i]) * g.losses[i] + 1e-6)
        << "at step " << 800 * (i + 1);
  EXPECT_NEAR(r.time, g.time, 5e-3);
  EXPECT_EQ(r.pushes, g.pushes);
}

INSTANTIATE_TEST_SUITE_P(
    Spec, ToyGolden,
    testing::Values(
        // 4.5, printed by the notebook: its "nesterov" is heavy ball, its pushes weigh 1/2.
        Golden{"notebook_sync",
               synchronous(toy()),
               outer(Kind::heavyball, 1.0, kRound),
               {.402312, .219924, .094263, .039836, .024222},
               3330,
               200},
        Golden{"notebook_async",
               toy(),
               weighted(Kind::heavyball, 1.0, {PushWeight::Kind::constant, 0.5}),
               {.236452, .074150, .012155, .000967, .000325},
               999,
               200},
        // 4.6
        Golden{"sync_nesterov",
               synchronous(equal()),
               outer(Kind::nesterov, 0.7, kRound),
               {.490391, .227761, .123615, .071641, .052847},
               1000,
               200},
        Golden{"dn_equal",
               equal(),
               outer(Kind::dn, 0.7),
               {.490391, .227761, .123613, .071644, .052847},
               1000,
               200},
        Golden{"buffer_equal",
               equal(),
               outer(Kind::nesterov, 0.7, 4),
               {.490391, .227761, .123613, .071643, .052846},
               1000,
               200},
        Golden{"dn_c_equal",
               equal(),
               outer(Kind::dn, 0.7, 1, 0.1),
               {.518602, .239304, .133303, .078437, .058160},
               1000,
               200},
        Golden{"nesterov_quarter",
               toy(),
               weighted(Kind::nesterov, 0.7, {PushWeight::Kind::constant, 0.25}),
               {.302065, .124419, .051952, .028900, .023679},
               999,
               200},
        Golden{"nesterov_half",
               toy(),
               weighted(Kind::nesterov, 0.7, {PushWeight::Kind::constant, 0.5}),
               {.209248, .032903, .004310, .000925, .000489},
               999,
               200},
        Golden{"sgd_quarter",
               toy(),
               weighted(Kind::sgd, 0.7, {PushWeight::Kind::constant, 0.25}),
               {1.205004, 1.012699, .873334, .808393, .787964},
               999,
               200},
        Golden{"poly",
               toy(),
               weighted(Kind::nesterov, 0.175, {PushWeight::Kind::poly, 0}),
               {.442045, .218129, .143259, .112006, .102875},
               999,
               200},
        Golden{"polythres",
               toy(),
               weighted(Kind::nesterov, 0.175, {PushWeight::Kind::polythres, 10}),
               {.471863, .228892, .152564, .120600, .111072},
               999,
               200},
        Golden{"compensated",
               toy(),
               weighted(Kind::nesterov, 0.7, {PushWeight::Kind::constant, 0.25}, 0.04),
               {.302065, .124419, .051950, .028897, .023678},
               999,
               200},
        Golden{"buffer",
               toy(),
               outer(Kind::nesterov, 0.7, 4),
               {.519580, .256483, .149566, .092176, .069839},
               999,
               200},
        Golden{"dn",
               toy(),
               outer(Kind::dn, 0.7),
               {.513671, .253449, .146517, .089472, .067545},
               999,
               200},
        Golden{"dn_c",
               toy(),
               outer(Kind::dn, 0.7, 1, 0.25),
               {.583096, .270990, .162943, .100616, .075812},
               999,
               200},
        Golden{"dn_dylu",
               toy(0.5, true),
               outer(Kind::dn, 0.7),
               {.380831, .174924, .083732, .048309, .036139},
               1007.41,
               369},
        Golden{"dn_dylu_grace",
               toy(3, true),
               outer(Kind::dn, 0.7),
               {.365568, .169145, .076503, .041878, .031369},
               1032.40,
               356}),
    [](const auto& info) { return std::string(info.param.name); });

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); i++)
    largest = std::max(largest, std::abs(double(a[i]) - double(b[i])));
  return largest;
}

// Footnote 5 of the paper, and its own check of the simulation: on equal devices delayed Nesterov
// is DiLoCo, and so is a buffer with a window that never closes, on any devices. For three rounds:
// later ones amplify the roundings, as the losses above show.
TEST(Toy, AsynchronousMethodsThatAreSynchronous) {
  const ServerConfig diloco = outer(Kind::nesterov, 0.7, kRound);
  const auto weights = [](const ScheduleConfig& schedule, const ServerConfig& server) {
    return run_toy(schedule, server, 2, 240).weights;
  };
  const std::vector<float> sync = weights(synchronous(equal()), diloco);
  EXPECT_LT(largest_difference(sync, weights(equal(), outer(Kind::dn, 0.7))), 1e-5);
  const std::vector<float> unequal = weights(synchronous(toy()), diloco);
  EXPECT_LT(largest_difference(unequal, weights(toy(1e9), outer(Kind::nesterov, 0.7, 4))), 1e-5);
  EXPECT_LT(largest_difference(unequal, sync), 1e-5) << "speeds change only the time";
  EXPECT_GT(largest_difference(sync, ToyData::get().start), 1e-3);
}

}  // namespace
}  // namespace loqal
