#include "common/decoding/windowed_kv_cache.h"
#include "common/program/program.h"
#include "common/server/prompt_scorer.h"
#include "paged_engine.h"
#include "service.h"

using namespace staircase;

int main(int argc, char** argv) {
  ServerOptions server;
  PrefillOptions prefill{.chunk = 512};  // a client that leaves stops its prompt after one part
  PagedOptions paged;
  Program program("Serves a language model over HTTP, with OpenAI's interface for completions.", false);
  add_options(program, server);
  add_options(program, prefill);
  add_options(program, paged);
  program.add_dtype_option(WindowedKvCache::estimate);
  return program.run(argc, argv, started_ranks(), [&](NamedModel& named, const Tokenizer& tokenizer) {
    Model& model = named.model;
    const int whole = blocks_for(model.config().n_positions);  // blocks of a whole context
    const int blocks = paged.blocks ? *paged.blocks : product(server.max_batch_size, whole);
    WindowedKvCache cache(model, server.max_batch_size, blocks);
    PagedEngine engine(model, cache, paged.prefix_caching);
    Service service(engine, tokenizer, PromptScorer(model, prefill.chunk), server, prefill);
    serve_completions(server, {named.name, tokenizer, model.config(), 1LL * kBlockSize * blocks}, service,
                      cache_metrics(engine, cache));
  });
}
