// embedding against the two table rows that it adds: one addition, so it must be equal to the bit, where
// weights have no scale.
#include "tests/kernels/kernel_test.h"

namespace staircase {
namespace {

TEST_CASE("embedding adds the rows of the token and of its position") {
  const std::size_t vocab = 101, n_positions = 140;
  const std::vector<Sequence> batches[] = {
      {{0, 1}}, {{139, 1}}, {{0, 140}}, {{100, 1}, {0, 33}, {5, 0}, {7, 2}, {1, 17}}};
  for (const std::size_t width : {1u, 3u, 8u, 64u, 75u, 96u}) {
    const Values table = random_values(vocab * width, 1), positions = random_values(n_positions * width, 2);
    for (const auto& sequences : batches) {
      std::vector<std::int32_t> tokens;
      Values want;
      for (const Sequence& s : sequences) {
        for (int i = 0; i < s.count; ++i) {
          // The first and the last token of the vocabulary, then all others.
          const std::size_t t = tokens.size(), token = t == 0 ? 0 : t == 1 ? vocab - 1 : t * 37 % vocab;
          tokens.push_back(static_cast<std::int32_t>(token));
          const std::size_t position = static_cast<std::size_t>(s.start + i);
          for (std::size_t c = 0; c < width; ++c) {
            want.push_back(table[token * width + c] + positions[position * width + c]);
          }
        }
      }
      on_every_device([&](Device& device) {
        const auto columns = static_cast<std::int64_t>(width);
        const Weight weight =
            device.load_weight({table.data(), DType::kFloat32, static_cast<std::int64_t>(vocab), columns},
                               WeightOrder::kOutputFirst, DType::kFloat32);
        Tensor out = result_tensor(device, {static_cast<std::int64_t>(tokens.size()), columns});
        device.embedding(make_batch(device, sequences, tokens), weight,
                         upload(device, {static_cast<std::int64_t>(n_positions), columns}, positions), out);
        CAPTURE(width);
        INFO(to_string(sequences));
        CHECK(difference("out", download(device, out), want, width, 0.0) == "");
      });
    }
  }
}

TEST_CASE("embedding without positions is the row of the token, in every type of weights") {
  const std::size_t vocab = 70, width = 75;
  const Values table = random_values(vocab * width, 1);
  const std::vector<std::int32_t> tokens{0, 69, 5, 64, 5};
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt8, DType::kInt4}) {
    on_every_device([&](Device& device) {
      const Weight weight = upload_weight(device, table, vocab, width, dtype, WeightOrder::kOutputFirst);
      const auto run = [&](const Tensor& positions) {
        Tensor out = result_tensor(device, shape_of(tokens.size(), width));
        device.embedding(make_batch(device, {{3, 4}, {0, 1}}, tokens), weight, positions, out);
        return download(device, out);
      };
      INFO(to_string(dtype));
      const Tensor nothing = upload(device, shape_of(10, width), Values(10 * width, -0.0f));
      CHECK(same_bits(run(Tensor()), run(nothing)));
      const Values positions = random_values(10 * width, 2);
      Values want = run(Tensor());
      const std::size_t places[] = {3, 4, 5, 6, 0};
      for (std::size_t i = 0; i < want.size(); ++i)
        want[i] += positions[places[i / width] * width + i % width];
      // A compiler may multiply by a scale and add the position with a single rounding, as on ARM.
      const float within = is_quantized(dtype) ? 1.2e-7f : 0.0f;
      const Values got = run(upload(device, shape_of(10, width), positions));
      for (std::size_t i = 0; i < want.size(); ++i)
        CHECK(std::abs(got[i] - want[i]) <= within * (std::abs(want[i]) + 4.0f));
    });
  }
}

}  // namespace
}  // namespace staircase
