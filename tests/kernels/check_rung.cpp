// What `tools/step check` runs for a rung of a CPU's ladder: a learner's file has taken its rung's place in
// the link.
//
//     check-rung matvec 3            compares rung 3 with rung 1, then times it between rungs 2 and 4
//     check-rung matvec 3 compare    only compares
//
// The status is 1, with one sentence, where a number differs, and 3 if this processor cannot run the rung.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <thread>

#include "bench/rung_shapes.h"
#include "bench/timing.h"
#include "tests/kernels/rung_cases.h"

using namespace staircase;
using namespace staircase::rungs;

namespace {

/// The first number that is further from the expected one than `tolerance`, as a sentence; empty if none is.
std::string difference(std::string_view where, const std::vector<float>& results,
                       const std::vector<float>& expected, double tolerance, bool stays_inside) {
  for (std::size_t i = 0; i < results.size(); ++i) {
    // Not `>`: a NaN differs from every number.
    if (!(std::abs(static_cast<double>(results[i]) - static_cast<double>(expected[i])) <= tolerance))
      return fmt::format(
          "{} number {} of the result {}, and 1-plain has {}.", where, i,
          results[i] == 0.5f ? "is still 0.5, as before the run" : fmt::format("is {}", results[i]),
          expected[i]);
  }
  return stays_inside ? "" : fmt::format("{} it writes beyond the end of the result.", where);
}

std::string compare(const Rung& first, const Rung& rung, const ProductShape& shape, ThreadTeam& team) {
  const Wholes numbers(shape);
  bool stays_inside = true;
  const auto results = [&](const Rung& of) {
    const auto product = of.prepare(shape, numbers.w.data(), team);
    return results_of(
        shape.rows * shape.n_out, [&](float* y) { product->run(numbers.x.data(), y); }, stays_inside);
  };
  const std::vector<float> expected = results(first), own = results(rung);
  return difference(
      fmt::format("With x [{}, {}] and W [{}, {}],", shape.rows, shape.n_in, shape.n_in, shape.n_out), own,
      expected, 0.0, stays_inside);
}

std::string compare(const AttentionRung& first, const AttentionRung& rung, const AttentionShape& shape,
                    ThreadTeam& team) {
  for (const float of_queries : {0.0f, 1.0f, 8.0f, 200.0f}) {
    const double tolerance = tolerance_of_attention(rung.name, of_queries);
    if (tolerance < 0.0) continue;
    const Heads heads(shape, of_queries, 1);
    bool stays_inside = true;
    const auto results = [&](const AttentionRung& of) {
      const auto attention = of.prepare(shape, heads.keys.data(), heads.values.data(), team);
      return results_of(
          std::ssize(heads.queries), [&](float* out) { attention->run(heads.queries.data(), out); },
          stays_inside);
    };
    const std::vector<float> expected = results(first), own = results(rung);
    const std::string found =
        difference(fmt::format("With {} heads, {} of keys, {} features, {} positions and queries times {},",
                               shape.n_head, shape.n_kv_head, shape.head_size, shape.positions, of_queries),
                   own, expected, 2.0 * tolerance, stays_inside);
    if (!found.empty()) return found;
  }
  return "";
}

std::string compare(const PrefillRung& first, const PrefillRung& rung, const PromptShape& shape,
                    ThreadTeam& team) {
  for (const float of_queries : {0.0f, 1.0f, 8.0f, 200.0f}) {
    const double tolerance = tolerance_of_attention(rung.name, of_queries);
    if (tolerance < 0.0) continue;
    const Heads heads(shape, of_queries, 1);
    const Prompt prompt = heads.prompt(shape);
    bool stays_inside = true;
    const auto results = [&](const PrefillRung& of) {
      return results_of(
          std::ssize(heads.queries), [&](float* out) { of.run(prompt, team, out); }, stays_inside);
    };
    const std::vector<float> expected = results(first), own = results(rung);
    const std::string found = difference(
        fmt::format("With {} heads, {} of keys, {} features, {} tokens, {} positions and queries times {},",
                    shape.n_head, shape.n_kv_head, shape.head_size, shape.tokens, shape.positions,
                    of_queries),
        own, expected, 2.0 * tolerance, stays_inside);
    if (!found.empty()) return found;
  }
  return "";
}

/// Seconds of one call in the shape of tools/bench, in turns, for all rungs at once.
std::vector<double> seconds_of_calls(const std::vector<std::function<void()>>& calls) {
  std::vector<bench::Task> tasks;
  for (const auto& call : calls) tasks.push_back({[&] { return bench::seconds_per_call(0.02, call); }, {}});
  std::vector<bench::Task*> all;
  for (bench::Task& task : tasks) all.push_back(&task);
  bench::measure_in_rounds(all, 5);
  std::vector<double> medians;
  for (const bench::Task& task : tasks) medians.push_back(task.seconds.median());
  return medians;
}

/// Prints how long the rung takes, and its neighbours.
void print_speed(const std::vector<std::string_view>& names, const std::vector<double>& seconds,
                 std::size_t own) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    fmt::print("  {:<18}{:>9.3f} ms", names[i], 1e3 * seconds[i]);
    if (i == own) fmt::print("  yours");
    if (i == own && own > 0) fmt::print(", {:.2f} times as fast as the rung below", seconds[0] / seconds[i]);
    if (i > own) fmt::print("  {:.2f} times as fast as yours", seconds[own] / seconds[i]);
    fmt::print("\n");
  }
  if (own > 0 && seconds[own] > 0.97 * seconds[0])
    fmt::print("  No faster here than {}: is the idea in?\n", names[0]);
}

std::string_view lacks(const Rung& rung) {
  return rung.lacks;
}
std::string_view lacks(const PrefillRung& rung) {
  return rung.lacks;
}
/// Any processor can run the rungs of attention of one token.
std::string_view lacks(const AttentionRung&) {
  return "";
}

/// The rungs around number `own` that this processor can run, and which of them it is.
template <typename R>
std::pair<std::vector<R>, std::size_t> around(std::span<const R> ladder, std::size_t own) {
  std::vector<R> rungs;
  std::size_t place = 0;
  for (std::size_t i = own - 1; i <= own + 1 && i < ladder.size(); ++i) {
    if (i == own) place = rungs.size();
    if (lacks(ladder[i]).empty()) rungs.push_back(ladder[i]);
  }
  return {rungs, place};
}

void measure(std::span<const Rung> ladder, std::size_t own, const ProductShape& shape, ThreadTeam& team) {
  const std::vector<float> w(static_cast<std::size_t>(shape.n_in * shape.n_out), 0.25f),
      x(static_cast<std::size_t>(shape.rows * shape.n_in), 0.5f);
  std::vector<float> y(static_cast<std::size_t>(shape.rows * shape.n_out));
  const auto [rungs, place] = around(ladder, own);
  std::vector<std::unique_ptr<Product>> products;
  std::vector<std::function<void()>> calls;
  std::vector<std::string_view> names;
  for (const Rung& rung : rungs) {
    Product* const product = products.emplace_back(rung.prepare(shape, w.data(), team)).get();
    calls.push_back([&, product] { product->run(x.data(), y.data()); });
    names.push_back(rung.name);
  }
  print_speed(names, seconds_of_calls(calls), place);
}

void measure(std::span<const AttentionRung> ladder, std::size_t own, const AttentionShape& shape,
             ThreadTeam& team) {
  const std::vector<float> numbers(
      static_cast<std::size_t>(shape.n_kv_head * shape.positions * shape.head_size), 0.25f),
      queries(static_cast<std::size_t>(shape.n_head * shape.head_size), 0.5f);
  std::vector<float> out(queries.size());
  const auto [rungs, place] = around(ladder, own);
  std::vector<std::unique_ptr<Attention>> prepared;
  std::vector<std::function<void()>> calls;
  std::vector<std::string_view> names;
  for (const AttentionRung& rung : rungs) {
    Attention* const attention =
        prepared.emplace_back(rung.prepare(shape, numbers.data(), numbers.data(), team)).get();
    calls.push_back([&, attention] { attention->run(queries.data(), out.data()); });
    names.push_back(rung.name);
  }
  print_speed(names, seconds_of_calls(calls), place);
}

void measure(std::span<const PrefillRung> ladder, std::size_t own, const PromptShape& shape,
             ThreadTeam& team) {
  const Heads heads(shape, 1.0f, 1);
  const Prompt prompt = heads.prompt(shape);
  std::vector<float> out(heads.queries.size());
  const auto [rungs, place] = around(ladder, own);
  std::vector<std::function<void()>> calls;
  std::vector<std::string_view> names;
  for (const PrefillRung& rung : rungs) {
    calls.push_back([&, run = rung.run] { run(prompt, team, out.data()); });
    names.push_back(rung.name);
  }
  print_speed(names, seconds_of_calls(calls), place);
}

template <typename R, typename Shape>
int check(std::span<const R> ladder, std::size_t number, const std::vector<Shape>& odd, const Shape& measured,
          bool compares_only) {
  if (number < 2 || number > ladder.size()) {
    fmt::print("There is no rung {} that could be compared with the first.\n", number);
    return 2;
  }
  const R& rung = ladder[number - 1];
  if (!lacks(rung).empty()) {
    fmt::print("This processor or this build lacks {}, which {} needs.\n", lacks(rung), rung.name);
    return 3;
  }
  ThreadTeam three(3);
  for (const Shape& shape : odd) {
    const std::string found = compare(ladder[0], rung, shape, three);
    if (found.empty()) continue;
    fmt::print("{}\n", found);
    return 1;
  }
  ThreadTeam team(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  if (!compares_only) measure(ladder, number - 1, measured, team);
  return 0;
}

}  // namespace

int main(int count, char** arguments) try {
  const std::vector<std::string_view> words(arguments + 1, arguments + count);
  const bool compares_only = words.size() == 3 && words[2] == "compare";
  if (words.size() != 2 && !compares_only) {
    fmt::print("check-rung takes a ladder and the number of a rung.\n");
    return 2;
  }
  const auto number = static_cast<std::size_t>(std::strtoul(arguments[2], nullptr, 10));
  if (words[0] == "matvec") {
    std::vector<ProductShape> one_row;
    for (const ProductShape& shape : kOddProducts) {
      if (shape.rows == 1) one_row.push_back(shape);
    }
    return check(matvec_ladder(), number, one_row, bench::kMatvecShape, compares_only);
  }
  if (words[0] == "product")
    return check(product_ladder(), number, kOddProducts, bench::kProductShape, compares_only);
  if (words[0] == "attention")
    return check(attention_ladder(), number, kOddHeads, bench::kAttentionShape, compares_only);
  if (words[0] == "prefill-attention") {
    PromptShape half{bench::kPromptShape, bench::kPromptShape.positions / 2};  // rung 1 takes long
    half.positions = half.tokens;
    return check(prefill_attention_ladder(), number, kOddPrompts, half, compares_only);
  }
  fmt::print("There is no ladder {}.\n", words[0]);
  return 2;
} catch (const std::exception& error) {
  fmt::print("It threw: {}\n", error.what());
  return 1;
}
