// Lines that a person types at a terminal, with history and editing.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace staircase {

/// What a person has entered.
struct Entry {
  std::string text;
  bool pasted = false;  ///< whether it begins with pasted text
};

class LineEditor {
 public:
  LineEditor();
  ~LineEditor();

  /// The next line without its end; nothing after Ctrl-D. Pasted text is one line, however many line breaks
  /// it has, also if it was pasted before the prompt; NUL and bytes that are not UTF-8 become U+FFFD. A typed
  /// \ at the end continues a line. Ctrl-C discards what is typed, and Ctrl-Z stops the program. Prompt and
  /// line appear where the person types, even if standard output goes elsewhere. A terminal that obeys no
  /// escape sequences edits the line itself, and cannot tell pasted text from typed.
  std::optional<Entry> read(const std::string& prompt);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace staircase
