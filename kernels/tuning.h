// The forms in which the kernels for products of 1 to 32 rows are compiled, and how a product's form is
// chosen.
//
// These products are memory-bound: full bandwidth takes 22 KB in flight on each multiprocessor of an H200
// (matvec.cuh). Several forms reach that for the same product. They differ in how many threads share an
// output, and so in how evenly the outputs fill the multiprocessors. Only a measurement shows the fastest.
// Without one, a product gets the first form that has room for it; the lists begin with forms in which fewer
// threads share an output. The numbers here follow from Little's law and are not measured.
//
// `tools/gpu-check --tune` measures every form on a card and writes a table, which programs pass to the
// device (common/program/tuning_file.h). No table makes a result wrong. It only changes the order in which
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
  int inputs;  ///< for one row: the inputs that a thread holds in registers; for several rows: 0
  int blocks;  ///< for one row: the grid's blocks per multiprocessor, at most resident(); for several rows: 0

  bool operator==(const Form&) const = default;
};

/// The properties of a product x W that its form depends on.
struct ProductShape {
  int rows;  ///< the rows its kernel has room for: room_for(the rows of x)
  std::int64_t in, out;
  DType dtype;    ///< the type of the weights
  bool is_gated;  ///< half of the outputs gate the other half

  auto operator<=>(const ProductShape&) const = default;
};

/// The fastest form of each product measured on one card.
struct Tuning {
  std::map<ProductShape, Form> forms;
};

/// Up to this many rows of x, a kernel of our own reads W and multiplies on tensor cores.
inline constexpr int kFewRowsOnTensorCores = 32;

/// The rows for which the kernel that multiplies `rows` rows is compiled: 1, 8, 16 or 32, or 0 without a
/// kernel.
constexpr int room_for(std::int64_t rows) {
  return rows <= 1                       ? 1
         : rows <= 8                     ? 8
         : rows <= 16                    ? 16
         : rows <= kFewRowsOnTensorCores ? kFewRowsOnTensorCores
                                         : 0;
}

/// How many weights are in the 16 bytes that a thread loads at once.
constexpr int inputs_of_load(DType dtype) {
  return dtype == DType::kInt4 ? 32 : dtype == DType::kInt8 ? 16 : dtype == DType::kFloat32 ? 4 : 8;
}

// ── One row ──

/// The number of threads that share an output, and the number of inputs of each thread.
struct Team {
  int lanes, inputs;
};

/// Without a table, a product gets the first team that can hold a row of x. Only a table can choose the last
/// four.
inline constexpr std::array kTeams = {
    Team{32, 24},  Team{32, 32},  Team{32, 64},  Team{128, 24}, Team{128, 32}, Team{128, 64}, Team{256, 32},
    Team{256, 64}, Team{512, 32}, Team{512, 56}, Team{512, 64}, Team{64, 16},  Team{64, 32},  Team{128, 16}};

/// The threads of a block. If one warp computes an output alone, three other warps share its block.
constexpr int threads_of_block(int lanes) {
  return lanes == 32 ? 128 : lanes;
}

/// The bytes of an output's weights that each thread loads.
constexpr int bytes_of_output(Team team, int of_load, bool is_gated) {
  return team.inputs / of_load * 16 * (is_gated ? 2 : 1);
}

/// How many outputs a team computes at a time, so that each thread has at least 48 bytes in flight.
constexpr int outputs_at_once(Team team, int of_load, bool is_gated) {
  const int bytes = bytes_of_output(team, of_load, is_gated);
  return bytes <= 16 ? 4 : bytes <= 32 ? 2 : 1;
}

/// How many registers of a thread hold x and weights. The thread uses up to 60 more; with fewer than 44 more,
/// some registers spill to memory.
constexpr int held_registers(Team team, int of_load, bool is_gated) {
  return team.inputs +
         outputs_at_once(team, of_load, is_gated) * bytes_of_output(team, of_load, is_gated) / 4;
}

/// How many blocks fit on a multiprocessor at once.
constexpr int resident(Team team, int of_load, bool is_gated) {
  const int held = held_registers(team, of_load, is_gated);
  const int of_128_threads = held <= 40 ? 6 : held <= 50 ? 5 : held <= 64 ? 4 : held <= 100 ? 3 : 2;
  const int blocks = of_128_threads * 128 / threads_of_block(team.lanes);
  return blocks < 1 ? 1 : blocks;
}

/// Whether a kernel is compiled for the team: each thread needs whole loads, at most eight, and enough
/// registers.
constexpr bool is_compiled(Team team, int of_load, bool is_gated) {
  constexpr int kRegisters = 65536;  // registers of a multiprocessor
  // In types other than float32, half as many threads hold a row of this length.
  if (team.lanes == 512 && team.inputs == 32 && of_load != 4) return false;
  return team.inputs % of_load == 0 && team.inputs / of_load <= 8 &&
         held_registers(team, of_load, is_gated) + 44 <= kRegisters / threads_of_block(team.lanes);
}

// ── Several rows ──

/// How many threads share an output on tensor cores. With few outputs, more threads keep more bytes in
/// flight.
inline constexpr std::array kSharers = {256, 512};

/// Whether a kernel is compiled: 512 threads have too few registers for a gated product or for more than 16
/// rows.
constexpr bool is_compiled(int sharers, int rows, bool is_gated) {
  return sharers == 256 || (!is_gated && rows <= 16);
}

// ── The choice ──

/// Returns every form compiled for the product, its default first; none if only other kernels compute the
/// product.
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

/// Returns the form that the table names, if it is compiled for the product. Otherwise returns the first of
/// forms_of, or nothing if there is none.
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
