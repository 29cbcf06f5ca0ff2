#include "common/program/line_editor.h"

#include <array>
#include <cstdio>
#include <iostream>
#include <string_view>

#if STAIRCASE_LIBEDIT
#include <histedit.h>
#include <langinfo.h>
#include <unistd.h>

#include <clocale>
#endif

namespace staircase {

#if STAIRCASE_LIBEDIT

namespace {

// In this mode a terminal puts markers around pasted text, so its line breaks end no line.
constexpr const char *kPasteOn = "\x1b[?2004h", *kPasteOff = "\x1b[?2004l";
constexpr std::string_view kPasteEnd = "\x1b[201~";

/// Lets the library read characters of several bytes even if no locale is set.
void read_utf8() {
  std::setlocale(LC_CTYPE, "");
  if (std::string_view(nl_langinfo(CODESET)) != "UTF-8") std::setlocale(LC_CTYPE, "C.UTF-8");
}

void write_to_terminal(const char* text) {
  std::fputs(text, stdout);
  std::fflush(stdout);
}

/// Bound to the marker at the beginning of a paste: takes everything up to the marker at its end.
unsigned char paste(EditLine* editor, int /*key*/) {
  std::string text;
  char byte = 0;
  while (!text.ends_with(kPasteEnd)) {
    if (read(STDIN_FILENO, &byte, 1) != 1) return CC_EOF;
    text += byte;
  }
  text.resize(text.size() - kPasteEnd.size());
  std::string lines;  // every line break as \n
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool ends_line = text[i] == '\r';
    if (ends_line && i + 1 < text.size() && text[i + 1] == '\n') ++i;
    lines += ends_line ? '\n' : text[i];
  }
  return el_insertstr(editor, lines.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
}

/// Bound to Ctrl-C.
unsigned char discard(EditLine* editor, int /*key*/) {
  const LineInfo* const line = el_line(editor);
  el_cursor(editor, static_cast<int>(line->lastchar - line->cursor));
  el_deletestr(editor, static_cast<int>(line->lastchar - line->buffer));
  return CC_REFRESH;
}

}  // namespace

struct LineEditor::Impl {
  EditLine* editor;
  History* history = history_init();
  std::string prompt = {};

  Impl() {
    read_utf8();
    editor = el_init("staircase", stdin, stdout, stderr);
    HistEvent event;
    ::history(history, &event, H_SETSIZE, 500);
    el_set(editor, EL_HIST, ::history, history);
    el_set(editor, EL_CLIENTDATA, this);
    el_set(
        editor, EL_PROMPT, +[](EditLine* its_editor) {
          Impl* impl = nullptr;
          el_get(its_editor, EL_CLIENTDATA, &impl);
          return impl->prompt.data();
        });
    el_set(editor, EL_EDITOR, "emacs");
    el_set(editor, EL_ADDFN, "paste", "Takes a text with its line breaks", paste);
    el_set(editor, EL_ADDFN, "discard", "Discards what is typed", discard);
    el_set(editor, EL_BIND, "\\e[200~", "paste", nullptr);
    el_set(editor, EL_BIND, "^C", "discard", nullptr);
    el_set(editor, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    // Ctrl-C is a key here, and a pasted CR LF differs from two line breaks.
    el_set(editor, EL_SETTY, "-d", "-isig", "-icrnl", "-inlcr", nullptr);
  }

  ~Impl() {
    history_end(history);
    el_end(editor);
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  std::optional<std::string> read_line(const std::string& its_prompt) {
    prompt = its_prompt;
    write_to_terminal(kPasteOn);
    el_set(editor, EL_PREP_TERM, 1);  // before the prompt: text typed from then on must not be changed
    int count = 0;
    const char* const line = el_gets(editor, &count);
    write_to_terminal(kPasteOff);
    if (line == nullptr || count <= 0) return {};
    HistEvent event;
    std::string text(line, static_cast<std::size_t>(count));
    if (text.find_first_not_of(" \n") != std::string::npos) ::history(history, &event, H_ENTER, line);
    if (text.ends_with('\n')) text.pop_back();
    return text;
  }
};

#else  // without the library, the terminal itself edits the line

struct LineEditor::Impl {
  static std::optional<std::string> read_line(const std::string& prompt) {
    std::cout << prompt << std::flush;
    std::string line;
    if (!std::getline(std::cin, line)) return {};
    return line;
  }
};

#endif

LineEditor::LineEditor() : impl_(std::make_unique<Impl>()) {}
LineEditor::~LineEditor() = default;

std::optional<std::string> LineEditor::read(const std::string& prompt) {
  std::optional<std::string> text = impl_->read_line(prompt);
  while (text && text->ends_with('\\')) {
    text->back() = '\n';
    const std::optional<std::string> more = impl_->read_line(". ");
    if (!more) break;
    *text += *more;
  }
  return text;
}

}  // namespace staircase
