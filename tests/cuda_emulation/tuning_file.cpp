// The table of a GPU's fastest kernels: how it is measured, written, read and refused.
#include "common/program/tuning_file.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "bench/gpu_tune.h"
#include "bench/random_model.h"
#include "tests/captured.h"
#include "tests/error_message.h"
#include "tests/idle_device.h"
#include "tests/temporary_folder.h"

namespace staircase {
namespace {

using cuda::Form, cuda::ProductShape, cuda::Tuning;

const ProductShape kOne{1, 768, 2304, DType::kBFloat16, false}, kEight{8, 768, 2304, DType::kInt4, false};
const Tuning kTable{{{kOne, {64, 16, 6}}, {kEight, {512, 0, 0}}}};

/// A variable of the environment, for as long as this lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* const before = std::getenv(name)) before_ = before;
    set(value);
  }
  ~Variable() { set(before_ ? before_->c_str() : nullptr); }
  Variable(const Variable&) = delete;

 private:
  void set(const char* value) const {
    if (value == nullptr) {
      unsetenv(name_);
    } else {
      setenv(name_, value, 1);
    }
  }

  const char* name_;
  std::optional<std::string> before_;
};

std::string refusal(const std::string& text, const std::string& card = "A GPU") {
  return error_message([&] { read_tuning(text, card, "the file"); });
}

TEST_CASE("a table that was written is read again") {
  const Tuning again = read_tuning(written(kTable, "A \"GPU\""), "A \"GPU\"", "the file");
  CHECK(again.forms == kTable.forms);
  CHECK(read_tuning(written({}, "A GPU"), "A GPU", "the file").forms.empty());
}

TEST_CASE(
    "a table that is damaged, of another card, or of kernels that do not exist is refused in one sentence") {
  const std::string whole = written(kTable, "A GPU");
  CHECK(refusal(whole).empty());
  CHECK(says(refusal(whole, "Another GPU"), "the file is for \"A GPU\", but this is \"Another GPU\""));
  for (std::size_t length = 0; length + 1 < whole.size(); ++length) {
    CAPTURE(length);
    CHECK(says(refusal(whole.substr(0, length)), "the file"));
  }
  CHECK(says(refusal("[]"), "the file"));
  CHECK(says(refusal(R"({"card": 1, "products": []})"), "is not a table of a GPU"));
  CHECK(says(refusal(R"({"card": "A GPU", "products": {}})"), "is not a table of a GPU"));
  CHECK(says(refusal(R"({"card": "A GPU", "products": [1]})"), "a product is 1"));
  const auto with = [&](const std::string& before, const std::string& after) {
    std::string text = whole;
    text.replace(text.find(before), before.size(), after);
    return refusal(text);
  };
  CHECK(says(with("\"rows\": 1", "\"rows\": 0"), "\"rows\" is 0", "at least 1"));
  CHECK(says(with("\"rows\": 1", "\"row\": 1"), "a product has no \"rows\""));
  CHECK(says(with("\"in\": 768", "\"in\": 768.5"), "\"in\" is 768.5"));
  CHECK(says(with("\"in\": 768", "\"in\": 99999999999"), "\"in\" is 99999999999"));
  CHECK(says(with("\"out\": 2304", "\"out\": \"2304\""), "\"out\" is"));
  CHECK(says(with("\"bfloat16\"", "\"bfloat\""), "\"dtype\" is", "bfloat"));
  CHECK(says(with("\"bfloat16\"", "3"), "\"dtype\" is 3"));
  CHECK(says(with("false", "0"), "\"gated\" is 0"));
  CHECK(says(with("\"lanes\": 64", "\"lanes\": 96"), "no kernel of 96 lanes, 16 inputs and 6 blocks",
             "768 to 2304"));
  CHECK(says(with("\"blocks\": 6", "\"blocks\": 13"), "no kernel of 64 lanes"));
  CHECK(says(with("\"in\": 768", "\"in\": 2000"), "no kernel of 64 lanes"));  // 64 times 16 is less
  CHECK(says(with("\"rows\": 8", "\"rows\": 9"), "no kernel of 512 lanes"));
  CHECK(with("\"rows\": 1", "\"microseconds\": 2.5, \"rows\": 1").empty());
}

TEST_CASE("the file of a card has its name, in the folder for caches or where STAIRCASE_TUNING says") {
  const Variable file("STAIRCASE_TUNING", nullptr), cache("XDG_CACHE_HOME", nullptr), home("HOME", "/home/x");
  CHECK(tuning_file("NVIDIA H200") == "/home/x/.cache/staircase/tuning-nvidia-h200.json");
  CHECK(tuning_file("NVIDIA RTX 4090 (Laptop)") ==
        "/home/x/.cache/staircase/tuning-nvidia-rtx-4090-laptop.json");
  CHECK(tuning_file("../../a") == "/home/x/.cache/staircase/tuning-a.json");
  {
    const Variable other("XDG_CACHE_HOME", "/caches");
    CHECK(tuning_file("A GPU") == "/caches/staircase/tuning-a-gpu.json");
    const Variable named("STAIRCASE_TUNING", "/a/file");
    CHECK(tuning_file("A GPU") == "/a/file");
    const Variable none("STAIRCASE_TUNING", "");
    CHECK(tuning_file("A GPU").empty());
  }
  const Variable homeless("HOME", nullptr);
  CHECK(tuning_file("A GPU").empty());
}

/// A device that keeps its table.
struct Card : IdleDevice {
  std::string name = "A GPU";
  Tuning used;

  std::string description() const override { return name; }
  Tensor allocate(DType, const Shape&) override { return {}; }
  using Device::copy_from_host;
  void copy_from_host(std::span<const std::int32_t>, Tensor&) override {}
  using Device::copy_to_host;
  void copy_to_host(const Tensor&, std::span<std::byte>) override {}

  std::string card() const override { return name; }
  void use(const Tuning& tuning) override { used = tuning; }
};

TEST_CASE(
    "a program uses the card's table; one that it cannot use is a warning, or an error if it was named") {
  const TemporaryFolder folder;
  const Variable file("STAIRCASE_TUNING", nullptr), cache("XDG_CACHE_HOME", folder.path().c_str());
  const auto said_by = [](Card& device) {
    const Captured errors(stderr);
    use_tuning(device);
    return errors.text();
  };
  Card card;
  CHECK(said_by(card).empty());
  CHECK(card.used.forms.empty());
  std::filesystem::create_directories(folder.path() / "staircase");
  folder.write("staircase/tuning-a-gpu.json", written(kTable, "A GPU"));
  CHECK(said_by(card).empty());
  CHECK(card.used.forms == kTable.forms);

  folder.write("staircase/tuning-a-gpu.json", written(kTable, "B GPU"));
  Card other;
  const std::string warning = said_by(other);
  CHECK(begins_with(warning, "warning: "));
  CHECK(says(warning.substr(0, warning.size() - 1), "is for \"B GPU\"", "tools/gpu-check --tune"));
  CHECK(other.used.forms.empty());
  {
    const Variable none("STAIRCASE_TUNING", "");
    CHECK(said_by(other).empty());
    const Variable missing("STAIRCASE_TUNING", "/no/such/file");
    CHECK(says(error_message([&] { use_tuning(other); }), "STAIRCASE_TUNING", "/no/such/file"));
    const std::string named = folder.write("named", written(kTable, "A GPU")).string();
    const Variable set("STAIRCASE_TUNING", named.c_str());
    CHECK(said_by(other).empty());
    CHECK(other.used.forms == kTable.forms);
  }
  Card nameless;  // as a CPU is
  nameless.name = "";
  const Variable missing("STAIRCASE_TUNING", "/no/such/file");
  CHECK(said_by(nameless).empty());
}

TEST_CASE("the fastest form is the first unless another one takes 2 % less") {
  const auto of = [](std::vector<double> seconds) { return bench::fastest(seconds); };
  CHECK(of({1.0}) == 0);
  CHECK(of({1.0, 0.99, 2.0}) == 0);
  CHECK(of({1.0, 0.97, 0.975}) == 1);
  CHECK(of({1.0, 2.0, 0.5}) == 2);
  CHECK(of({1.0, 0.98, 0.9801}) == 1);
}

TEST_CASE("the products of a model are measured for each number of rows that has a choice") {
  const auto products = bench::products_to_tune(bench::published_shape("124m"), DType::kBFloat16);
  const auto count = [&](const ProductShape& shape) {
    return std::count(products.begin(), products.end(), shape);
  };
  CHECK(count({1, 768, 2304, DType::kBFloat16, false}) == 1);
  CHECK(count({1, 3072, 768, DType::kBFloat16, false}) == 1);
  CHECK(count({1, 768, 50257, DType::kBFloat16, false}) == 1);
  CHECK(count({16, 768, 768, DType::kBFloat16, false}) == 1);
  CHECK(count({32, 768, 768, DType::kBFloat16, false}) == 0);  // there is one kernel
  const auto gated = bench::products_to_tune(bench::published_shape("smollm2-135m"), DType::kInt8);
  CHECK(std::count(gated.begin(), gated.end(), ProductShape{1, 576, 3072, DType::kInt8, true}) == 1);
  CHECK(std::count(gated.begin(), gated.end(), ProductShape{8, 576, 3072, DType::kInt8, true}) == 0);
}

TEST_CASE("a table holds the form of each product that took the least time") {
  const std::vector<ProductShape> products = {kOne, kEight};
  std::vector<std::string> told;
  const Tuning tuning = bench::tune(
      products,
      [](const ProductShape& product, const Form& form) {
        if (product == kEight) return form.lanes == 256 ? 1.0 : 3.0;
        return form == Form{128, 16, 6} ? 0.5 : form.lanes == 64 ? 0.7 : 1.0;
      },
      [&](const ProductShape& product, const std::vector<bench::TimedForm>& timed, std::size_t best) {
        CHECK(timed.size() == cuda::forms_of(product).size());
        CHECK(timed[best].seconds == (product == kEight ? 1.0 : 0.5));
      });
  CHECK(tuning.forms == Tuning{{{kOne, {128, 16, 6}}, {kEight, {256, 0, 0}}}}.forms);
  CHECK(read_tuning(written(tuning, "A GPU"), "A GPU", "the file").forms == tuning.forms);
}

TEST_CASE("each form takes time on a GPU, whose caches never hold the weights") {
  const std::unique_ptr<Device> device = make_cuda_device();
  for (const ProductShape& product :
       {ProductShape{1, 64, 64, DType::kBFloat16, false}, ProductShape{1, 64, 64, DType::kInt4, true},
        ProductShape{8, 64, 64, DType::kInt8, false}}) {
    for (const Form& form : cuda::forms_of(product)) {
      const bench::TuneOptions options{
          .samples = 1, .weight_bytes = 20000, .least_products = 2, .most_products = 2};
      CHECK(bench::seconds_of_form(*device, product, form, options) > 0.0);
    }
  }
}

}  // namespace
}  // namespace staircase
