// The few functions of Highway's library that its headers call. Debian ships this library only for its own
// processors, not for WebAssembly.
#include <hwy/aligned_allocator.h>
#include <hwy/base.h>
#include <hwy/targets.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace hwy {

std::int64_t SupportedTargets() {
  return HWY_WASM;
}

void* AllocateAlignedBytes(std::size_t bytes, AllocPtr, void*) {
  return std::aligned_alloc(HWY_ALIGNMENT, RoundUpTo(bytes, HWY_ALIGNMENT));
}

void FreeAlignedBytes(const void* pointer, FreePtr, void*) {
  std::free(const_cast<void*>(pointer));
}

void Abort(const char* file, int line, const char* format, ...) {
  std::va_list values;
  va_start(values, format);
  std::vfprintf(stderr, format, values);
  va_end(values);
  std::fprintf(stderr, " (%s:%d)\n", file, line);
  std::abort();
}

}  // namespace hwy
