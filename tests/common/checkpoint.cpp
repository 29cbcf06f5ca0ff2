// Checkpoints: the same tensors from one file and from shards, and a split that is not whole is named.
#include "common/model/checkpoint.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/error_message.h"
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
  const HostArray array = checkpoint.read(*tensor, DType::kFloat32);
  REQUIRE(array.dtype == DType::kFloat32);
  std::vector<float> numbers(static_cast<std::size_t>(array.rows * array.columns));
  std::memcpy(numbers.data(), array.data, numbers.size() * sizeof(float));
  return numbers;
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

TEST_CASE("only what the index maps is read, from the file to which it maps it") {
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

TEST_CASE("beside a single file an index is left aside, as in transformers") {
  const TemporaryFolder folder;
  folder.write("model.safetensors", safetensors({{"a", {1}}}));
  write_index(folder, {{"a", "model-1.safetensors"}});
  Checkpoint checkpoint = Checkpoint::open(folder.path());
  CHECK(values(checkpoint, "a") == std::vector<float>{1});
}

TEST_CASE("a folder without weights, or with a part of its shards, is an error that names what is missing") {
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

TEST_CASE("a shard that is there twice, under two names, lacks the tensors of the other") {
  const TemporaryFolder folder;
  folder.write("model-1.safetensors", safetensors({{"a", {1}}}));
  folder.write("model-2.safetensors", safetensors({{"a", {1}}}));
  write_index(folder, {{"a", "model-1.safetensors"}, {"b", "model-2.safetensors"}});
  CHECK(says(error(folder), "index.json", "\"b\"", "model-2.safetensors", "no such tensor"));
}

TEST_CASE("an index that is none, or that leads out of its folder, is an error") {
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
