// The safetensors reader: it returns what the file holds, and nothing broken gets through.
#include "common/model/safetensors.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>

#include "tests/error_message.h"
#include "tests/temporary_folder.h"

using namespace staircase;
using nlohmann::json;

namespace {

const std::filesystem::path kSource = STAIRCASE_SOURCE_TREE;

std::string with_length(std::uint64_t length, const std::string& header, const std::string& data) {
  std::string file(8, '\0');
  for (int i = 0; i < 8; ++i) file[i] = static_cast<char>(length >> (8 * i));
  return file + header + data;
}

std::string file_of(const std::string& header, const std::string& data = "") {
  return with_length(header.size(), header, data);
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

auto parse(const std::string& file) {
  return parse_safetensors(std::as_bytes(std::span(file)), "weights.st");
}

/// The error for a file with these entries and `size` bytes of data.
std::string error_in(const std::string& header, std::size_t size = 16) {
  return error_message([&] { parse(file_of(header, std::string(size, 'x'))); });
}

std::string text(const StoredTensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()};
}

}  // namespace

TEST_CASE("tensors are views of exactly their bytes") {
  const std::string data = "abcdefghijklmnopqrstuvwx";
  const std::string header = R"({"__metadata__":{"format":"pt"},"b":)" + entry("F32", "[2, 2]", "[8,24]") +
                             R"(,"a":)" + entry("I64", "[]", "[0,8]") + "}  ";
  const std::string file = file_of(header, data);
  const auto tensors = parse(file);
  REQUIRE(tensors.size() == 2);
  const StoredTensor& a = tensors.at("a");
  CHECK(a.dtype == "I64");
  CHECK(a.shape.empty());
  CHECK(text(a) == "abcdefgh");
  const StoredTensor& b = tensors.at("b");
  CHECK(b.dtype == "F32");
  CHECK(b.shape == std::vector<std::int64_t>{2, 2});
  CHECK(text(b) == "ijklmnopqrstuvwx");
  CHECK(static_cast<const void*>(b.bytes.data()) == file.data() + 8 + header.size() + 8);
}

TEST_CASE("every known dtype has its size, and an unknown one is returned unchecked") {
  const std::map<std::string, int> sizes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
      {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},     {"I64", 8},     {"U64", 8}, {"F64", 8}};
  for (const auto& [dtype, size] : sizes) {
    const auto offsets = [](int end) { return "[0," + std::to_string(end) + "]"; };
    const auto all = static_cast<std::size_t>(3 * size);
    CHECK(error_in(R"({"t":)" + entry(dtype, "[1,3]", offsets(3 * size)) + "}", all) == "");
    for (const int wrong : {3 * size - 1, 3 * size + 1}) {
      const std::string message = error_in(R"({"t":)" + entry(dtype, "[1,3]", offsets(wrong)) + "}", 30);
      CHECK(says(message, "weights.st", "\"t\"", dtype, "[1, 3]", std::to_string(3 * size),
                 std::to_string(wrong)));
    }
  }
  CHECK(error_in(R"({"t":)" + entry("F4", "[1,3]", "[0,2]") + "}", 2) == "");
}

TEST_CASE("empty tensors and an empty file of tensors are legal") {
  CHECK(parse(file_of("{}")).empty());
  CHECK(parse(file_of(R"({"t":)" + entry("F32", "[0, 3]", "[0,0]") + "}")).at("t").bytes.empty());
  CHECK(error_in(R"({"a":)" + entry("U8", "[16]", "[0,16]") + R"(,"b":)" + entry("U8", "[0]", "[16,16]") +
                 "}") == "");
  CHECK(error_in(R"({"a":)" + entry("U8", "[16]", "[0,16]") + R"(,"b":)" + entry("U8", "[0]", "[0,0]") +
                 "}") == "");
}

TEST_CASE("an impossible header is an error") {
  const auto error = [](const std::string& file) { return error_message([&] { parse(file); }); };
  CHECK(says(error(""), "weights.st", "0 bytes"));
  CHECK(says(error("1234567"), "weights.st", "7 bytes"));
  CHECK(says(error("version https://git-lfs.github.com/spec/v1\noid sha256:4665\nsize 269060552\n"),
             "weights.st", "only a git-lfs pointer", "git lfs pull"));
  CHECK(says(error(with_length(1, "", "")), "weights.st", "1 bytes", "the limit of 0"));
  CHECK(says(error(with_length(3, "{}", "")), "weights.st", "3 bytes", "the limit of 2"));
  CHECK(says(error(with_length(~std::uint64_t{0}, "{}", "")), "weights.st", "18446744073709551615"));
  CHECK(says(error(with_length(std::uint64_t{1} << 63, "{}", "")), "weights.st", "the limit of 2"));
  const std::string large = "{}" + std::string(100'000'000, ' ');
  CHECK(says(error(file_of(large)), "weights.st", "100000002 bytes", "the limit of 100000000"));
  CHECK(error(file_of(large.substr(0, 100'000'000))) == "");
}

TEST_CASE("a header that is not a JSON object is an error") {
  const auto error = [](const std::string& header) { return error_in(header); };
  CHECK(says(error(""), "weights.st", "not valid JSON"));
  CHECK(says(error("{"), "weights.st", "not valid JSON"));
  CHECK(says(error("{}x"), "weights.st", "not valid JSON"));
  CHECK(says(error(std::string("{}\0", 3)), "weights.st", "not valid JSON"));
  CHECK(says(error("{\"\xff\":1}"), "weights.st", "not valid JSON"));
  CHECK(says(error("[]"), "weights.st", "an array"));
  CHECK(says(error("\"text\""), "weights.st", "\"text\""));
  CHECK(says(error("null"), "weights.st", "null"));
  CHECK(says(error("{\"t\":" + std::string(1'000'000, '[')), "weights.st", "deep"));
  CHECK(says(error("{\"t\":" + std::string(50'000, '[') + std::string(50'000, ']') + "}"), "weights.st",
             "deep"));
}

TEST_CASE("an entry with missing or wrong fields is an error") {
  const auto error = [](const std::string& value) { return error_in(R"({"wte":)" + value + "}"); };
  CHECK(says(error("3"), "weights.st", "\"wte\"", "3"));
  CHECK(says(error("[1]"), "weights.st", "\"wte\"", "an array"));
  CHECK(says(error(R"({"shape":[16],"data_offsets":[0,16]})"), "weights.st", "\"wte\"", "no dtype"));
  CHECK(says(error(R"({"dtype":"U8","data_offsets":[0,16]})"), "weights.st", "\"wte\"", "no shape"));
  CHECK(says(error(R"({"dtype":"U8","shape":[16]})"), "weights.st", "\"wte\"", "no data_offsets"));
  CHECK(says(error(R"({"dtype":8,"shape":[16],"data_offsets":[0,16]})"), "weights.st", "\"wte\"", "dtype"));
  for (const char* dimension :
       {"-1", "1.5", "16.0", "1e1", "\"16\"", "null", "true", "[16]", "9223372036854775808",
        "18446744073709551615", "18446744073709551616", "-9223372036854775808"}) {
    CAPTURE(dimension);
    const std::string list = std::string("[") + dimension + "]";
    CHECK(
        says(error(entry("U8", list, "[0,16]")), "weights.st", "\"wte\"", "shape", "not an integer from 0"));
    const std::string offsets = std::string("[0,") + dimension + "]";
    CHECK(says(error(entry("U8", "[16]", offsets)), "weights.st", "\"wte\"", "data_offsets",
               "not an integer from 0"));
  }
  CHECK(says(error(entry("U8", "16", "[0,16]")), "weights.st", "\"wte\"", "shape", "not an array"));
  CHECK(says(error(entry("U8", "{\"a\":16}", "[0,16]")), "weights.st", "\"wte\"", "shape", "not an array"));
  CHECK(says(error(entry("U8", "[16]", "[]")), "weights.st", "\"wte\"", "0 data_offsets"));
  CHECK(says(error(entry("U8", "[16]", "[16]")), "weights.st", "\"wte\"", "1 data_offsets"));
  CHECK(says(error(entry("U8", "[16]", "[0,8,16]")), "weights.st", "\"wte\"", "3 data_offsets"));
}

TEST_CASE("a shape whose size overflows is an error") {
  const auto error = [](const std::string& dtype, const std::string& shape) {
    return error_in(R"({"t":)" + entry(dtype, shape, "[0,16]") + "}");
  };
  CHECK(says(error("F32", "[4611686018427387904]"), "weights.st", "\"t\"", "[4611686018427387904]"));
  CHECK(says(error("F32", "[4294967296, 4294967296]"), "weights.st", "\"t\"", "too large"));
  CHECK(says(error("U8", "[4294967296, 4294967297]"), "weights.st", "\"t\"", "too large"));
  // 2^64 + 16 bytes, which 64 bits would hold as 16.
  CHECK(says(error("U8", "[16, 1152921504606846977]"), "weights.st", "\"t\"", "too large"));
  CHECK(says(error("F4", "[4294967296, 4294967296]"), "weights.st", "\"t\"", "too large"));
}

TEST_CASE("a tensor outside the file, or with its end before its begin, is an error") {
  const auto error = [](const std::string& offsets) {
    return error_in(R"({"t":)" + entry("U8", "[4]", offsets) + "}");
  };
  CHECK(error_in(R"({"t":)" + entry("U8", "[4]", "[0,4]") + "}", 4) == "");
  CHECK(says(error("[13,17]"), "weights.st", "\"t\"", "13 to 17", "0 to 16"));
  CHECK(says(error("[17,21]"), "weights.st", "\"t\"", "17 to 21"));
  CHECK(says(error("[4,0]"), "weights.st", "\"t\"", "4 to 0"));
  CHECK(says(error("[0,9223372036854775807]"), "weights.st", "\"t\"", "9223372036854775807"));
  CHECK(says(error("[9223372036854775807,4]"), "weights.st", "\"t\"", "9223372036854775807"));
}

TEST_CASE("two tensors that share a byte are an error that names both") {
  const auto error = [](const std::string& a, const std::string& b) {
    return error_in(R"({"first":)" + entry("F4", "[]", a) + R"(,"second":)" + entry("F4", "[]", b) + "}");
  };
  CHECK(error("[0,8]", "[8,16]") == "");
  CHECK(error("[8,16]", "[0,8]") == "");
  for (const auto& [a, b] :
       {std::pair("[0,9]", "[8,16]"), std::pair("[8,16]", "[0,9]"), std::pair("[0,8]", "[0,8]"),
        std::pair("[0,16]", "[4,8]"), std::pair("[4,8]", "[0,16]")}) {
    CHECK(says(error(a, b), "weights.st", "\"first\"", "\"second\""));
  }
}

TEST_CASE("bytes outside all tensors are an error that names them, as in the format's own reader") {
  const auto error = [](const std::string& a, const std::string& b) {
    return error_in(R"({"a":)" + entry("U8", "[4]", a) + R"(,"b":)" + entry("U8", "[4]", b) + "}", 12);
  };
  CHECK(says(error("[4,8]", "[8,12]"), "weights.st", "bytes 0 to 4 of the data belong to no tensor"));
  CHECK(says(error("[0,4]", "[8,12]"), "weights.st", "bytes 4 to 8 of the data belong to no tensor"));
  CHECK(says(error("[4,8]", "[0,4]"), "weights.st", "bytes 8 to 12 of the data belong to no tensor"));
  CHECK(says(error_in("{}", 1), "bytes 0 to 1 of the data belong to no tensor"));
}

TEST_CASE("metadata may be null, which means none") {
  CHECK(error_in(R"({"__metadata__":null,"t":)" + entry("U8", "[16]", "[0,16]") + "}") == "");
}

TEST_CASE("two tensors of one name, and invalid metadata, are errors") {
  const std::string tensor = entry("U8", "[0]", "[0,0]");
  CHECK(says(error_in(R"({"t":)" + tensor + R"(,"t":)" + tensor + "}"), "weights.st", "\"t\" twice"));
  CHECK(says(error_in(R"({"__metadata__":[1]})"), "weights.st", "__metadata__"));
  CHECK(says(error_in(R"({"t":{"dtype":"U8","dtype":"I8","shape":[0],"data_offsets":[0,0]}})"),
             "\"dtype\" twice"));
}

TEST_CASE("a tensor's name cannot break the error's line") {
  const std::string name = std::string("line\\nbreak") + std::string(1000, 'n');
  const std::string message = error_in("{\"" + name + "\":3}");
  CHECK(says(message, "weights.st", "line\\nbreak"));
  CHECK(message.size() < 300);
}

TEST_CASE("the embedded model's tensors are the ones of a GPT-2") {
  const Safetensors file(kSource / "models" / "tales-6m" / "model.safetensors");
  const StoredTensor* embedding = file.find("transformer.wte.weight");
  if (!embedding) embedding = file.find("wte.weight");
  REQUIRE(embedding);
  CHECK(to_string(embedding->shape) == "[4096, 256]");
  CHECK(embedding->dtype == "F16");
  CHECK(embedding->bytes.size() == 4096 * 256 * 2);
  CHECK(file.find("no such tensor") == nullptr);
}

TEST_CASE("the reference tensors hold the ids listed in their JSON") {
  const Safetensors file(kSource / "tests" / "reference" / "logits.safetensors");
  std::ifstream in(kSource / "tests" / "reference" / "logits.json");
  const json reference = json::parse(in);
  int cases = 0;
  for (const json& one : reference["cases"]) {
    const StoredTensor* tokens = file.find(one["name"].get<std::string>() + ".tokens");
    REQUIRE(tokens);
    REQUIRE(tokens->dtype == "I32");
    std::vector<int> ids(tokens->bytes.size() / 4);
    std::memcpy(ids.data(), tokens->bytes.data(), tokens->bytes.size());
    CHECK(ids == one["tokens"].get<std::vector<int>>());
    ++cases;
  }
  CHECK(cases > 0);
}

TEST_CASE("a file moves, and its tensors stay readable") {
  const TemporaryFolder folder;
  const auto write = [&](const std::string& name, const std::string& data) {
    return folder.write(name, file_of(R"({"t":)" + entry("U8", "[4]", "[0,4]") + "}", data));
  };
  Safetensors first(write("first.safetensors", "1111"));
  Safetensors moved(std::move(first));
  CHECK(text(*moved.find("t")) == "1111");
  CHECK(first.find("t") == nullptr);  // NOLINT: what is left is empty, and safe to ask
  const Safetensors outlives = [&] {
    Safetensors local(write("local.safetensors", "3333"));
    return Safetensors(std::move(local));
  }();
  CHECK(text(*outlives.find("t")) == "3333");  // the one that was moved from has not unmapped it
  Safetensors second(write("second.safetensors", "2222"));
  second = std::move(moved);
  CHECK(text(*second.find("t")) == "1111");
  MappedFile mapped(folder.path() / "first.safetensors");
  {
    MappedFile ends(folder.write("other", "4444"));
    mapped = std::move(ends);
  }
  CHECK(static_cast<char>(mapped.bytes()[0]) == '4');
  CHECK(error_message([&] { mapped.require_whole(); }) == "");
  std::filesystem::resize_file(folder.path() / "other", 3);
  CHECK(says(error_message([&] { mapped.require_whole(); }), (folder.path() / "other").string()));
}

TEST_CASE("an unreadable file is an error with its path") {
  const TemporaryFolder folder;
  const auto error = [](const std::filesystem::path& file) {
    return error_message([&] { Safetensors{file}; });
  };
  CHECK(says(error(folder.path() / "none.safetensors"), "none.safetensors does not exist"));
  CHECK(says(error(folder.path()), folder.path().string(), "is a folder"));
  CHECK(says(error(folder.write("empty.safetensors", "")), "empty.safetensors", "0 bytes"));
  CHECK(says(error(folder.path() / "empty.safetensors" / "x"), "empty.safetensors/x"));
  CHECK(says(error("/dev/null"), "/dev/null is not a regular file"));
  CHECK(says(error(folder.write("page.safetensors", "<!DOCTYPE html><html></html>")), "page.safetensors"));
  const auto closed = folder.write("closed.safetensors", "x");
  std::filesystem::permissions(closed, std::filesystem::perms::none);
  CHECK(says(error(closed), "closed.safetensors"));  // for root the file opens, and is too short
}

TEST_CASE("a truncated or altered file is an error or still in bounds") {
  const std::string header =
      R"({"a":)" + entry("F32", "[2,2]", "[0,16]") + R"(,"b":)" + entry("F16", "[4]", "[16,24]") + "}";
  const std::string whole = file_of(header, std::string(24, 'x'));
  for (std::size_t length = 0; length < whole.size(); ++length) {
    CHECK(says(error_message([&] { parse(whole.substr(0, length)); }), "weights.st"));
  }
  std::mt19937 random(2);
  int rejected = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string file = whole;
    for (unsigned i = 0; i <= random() % 3; ++i)
      file[random() % (8 + header.size())] = "09{}[]\",:-e.\0\xff"[random() % 14];
    try {
      for (const auto& [name, tensor] : parse(file)) {
        const auto* begin = reinterpret_cast<const char*>(tensor.bytes.data());
        REQUIRE(begin >= file.data());
        REQUIRE(begin + tensor.bytes.size() <= file.data() + file.size());
      }
    } catch (const Error& error) {
      REQUIRE(says(error.what(), "weights.st"));
      ++rejected;
    }
  }
  CHECK(rejected > 1000);
}
