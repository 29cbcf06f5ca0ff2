// Which GPU a process takes that mpirun has started beside others.
#include <doctest/doctest.h>

#include "common/parallel/mpi_ranks.h"

namespace staircase {
namespace {

TEST_CASE("each process of a machine takes the GPU of its number, among those that it may see") {
  CHECK(own_gpu({}, 0) == "0");
  CHECK(own_gpu({}, 3) == "3");
  CHECK(own_gpu("4,6,7", 0) == "4");
  CHECK(own_gpu("4,6,7", 1) == "6");
  CHECK(own_gpu("4,6,7", 2) == "7");
  CHECK(own_gpu("GPU-8932f937,GPU-1f22a253", 1) == "GPU-1f22a253");
}

TEST_CASE("a process without a GPU of its own sees none, and one that was given a GPU keeps it") {
  CHECK(own_gpu("4,6,7", 3) == "-1");
  CHECK(own_gpu("5", 0) == "5");
  CHECK(own_gpu("5", 2) == "5");
  CHECK(own_gpu("", 0) == "");  // hidden from the user's own programs as well
  CHECK(own_gpu("", 1) == "");
}

}  // namespace
}  // namespace staircase
