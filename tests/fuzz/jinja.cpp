// Any template and conversation: an Error, or a text within the limits.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "common/base/error.h"
#include "common/text/jinja.h"

// The input: a template, a zero byte, and the variables as a JSON object. Without them there is a
// conversation.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace staircase;
  using nlohmann::ordered_json;
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::size_t end = all.find('\0');
  ordered_json variables = ordered_json::parse(end == all.npos ? "" : all.substr(end + 1), nullptr, false);
  if (!variables.is_object()) {
    variables = {{"messages", {{{"role", "user"}, {"content", "Hello <|im_end|> \xC3\xA9"}}}}, {"n", 3}};
  }
  const RenderLimits limits{.steps = 20'000, .bytes = 1 << 20, .output = 1 << 16};
  try {
    const Rendered rendered =
        JinjaTemplate(all.substr(0, end)).render({variables, {{"bos_token", "<s>"}}}, limits);
    if (rendered.own.size() != rendered.text.size() || rendered.text.size() > limits.output) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
