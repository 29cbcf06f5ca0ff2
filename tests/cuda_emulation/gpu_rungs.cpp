// What the rungs of a GPU's ladder ask of memory, counted in the emulation: no time, which only a GPU has.
//
//     gpu-rungs gpu-matvec              all rungs as a table
//     gpu-rungs gpu-matvec FILE         and as JSON
//     gpu-rungs gpu-matvec 3            compares rung 3 with rung 1, then counts it between rungs 2 and 4
//     gpu-rungs gpu-matvec 3 compare    only compares
//
// The second form is for tools/bench, the others for `tools/step check`, which links a learner's file in the
// place of a rung. The status is 1, with one sentence, where a number differs or the kernel does something
// wrong.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "tests/cuda_emulation/count_rung.h"
#include "tests/cuda_emulation/race_check.h"
#include "tests/kernels/gpu_rung_cases.h"

using namespace staircase::rungs::gpu_matvec;

namespace {

nlohmann::json figures_of(const MatvecRung& rung) {
  const cuda_emulation::CountedLaunch launch = count(rung);
  cuda_emulation::Traffic w = launch.loads;
  w += launch.streams;
  const double blocks = launch.blocks;
  return {{"name", rung.name},
          {"idea", rung.idea},
          {"blocks", launch.blocks},
          {"threads", launch.threads},
          {"bytes", w.bytes},
          {"requests", w.requests},
          {"sectors_per_request", static_cast<double>(w.sectors) / static_cast<double>(w.requests)},
          {"bytes_of_sectors", w.sectors * cuda_emulation::Counters::kSector},
          {"bytes_before_wait", w.early_bytes},
          {"barriers_per_block", static_cast<double>(launch.barriers) / blocks},
          {"bank_conflicts_per_block", static_cast<double>(launch.conflicts) / blocks}};
}

void print_head() {
  fmt::print("  {:<20}{:>9}{:>9}{:>10}{:>9}{:>11}{:>10}{:>9}{:>10}\n", "", "blocks", "KB of W", "requests",
             "sectors", "KB moved", "KB early", "barriers", "conflicts");
}

void print(const nlohmann::json& rung, std::string_view remark) {
  const auto kilobytes = [&](const char* key) { return rung[key].get<double>() / 1e3; };
  fmt::print("  {:<20}{:>9}{:>9.0f}{:>10}{:>9.1f}{:>11.0f}{:>10.0f}{:>9.0f}{:>10.0f}  {}\n",
             rung["name"].get<std::string>(), rung["blocks"].get<unsigned>(), kilobytes("bytes"),
             rung["requests"].get<std::uint64_t>(), rung["sectors_per_request"].get<double>(),
             kilobytes("bytes_of_sectors"), kilobytes("bytes_before_wait"),
             rung["barriers_per_block"].get<double>(), rung["bank_conflicts_per_block"].get<double>(),
             remark);
}

/// The first difference from rung 1, as a sentence; empty if there is none.
std::string difference(const MatvecRung& rung) {
  for (const MatrixSize& size : kOddMatrices) {
    const int n_in = size.n_in, n_out = size.n_out;
    const Wholes numbers(n_in, n_out);
    const auto result = [&](const MatvecRung& of) {
      Prepared prepared(of, n_in, n_out, numbers.w.data(), numbers.x.data());
      prepared.run_after_kernel();
      return prepared.result();
    };
    const std::vector<float> expected = result(ladder()[0]), own = result(rung);
    const std::string where = fmt::format("With W [{}, {}] and x [{}],", n_out, n_in, n_in);
    for (std::size_t o = 0; o + 1 < own.size(); ++o) {
      if (own[o] != expected[o])
        return fmt::format("{} number {} of the result is {}, and 1-thread has {}.", where, o, own[o],
                           expected[o]);
    }
    if (own.back() != 0.5f) return fmt::format("{} it writes beyond the end of the result.", where);
  }
  return "";
}

int check(std::size_t number, bool compares_only) {
  const MatvecRung& rung = ladder()[number - 1];
  const std::string found = difference(rung);
  if (!found.empty()) {
    fmt::print("{}\n", found);
    return 1;
  }
  if (compares_only) return 0;
  fmt::print("Counted in the emulation, for W [{}, {}] and one row:\n", kOut, kIn);
  print_head();
  for (std::size_t i = number - 2; i < std::min(number + 1, ladder().size()); ++i)
    print(figures_of(ladder()[i]), i + 1 == number ? "yours" : "");
  return 0;
}

void count_all(const char* file) {
  nlohmann::json rungs = nlohmann::json::array();
  fmt::print(
      "\ngpu-matvec: one row times every fourth output of the last matrix of GPT-2 124M's MLP (n_in {}, "
      "n_out "
      "{}).\nCounted in the emulation of a GPU; nothing here is a time. What the rungs ask of W:\n\n",
      kIn, kOut);
  print_head();
  for (const MatvecRung& rung : ladder()) {
    rungs.push_back(figures_of(rung));
    print(rungs.back(), rung.idea);
  }
  if (file == nullptr) return;
  std::ofstream stream(file);
  stream << nlohmann::json{{"ladders",
                            {{{"ladder", "gpu-matvec"}, {"n_in", kIn}, {"n_out", kOut}, {"rungs", rungs}}}}}
                .dump(2)
         << '\n';
  if (!stream.flush()) throw std::runtime_error(fmt::format("{} cannot be written", file));
}

}  // namespace

int main(int count, char** arguments) try {
  cuda_emulation::check_races(true);
  const std::vector<std::string_view> words(arguments + 1, arguments + count);
  if (words.empty() || words[0] != "gpu-matvec" || words.size() > 3) {
    fmt::print("gpu-rungs takes the ladder gpu-matvec and the number of a rung, or a file for JSON.\n");
    return 2;
  }
  const bool has_number =
      words.size() > 1 && std::ranges::all_of(words[1], [](char c) { return c >= '0' && c <= '9'; });
  if (!has_number) {
    count_all(words.size() > 1 ? arguments[2] : nullptr);
    return 0;
  }
  const std::size_t number = std::stoul(arguments[2]);
  if (number < 2 || number > ladder().size()) {
    fmt::print("There is no rung {} that could be compared with the first.\n", number);
    return 2;
  }
  return check(number, words.size() == 3);
} catch (const std::exception& error) {
  fmt::print("The kernel is wrong: {}.\n", error.what());
  return 1;
}
