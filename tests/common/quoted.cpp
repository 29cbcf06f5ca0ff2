#include "common/text/quoted.h"

#include <doctest/doctest.h>

namespace staircase {
namespace {

TEST_CASE("a text in quotes ends where it seems to end") {
  CHECK(quoted(" a") == R"(" a")");
  CHECK(quoted(" \"") == R"(" \"")");
  CHECK(quoted("\\") == R"("\\")");
  CHECK(quoted("\n\t") == R"("\n\x09")");
  CHECK(quoted("é ―") == "\"é ―\"");  // bytes beyond 127 are no control characters
}

}  // namespace
}  // namespace staircase
