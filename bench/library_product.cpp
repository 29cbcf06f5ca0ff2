#include "bench/library_product.h"

#ifdef STAIRCASE_HAVE_DNNL

#include <dnnl_version.h>
#include <omp.h>

#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>

namespace staircase::bench {

struct LibraryProduct::Impl {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::matmul product;
  dnnl::memory x, y;
  dnnl::memory::desc given;  // the layout of x in float32
  std::vector<Tensor> allocated;
  std::vector<dnnl::memory> weights;
};

std::string library_name() {
  const dnnl_version_t* const version = dnnl_version();
  return "oneDNN " + std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
         std::to_string(version->patch);
}

void set_library_threads(int threads) {
  omp_set_num_threads(threads);
}

LibraryProduct::LibraryProduct(Device& device, std::int64_t rows, std::int64_t in, std::int64_t out,
                               const float* weights, int copies, DType dtype)
    : impl_(std::make_unique<Impl>()) {
  using dnnl::memory;
  constexpr auto kFloat = memory::data_type::f32;
  constexpr auto kRows = memory::format_tag::ab;
  const auto type = dtype == DType::kBFloat16 ? memory::data_type::bf16 : kFloat;
  Impl& impl = *impl_;
  const memory::desc x({rows, in}, type, kRows), y({rows, out}, kFloat, kRows);
  const memory::desc any({in, out}, type, memory::format_tag::any);
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::matmul::primitive_desc description(impl.engine, x, any, y);
#else
  const dnnl::matmul::primitive_desc description({x, any, y}, impl.engine);
#endif
  impl.product = dnnl::matmul(description);
  impl.x = memory(x, impl.engine);
  impl.y = memory(y, impl.engine);
  impl.given = memory::desc({rows, in}, kFloat, kRows);

  memory stored(memory::desc({in, out}, kFloat, kRows), impl.engine, const_cast<float*>(weights));
  for (int copy = 0; copy < copies; ++copy) {
    const auto bytes = static_cast<std::int64_t>(description.weights_desc().get_size());
    const auto floats = (bytes + 3) / static_cast<std::int64_t>(sizeof(float));
    impl.allocated.push_back(device.allocate(DType::kFloat32, {floats}));
    impl.weights.emplace_back(description.weights_desc(), impl.engine, impl.allocated.back().data<void>());
    if (copy == 0) {
      dnnl::reorder(stored, impl.weights[0]).execute(impl.stream, stored, impl.weights[0]);
      impl.stream.wait();
    } else {
      std::memcpy(impl.weights.back().get_data_handle(), impl.weights[0].get_data_handle(),
                  description.weights_desc().get_size());
    }
  }
}

void LibraryProduct::run(int copy) {
  impl_->product.execute(impl_->stream, {{DNNL_ARG_SRC, impl_->x},
                                         {DNNL_ARG_WEIGHTS, impl_->weights[static_cast<std::size_t>(copy)]},
                                         {DNNL_ARG_DST, impl_->y}});
  impl_->stream.wait();
}

void LibraryProduct::set_x(const float* values) {
  dnnl::memory given(impl_->given, impl_->engine, const_cast<float*>(values));
  dnnl::reorder(given, impl_->x).execute(impl_->stream, given, impl_->x);
  impl_->stream.wait();
}

const float* LibraryProduct::y() {
  return static_cast<const float*>(impl_->y.get_data_handle());
}

}  // namespace staircase::bench

#else  // without the library

#include "common/base/error.h"

namespace staircase::bench {

struct LibraryProduct::Impl {};

std::string library_name() {
  return "";
}

void set_library_threads(int) {}

LibraryProduct::LibraryProduct(Device&, std::int64_t, std::int64_t, std::int64_t, const float*, int, DType) {
  throw Error("this program was built without oneDNN, so there is nothing to compare with");
}

void LibraryProduct::run(int) {}

void LibraryProduct::set_x(const float*) {}

const float* LibraryProduct::y() {
  return nullptr;
}

}  // namespace staircase::bench

#endif

namespace staircase::bench {

LibraryProduct::~LibraryProduct() = default;
LibraryProduct::LibraryProduct(LibraryProduct&&) noexcept = default;

}  // namespace staircase::bench
