#include "common/server/call_split.h"

#include <algorithm>
#include <utility>

#include "common/server/markers.h"

namespace staircase {

SplitCalls CallSplit::push(std::string_view text) {
  SplitCalls parts;
  held_ += text;
  while (read_on(parts)) {
  }
  return parts;
}

std::string CallSplit::finish() {
  std::string rest = std::exchange(held_, {});
  return place_ == Place::kContent || place_ == Place::kRest ? rest : std::string();
}

/// Reads what has arrived of the current part. Returns whether the next part has begun.
bool CallSplit::read_on(SplitCalls& parts) {
  switch (place_) {
    case Place::kContent:
      return read_content(parts);
    case Place::kRest:
      parts.content += std::exchange(held_, {});
      return false;
    case Place::kBegin:
      return skip(form_.begin, Place::kName);
    case Place::kName: {
      const std::size_t end = held_.find(form_.middle.front());
      if (end == held_.npos || held_.size() - end < form_.middle.size()) return false;
      parts.calls.push_back({++index_, held_.substr(0, end)});
      held_.erase(0, end + form_.middle.size());
      place_ = Place::kArguments;
      return true;
    }
    case Place::kArguments:
      return read_arguments(parts);
    case Place::kBetween:
      return !form_.between.empty() && has_between() && skip(form_.between, Place::kName);
  }
  return false;
}

bool CallSplit::read_content(SplitCalls& parts) {
  const std::size_t call = held_.find(form_.marker);
  if (form_.is_whole_text && call != 0) {
    if (form_.marker.starts_with(held_)) return false;  // this may become the marker
    place_ = Place::kRest;
    return true;
  }
  const std::string_view held = held_;
  const std::string_view before =
      call == held.npos ? surely_before(held, form_.marker) : without_space_after(held.substr(0, call));
  parts.content += before;
  if (call == held_.npos) {
    held_.erase(0, before.size());
    return false;
  }
  held_.erase(0, call);
  place_ = Place::kBegin;
  return true;
}

/// Whether the text continues with another call instead of ending.
bool CallSplit::has_between() const {
  return held_.size() >= form_.between.size() &&
         std::ranges::equal(
             form_.between, std::string_view(held_).substr(0, form_.between.size()),
             [](char of_form, char byte) { return of_form == CallForm::kOfId || of_form == byte; });
}

/// Reads arguments up to their closing brace.
bool CallSplit::read_arguments(SplitCalls& parts) {
  std::size_t read = 0;
  bool are_whole = false;
  while (read < held_.size() && !are_whole) {
    const char byte = held_[read++];
    if (in_string_) {
      if (byte == '"' && !is_escaped_) in_string_ = false;
      is_escaped_ = byte == '\\' && !is_escaped_;
      continue;
    }
    if (byte == '"') in_string_ = true;
    if (byte == '{' || byte == '[') ++depth_;
    if (byte == '}' || byte == ']') are_whole = --depth_ == 0;
  }
  if (read == 0) return false;
  const std::string more = held_.substr(0, read);
  held_.erase(0, read);
  if (!parts.calls.empty() && parts.calls.back().index == index_) {
    parts.calls.back().arguments += more;
  } else {
    parts.calls.push_back({.index = index_, .arguments = more});
  }
  if (are_whole) place_ = Place::kBetween;
  return are_whole;
}

bool CallSplit::skip(const std::string& text, Place next) {
  if (held_.size() < text.size()) return false;
  held_.erase(0, text.size());
  place_ = next;
  return true;
}

}  // namespace staircase
