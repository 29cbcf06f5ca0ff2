// Measures an adapter in a program that continues a single text.
#pragma once

#include <span>
#include <string>

#include "common/model/adapter.h"
#include "common/model/model.h"

namespace staircase {

/// Loads the adapter with this name or folder, and prints the perplexity of `text` without and with it
/// (Jelinek et al. 1977). If the text is longer than the context, only its end counts; a text of one token
/// has no perplexity. Returns the adapter's changes, by the names of plain_weights.h. Does nothing for an
/// empty name. Throws Error for a model other than GPT-2, and as Model::load_adapters does.
Adapter try_adapter(Model& model, const std::string& name, std::span<const int> text);

}  // namespace staircase
