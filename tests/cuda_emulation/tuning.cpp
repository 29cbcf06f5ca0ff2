// The forms of products (kernels/tuning.h): each against the CPU's twin, and which of them a product
// gets.
#include "kernels/tuning.h"

#include <doctest/doctest.h>

#include <cmath>
#include <set>

#include "tests/cuda_emulation/counters.h"
#include "tests/kernels/few_bits.h"
#include "tests/kernels/kernel_test.h"

namespace staircase {
namespace {

using cuda::Form, cuda::forms_of, cuda::ProductShape, cuda::Tuning;

constexpr DType kAllTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt8,
                               DType::kInt4};

/// A GPU with one multiprocessor: each block takes several outputs in turn, and the last ones are too few.
std::unique_ptr<Device> small_gpu() {
  struct Restore {
    ~Restore() { cuda_emulation::settings.multiprocessors = cuda_emulation::Settings().multiprocessors; }
  } const restore;
  cuda_emulation::settings.multiprocessors = 1;
  return make_cuda_device();
}

/// The kernel that the last product of `work` was.
template <typename Work>
std::string kernel_of(const Work& work) {
  cuda_emulation::Counters counters;
  work();
  std::string kernel;
  for (const auto& launch : counters.launches()) {
    if (launch.kernel.starts_with("multiply_")) kernel = launch.kernel;
  }
  return kernel;
}

/// How the name of a kernel begins that has the form, for that many rows.
std::string name_of(const ProductShape& product, const Form& form) {
  if (product.rows > 1)
    return "multiply_on_tensor_cores<" + std::to_string(product.rows / 8) + ", " +
           std::to_string(form.lanes) + ",";
  return "multiply_one_row<" + std::to_string(form.lanes) + ", " +
         std::to_string(form.inputs / cuda::inputs_of_load(product.dtype)) + ",";
}

enum class Kind { kPlain, kGated, kQueryKeyValue };

/// norm(x) W on any device: results, and of kQueryKeyValue queries, keys and values.
struct Trial {
  Kind kind;
  std::size_t rows, in, out;
  DType dtype;

  ProductShape shape() const {
    return {cuda::room_for(static_cast<std::int64_t>(rows)), static_cast<std::int64_t>(in),
            static_cast<std::int64_t>(out), dtype, kind == Kind::kGated};
  }

  /// Weights that the type holds exactly, [in, out].
  Values weights() const {
    const Values exact = random_values(in * out, 2);
    return is_quantized(dtype) ? turned(rounded(turned(exact, out), in, dtype), in) : rounded(exact, dtype);
  }

  Values run(Device& device, DType stored, const Values& w) const {
    const Tensor x = upload(device, shape_of(rows, in), random_values(rows * in, 1));
    const Weight weight = upload_weight(device, w, in, out, stored);
    const Tensor bias = upload(device, shape_of(1, out), random_values(out, 3));
    const Norm norm{kind == Kind::kGated ? NormKind::kRms : NormKind::kLayer,
                    upload(device, shape_of(1, in), random_values(in, 5)),
                    kind == Kind::kGated ? Tensor() : upload(device, shape_of(1, in), random_values(in, 6)),
                    1e-5f};
    if (kind != Kind::kQueryKeyValue) {
      const std::size_t width = kind == Kind::kGated ? out / 2 : out;
      Tensor result = upload(device, shape_of(rows, width), random_values(rows * width, 4));
      device.linear(x, norm, weight, bias, kind == Kind::kGated ? Epilogue::kSiluGate : Epilogue::kAdd,
                    result);
      return download(device, result);
    }
    const std::size_t width = out / 3;
    const Shape cache{1, 1, 40, static_cast<std::int64_t>(width)};
    KeysValues keys_values{upload(device, cache, Values(40 * width)),
                           upload(device, cache, Values(40 * width))};
    Tensor queries = result_tensor(device, shape_of(rows, width));
    const Batch batch = make_batch(device, {{3, static_cast<int>(rows)}});
    device.query_key_value(batch, x, norm, weight, bias, queries, keys_values);
    Values all = download(device, queries);
    for (const Tensor& part : {keys_values.keys, keys_values.values}) {
      const Values values = download(device, part);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  /// Checks every form on the GPU, and that it is that form's kernel. Returns how many there are.
  std::size_t check(Device& gpu) const {
    static const std::unique_ptr<Device> cpu = make_cpu_device(1);
    const Values w = weights(), want = run(*cpu, DType::kFloat32, w);
    const auto forms = forms_of(shape());
    CAPTURE(static_cast<int>(kind));
    CAPTURE(rows);
    CAPTURE(in);
    INFO(to_string(dtype));
    for (const Form& form : forms) {
      CAPTURE(form.lanes);
      CAPTURE(form.inputs);
      CAPTURE(form.blocks);
      gpu.use(Tuning{{{shape(), form}}});
      Values got;
      const std::string kernel = kernel_of([&] { got = run(gpu, dtype, w); });
      CHECK(kernel.starts_with(name_of(shape(), form)));
      // Both sum in float32. A group whose weights are rounded once more may have a scale that differs in its
      // last bit.
      const double largest = kind == Kind::kGated ? 3.0 * std::sqrt(static_cast<double>(in)) : 1.0;
      CHECK(difference("out", got, naive::Doubles(want.begin(), want.end()), got.size(),
                       largest * 6e-6 * std::sqrt(static_cast<double>(in))) == "");
    }
    return forms.size();
  }
};

TEST_CASE("each form of a product is the CPU's") {
  const std::unique_ptr<Device> gpu = small_gpu();
  cuda_emulation::settings.order = cuda_emulation::Order::kRandom;
  struct Restore {
    ~Restore() { cuda_emulation::settings.order = cuda_emulation::Settings().order; }
  } const restore;
  for (const Kind kind : {Kind::kPlain, Kind::kGated, Kind::kQueryKeyValue}) {
    // A gated product has a multiple of 32.
    const std::size_t most = kind == Kind::kGated   ? 96
                             : kind == Kind::kPlain ? 101
                                                    : 60,
                      least = kind == Kind::kGated ? 32 : 24;
    for (const DType dtype : kAllTypes) {
      // Every team holds the first; of the others, some threads have a last load that others lack.
      for (const std::size_t in : {128u, 736u, 992u, 1984u, 2976u, 7936u})
        CHECK(Trial{kind, 1, in, in > 2000 ? least : most, dtype}.check(*gpu) >= 1);
    }
    for (const DType dtype : {DType::kBFloat16, DType::kInt8, DType::kInt4}) {
      for (const std::size_t rows : {2u, 13u, 32u}) {
        for (const std::size_t in : {128u, 1088u}) {
          CHECK(Trial{kind, rows, in, kind == Kind::kGated ? 64u : 54u, dtype}.check(*gpu) ==
                (kind != Kind::kGated && rows < 32 ? 2 : 1));
        }
      }
    }
  }
}

TEST_CASE(
    "a product without a form, or with one that its kernel lacks, has the one that it has without a table") {
  const std::unique_ptr<Device> gpu = small_gpu();
  const Trial trial{Kind::kPlain, 1, 768, 40, DType::kBFloat16};
  const auto chosen = [&](const Tuning& tuning) {
    gpu->use(tuning);
    return kernel_of([&] { trial.run(*gpu, trial.dtype, trial.weights()); });
  };
  const std::string first = name_of(trial.shape(), {32, 24, 6});
  CHECK(chosen({}).starts_with(first));
  CHECK(chosen(Tuning{{{trial.shape(), {64, 16, 12}}}}).starts_with("multiply_one_row<64, 2,"));
  for (const Form& form :
       {Form{96, 8, 1}, Form{32, 16, 6}, Form{64, 16, 13}, Form{64, 16, 0}, Form{-1, -1, -1}})
    CHECK(chosen(Tuning{{{trial.shape(), form}}}).starts_with(first));
  // Of another product.
  for (const auto& change : {ProductShape{8, 768, 40, DType::kBFloat16, false},
                             {1, 776, 40, DType::kBFloat16, false},
                             {1, 768, 41, DType::kBFloat16, false},
                             {1, 768, 40, DType::kFloat16, false},
                             {1, 768, 40, DType::kBFloat16, true}})
    CHECK(chosen(Tuning{{{change, {64, 16, 12}}}}).starts_with(first));
}

TEST_CASE("a form is never taken by a product that no kernel of its kind has room for") {
  const std::unique_ptr<Device> gpu = small_gpu();
  const auto kernel_with = [&](const Trial& trial, const Form& form) {
    CHECK(forms_of(trial.shape()).empty());
    gpu->use(Tuning{{{trial.shape(), form}}});
    return kernel_of([&] { trial.run(*gpu, trial.dtype, trial.weights()); });
  };
  CHECK(kernel_with({Kind::kPlain, 1, 101, 5, DType::kBFloat16}, {32, 24, 6})
            .starts_with("multiply_few_rows<"));
  CHECK(kernel_with({Kind::kPlain, 1, 32776, 2, DType::kBFloat16}, {512, 64, 1})
            .starts_with("multiply_few_rows<"));
  CHECK(
      kernel_with({Kind::kPlain, 2, 80, 5, DType::kBFloat16}, {256, 0, 0}).starts_with("multiply_few_rows<"));
  CHECK(
      kernel_with({Kind::kPlain, 2, 128, 5, DType::kFloat16}, {256, 0, 0}).starts_with("multiply_few_rows<"));
}

TEST_CASE("the forms of a product differ, hold its row, and begin with the one of fewest threads that does") {
  for (const DType dtype : kAllTypes) {
    for (const bool is_gated : {false, true}) {
      for (const std::int64_t in : {128, 768, 1600, 4096, 6400, 14336}) {
        if (dtype == DType::kFloat32 && in > 8192) continue;  // not with a gate
        const auto forms = forms_of({1, in, 96, dtype, is_gated});
        INFO(to_string(dtype));
        CAPTURE(in);
        REQUIRE(!forms.empty());
        std::set<std::tuple<int, int, int>> seen;
        for (const Form& form : forms) {
          CHECK(std::int64_t{form.lanes} * form.inputs >= in);
          CHECK(form.blocks >= 1);
          CHECK(seen.insert({form.lanes, form.inputs, form.blocks}).second);
        }
        for (const Form& form : forms) {
          if (form.lanes != 64) CHECK(forms.front().lanes <= form.lanes);
        }
      }
    }
  }
}

TEST_CASE("work that was recorded with one form runs with the next one that the device uses") {
  const std::unique_ptr<Device> gpu = small_gpu();
  const Tensor x = upload(*gpu, shape_of(1, 768), random_values(768, 1));
  const Weight weight = upload_weight(*gpu, random_values(768 * 8, 2), 768, 8, DType::kBFloat16);
  Tensor result = result_tensor(*gpu, shape_of(1, 8));
  const ProductShape shape{1, 768, 8, DType::kBFloat16, false};
  for (const Form& form : {Form{32, 24, 6}, Form{64, 16, 12}, Form{128, 24, 6}}) {
    gpu->use(Tuning{{{shape, form}}});
    for (int i = 0; i < 3; ++i) {  // the third time it is a graph
      CHECK(kernel_of([&] {
              gpu->run([&] { gpu->linear(x, {}, weight, Tensor(), Epilogue::kStore, result); }, {});
              download(*gpu, result);
            }).starts_with(name_of(shape, form)));
    }
  }
}

}  // namespace
}  // namespace staircase
