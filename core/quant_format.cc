#include "core/quant_format.h"

namespace loqal {

std::string str(const QuantFormat& format) {
  if (!format) return "none";
  return cat(format.kind == QuantFormat::Kind::int8 ? "int8-" : "nf4-", format.block);
}

}  // namespace loqal
