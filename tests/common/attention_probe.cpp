// A head's attention against plain loops over the model's own weights, whatever cache holds its keys.
#include "common/model/attention_probe.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "common/decoding/dynamic_kv_cache.h"
#include "common/decoding/paged_kv_cache.h"
#include "common/decoding/static_kv_cache.h"
#include "common/model/model.h"
#include "common/model/weight_matrices.h"
#include "tests/error_message.h"
#include "tests/kernels/naive.h"
#include "tests/test_device.h"
#include "tests/tiny_model.h"

namespace staircase {
namespace {

using Tokens = std::vector<int>;
using Rows = std::vector<std::vector<float>>;

std::unique_ptr<Device> make_probed_device() {
#ifdef STAIRCASE_CUDA_EMULATION
  return make_cuda_device();
#else
  return make_test_device(2);
#endif
}

Model load(const TinyModel& tiny, DType dtype = DType::kFloat32) {
  const TemporaryFolder folder;
  tiny.write(folder.path());
  return Model::load(folder.path(), make_probed_device(), dtype);
}

Tokens some_tokens(int count, int first = 3) {
  Tokens tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((first + 37 * i + i * i) % 101);
  return tokens;
}

/// What a head of `tiny` attends to if the residual stream in front of its layer is x, [n, n_embd]: row q has
/// the shares of 0 .. q. The matrices are as `model` keeps them.
std::vector<naive::Doubles> naive_weights(const TinyModel& tiny, const Model& model, AttentionHead head,
                                          const std::vector<float>& x) {
  const auto n_embd = static_cast<std::size_t>(tiny.n_embd), n = x.size() / n_embd;
  const auto head_size = n_embd / static_cast<std::size_t>(tiny.n_head);
  const std::string layer = fmt::format("h.{}.", head.layer);
  std::vector<float> matrix;  // [3 n_embd, n_embd]
  for_each_matrix(model, [&](const WeightMatrix& one) {
    if (one.name == layer + "attn.c_attn.weight") matrix = one.values;
  });
  const std::vector<float>& bias = tiny.values(layer + "attn.c_attn.bias");
  const naive::Doubles normed = naive::layer_norm(x, tiny.values(layer + "ln_1.weight"),
                                                  tiny.values(layer + "ln_1.bias"), 1e-5, n, n_embd);
  const auto product = [&](std::size_t token, std::size_t output) {
    double sum = static_cast<double>(bias[output]);
    for (std::size_t i = 0; i < n_embd; ++i) {
      sum += normed[token * n_embd + i] * static_cast<double>(matrix[output * n_embd + i]);
    }
    return sum;
  };
  std::vector<naive::Doubles> weights(n);
  for (std::size_t q = 0; q < n; ++q) {
    double total = 0.0;
    for (std::size_t p = 0; p <= q; ++p) {
      double score = 0.0;
      for (std::size_t i = 0; i < head_size; ++i) {
        const std::size_t place = static_cast<std::size_t>(head.head) * head_size + i;
        score += product(q, place) * product(p, n_embd + place);
      }
      weights[q].push_back(std::exp(score / std::sqrt(static_cast<double>(head_size))));
      total += weights[q].back();
    }
    for (double& weight : weights[q]) weight /= total;
  }
  return weights;
}

/// The residual stream in front of that layer, without a cache.
std::vector<float> stream_before(Model& model, const Tokens& tokens, int layer) {
  std::vector<float> found;
  model.on_stage([&](std::string_view name, std::span<const float> values) {
    if (name == (layer == 0 ? "embeddings" : fmt::format("block.{}", layer - 1))) {
      found.assign(values.begin(), values.end());
    }
  });
  model.last_logits(tokens, 1);
  model.on_stage(nullptr);
  return found;
}

/// Watches that head: what it looked at in the newest pass.
std::shared_ptr<std::vector<AttentionWeights>> watch(Model& model, AttentionHead head) {
  auto newest = std::make_shared<std::vector<AttentionWeights>>();
  model.after_pass(
      [newest](const ForwardPass& pass) { newest->assign(pass.attention.begin(), pass.attention.end()); },
      head);
  return newest;
}

/// How far the last rows of `want` are from the received ones; infinitely far if they are not shares.
double distance(const AttentionWeights& seen, const std::vector<naive::Doubles>& want) {
  const auto count = seen.rows.size();
  if (count > want.size()) return HUGE_VAL;
  double largest = 0.0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::vector<float>& got = seen.rows[i];
    const naive::Doubles& wanted = want[want.size() - count + i];
    if (got.size() != wanted.size()) return HUGE_VAL;
    if (std::abs(std::accumulate(got.begin(), got.end(), 0.0) - 1.0) > 1e-5) return HUGE_VAL;
    for (std::size_t p = 0; p < got.size(); ++p) {
      largest = std::max(largest, std::abs(static_cast<double>(got[p]) - wanted[p]));
    }
  }
  return largest;
}

constexpr double kTolerance = 1e-5;

TEST_CASE("each head attends where its queries and keys point") {
  const TinyModel tiny;
  Model model = load(tiny);
  const Tokens tokens = some_tokens(20);
  for (int layer = 0; layer < tiny.n_layer; ++layer) {
    const std::vector<float> x = stream_before(model, tokens, layer);
    for (int head = 0; head < tiny.n_head; ++head) {
      CAPTURE(layer);
      CAPTURE(head);
      const auto seen = watch(model, {layer, head});
      model.next_logits(tokens);
      REQUIRE(seen->size() == 1);
      CHECK((*seen)[0].tokens == tokens);
      CHECK((*seen)[0].rows.size() == tokens.size());
      CHECK(distance((*seen)[0], naive_weights(tiny, model, {layer, head}, x)) < kTolerance);
    }
  }
}

TEST_CASE("it sees the same whatever cache holds the keys, and in whatever parts the text arrives") {
  const TinyModel tiny;
  Model model = load(tiny);
  constexpr AttentionHead kHead{1, 2};
  const Tokens tokens = some_tokens(37);
  const std::vector<naive::Doubles> want =
      naive_weights(tiny, model, kHead, stream_before(model, tokens, kHead.layer));
  const auto seen = watch(model, kHead);
  const auto check = [&](KvCache& cache, const std::function<void(int length)>& make_room) {
    int done = 0;
    for (const int count : {1, 18, 1, 1, 15, 1}) {
      make_room(done + count);
      model.last_logits(
          std::span(tokens).subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(count)), 1,
          cache);
      done += count;
      CAPTURE(done);
      const AttentionWeights& newest = seen->at(0);
      CHECK(newest.tokens == Tokens(tokens.begin(), tokens.begin() + done));
      CHECK(newest.rows.size() == static_cast<std::size_t>(count));
      CHECK(distance(newest, {want.begin(), want.begin() + done}) < kTolerance);
    }
  };
  StaticKvCache one(model);
  check(one, [](int) {});
  DynamicKvCache two(model);
  check(two, [](int) {});
  PagedKvCache three(model, 1, 3);
  check(three, [&](int length) { REQUIRE(three.reserve(0, length)); });
}

TEST_CASE("rows of a batch see their own texts, and one that rests sees nothing") {
  const TinyModel tiny;
  Model model = load(tiny);
  constexpr AttentionHead kHead{0, 1};
  const Tokens one = some_tokens(5), none, three = some_tokens(9, 50), more{7, 8};
  const auto seen = watch(model, kHead);
  StaticKvCache cache(model, 3);
  std::vector<std::span<const int>> batch{one, none, three};
  model.next_logits(batch, cache);
  const auto want = [&](const Tokens& tokens) {
    return naive_weights(tiny, model, kHead, stream_before(model, tokens, 0));
  };
  const std::vector<AttentionWeights> first = *seen;
  REQUIRE(first.size() == 3);
  CHECK(first[0].tokens == one);
  CHECK(distance(first[0], want(one)) < kTolerance);
  CHECK(first[1].tokens.empty());
  CHECK(first[1].rows.empty());
  CHECK(first[2].tokens == three);
  CHECK(distance(first[2], want(three)) < kTolerance);

  cache.copy_row(2, 1);
  batch = {none, more, none};
  model.next_logits(batch, cache);
  Tokens both = three;
  both.insert(both.end(), more.begin(), more.end());
  const std::vector<AttentionWeights> second = *seen;
  CHECK(second[1].tokens == both);
  REQUIRE(second[1].rows.size() == 2);
  CHECK(distance(second[1], want(both)) < kTolerance);
  CHECK(second[0].rows.empty());
}

TEST_CASE("it knows the tokens of a cache that slides, goes back or shares blocks") {
  const TinyModel tiny;
  Model model = load(tiny);
  constexpr AttentionHead kHead{0, 0};
  const auto seen = watch(model, kHead);
  const Tokens tokens = some_tokens(37), next{9};
  {
    StaticKvCache cache(model);
    model.next_logits(tokens, cache);
    cache.slide(0, 3);
    model.next_logits(next, cache);
    Tokens left(tokens.begin() + 3, tokens.end());
    left.push_back(9);
    CHECK(seen->at(0).tokens == left);
    // Each key has the position that its token once had; the newest follows 34 of them.
    std::vector<float> x;
    for (std::size_t p = 0; p < left.size(); ++p) {
      const std::size_t position = p + 1 < left.size() ? p + 3 : p;
      for (std::size_t i = 0; i < 24; ++i) {
        x.push_back(tiny.values("wte.weight")[static_cast<std::size_t>(left[p]) * 24 + i] +
                    tiny.values("wpe.weight")[position * 24 + i]);
      }
    }
    CHECK(distance(seen->at(0), naive_weights(tiny, model, kHead, x)) < kTolerance);
    cache.truncate(0, 10);
    model.next_logits(next, cache);
    left.resize(10);
    left.push_back(9);
    CHECK(seen->at(0).tokens == left);
  }
  PagedKvCache paged(model, 2, 6);
  REQUIRE(paged.reserve(0, 20));
  const std::span<const int> text = std::span(tokens).first(20);
  model.next_logits(text, paged);
  paged.remember(0, text);
  paged.share(1, text);
  REQUIRE(paged.reserve(1, 20));
  REQUIRE(paged.length(1) == 16);
  const std::vector<std::span<const int>> batch{{}, text.subspan(16)};
  model.next_logits(batch, paged);
  CHECK(seen->at(1).tokens == Tokens(text.begin(), text.end()));
  CHECK(seen->at(1).rows.size() == 4);
}

TEST_CASE("it takes keys and weights of all types") {
  const TinyModel tiny;
  constexpr AttentionHead kHead{1, 0};
  const Tokens tokens = some_tokens(30);
  for (const DType dtype : weight_dtypes()) {
    CAPTURE(to_string(dtype));
    Model model = load(tiny, dtype);
    const std::vector<naive::Doubles> want =
        naive_weights(tiny, model, kHead, stream_before(model, tokens, kHead.layer));
    const auto seen = watch(model, kHead);
    StaticKvCache cache(model);
    // Queries and keys of a tiny model with large weights are some 5: rounding moves a score by hundredths.
    const double tolerance = dtype == DType::kFloat32 ? kTolerance : dtype == DType::kFloat16 ? 5e-3 : 0.05;
    model.next_logits(std::span(tokens).first(12), cache);
    CHECK(distance(seen->at(0), {want.begin(), want.begin() + 12}) < tolerance);
    model.next_logits(std::span(tokens).subspan(12, 1), cache);
    CHECK(distance(seen->at(0), {want.begin(), want.begin() + 13}) < tolerance);
    model.next_logits(tokens);
    CHECK(distance(seen->at(0), want) < tolerance);
    CHECK(seen->at(0).tokens == tokens);
  }
}

TEST_CASE("it reports which tokens it has not seen, and is removed when no head is watched") {
  const TinyModel tiny;
  Model model = load(tiny);
  StaticKvCache cache(model);
  const Tokens before{4, 5}, after{6};
  model.next_logits(before, cache);
  const auto seen = watch(model, {1, 1});
  model.next_logits(after, cache);
  CHECK(seen->at(0).tokens == Tokens{-1, -1, 6});
  CHECK(seen->at(0).rows.at(0).size() == 3);
  std::size_t passes = 0;
  model.after_pass([&](const ForwardPass& pass) {
    CHECK(pass.attention.empty());
    ++passes;
  });
  model.next_logits(after, cache);
  CHECK(passes == 1);
}

TEST_CASE("scores that are too large for a number are reported") {
  TinyModel tiny;
  for (float& weight : tiny.tensors.at("h.1.attn.c_attn.weight").values) weight *= 1e25f;
  Model model = load(tiny);
  watch(model, {1, 2});
  CHECK(error_message([&] { model.next_logits(some_tokens(4)); }) ==
        "head 2 of layer 1 computed a non-finite score: the model's weights are broken");
}

TEST_CASE("watching a head changes no logit") {
  const TinyModel tiny;
  Model model = load(tiny);
  const Tokens tokens = some_tokens(11);
  const std::span<const float> logits = model.next_logits(tokens);
  const std::vector<float> want(logits.begin(), logits.end());
  watch(model, {0, 2});
  CHECK(std::ranges::equal(model.next_logits(tokens), want));
}

}  // namespace
}  // namespace staircase
