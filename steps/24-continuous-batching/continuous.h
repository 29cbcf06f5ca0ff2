// Continuous batching (Yu et al. 2022): requests join the batch when they arrive and leave it when they are
// done, between one pass of the model and the next.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include "common/base/message.h"
#include "common/measure/measurement.h"
#include "common/program/output.h"
#include "common/program/requests.h"
#include "generate.h"

namespace staircase {

/// A text that somebody wants, from a certain time on; its prompt is kept apart.
struct Request {
  double arrival = 0.0;  ///< in seconds from the start
  GenerateOptions options = {};
};

/// What a line of a file of requests can say; `defaults` holds for the rest.
inline Request read_request(RequestLine& line, const GenerateOptions& defaults) {
  Request request{line.arrival(), defaults};
  GenerateOptions& options = request.options;
  line.get("max_new_tokens", options.max_new_tokens);
  line.get("min_new_tokens", options.min_new_tokens);
  line.get("stop", options.stop.sequences);
  line.get("ignore_eos", options.ignore_eos);
  line.get("do_sample", options.sampling.do_sample);
  line.get("seed", options.seed);
  line.get("presence_penalty", options.sampling.presence_penalty);
  line.get("frequency_penalty", options.sampling.frequency_penalty);
  line.get("repetition_penalty", options.sampling.repetition_penalty);
  line.get("temperature", options.sampling.temperature);
  line.get("top_k", options.sampling.top_k);
  line.get("top_p", options.sampling.top_p);
  line.get("logprobs", options.logprobs);
  line.end();
  return request;
}

enum class Batching {
  kStatic,      ///< who has arrived forms a batch, of whole prompts, and the next begins when all are done
  kContinuous,  ///< a place that is free is taken before the next pass
};

struct ServingOptions {
  int max_batch_size = 32;
  std::optional<int> prefill_chunk = {};  ///< prompt tokens in one pass, at most; without it whole prompts
  Batching batching = Batching::kContinuous;
};

/// Where time comes from, so that a test can bring its own.
struct Timer {
  std::function<double()> now;                   ///< seconds from the start
  std::function<void(double time)> sleep_until;  ///< returns at that time, or later
};

/// The time that passes, from now on.
inline Timer real_time() {
  const auto start = Clock::now();
  const auto now = [start] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  return {now, [now](double time) {
            while (now() < time) std::this_thread::sleep_for(std::chrono::duration<double>(time - now()));
          }};
}

/// What became of a request, and when, in seconds from the start.
struct Served {
  Generation generation;
  double arrival = 0.0;
  double joined = 0.0;        ///< the batch
  std::vector<double> times;  ///< of each new token

  /// TTFT: from the arrival to the first token, the time in the queue included.
  double time_to_first_token() const { return times.front() - arrival; }
  /// TPOT: the mean time of the tokens behind the first; there must be one.
  double time_per_output_token() const { return (times.back() - times.front()) / (times.size() - 1.0); }
};

/// All requests, and what the batch was like.
struct Service {
  std::vector<Served> served;  ///< as the requests are numbered
  int passes = 0;              ///< of the model
  int rows = 0;                ///< of all passes together
  int most_positions = 0;      ///< that the cache held at a time
};

/// A request in the batch.
struct ServedRow {
  Row row;
  const GenerateOptions* options;
  int pending;    ///< so many tokens at the end of the text are not in the cache yet,
  int next = 0;   ///< and so many of them go through the model in the next pass
  int count = 0;  ///< new tokens
};

/// Says what of row r, which is its row of the cache as well, goes through the model next: a part of its
/// prompt, taken from the `budget` of the pass, or its newest token.
inline void plan(ServedRow& row, int r, int& budget, StaticKvCache& cache) {
  if (row.count == 0) {
    row.next = std::min(row.pending, budget);
    budget -= row.next;
    return;
  }
  const std::span<const int> tokens = row.row.tokens;
  const std::span<const int> window = tokens.last(std::min<std::size_t>(tokens.size(), cache.capacity()));
  row.pending = static_cast<int>(make_room(window.last(1), window, cache, r, *row.options).size());
  row.next = row.pending;
}

/// Continues prompts[i] as requests[i] says, first come, first served; `on_token` sees each token as it is
/// chosen. Each text is what it would be alone, whatever the others are: a row has its own cache, options and
/// random numbers. The prompts share prefill_chunk tokens of each pass (Agrawal et al. 2023, section 4), so
/// the texts that grow never wait for more than that, and at most one prompt is half in the cache. The cache
/// has max_batch_size rows.
inline Service serve(Gpt2& model, const Prompts& prompts, std::span<const Request> requests,
                     const ServingOptions& serving, StaticKvCache& cache, const Timer& timer,
                     const OnRowToken& on_token) {
  const int vocab_size = model.config().vocab_size, eos = model.config().eos_token_id;
  Service service{.served = std::vector<Served>(requests.size())};
  std::vector<int> queue(requests.size());
  std::iota(queue.begin(), queue.end(), 0);
  std::ranges::stable_sort(queue, {}, [&](int number) { return requests[number].arrival; });
  std::span<const int> waiting = queue;
  std::vector<ServedRow> rows;

  while (!waiting.empty() || !rows.empty()) {
    if (rows.empty()) timer.sleep_until(requests[waiting.front()].arrival);
    const double start = timer.now();
    // This condition is all that static batching has more.
    const bool open = rows.empty() || serving.batching == Batching::kContinuous;
    int budget = serving.prefill_chunk.value_or(std::numeric_limits<int>::max());
    for (int r = 0; r < std::ssize(rows); ++r) plan(rows[r], r, budget, cache);
    while (open && budget > 0 && std::ssize(rows) < serving.max_batch_size && !waiting.empty() &&
           requests[waiting.front()].arrival <= start) {
      const int number = waiting.front(), r = static_cast<int>(rows.size());
      waiting = waiting.subspan(1);
      const GenerateOptions& options = requests[number].options;
      service.served[number].arrival = requests[number].arrival;
      service.served[number].joined = start;
      cache.truncate(r, 0);
      rows.push_back({{number, prompts[number], std::mt19937(options.seed), StopFilter(options.stop)},
                      &options,
                      std::min(static_cast<int>(prompts[number].size()), cache.capacity())});
      plan(rows[r], r, budget, cache);
    }

    std::vector<std::span<const int>> fed;
    for (const ServedRow& row : rows) {
      fed.push_back(std::span(row.row.tokens).last(row.pending).first(row.next));
    }
    const std::span<float> logits = model.next_logits(fed, &cache);  // [rows.size(), vocab_size]
    const double now = timer.now();
    service.passes += 1;
    service.rows += static_cast<int>(rows.size());
    int positions = 0;
    for (int r = 0; r < std::ssize(rows); ++r) {
      positions += cache.length(r);
      rows[r].pending -= rows[r].next;
      if (rows[r].pending > 0) continue;  // the rest of the prompt comes in the next passes
      const int number = rows[r].row.number;
      const std::span<float> scores = logits.subspan(r * vocab_size, vocab_size);
      service.served[number].times.push_back(now);
      on_token(number, take_token(rows[r].row, scores, rows[r].count++, eos, *rows[r].options));
    }
    service.most_positions = std::max(service.most_positions, positions);
    // As in `generate`, the last row takes the place of one that leaves.
    for (int r = static_cast<int>(rows.size()) - 1; r >= 0; --r) {
      Row& row = rows[r].row;
      if (!row.finished) continue;
      service.served[row.number].generation = {std::move(row.tokens), *row.finished};
      if (const int last = static_cast<int>(rows.size()) - 1; r < last) {
        cache.copy_row(last, r);
        rows[r] = std::move(rows[last]);
      }
      rows.pop_back();
    }
  }
  return service;
}

/// TTFT and TPOT of all requests, in milliseconds.
struct Latencies {
  std::vector<double> first_token, per_token;
};

inline Latencies latencies(std::span<const Served> all) {
  Latencies result;
  for (const Served& served : all) {
    result.first_token.push_back(1000.0 * served.time_to_first_token());
    if (served.times.size() > 1) result.per_token.push_back(1000.0 * served.time_per_output_token());
  }
  return result;
}

/// Seconds from the first arrival to the last token.
inline double duration(std::span<const Served> all) {
  double first = all.front().arrival, last = 0.0;
  for (const Served& served : all) {
    first = std::min(first, served.arrival);
    last = std::max(last, served.times.back());
  }
  return last - first;
}

/// Serves all requests as their time comes and tells how long they took; `output` gets the texts in the order
/// of the requests. tokens/s are all new tokens, the first of each text included, by the `duration`.
inline void serve_all(Gpt2& model, const Prompts& prompts, std::span<const Request> requests,
                      const ServingOptions& serving, Output& output) {
  const int texts = static_cast<int>(requests.size());
  std::vector<int> numbers(requests.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  output.expect(texts);
  StaticKvCache cache(model, std::min(serving.max_batch_size, texts));
  const Service service =
      serve(model, prompts, requests, serving, cache, real_time(), output.on_row_token(numbers));
  std::vector<Generation> generations;
  int new_tokens = 0;
  for (const Served& served : service.served) {
    generations.push_back(served.generation);
    new_tokens += static_cast<int>(served.times.size());
  }
  output.finish(generations, cache.use());

  const Latencies times = latencies(service.served);
  const double seconds = duration(service.served), rate = new_tokens / seconds;
  output.set_speed(quantile(times.first_token, 0.5), rate);
  std::string report =
      fmt::format("\n{} request{} in {:.2f} s, {:.1f} tokens/s, {:.1f} rows a pass", texts,
                  texts == 1 ? "" : "s", seconds, rate, static_cast<double>(service.rows) / service.passes);
  const auto add = [&](const char* name, const char* statistic, const std::vector<double>& values) {
    if (values.empty()) return;
    report += fmt::format("; {} in ms:", name);
    for (const int percent : {50, 95, 99}) {
      const double value = quantile(values, percent / 100.0);
      report += fmt::format("{} {:.1f} (p{})", percent == 50 ? "" : ",", value, percent);
      output.add_statistic(fmt::format("{}_ms_p{}", statistic, percent), value);
    }
  };
  add("TTFT", "ttft", times.first_token);
  add("TPOT", "tpot", times.per_token);
  say(report);
}

}  // namespace staircase
