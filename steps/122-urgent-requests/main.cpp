#include "chat.h"
#include "common/decoding/ended_texts.h"
#include "common/program/program.h"
#include "common/server/cache_file.h"
#include "common/server/prompt_scorer.h"
#include "paged_engine.h"
#include "service.h"

using namespace staircase;

int main(int argc, char** argv) {
  ServerOptions server;
  ChatOptions chats;
  PrefillOptions prefill{.chunk = 512};  // a client that leaves stops its prompt after one part
  PagedOptions paged;
  TurnOptions turns;
  Program program("Serves a language model over HTTP, with OpenAI's interface for chats and texts.", false);
  add_options(program, server);
  add_options(program, chats);
  add_options(program, prefill);
  add_options(program, paged);
  add_options(program, turns);
  CacheFile file(program);
  program.add_dtype_option(WindowedKvCache::estimate);
  program.add_cache_dtype_option();
  return program.run(argc, argv, started_ranks(), [&](NamedModel& named, const Tokenizer& tokenizer) {
    Model& model = named.model;
    const int blocks = pool_size(paged, model, server.max_batch_size);
    WindowedKvCache cache(model, server.max_batch_size + EndedTexts::kMaxKept, blocks, server.max_batch_size);
    EndedTexts engine(with_adapters(model, chats), cache, server.max_batch_size, paged.prefix_caching);
    file.restore(model, engine, cache);
    Chat chat(named.name, tokenizer, chats);
    Service service(engine, tokenizer, PromptScorer(model, prefill.chunk), server, prefill, turns);
    serve_completions(server, {named.name, tokenizer, model.config(), 1LL * kBlockSize * blocks}, service,
                      cache_metrics(engine, cache, server.max_batch_size), &chat, names_of(chats));
    file.save();
  });
}
