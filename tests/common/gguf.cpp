// The GGUF reader: what it returns is what the file holds, and nothing broken gets through.
#include "common/model/gguf.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/error_message.h"
#include "tests/gguf_writer.h"
#include "tests/temporary_folder.h"

using namespace staircase;

namespace {

GgufContents parse(const std::string& file) {
  return parse_gguf(std::as_bytes(std::span(file)), "model.gguf");
}

std::string error(const std::string& file) {
  return error_message([&] { parse(file); });
}

std::string error(const GgufWriter& writer) {
  return error(writer.bytes());
}

GgufWriter small_file() {
  GgufWriter writer;
  writer.text("general.architecture", "llama")
      .number("llama.block_count", 2)
      .real("llama.rope.freq_base", 5e5f)
      .truth("tokenizer.ggml.add_bos_token", true)
      .texts("tokenizer.ggml.tokens", {"a", "", "Ġthe"})
      .numbers<std::int32_t>("tokenizer.ggml.token_type", 5, {1, 3, -1})
      .numbers<float>("tokenizer.ggml.scores", 6, {0.5f, -1.0f, 2.0f})
      .floats("norm", {3}, {1, 2, 3})
      .tensor("matrix", {32, 2}, 8, std::string(34, 'x') + std::string(34, 'y'));
  return writer;
}

GgufFile opened(const std::string& bytes) {
  return {parse(bytes), "model.gguf"};
}

}  // namespace

TEST_CASE("metadata and tensors are those of the file") {
  const std::string bytes = small_file().bytes();
  const GgufFile file = opened(bytes);
  CHECK(file.text("general.architecture") == "llama");
  CHECK(file.integer("llama.block_count") == 2);
  CHECK(file.number("llama.rope.freq_base") == 500000.0);
  CHECK(file.boolean("tokenizer.ggml.add_bos_token") == true);
  CHECK(file.texts("tokenizer.ggml.tokens") == std::vector<std::string>{"a", "", "Ġthe"});
  CHECK(file.integers("tokenizer.ggml.token_type") == std::vector<std::int64_t>{1, 3, -1});
  CHECK(file.numbers("tokenizer.ggml.scores") == std::vector<float>{0.5f, -1.0f, 2.0f});
  REQUIRE(file.tensors().size() == 2);
  const GgufFile::Tensor& matrix = file.tensors().at("matrix");
  CHECK(matrix.dtype == "Q8_0");
  CHECK(matrix.shape == std::vector<std::int64_t>{2, 32});  // the file has the innermost dimension first
  CHECK(std::string(reinterpret_cast<const char*>(matrix.bytes.data()), 68) ==
        std::string(34, 'x') + std::string(34, 'y'));
  CHECK(file.tensors().at("norm").bytes.size() == 12);
}

TEST_CASE("a missing key is nothing, and another type is an error with the value") {
  const std::string bytes = small_file().bytes();
  const GgufFile file = opened(bytes);
  CHECK(!file.text("no.such.key"));
  CHECK(!file.integer("no.such.key"));
  CHECK(!file.texts("no.such.key"));
  const auto error_of = [](const auto& get) { return error_message(get); };
  CHECK(says(error_of([&] { file.text("llama.block_count"); }), "model.gguf", "llama.block_count is 2",
             "string"));
  CHECK(says(error_of([&] { file.integer("general.architecture"); }), "\"llama\"", "integer"));
  CHECK(says(error_of([&] { file.integer("llama.rope.freq_base"); }), "500000", "integer"));
  CHECK(says(error_of([&] { file.number("llama.block_count"); }), "2", "floating-point"));
  CHECK(says(error_of([&] { file.boolean("llama.block_count"); }), "2", "true or false"));
  CHECK(says(error_of([&] { file.integer("tokenizer.ggml.tokens"); }), "a list of 3", "integer"));
  CHECK(says(error_of([&] { file.texts("tokenizer.ggml.token_type"); }), "strings"));
  CHECK(says(error_of([&] { file.texts("llama.block_count"); }), "list of strings"));
  CHECK(says(error_of([&] { file.integers("tokenizer.ggml.tokens"); }), "list of integers"));
  CHECK(says(error_of([&] { file.integers("tokenizer.ggml.scores"); }), "list of integers"));
  CHECK(says(error_of([&] { file.numbers("tokenizer.ggml.token_type"); }), "list of floating-point"));
}

TEST_CASE("numbers of every type are read, and a negative one is not a count") {
  GgufWriter writer;
  writer.pair("u8", 0, raw<std::uint8_t>(200))
      .pair("i8", 1, raw<std::int8_t>(-3))
      .pair("u16", 2, raw<std::uint16_t>(60000))
      .pair("i16", 3, raw<std::int16_t>(300))
      .pair("i32", 5, raw<std::int32_t>(-1))
      .pair("u64", 10, raw<std::uint64_t>(1))
      .pair("i64", 11, raw<std::int64_t>(7))
      .pair("zero", 5, raw<std::int32_t>(0))
      .pair("false", 7, raw<std::uint8_t>(0))
      .pair("true", 7, raw<std::uint8_t>(2))
      .pair("least", 11, raw<std::int64_t>(-1))
      .pair("f64", 12, raw<double>(0.1));
  const std::string bytes = writer.bytes();
  const GgufFile file = opened(bytes);
  CHECK(file.integer("u8") == 200);
  CHECK(file.integer("u16") == 60000);
  CHECK(file.integer("i16") == 300);
  CHECK(file.integer("u64") == 1);
  CHECK(file.integer("i64") == 7);
  CHECK(file.integer("zero") == 0);
  CHECK(file.boolean("false") == false);
  CHECK(file.boolean("true") == true);  // any other byte
  CHECK(file.number("f64") == 0.1);
  CHECK(says(error_message([&] { file.integer("least"); }), "-1", "from 0 on"));
  CHECK(says(error_message([&] { file.integer("i8"); }), "-3", "from 0 on"));
  CHECK(says(error_message([&] { file.integer("i32"); }), "-1", "from 0 on"));
}

TEST_CASE("the pointer that git leaves without git-lfs is named as one") {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4665\nsize 9\n";
  CHECK(says(error_message([&] { parse_gguf(std::as_bytes(std::span(pointer)), "model.gguf"); }),
             "model.gguf is only a git-lfs pointer", "git lfs pull"));
}

TEST_CASE("another kind of file, another version and the other byte order are named") {
  const auto with = [](const std::string& magic, std::uint32_t version) {
    GgufWriter writer = small_file();
    writer.magic = magic;
    writer.version = version;
    return error(writer);
  };
  CHECK(with("GGUF", 3) == "");
  CHECK(with("GGUF", 2) == "");
  CHECK(says(with("GGUF", 1), "model.gguf", "version 1", "2 and 3"));
  CHECK(says(with("GGUF", 4), "model.gguf", "version 4", "2 and 3"));
  CHECK(says(with("GGUF", 0), "version 0"));
  CHECK(says(with("GGUF", 3u << 24), "model.gguf", "big-endian"));
  CHECK(says(with("GGML", 3), "model.gguf", "does not begin with", "GGUF"));
  CHECK(says(error("<!DOCTYPE html>"), "model.gguf", "does not begin with"));
  CHECK(says(error(""), "model.gguf", "its first four bytes"));
}

TEST_CASE("counts for which the file has no room are errors before anything is allocated") {
  const auto with = [](std::uint64_t tensors, std::uint64_t pairs) {
    GgufWriter writer = small_file();
    writer.more_tensors = tensors;
    writer.more_pairs = pairs;
    return error(writer);
  };
  CHECK(says(with(std::uint64_t{1} << 60, 0), "model.gguf", "1152921504606846978 tensors", "do not fit"));
  CHECK(says(with(0, std::uint64_t{1} << 60), "model.gguf", "pairs of metadata", "do not fit"));
  CHECK(says(with(~std::uint64_t{2}, 0), "model.gguf"));
  CHECK(says(with(0, ~std::uint64_t{20}), "model.gguf"));
  CHECK(says(with(1, 0), "model.gguf"));
  CHECK(says(with(0, 1), "model.gguf"));
  const auto list = [](std::uint32_t type, std::uint64_t size) {
    return error(GgufWriter().pair("list", 9, raw(type) + raw(size) + std::string(100, '\0')));
  };
  CHECK(says(list(8, std::uint64_t{1} << 61), "elements of \"list\"", "do not fit"));
  CHECK(says(list(8, std::uint64_t{1} << 63), "elements of \"list\"", "do not fit"));
  CHECK(says(list(10, std::uint64_t{1} << 61), "elements of \"list\"",
             "do not fit"));  // times 8 would wrap to 0
  CHECK(says(list(4, 26), "elements of \"list\"", "do not fit"));
  CHECK(list(4, 25) == "");
  // After 24 bytes of the file's own: 8 + 4 of the key, and its type, those of the elements and their number.
  CHECK(list(4, 26) ==
        "model.gguf announces 26 elements of \"list\", which do not fit into the 100 bytes from byte 52 on");
}

TEST_CASE("a string that is longer than the file is an error") {
  for (const std::uint64_t size :
       {std::uint64_t{101}, std::uint64_t{1} << 63, ~std::uint64_t{0}, ~std::uint64_t{7}}) {
    CHECK(says(error(GgufWriter().pair("text", 8, raw(size) + std::string(100, 'x'))), "model.gguf",
               "the value of \"text\"", std::to_string(size)));
    CHECK(says(
        error(GgufWriter().pair(
            "texts", 9, raw<std::uint32_t>(8) + raw<std::uint64_t>(1) + raw(size) + std::string(100, 'x'))),
        "model.gguf", "the value of \"texts\""));
  }
}

TEST_CASE("where a file ends too early, the error has what is missing, its place and the size of the file") {
  const std::string whole =
      GgufWriter().pair("text", 8, raw<std::uint64_t>(101) + std::string(100, 'x')).bytes();
  REQUIRE(whole.size() == 148);
  CHECK(error(whole) ==
        "model.gguf ends inside the value of \"text\": 101 bytes from byte 48 on, but the file has 148");
  CHECK(error(whole.substr(0, 40)) ==
        "model.gguf ends inside the value of \"text\": 8 bytes from byte 40 on, but the file has 40");
}

TEST_CASE("a list of lists, an unknown type and a duplicate key are errors") {
  CHECK(says(error(GgufWriter().pair("nested", 9,
                                     raw<std::uint32_t>(9) + raw<std::uint64_t>(1) + std::string(20, '\0'))),
             "model.gguf", "\"nested\"", "list of lists"));
  CHECK(says(error(GgufWriter().pair("odd", 13, std::string(20, '\0'))), "\"odd\"", "type 13"));
  CHECK(says(error(GgufWriter().pair("odd", 9,
                                     raw<std::uint32_t>(99) + raw<std::uint64_t>(1) + std::string(20, '\0'))),
             "\"odd\"", "type 99"));
  CHECK(says(error(GgufWriter().number("a", 1).number("a", 1)), "\"a\" twice"));
  CHECK(says(error(GgufWriter().floats("t", {1}, {1}).floats("t", {1}, {1})), "\"t\"", "twice"));
}

TEST_CASE("a tensor outside the data, or on another's bytes, is an error") {
  const auto at = [](std::uint64_t offset) {
    return error(
        GgufWriter().floats("first", {16}, std::vector<float>(16)).tensor_at("second", {8}, 0, offset));
  };
  CHECK(says(at(0), "\"first\"", "\"second\"", "share bytes"));
  CHECK(says(at(32), "share bytes"));
  CHECK(says(at(64), "\"second\"", "32 bytes from byte 64", "64 of data", "cut off"));
  CHECK(says(at(33), "\"second\"", "33", "multiple of the alignment 32"));
  CHECK(says(at(~std::uint64_t{31}), "\"second\"", "cut off"));
  CHECK(says(at(std::uint64_t{1} << 63), "\"second\"", "cut off"));
}

TEST_CASE("impossible dimensions, and products that wrap, are errors") {
  const auto of = [](const std::vector<std::uint64_t>& dimensions, std::uint32_t type = 0) {
    return error(GgufWriter().tensor("t", dimensions, type, std::string(64, '\0')));
  };
  CHECK(of({16}) == "");
  CHECK(of({2, 2, 2, 2}) == "");
  CHECK(says(of({}), "\"t\"", "0 dimensions"));
  CHECK(says(of({1, 1, 1, 1, 1}), "\"t\"", "5 dimensions"));
  CHECK(says(of({16, 0}), "\"t\"", "dimension of 0"));
  CHECK(says(of({std::uint64_t{1} << 63}), "\"t\"", "dimension of 9223372036854775808"));
  CHECK(says(of({(std::uint64_t{1} << 63) - 1}), "\"t\"", "too large"));
  CHECK(says(of({std::uint64_t{1} << 32, std::uint64_t{1} << 32}), "\"t\"", "too large"));
  CHECK(says(of({std::uint64_t{1} << 31, std::uint64_t{1} << 31, 4}), "\"t\"", "too large"));  // 2^64 numbers
  CHECK(says(of({(std::uint64_t{1} << 62) + 16}), "\"t\"", "too large"));  // 2^64 + 64 bytes
  CHECK(says(of({std::uint64_t{1} << 63 >> 5 << 5, 32}, 8), "\"t\""));
  CHECK(says(of({33}, 8), "\"t\"", "rows of 33", "Q8_0", "blocks of 32"));
  CHECK(says(of({32 * 3}, 12), "\"t\"", "rows of 96", "Q4_K", "blocks of 256"));
}

TEST_CASE("the alignment is that of the file, and must be a power of two") {
  for (const std::uint32_t alignment : {8, 64}) {
    for (int length = 0; length < 64; ++length) {  // wherever the metadata end
      GgufWriter writer;
      writer.alignment = alignment;
      writer.number("general.alignment", alignment).text("name", std::string(length, 'x'));
      const std::string bytes = writer.floats("a", {1}, {1}).floats("b", {1}, {2}).bytes();
      const GgufContents contents = parse(bytes);
      float b = 0;
      std::memcpy(&b, contents.tensors.at("b").bytes.data(), sizeof b);
      CHECK(b == 2.0f);
    }
  }
  const auto with = [](std::uint32_t type, const std::string& value) {
    return error(GgufWriter().pair("general.alignment", type, value).floats("a", {1}, {1}));
  };
  CHECK(with(4, raw<std::uint32_t>(1)) == "");
  CHECK(says(with(4, raw<std::uint32_t>(1u << 30)), "cut off"));  // it may be so large, but this file is not
  for (const std::uint32_t alignment : {0u, 3u, 33u, 48u, 0x8000'0000u, 0xFFFF'FFFFu}) {
    CHECK(says(with(4, raw(alignment)), "general.alignment is " + std::to_string(alignment), "power of two"));
  }
  CHECK(says(with(5, raw<std::int32_t>(-32)), "general.alignment is -32", "power of two"));
  CHECK(says(with(8, gguf_text("32")), "general.alignment is \"32\"", "power of two"));
}

TEST_CASE("a type that cannot be read is named, and takes no bytes") {
  const std::string bytes = GgufWriter()
                                .tensor("a", {256}, 10, std::string(84, 'x'))
                                .tensor("b", {7}, 77, std::string(7, 'x'))
                                .bytes();
  const GgufContents contents = parse(bytes);
  CHECK(contents.tensors.at("a").dtype == "Q2_K");
  CHECK(contents.tensors.at("b").dtype == "type 77");
  CHECK(contents.tensors.at("a").bytes.empty());
}

TEST_CASE("a truncated file is one sentence, and an altered one is that or in bounds") {
  const std::string whole = small_file().bytes();
  REQUIRE(error(whole) == "");
  for (std::size_t length = 0; length < whole.size(); ++length) {
    CAPTURE(length);
    CHECK(says(error(whole.substr(0, length)), "model.gguf"));
  }
  std::mt19937 random(3);
  int rejected = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string file = whole;
    for (unsigned i = 0; i <= random() % 3; ++i) {
      file[random() % (whole.size() - 80)] = "\0\1\2\3\4\6\x8\x9\x20\x7f\x80\xff"[random() % 12];
    }
    try {
      const GgufFile altered(parse(file), "model.gguf");
      for (const auto& [name, tensor] : altered.tensors()) {
        const auto* const begin = reinterpret_cast<const char*>(tensor.bytes.data());
        REQUIRE(begin >= file.data());
        REQUIRE(begin + tensor.bytes.size() <= file.data() + file.size());
      }
      for (const auto& [key, value] : altered.metadata()) {
        const auto* const list = std::get_if<GgufArray>(&value);
        if (list != nullptr && list->type == 8) CHECK(altered.texts(key)->size() == list->size);
      }
    } catch (const Error& fault) {
      REQUIRE(says(fault.what(), "model.gguf"));
      ++rejected;
    }
  }
  CHECK(rejected > 1000);
}

namespace {

GgufWriter part(std::uint16_t number, std::uint16_t count) {
  GgufWriter writer;
  writer.pair("split.no", 2, raw(number)).pair("split.count", 2, raw(count));
  return writer;
}

/// model-00001-of-00003.gguf and so on; the first has the metadata and no tensor.
void write_parts(const TemporaryFolder& folder, std::uint32_t announced = 2) {
  folder.write(
      "model-00001-of-00003.gguf",
      part(0, 3).text("general.architecture", "llama").number("split.tensors.count", announced).bytes());
  folder.write("model-00002-of-00003.gguf", part(1, 3).floats("a", {1}, {1}).bytes());
  folder.write("model-00003-of-00003.gguf", part(2, 3).floats("b", {1}, {2}).bytes());
}

}  // namespace

TEST_CASE("a file in parts is opened by any of them") {
  const TemporaryFolder folder;
  write_parts(folder);
  for (const char* name :
       {"model-00001-of-00003.gguf", "model-00002-of-00003.gguf", "model-00003-of-00003.gguf"}) {
    const GgufFile file(folder.path() / name);
    CHECK(file.text("general.architecture") == "llama");
    CHECK(file.tensors().size() == 2);
    CHECK(file.tensors().at("b").file == folder.path() / "model-00003-of-00003.gguf");
    float b = 0;
    std::memcpy(&b, file.tensors().at("b").bytes.data(), sizeof b);
    CHECK(b == 2.0f);
    CHECK(file.file() == folder.path() / "model-00001-of-00003.gguf");
  }
  for (int number = 1; number <= 3; ++number) {  // a name that is nothing else
    const std::string rest = fmt::format("-0000{}-of-00003.gguf", number);
    std::filesystem::rename(folder.path() / ("model" + rest), folder.path() / rest);
  }
  CHECK(GgufFile(folder.path() / "-00003-of-00003.gguf").tensors().size() == 2);
}

TEST_CASE("a part that has become shorter since is named, whichever it is") {
  const TemporaryFolder folder;
  write_parts(folder);
  const GgufFile file(folder.path() / "model-00001-of-00003.gguf");
  for (int number = 1; number <= 3; ++number) {
    const auto part = folder.path() / fmt::format("model-0000{}-of-00003.gguf", number);
    const std::uintmax_t size = std::filesystem::file_size(part);
    CHECK(error_message([&] { file.require_whole(); }) == "");
    std::filesystem::resize_file(part, size - 1);
    CHECK(says(error_message([&] { file.require_whole(); }), part.string(), "became shorter"));
    std::filesystem::resize_file(part, size);
  }
}

TEST_CASE("parts that are missing, duplicate or of another model are named") {
  const TemporaryFolder folder;
  const auto open = [&](const char* name) { return error_message([&] { GgufFile{folder.path() / name}; }); };
  folder.write("other.gguf", part(1, 3).bytes());
  CHECK(says(open("other.gguf"), "other.gguf", "one of 3 parts", "-of-00003.gguf"));
  for (const char* name : {"-of-00003.gguf", "00001-of-00003.gguf"}) {
    folder.write(name, part(1, 3).bytes());
    CHECK(says(open(name), "one of 3 parts", "its name does not end in -NNNNN"));
  }
  write_parts(folder);
  std::filesystem::remove(folder.path() / "model-00002-of-00003.gguf");
  CHECK(
      says(open("model-00003-of-00003.gguf"), "one of 3 parts", "\"model-00002-of-00003.gguf\" is missing"));
  std::filesystem::create_symlink("model-00002-of-00003.gguf", folder.path() / "model-00002-of-00003.gguf");
  CHECK(says(open("model-00001-of-00003.gguf"), "model-00002-of-00003.gguf cannot be read: Too many levels"));
  std::filesystem::remove(folder.path() / "model-00002-of-00003.gguf");
  folder.write("model-00002-of-00003.gguf", part(2, 3).bytes());
  CHECK(says(open("model-00001-of-00003.gguf"), "model-00002-of-00003.gguf", "part 3 of 3", "part 2 of 3"));
  folder.write("model-00002-of-00003.gguf", part(1, 4).floats("a", {1}, {1}).bytes());
  CHECK(says(open("model-00001-of-00003.gguf"), "model-00002-of-00003.gguf", "part 2 of 4", "part 2 of 3"));
  folder.write("model-00002-of-00003.gguf", part(1, 3).floats("b", {1}, {2}).bytes());
  CHECK(says(open("model-00001-of-00003.gguf"), "\"b\"", "another part"));
  write_parts(folder, 5);
  CHECK(says(open("model-00001-of-00003.gguf"), "5 tensors", "hold 2"));
  write_parts(folder, 1);
  CHECK(says(open("model-00001-of-00003.gguf"), "1 tensors", "hold 2"));
  write_parts(folder, 2);
  CHECK(open("model-00001-of-00003.gguf") == "");
  folder.write("model-00002-of-00003.gguf", part(1, 3).bytes().substr(0, 30));
  CHECK(says(open("model-00001-of-00003.gguf"), "model-00002-of-00003.gguf"));
}

TEST_CASE("a file that is not GGUF is an error with its path") {
  const TemporaryFolder folder;
  const auto open = [&](const std::filesystem::path& file) { return error_message([&] { GgufFile{file}; }); };
  CHECK(says(open(folder.path() / "none.gguf"), "none.gguf does not exist"));
  CHECK(says(open(folder.path()), "is a folder"));
  CHECK(says(open(folder.write("empty.gguf", "")), "empty.gguf"));
}
