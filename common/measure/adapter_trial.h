// An adapter for a program with a single text.
#pragma once

#include <span>
#include <string>

#include "common/model/adapter.h"
#include "common/model/model.h"

namespace staircase {

/// Gives the model the adapter of that name or folder, and prints the perplexity of a text without it and
/// with it (Jelinek et al. 1977). Of a longer text than the context, that is of its end. Returns what the
/// adapter changes, by the names of plain_weights.h. Does nothing for an empty name. Throws Error for a model
/// other than GPT-2, and as Model::load_adapters does.
Adapter try_adapter(Model& model, const std::string& name, std::span<const int> text);

}  // namespace staircase
