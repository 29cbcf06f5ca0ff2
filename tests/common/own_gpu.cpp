// Which GPU a process takes that mpirun has started beside others.
#include <doctest/doctest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "common/parallel/mpi_ranks.h"
#include "common/parallel/ranks.h"

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

TEST_CASE("Open MPI and MPICH each name the number of copies, and the number of this one in two ways") {
  const char* const names[] = {
      "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_SIZE", "PMI_RANK",
      "MPI_LOCALRANKID"};
  std::map<std::string, std::string> before;
  for (const char* name : names) {
    if (const char* const value = std::getenv(name)) before[name] = value;
    unsetenv(name);
  }
  CHECK(launched_size() == 1);
  CHECK(launched_rank() == 0);
  CHECK(launched_local_rank() == 0);
  for (const int first : {3, 0}) {  // with both, Open MPI's count
    setenv(names[first], first == 3 ? "8" : "6", 1);
    setenv(names[first + 1], first == 3 ? "7" : "5", 1);
    setenv(names[first + 2], first == 3 ? "3" : "2", 1);
    CHECK(launched_size() == (first == 3 ? 8 : 6));
    CHECK(launched_rank() == (first == 3 ? 7 : 5));
    CHECK(launched_local_rank() == (first == 3 ? 3 : 2));
  }
  for (const char* name : names) {
    unsetenv(name);
    if (before.contains(name)) setenv(name, before[name].c_str(), 1);
  }
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
