#include "common/program/loading.h"

#include <set>

#include "common/base/error.h"
#include "common/base/quoted.h"
#include "common/model/model_folder.h"
#include "common/program/tuning_file.h"

namespace staircase {

std::shared_ptr<Device> make_device(DeviceKind kind, int threads) {
  if (kind == DeviceKind::kCpu) return make_cpu_device(threads);
  std::shared_ptr<Device> gpu;
  try {
    gpu = make_cuda_device();
  } catch (const std::exception& error) {
    if (kind == DeviceKind::kCuda) throw Error("--device cuda: {}", error.what());
    return make_cpu_device(threads);
  }
#ifndef __EMSCRIPTEN__  // a page has no GPU, and every function makes the page larger
  use_tuning(*gpu);
#endif
  return gpu;
}

Tokenizer load_tokenizer(const std::filesystem::path& folder, const ModelConfig& config) {
  const std::vector<int> ends(config.end_tokens.begin(), config.end_tokens.end());
  Tokenizer tokenizer = Tokenizer::load(folder, ends);
  if (tokenizer.vocab_size() > config.vocab_size) {
    throw Error("{}: the tokenizer has {} tokens, but the model only {}: {} has the id {}", folder.string(),
                tokenizer.vocab_size(), config.vocab_size,
                quoted(std::string(tokenizer.bytes(tokenizer.vocab_size() - 1))), tokenizer.vocab_size() - 1);
  }
  tokenizer.extend(config.vocab_size);
  return tokenizer;
}

std::vector<NamedFolder> find_drafts(const std::vector<std::string>& names) {
  std::vector<NamedFolder> drafts;
  std::set<std::filesystem::path> seen;
  for (const std::string& name : names) {
    const NamedFolder& draft = drafts.emplace_back(NamedFolder{name, find_model(name, "--draft-model")});
    if (!seen.insert(std::filesystem::weakly_canonical(draft.folder)).second) {
      throw UsageError("--draft-model {} is given twice; name each model once", typed(name));
    }
  }
  return drafts;
}

std::vector<NamedModel> load_drafts(const std::vector<NamedFolder>& folders, const Model& target,
                                    const std::filesystem::path& target_folder, const Tokenizer& tokenizer) {
  std::vector<NamedModel> drafts;
  for (const auto& [name, folder] : folders) {
    NamedModel& draft = drafts.emplace_back(NamedModel{name, target.load_beside(folder)});
    const ModelConfig &ours = target.config(), &theirs = draft.model.config();
    if (!load_tokenizer(folder, theirs).same_tokens(tokenizer)) {
      throw Error(
          "--draft-model {}: its vocabulary differs from that of {}, so it cannot propose tokens "
          "for it",
          typed(folder.string()), typed(target_folder.string()));
    }
    draft.model.fit_vocabulary(ours.vocab_size);
  }
  return drafts;
}

}  // namespace staircase
