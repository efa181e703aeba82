// When LoQT's factors are merged and the subspace is chosen anew (spec: LoQT, T_i; the gaps of the
// published code, not the text's absolute steps).
#pragma once
#include <cstdint>
#include <vector>

namespace loqal {

struct RefreshSchedule {
  int64_t interval = 100;  ///< tau >= 1: the first gap
  double growth = 1.2;     ///< psi: gap i >= 1 is tau + floor(psi^i); 0: every gap is tau
  int64_t max_gap = 0;     ///< no gap is longer; 0: no limit
  int64_t steps = 0;       ///< of the whole run

  /// 0, tau, tau + (tau + floor(psi)), ...: 0, 100, 201, 302, 403, 505, ... for 100 and 1.2. None
  /// but 0 is closer than tau to the end of the run.
  std::vector<int64_t> all() const;
};

}  // namespace loqal
