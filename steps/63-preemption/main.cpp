#include "batches.h"
#include "check.h"
#include "common/base/message.h"
#include "common/program/program.h"
#include "echo.h"
#include "generate.h"
#include "memory_estimate.h"

using namespace staircase;

int main(int argc, char** argv) {
  RowOptions options;
  RunOptions run;
  PrefillOptions prefill;
  PagedOptions paged;
  EchoOptions shown;
  Program program("Continues a text with a GPT-2.");
  add_options(program, options);
  add_options(program, run);
  add_options(program, prefill);
  add_options(program, paged);
  add_options(program, shown);
  program.add_dtype_option();
  program.before_loading([](const ModelConfig& config, DType dtype) { say(memory_estimate(config, dtype)); });
  program.add_check([&] { check(options, run); });
  program.add_prompts_option();
  std::vector<Request> requests;
  program.add_requests_option(
      [&](RequestLine& line) { requests.push_back(read_request(line, options, paged)); });
  return program.run(argc, argv, [&](Model& model, const Prompts& prompts, Output& output) {
    check(options, prompts, model.config());
    check_requests(requests, run, prefill, paged);
    options.stop.tokenizer = &output.tokenizer();
    for (int i = 0; i < std::ssize(requests); ++i) {
      requests[i].number = i;
      requests[i].options.stop.tokenizer = &output.tokenizer();
    }
    echo(model, prompts, shown, options.logprobs.count.value_or(0), output);
    if (!requests.empty()) return serve_all(model, requests, run.max_batch_size, prefill, paged, output);
    generate_all(model, prompts, options, run, output);
  });
}
