// The product of one row: every instance of its kernel against the kernels for a few rows, and what it asks
// of memory.
#include <doctest/doctest.h>

#include <cmath>

#include "tests/cuda_emulation/counters.h"
#include "tests/kernels/kernel_test.h"

namespace staircase {
namespace {

constexpr DType kAllTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt8,
                               DType::kInt4};

/// A product of one row, or of equal ones.
struct Product {
  std::size_t in, out;
  DType dtype;
  NormKind kind = NormKind::kNone;
  Epilogue epilogue = Epilogue::kStore;

  /// Calls multiply(work) once all operands are on the device; `work` is the product of `rows` equal rows and
  /// the wait for it. Returns the first row.
  template <typename Multiply>
  Values run(Device& device, std::size_t rows, const Multiply& multiply) const {
    const std::size_t width = epilogue == Epilogue::kSiluGate ? out / 2 : out;
    const Tensor x = upload(device, shape_of(rows, in), repeated(random_values(in, 1), rows));
    const Weight weight = upload_weight(device, random_values(in * out, 2), in, out, dtype);
    const Tensor bias = upload(device, shape_of(1, out), random_values(out, 3));
    Tensor result = upload(device, shape_of(rows, width), repeated(random_values(width, 4), rows));
    Norm norm{kind, {}, {}, 1e-5f};
    if (kind != NormKind::kNone) norm.weight = upload(device, shape_of(1, in), random_values(in, 5));
    if (kind == NormKind::kLayer) norm.bias = upload(device, shape_of(1, in), random_values(in, 6));
    Values values = download(device, result);  // waits for the uploads
    multiply([&] {
      device.linear(x, norm, weight, bias, epilogue, result);
      values = download(device, result);
    });
    values.resize(width);
    return values;
  }

  Values run(Device& device, std::size_t rows) const {
    return run(device, rows, [](const auto& work) { work(); });
  }

  void check(Device& device) const {
    const Values alone = run(device, 1), among_others = run(device, 2);
    CAPTURE(in);
    CAPTURE(out);
    CAPTURE(static_cast<int>(kind));
    CAPTURE(static_cast<int>(epilogue));
    INFO(to_string(dtype));
    const double largest = epilogue == Epilogue::kSiluGate ? 3.0 * std::sqrt(static_cast<double>(in)) : 1.0;
    CHECK(difference("out", alone, naive::Doubles(among_others.begin(), among_others.end()), alone.size(),
                     largest * 2e-6 * std::sqrt(static_cast<double>(in))) == "");
  }

  static Values repeated(const Values& row, std::size_t times) {
    Values all;
    for (std::size_t i = 0; i < times; ++i) all.insert(all.end(), row.begin(), row.end());
    return all;
  }
};

/// Widths at the edges of what a thread holds: for each type, the last of an instance and the first of the
/// next.
constexpr std::size_t kWidths[] = {32,   768,  800,  1024,  1056,  2048,  2080,  3072,  3104, 4096,
                                   4128, 8192, 8224, 16384, 16416, 28672, 28704, 32768, 32800};

/// Rows that end within a load, or within the alignment of one; the last two of each four are prime numbers.
constexpr std::size_t kOddWidths[] = {36, 104, 37, 101, 8196, 8200, 8191, 8209, 14340, 28668, 14347, 28669};

constexpr NormKind kKinds[] = {NormKind::kNone, NormKind::kLayer, NormKind::kRms};

TEST_CASE("a row alone has the product that it has among others, in every width and type") {
  on_every_device([](Device& device) {
    for (const DType dtype : kAllTypes) {
      for (std::size_t i = 0; i < std::size(kWidths); ++i) {
        Product{kWidths[i], kWidths[i] > 8192 ? 2u : 7u, dtype, kKinds[i % 3]}.check(device);
        if (kWidths[i] > 16416) continue;  // no model gates as wide a row
        Product{kWidths[i], 32, dtype, kKinds[(i + 1) % 3], Epilogue::kSiluGate}.check(device);
      }
      for (std::size_t i = 0; i < std::size(kOddWidths); ++i)
        Product{kOddWidths[i], 2, dtype, kKinds[(i + i / 4) % 3]}.check(device);
      for (const Epilogue epilogue : {Epilogue::kGelu, Epilogue::kGeluErf, Epilogue::kAdd})
        Product{96, 33, dtype, NormKind::kLayer, epilogue}.check(device);
    }
  });
}

// With one multiprocessor the grid has a few blocks: each takes many outputs, the last of them alone.
TEST_CASE("more outputs than a wave of blocks are taken one after another") {
  struct Restore {
    ~Restore() { cuda_emulation::settings = {}; }
  } const restore;
  cuda_emulation::settings.multiprocessors = 1;
  on_every_device([](Device& device) {
    for (const DType dtype : kAllTypes) {
      for (const std::size_t in : {96u, 2112u}) {
        Product{in, 101, dtype, NormKind::kLayer, Epilogue::kAdd}.check(device);
        Product{in, 192, dtype, NormKind::kRms, Epilogue::kSiluGate}.check(device);
      }
    }
  });
}

/// What the kernel of a product asks of memory on a GPU with 132 multiprocessors, as an H200 has.
cuda_emulation::CountedLaunch counted(const Product& product, std::size_t rows = 1) {
  struct Restore {
    ~Restore() { cuda_emulation::settings = {}; }
  } const restore;
  cuda_emulation::settings.multiprocessors = 132;
  cuda_emulation::CountedLaunch result;
  on_every_device([&](Device& device) {
    product.run(device, rows, [&](const auto& work) {
      cuda_emulation::Counters counters;
      work();
      for (const auto& launch : counters.launches()) {
        if (launch.kernel.starts_with("multiply_")) result = launch;
      }
    });
  });
  return result;
}

TEST_CASE("a row has the kernel whose threads can hold it, and the kernel for a few rows if there is none") {
  const auto kernel_of = [](DType dtype, std::size_t in, Epilogue epilogue = Epilogue::kStore) {
    const std::string name = counted({in, 32, dtype, NormKind::kNone, epilogue}).kernel;
    return name.substr(0, name.find(',', name.find(',') + 1));  // with the lanes and loads of an output
  };
  const std::string few = "multiply_few_rows<1, ";
  // Widths of GPT-2, Llama 3 and Gemma, and those beside the limit of a kernel.
  CHECK(kernel_of(DType::kBFloat16, 768) == "multiply_one_row<32, 3");
  CHECK(kernel_of(DType::kBFloat16, 1600) == "multiply_one_row<32, 8");
  CHECK(kernel_of(DType::kBFloat16, 6400) == "multiply_one_row<128, 8");
  CHECK(kernel_of(DType::kBFloat16, 8192) == "multiply_one_row<128, 8");
  CHECK(kernel_of(DType::kBFloat16, 8200) == "multiply_one_row<256, 8");
  CHECK(kernel_of(DType::kFloat16, 14336) == "multiply_one_row<256, 8");
  CHECK(kernel_of(DType::kBFloat16, 16384, Epilogue::kSiluGate) == "multiply_one_row<256, 8");
  CHECK(kernel_of(DType::kBFloat16, 28672) == "multiply_one_row<512, 7");
  CHECK(kernel_of(DType::kBFloat16, 28680).starts_with(few));
  CHECK(kernel_of(DType::kBFloat16, 8193).starts_with("multiply_few_rows<8, 1"));
  CHECK(kernel_of(DType::kFloat32, 6400) == "multiply_one_row<256, 8");
  CHECK(kernel_of(DType::kFloat32, 14336) == "multiply_one_row<512, 8");
  CHECK(kernel_of(DType::kFloat32, 16388).starts_with(few));
  for (const DType dtype : {DType::kInt8, DType::kInt4}) {
    const int loads = dtype == DType::kInt8 ? 2 : 1;  // of 32 inputs
    const auto own = [&](int lanes, int inputs) {
      return "multiply_one_row<" + std::to_string(lanes) + ", " + std::to_string(inputs / 32 * loads);
    };
    INFO(to_string(dtype));
    CHECK(kernel_of(dtype, 36) == own(32, 32));
    CHECK(kernel_of(dtype, 8192) == own(128, 64));
    CHECK(kernel_of(dtype, 8200) == own(256, 64));
    CHECK(kernel_of(dtype, 28672) == own(512, 64));
    CHECK(kernel_of(dtype, 32768) == own(512, 64));
    CHECK(kernel_of(dtype, 32776).starts_with(few));
    CHECK(kernel_of(dtype, 8193).starts_with("multiply_few_rows<8, 1"));
  }
}

constexpr std::uint64_t kSector = cuda_emulation::Counters::kSector;

TEST_CASE("a product of one row reads each weight once, in whole sectors, all of them before it waits") {
  // The first two are products of gpt2; a wave has 1584 outputs of 1600 inputs.
  for (const auto& [in, out] : {std::pair<std::size_t, std::size_t>{768, 2304}, {768, 768}, {1600, 1504}}) {
    const auto c = counted({in, out, DType::kBFloat16, NormKind::kLayer});
    CHECK(c.streams.bytes == in * out * 2);
    CHECK(c.streams.sectors * kSector == c.streams.bytes);
    CHECK(c.streams.early_bytes == c.streams.bytes);
    CHECK(c.barriers == 0);
  }
}

TEST_CASE("a row that a whole block shares passes two barriers for each of its sums") {
  const auto c = counted({3072, 132, DType::kBFloat16});
  CHECK(c.streams.bytes == 3072 * 132 * 2);
  CHECK(c.streams.early_bytes == c.streams.bytes);
  CHECK(c.barriers == 132 * 2);
}

TEST_CASE(
    "a row of Llama 3 is read once and before the wait as well, also where its loads end within a group") {
  for (const auto& [in, dtype, row_bytes] :
       {std::tuple<std::size_t, DType, std::size_t>{14336, DType::kBFloat16, 28672},
        {28672, DType::kBFloat16, 57344},
        {28672, DType::kInt8, 28672},
        {8200, DType::kInt8, 8208},
        {8200, DType::kInt4, 4112}}) {
    const auto c = counted({in, 24, dtype});
    CAPTURE(in);
    INFO(to_string(dtype));
    CHECK(c.streams.bytes == row_bytes * 24);
    CHECK(c.streams.early_bytes == c.streams.bytes);
    if (in != 8200) CHECK(c.streams.sectors * kSector == c.streams.bytes);
  }
}

TEST_CASE("an output layer requests a wave of rows before it waits") {
  const auto c = counted({768, 6400, DType::kBFloat16, NormKind::kLayer});
  CHECK(c.streams.bytes == 768 * 6400 * 2);
  CHECK(c.streams.early_bytes == 768 * 2 * 4 * 132 * 6);
}

TEST_CASE("up to 32 rows read each weight once, in whole sectors, and up to 1024 inputs before they wait") {
  for (const std::size_t rows : {2u, 8u, 17u, 32u}) {
    const auto c = counted({768, 48, DType::kBFloat16, NormKind::kLayer}, rows);
    CHECK(c.streams.bytes == 768 * 48 * 2);
    CHECK(c.streams.sectors * kSector == c.streams.bytes);
    CHECK(c.streams.early_bytes == c.streams.bytes);
    CHECK(c.barriers == 3 * 2);
  }
  const auto c = counted({1536, 16, DType::kBFloat16}, 8);
  CHECK(c.streams.bytes == 1536 * 16 * 2);
  CHECK(c.streams.early_bytes == 1024 * 16 * 2);
}

}  // namespace
}  // namespace staircase
