// A hash of bytes: equal bytes have equal hashes, and different bytes almost always have different ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace staircase {

/// FNV-1a (Fowler, Noll and Vo). It detects mistakes, not attacks: two texts with the same hash are easy to
/// construct.
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
