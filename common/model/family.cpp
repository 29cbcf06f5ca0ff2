#include "common/model/family.h"

namespace staircase {
namespace {

constexpr const Family* kFamilies[] = {&kGpt2,  &kGptNeox, &kOlmo,  &kLlama,   &kMistral, &kQwen2,
                                       &kQwen3, &kGemma3,  &kOlmoe, &kMixtral, &kQwen3Moe};

}  // namespace

const Family* find_family(std::string_view model_type) {
  for (const Family* family : kFamilies) {
    if (family->model_type == model_type) return family;
  }
  return nullptr;
}

std::string family_names() {
  std::string names;
  for (const Family* family : kFamilies)
    names += (names.empty() ? "" : ", ") + std::string(family->model_type);
  return names;
}

}  // namespace staircase
