// A program of one's own with the library: it continues a text with any GPT-2, by sampling with a cache.
//
//   meson install -C build
//   c++ -std=c++20 -O2 docs/example.cpp -o example $(pkg-config --cflags --libs staircase)
//   ./example models/tales-6m "Once upon a time"
#include <iostream>

#include "common/base/error.h"
#include "common/model/model.h"
#include "common/text/tokenizer.h"
#include "ring_kv_cache.h"
#include "sampling.h"

using namespace staircase;

int main(int argc, char** argv) try {
  if (argc != 3)
    throw UsageError("it takes a folder with a GPT-2 and a text, but there are {} arguments", argc - 1);
  // make_cuda_device() in its place computes on a GPU.
  Model model = Model::load(argv[1], make_cpu_device(available_processors()));
  Tokenizer tokenizer = Tokenizer::load(argv[1]);
  tokenizer.extend(model.config().vocab_size);  // a model may have more tokens than its tokenizer
  const int eos = model.config().eos_token_id;

  std::vector<int> tokens = tokenizer.encode_prompt(argv[2]);
  if (tokens.empty()) tokens.push_back(eos);  // a model begins a new text after this token
  const SamplingOptions options{.do_sample = true, .seed = 8, .temperature = 0.8f, .top_k = 40};
  std::mt19937 generator(options.seed);
  RingKvCache cache(model);  // of layers with a window, it keeps no more than they see
  StreamDecoder decoder(tokenizer);

  for (int i = 0; i < 100 && std::ssize(tokens) <= model.config().n_positions; ++i) {
    // The model sees only the tokens that are not in the cache.
    std::vector<float> logits = copy_of(model.next_logits(std::span(tokens).subspan(cache.length(0)), cache));
    process(logits, tokens, options);
    tokens.push_back(choose(logits, options, generator));
    if (tokens.back() == eos) break;
    std::cout << decoder.push(tokens.back()) << std::flush;
  }
  std::cout << decoder.finish() << '\n';
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << '\n';
  return 1;
}
