// Runs a program as a person or a script would.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/temporary_folder.h"

namespace staircase {

struct ProgramRun {
  int status = -1;
  std::string out, err;

  /// `out` as JSON; a check that fails, with `err`, where it is none.
  nlohmann::json json() const;
};

/// Runs `program` in a shell: `arguments` as typed, redirections included. It must not crash.
ProgramRun run_program(const std::string& program, const std::string& arguments,
                       const std::string& input = "");

}  // namespace staircase
