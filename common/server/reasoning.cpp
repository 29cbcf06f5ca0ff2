#include "common/server/reasoning.h"

#include <algorithm>
#include <utility>

#include "common/server/markers.h"

namespace staircase {

namespace {

constexpr std::string_view kOpen = "<think>", kClose = "</think>";

std::size_t space_before(std::string_view text) {
  return std::min(text.find_first_not_of(kMarkerSpace), text.size());
}

}  // namespace

SplitText ReasoningSplit::push(std::string_view text) {
  SplitText parts;
  held_ += text;
  if (place_ == Place::kBegin) {
    const std::size_t space = space_before(held_);
    const std::string_view rest = std::string_view(held_).substr(space);
    if (rest.size() < kOpen.size() && kOpen.starts_with(rest)) return parts;
    const bool opens = rest.starts_with(kOpen);
    skips_space_ = opens || begins_within_;
    place_ = skips_space_ ? Place::kReasoning : Place::kContent;
    if (opens) held_.erase(0, space + kOpen.size());
  }
  if (std::exchange(skips_space_, false)) {
    held_.erase(0, space_before(held_));
    skips_space_ = held_.empty();
  }
  if (place_ == Place::kContent) return {.content = std::exchange(held_, {})};
  const std::size_t close = held_.find(kClose);
  if (close == held_.npos) {
    parts.reasoning = surely_before(held_, kClose);
    held_.erase(0, parts.reasoning.size());
    return parts;
  }
  parts.reasoning = without_space_after(std::string_view(held_).substr(0, close));
  const std::string rest = held_.substr(close + kClose.size());
  held_.clear();
  place_ = Place::kContent;
  skips_space_ = true;
  parts.content = push(rest).content;
  return parts;
}

SplitText ReasoningSplit::finish() {
  const bool is_reasoning = place_ == Place::kReasoning || (place_ == Place::kBegin && begins_within_);
  std::string rest = std::exchange(held_, {});
  return is_reasoning ? SplitText{.reasoning = std::move(rest)} : SplitText{.content = std::move(rest)};
}

bool ends_within_reasoning(std::string_view prompt) {
  return without_space_after(prompt).ends_with(kOpen);
}

}  // namespace staircase
