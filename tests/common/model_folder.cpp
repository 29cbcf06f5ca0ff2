// What was typed after --model: a folder, a GGUF file, or the name of a model that is kept somewhere.
#include "common/model/model_folder.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "tests/error_message.h"
#include "tests/temporary_folder.h"

using namespace staircase;

TEST_CASE("a model is a folder or a GGUF file, and no other file") {
  const TemporaryFolder folder;
  const auto model = folder.write("small.gguf", "GGUF");
  CHECK(find_model(model.string()) == model);
  const auto text = folder.write("small.txt", "");
  CHECK(says(error_message([&] { find_model(text.string(), "--draft-model"); }), "--draft-model", "small.txt",
             "a folder or a .gguf file"));
  CHECK(says(error_message([&] { find_model((folder.path() / "none.gguf").string()); }), "no such model",
             "tools/download --list"));
  CHECK(find_model("tales-6m").filename() == "tales-6m");
}

TEST_CASE("a folder with one GGUF model and no config.json is that file") {
  const TemporaryFolder folder;
  const std::string name = folder.path().string();
  CHECK(find_model(name) == folder.path());
  const auto model = folder.write("small.gguf", "GGUF");
  folder.write("README.md", "");
  CHECK(find_model(name) == model);
  folder.write("mmproj-small-f16.gguf", "GGUF");  // the projector of its images
  CHECK(find_model(name) == model);
  folder.write("Another.GGUF", "GGUF");
  CHECK(says(error_message([&] { find_model(name, "--draft-model"); }), "--draft-model",
             "has 2 models, so name one of them: Another.GGUF, small.gguf"));
  for (int i = 1; i <= 7; ++i) folder.write(fmt::format("b{}.gguf", i), "GGUF");
  CHECK(says(error_message([&] { find_model(name); }), "has 9 models", "b6.gguf, b7.gguf, ..."));
  std::filesystem::remove(model);
  CHECK(says(error_message([&] { find_model(name); }), "has 8 models", "b6.gguf, b7.gguf"));
  CHECK(!says(error_message([&] { find_model(name); }), "..."));
  for (int i = 1; i <= 7; ++i) std::filesystem::remove(folder.path() / fmt::format("b{}.gguf", i));
  CHECK(find_model(name) == folder.path() / "Another.GGUF");
  folder.write("config.json", "{}");
  CHECK(find_model(name) == folder.path());
}

TEST_CASE("a loop of links, or a name that is too long, is an error that says so") {
  const TemporaryFolder folder;
  for (const char* name : {"loop", "loop.gguf", "config.json"}) {
    std::filesystem::create_symlink(name, folder.path() / name);
  }
  const auto error_of = [](const std::filesystem::path& name) {
    return error_message([&] { find_model(name.string(), "--draft-model"); });
  };
  for (const char* name : {"loop", "loop.gguf", "loop/model"}) {
    CHECK(says(error_of(folder.path() / name), "--draft-model", name, "cannot be read: Too many levels"));
  }
  CHECK(says(error_of(std::string(300, 'x')), "--draft-model", "cannot be read: File name too long"));
  // It is there, and reading it reports what is wrong.
  folder.write("small.gguf", "GGUF");
  CHECK(find_model(folder.path().string()) == folder.path());
}

TEST_CASE("the parts of a GGUF model are one model") {
  const TemporaryFolder folder;
  const auto first = folder.write("large-00001-of-00002.gguf", "GGUF");
  folder.write("large-00002-of-00002.gguf", "GGUF");
  CHECK(find_model(folder.path().string()) == first);
}

TEST_CASE("a name is looked for in the folder that STAIRCASE_MODELS names before all others") {
  const TemporaryFolder folder;
  const auto own = folder.path() / "tales-6m";
  std::filesystem::create_directory(own);
  const std::filesystem::path embedded = find_model("tales-6m");
  CHECK(embedded != own);
  setenv("STAIRCASE_MODELS", folder.path().c_str(), 1);
  CHECK(find_model("tales-6m") == own);
  CHECK(says(error_message([] { find_model("tales-7m"); }),
             "--model tales-7m: no such model (looked as a folder, in ",
             ", in " + folder.path().string() + ", in "));
  CHECK(find_model("tales-1m").parent_path() == embedded.parent_path());
  unsetenv("STAIRCASE_MODELS");
}

TEST_CASE("an adapter is a folder, or has a name in the folder of adapters beside the models") {
  const TemporaryFolder folder;
  const auto error_of = [](const std::string& name) {
    return error_message([&] { find_adapter(name, "--adapter"); });
  };
  CHECK(error_of("") == "--adapter: the name is empty");
  CHECK(find_adapter(folder.path().string(), "--adapter") == folder.path());
  const std::string file = folder.write("file", "").string();
  CHECK(error_of(file) == "--adapter " + file + ": this is a file, but an adapter is a folder");
  setenv("STAIRCASE_MODELS", folder.path().c_str(), 1);
  CHECK(!contains(error_of("mine"), folder.path().string()));  // it has no folder of adapters
  std::filesystem::create_directories(folder.path() / "adapters/mine");
  CHECK(find_adapter("mine", "--adapter") == folder.path() / "adapters/mine");
  CHECK(says(error_of("yours"), "--adapter yours: no such adapter (looked as a folder, in " +
                                    (folder.path() / "adapters").string() + ", in "));
  unsetenv("STAIRCASE_MODELS");
  CHECK(error_message([] { find_adapter("yours", "--adapter"); }).find(folder.path().string()) ==
        std::string::npos);
}
