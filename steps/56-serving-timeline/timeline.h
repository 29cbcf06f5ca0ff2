// Draws which text was in which row of the batch, and when.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "common/base/message.h"
#include "common/measure/plot.h"
#include "common/program/program.h"
#include "latencies.h"

namespace staircase {

struct TimelineOptions {
  std::string file = {};  ///< empty: nothing is drawn
};

inline void add_options(Program& program, TimelineOptions& options) {
  program.add("--timeline", Path{&options.file}, "draw each row of the batch over time to this SVG file");
  program.warn_if([&] { return !options.file.empty() && !program.has("--requests"); },
                  "--timeline does nothing without --requests");
}

/// Each text gets the lowest lane that is free from its joining to its last token: one lane per slot.
inline std::vector<TimelineBar> bars(std::vector<TextTimes> texts) {
  std::erase_if(texts, [](const TextTimes& text) { return text.tokens.empty(); });
  std::ranges::stable_sort(texts, {}, &TextTimes::joined);
  std::vector<double> free_from(texts.size());  // of each lane
  std::vector<TimelineBar> result;
  for (const auto& [arrival, joined, tokens] : texts) {
    const auto lane = std::ranges::find_if(free_from, [when = *joined](double time) { return time <= when; });
    *lane = tokens.back();
    const int number = static_cast<int>(lane - free_from.begin()) + 1;
    result.push_back({number, *joined, tokens.front(), 0});
    if (tokens.size() > 1) result.push_back({number, tokens.front(), tokens.back(), 1});
  }
  return result;
}

/// The share of all lanes' time, up to the last bar's end, in which they have no text; from 0 to 1.
inline double empty_part(const std::vector<TimelineBar>& bars) {
  double busy = 0.0, end = 0.0;
  int lanes = 0;
  for (const TimelineBar& bar : bars) {
    busy += bar.to - bar.from;
    end = std::max(end, bar.to);
    lanes = std::max(lanes, bar.lane);
  }
  return lanes > 0 ? 1.0 - busy / (lanes * end) : 0.0;
}

/// Draws the plot. Throws Error without gnuplot, and when no text has a token.
inline void draw(const std::vector<TextTimes>& texts, const std::string& file) {
  const std::vector<TimelineBar> all = bars(texts);
  write_svg(file, Timeline{.x_label = "seconds",
                           .y_label = "row",
                           .kinds = {"prefill", "decode"},
                           .panels = {{"texts in the batch", all}}});
  say(fmt::format("{}: the rows are empty for {:.0f} % of the time", file, 100.0 * empty_part(all)));
}

}  // namespace staircase
