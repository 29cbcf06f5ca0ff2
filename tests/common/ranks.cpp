#include "common/parallel/ranks.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <set>

#include "common/base/error.h"
#include "common/decoding/paged_kv_cache.h"
#include "common/decoding/ring_kv_cache.h"
#include "common/decoding/static_kv_cache.h"
#include "common/model/checkpoint.h"
#include "common/model/family.h"
#include "common/model/fingerprint.h"
#include "common/model/model_folder.h"
#include "common/model/share.h"
#include "common/parallel/thread_ranks.h"
#include "tests/compare.h"
#include "tests/error_message.h"
#include "tests/gguf_writer.h"
#include "tests/least_vectors.h"
#include "tests/reference_logits.h"
#include "tests/step.h"
#include "tests/temporary_folder.h"

namespace staircase {
namespace {

using Floats = std::vector<float>;

const std::vector<std::string> kEmbedded{"tales-gpt2-1m", "tales-neox-1m", "tales-llama-1m",
                                         "tales-gqa-1m",  "tales-qwen-1m", "tales-olmo-1m"};
const std::vector<int> kText{321, 11, 5, 900, 17, 2, 4000}, kShorter{8, 1500};

Floats copied(std::span<const float> logits) {
  return {logits.begin(), logits.end()};
}

/// What `computed` returns on each rank, in their order.
std::vector<Floats> of_each_rank(int size, const std::function<Floats(Ranks&)>& computed) {
  std::vector<Floats> all(static_cast<std::size_t>(size));
  run_as_threads(size, [&](Ranks& ranks) { all[static_cast<std::size_t>(ranks.rank())] = computed(ranks); });
  return all;
}

/// A prompt in one pass, a token with the cache, and two texts in a batch.
Floats logits_of(Model& model) {
  StaticKvCache cache(model);
  Floats all = copied(model.next_logits(kText, cache));
  const auto add = [&](std::span<const float> logits) {
    all.insert(all.end(), logits.begin(), logits.end());
  };
  add(model.next_logits(std::vector<int>{77}, cache));
  const std::vector<std::span<const int>> batch{kText, kShorter};
  add(model.next_logits(batch));
  add(model.last_logits(kText, 3));
  return all;
}

Floats logits_of(const std::filesystem::path& folder, DType dtype, Ranks& ranks) {
  Model model = Model::load(folder, make_cpu_device(1), dtype, ranks);
  return logits_of(model);
}

TEST_CASE("a gather has the numbers of all ranks in their order, and a sum is the same on each") {
  for (const int size : {1, 2, 3, 4}) {
    CAPTURE(size);
    Floats want;
    for (int rank = 0; rank < size; ++rank) want.insert(want.end(), {rank + 0.5f, rank + 0.25f});
    const auto gathered = of_each_rank(size, [&](Ranks& ranks) {
      const auto rank = static_cast<float>(ranks.rank());
      Floats all(static_cast<std::size_t>(2 * size));
      ranks.all_gather(Floats{rank + 0.5f, rank + 0.25f}, all);
      return all;
    });
    for (const Floats& all : gathered) CHECK(all == want);
    const auto sums = of_each_rank(size, [&](Ranks& ranks) {
      Floats numbers{1.0f, static_cast<float>(ranks.rank())};
      ranks.all_reduce(numbers);
      return numbers;
    });
    for (const Floats& sum : sums) CHECK(sum == Floats{1.0f * size, size * (size - 1) / 2.0f});
  }
}

TEST_CASE("a sum is added in the order of the ranks, on each of them") {
  // (1e8 + -1e8) + 1 is 1, and 1e8 + (-1e8 + 1) is 0.
  const Floats parts{1e8f, -1e8f, 1.0f};
  const auto sums = of_each_rank(3, [&](Ranks& ranks) {
    Floats number{parts[static_cast<std::size_t>(ranks.rank())]};
    ranks.all_reduce(number);
    return number;
  });
  for (const Floats& sum : sums) CHECK(sum == Floats{1.0f});
}

TEST_CASE("many numbers are added in slices, in the order of the ranks, and a rank receives 2 / N of all") {
  // From 16,384 numbers on; the last slice may be shorter.
  for (const int size : {2, 3, 4, 7}) {
    for (const std::size_t count : {16383u, 16384u, 16385u, 50001u}) {
      CAPTURE(size);
      CAPTURE(count);
      const auto part_of = [&](int rank) {
        Floats part(count);
        for (std::size_t i = 0; i < count; ++i) {  // of sizes that make the order matter
          const auto number = static_cast<int>((i * 7 + static_cast<std::size_t>(rank) * 11) % 40);
          part[i] = std::ldexp(1.0f + 0.01f * static_cast<float>(i % 64), number - 20);
        }
        return part;
      };
      Floats want = part_of(0);
      for (int rank = 1; rank < size; ++rank) {
        const Floats part = part_of(rank);
        for (std::size_t i = 0; i < count; ++i) want[i] += part[i];
      }
      const auto n = static_cast<std::size_t>(size), slice = (count + n - 1) / n;
      run_as_threads(size, [&](Ranks& ranks) {
        Floats numbers = part_of(ranks.rank());
        ranks.all_reduce(numbers);
        CHECK(numbers == want);
        // Of its own slice the parts of the others, and of theirs the sums, which come as equal slices.
        const std::size_t first = static_cast<std::size_t>(ranks.rank()) * slice,
                          own = std::min(slice, count - std::min(first, count));
        const bool whole = size == 2 || count < 16384;
        CHECK(ranks.received_bytes() == 4 * (n - 1) * (whole ? count : own + slice));
      });
    }
  }
}

TEST_CASE("a rank counts the bytes that it receives") {
  run_as_threads(3, [](Ranks& ranks) {
    Floats numbers(10);
    ranks.all_reduce(numbers);
    if (ranks.rank() == 2) CHECK(ranks.received_bytes() == 2 * 10 * sizeof(float));
  });
}

TEST_CASE("every rank gets the text of rank 0, whatever its own is") {
  std::mutex mutex;
  for (const std::string& text : {std::string("A fox\n\0and more", 15), std::string()}) {
    run_as_threads(3, [&](Ranks& ranks) {
      const std::string got = ranks.broadcast(ranks.rank() == 0 ? text : "something else that is longer");
      const std::scoped_lock lock(mutex);
      CHECK(got == text);
    });
  }
}

TEST_CASE("a rank that throws lets the others go, and its own reason is thrown") {
  std::atomic<int> ended = 0;
  CHECK(error_message([&] {
          run_as_threads(3, [&](Ranks& ranks) {
            struct Count {
              std::atomic<int>& ended;
              ~Count() { ++ended; }
            } count{ended};
            if (ranks.rank() == 1) throw Error("the disk is gone");
            Floats numbers(1);
            ranks.all_reduce(numbers);
          });
        }) == "the disk is gone");
  CHECK(ended == 3);
}

TEST_CASE("what a rank sends arrives in its order, and the sender waits for no one and may go on") {
  run_as_threads(3, [](Ranks& ranks) {
    Floats number(1);
    if (ranks.rank() == 0) {
      for (int i = 0; i < 100; ++i) {
        number[0] = static_cast<float>(i);
        ranks.send(number, 2);
      }
      number[0] = 7.0f;
      ranks.send(number, 1);
      ranks.receive(number, 2);  // which sends after it has taken all
      CHECK(number[0] == -1.0f);
      CHECK(ranks.received_bytes() == sizeof(float));
    } else if (ranks.rank() == 1) {
      ranks.receive(number, 0);
      CHECK(number[0] == 7.0f);
    } else {
      for (int i = 0; i < 100; ++i) {
        ranks.receive(number, 0);
        CHECK(number[0] == static_cast<float>(i));
      }
      CHECK(ranks.received_bytes() == 100 * sizeof(float));
      ranks.send(Floats{-1.0f}, 0);
    }
  });
}

TEST_CASE("what a rank has received it does not receive again") {
  run_as_threads(2, [](Ranks& ranks) {
    const int other = 1 - ranks.rank();
    for (int i = 0; i < 20; ++i) {  // each waits for the other: no two numbers are on their way at a time
      Floats number{static_cast<float>(i)};
      if (ranks.rank() == 0) ranks.send(number, other);
      number[0] = -1.0f;
      ranks.receive(number, other);
      CHECK(number[0] == static_cast<float>(i));
      if (ranks.rank() == 1) ranks.send(number, other);
    }
  });
}

TEST_CASE("numbers that are more or fewer than those that were sent are refused") {
  for (const std::size_t expected : {2, 4}) {
    CHECK(error_message([&] {
            run_as_threads(2, [&](Ranks& ranks) {
              Floats numbers(ranks.rank() == 0 ? 3 : expected);
              if (ranks.rank() == 0) {
                ranks.send(numbers, 1);
              } else {
                ranks.receive(numbers, 0);
              }
            });
          }) ==
          fmt::format("rank 1 expects {} bytes from rank 0, which sent 12: all ranks need the same options",
                      4 * expected));
  }
}

TEST_CASE("a rank sends to other ranks alone") {
  for (const int other : {-1, 0, 1}) {
    const std::string reason =
        fmt::format("rank 0 of 1 cannot exchange data with rank {}: no such peer", other);
    SingleRank alone;
    Floats numbers(1);
    CHECK(error_message([&] { alone.send(numbers, other); }) == reason);
    CHECK(error_message([&] { alone.receive(numbers, other); }) == reason);
  }
}

TEST_CASE("a rank that throws lets one go that waits for its numbers") {
  CHECK(error_message([&] {
          run_as_threads(2, [&](Ranks& ranks) {
            if (ranks.rank() == 0) throw Error("the disk is gone");
            Floats numbers(1);
            ranks.receive(numbers, 0);
          });
        }) == "the disk is gone");
}

TEST_CASE("slices are neighbours, cover the whole, and differ by one group at most") {
  for (const int whole : {4, 7, 352, 4096}) {
    for (const int size : {1, 2, 3, 4}) {
      for (const std::int64_t group : {1, 64}) {
        std::int64_t next = 0;
        for (int rank = 0; rank < size; ++rank) {
          const Slice slice = slice_of(whole, rank, size, group);
          CHECK(slice.whole == whole);
          CHECK(slice.first == next);
          CHECK((slice.first % group == 0 || slice.first == whole));
          CHECK(slice.count > whole / size - group);
          CHECK(slice.count < whole / size + 1 + group);
          next += slice.count;
        }
        CHECK(next == whole);
      }
    }
  }
}

TEST_CASE("each query head finds its key head in its own rank's share") {
  for (const int n_kv_head : {1, 2, 3, 4, 6, 12}) {
    for (int size = 1; size <= 12; ++size) {
      ModelConfig config{
          .vocab_size = 10, .n_embd = 24, .n_head = 12, .n_kv_head = n_kv_head, .head_size = 2};
      config.n_inner = 64;
      for (int rank = 0; rank < size; ++rank) {
        CAPTURE(n_kv_head);
        CAPTURE(size);
        CAPTURE(rank);
        const Share share(config, rank, size);
        const ModelConfig part = share.part_of(config);
        REQUIRE(part.n_head % part.n_kv_head == 0);
        const std::int64_t group = 12 / n_kv_head, first = share.queries.first / 2;
        if (first / group == (first + part.n_head - 1) / group) CHECK(part.n_kv_head == 1);  // no copies
        std::vector<std::int64_t> keys;  // the whole model's number of each head of keys here
        for (const Slice& slice : share.keys) {
          for (std::int64_t i = 0; i < slice.count; i += 2) keys.push_back((slice.first + i) / 2);
        }
        for (int head = 0; head < part.n_head; ++head) {
          const std::int64_t whole_head = share.queries.first / 2 + head;
          CHECK(keys[static_cast<std::size_t>(head / (part.n_head / part.n_kv_head))] ==
                whole_head / (12 / n_kv_head));
        }
      }
    }
  }
}

TEST_CASE("the logits of 1 to 4 ranks are those of one process, and the same bits on every rank") {
  for (const std::string& name : kEmbedded) {
    const std::filesystem::path folder = find_model(name);
    Model alone = Model::load(folder, make_cpu_device(1));
    const Floats want = logits_of(alone);
    for (const int size : {1, 2, 3, 4}) {
      CAPTURE(name);
      CAPTURE(size);
      const auto logits =
          of_each_rank(size, [&](Ranks& ranks) { return logits_of(folder, DType::kFloat32, ranks); });
      CHECK(difference(logits[0], want) < (size == 1 ? 1e-30 : 2e-6));
      for (const Floats& others : logits) CHECK(others == logits[0]);
    }
  }
}

TEST_CASE("ranks keep their heads in 8 or 4 bits, which are those of one process") {
  const std::filesystem::path folder = find_model("tales-gqa-1m");
  DType kept = DType::kInt8;
  const auto decoded = [&](Model& model) {
    model.use_cache_dtype(kept);
    StaticKvCache cache(model);
    model.next_logits(kText, cache);
    Floats logits = copied(model.next_logits(kShorter, cache));
    logits.push_back(static_cast<float>(cache.use().bytes));
    return logits;
  };
  const LeastVectors vectors;
  for (const double tolerance : {1e-2, 1e-1}) {  // a rounding may flip
    Model alone = Model::load(folder, make_cpu_device(1));
    Floats want = decoded(alone);
    want.back() /= 2.0f;
    const auto all = of_each_rank(2, [&](Ranks& ranks) {
      Model part = Model::load(folder, make_cpu_device(1), DType::kFloat32, ranks);
      return decoded(part);
    });
    CHECK(all[0] == all[1]);
    CHECK(difference("logits", all[0], want, want.size(), tolerance) == "");
    kept = DType::kInt4;
  }
}

TEST_CASE("all families agree with transformers on 2, 3 and 4 ranks") {
  for (const std::string family :
       {"gpt2", "pythia", "neox-sequential", "llama-2", "llama-3", "smollm2", "olmo", "qwen2", "qwen3",
        "qwen2-window", "mistral-window", "gemma3", "mixtral", "qwen3-moe"}) {
    for (const int size : {2, 3, 4}) {
      const ModelConfig config = read_config(reference_folder(family));
      if (config.n_head < size) continue;
      CAPTURE(family);
      CAPTURE(size);
      std::vector<double> off(static_cast<std::size_t>(size));
      run_as_threads(size, [&](Ranks& ranks) {
        Model model = Model::load(reference_folder(family), make_cpu_device(1), DType::kFloat32, ranks);
        off[static_cast<std::size_t>(ranks.rank())] = difference_from_reference(
            family, [&](const auto& text) { return copied(model.next_logits(text)); });
      });
      for (const double one : off) CHECK(one < 1e-4);
    }
  }
}

TEST_CASE("the experts of a mixture in int8 and int4 are cut between groups of weights that share a scale") {
  const std::filesystem::path folder = find_model("tales-moe-1m");
  for (const DType dtype : {DType::kInt8, DType::kInt4}) {
    const std::string type(to_string(dtype));
    CAPTURE(type);
    Model alone = Model::load(folder, make_cpu_device(1), dtype);
    const Floats want = logits_of(alone);
    const auto logits = of_each_rank(2, [&](Ranks& ranks) { return logits_of(folder, dtype, ranks); });
    CHECK(difference(logits[0], want) < 0.02);
  }
}

TEST_CASE("heads that OLMoE normalizes together are not shared between ranks, but whole blocks are") {
  run_as_threads(2, [&](Ranks& ranks) {
    CHECK(says(error_message([&] {
                 Model::load(reference_folder("olmoe"), make_cpu_device(1), DType::kFloat32, ranks);
               }),
               "config.json: olmoe normalizes the queries of all heads together", "split whole blocks"));
    CHECK(error_message([&] {
            Model::load(reference_folder("olmoe"), make_cpu_device(1), DType::kFloat32, ranks,
                        Split::kBlocks);
          }) == "");
  });
}

TEST_CASE(
    "no rank has a part of a group of weights that share a scale, and more ranks than groups are refused") {
  int split = 0, refused = 0;
  for (const auto& [dtype_, group_] :
       {std::pair{DType::kInt8, kGroup}, std::pair{DType::kInt4, kInt4Group}}) {
    const auto& dtype = dtype_;  // clang 14 captures no structured binding
    const auto& group = group_;  // clang 14 captures no structured binding
    for (const int head_size : {8, 16, 32, 48, 64, 80, 128}) {
      for (const int heads : {2, 3, 4, 6, 8, 9, 16}) {
        for (const int n_inner : {64, 96, 352, 1000}) {
          for (const int size : {2, 3, 4, 5}) {
            CAPTURE(to_string(dtype));
            CAPTURE(head_size);
            CAPTURE(heads);
            CAPTURE(n_inner);
            CAPTURE(size);
            ModelConfig config;
            config.n_head = config.n_kv_head = heads;
            config.head_size = head_size;
            config.n_inner = n_inner;
            config.vocab_size = 100;
            // A cut is allowed after whole heads that are whole groups.
            int head_cuts = 0;
            for (int head = 1; head < heads; ++head) head_cuts += head * head_size % group == 0 ? 1 : 0;
            const bool fits = size <= std::min(1 + head_cuts, 1 + static_cast<int>((n_inner - 1) / group));
            std::int64_t query = 0, column = 0;
            const std::string fault = error_message([&] {
              for (int rank = 0; rank < size; ++rank) {
                const Share share(config, rank, size, dtype);
                CHECK(share.queries.first == query);
                CHECK(share.inner.first == column);
                CHECK(query % group == 0);
                CHECK(column % group == 0);
                CHECK(share.queries.count > 0);
                CHECK(share.inner.count > 0);
                query += share.queries.count;
                column += share.inner.count;
              }
            });
            ++(fits ? split : refused);
            CHECK(fault.empty() == fits);
            CHECK(query == (fits ? heads * head_size : 0));
            CHECK(column == (fits ? n_inner : 0));
          }
        }
      }
    }
  }
  CHECK(split > 100);
  CHECK(refused > 100);
}

TEST_CASE("two runs have the same bits in every type, and are as near to float32 as one process") {
  for (const std::string& name : kEmbedded) {
    const std::filesystem::path folder = find_model(name);
    Model exact = Model::load(folder, make_cpu_device(1));
    const Floats want = logits_of(exact);
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kInt8, DType::kInt4}) {
      Model alone = exact.load_as(dtype);
      const double usual = difference(logits_of(alone), want);
      for (const int size : kSanitized ? std::vector{3} : std::vector{2, 3}) {
        CAPTURE(name);
        CAPTURE(to_string(dtype));
        CAPTURE(size);
        if (dtype == DType::kInt8 && size > 2) continue;  // the heads fill two groups
        const auto run = [&] {
          return of_each_rank(size, [&](Ranks& ranks) { return logits_of(folder, dtype, ranks); });
        };
        const auto once = run();
        CHECK(once == run());
        for (const Floats& others : once) CHECK(others == once[0]);
        CHECK(difference(once[0], want) < 1.5 * usual + 1e-5);
      }
    }
  }
}

TEST_CASE("a rank keeps its share of the weights alone") {
  for (const std::string& name : kEmbedded) {
    const std::filesystem::path folder = find_model(name);
    const double whole = static_cast<double>(Model::load(folder, make_cpu_device(1)).weight_bytes());
    for (const int size : {2, 4}) {
      CAPTURE(name);
      CAPTURE(size);
      run_as_threads(size, [&](Ranks& ranks) {
        const Model model = Model::load(folder, make_cpu_device(1), DType::kFloat32, ranks);
        const double share = static_cast<double>(model.weight_bytes()) / whole;
        // Panels are filled up, norms are copied, and rank 0 has all positions of GPT-2.
        if (ranks.rank() == 0) CHECK(share < 1.11 / size + (name == "tales-gpt2-1m" ? 0.05 : 0.0));
      });
    }
  }
}

TEST_CASE("a token costs one sum of the embedding and two a block, but one a block that is parallel") {
  const std::vector<std::pair<std::string, std::size_t>> sums_of_block{
      {"gpt2", 2}, {"llama-2", 2}, {"neox-sequential", 2}, {"pythia", 1}};
  for (const auto& [name_, sums_] : sums_of_block) {
    const auto& name = name_;  // clang 14 captures no structured binding
    const auto& sums = sums_;  // clang 14 captures no structured binding
    for (const std::size_t size : {2, 3, 4}) {
      CAPTURE(name);
      CAPTURE(size);
      run_as_threads(static_cast<int>(size), [&](Ranks& ranks) {
        Model model = Model::load(reference_folder(name), make_cpu_device(1), DType::kFloat32, ranks);
        const ModelConfig& config = model.config();
        const auto n_embd = static_cast<std::size_t>(config.n_embd),
                   blocks = static_cast<std::size_t>(config.n_layer),
                   vocabulary = static_cast<std::size_t>(config.vocab_size);
        const std::size_t before = ranks.received_bytes();
        model.next_logits(std::vector<int>{10});
        // With the logit of the row of zeros.
        const std::size_t numbers = n_embd * (sums * blocks + 1) + (vocabulary + size - 1) / size + 1;
        CHECK(ranks.received_bytes() - before == 4 * numbers * (size - 1));
      });
    }
  }
}

TEST_CASE("a prompt costs two sums a block for each token, and from three ranks on 2 / N of that") {
  const std::vector<int> prompt(192, 10);
  for (const std::size_t size : {2, 3, 4}) {
    CAPTURE(size);
    run_as_threads(static_cast<int>(size), [&](Ranks& ranks) {
      Model model = Model::load(find_model("tales-llama-1m"), make_cpu_device(1), DType::kFloat32, ranks);
      const std::size_t before = ranks.received_bytes();
      model.next_logits(prompt);
      // Four blocks of 128 numbers a token; only the last token leaves the last of them.
      const std::size_t sums = 128 * (2 * 4 - 1) * prompt.size(),
                        rest = 128 * 2 + (4096 + size - 1) / size + 1;
      CHECK(ranks.received_bytes() - before ==
            4 * (size - 1) * ((size == 2 ? sums : sums * 2 / size) + rest));
    });
  }
}

TEST_CASE("parts of a pass, one after another, have the logits of the whole, with any cache") {
  const std::vector<int> one{5};
  const std::vector<std::span<const int>> batch{kText, kShorter, {}, kText, one};
  const auto logits_in_parts = [&](int parts) {
    Model model = Model::load(find_model("tales-qwen-1m"), make_cpu_device(1), DType::kInt8);
    if (parts > 0) {
      model.run_with([&](Pass& pass) {
        for (int i = 0; i < parts; ++i) {
          pass.run_part(slice_of(5, i, parts), [&](Pass& part) { model.network().run(part); });
        }
      });
    }
    NoCache none;
    StaticKvCache rows(model, 5);
    PagedKvCache paged(model, 5, 10);
    for (int row = 0; row < 5; ++row) REQUIRE(paged.reserve(row, 20));
    Floats all;
    for (KvCache* cache : std::initializer_list<KvCache*>{&none, &rows, &rows, &paged, &paged}) {
      const std::span<const float> logits = model.next_logits(batch, *cache);
      for (const int sequence : {0, 1, 3, 4}) {  // those of one that rests mean nothing
        const auto own = logits.subspan(static_cast<std::size_t>(sequence) * 4096, 4096);
        all.insert(all.end(), own.begin(), own.end());
      }
    }
    return all;
  };
  const Floats want = logits_in_parts(0);
  for (const int parts : {1, 2, 3, 5}) {
    CAPTURE(parts);
    CHECK(logits_in_parts(parts) == want);
  }
}

TEST_CASE("each rank has the windows of its own blocks, and all of them feed as many tokens at once") {
  std::vector<std::vector<std::int32_t>> windows(3);
  std::vector<int> most(3);
  run_as_threads(3, [&](Ranks& ranks) {
    Model model = Model::load(reference_folder("qwen2-window"), make_cpu_device(1), DType::kFloat32, ranks,
                              Split::kBlocks);
    const auto rank = static_cast<std::size_t>(ranks.rank());
    for (int l = 0; l < model.config().n_layer; ++l) windows[rank].push_back(model.window(l));
    most[rank] = RingKvCache(model).most_at_once();
  });
  std::vector<std::int32_t> all;
  for (const auto& own : windows) all.insert(all.end(), own.begin(), own.end());
  CHECK(all == std::vector<std::int32_t>{kNoWindow, kNoWindow, 20, 20});
  CHECK(windows[0].size() < 4);
  CHECK(most == std::vector<int>(3, RingKvCache::kMostAtOnce));
}

TEST_CASE("parts of a pass have the logits of the whole in a ring, of which each has its own rows") {
  std::vector<std::vector<int>> texts(3);
  for (int row = 0; row < 3; ++row)
    for (int i = 0; i < 150 + 30 * row; ++i)
      texts[static_cast<std::size_t>(row)].push_back((37 * i + row) % 4000);
  const auto logits_in_parts = [&](int parts) {
    Model model = Model::load(find_model("tales-window-1m"), make_cpu_device(1));
    if (parts > 0) {
      model.run_with([&](Pass& pass) {
        for (int i = 0; i < parts; ++i)
          pass.run_part(slice_of(3, i, parts), [&](Pass& part) { model.network().run(part); });
      });
    }
    RingKvCache ring(model, 3);
    return copied(model.next_logits(std::vector<std::span<const int>>(texts.begin(), texts.end()), ring));
  };
  const Floats want = logits_in_parts(0);
  for (const int parts : {1, 2, 3}) {
    CAPTURE(parts);
    CHECK(logits_in_parts(parts) == want);
  }
}

TEST_CASE(
    "a model whose blocks are on several ranks needs a pass through all of them, and a block for each") {
  const auto refusal = [](int size) {
    return error_message([&] {
      run_as_threads(size, [](Ranks& ranks) {
        Model model = Model::load(find_model("tales-gpt2-1m"), make_cpu_device(1), DType::kFloat32, ranks,
                                  Split::kBlocks);
        model.next_logits(kText);
      });
    });
  };
  CHECK(refusal(1).empty());
  CHECK(refusal(4) ==
        "each rank has only some blocks of the model, but no pass was set that runs through all ranks");
  CHECK(refusal(5) == "the model has 4 blocks; 5 ranks do not fit");
}

TEST_CASE("a model that cannot be split is refused with its numbers") {
  const auto refusal = [](int size, const std::function<std::filesystem::path(int rank)>& folder,
                          DType second = DType::kFloat32) {
    return error_message([&] {
      run_as_threads(size, [&](Ranks& ranks) {
        Model::load(folder(ranks.rank()), make_cpu_device(1), ranks.rank() == 0 ? DType::kFloat32 : second,
                    ranks);
      });
    });
  };
  CHECK(ends_with(refusal(5, [](int) { return find_model("tales-llama-1m"); }),
                  "the model has 4 heads and 352 columns of an MLP; 5 ranks do not fit"));
  const std::string other =
      "rank 1 has a different model from rank 0; all ranks need the same files and --dtype";
  CHECK(refusal(2, [](int rank) {
          return find_model(rank == 0 ? "tales-llama-1m" : "tales-olmo-1m");
        }).ends_with(other));
  // Of the same shape, and with one other byte in the last tensor.
  const TemporaryFolder changed;
  std::filesystem::copy(find_model("tales-llama-1m"), changed.path());
  std::fstream weights(changed.path() / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  weights.seekg(-2, std::ios::end);
  const auto byte = static_cast<char>(weights.get() ^ 1);
  weights.seekp(-2, std::ios::end);
  weights.put(byte);
  weights.close();
  CHECK(refusal(2, [&](int rank) {
          return rank == 0 ? find_model("tales-llama-1m") : changed.path();
        }).ends_with(other));
  CHECK(ends_with(refusal(
                      3, [](int) { return find_model("tales-llama-1m"); }, DType::kInt8),
                  other));
  const std::filesystem::path quantized =
      std::filesystem::path(STAIRCASE_SOURCE_TREE) / "tests/reference/quantized";
  CHECK(refusal(2, [&](int rank) {
          return quantized / (rank == 0 ? "q4_k_m.gguf" : "q5_k_m.gguf");
        }).ends_with(other));
}

TEST_CASE("the fingerprint of a model is of each file that decides what a text becomes, and of its type") {
  const TemporaryFolder folder;
  std::filesystem::copy(find_model("tales-llama-1m"), folder.path());
  const auto of_folder = [&](DType dtype = DType::kFloat32) {
    return fingerprint(folder.path(), Checkpoint::open(folder.path()), dtype);
  };
  std::vector<std::uint64_t> seen{of_folder(), of_folder(DType::kInt8)};
  CHECK(of_folder() == seen[0]);
  for (const char* name :
       {"config.json", "generation_config.json", "tokenizer.json", "vocab.json", "merges.txt",
        "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json", "chat_template.jinja"}) {
    CAPTURE(name);
    std::ofstream(folder.path() / name, std::ios::app) << " ";  // some of them are new
    seen.push_back(of_folder());
    std::ofstream(folder.path() / name, std::ios::app) << "\n";
    seen.push_back(of_folder());
    CHECK(std::set(seen.begin(), seen.end()).size() == seen.size());
  }
  folder.write("README.md", "A model.");
  CHECK(of_folder() == seen.back());
  // The same bytes under another name.
  std::filesystem::remove(folder.path() / "special_tokens_map.json");
  const std::uint64_t first = of_folder();
  std::filesystem::rename(folder.path() / "added_tokens.json", folder.path() / "special_tokens_map.json");
  CHECK(of_folder() != first);
}

TEST_CASE("the fingerprint of a GGUF file is of all its metadata") {
  const TemporaryFolder folder;
  const auto of_file = [&](const std::string& name, const std::vector<std::string>& tokens, bool adds) {
    GgufWriter writer;
    writer.text("general.architecture", "llama")
        .text("general.name", name)
        .texts("tokenizer.ggml.tokens", tokens)
        .truth("tokenizer.ggml.add_bos_token", adds);
    writer.floats("token_embd.weight", {1, 2}, {1, 2});
    folder.write("m.gguf", writer.bytes());
    return fingerprint(folder.path() / "m.gguf", Checkpoint::open(folder.path() / "m.gguf"), DType::kFloat32);
  };
  const std::uint64_t first = of_file("a", {"x", "y"}, true);
  CHECK(of_file("a", {"x", "y"}, true) == first);
  CHECK(of_file("b", {"x", "y"}, true) != first);
  CHECK(of_file("a", {"x", "z"}, true) != first);
  CHECK(of_file("a", {"x", "y"}, false) != first);
}

}  // namespace
}  // namespace staircase
