#include "tests/run_program.h"

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

namespace staircase {

nlohmann::json ProgramRun::json() const {
  INFO(err);
  nlohmann::json parsed = nlohmann::json::parse(out, nullptr, false);
  REQUIRE_MESSAGE(!parsed.is_discarded(), "this is not JSON: ", out);
  return parsed;
}

ProgramRun run_program(const std::string& program, const std::string& arguments, const std::string& input) {
  const auto read = [](const std::filesystem::path& file) {
    std::ifstream stream(file, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  };
  const TemporaryFolder folder;
  const std::string path = folder.path().string();
  std::ofstream(folder.path() / "in", std::ios::binary) << input;
  const std::string command =
      fmt::format("'{}' <{}/in >{}/out 2>{}/err {}", program, path, path, path, arguments);
  const int status = std::system(command.c_str());
  ProgramRun run{WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(folder.path() / "out"),
                 read(folder.path() / "err")};
  INFO(arguments);
  INFO(run.err);
  CHECK(WIFEXITED(status));
  const std::string what = "what():  ";  // how a program of GCC or Clang reports an uncaught exception
  const auto uncaught = run.err.find("terminate called");
  if (uncaught == std::string::npos) {
    CHECK(run.status <= 2);
  } else {
    const auto said = run.err.find(what, uncaught);
    const auto begin = said == std::string::npos ? uncaught : said + what.size();
    FAIL_CHECK(
        "the program threw, and did not catch: " << run.err.substr(begin, run.err.find('\n', begin) - begin));
  }
  return run;
}

}  // namespace staircase
