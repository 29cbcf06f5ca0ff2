#include "common/measure/adapter_trial.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <vector>

#include "common/base/message.h"
#include "common/decoding/probabilities.h"
#include "common/model/model_folder.h"

namespace staircase {
namespace {

double perplexity(Model& model, std::span<const int> text) {
  const auto vocab_size = static_cast<std::size_t>(model.config().vocab_size);
  const std::vector<float> logits = copy_of(model.last_logits(text, static_cast<int>(text.size())));
  double sum = 0.0;
  for (std::size_t i = 1; i < text.size(); ++i) {  // row i - 1 predicts token i
    const std::vector<float> probabilities =
        softmax(std::span(logits).subspan((i - 1) * vocab_size, vocab_size));
    sum -= std::log(static_cast<double>(probabilities[static_cast<std::size_t>(text[i])]));
  }
  return std::exp(sum / static_cast<double>(text.size() - 1));
}

}  // namespace

Adapter try_adapter(Model& model, const std::string& name, std::span<const int> text) {
  if (name.empty()) return {};
  const std::filesystem::path folder = find_adapter(name);
  Adapter changes = plain_adapter(model, folder, "gpt2");
  model.load_adapters({&folder, 1});
  text = text.last(std::min(text.size(), static_cast<std::size_t>(model.config().n_positions)));
  for (const std::int32_t adapter : {kNoAdapter, 0}) {
    model.use_adapters({adapter});
    if (text.size() < 2) continue;
    say(fmt::format("perplexity of the prompt {} the adapter: {:.4g}", adapter == 0 ? "with" : "without",
                    perplexity(model, text)));
  }
  return changes;
}

}  // namespace staircase
