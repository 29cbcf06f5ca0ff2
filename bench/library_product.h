// The yardstick: the same product computed by a library, oneDNN, if the build found it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device.h"

namespace staircase::bench {

/// The name and version of the library, such as "oneDNN 2.6.3"; empty if it is not built in.
std::string library_name();

/// Sets the number of threads that the library uses.
void set_library_threads(int threads);

/// Computes y = x W with the library: x [rows, in], W [in, out], y [rows, out]. x and W are float32 or
/// bfloat16; y is float32. The weights have the layout that the library prefers for this number of rows
/// ("format any").
class LibraryProduct {
 public:
  /// Converts `weights` [in, out], row-major, to `copies` matrices in the library's layout. The device
  /// allocates them, so they get the same huge pages as its own weights.
  LibraryProduct(Device& device, std::int64_t rows, std::int64_t in, std::int64_t out, const float* weights,
                 int copies = 1, DType dtype = DType::kFloat32);
  ~LibraryProduct();
  LibraryProduct(LibraryProduct&&) noexcept;

  /// Multiplies x by copy number `copy` of the weights.
  void run(int copy = 0);

  /// Sets x, [rows, in].
  void set_x(const float* values);
  /// Returns y [rows, out].
  const float* y();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace staircase::bench
