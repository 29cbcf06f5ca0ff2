// A program with all the features of a step's program, for the tests of that frame: it continues each prompt
// with the most likely tokens.
#include "common/base/error.h"
#include "common/base/message.h"
#include "common/program/program.h"

using namespace staircase;

namespace {

struct Options {
  int max_new_tokens = 1;
  float temperature = 1.0f;
  std::vector<std::string> stop;
};

void add_options(OptionSink& sink, Options& options) {
  sink.add("--max-new-tokens", &options.max_new_tokens, "maximum number of new tokens", at_least(0));
  sink.add("--temperature", &options.temperature, "does nothing", at_least(0));
  sink.add("--stop", &options.stop, "does nothing", at_least(1));
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  std::string folder;
  int layers = 0;
  std::vector<int> lengths{200, 400};
  bool slides = true, rests = true, fails = false;
  std::vector<NamedModel> drafts;
  std::vector<Options> requests;
  Program program("Continues texts with a GPT-2.");
  add_options(program, options);
  program.add("--benchmark", Path{&folder, "DIR"}, "does nothing");
  program.add("--benchmark-lengths", &lengths, "does nothing", at_least(1));
  program.add("--on-overflow", one_of(&slides, {{"slide", true}, {"recompute", false}}), "does nothing");
  program.add("--rests", &rests, "does nothing");
  program.add("--fails", &fails, "fails a check");
  program.add_dtype_option([](const ModelConfig& config, DType dtype) {
    return fmt::format("{} layers in {}", config.n_layer, to_string(dtype));
  });
  program.add_prompts_option();
  program.add_requests_option([&](RequestLine& line) {
    Options request = options;
    add_options(line, request);
    line.end();
    requests.push_back(request);
  });
  program.add_draft_model_option(drafts);
  program.refuse_if([&] { return fails; }, "--fails fails");
  program.add("--layers", &layers, "fails if the model has fewer");
  program.model_rule([&](const ModelConfig& config) {
    if (layers > config.n_layer) {
      throw UsageError("--layers is {}, but it must be at most the model's {}", layers, config.n_layer);
    }
  });
  return program.run(argc, argv, [&](Model& model, const Prompts& prompts, Output& output) {
    output.expect(static_cast<int>(prompts.size()));
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const OnToken on_token = output.begin(static_cast<int>(i));
      std::vector<int> tokens = prompts[i];
      const int count = requests.empty() ? options.max_new_tokens : requests[i].max_new_tokens;
      for (int n = 0; n < count; ++n) {
        tokens.push_back(argmax(model.next_logits(tokens)));
        on_token({tokens.back()});
      }
      output.finish(FinishReason::kLength);
    }
    for (NamedModel& draft : drafts) draft.model.next_logits(prompts[0]);
    std::size_t draft_bytes = 0;
    for (const NamedModel& draft : drafts) draft_bytes += draft.model.activation_bytes();
    output.add_statistic("own_activation_bytes", static_cast<double>(model.activation_bytes()));
    output.add_statistic("draft_activation_bytes", static_cast<double>(draft_bytes));
  });
}
