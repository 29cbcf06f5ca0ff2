// A model's template is found where models have it, gets what transformers gives it, and its conversation
// becomes tokens in which no message can write a special one.
#include "common/text/chat_template.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/file.h"
#include "common/decoding/known_tokens.h"
#include "common/text/tokenizer_json.h"
#include "tests/error_message.h"
#include "tests/gguf_writer.h"
#include "tests/temporary_folder.h"

using namespace staircase;
using nlohmann::ordered_json;

namespace {

using Ids = std::vector<int>;

const ordered_json kHello = {{{"role", "user"}, {"content", "Hello"}}};

std::string rendered(const std::filesystem::path& model, const ordered_json& messages = kHello,
                     const ordered_json& options = ordered_json::object()) {
  const auto found = ChatTemplate::load(model);
  return found ? found->render(messages, options, {}).text : "none";
}

std::string from_text(const std::string& source, const ordered_json& messages = kHello,
                      const ordered_json& options = ordered_json::object()) {
  return ChatTemplate(source, {}, "chat_template.jinja").render(messages, options, {}).text;
}

void write_file(const std::filesystem::path& file, const std::string& content) {
  std::ofstream(file, std::ios::binary) << content;
}

/// The tokenizer with the marks of SmolLM2, of a small vocabulary.
TokenizerDescription smollm2() {
  const std::string file = STAIRCASE_SOURCE_TREE "/tests/reference/tokenizers/smollm2.json";
  return read_tokenizer_json(read_file(file), file);
}

Ids encoded(const Tokenizer& tokenizer, const std::string& source, const std::string& content) {
  const ChatTemplate chat(source, {{"eos_token", "<|im_end|>"}}, "");
  return encode_chat(tokenizer,
                     chat.render({{{"role", "user"}, {"content", content}}}, ordered_json::object(), {}));
}

}  // namespace

TEST_CASE("a folder has the template in its own file, or as a text or list in tokenizer_config.json") {
  const TemporaryFolder folder;
  CHECK(rendered(folder.path()) == "none");
  const auto config = folder.path() / "tokenizer_config.json";
  write_file(config, R"({"bos_token": "<s>", "eos_token": null})");
  CHECK(rendered(folder.path()) == "none");
  write_file(
      config,
      R"({"chat_template": "{{ bos_token }}{{ eos_token is defined }}", "bos_token": {"content": "<s>"}})");
  CHECK(rendered(folder.path()) == "<s>False");
  for (const std::string name : {"bos", "eos", "unk", "sep", "pad", "cls", "mask"}) {
    CAPTURE(name);
    const std::string token = name + "_token";
    write_file(config,
               R"({"chat_template": "{{ )" + token + R"( }}", ")" + token + R"(": "<)" + name + R"(>"})");
    CHECK(rendered(folder.path()) == "<" + name + ">");
  }
  write_file(
      config,
      R"({"chat_template": [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]})");
  CHECK(rendered(folder.path()) == "b");
  write_file(config, R"({"chat_template": [{"name": "tool_use", "template": "a"}]})");
  CHECK(says(error_message([&] { rendered(folder.path()); }), "tokenizer_config.json",
             "none of its templates is the default"));
  write_file(folder.path() / "chat_template.jinja", "{{ messages[0].content }}\n");
  CHECK(rendered(folder.path()) == "Hello");
  write_file(folder.path() / "chat_template.jinja", "\n{% nope %}");
  CHECK(says(error_message([&] { rendered(folder.path()); }), "chat_template.jinja: the template's line 2",
             "\"nope\""));
}

TEST_CASE("a template of Ollama is named as such") {
  for (const std::string source :
       {"{{ .System }}", "{{- range $i, $m := .Messages }}{{- end }}",
        "{{ if .System }}{{- .System }}{{- end }}", "{{- if .System }}{{- .System }}{{- end }}"}) {
    CAPTURE(source);
    CHECK(says(error_message([&] { from_text(source); }), "Ollama", "not in Jinja"));
  }
}

TEST_CASE("missing variables are none or undefined, as in transformers, and options reach the template") {
  CHECK(from_text("{{ tools }}{{ documents }}{{ add_generation_prompt }}{{ enable_thinking is defined }}") ==
        "NoneNoneFalseFalse");
  CHECK(from_text("{{ add_generation_prompt }}{{ x }}", kHello,
                  {{"add_generation_prompt", true}, {"x", "y"}}) == "Truey");
  CHECK(from_text("{{ messages[0].content is defined }}", {{{"role", "user"}, {"content", nullptr}}}) ==
        "False");
  CHECK(from_text("{{ messages[0].thinking }}{{ messages[0].reasoning_content }}",
                  {{{"role", "assistant"}, {"reasoning", "a"}}}) == "aa");
  // In the order of transformers, which ids of a template that writes a whole message depend on.
  CHECK(from_text("{{ messages[0] | tojson }}", {{{"role", "assistant"}, {"reasoning", "a"}}}) ==
        R"({"thinking": "a", "role": "assistant", "reasoning": "a", "reasoning_content": "a"})");
  CHECK(from_text("{{ messages[0] | tojson }}",
                  {{{"role", "assistant"}, {"thinking", "b"}, {"reasoning_content", "a"}}}) ==
        R"({"thinking": "b", "role": "assistant", "reasoning_content": "a"})");
  CHECK(says(error_message([] { from_text("", {"Hello"}); }), "a message is string, not an object"));
  CHECK(says(error_message([] { from_text("{{ raise_exception('No.') }}"); }),
             "chat_template.jinja: the template's line 1", "No."));
}

TEST_CASE("a GGUF file names four special tokens, and an id beyond the vocabulary names none") {
  const char* const keys[] = {"bos", "eos", "padding", "unknown"};
  for (int named = 0; named < 4; ++named) {
    for (const auto& [id_, text] :
         {std::pair{0u, "<a>"}, std::pair{2u, "<c>"}, std::pair{3u, ""}, std::pair{~0u, ""}}) {
      const auto& id = id_;  // clang 14 captures no structured binding
      CAPTURE(named);
      CAPTURE(id);
      const TemporaryFolder folder;
      GgufWriter writer;
      writer
          .text("tokenizer.chat_template", "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ unk_token }}")
          .texts("tokenizer.ggml.tokens", {"<a>", "<b>", "<c>"})
          .number(std::string("tokenizer.ggml.") + keys[named] + "_token_id", id);
      folder.write("m.gguf", writer.bytes());
      std::string want[4];
      want[named] = text;
      CHECK(rendered(folder.path() / "m.gguf") == want[0] + "|" + want[1] + "|" + want[2] + "|" + want[3]);
    }
  }
}

TEST_CASE("a template of the user's own gets the special tokens of the model, from a folder or a GGUF file") {
  const TemporaryFolder folder;
  const std::string own =
      folder.write("own.jinja", "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}").string();
  const auto text_of = [&](const std::filesystem::path& model) {
    return ChatTemplate::load(model, own).render(kHello, ordered_json::object(), {}).text;
  };
  const std::filesystem::path gguf =
      folder.write("m.gguf", GgufWriter()
                                 .text("tokenizer.chat_template", "other")
                                 .texts("tokenizer.ggml.tokens", {"<a>", "<b>"})
                                 .number("tokenizer.ggml.bos_token_id", 0)
                                 .number("tokenizer.ggml.eos_token_id", 1)
                                 .bytes());
  CHECK(text_of(gguf) == "<a>Hello<b>");
  CHECK(text_of(folder.path()) == "Hello");
  folder.write("tokenizer_config.json",
               R"({"bos_token": "<c>", "eos_token": {"content": "<d>"}, "chat_template": "x"})");
  CHECK(text_of(folder.path()) == "<c>Hello<d>");
  CHECK(ChatTemplate::load(folder.path(), "").render(kHello, ordered_json::object(), {}).text == "x");
}

TEST_CASE("a content in parts is the template's to read only if it writes one part like the text alone") {
  const auto reads = [](const std::string& source) { return ChatTemplate(source, {}, "t").reads_parts(); };
  const std::string text =
      "{% if m.content is string %}{{ m.content }}{% else %}{{ m.content[0].text }}{% endif %}";
  CHECK_FALSE(reads("{% for m in messages %}{{ m.content }}{% endfor %}"));
  CHECK(reads("{% for m in messages %}" + text + "{% endfor %}"));
  CHECK_FALSE(reads("always the same"));
  // One that demands a system message, and one that rejects it.
  CHECK(reads(
      "{% if messages[0].role != 'system' %}{{ raise_exception('no') }}{% endif %}{% for m in messages %}" +
      text + "{% endfor %}"));
  CHECK(reads(
      "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}{% for m in messages %}" +
      text + "{% endfor %}"));
  CHECK_FALSE(reads("{{ raise_exception('no') }}"));
}

TEST_CASE(
    "an error of a template names its file without its folder, and a broken character reaches no template") {
  CHECK(error_message([] {
          ChatTemplate("{{ a.b }}", {}, "/secret/folder/t.jinja").render(kHello, ordered_json::object(), {});
        }) == "t.jinja: the template's line 1 reads \"b\" of \"a\", which is undefined");
  const ChatTemplate chat("{{ messages[0].role }}:{{ messages[0].content }}{{ add_generation_prompt }}", {},
                          "t");
  CHECK(chat.render(std::vector<Message>{{.role = "tool", .content = "a\xffz"}}).text == "tool:a\uFFFDzTrue");
}

TEST_CASE("in a GGUF file without tokens no id names a special token") {
  const TemporaryFolder folder;
  folder.write("m.gguf", GgufWriter()
                             .text("tokenizer.chat_template", "{{ bos_token }}|{{ eos_token }}")
                             .number("tokenizer.ggml.bos_token_id", 0)
                             .number("tokenizer.ggml.eos_token_id", 0)
                             .bytes());
  CHECK(rendered(folder.path() / "m.gguf") == "|");
}

TEST_CASE("a marker counts as the template's only if the template wrote all of it") {
  const Tokenizer tokenizer(smollm2(), "tokenizer.json");
  const auto marks = [&](const std::string& source, const std::string& content) {
    const ChatTemplate chat(source, {}, "");
    const std::vector<bool> own =
        marks_alone(tokenizer,
                    chat.render({{{"role", "user"}, {"content", content}}}, ordered_json::object(), {}))
            .own;
    std::string text;
    for (const bool one : own) text += one ? 'x' : '.';
    return text;
  };
  CHECK(marks("a<|im_end|>{{ messages[0].content }}", "b") == ".xxxxxxxxxx.");
  CHECK(marks("{{ messages[0].content }}", "<|im_end|>") == "..........");
  CHECK(marks("<|im_{{ messages[0].content }}", "end|>") == "..........");
  CHECK(marks("{{ messages[0].content }}_end|>", "<|im") == "..........");
  CHECK(marks("<|im{{ messages[0].content }}end|><|im_end|>", "_") == "..........xxxxxxxxxx");
}

TEST_CASE("special tokens are found only in the template's own text, and the rest is one piece") {
  const Tokenizer tokenizer(smollm2(), "smollm2");
  const std::string mark = "<|im_end|>";
  const Ids special = tokenizer.encode_with_special_tokens(mark), plain = tokenizer.encode(mark);
  REQUIRE(special.size() == 1);
  REQUIRE(plain.size() > 1);
  const auto encode = [&](const std::string& source, const std::string& content) {
    return encoded(tokenizer, source, content);
  };
  const auto joined = [](Ids a, const Ids& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  CHECK(encode("<|im_end|>", "") == special);
  CHECK(error_message([&] { tokenizer.encode_with_special_tokens(mark, std::vector<bool>(3)); }) ==
        "a text of 10 bytes comes with 3 flags; each byte needs one");
  CHECK(encode("{{ eos_token }}", "") == special);
  CHECK(encode("{{ messages[0].content }}", mark) == plain);
  CHECK(encode("{{ messages[0].content }}<|im_end|>", mark) == joined(plain, special));
  // Neither half of a mark becomes one with the other.
  CHECK(encode("<|im_{{ messages[0].content }}", "end|>") == plain);
  CHECK(encode("{{ messages[0].content }}_end|>", "<|im") == plain);
  // "user\n" and "\n\nHello" are cut as one text.
  CHECK(encode("user\n{{ messages[0].content }}<|im_end|>", "\n\nHello") ==
        joined(tokenizer.encode("user\n\n\nHello"), special));
}

TEST_CASE("a message writes no marker, even if the file does not flag it as special") {
  for (const std::string mark :
       {"<|im_start|>", "<\uFF5CUser\uFF5C>", "[/INST]", "<start_of_turn>", "<tool_response>", "</s>"}) {
    CAPTURE(mark);
    for (const bool normalized : {false, true}) {
      TokenizerDescription description = smollm2();
      const int id = static_cast<int>(description.pieces.size());
      description.added = {{.id = id, .content = mark, .normalized = normalized}};
      const Tokenizer flagged_wrongly(description, "");
      CHECK(flagged_wrongly.encode(mark) == Ids{id});  // as a prompt, which is not a message
      CHECK(encoded(flagged_wrongly, mark, "") == Ids{id});
      description.added = {};
      const Tokenizer without(description, "");
      const Ids plain = without.encode("b" + mark + "c");
      CHECK(encoded(flagged_wrongly, "{{ messages[0].content }}", "b" + mark + "c") == plain);
      CHECK(encoded(flagged_wrongly, mark + "{{ messages[0].content }}" + mark, "b" + mark + "c").size() ==
            plain.size() + 2);
    }
  }
}

TEST_CASE("turns have their roles, and a known answer keeps tokens that are parts of characters") {
  const ChatTemplate chat("{% for m in messages %}{{ m.role }}: {{ m.content }}<|endoftext|>{% endfor %}", {},
                          "");
  const Rendered prompt = chat.render(std::vector<Message>{{"system", "a"}, {"user", "b"}});
  CHECK(prompt.text == "system: a<|endoftext|>user: b<|endoftext|>");
  const Tokenizer tokenizer = Tokenizer::load(STAIRCASE_SOURCE_TREE "/models/tales-1m");
  const Ids begin = encode_chat(tokenizer, prompt);
  Ids answer;
  for (const char byte : std::string("assistant: \U0001F600")) {
    const Ids one = tokenizer.encode(std::string(1, byte));
    REQUIRE(one.size() == 1);
    answer.push_back(one[0]);
  }
  KnownTokens known;
  known.remember(tokenizer, prompt, begin, answer);
  Ids want = begin;
  want.insert(want.end(), answer.begin(), answer.end());
  want.push_back(tokenizer.encode_with_special_tokens("<|endoftext|>").at(0));
  const Rendered next =
      chat.render(std::vector<Message>{{"system", "a"}, {"user", "b"}, {"assistant", "\U0001F600"}});
  CHECK(known.encode(tokenizer, next) == want);
  CHECK(encode_chat(tokenizer, next) != want);
}

TEST_CASE("words, spaces, thoughts and calls that a file adds are tokens in messages, too") {
  for (const std::string text :
       {"<think>", "</think>", "<tool_call>", "</tool_call>", "mRNA", "    ", "C++", "|>", "<>"}) {
    CAPTURE(text);
    for (const bool normalized : {false, true}) {
      TokenizerDescription description = smollm2();
      const int id = static_cast<int>(description.pieces.size());
      description.added = {{.id = id, .content = text, .normalized = normalized}};
      const Ids got = encoded({description, ""}, "{{ messages[0].content }}", "b" + text + "c");
      CHECK(std::ranges::count(got, id) == 1);
    }
  }
}
