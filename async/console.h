// The console's view of a run: one short line a step, redrawn in place on a terminal with a bar and
// the time left, plain lines otherwise.
#pragma once
#include <cstdint>
#include <string>

#include "core/format.h"

namespace loqal {

class Console {
 public:
  explicit Console(int64_t steps);

  void line(const std::string& text);  ///< a line that stays
  /// `text` about step `step` of the run; seconds_per_step for the time left.
  void step(int64_t step, const std::string& text, double seconds_per_step);

 private:
  void clear();

  int64_t steps_;
  bool terminal_;
  bool drawn_ = false;
};

}  // namespace loqal
