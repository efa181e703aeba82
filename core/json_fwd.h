// The name Json for headers that only mention it: the full header costs a second of compile time.
#pragma once
#include <nlohmann/json_fwd.hpp>

namespace loqal {
using Json = nlohmann::ordered_json;
}
