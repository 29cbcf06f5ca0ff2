// Models with published shapes and random weights, to measure a real model's speed without downloading it.
// The speed of a product does not depend on its numbers.
#pragma once

#include <filesystem>
#include <string>

#include "common/model/config.h"

namespace staircase::bench {

/// Returns the shape of a published model. The names of GPT-2 shapes are their sizes: "124m", "355m", "774m"
/// or "1558m" (Radford et al. 2019, table 2; the sizes as counted in the released files). Others, such as
/// "smollm2-135m", "qwen3-0.6b", "llama-3.2-1b" and "llama-3.1-8b", have the shape of their published
/// config.json. For an unknown name, throws UsageError with all names.
ModelConfig published_shape(const std::string& name);

/// Writes config.json and model.safetensors (float32) into `folder`, which is created if necessary. The
/// weights are the same on every machine: normally distributed with deviation 0.02, and norms around 1.
void write_random_model(const std::string& shape, const std::filesystem::path& folder);

/// Writes two models, to measure speculative decoding with a target of this shape. The draft is the first
/// block of the target with the same embeddings and the same last norm. The target's other blocks have their
/// contributions to the residual stream damped to a tenth, so the two models agree on about two tokens in
/// three.
void write_random_pair(const std::string& shape, const std::filesystem::path& target,
                       const std::filesystem::path& draft);

}  // namespace staircase::bench
