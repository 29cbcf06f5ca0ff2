// Jinja, as far as chat templates use it: the language in which a model's files define how a conversation
// becomes text. A template produces the same text as Python's jinja2 does with transformers' settings.
#pragma once

#include <cstdint>
#include <ctime>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace staircase {

namespace jinja {
struct Node;
}

/// A downloaded template is a stranger's program. It ends at these limits.
struct RenderLimits {
  std::int64_t steps = 20'000'000;         ///< values and statements
  std::int64_t bytes = 512 * 1024 * 1024;  ///< all texts and lists that the template creates
  std::size_t output = 64 * 1024 * 1024;   ///< bytes of the result
};

struct RenderInput {
  /// An object whose members are the template's variables: messages, tools, add_generation_prompt, ...
  const nlohmann::ordered_json& data;
  /// Variables whose text counts as the template's own: bos_token, eos_token.
  std::map<std::string, std::string> own;
  /// The local time that strftime_now uses.
  std::tm now{};
};

struct Rendered {
  std::string text;
  /// For each byte, whether the template wrote it. Only these bytes may be read as markers: all others come
  /// from users.
  std::vector<bool> own;
};

class JinjaTemplate {
 public:
  /// Throws Error with one sentence, which names the line, for an invalid template and for unknown features.
  explicit JinjaTemplate(std::string_view source);

  /// Throws Error with one sentence, which names the line, for a fault, an exceeded limit, and an exception
  /// that the template raises.
  Rendered render(const RenderInput& input, const RenderLimits& limits = {}) const;

 private:
  std::shared_ptr<const std::vector<jinja::Node>> body_;
};

}  // namespace staircase
