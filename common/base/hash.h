// A number that stands for bytes: equal bytes have equal numbers, and other bytes most likely others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace staircase {

/// FNV-1a (Fowler, Noll and Vo). It finds mistakes, not attacks: two texts with the same hash are easy to
/// make.
class Hash {
 public:
  void add(std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) value_ = (value_ ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3;
  }
  void add(std::string_view text) { add(std::as_bytes(std::span(text.data(), text.size()))); }

  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325;
};

}  // namespace staircase
