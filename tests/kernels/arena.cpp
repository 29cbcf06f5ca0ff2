// Memory for many pieces that live long.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/platform.h"

namespace staircase {
namespace {

struct Piece {
  std::shared_ptr<void> memory;
  std::size_t bytes;
  unsigned char mark;

  bool is_whole() const {
    const auto* const first = static_cast<const unsigned char*>(memory.get());
    return std::all_of(first, first + bytes, [&](unsigned char byte) { return byte == mark; });
  }
};

TEST_CASE("pieces of an arena begin at cache lines, and none overlaps another") {
  platform::Arena arena;
  std::vector<Piece> pieces;
  constexpr std::size_t kMega = std::size_t{1} << 20;
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{200'063}, 2 * kMega, kMega + 65, 20 * kMega, kMega, 12 * kMega,
        std::size_t{0}, 40 * kMega, 3 * kMega, std::size_t{200'000}}) {
    const auto mark = static_cast<unsigned char>(pieces.size() + 1);
    pieces.push_back({arena.allocate(bytes), bytes, mark});
    CHECK(reinterpret_cast<std::uintptr_t>(pieces.back().memory.get()) % 64 == 0);
    std::memset(pieces.back().memory.get(), mark, bytes);
  }
  for (const Piece& piece : pieces) CHECK(piece.is_whole());
  // Those of a block live on when others of it are gone, and so does the arena.
  for (const std::size_t gone : {0, 1, 2, 4, 6}) pieces[gone] = {std::make_shared<char>(), 0, 0};
  pieces.push_back({arena.allocate(200'007), 200'007, 99});
  std::memset(pieces.back().memory.get(), 99, 200'007);
  for (const Piece& piece : pieces) CHECK(piece.is_whole());
}

TEST_CASE(
    "an arena outlived by its pieces, or reused after the last of them is gone, leaves their memory alone") {
  std::shared_ptr<void> piece;
  {
    platform::Arena arena;
    piece = arena.allocate(200'000);
  }
  std::memset(piece.get(), 1, 200'000);
  platform::Arena arena;
  for (int i = 0; i < 100; ++i) std::memset(arena.allocate(200'000).get(), i, 200'000);
}

}  // namespace
}  // namespace staircase
