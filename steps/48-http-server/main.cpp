#include "common/base/message.h"
#include "common/program/program.h"
#include "memory_estimate.h"
#include "paged_kv_cache.h"
#include "scoring.h"
#include "service.h"

using namespace staircase;

int main(int argc, char** argv) {
  ServerOptions server;
  PrefillOptions prefill;
  PagedOptions paged;
  Program program("Serves a GPT-2 over HTTP, with OpenAI's interface for completions.", false);
  add_options(program, server);
  add_options(program, prefill);
  add_options(program, paged);
  program.add_dtype_option();
  program.before_loading([](const Gpt2Config& config, DType dtype) { say(memory_estimate(config, dtype)); });
  return program.run(argc, argv, [&](NamedModel& named, const Tokenizer& tokenizer) {
    Gpt2& model = named.model;
    const int whole = blocks_for(model.config().n_positions);  // a context's
    const int blocks = paged.blocks ? *paged.blocks : product(server.max_batch_size, whole);
    PagedKvCache cache(model, server.max_batch_size, blocks);
    const auto score_prompt = [&](const auto& prompt, int count) { return score(model, prompt, count); };
    Service service(make_engine(model, cache, paged.prefix_caching), score_prompt, server, prefill);
    serve_completions(server, {named.name, tokenizer, model.config(), 1LL * kBlockSize * blocks}, service,
                      cache_metrics(cache));
  });
}
