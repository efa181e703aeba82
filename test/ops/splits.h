// Every operation at sizes that are split over threads: for tests that the same call gives the same
// bytes, however the work is cut.
#pragma once
#include "test/ops/op_test.h"

namespace loqal::test {

using Images = std::vector<std::vector<char>>;  // of outputs

struct Split {
  const char* name;
  std::function<Images(Ops&, DType)> run;
};
extern const std::vector<Split> kSplits;

}  // namespace loqal::test
