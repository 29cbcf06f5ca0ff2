#include "common/model/model_folder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/quoted.h"
#include "common/model/gguf.h"
#include "kernels/platform.h"

namespace staircase {
namespace {

namespace fs = std::filesystem;

/// The folders that may contain models. Those relative to PREFIX/bin/program and PROJECT/build/steps/program
/// come first, since both may have been moved or copied.
std::vector<fs::path> model_collections() {
  std::vector<fs::path> places;
  const auto add = [&](const fs::path& place) {
    if (std::find(places.begin(), places.end(), place) == places.end()) places.push_back(place);
  };
  if (const char* folder = std::getenv("STAIRCASE_MODELS")) add(folder);
  const fs::path program = platform::program();
  if (!program.empty()) {
    const fs::path above = program.parent_path().parent_path();
    add(above / "share" / "staircase" / "models");
    add(above.parent_path() / "models");
  }
  add(STAIRCASE_SOURCE_MODELS);
  add(STAIRCASE_INSTALLED_MODELS);
  return places;
}

/// The model in a folder: the folder itself, or the only GGUF file in it if there is no config.json. The
/// first of several parts represents all parts, and a projector for images is not a model.
fs::path model_in(const fs::path& folder, const std::string& option) {
  if (is_there(folder / "config.json")) return folder;
  std::error_code ignored;
  std::vector<std::string> models;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    const bool is_later_part = name.find("-of-") != name.npos && name.find("-00001-of-") == name.npos;
    const bool is_projector = name.find("mmproj") != name.npos;
    if (is_gguf(entry.path()) && !is_later_part && !is_projector) models.push_back(name);
  }
  if (models.size() <= 1) return models.empty() ? folder : folder / models[0];
  std::ranges::sort(models);
  constexpr std::size_t kMostNamed = 8;
  const std::size_t named = std::min(models.size(), kMostNamed);
  throw Error("{} {}: the folder has {} models, so name one of them: {}{}", option, typed(folder.string()),
              models.size(),
              fmt::join(models.begin(), models.begin() + static_cast<std::ptrdiff_t>(named), ", "),
              named < models.size() ? ", ..." : "");
}

/// Throws Error if the system cannot decide it, for example for a loop of links.
bool is_folder(const fs::path& path, const std::string& option) {
  std::error_code fault;
  const fs::file_status status = fs::status(path, fault);
  if (!fs::status_known(status)) {
    throw Error("{} {} cannot be read: {}", option, typed(path.string()), fault.message());
  }
  return fs::is_directory(status);
}

}  // namespace

fs::path find_model(const std::string& name, const std::string& option) {
  if (name.empty()) throw UsageError("{}: the name is empty", option);
  if (is_folder(name, option)) return model_in(name, option);
  if (is_there(name)) {
    if (is_gguf(name)) return name;
    throw Error("{} {}: this is a file, but a model is a folder or a .gguf file", option, typed(name));
  }
  std::string looked = "as a folder";
  std::error_code ignored;
  for (const fs::path& place : model_collections()) {
    if (fs::is_directory(place / name, ignored)) return model_in(place / name, option);
    if (fs::is_directory(place, ignored)) looked += ", in " + place.string();
  }
  throw Error("{} {}: no such model (looked {}); tools/download --list names some to download", option,
              typed(name), looked);
}

fs::path find_adapter(const std::string& name, const std::string& option) {
  if (name.empty()) throw UsageError("{}: the name is empty", option);
  if (is_folder(name, option)) return name;
  if (is_there(name)) throw Error("{} {}: this is a file, but an adapter is a folder", option, typed(name));
  std::string looked = "as a folder";
  std::error_code ignored;
  for (const fs::path& place : model_collections()) {
    const fs::path adapters = place / "adapters";
    if (fs::is_directory(adapters / name, ignored)) return adapters / name;
    if (fs::is_directory(adapters, ignored)) looked += ", in " + adapters.string();
  }
  throw Error("{} {}: no such adapter (looked {})", option, typed(name), looked);
}

}  // namespace staircase
