#include "ops/block_codec.h"

#include <algorithm>

namespace loqal::codec {

DynamicMap make_dynamic_map(bool is_signed) {
  DynamicMap map = {};
  float* end = map.value;
  *end++ = 0.0f;
  *end++ = 1.0f;
  for (int i = 0; i < 7; i++) {
    const int parts = is_signed ? 1 << i : 2 << i;
    for (int j = 0; j < parts; j++) {
      const double x = (0.1 + 0.9 * (j + 0.5) / parts) * std::pow(10.0, i - 6);
      *end++ = float(x);
      if (is_signed) *end++ = float(-x);
    }
  }
  std::sort(map.value, end);
  return map;
}

}  // namespace loqal::codec
