// Reports latencies at the end of a run that serves requests: in one line, and in the statistics.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <vector>

#include "common/base/message.h"
#include "common/measure/quantile.h"
#include "common/program/output.h"

namespace staircase {

/// Reports the latencies that step 54 computes: `ttft`, `tpot` and `itl` in milliseconds, each at p50, p95
/// and p99. Also reports `seconds` and `tokens_per_second`.
template <typename Latencies>
void report(const Latencies& times, std::size_t texts, double rows_a_pass, Output& output) {
  std::string line = fmt::format("\n{} request{} in {:.2f} s, {:.1f} tokens/s, {:.1f} rows a pass", texts,
                                 texts == 1 ? "" : "s", times.seconds, times.tokens_per_second, rows_a_pass);
  const auto add = [&](const char* name, const char* statistic, const std::vector<double>& values) {
    if (values.empty()) return;
    line += fmt::format("; {} in ms:", name);
    for (const int percent : {50, 95, 99}) {
      const double value = quantile(values, percent / 100.0);
      line += fmt::format("{} {:.1f} (p{})", percent == 50 ? "" : ",", value, percent);
      output.add_statistic(fmt::format("{}_ms_p{}", statistic, percent), value);
    }
  };
  add("TTFT", "ttft", times.ttft);
  add("TPOT", "tpot", times.tpot);
  add("ITL", "itl", times.itl);
  output.set_speed(times.ttft.empty() ? 0.0 : quantile(times.ttft, 0.5), times.tokens_per_second);
  say(line);
}

}  // namespace staircase
