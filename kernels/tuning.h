// The forms in which the kernels of products of 1 to 32 rows are compiled, and which of them a product gets.
//
// The limit of these products is the rate at which weights come from memory, and that takes bytes in flight:
// 22 KB on each multiprocessor of an H200 (matvec.cuh). Several forms have as many in flight for the same
// product. They differ in how many threads share an output, and so in how evenly the outputs fill the
// multiprocessors. Which one is the fastest, only a GPU can say. Until it has, the first form that has room
// is taken: the lists begin with those that fewer threads share. The numbers here are by Little's law, not
// measured.
//
// `tools/gpu-check --tune` measures every form on a card and writes a table, and programs hand it to the
// device (common/program/tuning_file.h). A table never makes a result wrong. It changes the order in which
// the products of an output are summed, as another number of rows does.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "kernels/tensor.h"

namespace staircase::cuda {

/// How threads share a product.
struct Form {
  int lanes;   ///< threads that share an output
  int inputs;  ///< of one row: those that a thread holds in registers; of several rows, 0
  int blocks;  ///< of one row: of the grid for each multiprocessor, at most resident(); of several rows, 0

  bool operator==(const Form&) const = default;
};

/// What the form of a product x W depends on.
struct ProductShape {
  int rows;  ///< that its kernel has room for: room_for(the rows of x)
  std::int64_t in, out;
  DType dtype;    ///< of the weights
  bool is_gated;  ///< half of the outputs gate the others

  auto operator<=>(const ProductShape&) const = default;
};

/// The fastest forms of products on one card, as measured there.
struct Tuning {
  std::map<ProductShape, Form> forms;
};

/// The most rows of x for which W is read by a kernel of our own, on tensor cores.
inline constexpr int kFewRowsOnTensorCores = 32;

/// For how many rows the kernel is compiled that takes `rows`: 1, 8, 16 or 32; 0 if there is none.
constexpr int room_for(std::int64_t rows) {
  return rows <= 1                       ? 1
         : rows <= 8                     ? 8
         : rows <= 16                    ? 16
         : rows <= kFewRowsOnTensorCores ? kFewRowsOnTensorCores
                                         : 0;
}

/// The weights in the 16 bytes that a thread loads at once.
constexpr int inputs_of_load(DType dtype) {
  return dtype == DType::kInt4 ? 32 : dtype == DType::kInt8 ? 16 : dtype == DType::kFloat32 ? 4 : 8;
}

// ── One row ──

/// Threads that share an output, and the inputs of each.
struct Team {
  int lanes, inputs;
};

/// Without a table, a product gets the first that holds its row. The last four are for tables alone.
inline constexpr std::array kTeams = {
    Team{32, 24},  Team{32, 32},  Team{32, 64},  Team{128, 24}, Team{128, 32}, Team{128, 64}, Team{256, 32},
    Team{256, 64}, Team{512, 32}, Team{512, 56}, Team{512, 64}, Team{64, 16},  Team{64, 32},  Team{128, 16}};

/// Of a block. A warp that shares an output has three others beside it.
constexpr int threads_of_block(int lanes) {
  return lanes == 32 ? 128 : lanes;
}

/// Of the weights of an output, for each thread.
constexpr int bytes_of_output(Team team, int of_load, bool is_gated) {
  return team.inputs / of_load * 16 * (is_gated ? 2 : 1);
}

/// Outputs that a team takes at a time, so that each thread has at least 48 bytes in flight.
constexpr int outputs_at_once(Team team, int of_load, bool is_gated) {
  const int bytes = bytes_of_output(team, of_load, is_gated);
  return bytes <= 16 ? 4 : bytes <= 32 ? 2 : 1;
}

/// Registers of a thread that hold x and weights. It needs 44 more or some spill, and uses up to 60.
constexpr int held_registers(Team team, int of_load, bool is_gated) {
  return team.inputs +
         outputs_at_once(team, of_load, is_gated) * bytes_of_output(team, of_load, is_gated) / 4;
}

/// Blocks that a multiprocessor has room for.
constexpr int resident(Team team, int of_load, bool is_gated) {
  const int held = held_registers(team, of_load, is_gated);
  const int of_128_threads = held <= 40 ? 6 : held <= 50 ? 5 : held <= 64 ? 4 : held <= 100 ? 3 : 2;
  const int blocks = of_128_threads * 128 / threads_of_block(team.lanes);
  return blocks < 1 ? 1 : blocks;
}

/// Whether there is a kernel for the team: its threads have whole loads, up to eight, and the registers.
constexpr bool is_compiled(Team team, int of_load, bool is_gated) {
  constexpr int kRegisters = 65536;  // of a multiprocessor
  // In other types, half as many threads hold as long a row.
  if (team.lanes == 512 && team.inputs == 32 && of_load != 4) return false;
  return team.inputs % of_load == 0 && team.inputs / of_load <= 8 &&
         held_registers(team, of_load, is_gated) + 44 <= kRegisters / threads_of_block(team.lanes);
}

// ── Several rows ──

/// Threads that share an output on tensor cores. More of them have more in flight where there are few
/// outputs.
inline constexpr std::array kSharers = {256, 512};

/// Whether there is a kernel: 512 threads have too few registers for a gated product, or for more rows.
constexpr bool is_compiled(int sharers, int rows, bool is_gated) {
  return sharers == 256 || (!is_gated && rows <= 16);
}

// ── The choice ──

/// Every form that is compiled for the product, the one without a table first; none if only other kernels
/// take it.
inline std::vector<Form> forms_of(const ProductShape& product) {
  const bool is_scaled = is_quantized(product.dtype);
  const int of_load = inputs_of_load(product.dtype);
  std::vector<Form> forms;
  if (product.rows != room_for(product.rows)) return {};
  if (product.rows == 1) {
    if (product.in % (is_scaled ? 4 : of_load) != 0) return {};
    for (const Team& team : kTeams) {
      if (!is_compiled(team, of_load, product.is_gated) || product.in > team.lanes * team.inputs) continue;
      const int most = resident(team, of_load, product.is_gated);
      forms.push_back({team.lanes, team.inputs, most});
      if (most > 1) forms.push_back({team.lanes, team.inputs, (most + 1) / 2});
    }
  } else if (product.rows > 1 && (product.dtype == DType::kBFloat16 || is_scaled)) {
    const int whole_inputs = product.dtype == DType::kInt8 ? 64 : 32;
    if (product.in % whole_inputs != 0) return {};
    for (const int sharers : kSharers) {
      if (is_compiled(sharers, product.rows, product.is_gated)) forms.push_back({sharers, 0, 0});
    }
  }
  return forms;
}

/// The form that the table names, if that form is compiled for the product; without one, the first of
/// forms_of, or none.
inline std::optional<Form> form_of(const ProductShape& product, const Tuning& tuning) {
  const std::vector<Form> forms = forms_of(product);
  if (forms.empty()) return std::nullopt;
  if (const auto tuned = tuning.forms.find(product); tuned != tuning.forms.end()) {
    for (const Form& form : forms) {
      if (form == tuned->second) return form;
    }
  }
  return forms.front();
}

}  // namespace staircase::cuda
