// Each rung of the GPU's ladder gains what its page promises, as far as the emulation can count it.
#include <doctest/doctest.h>

#include <map>

#include "tests/cuda_emulation/count_rung.h"

using namespace staircase::rungs::gpu_matvec;

namespace {

/// What a rung asks of W.
struct Promise {
  double sectors, requests;  // of a request; of 1,000 weights
  double early;              // share of W that is requested before the wait
  double barriers;           // of a block
};

}  // namespace

TEST_CASE("a rung on a GPU asks of memory what its page says") {
  const std::map<std::string_view, Promise> promises{
      {"1-thread", {32.0, 31.25, 0.0, 0.0}},          {"2-warp", {4.0, 31.25, 0.0, 0.0}},
      {"3-wide-loads", {16.0, 7.8125, 0.0, 0.0}},     {"4-loads-in-flight", {16.0, 7.8125, 0.0, 0.0}},
      {"5-split-rows", {16.0, 7.8125, 0.0, 1.0}},     {"6-before-the-wait", {16.0, 7.8125, 2.0 / 3.0, 1.0}},
      {"7-async-copies", {16.0, 7.8125, 1.0, 1.0}},   {"8-bfloat16", {16.0, 3.90625, 1.0, 1.0}},
      {"9-int8-products", {16.0, 1.953125, 1.0, 1.0}}};
  REQUIRE(promises.size() == ladder().size());
  for (const MatvecRung& rung : ladder()) {
    CAPTURE(rung.name);
    REQUIRE(promises.contains(rung.name));
    const Promise& promise = promises.at(rung.name);
    const cuda_emulation::CountedLaunch launch = count(rung);
    cuda_emulation::Traffic w = launch.loads;
    w += launch.streams;
    const auto requests = static_cast<double>(w.requests), bytes = static_cast<double>(w.bytes);
    CHECK(static_cast<double>(w.sectors) / requests == promise.sectors);
    CHECK(requests / (kIn * kOut) * 1e3 == promise.requests);
    CHECK(static_cast<double>(w.early_bytes) / bytes == doctest::Approx(promise.early).epsilon(1e-3));
    CHECK(static_cast<double>(launch.barriers) / launch.blocks == promise.barriers);
    CHECK(launch.conflicts == 0);
  }
}
