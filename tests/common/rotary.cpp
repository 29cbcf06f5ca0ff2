// Rotary positions: the speed of each pair, in both spellings of the settings, and what makes them positions.
#include "common/model/rotary.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/error_message.h"

namespace staircase {
namespace {

using nlohmann::json;

const RotaryKeys kNeox{"rotary_emb_base", "rope_theta", "rotary_pct", "partial_rotary_factor", 0.25};

Rotary rotary(const json& settings, int head_size, const RotaryKeys& keys = {}) {
  return Rotary(Settings("config.json", settings), head_size, keys);
}

std::string error_of(const json& settings, const RotaryKeys& keys = {}) {
  return error_message([&] { rotary(settings, 16, keys); });
}

/// Llama 3's scaling of a toy.
json llama3() {
  return {{"rope_type", "llama3"},
          {"factor", 8.0},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 64}};
}

/// A head turned by `position`, in double precision.
std::vector<double> turned(const Rotary& rotary, const std::vector<double>& head, int position) {
  const auto pairs = static_cast<std::size_t>(rotary.size() / 2);
  std::vector<double> result = head;
  for (std::size_t i = 0; i < pairs; ++i) {
    const double angle = rotary.speeds_for_tests()[i] * position;
    result[i] = head[i] * std::cos(angle) - head[pairs + i] * std::sin(angle);
    result[pairs + i] = head[pairs + i] * std::cos(angle) + head[i] * std::sin(angle);
  }
  return result;
}

TEST_CASE("pair i of n rotates by theta to the power of -i / n per position") {
  for (const double theta : {10000.0, 500000.0}) {
    const Rotary rotary = staircase::rotary({{"rope_theta", theta}}, 64);
    REQUIRE(rotary.size() == 64);
    for (int i = 0; i < 32; ++i) {
      CHECK(rotary.speeds_for_tests()[static_cast<std::size_t>(i)] ==
            doctest::Approx(std::exp(-i / 32.0 * std::log(theta))));
    }
  }
}

TEST_CASE("cosines and sines are exact to the last bit of float32, also at positions of many thousands") {
  const Rotary rotary = staircase::rotary({{"rope_theta", 10000.0}}, 8);
  std::vector<float> turns(8);
  for (const int position : {0, 1, 20, 513, 131071}) {
    rotary.rotation(position, turns);
    for (int i = 0; i < 4; ++i) {
      const long double angle = std::pow(10000.0L, -i / 4.0L) * position;
      CHECK(static_cast<double>(turns[static_cast<std::size_t>(i)]) ==
            doctest::Approx(static_cast<double>(std::cos(angle))).epsilon(1e-7));
      CHECK(static_cast<double>(turns[static_cast<std::size_t>(4 + i)]) ==
            doctest::Approx(static_cast<double>(std::sin(angle))).epsilon(1e-7));
    }
  }
}

TEST_CASE("both spellings of the settings mean the same") {
  const json old{{"rope_theta", 500000.0},
                 {"rope_scaling",
                  {{"type", "llama3"},
                   {"factor", 8.0},
                   {"low_freq_factor", 1.0},
                   {"high_freq_factor", 4.0},
                   {"original_max_position_embeddings", 64}}}};
  json scaling = old["rope_scaling"];
  scaling.erase("type");
  scaling["rope_type"] = "llama3";
  scaling["rope_theta"] = 500000.0;
  CHECK(rotary(old, 16).speeds_for_tests() == rotary({{"rope_parameters", scaling}}, 16).speeds_for_tests());
  CHECK(rotary({{"rotary_pct", 0.25}, {"rotary_emb_base", 5000}}, 32, kNeox).speeds_for_tests() ==
        rotary({{"rope_parameters", {{"partial_rotary_factor", 0.25}, {"rope_theta", 5000.0}}}}, 32)
            .speeds_for_tests());
}

TEST_CASE("a theta that only rope_parameters names counts") {
  CHECK(rotary({{"rope_parameters", {{"rope_theta", 1000.0}}}}, 8).speeds_for_tests()[1] ==
        doctest::Approx(std::pow(1000.0, -0.25)));
}

TEST_CASE("rope_scaling replaces rope_parameters unless it is empty, as in transformers") {
  // From transformers 5.24, LlamaRotaryEmbedding of heads of 16 features: what a folder saved by it computes
  // after its user has added rope_scaling.
  const std::vector<double> scaled{1.0,           0.079403013,   0.0047007538,  0.00091158313,
                                   0.00017677668, 3.4281024e-05, 6.6478697e-06, 1.2891732e-06};
  json with_theta = llama3();
  with_theta["rope_theta"] = 500000.0;
  const json plain{{"rope_type", "default"}, {"rope_theta", 500000.0}}, none = json::object();
  for (const json& settings :
       {json{{"rope_parameters", plain}, {"rope_scaling", with_theta}},
        json{{"rope_parameters", with_theta}, {"rope_scaling", none}},
        json{{"rope_parameters", none}, {"rope_scaling", with_theta}},
        json{{"rope_scaling", llama3()}, {"rope_theta", 500000.0}}, json{{"rope_parameters", with_theta}}}) {
    CAPTURE(settings.dump());
    const Rotary rotary = staircase::rotary(settings, 16);
    for (std::size_t i = 0; i < scaled.size(); ++i) {
      CHECK(rotary.speeds_for_tests()[i] == doctest::Approx(scaled[i]).epsilon(1e-6));
    }
  }
  CHECK(rotary({{"rope_parameters", with_theta}, {"rope_scaling", plain}}, 16).speeds_for_tests() ==
        rotary({{"rope_theta", 500000.0}}, 16).speeds_for_tests());
}

TEST_CASE("linear and YaRN's rotations are those of transformers") {
  // From transformers 5.24, LlamaRotaryEmbedding of heads of 16 features with a theta of 1,000,000, or as
  // stated, and 40,960 positions: the speeds, and the length of a rotated vector.
  struct Case {
    json scaling;
    std::vector<double> speeds;
    double length;
    double theta = 1e6;
  };
  const Case cases[] = {
      {{{"rope_type", "linear"}, {"factor", 4.0}},
       {0.25, 0.044456985, 0.0079056947, 0.0014058533, 0.00025, 4.4456985e-05, 7.9056936e-06, 1.4058534e-06},
       1.0},
      {{{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}},
       {1.0, 0.17782794, 0.031622779, 0.0042175599, 0.0005, 4.4456985e-05, 7.9056936e-06, 1.4058534e-06},
       1.13862944},
      {{{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}},
       {1.0, 0.11114246, 0.0079056947, 0.0014058533, 0.00025, 4.4456985e-05, 7.9056936e-06, 1.4058534e-06},
       1.13862944},
      {{{"rope_type", "yarn"},
        {"factor", 8.0},
        {"original_max_position_embeddings", 64},
        {"beta_fast", 16},
        {"beta_slow", 2},
        {"attention_factor", 1.5}},
       {1.0, 0.022228492, 0.0039528473, 0.00070292666, 0.000125, 2.2228493e-05, 3.9528468e-06, 7.0292668e-07},
       1.5},
      {{{"rope_type", "yarn"},
        {"factor", 8.0},
        {"original_max_position_embeddings", 4096},
        {"truncate", false},
        {"mscale", 1.2},
        {"mscale_all_dim", 0.7}},
       {1.0, 0.17782794, 0.028112082, 0.0025472883, 0.000125, 2.2228493e-05, 3.9528468e-06, 7.0292668e-07},
       1.09076085},
      {{{"rope_type", "yarn"}, {"factor", 2.0}},
       {1.0, 0.17782794, 0.031622779, 0.0056234132, 0.00083333335, 0.00011855196, 1.5811387e-05,
        2.8117067e-06},
       1.06931472},
      // No pair turns once within the context: both ends of the change are the first one.
      {{{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 6}},
       {1.0, 0.044456985, 0.0079056947, 0.0014058533, 0.00025, 4.4456985e-05, 7.9056936e-06, 1.4058534e-06},
       1.13862944},
      // The slow end is beyond the last pair.
      {{{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 848}},
       {1.0, 0.7498942, 0.56234133, 0.42169651, 0.31622776, 0.23713736, 0.16449085, 0.11334933},
       1.13862944,
       10.0},
      {{{"rope_type", "yarn"}, {"factor", nullptr}, {"original_max_position_embeddings", 1024}},
       {1.0, 0.12003385, 0.011067973, 0.00014058533, 2.5e-05, 4.4456983e-06, 7.905694e-07, 1.4058533e-07},
       1.36888795}};
  for (const Case& one : cases) {
    json with_theta = one.scaling;
    with_theta["rope_theta"] = one.theta;
    for (json settings : {json{{"rope_theta", one.theta}, {"rope_scaling", one.scaling}},
                          json{{"rope_parameters", with_theta}}}) {
      settings["max_position_embeddings"] = 40960;
      CAPTURE(settings.dump());
      const Rotary rotary = staircase::rotary(settings, 16);
      for (std::size_t i = 0; i < one.speeds.size(); ++i) {
        CHECK(rotary.speeds_for_tests()[i] == doctest::Approx(one.speeds[i]).epsilon(1e-6));
      }
      std::vector<float> turns(16);
      rotary.rotation(3, turns);
      for (std::size_t i = 0; i < 8; ++i) {
        CHECK(std::hypot(turns[i], turns[8 + i]) == doctest::Approx(one.length).epsilon(1e-6));
        CHECK(std::atan2(turns[8 + i], turns[i]) == doctest::Approx(3 * one.speeds[i]).epsilon(1e-5));
      }
    }
  }
}

TEST_CASE("without the other of the two, mscale and mscale_all_dim change nothing, as in transformers") {
  for (const char* key : {"mscale", "mscale_all_dim"}) {
    CAPTURE(key);
    const json scaling{
        {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}, {key, 0.5}};
    std::vector<float> turns(16);
    rotary({{"rope_scaling", scaling}, {"max_position_embeddings", 256}}, 16).rotation(3, turns);
    CHECK(std::hypot(turns[0], turns[8]) == doctest::Approx(1.13862944).epsilon(1e-6));
  }
}

TEST_CASE("impossible values of a scaled rotation are named") {
  const auto error = [](json scaling) {
    scaling["rope_theta"] = 1e4;
    return error_of({{"max_position_embeddings", 64}, {"rope_scaling", scaling}});
  };
  for (const char* type : {"linear", "yarn"}) {
    for (const json& factor : {json(0), json(-2.0), json("four")}) {
      CHECK(
          says(error({{"rope_type", type}, {"factor", factor}}), "rope_scaling.factor is " + factor.dump()));
    }
  }
  CHECK(says(error({{"rope_type", "linear"}}), "rope_scaling", "factor"));
  for (const char* key : {"beta_fast", "beta_slow", "attention_factor", "original_max_position_embeddings"}) {
    CHECK(says(error({{"rope_type", "yarn"}, {"factor", 4.0}, {key, -1}}), key, "is -1", "above 0"));
  }
  CHECK(says(error({{"rope_type", "yarn"}, {"factor", 4.0}, {"beta_fast", 1}, {"beta_slow", 32}}),
             "beta_fast is 1", "beta_slow, which is 32"));
  CHECK(says(error({{"rope_type", "yarn"}, {"factor", 4.0}, {"truncate", 3}}), "truncate is 3"));
}

TEST_CASE("a rotation that is not built is refused wherever it is written") {
  for (const char* type : {"dynamic", "longrope", "proportional", "su", "invented"}) {
    for (const char* key : {"type", "rope_type"}) {
      const json scaling{{key, type}, {"factor", 4.0}}, plain{{"rope_type", "default"}, {"rope_theta", 1e6}};
      CAPTURE(type);
      CHECK(says(error_of({{"rope_parameters", plain}, {"rope_scaling", scaling}}), type,
                 "default, linear, llama3 and yarn"));
      CHECK(says(error_of({{"rope_parameters", scaling}}), type));
      CHECK(says(error_of({{"rope_parameters", scaling}, {"rope_scaling", json::object()}}), type));
    }
  }
  CHECK(says(error_of({{"rope_scaling", {{"rope_type", "su"}, {"type", "default"}}}}), "su"));
  CHECK(says(error_of({{"rope_scaling", {{"factor", 4.0}}}}), "rope_scaling.factor is 4", "1.0"));
  CHECK(says(error_of({{"rope_scaling", "yarn"}}), "rope_scaling is \"yarn\"", "object"));
  for (const char* place : {"rope_scaling", "rope_parameters"}) {
    const json nested{{"full_attention", {{"rope_theta", 1e6}}},
                      {"sliding_attention", {{"rope_theta", 1e4}}}};
    CHECK(says(error_of({{place, nested}}), place, "one rotation for all layers"));
  }
}

TEST_CASE("a theta or a share that nothing would read is refused") {
  const json theta{{"rope_theta", 5e5}}, share{{"partial_rotary_factor", 0.5}};
  CHECK(says(error_of({{"rope_parameters", theta}, {"rope_scaling", llama3()}}), "rope_theta",
             "rope_scaling replaces"));
  CHECK(says(error_of({{"rope_parameters", share}, {"rope_scaling", llama3()}}), "partial_rotary_factor"));
  CHECK(error_of({{"rope_parameters", theta}, {"rope_scaling", llama3()}, {"rope_theta", 5e5}}) == "");
  // GPT-NeoX has names of its own, and transformers reads no others there.
  CHECK(says(error_of({{"rotary_emb_base", 1e4}, {"rope_theta", 5e3}}, kNeox), "rope_theta is 5000",
             "rotary_emb_base, which is 10000"));
  CHECK(says(error_of({{"rope_theta", 5e3}}, kNeox), "rope_theta is 5000"));
  CHECK(says(error_of({{"partial_rotary_factor", 0.5}}, kNeox), "partial_rotary_factor is 0.5",
             "rotary_pct, which is 0.25"));
  CHECK(says(error_of({{"rotary_emb_base", 5e3}}), "rotary_emb_base is 5000", "rope_theta, which is 10000"));
  CHECK(says(error_of({{"rotary_pct", 0.25}}), "rotary_pct is 0.25"));
  CHECK(error_of({{"rope_theta", 5e3}, {"rotary_emb_base", 5e3}, {"rotary_pct", 1}}) == "");
}

TEST_CASE(
    "Llama 3's original context may be at the top or be the whole context, and its factors must be there") {
  const auto context = [](const json& more, bool own) {
    json settings{{"rope_scaling", llama3()}};
    if (!own) settings["rope_scaling"].erase("original_max_position_embeddings");
    settings.update(more);
    return rotary_scaling(Settings("config.json", settings)).context;
  };
  CHECK(context({{"max_position_embeddings", 256}}, true) == 64);
  CHECK(context({{"max_position_embeddings", 256}}, false) == 256);
  CHECK(context({{"max_position_embeddings", 256}, {"original_max_position_embeddings", 32}}, false) == 32);
  CHECK(context({{"max_position_embeddings", 256}, {"original_max_position_embeddings", 32}}, true) == 32);
  for (const char* name : {"factor", "low_freq_factor", "high_freq_factor"}) {
    json settings{{"rope_scaling", llama3()}};
    settings["rope_scaling"].erase(name);
    CHECK(says(error_of(settings), "config.json has no rope_scaling.", name));
  }
}

TEST_CASE("Llama 3 keeps fast pairs, slows slow ones by the factor, and changes smoothly between") {
  const json scaling{{"rope_type", "llama3"},  {"factor", 8.0},
                     {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0},
                     {"rope_theta", 500000.0}, {"original_max_position_embeddings", 8192}};
  const Rotary scaled = rotary({{"rope_parameters", scaling}}, 64), plain = rotary({{"rope_theta", 5e5}}, 64);
  int kept = 0, slowed = 0;
  double last = 1.0;
  for (std::size_t i = 0; i < 32; ++i) {
    const double ratio = scaled.speeds_for_tests()[i] / plain.speeds_for_tests()[i];
    const double wavelength = 2.0 * 3.14159265358979 / plain.speeds_for_tests()[i];
    if (wavelength < 8192 / 4.0) {
      CHECK(ratio == doctest::Approx(1.0));
      ++kept;
    }
    if (wavelength > 8192 / 1.0) {
      CHECK(ratio == doctest::Approx(1.0 / 8.0));
      ++slowed;
    }
    CHECK(ratio <= last + 1e-12);
    last = ratio;
  }
  CHECK(kept > 5);
  CHECK(slowed > 5);
  CHECK(kept + slowed < 32);
}

TEST_CASE("between Llama 3's fast and slow pairs there must be room") {
  const auto refusal = [](double low, double high) {
    json scaling = llama3();
    scaling["low_freq_factor"] = low;
    scaling["high_freq_factor"] = high;
    return error_of({{"rope_scaling", scaling}});
  };
  CHECK(refusal(1.0, 1.0001) == "");
  CHECK(says(refusal(2.0, 2.0), "high_freq_factor is 2, not more than low_freq_factor, which is 2"));
  CHECK(says(refusal(2.0, 1.0), "high_freq_factor is 1, not more than low_freq_factor, which is 2"));
}

TEST_CASE("the product of a query and a key depends only on the difference of their positions") {
  const Rotary rotary = staircase::rotary({{"rope_theta", 10000.0}, {"partial_rotary_factor", 0.5}}, 8);
  REQUIRE(rotary.size() == 4);
  const std::vector<double> query{0.3, -1.2, 0.7, 0.1, 2.0, -0.4, 0.9, 1.1},
      key{1.0, 0.2, -0.6, 0.8, -0.3, 0.5, 1.4, -0.9};
  const auto product = [&](int query_position, int key_position) {
    const std::vector<double> q = turned(rotary, query, query_position),
                              k = turned(rotary, key, key_position);
    double sum = 0.0;
    for (std::size_t i = 0; i < q.size(); ++i) sum += q[i] * k[i];
    return sum;
  };
  for (const int distance : {0, 1, 7, 300}) {
    for (const int position : {1, 20, 5000}) {
      CHECK(product(distance + position, position) == doctest::Approx(product(distance, 0)));
    }
  }
  CHECK(product(7, 0) != doctest::Approx(product(8, 0)));
}

}  // namespace
}  // namespace staircase
