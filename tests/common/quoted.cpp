#include "common/base/quoted.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "common/base/message.h"
#include "tests/captured.h"

namespace staircase {
namespace {

TEST_CASE("a text in quotes ends where it seems to end") {
  CHECK(quoted(" a") == R"(" a")");
  CHECK(quoted(" \"") == R"(" \"")");
  CHECK(quoted("\\") == R"("\\")");
  CHECK(quoted("\n\t") == R"("\n\t")");
  CHECK(quoted("é ―") == "\"é ―\"");  // bytes beyond 127 are not control characters
  CHECK(quoted("é\xff") == "\"é�\"");
}

TEST_CASE("no text makes a terminal do anything") {
  std::string all = "a";
  for (char c = 1; c < ' '; ++c) all += c;
  all += "\x7f";
  for (int c = 0x80; c < 0xa0; ++c) all += {'\xc2', static_cast<char>(c)};
  const auto is_harmless = [](std::string_view text) {
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (static_cast<unsigned char>(text[i]) < ' ' || text[i] == '\x7f') return false;
      if (text[i] == '\xc2' && static_cast<unsigned char>(text[i + 1]) < 0xa0) return false;
    }
    return true;
  };
  CHECK(!is_harmless(all));
  const std::string& text = all;
  for (const std::string& shown : {quoted(text), quoted(text, 20), typed(text), printable(text)}) {
    CAPTURE(shown);
    CHECK(is_harmless(shown));
    CHECK(shown.find('a') < 2);
  }
  CHECK(quoted("\x1b[31m\x7f\xc2\x9b") == R"("\u001b[31m\u007f\u009b")");
  CHECK(printable("a\x1b\nb") == R"(a\u001b\nb)");
  CHECK(printable("a\x1b\nb", true) == "a\\u001b\nb");
  CHECK(printable("\x9b"
                  "31m \xff\xc3") == "�31m ��");  // a byte that some terminals obey
  CHECK(printable("\"\\/") == "\"\\/");
  CHECK(printable("\xc2\xa0 \xc3\x9b") == "\xc2\xa0 \xc3\x9b");  // of characters that others begin with
}

TEST_CASE("a typed value is printed unchanged if it is one short word, otherwise in quotes and shortened") {
  CHECK(typed("x") == "x");
  CHECK(typed("Fox,é") == "Fox,é");
  CHECK(typed("") == R"("")");
  CHECK(typed("a b") == R"("a b")");
  CHECK(typed("a\"") == R"("a\"")");
  CHECK(typed("\x1b[31m") == R"("\u001b[31m")");
  CHECK(typed("\xff") == "\"�\"");
  CHECK(typed(std::string(255, 'x')) == std::string(255, 'x'));
  CHECK(typed(std::string(256, 'x')) == fmt::format("\"{:x<80}...\"", ""));
  CHECK(typed(fmt::format("{0:x<79}é{0:x<999}", "")) == fmt::format("\"{:x<79}...\"", ""));
}

TEST_CASE("no message takes control characters to the terminal, and a warning is one line") {
  Captured captured(stderr);
  say("one\ntwo \x1b[31m");
  warn("a file {}", "x\n\x7fy");
  CHECK(captured.text() == "one\ntwo \\u001b[31m\nwarning: a file x\\n\\u007fy\n");
}

TEST_CASE("of three variables for the locale, the first that is not empty counts") {
  const char* const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
  std::string before[3];
  for (int i = 0; i < 3; ++i) {
    const char* const set = std::getenv(names[i]);
    before[i] = set == nullptr ? "" : set;
    setenv(names[i], "", 1);
  }
  CHECK(printable("×") == "×");
  for (int i = 2; i >= 0; --i) {
    CAPTURE(names[i]);
    setenv(names[i], "C", 1);
    CHECK(printable("×") == "x");
    setenv(names[i], "C.UTF-8", 1);
    CHECK(printable("×") == "×");
  }
  for (int i = 0; i < 3; ++i) setenv(names[i], before[i].c_str(), 1);  // an empty one counts as none
}

TEST_CASE("drawing characters are ASCII if the locale has no UTF-8, and text is unchanged") {
  const char* const set = std::getenv("LC_ALL");
  const std::string before = set == nullptr ? "" : set;
  const std::string drawn = "├─ \" Über\"  × -3.5\n│  ■ -1.5  ███▉▊▋▌▍▎▏";
  for (const auto& [locale_, expected] :
       {std::pair("C", "|- \" Über\"  x -3.5\n|  = -1.5  ###"),
        std::pair("de_DE.ISO-8859-1", "|- \" Über\"  x -3.5\n|  = -1.5  ###"),
        std::pair("C.UTF-8", drawn.c_str()), std::pair("de_DE.utf8", drawn.c_str())}) {
    const auto& locale = locale_;  // clang 14 captures no structured binding
    CAPTURE(locale);
    setenv("LC_ALL", locale, 1);
    CHECK(printable(drawn, true) == expected);
  }
  setenv("LC_ALL", before.c_str(), 1);  // an empty one counts as none
}

}  // namespace
}  // namespace staircase
