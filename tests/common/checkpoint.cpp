// Checkpoints: the same tensors from one file, from shards and from GGUF, and what is not whole is named.
#include "common/model/checkpoint.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/model/gguf_config.h"
#include "common/model/gguf_types.h"
#include "common/model/share.h"
#include "kernels/half.h"
#include "tests/error_message.h"
#include "tests/gguf_writer.h"
#include "tests/temporary_folder.h"

using namespace staircase;
using nlohmann::json;

namespace {

/// A safetensors file of float32 vectors.
std::string safetensors(const std::vector<std::pair<std::string, std::vector<float>>>& tensors) {
  json header = json::object();
  std::string data;
  for (const auto& [name, values] : tensors) {
    const std::size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    header[name] = {{"dtype", "F32"}, {"shape", {values.size()}}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text + data;
}

void write_index(const TemporaryFolder& folder, const json& weight_map) {
  folder.write("model.safetensors.index.json",
               json{{"metadata", {{"total_size", 1}}}, {"weight_map", weight_map}}.dump());
}

std::vector<float> values(Checkpoint& checkpoint, const std::string& name) {
  const CheckpointTensor* tensor = checkpoint.find(name);
  REQUIRE(tensor);
  return to_floats(checkpoint.read(*tensor, DType::kFloat32).array);
}

std::string error(const TemporaryFolder& folder) {
  return error_message([&] { Checkpoint::open(folder.path()); });
}

}  // namespace

TEST_CASE("a folder with one file of weights is a checkpoint") {
  const TemporaryFolder folder;
  folder.write("model.safetensors", safetensors({{"a", {1, 2}}, {"b", {3}}}));
  Checkpoint checkpoint = Checkpoint::open(folder.path());
  CHECK(checkpoint.tensors().size() == 2);
  CHECK(values(checkpoint, "a") == std::vector<float>{1, 2});
  CHECK(checkpoint.find("a")->file == folder.path() / "model.safetensors");
  CHECK(checkpoint.file() == folder.path() / "model.safetensors");
  CHECK(checkpoint.find("c") == nullptr);
  checkpoint.release(*checkpoint.find("a"));
  CHECK(values(checkpoint, "a") == std::vector<float>{1, 2});
}

TEST_CASE("shards are one checkpoint, and each tensor names its file") {
  const TemporaryFolder folder;
  folder.write("model-00001-of-00002.safetensors", safetensors({{"a", {1, 2}}, {"b", {3}}}));
  folder.write("model-00002-of-00002.safetensors", safetensors({{"c", {4, 5, 6}}}));
  write_index(folder, {{"a", "model-00001-of-00002.safetensors"},
                       {"b", "model-00001-of-00002.safetensors"},
                       {"c", "model-00002-of-00002.safetensors"}});
  Checkpoint checkpoint = Checkpoint::open(folder.path());
  CHECK(checkpoint.tensors().size() == 3);
  CHECK(values(checkpoint, "a") == std::vector<float>{1, 2});
  CHECK(values(checkpoint, "b") == std::vector<float>{3});
  CHECK(values(checkpoint, "c") == std::vector<float>{4, 5, 6});
  CHECK(checkpoint.find("c")->file == folder.path() / "model-00002-of-00002.safetensors");
  CHECK(checkpoint.file() == folder.path() / "model.safetensors.index.json");
  const Checkpoint moved = std::move(checkpoint);
  CHECK(to_string(moved.find("c")->shape) == "[3]");
}

TEST_CASE("only the mapped tensors are read, from the file to which the index maps them") {
  const TemporaryFolder folder;
  folder.write("model-1.safetensors", safetensors({{"a", {1}}, {"b", {2}}}));
  folder.write("model-2.safetensors", safetensors({{"a", {-1}}, {"b", {-2}}, {"left-over", {9}}}));
  folder.write("consolidated.safetensors", safetensors({{"a", {7}}, {"other", {8}}}));
  write_index(folder, {{"a", "model-2.safetensors"}, {"b", "model-1.safetensors"}});
  Checkpoint checkpoint = Checkpoint::open(folder.path());
  CHECK(checkpoint.tensors().size() == 2);
  CHECK(values(checkpoint, "a") == std::vector<float>{-1});
  CHECK(values(checkpoint, "b") == std::vector<float>{2});
}

TEST_CASE("next to a single file, an index is ignored, as in transformers") {
  const TemporaryFolder folder;
  folder.write("model.safetensors", safetensors({{"a", {1}}}));
  write_index(folder, {{"a", "model-1.safetensors"}});
  Checkpoint checkpoint = Checkpoint::open(folder.path());
  CHECK(values(checkpoint, "a") == std::vector<float>{1});
}

TEST_CASE(
    "a folder without weights, or with only some of its shards, is an error that names what is "
    "missing") {
  const TemporaryFolder folder;
  CHECK(says(error(folder), "model.safetensors does not exist", "model.safetensors.index.json"));
  const std::string first = "model-00001-of-00003.safetensors", second = "model-00002-of-00003.safetensors",
                    third = "model-00003-of-00003.safetensors";
  folder.write(second, safetensors({{"b", {1}}}));
  write_index(folder, {{"a", first}, {"b", second}, {"c", third}});
  CHECK(says(error(folder), "index.json", "3 files", "2 of them are missing", first));
  folder.write(first, safetensors({{"a", {1}}}));
  CHECK(says(error(folder), "index.json", "3 files", "1 of them is missing", third));
  folder.write(third, safetensors({{"c", {1}}}).substr(0, 20));
  CHECK(says(error(folder), third, "header"));
}

TEST_CASE("files of weights that are loops of links are errors that say so") {
  const auto loop = [](const TemporaryFolder& folder, const std::string& name) {
    std::filesystem::create_symlink(name, folder.path() / name);
  };
  const std::string index = "model.safetensors.index.json", shard = "model-1.safetensors";
  for (const std::string& name : {std::string("model.safetensors"), index, shard}) {
    const TemporaryFolder folder;
    loop(folder, name);
    if (name == shard) write_index(folder, {{"a", shard}});
    CHECK(says(error(folder), name, "cannot be read: Too many levels"));
  }
}

TEST_CASE("a shard listed twice, under two names, lacks the tensors of the other") {
  const TemporaryFolder folder;
  folder.write("model-1.safetensors", safetensors({{"a", {1}}}));
  folder.write("model-2.safetensors", safetensors({{"a", {1}}}));
  write_index(folder, {{"a", "model-1.safetensors"}, {"b", "model-2.safetensors"}});
  CHECK(says(error(folder), "index.json", "\"b\"", "model-2.safetensors", "no such tensor"));
}

TEST_CASE("an invalid index, or one that leads out of its folder, is an error") {
  const TemporaryFolder folder;
  const auto error_of = [&](const std::string& text) {
    folder.write("model.safetensors.index.json", text);
    return error(folder);
  };
  CHECK(says(error_of("{"), "index.json", "not valid JSON"));
  CHECK(says(error_of("[]"), "index.json", "an array"));
  CHECK(says(error_of("{}"), "index.json", "no weight_map"));
  CHECK(says(error_of(R"({"weight_map": []})"), "index.json", "no weight_map"));
  CHECK(says(error_of(R"({"weight_map": {}})"), "index.json", "weight_map", "no tensor"));
  CHECK(says(error_of(R"({"weight_map": {"a": 1}})"), "index.json", "\"a\"", "1"));
  CHECK(says(error_of(R"({"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}})"), "\"a\" twice"));
  for (const char* file : {"../x.safetensors", "/tmp/x.safetensors", "original/x.safetensors", "x.bin", "",
                           "C:x.safetensors", "..\\\\x.safetensors"}) {
    CAPTURE(file);
    CHECK(says(error_of(std::string(R"({"weight_map": {"a": ")") + file + "\"}}"), "index.json", "\"a\"",
               "of the same folder"));
  }
}

namespace {

const std::filesystem::path kReference = std::filesystem::path(STAIRCASE_SOURCE_TREE) / "tests/reference";

json reference_models() {
  std::ifstream in(kReference / "gguf-families.json");
  return json::parse(in);
}

/// FNV-1a of the numbers' bytes, as make_gguf.py writes it.
std::string hash(const std::vector<float>& numbers) {
  std::uint64_t value = 0xcbf29ce484222325;
  const auto* const bytes = reinterpret_cast<const unsigned char*>(numbers.data());
  for (std::size_t i = 0; i < numbers.size() * sizeof(float); ++i) value = (value ^ bytes[i]) * 0x100000001b3;
  return fmt::format("{:016x}", value);
}

std::vector<float> ascending(int count) {
  std::vector<float> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0.0f);
  return numbers;
}

/// A file of that family with a matrix of the vocabulary.
GgufWriter family(const std::string& name, std::uint32_t heads = 2, std::uint32_t kv_heads = 1) {
  GgufWriter writer;
  writer.text("general.architecture", name)
      .number(name + ".attention.head_count", heads)
      .number(name + ".attention.head_count_kv", kv_heads)
      .floats("token_embd.weight", {2, 3}, {1, 2, 3, 4, 5, 6});
  return writer;
}

Checkpoint written(const TemporaryFolder& folder, const GgufWriter& writer) {
  return Checkpoint::open(folder.write("model.gguf", writer.bytes()));
}

}  // namespace

TEST_CASE("files of llama.cpp's converter hold the tensors of Hugging Face, by name, shape and order") {
  const json models = reference_models();
  for (const auto& [model_, reference] : models.items()) {
    const auto& model = model_;  // clang 14 captures no structured binding
    CAPTURE(model);
    Checkpoint checkpoint = Checkpoint::open(kReference / "gguf-families" / (model + ".gguf"));
    for (const auto& [name_, expected] : reference["tensors"].items()) {
      const auto& name = name_;  // clang 14 captures no structured binding
      CAPTURE(name);
      const CheckpointTensor* tensor = checkpoint.find(name);
      REQUIRE(tensor);
      CHECK(tensor->shape == expected["shape"].get<std::vector<std::int64_t>>());
      CHECK(hash(values(checkpoint, name)) == expected["hash"].get<std::string>());
    }
    const std::size_t others = model == "llama-3" ? 1 : 0;  // rope_freqs.weight
    CHECK(checkpoint.tensors().size() == reference["tensors"].size() + others);
  }
}

TEST_CASE("the factors of llama-3's frequencies keep their name") {
  Checkpoint checkpoint = Checkpoint::open(kReference / "gguf-families/llama-3.gguf");
  const std::vector<float> factors = values(checkpoint, "rope_freqs.weight");
  REQUIRE(factors.size() == 8);
  CHECK(factors.front() == 1.0f);
  CHECK(factors.back() == 8.0f);
}

TEST_CASE("queries and keys come back from pairs to halves, keys by their own heads") {
  const TemporaryFolder folder;
  GgufWriter writer = family("llama", 2, 1);
  // Two heads of four rows: the file has the rows of a head as 0, 2, 1, 3.
  writer.floats("blk.0.attn_q.weight", {1, 8}, ascending(8))
      .floats("blk.0.attn_q.bias", {8}, ascending(8))
      .floats("blk.0.attn_k.weight", {1, 8}, ascending(8))
      .floats("blk.0.attn_v.weight", {1, 8}, ascending(8));
  Checkpoint checkpoint = written(folder, writer);
  const std::string block = "model.layers.0.self_attn.";
  CHECK(values(checkpoint, block + "q_proj.weight") == std::vector<float>{0, 2, 1, 3, 4, 6, 5, 7});
  CHECK(values(checkpoint, block + "q_proj.bias") == std::vector<float>{0, 2, 1, 3, 4, 6, 5, 7});
  CHECK(values(checkpoint, block + "k_proj.weight") == std::vector<float>{0, 2, 4, 6, 1, 3, 5, 7});
  CHECK(values(checkpoint, block + "v_proj.weight") == ascending(8));
}

TEST_CASE("the families of Qwen have no pairs, and GPT-NeoX has its parts together") {
  const TemporaryFolder folder;
  for (const char* name : {"qwen2", "qwen3"}) {
    GgufWriter writer = family(name);
    writer.floats("blk.0.attn_q.weight", {1, 8}, ascending(8));
    Checkpoint checkpoint = written(folder, writer);
    CHECK(values(checkpoint, "model.layers.0.self_attn.q_proj.weight") == ascending(8));
  }
  GgufWriter writer = family("gptneox", 2);
  writer.floats("blk.11.attn_qkv.bias", {12}, ascending(12));  // heads of two: q q, q q, k k, k k, v v, v v
  Checkpoint checkpoint = written(folder, writer);
  CHECK(values(checkpoint, "gpt_neox.layers.11.attention.query_key_value.bias") ==
        std::vector<float>{0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11});
}

TEST_CASE(
    "a quantized matrix becomes float32, or bfloat16 for a device that stores it, in every order of rows") {
  std::mt19937 random(5);
  const auto blocks = [&](std::size_t count) {
    std::string bytes;
    for (std::size_t i = 0; i < count; ++i) {
      bytes += raw(float16_from_float32(static_cast<float>(random() % 100) / 64));
      for (int b = 0; b < 32; ++b) bytes += static_cast<char>(random());
    }
    return bytes;
  };
  const TemporaryFolder folder;
  for (const auto& [name, stored_, translated] :
       {std::tuple("llama", "blk.0.ffn_up", "model.layers.0.mlp.up_proj"),
        std::tuple("llama", "blk.0.attn_q", "model.layers.0.self_attn.q_proj"),
        std::tuple("gptneox", "blk.0.attn_qkv", "gpt_neox.layers.0.attention.query_key_value"),
        std::tuple("gpt2", "blk.0.attn_qkv", "transformer.h.0.attn.c_attn")}) {
    const auto& stored = stored_;  // clang 14 captures no structured binding
    CAPTURE(stored);
    // More numbers than one thread takes, and rows that no number of threads divides.
    constexpr int kRows = 2 * 3 * 2 * 149, kColumns = 96;
    const std::string data = blocks(kRows * kColumns / 32);
    GgufWriter writer = family(name, 2);
    writer.tensor(std::string(stored) + ".weight", {kColumns, kRows}, 8, data);
    Checkpoint checkpoint = written(folder, writer);
    const CheckpointTensor& tensor = *checkpoint.find(std::string(translated) + ".weight");
    CHECK(tensor.dtype == "Q8_0");

    std::vector<float> plain(kRows * kColumns);
    find_gguf_type("Q8_0")->to_floats(reinterpret_cast<const std::byte*>(data.data()), kRows * kColumns / 32,
                                      plain.data());
    std::vector<float> expected(plain.size());
    const std::string part = stored;
    constexpr int kHead = kRows / 2;
    for (int row = 0; row < kRows; ++row) {
      for (int column = 0; column < kColumns; ++column) {
        int to = row * kColumns + column;
        if (part == "blk.0.attn_q") {
          const int in_head = row % kHead;
          to = (row / kHead * kHead + in_head % 2 * (kHead / 2) + in_head / 2) * kColumns + column;
        } else if (std::string(name) == "gptneox") {
          const int size = kRows / 6, which = row / (2 * size), head = row / size % 2;
          to = ((head * 3 + which) * size + row % size) * kColumns + column;
        } else if (std::string(name) == "gpt2") {
          to = column * kRows + row;
        }
        expected[static_cast<std::size_t>(to)] = plain[static_cast<std::size_t>(row * kColumns + column)];
      }
    }
    const CheckpointArray wide = checkpoint.read(tensor, DType::kInt8);
    CHECK(wide.array.dtype == DType::kFloat32);
    CHECK(wide.array.rows == tensor.shape[0]);
    CHECK(wide.array.columns == tensor.shape[1]);
    CHECK(to_floats(wide.array) == expected);

    const std::int64_t height = tensor.shape[0], width = tensor.shape[1];
    const Slice some{height, height / 3 + 1, height / 2};
    const std::vector<Slice> columns{{width, 3, width / 4}, {width, width / 2 + 1, width / 3}};
    std::vector<float> wanted;
    for (std::int64_t row = some.first; row < some.first + some.count; ++row) {
      for (const Slice& slice : columns) {
        const auto begin = expected.begin() + row * width + slice.first;
        wanted.insert(wanted.end(), begin, begin + slice.count);
      }
    }
    CHECK(to_floats(checkpoint.read(tensor, DType::kFloat32, some, columns).array) == wanted);

    const CheckpointArray narrow = checkpoint.read(tensor, DType::kBFloat16);
    CHECK(narrow.array.dtype == DType::kBFloat16);
    for (float& value : expected) value = float32_from_bfloat16(bfloat16_from_float32(value));
    CHECK(to_floats(narrow.array) == expected);
  }
}

TEST_CASE("an array stays unchanged while another one is read, and its memory is used again afterwards") {
  const TemporaryFolder folder;
  GgufWriter writer = family("llama", 1, 1);
  writer.floats("blk.0.attn_q.weight", {1, 4}, {1, 2, 3, 4})
      .floats("blk.0.attn_k.weight", {1, 4}, {5, 6, 7, 8});
  Checkpoint checkpoint = written(folder, writer);
  const CheckpointTensor& q = *checkpoint.find("model.layers.0.self_attn.q_proj.weight");
  const CheckpointTensor& k = *checkpoint.find("model.layers.0.self_attn.k_proj.weight");
  const void* freed = nullptr;
  {
    const CheckpointArray first = checkpoint.read(q, DType::kFloat32);
    const CheckpointArray second = checkpoint.read(k, DType::kFloat32);
    CHECK(to_floats(first.array) == std::vector<float>{1, 3, 2, 4});
    CHECK(to_floats(second.array) == std::vector<float>{5, 7, 6, 8});
    freed = first.array.data;
  }
  CHECK(checkpoint.read(k, DType::kFloat32).array.data == freed);
}

TEST_CASE("numbers that a GGUF file already stores in the right form are not copied") {
  const TemporaryFolder folder;
  GgufWriter writer = family("llama");
  writer.tensor("blk.0.ffn_up.weight", {2, 2}, 1,
                raw(float16_from_float32(1)) + raw(float16_from_float32(2)) + raw(float16_from_float32(3)) +
                    raw(float16_from_float32(4)));
  Checkpoint checkpoint = written(folder, writer);
  const CheckpointTensor& tensor = *checkpoint.find("model.layers.0.mlp.up_proj.weight");
  const CheckpointArray array = checkpoint.read(tensor, DType::kBFloat16);
  CHECK(array.array.data == tensor.bytes.data());
  CHECK(array.array.dtype == DType::kFloat16);
  CHECK(to_floats(array.array) == std::vector<float>{1, 2, 3, 4});
}

namespace {

struct Ended {
  int status;       // as waitpid returns it
  std::string err;  // what the process wrote to standard error
};

/// What becomes of a process that does this and then exits with status 0.
Ended in_child(const std::function<void()>& work) {
  std::array<int, 2> ends;
  REQUIRE(pipe(ends.data()) == 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    const rlimit none{0, 0};
    setrlimit(RLIMIT_CORE, &none);
    alarm(60);
    work();
    _exit(0);
  }
  close(ends[1]);
  Ended ended{};
  std::array<char, 1000> part;
  for (ssize_t count; (count = read(ends[0], part.data(), part.size())) > 0;) {
    ended.err.append(part.data(), static_cast<std::size_t>(count));
  }
  close(ends[0]);
  REQUIRE(waitpid(child, &ended.status, 0) == child);
  return ended;
}

const std::string kShorter = " became shorter while it was read, or its disk failed";

}  // namespace

TEST_CASE("a file that is cut while it is read ends the process with one sentence") {
  constexpr std::size_t kMany = 1 << 20;  // read by several threads
  const TemporaryFolder folder, shards;
  const auto zeros = std::vector<float>(kMany);
  const std::string one = safetensors({{"a", zeros}});
  const std::filesystem::path
      single = folder.write("model.safetensors", one),
      part = shards.write("model-2.safetensors", one),
      gguf = folder.write("model.gguf",
                          family("llama", 2, 1).floats("blk.0.attn_q.weight", {8, kMany / 8}, zeros).bytes());
  shards.write("model-1.safetensors", safetensors({{"b", {1}}}));
  write_index(shards, {{"a", "model-2.safetensors"}, {"b", "model-1.safetensors"}});
  const auto check = [&](const std::filesystem::path& model, const std::filesystem::path& file,
                         const std::string& tensor) {
    CAPTURE(file);
    const std::uintmax_t size = std::filesystem::file_size(file);
    const Ended ended = in_child([&] {
      Checkpoint checkpoint = Checkpoint::open(model);
      std::filesystem::resize_file(file, size / 2);
      static_cast<void>(to_floats(checkpoint.read(*checkpoint.find(tensor), DType::kFloat32).array));
    });
    CHECK(ended.err == "error: " + file.string() + kShorter + "\n");
    CHECK(WIFEXITED(ended.status));
    CHECK(WEXITSTATUS(ended.status) == 1);
  };
  check(folder.path(), single, "a");
  check(shards.path(), part, "a");
  check(gguf, gguf, "model.layers.0.self_attn.q_proj.weight");
}

TEST_CASE("other bus errors stay what they are, also while a checkpoint is open and after one was closed") {
  const TemporaryFolder folder;
  folder.write("model.safetensors", safetensors({{"a", {1}}}));
  const std::filesystem::path other = folder.write("other", std::string(100'000, 'x'));
  const auto read_other = [&] {
    const int file = open(other.c_str(), O_RDONLY);
    const void* const bytes = mmap(nullptr, 100'000, PROT_READ, MAP_PRIVATE, file, 0);
    std::filesystem::resize_file(other, 0);
    static_cast<void>(*(static_cast<const volatile char*>(bytes) + 50'000));
  };
  for (const bool is_open : {true, false}) {
    CAPTURE(is_open);
    for (const bool is_sent : {false, true}) {
      CAPTURE(is_sent);
      folder.write("other", std::string(100'000, 'x'));
      const Ended ended = in_child([&] {
        std::optional<Checkpoint> checkpoint = Checkpoint::open(folder.path());
        if (!is_open) checkpoint.reset();
        is_sent ? static_cast<void>(raise(SIGBUS)) : read_other();
      });
#ifdef __SANITIZE_ADDRESS__
      CHECK(ended.status != 0);  // it reports them, and exits
      CHECK(ended.err.find(kShorter) == ended.err.npos);
#else
      CHECK(WIFSIGNALED(ended.status));
      CHECK(WTERMSIG(ended.status) == SIGBUS);
      CHECK(ended.err.empty());
#endif
    }
  }
}

TEST_CASE("a file that is cut within its last page, which then reads as zeros, is an error") {
  const TemporaryFolder folder;
  const auto check = [&](const std::filesystem::path& model, const std::filesystem::path& file) {
    const Checkpoint checkpoint = Checkpoint::open(model);
    const std::uintmax_t size = std::filesystem::file_size(file);
    CHECK(error_message([&] { checkpoint.require_whole(); }).empty());
    std::filesystem::resize_file(file, size - 1);
    CHECK(error_message([&] { checkpoint.require_whole(); }) == file.string() + kShorter);
    std::filesystem::remove(file);  // what is mapped is whole
    CHECK(error_message([&] { checkpoint.require_whole(); }).empty());
  };
  check(folder.path(), folder.write("model.safetensors", safetensors({{"a", {1, 2}}})));
  const std::filesystem::path gguf = folder.write(
      "model.gguf", family("llama", 2, 1).floats("blk.0.attn_q.bias", {4}, {1, 2, 3, 4}).bytes());
  check(gguf, gguf);
}

TEST_CASE("heads that do not divide the rows, families and types that are not supported are named") {
  const TemporaryFolder folder;
  const auto error_of = [&](const GgufWriter& writer) {
    return error_message([&] { written(folder, writer); });
  };
  CHECK(says(error_of(family("llama", 3).floats("blk.0.attn_q.weight", {1, 8}, ascending(8))), "model.gguf",
             "\"blk.0.attn_q.weight\"", "[8, 1]", "queries of 3 heads"));
  CHECK(says(error_of(family("llama", 1, 3).floats("blk.0.attn_k.weight", {1, 8}, ascending(8))),
             "keys of 3 heads"));
  CHECK(says(error_of(family("llama", 1).floats("blk.0.attn_q.weight", {1, 7}, ascending(7))),
             "queries of 1 heads"));
  CHECK(says(error_of(family("llama", 3).floats("blk.0.attn_q.weight", {1, 2, 6}, ascending(12))),
             "[6, 2, 1]", "queries of 3 heads"));
  CHECK(says(error_of(family("gptneox", 2).floats("blk.0.attn_qkv.bias", {8}, ascending(8))), "of 2 heads"));
  CHECK(says(error_of(family("llama", 0).floats("blk.0.attn_q.weight", {1, 8}, ascending(8))),
             "llama.attention.head_count is 0"));
  CHECK(says(error_of(family("llama", 1u << 31).floats("blk.0.attn_q.weight", {1, 8}, ascending(8))),
             "llama.attention.head_count is 2147483648"));
  GgufWriter lists;
  lists.text("general.architecture", "llama").numbers<std::int32_t>("llama.attention.head_count", 5, {4, 4});
  CHECK(says(error_of(lists.floats("blk.0.attn_q.weight", {1, 8}, ascending(8))),
             "llama.attention.head_count", "a list of 2"));
  CHECK(says(error_of(family("mamba")), "model.gguf",
             "general.architecture is \"mamba\", and these can be run: llama, qwen2, qwen3, qwen3moe, olmoe, "
             "gemma3, "
             "olmo, gptneox, gpt2"));
  CHECK(says(error_of(GgufWriter().floats("a", {1}, {1})), "no general.architecture"));
  CHECK(says(
      error_of(family("llama").floats("model.norm.weight", {1}, {1}).floats("output_norm.weight", {1}, {1})),
      "\"model.norm.weight\" under two names"));
  Checkpoint checkpoint =
      written(folder, family("llama").tensor("output.weight", {256, 1}, 10, std::string(84, 'x')));
  const CheckpointTensor& tensor = *checkpoint.find("lm_head.weight");
  CHECK(!checkpoint.is_readable(tensor));
  CHECK(says(error_message([&] { checkpoint.read(tensor, DType::kFloat32); }), "model.gguf", "Q2_K", "Q4_K"));
}

TEST_CASE("a safetensors file cannot name a type of GGUF") {
  const TemporaryFolder folder;
  const std::string header = R"({"a":{"dtype":"Q8_0","shape":[4096],"data_offsets":[0,4]}})";
  folder.write("model.safetensors", raw<std::uint64_t>(header.size()) + header + "abcd");
  Checkpoint checkpoint = Checkpoint::open(folder.path());
  CHECK(!checkpoint.is_readable(*checkpoint.find("a")));
  CHECK(says(error_message([&] { checkpoint.read(*checkpoint.find("a"), DType::kFloat32); }), "Q8_0",
             "F32, F16 and BF16"));
}

TEST_CASE("names of no family stay, and odd ones do no harm") {
  const TemporaryFolder folder;
  GgufWriter writer = family("llama");
  for (const char* name : {"blk.0.attn_q", "blk..attn_q.weight", "blk.x.attn_q.weight", "blk.0", "blk.",
                           ".weight", "", "token_embd.scale", "blk.0.ffn_gate_shexp.weight"}) {
    writer.floats(name, {1}, {1});
  }
  Checkpoint checkpoint = written(folder, writer);
  CHECK(checkpoint.find("blk.0.ffn_gate_shexp.weight"));
  CHECK(checkpoint.find(""));
  CHECK(checkpoint.tensors().size() == 10);
}
