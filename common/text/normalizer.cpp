#include "common/text/normalizer.h"

#include <algorithm>
#include <utility>

#include "common/base/error.h"
#include "common/text/nfc.h"
#include "common/text/utf8.h"

namespace staircase {

namespace {

std::string nfc_of_any_bytes(std::string_view text) {
  std::string normal;
  while (!text.empty()) {
    const Utf8Run run = first_utf8_run(text);
    const std::string_view part = text.substr(0, run.length);
    normal += run.valid ? to_nfc(part) : std::string(part);
    text.remove_prefix(run.length);
  }
  return normal;
}

}  // namespace

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  for (;;) {
    const std::size_t at = text.find(from);
    result += text.substr(0, at);
    if (at == text.npos) return result;
    result += to;
    text.remove_prefix(at + from.size());
  }
}

Normalizer::Normalizer(std::vector<Normalization> steps) : steps_(std::move(steps)) {
  const bool nfc = std::any_of(steps_.begin(), steps_.end(), [](const Normalization& step) {
    return step.kind == Normalization::Kind::kNfc;
  });
  if (nfc && !has_nfc()) {
    throw Error(
        "the tokenizer brings texts into Unicode's normal form C, and this program was built without "
        "utf8proc");
  }
}

std::string Normalizer::normalize(std::string_view text) const {
  std::string normal(text);
  for (const auto& [kind, from, to] : steps_) {
    switch (kind) {
      case Normalization::Kind::kNfc:
        normal = nfc_of_any_bytes(normal);
        break;
      case Normalization::Kind::kPrepend:
        if (!normal.empty()) normal = to + normal;
        break;
      case Normalization::Kind::kReplace:
        normal = replaced(normal, from, to);
        break;
    }
  }
  return normal;
}

}  // namespace staircase
