// Renders templates for tests/differential/templates.py and chat_tokens.py. Each line of the input is an
// object with `template` (a file) or `source`, `data`, `own` and `now` (seconds since 1970); each line of the
// output one with `text` or `error`. With `tokenizer`, a tokenizer.json, the messages are prepared as those
// of a chat, and the output has the `ids` of the text, too.
#include <cstdio>
#include <ctime>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/text/chat_template.h"
#include "common/text/jinja.h"
#include "common/text/tokenizer_json.h"

int main() {
  using namespace staircase;
  std::map<std::string, Tokenizer> tokenizers;
  for (std::string line; std::getline(std::cin, line);) {
    const auto request = nlohmann::ordered_json::parse(line);
    nlohmann::json reply;
    try {
      const std::time_t now = request["now"].get<std::time_t>();
      const auto path = request.value("template", "");
      const auto own = request["own"].get<std::map<std::string, std::string>>();
      const std::string source =
          request.contains("source") ? request["source"].get<std::string>() : read_file(path);
      if (!request.contains("tokenizer")) {
        reply["text"] = JinjaTemplate(source).render({request["data"], own, *std::gmtime(&now)}).text;
      } else {
        const auto file = request["tokenizer"].get<std::string>();
        if (!tokenizers.contains(file)) {
          tokenizers.emplace(file, Tokenizer(read_tokenizer_json(read_file(file), file), file));
        }
        nlohmann::ordered_json options = request["data"];
        options.erase("messages");
        const Rendered rendered =
            ChatTemplate(source, own, path).render(request["data"]["messages"], options, *std::gmtime(&now));
        reply = {{"text", rendered.text}, {"ids", encode_chat(tokenizers.at(file), rendered)}};
      }
    } catch (const Error& error) {
      reply["error"] = error.what();
    }
    std::puts(reply.dump(-1, ' ', true).c_str());
  }
}
