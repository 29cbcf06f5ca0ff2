// Fibers: functions with their own stacks that pass control to each other. Each thread of an emulated block
// is one.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <cstdlib>
#include <functional>
#include <memory>

#if defined(__SANITIZE_ADDRESS__)
#define CUDA_EMULATION_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CUDA_EMULATION_ASAN 1
#endif
#endif
#ifdef CUDA_EMULATION_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace cuda_emulation {

/// Without a body it represents the program's existing stack.
class Fiber {
 public:
  Fiber() = default;
  explicit Fiber(std::function<void()> body)
      : body_(std::move(body)), stack_(std::make_unique_for_overwrite<std::byte[]>(kStackBytes)) {
    bottom_ = stack_.get();
    size_ = kStackBytes;
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Whether the address is on its stack.
  bool holds(const void* address) const {
    return address >= bottom_ && address < static_cast<const std::byte*>(bottom_) + size_;
  }

  /// Stops here, on `from`, and goes on where `to` stopped. The body of a fiber must never return.
  ///
  /// ucontext can begin on a new stack, but calls the kernel about signal masks at every switch. The
  /// compiler's own setjmp and longjmp, which save only three registers, are a hundred times faster.
  [[gnu::noinline]] static void change(Fiber& from, Fiber& to) {
#ifdef CUDA_EMULATION_ASAN
    __sanitizer_start_switch_fiber(&from.fake_stack_, to.bottom_, to.size_);
#endif
    if (__builtin_setjmp(from.registers_) == 0) {
      resume(to, from);
      asm volatile("");  // no tail call: this frame must live until control returns to it
    }
#ifdef CUDA_EMULATION_ASAN
    __sanitizer_finish_switch_fiber(from.fake_stack_, nullptr, nullptr);
#endif
  }

 private:
  static constexpr std::size_t kStackBytes = std::size_t{256} << 10;

#ifdef CUDA_EMULATION_ASAN
  __attribute__((no_sanitize_address))
#endif
  [[gnu::noinline]] static void
  resume(Fiber& to, Fiber& from) {
    if (!to.body_ || to.started_) __builtin_longjmp(to.registers_, 1);
    to.started_ = true;
    beginning_ = &to;
    before_ = &from;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack = {.ss_sp = to.bottom_, .ss_flags = 0, .ss_size = to.size_};
    context.uc_link = nullptr;
    makecontext(&context, begin, 0);
    setcontext(&context);
  }

  static void begin() {
    Fiber& self = *beginning_;
#ifdef CUDA_EMULATION_ASAN
    // The first switch of all finds the program's own stack.
    const void* bottom = nullptr;
    std::size_t size = 0;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
    if (before_->bottom_ == nullptr) {
      before_->bottom_ = const_cast<void*>(bottom);
      before_->size_ = size;
    }
#endif
    self.body_();
    std::abort();
  }

  inline static Fiber* beginning_ = nullptr;
  inline static Fiber* before_ = nullptr;

  std::function<void()> body_;
  std::unique_ptr<std::byte[]> stack_;
  void* bottom_ = nullptr;
  std::size_t size_ = 0;
  bool started_ = false;
  void* registers_[5] = {};
  [[maybe_unused]] void* fake_stack_ = nullptr;  // AddressSanitizer's
};

}  // namespace cuda_emulation
