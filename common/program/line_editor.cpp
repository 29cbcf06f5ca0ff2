#include "common/program/line_editor.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <string_view>
#include <utility>
#include <vector>

#include "common/program/standard_output.h"
#include "common/text/utf8.h"
#include "kernels/platform.h"

#if STAIRCASE_LIBEDIT
#include <histedit.h>
#include <langinfo.h>
#include <sys/select.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <csignal>
#endif

namespace staircase {
namespace {

struct Line {
  std::string text;
  bool pasted = false;     // the line begins with pasted text
  bool continues = false;  // the line ends with a typed backslash
  bool discarded = false;  // Ctrl-C ended the line
};

/// The terminal where the person types, even if standard output goes elsewhere.
std::FILE* screen() {
  for (std::FILE* const stream : {stdout, stderr}) {
    if (platform::is_terminal(stream)) return stream;
  }
#ifdef _WIN32
  return stderr;
#else
  std::FILE* const terminal = std::fopen("/dev/tty", "w");
  return terminal != nullptr ? terminal : stderr;
#endif
}

/// Reads a line that the terminal itself edits.
std::optional<Line> plain_line(std::FILE* screen, const std::string& prompt) {
  std::fputs(prompt.c_str(), screen);
  std::fflush(screen);
  Line line;
  if (!std::getline(std::cin, line.text)) return {};
  line.continues = line.text.ends_with('\\');
  return line;
}

}  // namespace

#if STAIRCASE_LIBEDIT

namespace {

constexpr std::string_view kBlank = " \t\r\n";

// In this mode, a terminal puts markers around pasted text, so that line breaks in it do not end the line.
constexpr std::string_view kPasteOn = "\x1b[?2004h", kPasteOff = "\x1b[?2004l", kPasteEnd = "\x1b[201~";

constexpr const char* kNoUse = "ed-unassigned";

// Keys whose sequence ends in a letter, while Shift, Alt or Control is pressed: arrows, End, Home, F1 to F4.
constexpr std::pair<const char*, const char*> kLetters[] = {{"A", "ed-prev-history"},
                                                            {"B", "ed-next-history"},
                                                            {"C", "em-next-word"},
                                                            {"D", "ed-prev-word"},
                                                            {"F", "ed-move-to-end"},
                                                            {"H", "ed-move-to-beg"},
                                                            {"P", kNoUse},
                                                            {"Q", kNoUse},
                                                            {"R", kNoUse},
                                                            {"S", kNoUse}};

// Variables of the signal handlers.
int terminal = -1;  // file descriptor for output
termios found;      // the settings that the shell had left
volatile std::sig_atomic_t is_changed = 0;

void write_to_terminal(std::string_view text) {
  if (write(terminal, text.data(), text.size()) < 0) return;  // the terminal is gone, and so is the person
}

/// Restores the shell's settings of the terminal, and lets the signal stop or end the program. If the program
/// resumes, sets the terminal up again.
void hand_back(int signal) {
  const int fault = errno;
  termios own;
  const bool is_in_front = tcgetpgrp(STDIN_FILENO) == getpgrp() && tcgetattr(STDIN_FILENO, &own) == 0;
  if (is_in_front) {
    write_to_terminal(kPasteOff);
    tcsetattr(STDIN_FILENO, TCSANOW, &found);
  }
  struct sigaction usual = {}, mine = {};
  usual.sa_handler = SIG_DFL;
  sigaction(signal, &usual, &mine);
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, signal);
  raise(signal);
  pthread_sigmask(SIG_UNBLOCK, &only, nullptr);  // the program stops or ends here
  sigaction(signal, &mine, nullptr);
  if (is_in_front) {
    tcsetattr(STDIN_FILENO, TCSANOW, &own);
    write_to_terminal(kPasteOn);
  }
  is_changed = 1;
  errno = fault;
}

constexpr int kHandedBack[] = {SIGTSTP, SIGQUIT, SIGTERM, SIGHUP, SIGPIPE};

void handle(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;  // a signal must not cut an answer that is being printed
  sigaction(signal, &action, nullptr);
}

/// Lets the library read characters of several bytes even if no locale is set.
void read_utf8() {
  std::setlocale(LC_CTYPE, "");
  if (std::string_view(nl_langinfo(CODESET)) != "UTF-8") std::setlocale(LC_CTYPE, "C.UTF-8");
}

std::string_view first_word(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kBlank), text.size()));
  return text.substr(0, text.find_first_of(kBlank));
}

}  // namespace

struct LineEditor::Impl {
  std::FILE* screen = staircase::screen();
  bool edits = obeys_escapes() && platform::is_terminal(screen);
  EditLine* editor = nullptr;
  History* history = nullptr;
  std::string prompt = {};
  std::string bytes = {};                // bytes of an incomplete character
  std::vector<std::string> pastes = {};  // texts that were pasted into this line
  bool discarded = false;
  bool is_first = true;  // whether this is the first of the lines that a \ joins

  Impl() {
    if (!edits) return;
    read_utf8();
    terminal = fileno(screen);
    tcgetattr(STDIN_FILENO, &found);
    history = history_init();
    editor = el_init("staircase", stdin, screen, stderr);
    HistEvent event;
    ::history(history, &event, H_SETSIZE, 500);
    el_set(editor, EL_HIST, ::history, history);
    el_set(editor, EL_CLIENTDATA, this);
    el_set(
        editor, EL_PROMPT, +[](EditLine* its_editor) { return of(its_editor).prompt.data(); });
    el_set(editor, EL_GETCFN, read_character);
    el_set(editor, EL_EDITOR, "emacs");
    el_set(editor, EL_ADDFN, "paste", "Takes a text with its line breaks", paste);
    el_set(editor, EL_ADDFN, "discard", "Discards what is typed", discard);
    el_set(editor, EL_BIND, "\\e[200~", "paste", nullptr);
    el_set(editor, EL_BIND, "^C", "discard", nullptr);
    el_set(editor, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    bind_other_keys();
    // Ctrl-C is an ordinary key at the prompt, and a pasted CR LF is distinct from two line breaks. During an
    // answer, typed text is not shown and waits: it may be a paste with its markers.
    el_set(editor, EL_SETTY, "-d", "intr=", "-icrnl", "-inlcr", nullptr);
    el_set(editor, EL_SETTY, "-x", "-icanon", "-echo", "-icrnl", "-inlcr", nullptr);
    for (const int signal : kHandedBack) handle(signal, hand_back);
    handle(SIGWINCH, [](int) { is_changed = 1; });
    write_to_terminal(kPasteOn);
  }

  ~Impl() {
    if (!edits) return;
    history_end(history);
    el_end(editor);
    write_to_terminal(kPasteOff);
    tcsetattr(STDIN_FILENO, TCSADRAIN, &found);
    for (const int signal : kHandedBack) handle(signal, SIG_DFL);
    handle(SIGWINCH, SIG_DFL);
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  static Impl& of(EditLine* editor) {
    Impl* impl = nullptr;
    el_get(editor, EL_CLIENTDATA, &impl);
    return *impl;
  }

  /// Binds keys with Shift, Alt or Control, and keys without a use here: otherwise the ends of their
  /// sequences would become text. Also unbinds a key that would replace the line by the library's own prompt.
  void bind_other_keys() const {
    const auto bind = [this](const std::string& keys, const char* command) {
      el_set(editor, EL_BIND, ("\\e" + keys).c_str(), command, nullptr);
    };
    bind("x", kNoUse);
    for (int modifier = 1; modifier <= 8; ++modifier) {
      const std::string with = modifier == 1 ? "" : ";" + std::to_string(modifier);
      for (int key = 1; key <= 34; ++key) bind("[" + std::to_string(key) + with + "~", kNoUse);
      for (const char* key : {"1", "7"}) bind("[" + (key + with) + "~", "ed-move-to-beg");
      for (const char* key : {"4", "8"}) bind("[" + (key + with) + "~", "ed-move-to-end");
      bind("[3" + with + "~", "ed-delete-next-char");
      if (modifier == 1) continue;
      for (const auto& [letter, command] : kLetters) bind("[1" + with + letter, command);
    }
  }

  /// Draws the line again from the cursor's row down. Rows above it may have moved if the terminal's width
  /// changed, and after a stop they belong to another program.
  void draw_again() const {
    is_changed = 0;
    write_to_terminal("\r\x1b[J");
    el_resize(editor);
    el_set(editor, EL_REFRESH);
  }

  /// Reads a character. Returns 1, or 0 at the end of the input, or -1 after a fault. Invalid UTF-8 becomes
  /// U+FFFD.
  static int read_character(EditLine* editor, wchar_t* character) {
    std::string& bytes = of(editor).bytes;
    std::string whole;
    while (true) {
      if (!bytes.empty()) {
        std::string all = bytes;
        whole = take_complete_utf8(all);
        if (!whole.empty()) {
          std::size_t length = 1;
          while (length < whole.size() && (whole[length] & 0xc0) == 0x80) ++length;
          bytes = whole.substr(length) + all;
          whole.resize(length);
          break;
        }
      }
      fd_set input;
      FD_ZERO(&input);
      FD_SET(STDIN_FILENO, &input);
      const bool is_ready = select(STDIN_FILENO + 1, &input, nullptr, nullptr, nullptr) == 1;
      if (!is_ready && errno != EINTR) return -1;
      if (is_changed != 0) of(editor).draw_again();
      if (!is_ready) continue;
      char byte = 0;
      if (const ssize_t count = ::read(STDIN_FILENO, &byte, 1); count != 1) return static_cast<int>(count);
      bytes += byte;
    }
    std::mbstate_t state{};
    if (std::mbrtowc(character, whole.data(), whole.size(), &state) > whole.size()) *character = L'?';
    return 1;
  }

  /// Bound to the marker at the beginning of a paste: takes everything up to the marker at its end.
  static unsigned char paste(EditLine* editor, int /*key*/) {
    std::string text;
    char byte = 0;
    while (!text.ends_with(kPasteEnd)) {
      if (::read(STDIN_FILENO, &byte, 1) != 1) return CC_EOF;
      text += byte;
    }
    text.resize(text.size() - kPasteEnd.size());
    std::string lines;  // with \n for every line break
    for (std::size_t i = 0; i < text.size(); ++i) {
      const bool ends_line = text[i] == '\r';
      if (ends_line && i + 1 < text.size() && text[i + 1] == '\n') ++i;
      if (text[i] == '\0') {
        lines += "\uFFFD";
      } else {
        lines += ends_line ? '\n' : text[i];
      }
    }
    lines = to_valid_utf8(lines);
    of(editor).pastes.push_back(lines);
    return el_insertstr(editor, lines.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
  }

  /// Bound to Ctrl-C: discards the line, and also the lines that it continues.
  static unsigned char discard(EditLine* editor, int /*key*/) {
    const LineInfo* const line = el_line(editor);
    el_cursor(editor, static_cast<int>(line->lastchar - line->cursor));
    el_deletestr(editor, static_cast<int>(line->lastchar - line->buffer));
    of(editor).pastes.clear();
    if (of(editor).is_first) return CC_REFRESH;
    of(editor).discarded = true;
    write_to_terminal("\r\n");
    el_insertstr(editor, "\n");
    return CC_NEWLINE;
  }

  /// The line as a person would type it, for the history, which does not distinguish pasted text.
  static std::string as_typed(const Line& line) {
    std::string text = line.text;
    const std::size_t begin = text.find_first_not_of(kBlank);
    if (line.pasted && text[begin] == '/') text.insert(begin, 1, '/');
    if (text.ends_with('\\') && !line.continues) text += ' ';
    return text;
  }

  std::optional<Line> read_line(const std::string& its_prompt, bool its_first) {
    if (!edits) return plain_line(screen, its_prompt);
    prompt = its_prompt;
    is_first = its_first;
    discarded = false;
    pastes.clear();
    el_resize(editor);
    is_changed = 0;
    el_set(editor, EL_PREP_TERM, 1);  // before the prompt, since text typed from then on must not change
    int count = 0;
    const char* const text = el_gets(editor, &count);
    if (text == nullptr || count <= 0) return {};
    Line line{.text = std::string(text, static_cast<std::size_t>(count)), .discarded = discarded};
    if (line.text.ends_with('\n')) line.text.pop_back();
    line.continues = line.text.ends_with('\\');
    for (const std::string& pasted : pastes) {
      const std::string_view word = first_word(pasted);
      line.pasted = line.pasted || (!word.empty() && first_word(line.text) == word);
      line.continues = line.continues && !(pasted.ends_with('\\') && line.text.ends_with(pasted));
    }
    HistEvent event;
    if (line.text.find_first_not_of(kBlank) != line.text.npos)
      ::history(history, &event, H_ENTER, as_typed(line).c_str());
    return line;
  }
};

#else  // without the library, the terminal itself edits the line

struct LineEditor::Impl {
  std::FILE* screen = staircase::screen();

  std::optional<Line> read_line(const std::string& prompt, bool /*is_first*/) const {
    return plain_line(screen, prompt);
  }
};

#endif

LineEditor::LineEditor() : impl_(std::make_unique<Impl>()) {}
LineEditor::~LineEditor() = default;

std::optional<Entry> LineEditor::read(const std::string& prompt) {
  std::optional<Line> line = impl_->read_line(prompt, true);
  if (!line) return {};
  Entry entry{line->text, line->pasted};
  while (line && line->continues) {
    entry.text.back() = '\n';
    line = impl_->read_line(". ", false);
    if (line && line->discarded) return Entry{};
    if (line) entry.text += line->text;
  }
  return entry;
}

}  // namespace staircase
