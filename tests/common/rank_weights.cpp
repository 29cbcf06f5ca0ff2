// The part of a model's weights that a rank has: what it reads, and what it makes of it.
#include <doctest/doctest.h>

#ifdef __linux__
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/decoding/quantize_int4.h"
#include "common/model/model_folder.h"
#include "common/model/plain_weights.h"
#include "common/model/weight_matrices.h"
#include "common/parallel/thread_ranks.h"
#include "tests/error_message.h"
#include "tests/reference_logits.h"
#include "tests/temporary_folder.h"

namespace staircase {
namespace {

using Floats = std::vector<float>;
using Matrices = std::map<std::string, Floats>;

/// One of several ranks, which takes the others for copies of itself: enough to load its part.
class LoneRank : public Ranks {
 public:
  LoneRank(int rank, int size) : Ranks(rank, size) {}

 private:
  void exchange(std::span<const std::byte> own, std::span<std::byte> all) override {
    for (; !all.empty(); all = all.subspan(own.size())) std::ranges::copy(own, all.begin());
  }
  void post(std::span<const std::byte> /*bytes*/, int /*to*/) override {}
  std::size_t take(std::span<std::byte> bytes, int /*from*/) override { return bytes.size(); }
};

Matrices matrices_of(const Model& model) {
  Matrices matrices;
  for_each_matrix(model, [&](const WeightMatrix& matrix) { matrices[matrix.name] = matrix.values; });
  return matrices;
}

struct Part {
  std::size_t first, count;
};

/// The part of a rank in `whole` elements that only whole groups of `group` are cut into.
Part part_of(std::size_t whole, int rank, int size, std::size_t group) {
  const std::size_t groups = (whole + group - 1) / group, r = static_cast<std::size_t>(rank),
                    n = static_cast<std::size_t>(size);
  const std::size_t first = groups * r / n * group;
  return {first, std::min(groups * (r + 1) / n * group, whole) - first};
}

/// plain [inputs, outputs]: some inputs of all outputs, [outputs, inputs].
Floats inputs_of(const Floats& plain, std::size_t outputs, const Part& inputs) {
  Floats part;
  for (std::size_t out = 0; out < outputs; ++out) {
    for (std::size_t in = inputs.first; in < inputs.first + inputs.count; ++in) {
      part.push_back(plain[in * outputs + out]);
    }
  }
  return part;
}

std::size_t group_of(DType dtype) {
  return static_cast<std::size_t>(dtype == DType::kInt8 ? kGroup : kInt4Group);
}

Floats in_few_bits(const Floats& values, std::size_t inputs, DType dtype) {
  if (dtype == DType::kInt8) return dequantize(quantize(values, inputs, kGroup));
  return dequantize(quantize_int4(values, inputs, kInt4Group));
}

struct Names {
  std::string model, family, attention_output, mlp_output;
};

const std::vector<Names> kNames{
    {"tales-llama-1m", "llama", "layers.1.self_attn.o_proj.weight", "layers.1.mlp.down_proj.weight"},
    {"tales-gpt2-1m", "gpt2", "h.1.attn.c_proj.weight", "h.1.mlp.c_proj.weight"},
    {"tales-neox-1m", "gpt_neox", "layers.1.attention.dense.weight", "layers.1.mlp.dense_4h_to_h.weight"}};

TEST_CASE("in few bits a rank has what the step's own rounding makes of its inputs") {
  int compared = 0;
  for (const Names& names : kNames) {
    const std::filesystem::path folder = find_model(names.model);
    const Model exact = Model::load(folder, make_cpu_device(1));
    const auto plain = plain_weights(exact, names.family, Extra::kParallelBlocks);
    const auto n_embd = static_cast<std::size_t>(exact.config().n_embd),
               n_inner = static_cast<std::size_t>(exact.config().n_inner),
               head_size = static_cast<std::size_t>(exact.config().head_size);
    for (const DType dtype : {DType::kInt8, DType::kInt4}) {
      const Matrices whole = matrices_of(Model::load(folder, make_cpu_device(1), dtype));
      for (const int size : {2, 3, 4}) {
        for (int rank = 0; rank < size; ++rank) {
          CAPTURE(names.model);
          CAPTURE(to_string(dtype));
          CAPTURE(size);
          CAPTURE(rank);
          LoneRank ranks(rank, size);
          const auto load = [&] { return Model::load(folder, make_cpu_device(1), dtype, ranks); };
          const std::size_t unit = std::max(head_size, group_of(dtype));  // two heads fill a group of int8
          if (static_cast<std::size_t>(size) > n_embd / unit) {
            CHECK(says(error_message(load), std::to_string(size) + " ranks do not fit: in int8, 64 weights",
                       "the 4 heads of size 32", "at most 2 parts"));
            continue;
          }
          const Matrices own = matrices_of(load());
          const auto check = [&](const std::string& name, const std::string& plain_name, const Part& inputs) {
            const Floats want =
                in_few_bits(inputs_of(plain.at(plain_name), n_embd, inputs), inputs.count, dtype);
            CHECK(own.at(name) == want);
            // No group is cut: these are the numbers of one process.
            const Floats& all = whole.at(name);
            const std::size_t all_inputs = all.size() / n_embd;
            for (std::size_t out = 0; out < n_embd; ++out) {
              const auto from = all.begin() + static_cast<std::ptrdiff_t>(out * all_inputs + inputs.first);
              REQUIRE(std::equal(from, from + static_cast<std::ptrdiff_t>(inputs.count),
                                 want.begin() + static_cast<std::ptrdiff_t>(out * inputs.count)));
            }
            ++compared;
          };
          check(names.attention_output, "layers.1.self_attn.o_proj.weight",
                part_of(n_embd, rank, size, unit));
          check(names.mlp_output, "layers.1.mlp.down_proj.weight", part_of(n_inner, rank, size, kGroup));
        }
      }
    }
  }
  // Two matrices of each rank: of 2, 3 and 4 in 4 bits, whose groups are as long as a head here, and of 2
  // in 8.
  CHECK(compared == 3 * 2 * (9 + 2));
}

/// How the rows or the columns of a matrix are shared: whole groups of them, in each of `copies` that lie
/// side by side.
struct Cut {
  enum class Of { kRows, kColumns, kNothing } of;
  std::size_t group = 1, copies = 1;
};

/// By the ending of its name. Only rank 0 has the positions.
Cut cut_of(std::string_view tensor, int rank) {
  using enum Cut::Of;
  constexpr std::size_t kHead = 32;
  if (tensor.ends_with("wpe.weight")) return rank == 0 ? Cut{kNothing} : Cut{kRows, 1'000'000};
  const std::vector<std::pair<std::string_view, Cut>> cuts{{"wte.weight", {kRows}},
                                                           {"embed_in.weight", {kRows}},
                                                           {"embed_tokens.weight", {kRows}},
                                                           {"attn.c_attn.weight", {kColumns, kHead, 3}},
                                                           {"attn.c_proj.weight", {kRows, kHead}},
                                                           {"mlp.c_fc.weight", {kColumns, kGroup}},
                                                           {"mlp.c_proj.weight", {kRows, kGroup}},
                                                           {"query_key_value.weight", {kRows, 3 * kHead}},
                                                           {"attention.dense.weight", {kColumns, kHead}},
                                                           {"dense_h_to_4h.weight", {kRows, kGroup}},
                                                           {"dense_4h_to_h.weight", {kColumns, kGroup}},
                                                           {"q_proj.weight", {kRows, kHead}},
                                                           {"k_proj.weight", {kRows, kHead}},
                                                           {"v_proj.weight", {kRows, kHead}},
                                                           {"o_proj.weight", {kColumns, kHead}},
                                                           {"gate_proj.weight", {kRows, kGroup}},
                                                           {"up_proj.weight", {kRows, kGroup}},
                                                           {"down_proj.weight", {kColumns, kGroup}}};
  for (const auto& [ending, cut] : cuts) {
    if (tensor.ends_with(ending)) return cut;
  }
  FAIL("no rule for this tensor");
  return {kNothing};
}

/// Which of `whole` rows or columns a rank has.
std::vector<bool> own_of(const Cut& cut, std::size_t whole, int rank, int size) {
  std::vector<bool> own(whole);
  const std::size_t width = whole / cut.copies;
  if (cut.group > width) return own;
  const Part part = part_of(width, rank, size, cut.group);
  for (std::size_t copy = 0; copy < cut.copies; ++copy) {
    std::fill_n(own.begin() + static_cast<std::ptrdiff_t>(copy * width + part.first), part.count, true);
  }
  return own;
}

/// The bytes of a safetensors file in front of the tensors, and what they say: {name: description}.
struct Header {
  explicit Header(const std::filesystem::path& file) {
    std::ifstream input(file, std::ios::binary);
    std::uint64_t length = 0;
    input.read(reinterpret_cast<char*>(&length), sizeof length);
    std::string text(length, ' ');
    input.read(text.data(), std::ssize(text));
    size = sizeof length + length;
    tensors = nlohmann::json::parse(text);
    tensors.erase("__metadata__");
  }

  std::size_t size = 0;
  nlohmann::json tensors;
};

/// How a stored tensor is cut for that rank.
Cut cut_of(const std::string& name, const nlohmann::json& tensor, int rank) {
  return tensor["shape"].size() == 2 ? cut_of(name, rank) : Cut{Cut::Of::kNothing};
}

/// Calls work(place, bytes, whether it is of that rank) for each number of a matrix that is cut. The place is
/// counted in bytes from the matrix's first number.
template <typename Work>
void each_number(const nlohmann::json& tensor, const Cut& cut, int rank, int size, const Work& work) {
  const std::size_t rows = tensor["shape"][0], columns = tensor["shape"][1],
                    bytes = tensor["dtype"] == "F32" ? 4 : 2;
  const bool by_row = cut.of == Cut::Of::kRows;
  const std::vector<bool> own = own_of(cut, by_row ? rows : columns, rank, size);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t column = 0; column < columns; ++column) {
      work((row * columns + column) * bytes, bytes, own[by_row ? row : column]);
    }
  }
}

/// Makes a NaN of each number of the stored matrices that is not of that rank, and counts them.
std::size_t poison(const std::filesystem::path& file, int rank, int size) {
  const Header header(file);
  std::fstream changed(file, std::ios::binary | std::ios::in | std::ios::out);
  std::size_t poisoned = 0;
  for (const auto& [name, tensor] : header.tensors.items()) {
    const Cut cut = cut_of(name, tensor, rank);
    if (cut.of == Cut::Of::kNothing) continue;
    const std::size_t first = tensor["data_offsets"][0], end = tensor["data_offsets"][1];
    std::string data(end - first, ' ');
    changed.seekg(static_cast<std::streamoff>(header.size + first));
    changed.read(data.data(), std::ssize(data));
    each_number(tensor, cut, rank, size, [&](std::size_t place, std::size_t bytes, bool is_own) {
      if (is_own) return;
      std::memset(data.data() + place, 0xff, bytes);  // a NaN in each of the types
      ++poisoned;
    });
    changed.seekp(static_cast<std::streamoff>(header.size + first));
    changed.write(data.data(), std::ssize(data));
  }
  return poisoned;
}

TEST_CASE("a rank takes no number of a matrix but its own from the file") {
  for (const std::string name : {"tales-gpt2-1m", "tales-neox-1m", "tales-llama-1m"}) {
    for (const int size : {2, 4}) {
      for (int rank = 0; rank < size; ++rank) {
        CAPTURE(name);
        CAPTURE(size);
        CAPTURE(rank);
        const TemporaryFolder changed;
        std::filesystem::copy(find_model(name), changed.path());
        CHECK(poison(changed.path() / "model.safetensors", rank, size) > 500'000);
        LoneRank ranks(rank, size);
        const Matrices want =
            matrices_of(Model::load(find_model(name), make_cpu_device(1), DType::kFloat32, ranks));
        CHECK((matrices_of(Model::load(changed.path(), make_cpu_device(1), DType::kFloat32, ranks)) == want));
      }
    }
  }
}

#ifdef __linux__

const std::size_t kPage = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));

/// Which pages of a file are in memory.
std::vector<bool> pages_in_memory(const std::filesystem::path& file) {
  const std::size_t size = std::filesystem::file_size(file), pages = (size + kPage - 1) / kPage;
  std::vector<unsigned char> state(pages);
  const int opened = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  REQUIRE(opened >= 0);
  void* const mapping = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, opened, 0);
  close(opened);
  REQUIRE(mapping != MAP_FAILED);
  REQUIRE(mincore(mapping, size, state.data()) == 0);
  munmap(mapping, size);
  std::vector<bool> there;
  for (const unsigned char one : state) there.push_back((one & 1) != 0);
  return there;
}

/// Writes it to the disk and drops it from memory, but for the first bytes, the header. What a system reads
/// ahead of a header depends on the disk, and may be megabytes. False if the file is nowhere but in memory.
bool forget(const std::filesystem::path& file, std::size_t but_first) {
  const int opened = open(file.c_str(), O_RDWR | O_CLOEXEC);
  REQUIRE(opened >= 0);
  bool left = true;
  for (int tries = 0; left && tries < 100; ++tries) {  // pages on their way stay a moment longer
    fsync(opened);
    posix_fadvise(opened, 0, 0, POSIX_FADV_DONTNEED);
    const std::vector<bool> pages = pages_in_memory(file);
    left = std::ranges::count(pages, true) > 0;
    if (left) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  posix_fadvise(opened, 0, 0, POSIX_FADV_RANDOM);  // reads nothing ahead
  std::string first(but_first, ' ');
  REQUIRE(pread(opened, first.data(), but_first, 0) == std::ssize(first));
  close(opened);
  return !left;
}

/// The pages that a rank needs: of the header, of its own part of each matrix, and of all other tensors.
/// Ranks compare their files by the 64 bytes at both ends of each tensor, so those are among them.
std::vector<bool> needed_pages(const std::filesystem::path& file, int rank, int size) {
  const Header header(file);
  std::vector<bool> needed((std::filesystem::file_size(file) + kPage - 1) / kPage);
  const auto need = [&](std::size_t first, std::size_t count) {
    if (count == 0) return;
    for (std::size_t page = first / kPage; page <= (first + count - 1) / kPage; ++page) needed[page] = true;
  };
  need(0, header.size);
  for (const auto& [name, tensor] : header.tensors.items()) {
    const std::size_t first = header.size + static_cast<std::size_t>(tensor["data_offsets"][0]),
                      end = header.size + static_cast<std::size_t>(tensor["data_offsets"][1]);
    const std::size_t ends = std::min<std::size_t>(end - first, 64);
    need(first, ends);
    need(end - ends, ends);
    const Cut cut = cut_of(name, tensor, rank);
    if (cut.of == Cut::Of::kNothing) {
      need(first, end - first);
      continue;
    }
    each_number(tensor, cut, rank, size, [&](std::size_t place, std::size_t bytes, bool is_own) {
      if (is_own) need(first + place, bytes);
    });
  }
  return needed;
}

TEST_CASE("a rank reads the pages of its own numbers from the disk, and no others") {
  for (const std::string name : {"tales-gpt2-1m", "tales-neox-1m", "tales-llama-1m"}) {
    for (const int size : {2, 4}) {
      for (int rank = 0; rank < size; ++rank) {
        CAPTURE(name);
        CAPTURE(size);
        CAPTURE(rank);
        const TemporaryFolder copy;
        std::filesystem::copy(find_model(name), copy.path());
        const std::filesystem::path file = copy.path() / "model.safetensors";
        if (!forget(file, Header(file).size)) {
          MESSAGE("what a rank reads is not compared: the folder of temporary files is in memory");
          return;
        }
        LoneRank ranks(rank, size);
        Model::load(copy.path(), make_cpu_device(1), DType::kFloat32, ranks);
        const std::vector<bool> got = pages_in_memory(file), want = needed_pages(file, rank, size);
        std::size_t missing = 0, beyond = 0;
        for (std::size_t page = 0; page < want.size(); ++page) {
          missing += want[page] && !got[page] ? 1 : 0;
          beyond += got[page] && !want[page] ? 1 : 0;
        }
        CHECK(missing == 0);
        CHECK(beyond == 0);
        // Half or a quarter, and the rows of which a page has a part for each rank.
        if (kPage == 4096)
          CHECK(3 * std::ranges::count(got, true) < (size == 2 ? 2.2 : 1.8) * std::ssize(got));
      }
    }
  }
}

#endif

TEST_CASE("files of llama.cpp's quantizer have the same logits on ranks, wherever a cut meets their blocks") {
  const std::filesystem::path folder = std::filesystem::path(STAIRCASE_SOURCE_TREE) / "tests/reference";
  const std::vector<int> tokens =
      nlohmann::json::parse(std::ifstream(folder / "quantized.json")).at("tokens");
  for (const std::string name : {"q4_k_m", "q5_k_m"}) {
    const std::filesystem::path file = folder / "quantized" / (name + ".gguf");
    Model alone = Model::load(file, make_cpu_device(1));
    const std::span<const float> logits = alone.next_logits(tokens);
    const Floats want(logits.begin(), logits.end());
    for (int size = 2; size <= std::min(alone.config().n_head, 4); ++size) {
      CAPTURE(name);
      CAPTURE(size);
      run_as_threads(size, [&](Ranks& ranks) {
        Model model = Model::load(file, make_cpu_device(1), DType::kFloat32, ranks);
        CHECK(difference(model.next_logits(tokens), want) < 1e-5);
      });
    }
  }
}

}  // namespace
}  // namespace staircase
