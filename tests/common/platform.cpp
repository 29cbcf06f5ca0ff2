// What the system does for a program: files that are replaced as a whole, locks, time and standard streams.
#include "kernels/platform.h"

#include <doctest/doctest.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <system_error>
#include <thread>

#include "common/base/error.h"
#include "common/base/file.h"
#include "tests/temporary_folder.h"

namespace staircase {
namespace {

namespace fs = std::filesystem;

/// The number of files in a folder.
std::ptrdiff_t files_in(const fs::path& folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

TEST_CASE("a file that is replaced keeps its permissions, and a link stays a link") {
  const TemporaryFolder folder;
  const fs::path file = folder.write("a", "old"), link = folder.path() / "link";
  const fs::perms own = fs::perms::owner_read | fs::perms::owner_write | fs::perms::group_read;
  fs::permissions(file, own);
  fs::create_symlink("a", link);
  platform::replace_file(link, "new");
  CHECK(read_file(file) == "new");
  CHECK(fs::is_symlink(link));
  CHECK(fs::status(file).permissions() == own);
  platform::replace_file(folder.path() / "b", "");
  CHECK(read_file(folder.path() / "b") == "");
  CHECK(files_in(folder.path()) == 3);
}

TEST_CASE("a replacement that is not finished leaves the file, and its own part is gone") {
  const TemporaryFolder folder;
  const fs::path file = folder.write("a", "old"), part = folder.path() / "a.part";
  {
    platform::Replacement replacement(file, part);
    replacement.write(std::as_bytes(std::span("new", 3)));
    CHECK(fs::exists(part));
    CHECK_THROWS_AS(platform::Replacement(file, part), std::system_error);
  }
  CHECK(read_file(file) == "old");
  CHECK(files_in(folder.path()) == 1);
}

TEST_CASE("a lock is held once, also after another try, and its file goes with it") {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "lock";
  auto lock = platform::FileLock::try_hold(file);
  REQUIRE(lock);
  for (int i = 0; i < 2; ++i) {
    CHECK_FALSE(platform::FileLock::try_hold(file));
    CHECK(fs::exists(file));
  }
  lock.reset();
  CHECK_FALSE(fs::exists(file));
  CHECK(platform::FileLock::try_hold(file));
  CHECK_THROWS_AS(platform::FileLock::try_hold(folder.path() / "none/lock"), std::system_error);
}

TEST_CASE("the time is that of the place, and a variable of the environment has its new value") {
  const char* const set = std::getenv("TZ");
  const std::string before = set == nullptr ? "" : set;
  const auto hours_from_utc = [](const char* zone) {
    platform::set_environment("TZ", zone);
    tzset();
    std::tm here = platform::local_time();
    const std::time_t now = std::time(nullptr);
    return static_cast<double>(timegm(&here) - now) / 3600.0;
  };
  CHECK(hours_from_utc("AAA-5") == doctest::Approx(5.0).epsilon(0.001));
  CHECK(hours_from_utc("BBB7:30") == doctest::Approx(-7.5).epsilon(0.001));
  CHECK(std::getenv("TZ") == std::string("BBB7:30"));
  if (set == nullptr) {
    unsetenv("TZ");
  } else {
    setenv("TZ", before.c_str(), 1);
  }
  tzset();
}

#ifdef __linux__
TEST_CASE("the processors are those that this process may use") {
  const pid_t child = fork();
  if (child == 0) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    _exit(sched_setaffinity(0, sizeof one, &one) == 0 ? platform::processors() : 0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WEXITSTATUS(status) == 1);
}
#endif

TEST_CASE("a pipe is read to its end where a file may be one, and refused elsewhere") {
  const TemporaryFolder folder;
  const fs::path pipe = folder.path() / "pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  const std::string text(200'000, 'x');
  std::thread writer([&] { std::ofstream(pipe) << text; });
  CHECK(read_file_or_pipe(pipe) == text);
  writer.join();
  CHECK_THROWS_AS(read_file(pipe), Error);
  CHECK_THROWS_AS(read_file_or_pipe(folder.path()), Error);
}

TEST_CASE("no file gets the number of a standard stream that is closed, which still cannot be used") {
  const pid_t child = fork();
  if (child == 0) {
    for (int stream = 0; stream < 3; ++stream) close(stream);
    platform::reserve_standard_streams();
    char byte = 'x';
    const bool fails = read(0, &byte, 1) < 0 && write(1, &byte, 1) < 0 && write(2, &byte, 1) < 0;
    _exit(fails ? 7 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WEXITSTATUS(status) == 7);
}

}  // namespace
}  // namespace staircase
