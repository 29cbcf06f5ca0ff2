// What the rungs of a GPU's ladder ask of memory, counted in the emulation: no time, which only a GPU has.
//
//     gpu-rungs gpu-matvec              all rungs as a table
//     gpu-rungs gpu-matvec FILE         and as JSON
//     gpu-rungs gpu-matvec 3            compares rung 3 with rung 1, then counts it between rungs 2 and 4
//     gpu-rungs gpu-matvec 3 compare    only compares
//
// The second form is for tools/bench, the others for `tools/step check`, which links a learner's file in the
// place of a rung. The status is 1, with one sentence, where a number differs, the kernel does something
// wrong, or the counter of the rung's idea is no better than that of the rung below.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "tests/cuda_emulation/count_rung.h"
#include "tests/cuda_emulation/race_check.h"

using namespace staircase::rungs;
using nlohmann::json;

namespace {

template <typename Ladder>
json figures_of(const auto& rung) {
  const Counted launch = Ladder::count(rung);
  const cuda_emulation::Traffic read = launch.read();
  const double blocks = launch.blocks;
  return {{"name", rung.name},
          {"idea", rung.idea},
          {"blocks", launch.blocks},
          {"threads", launch.threads},
          {"bytes", read.bytes},
          {"requests", read.requests},
          {"sectors_per_request", static_cast<double>(read.sectors) / static_cast<double>(read.requests)},
          {"bytes_of_sectors", read.sectors * cuda_emulation::Counters::kSector},
          {"bytes_before_wait", read.early_bytes},
          {"barriers_per_block", static_cast<double>(launch.barriers) / blocks},
          {"bank_conflicts_per_block", static_cast<double>(launch.conflicts) / blocks}};
}

void print_head() {
  fmt::print("  {:<20}{:>9}{:>9}{:>10}{:>9}{:>11}{:>10}{:>10}{:>10}\n", "", "blocks", "KB read", "requests",
             "sectors", "KB moved", "KB early", "barriers", "conflicts");
}

void print(const json& rung, std::string_view remark) {
  const auto kilobytes = [&](const char* key) { return rung[key].get<double>() / 1e3; };
  fmt::print("  {:<20}{:>9}{:>9.0f}{:>10}{:>9.1f}{:>11.0f}{:>10.0f}{:>10.0f}{:>10.0f}  {}\n",
             rung["name"].get<std::string>(), rung["blocks"].get<unsigned>(), kilobytes("bytes"),
             rung["requests"].get<std::uint64_t>(), rung["sectors_per_request"].get<double>(),
             kilobytes("bytes_of_sectors"), kilobytes("bytes_before_wait"),
             rung["barriers_per_block"].get<double>(), rung["bank_conflicts_per_block"].get<double>(),
             remark);
}

/// The first difference from rung 1, as a sentence; empty if there is none.
template <typename Ladder>
std::string difference(const auto& rung) {
  std::string found;
  Ladder::compare(rung, [&](const std::string& where, const std::vector<float>& expected,
                            const std::vector<float>& own, double tolerance) {
    for (std::size_t i = 0; i + 1 < own.size() && found.empty(); ++i) {
      // Not `>`: a NaN differs from every number.
      if (!(std::abs(own[i] - expected[i]) <= tolerance))
        found = fmt::format("{} number {} of the result {}, and {} has {}.", where, i,
                            own[i] == 0.5f ? "is still 0.5, as before the run" : fmt::format("is {}", own[i]),
                            Ladder::ladder()[0].name, expected[i]);
    }
    if (found.empty() && own.back() != 0.5f) found = where + " it writes beyond the end of the result.";
  });
  return found;
}

template <typename Ladder>
int check(std::size_t number, bool compares_only) {
  const auto rungs = Ladder::ladder();
  if (number < 2 || number > rungs.size()) {
    fmt::print("There is no rung {} that could be compared with the first.\n", number);
    return 2;
  }
  const std::string found = difference<Ladder>(rungs[number - 1]);
  if (!found.empty()) {
    fmt::print("{}\n", found);
    return 1;
  }
  if (compares_only) return 0;
  const Counter& counter = Ladder::kGains[number - 2];
  const Counted below = Ladder::count(rungs[number - 2]), own = Ladder::count(rungs[number - 1]);
  if (!counter.gains(below, own)) {
    fmt::print("It computes what {} does, but not by the idea of {}: it has {:.6g} {}, and {} has {:.6g}.\n",
               rungs[0].name, rungs[number - 1].name, counter.of(own), counter.name, rungs[number - 2].name,
               counter.of(below));
    return 1;
  }
  fmt::print("Counted in the emulation of a GPU: {}.\n", Ladder::kSubject);
  print_head();
  for (std::size_t i = number - 2; i < std::min(number + 1, rungs.size()); ++i)
    print(figures_of<Ladder>(rungs[i]), i + 1 == number ? "yours" : "");
  return 0;
}

template <typename Ladder>
int count_all(const char* file) {
  json rungs = json::array();
  fmt::print("\n{}: {}.\nCounted in the emulation of a GPU; nothing here is a time.\n\n", Ladder::kName,
             Ladder::kSubject);
  print_head();
  for (const auto& rung : Ladder::ladder()) {
    rungs.push_back(figures_of<Ladder>(rung));
    print(rungs.back(), rung.idea);
  }
  if (file == nullptr) return 0;
  std::ofstream stream(file);
  stream << json{{"ladders", {{{"ladder", Ladder::kName}, {"subject", Ladder::kSubject}, {"rungs", rungs}}}}}
                .dump(2)
         << '\n';
  if (!stream.flush()) throw std::runtime_error(fmt::format("{} cannot be written", file));
  return 0;
}

/// What the words after the ladder's name require.
template <typename Ladder>
int answer(const std::vector<std::string>& words) {
  if (words.empty()) return count_all<Ladder>(nullptr);
  const bool is_number = std::ranges::all_of(words[0], [](char c) { return c >= '0' && c <= '9'; });
  return is_number ? check<Ladder>(std::stoul(words[0]), words.size() == 2)
                   : count_all<Ladder>(words[0].c_str());
}

/// The same for the ladder of that name.
template <typename... Ladders>
int answer_of(std::string_view name, const std::vector<std::string>& words) {
  int status = 2;
  const auto has_answered = [&]<typename Ladder>() {
    if (words.size() > 2 || name != Ladder::kName) return false;
    status = answer<Ladder>(words);
    return true;
  };
  if (!(has_answered.template operator()<Ladders>() || ...)) {
    const std::vector<std::string_view> names{Ladders::kName...};
    fmt::print("gpu-rungs takes {} or {}, and the number of a rung, or a file for JSON.\n",
               fmt::join(names.begin(), names.end() - 1, ", "), names.back());
  }
  return status;
}

}  // namespace

int main(int count, char** arguments) try {
  cuda_emulation::check_races(true);
  const std::string name = count > 1 ? arguments[1] : "";
  const std::vector<std::string> words(arguments + std::min(count, 2), arguments + count);
  return answer_of<CountedMatvec, CountedLayerNorm, CountedSoftmax, CountedAttention, CountedProduct,
                   CountedBoundaries>(name, words);
} catch (const std::exception& error) {
  fmt::print("The kernel is wrong: {}.\n", error.what());
  return 1;
}
