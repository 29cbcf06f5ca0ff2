// Each rung of a GPU's ladder gains what its page promises, as far as the emulation can count it.
#include <doctest/doctest.h>

#include <map>

#include "tests/cuda_emulation/count_rung.h"

using namespace staircase::rungs;

namespace {

/// What a rung asks of memory.
struct Promise {
  double sectors, requests;  // of a request; of 1,000 numbers of the operands
  double early;              // share of what is read that is requested before the wait
  double barriers;           // of a block
};

/// `numbers`: how many the operands have.
template <typename Ladder>
void check(const std::map<std::string_view, Promise>& promises, double numbers) {
  REQUIRE(promises.size() == Ladder::ladder().size());
  for (const auto& rung : Ladder::ladder()) {
    CAPTURE(rung.name);
    REQUIRE(promises.contains(rung.name));
    const Promise& promise = promises.at(rung.name);
    const Counted launch = Ladder::count(rung);
    const cuda_emulation::Traffic read = launch.read();
    const auto requests = static_cast<double>(read.requests), bytes = static_cast<double>(read.bytes);
    CHECK(static_cast<double>(read.sectors) / requests == doctest::Approx(promise.sectors).epsilon(1e-3));
    CHECK(requests / numbers * 1e3 == doctest::Approx(promise.requests).epsilon(1e-3));
    CHECK(static_cast<double>(read.early_bytes) / bytes == doctest::Approx(promise.early).epsilon(1e-3));
    CHECK(static_cast<double>(launch.barriers) / launch.blocks == promise.barriers);
    CHECK(launch.conflicts == 0);
  }
}

/// Each rung gains over the one below, and not over itself.
template <typename Ladder>
void check_gains() {
  REQUIRE(Ladder::kGains.size() + 1 == Ladder::ladder().size());
  Counted below = Ladder::count(Ladder::ladder()[0]);
  for (std::size_t i = 1; i < Ladder::ladder().size(); ++i) {
    CAPTURE(Ladder::ladder()[i].name);
    const Counted own = Ladder::count(Ladder::ladder()[i]);
    CHECK(Ladder::kGains[i - 1].gains(below, own));
    CHECK(!Ladder::kGains[i - 1].gains(own, own));
    below = own;
  }
}

}  // namespace

TEST_CASE(
    "a rung on a GPU gains over the one below in the counter of its idea, and a copy of that one does not") {
  check_gains<CountedMatvec>();
  check_gains<CountedLayerNorm>();
  check_gains<CountedSoftmax>();
  check_gains<CountedAttention>();
  check_gains<CountedProduct>();
  check_gains<CountedBoundaries>();
}

TEST_CASE("a thread has as many bytes under way as the page of the product says") {
  const std::map<std::string_view, std::uint64_t> promises{
      {"3-wide-loads", 16}, {"4-loads-in-flight", 64}, {"5-split-rows", 64}};
  for (const auto& rung : CountedMatvec::ladder()) {
    if (!promises.contains(rung.name)) continue;
    CAPTURE(rung.name);
    CHECK(CountedMatvec::count(rung).bytes_at_once == promises.at(rung.name));
  }
}

TEST_CASE("a rung of the product on a GPU asks of memory what its page says") {
  check<CountedMatvec>({{"1-thread", {32.0, 31.25, 0.0, 0.0}},
                        {"2-warp", {4.0, 31.25, 0.0, 0.0}},
                        {"3-wide-loads", {16.0, 7.8125, 0.0, 0.0}},
                        {"4-loads-in-flight", {16.0, 7.8125, 0.0, 0.0}},
                        {"5-split-rows", {16.0, 7.8125, 0.0, 1.0}},
                        {"6-before-the-wait", {16.0, 7.8125, 2.0 / 3.0, 1.0}},
                        {"7-async-copies", {16.0, 7.8125, 1.0, 1.0}},
                        {"8-bfloat16", {16.0, 3.90625, 1.0, 1.0}},
                        {"9-int8-products", {16.0, 1.953125, 1.0, 1.0}},
                        {"10-bulk-ring", {48.0, 0.651, 1.0, 2.0}}},
                       CountedMatvec::kIn * CountedMatvec::kOut);
}

TEST_CASE("a rung of the layer norm on a GPU asks of memory what its page says") {
  check<CountedLayerNorm>({{"1-thread", {5.2, 625.0, 0.0, 0.0}},
                           {"2-tree", {4.0, 156.25, 0.0, 18.0}},
                           {"3-warp-sums", {4.0, 156.25, 0.0, 4.0}},
                           {"4-registers", {4.0, 93.75, 0.0, 4.0}},
                           {"5-one-reduction", {4.0, 93.75, 0.0, 1.0}},
                           {"6-warp", {4.0, 93.75, 0.0, 0.0}},
                           {"7-before-the-wait", {4.0, 93.75, 2.0 / 3.0, 0.0}}},
                          CountedLayerNorm::kRows * CountedLayerNorm::kWidth);
}

TEST_CASE("a rung of the softmax on a GPU asks of memory what its page says") {
  check<CountedSoftmax>({{"1-thread", {1.0, 3000.0, 0.0, 0.0}},
                         {"2-block", {4.0, 93.86, 0.0, 4.0}},
                         {"3-online", {4.0, 62.5, 0.0, 1.0}},
                         {"4-split", {4.0765, 64.5, 0.0, 2.0}}},
                        CountedSoftmax::kWidth);
}

TEST_CASE("a rung of attention on a GPU asks of memory what its page says") {
  check<CountedAttention>(
      {{"1-three-kernels", {18.0, 93.75, 0.0, 0.5}},
       {"2-block", {18.0, 93.75, 0.0, 4.0}},
       {"3-wide-loads", {16.0, 23.4375, 0.0, 6.0}},
       {"4-online", {16.0, 23.4375, 0.0, 43.0}},
       {"5-groups", {16.0, 7.8125, 0.0, 31.0}},
       {"6-split-keys", {16.0, 7.8125, 0.0, 10.0}},
       {"7-last-block", {16.0, 7.8125, 0.0, 12.0}}},
      2.0 * CountedAttention::kKvHeads * CountedAttention::kPositions * CountedAttention::kSize);
}

TEST_CASE("a rung of prefill's product on a GPU asks of memory what its page says") {
  check<CountedProduct>({{"1-thread", {16.5, 62.5, 0.0, 0.0}},
                         {"2-shared-memory", {4.0, 1.953125, 0.0, 16.0}},
                         {"3-registers", {16.0, 0.24414, 0.0, 32.0}},
                         {"4-tensor-cores", {16.0, 0.12207, 0.0, 16.0}},
                         {"5-stages", {16.0, 0.12207, 0.0, 8.0}},
                         {"6-before-the-wait", {16.0, 0.12207, 0.1875, 8.0}}},
                        CountedProduct::kProducts);
}

TEST_CASE("each rung of prefill's product makes more products for a request to shared memory") {
  const std::map<std::string_view, double> promises{{"2-shared-memory", 15.515},
                                                    {"3-registers", 204.8},
                                                    {"4-tensor-cores", 2730.7},
                                                    {"5-stages", 2730.7},
                                                    {"6-before-the-wait", 2730.7}};
  for (const auto& rung : CountedProduct::ladder().subspan(1)) {
    CAPTURE(rung.name);
    const auto requests = static_cast<double>(CountedProduct::count(rung).shared_requests);
    CHECK(CountedProduct::kProducts / requests == doctest::Approx(promises.at(rung.name)).epsilon(1e-3));
  }
}

TEST_CASE("a rung of the boundaries on a GPU asks of memory what its page says") {
  check<CountedBoundaries>(
      {{"1-waits", {16.0, 15.625, 0.0, 0.0}},
       {"2-launches", {16.0, 15.625, 0.0, 0.0}},
       {"3-graph", {16.0, 15.625, 0.0, 0.0}},
       {"4-before-the-wait", {16.0, 15.625, 0.5, 0.0}},
       {"5-one-kernel", {16.0, 15.625, 0.0, 10.0}}},
      CountedBoundaries::kSize.layers * CountedBoundaries::kSize.width * CountedBoundaries::kSize.width);
}

TEST_CASE("each rung of the boundaries needs fewer calls of the host, waits or kernels") {
  struct Calls {
    std::size_t kernels;
    std::uint64_t waits;
    int graphs;
  };
  const std::map<std::string_view, Calls> promises{{"1-waits", {6, 7, 0}},
                                                   {"2-launches", {6, 1, 0}},
                                                   {"3-graph", {6, 1, 1}},
                                                   {"4-before-the-wait", {6, 1, 0}},
                                                   {"5-one-kernel", {1, 1, 0}}};
  for (const auto& rung : CountedBoundaries::ladder()) {
    CAPTURE(rung.name);
    const ChainCase numbers(CountedBoundaries::kSize);
    gpu_boundaries::Prepared prepared(rung, numbers.w, numbers.x);
    prepared.run_after_kernel();  // records a graph
    const std::uint64_t waits = cuda_emulation::waits;
    const int graphs = cuda_emulation::graphs_launched;
    cuda_emulation::Counters counters;
    prepared.run();
    CHECK(counters.launches().size() == promises.at(rung.name).kernels);
    CHECK(cuda_emulation::waits - waits == promises.at(rung.name).waits);
    CHECK(cuda_emulation::graphs_launched - graphs == promises.at(rung.name).graphs);
  }
}
