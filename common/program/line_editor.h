// Reads lines that a person types at a terminal, with editing and a history.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace staircase {

/// The text that a person entered at one prompt.
struct Entry {
  std::string text;
  bool pasted = false;  ///< whether the input begins with pasted text
};

class LineEditor {
 public:
  LineEditor();
  ~LineEditor();

  /// Returns the next line without its line break; nothing after Ctrl-D. Pasted text is one line, however
  /// many line breaks it has, even if it was pasted before the prompt; NUL and invalid UTF-8 become U+FFFD. A
  /// typed \ at the end of a line continues it. Ctrl-C discards the typed text, and Ctrl-Z stops the program.
  /// The prompt and the line appear on the terminal even if standard output goes elsewhere. A terminal
  /// without escape sequences edits the line itself, so pasted text is not recognized there.
  std::optional<Entry> read(const std::string& prompt);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace staircase
