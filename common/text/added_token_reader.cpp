#include "common/text/added_token_reader.h"

namespace staircase {

AddedToken read_added_token(const JsonValue& token, int id) {
  token.allow({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special", "__type"});
  const std::string& content = token["content"].text();
  if (content.empty()) token["content"].refuse("which is empty");
  return {.id = id,
          .content = content,
          .special = token["special"].boolean(false),
          .normalized = token["normalized"].boolean(!token["special"].boolean(false)),
          .single_word = token["single_word"].boolean(false),
          .lstrip = token["lstrip"].boolean(false),
          .rstrip = token["rstrip"].boolean(false)};
}

void add_token(const AddedToken& token, const std::string& file, TokenizerDescription& description) {
  const auto index = static_cast<std::size_t>(token.id);
  const auto refuse = [&](const std::string& other) {
    if (!other.empty() && other != token.content) {
      throw Error("{}: the added token {} has the id {}, which is that of {}", file, quote(token.content),
                  token.id, quote(other));
    }
  };
  if (index < description.pieces.size()) refuse(description.pieces[index]);
  for (AddedToken& other : description.added) {
    if (other.id != token.id) continue;
    refuse(other.content);
    return;
  }
  description.added.push_back(token);
}

}  // namespace staircase
