// Renders templates for tests/differential/templates.py. Each line of the input is an object with `template`
// (a file), `data`, `own` and `now` (seconds since 1970); each line of the output one with `text` or `error`.
#include <cstdio>
#include <ctime>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/text/jinja.h"

int main() {
  using namespace staircase;
  for (std::string line; std::getline(std::cin, line);) {
    const auto request = nlohmann::ordered_json::parse(line);
    nlohmann::json reply;
    try {
      const std::time_t now = request["now"].get<std::time_t>();
      const JinjaTemplate parsed(read_file(request["template"].get<std::string>()));
      const auto own = request["own"].get<std::map<std::string, std::string>>();
      reply["text"] = parsed.render({request["data"], own, *std::gmtime(&now)}).text;
    } catch (const Error& error) {
      reply["error"] = error.what();
    }
    std::puts(reply.dump(-1, ' ', true).c_str());
  }
}
