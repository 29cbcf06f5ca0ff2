// Lines that a person types at a terminal, with history and editing.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace staircase {

class LineEditor {
 public:
  LineEditor();
  ~LineEditor();

  /// The next line without its end; nothing after Ctrl-D. Pasted text is one line, however many line breaks
  /// it has, and a \ at the end of a line continues it. Ctrl-C discards what is typed.
  std::optional<std::string> read(const std::string& prompt);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace staircase
