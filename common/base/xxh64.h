// A checksum that takes less time than reading the bytes: XXH64.
// Specification: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace staircase {

/// Returns the hash of `bytes` with this seed. It detects mistakes, not attacks. Four independent sums let
/// the processor start a multiplication in every cycle.
inline std::uint64_t xxh64(std::span<const std::byte> bytes, std::uint64_t seed = 0) {
  static constexpr std::uint64_t p1 = 0x9e3779b185ebca87, p2 = 0xc2b2ae3d27d4eb4f, p3 = 0x165667b19e3779f9,
                                 p4 = 0x85ebca77c2b2ae63, p5 = 0x27d4eb2f165667c5;
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  const auto next = [&]<typename Word>(Word word) -> std::uint64_t {
    std::memcpy(&word, at, sizeof word);
    at += sizeof word;
    left -= sizeof word;
    return word;
  };
  const auto added = [](std::uint64_t sum, std::uint64_t word) {
    return std::rotl(sum + word * p2, 31) * p1;
  };

  std::uint64_t hash = seed + p5;
  if (left >= 32) {
    std::array<std::uint64_t, 4> sums{seed + p1 + p2, seed + p2, seed, seed - p1};
    while (left >= 32) {
      for (std::uint64_t& sum : sums) sum = added(sum, next(std::uint64_t{}));
    }
    hash = std::rotl(sums[0], 1) + std::rotl(sums[1], 7) + std::rotl(sums[2], 12) + std::rotl(sums[3], 18);
    for (const std::uint64_t sum : sums) hash = (hash ^ added(0, sum)) * p1 + p4;
  }
  hash += bytes.size();
  while (left >= 8) hash = std::rotl(hash ^ added(0, next(std::uint64_t{})), 27) * p1 + p4;
  if (left >= 4) hash = std::rotl(hash ^ next(std::uint32_t{}) * p1, 23) * p2 + p3;
  while (left > 0) hash = std::rotl(hash ^ next(std::uint8_t{}) * p5, 11) * p1;
  hash = (hash ^ hash >> 33) * p2;
  hash = (hash ^ hash >> 29) * p3;
  return hash ^ hash >> 32;
}

}  // namespace staircase
