// Models with the shapes of published ones and random weights, to measure a real one's speed without a
// download: the speed of a product does not depend on the numbers in it.
#pragma once

#include <filesystem>
#include <string>

#include "common/model/config.h"

namespace staircase::bench {

/// The shape of a published model. A GPT-2 has its size as name: "124m", "355m", "774m" or "1558m" (Radford
/// et al. 2019, table 2; the sizes as counted in the released files). "smollm2-135m", "qwen3-0.6b",
/// "llama-3.2-1b" and "llama-3.1-8b" have the shape in their config.json. Throws UsageError with all names
/// for any other.
ModelConfig published_shape(const std::string& name);

/// Writes config.json and model.safetensors (float32) into `folder`, which is made if needed. The weights are
/// the same on every machine: normally distributed with deviation 0.02, norms around 1.
void write_random_model(const std::string& shape, const std::filesystem::path& folder);

/// Writes two models to measure speculative decoding at that size. The draft is the first block of the target
/// with the same embeddings and the same last norm. The contributions of the target's other blocks to the
/// residual stream are damped to a tenth, so the two agree on about two tokens in three.
void write_random_pair(const std::string& shape, const std::filesystem::path& target,
                       const std::filesystem::path& draft);

}  // namespace staircase::bench
