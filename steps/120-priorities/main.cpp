#include "batches.h"
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
  int patience = 100;
  EchoOptions shown;
  std::vector<Request> requests;
  Program program("Continues a text with a language model.");
  add_options(program, options);
  add_options(program, run);
  add_options(program, prefill);
  add_options(program, paged);
  program.add("--patience", &patience, "passes that a request waits for each unit of its priority",
              at_least(0));
  add_options(program, shown);
  refuse_equal_texts(program, run, options);
  program.add_dtype_option(memory_estimate);
  program.add_prompts_option();
  add_requests_option(program, requests, options, run, prefill, paged);
  program.warn_of_long_prompts();
  return program.run(argc, argv, [&](Model& model, const Prompts& prompts, Output& output) {
    echo(model, prompts, shown, options.logprobs.count.value_or(0), output);
    if (!requests.empty()) {
      return serve_all(model, requests, run.max_batch_size, prefill, paged, patience, output);
    }
    generate_all(model, prompts, options, run, output);
  });
}
