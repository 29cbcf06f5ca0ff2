// GPUs of several ranks: emulated ones, and a stand-in for NCCL that records what it is asked for. Ranks are
// threads; one at a time computes.
#include <doctest/doctest.h>

#include <array>
#include <thread>

#include "common/base/error.h"
#include "common/decoding/static_kv_cache.h"
#include "common/model/model.h"
#include "common/model/model_folder.h"
#include "kernels/cuda/nccl_link.h"
#include "steps/99-pipeline-parallel/pipeline.h"
#include "tests/compare.h"
#include "tests/cuda_emulation/include/cuda_runtime.h"
#include "tests/cuda_emulation/nccl_stand_in.h"
#include "tests/error_message.h"

namespace staircase {
namespace {

using Floats = std::vector<float>;

[[maybe_unused]] const bool finishes_streams = [] {
  nccl_stand_in::set_finish([](void* stream) { cuda_emulation::finish(static_cast<cudaStream_t>(stream)); });
  return true;
}();

/// What the host exchanges, which on GPUs must not be what a pass computes.
class TurningRanks : public Ranks {
 public:
  TurningRanks(int rank, int size) : Ranks(rank, size) {}

  int exchanges = 0;

 private:
  void exchange(std::span<const std::byte> own, std::span<std::byte> all) override {
    ++exchanges;
    offered()[static_cast<std::size_t>(rank())] = own;
    if (!nccl_stand_in::meet(size())) throw Error("rank {} waited for another", rank());
    for (int rank = 0; rank < size(); ++rank) {
      std::ranges::copy(
          offered()[static_cast<std::size_t>(rank)],
          all.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rank) * own.size()));
    }
    if (!nccl_stand_in::meet(size())) throw Error("rank {} waited for another", rank());
  }

  void post(std::span<const std::byte>, int) override { throw Error("no rank sends to one other alone"); }
  std::size_t take(std::span<std::byte>, int) override { throw Error("no rank takes from one other alone"); }

  static std::array<std::span<const std::byte>, 8>& offered() {
    static std::array<std::span<const std::byte>, 8> all;
    return all;
  }
};

/// What each rank threw; "" for one that did not.
std::vector<std::string> on_ranks(int size, const std::function<void(TurningRanks&)>& work) {
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const std::scoped_lock lock(nccl_stand_in::turn());
      TurningRanks ranks(rank, size);
      try {
        work(ranks);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
        nccl_stand_in::leave();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

DeviceRank as_device_rank(Ranks& ranks) {
  return {ranks.rank(), ranks.size(), [&](const std::string& text) { return ranks.broadcast(text); }};
}

/// Calls work(device, ranks) with a linked GPU for each rank.
void on_gpus(int size, const std::function<void(Device&, TurningRanks&)>& work) {
  nccl_stand_in::begin();
  const auto errors = on_ranks(size, [&](TurningRanks& ranks) {
    const std::unique_ptr<Device> device = make_cuda_device();
    device->join(as_device_rank(ranks));
    work(*device, ranks);
  });
  for (const std::string& error : errors) CHECK(error == "");
}

/// Numbers of a rank whose sum depends on the order of additions.
Floats part_of(int rank, std::size_t count) {
  Floats numbers(count);
  for (std::size_t i = 0; i < count; ++i) {
    numbers[i] =
        std::ldexp(1.0f + 0.01f * static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 3) % 64),
                   static_cast<int>((i + static_cast<std::size_t>(rank) * 11) % 40) - 20);
  }
  return numbers;
}

Tensor uploaded(Device& device, const Shape& shape, const Floats& numbers) {
  Tensor tensor = device.allocate(DType::kFloat32, shape);
  device.copy_from_host(std::span<const float>(numbers), tensor);
  return tensor;
}

Floats downloaded(Device& device, const Tensor& tensor) {
  Floats numbers(static_cast<std::size_t>(tensor.size()));
  device.copy_to_host(tensor, std::span<float>(numbers));
  return numbers;
}

/// Of one rank, without those that only look for errors.
std::vector<nccl_stand_in::Call> calls_of(int rank) {
  std::vector<nccl_stand_in::Call> calls = nccl_stand_in::calls_of(rank);
  std::erase_if(calls, [](const auto& call) { return call.name == "ncclCommGetAsyncError"; });
  return calls;
}

constexpr int kFloat32 = 7;  // ncclFloat32

TEST_CASE("GPUs are linked once, by the id of rank 0, and their link ends before they do") {
  on_gpus(3, [](Device& device, TurningRanks& ranks) { device.join(as_device_rank(ranks)); });
  for (int rank = 0; rank < 3; ++rank) {
    std::vector<std::string> names;
    for (const auto& call : calls_of(rank)) names.push_back(call.name);
    if (rank == 0) {
      CHECK(names == std::vector<std::string>{"ncclGetUniqueId", "ncclCommInitRank", "ncclCommDestroy"});
    } else {
      CHECK(names == std::vector<std::string>{"ncclCommInitRank", "ncclCommDestroy"});
    }
  }
}

TEST_CASE("a sum over GPUs has the bits of an addition in the order of the ranks, for every size and count") {
  for (const int size : {2, 3, 4}) {
    // A few, and enough to be cut into slices, of which the last is shorter or empty.
    for (const std::size_t count : {1u, 700u, 65535u, 65536u, 65537u, 70001u}) {
      CAPTURE(size);
      CAPTURE(count);
      Floats want = part_of(0, count);
      for (int rank = 1; rank < size; ++rank) {
        const Floats part = part_of(rank, count);
        for (std::size_t i = 0; i < count; ++i) want[i] += part[i];
      }
      on_gpus(size, [&](Device& device, TurningRanks& ranks) {
        Tensor x = uploaded(device, {static_cast<std::int64_t>(count)}, part_of(ranks.rank(), count));
        device.all_reduce(x);
        CHECK(downloaded(device, x) == want);
      });
    }
  }
}

TEST_CASE("few numbers are gathered by one call of each rank, in the stream of its kernels") {
  on_gpus(3, [](Device& device, TurningRanks& ranks) {
    Tensor x = uploaded(device, {4, 100}, part_of(ranks.rank(), 400));
    CHECK(device.all_reduce(x) == 2 * 400 * sizeof(float));
  });
  for (int rank = 0; rank < 3; ++rank) {
    const auto calls = calls_of(rank);
    const auto& call = calls.at(calls.size() - 2);
    CHECK(call.name == "ncclAllGather");
    CHECK(call.count == 400);
    CHECK(call.type == kFloat32);
    CHECK(call.stream != nullptr);
    CHECK_FALSE(call.grouped);
  }
}

TEST_CASE("many numbers go in slices, in two groups, and a rank receives what a ring would bring") {
  constexpr std::size_t kCount = 90'001, kSlice = 22'501;
  on_gpus(4, [](Device& device, TurningRanks& ranks) {
    Tensor x = uploaded(device, {kCount}, part_of(ranks.rank(), kCount));
    const std::size_t last = kCount - 3 * kSlice, own = ranks.rank() == 3 ? last : kSlice;
    CHECK(device.all_reduce(x) == (3 * own + kCount - own) * sizeof(float));
  });
  for (int rank = 0; rank < 4; ++rank) {
    CAPTURE(rank);
    auto calls = calls_of(rank);
    calls.erase(calls.begin(), calls.end() - 1 - 12);  // two groups of a send and a receive for three ranks
    const auto count_of = [&](int of) { return of == 3 ? kCount - 3 * kSlice : kSlice; };
    for (std::size_t i = 0; i < 12; ++i) {
      CAPTURE(i);
      const auto& call = calls[i];
      const int peer = static_cast<int>(i % 6 / 2) + (static_cast<int>(i % 6 / 2) >= rank ? 1 : 0);
      const bool sends = i % 2 == 0, first = i < 6;
      CHECK(call.name == (sends ? "ncclSend" : "ncclRecv"));
      CHECK(call.peer == peer);
      CHECK(call.count == count_of(sends == first ? peer : rank));
      CHECK(call.type == kFloat32);
      CHECK(call.grouped);
      CHECK(call.stream == calls[0].stream);
    }
  }
}

TEST_CASE("the columns of all GPUs come side by side, without what each has beyond them") {
  // Ten columns, four of each rank; the fifth is not wanted, and the last rank has two that count.
  on_gpus(3, [](Device& device, TurningRanks& ranks) {
    Floats own, want;
    for (int row = 0; row < 2; ++row) {
      for (int c = 0; c < 5; ++c) own.push_back(static_cast<float>(100 * ranks.rank() + 10 * row + c));
      for (int c = 0; c < 10; ++c) want.push_back(static_cast<float>(c / 4 * 100 + 10 * row + c % 4));
    }
    Tensor all = device.allocate(DType::kFloat32, {2, 10});
    CHECK(device.all_gather(uploaded(device, {2, 5}, own), 4, all) == 2 * 10 * sizeof(float));
    CHECK(downloaded(device, all) == want);
  });
}

TEST_CASE("on emulated GPUs a shared model has the logits of one, and a pass exchanges nothing by the host") {
  const std::vector<int> text{321, 11, 5, 900, 17, 2, 40};
  for (const std::string name : {"tales-llama-1m", "tales-qwen-1m"}) {
    Model whole = Model::load(find_model(name), make_cpu_device(1));
    const std::span<const float> logits = whole.next_logits(text);
    const Floats want(logits.begin(), logits.end());
    for (const int size : {2, 3}) {
      CAPTURE(name);
      CAPTURE(size);
      std::vector<Floats> got(static_cast<std::size_t>(size));
      nccl_stand_in::begin();
      const auto errors = on_ranks(size, [&](TurningRanks& ranks) {
        Model model = Model::load(find_model(name), make_cuda_device(), DType::kFloat32, ranks);
        const int before = ranks.exchanges;
        const std::size_t bytes = ranks.received_bytes();
        const std::span<const float> own = model.next_logits(text);
        got[static_cast<std::size_t>(ranks.rank())] = {own.begin(), own.end()};
        CHECK(ranks.exchanges == before);
        // The embedding and two sums a block for each token, those of the last block for the last token
        // alone; and the logits.
        const ModelConfig& config = whole.config();
        const auto width = static_cast<std::size_t>(config.n_embd),
                   blocks = static_cast<std::size_t>(config.n_layer);
        const std::size_t numbers = width * ((2 * blocks - 1) * text.size() + 2) +
                                    static_cast<std::size_t>((config.vocab_size + size - 1) / size) + 1;
        CHECK(ranks.received_bytes() - bytes == 4 * numbers * static_cast<std::size_t>(size - 1));
      });
      for (const std::string& error : errors) CHECK(error == "");
      for (const Floats& own : got) {
        CHECK(own == got[0]);
        CHECK(difference("logits", own, want, own.size(), 1e-4) == "");
      }
    }
  }
}

TEST_CASE("a tensor goes to one rank by a call on each side, in the stream of their kernels") {
  on_gpus(3, [](Device& device, TurningRanks& ranks) {
    Tensor x = uploaded(device, {5, 100}, part_of(ranks.rank(), 500));
    if (ranks.rank() == 1) device.send(x, 2);
    if (ranks.rank() == 2) CHECK(device.receive(x, 1) == 500 * sizeof(float));
    CHECK(downloaded(device, x) == part_of(ranks.rank() == 2 ? 1 : ranks.rank(), 500));
  });
  for (const int rank : {1, 2}) {
    CAPTURE(rank);
    const auto calls = calls_of(rank);
    REQUIRE(calls.size() == 3);  // between the first and the last of the link
    CHECK(calls[1].name == (rank == 1 ? "ncclSend" : "ncclRecv"));
    CHECK(calls[1].peer == 3 - rank);
    CHECK(calls[1].count == 500);
    CHECK(calls[1].type == kFloat32);
    CHECK_FALSE(calls[1].grouped);
    CHECK(calls[1].stream != nullptr);
  }
  CHECK(calls_of(0).size() == 3);
}

TEST_CASE("a pipeline of emulated GPUs has the logits of one, and its numbers do not pass through the host") {
  const std::vector<std::vector<int>> texts{{321, 11, 5}, {8, 1500, 900, 17}, {77}};
  const std::vector<std::span<const int>> batch(texts.begin(), texts.end());
  Model whole = Model::load(find_model("tales-qwen-1m"), make_cpu_device(1));
  const std::span<const float> logits = whole.next_logits(batch);
  const Floats want(logits.begin(), logits.end());
  const std::size_t hidden = std::size_t{4} * 128 * 8, last = std::size_t{4} * 4096 * 3;
  for (const int size : {2, 3}) {
    for (const int micro_batches : {1, 2, 3}) {
      CAPTURE(size);
      CAPTURE(micro_batches);
      std::vector<Floats> got(static_cast<std::size_t>(size));
      nccl_stand_in::begin();
      const auto errors = on_ranks(size, [&](TurningRanks& ranks) {
        Model model = Model::load(find_model("tales-qwen-1m"), make_cuda_device(), DType::kFloat32, ranks,
                                  Split::kBlocks);
        model.run_with([&](Pass& pass) { forward(model.network(), pass, micro_batches); });
        const int before = ranks.exchanges;
        const std::size_t bytes = ranks.received_bytes();
        const std::span<const float> own = model.next_logits(batch);
        got[static_cast<std::size_t>(ranks.rank())] = {own.begin(), own.end()};
        CHECK(ranks.exchanges == before);
        CHECK(ranks.received_bytes() - bytes ==
              (ranks.rank() > 0 ? hidden : 0) + (ranks.rank() + 1 < size ? last : 0));
      });
      for (const std::string& error : errors) CHECK(error == "");
      for (const Floats& own : got) {
        CHECK(own == got[0]);
        CHECK(difference("logits", own, want, own.size(), 1e-4) == "");
      }
      // Each micro-batch comes once, and the logits of all of them once.
      const auto calls = calls_of(size - 1);
      const auto count_of = [&](const std::string& name) {
        return std::ranges::count(calls, name, &nccl_stand_in::Call::name);
      };
      CHECK(count_of("ncclRecv") == micro_batches);
      CHECK(count_of("ncclSend") == size - 1);
    }
  }
}

TEST_CASE("whole blocks may be on a CPU and on a GPU, which are not linked then") {
  nccl_stand_in::begin();
  const auto errors = on_ranks(2, [](TurningRanks& ranks) {
    const Model model =
        Model::load(find_model("tales-qwen-1m"), ranks.rank() == 0 ? make_cuda_device() : make_cpu_device(1),
                    DType::kFloat32, ranks, Split::kBlocks);
    CHECK_FALSE(model.device().is_linked());
  });
  for (const std::string& error : errors) CHECK(error == "");
  CHECK(calls_of(0).empty());
}

/// Devices that were abandoned keep their memory until the process ends; a test gives it back.
struct FreesAbandoned {
  std::map<void*, std::size_t> before = cuda_emulation::allocations;
  FreesAbandoned() = default;
  FreesAbandoned(const FreesAbandoned&) = delete;
  FreesAbandoned& operator=(const FreesAbandoned&) = delete;
  ~FreesAbandoned() {
    for (const auto& [memory, bytes] : cuda_emulation::allocations) {
      if (!before.contains(memory)) cuda_emulation::free_with_guards(memory);
    }
    cuda_emulation::allocations = before;
  }
};

/// Does work on a linked device as a pass of a model does.
void do_pass(Device& device, const std::function<void()>& work) {
  try {
    work();
  } catch (...) {
    device.abandon();
    throw;
  }
}

TEST_CASE("an error of NCCL is one sentence, and a rank that fails waits for no other") {
  const FreesAbandoned frees_abandoned;
  const auto errors_of = [](const std::string& name, int result, const std::string& last_error) {
    nccl_stand_in::begin();
    nccl_stand_in::fail(name, 1, result, last_error);
    return on_ranks(2, [&](TurningRanks& ranks) {
      const std::unique_ptr<Device> device = make_cuda_device();
      device->join(as_device_rank(ranks));
      Tensor x = device->allocate(DType::kFloat32, {3});
      do_pass(*device, [&] { device->all_reduce(x); });
    });
  };
  CHECK(errors_of("ncclCommInitRank", 5, "Duplicate GPU detected : rank 1 and rank 0\nfile.cc:12")[1] ==
        "NCCL failed while GPUs were linked: invalid usage (Duplicate GPU detected : rank 1 and rank 0)");
  CHECK(errors_of("ncclAllGather", 2, "")[1] ==
        "NCCL failed while numbers of all ranks were gathered: unhandled system error");
  CHECK(calls_of(1).back().name == "ncclAllGather");
  CHECK(nccl_stand_in::endless_waits() == 0);
  const auto error_between_two = [](const std::string& name, int rank) {
    nccl_stand_in::begin();
    nccl_stand_in::fail(name, rank, 2, "");
    return on_ranks(2, [&](TurningRanks& ranks) {
      const std::unique_ptr<Device> device = make_cuda_device();
      device->join(as_device_rank(ranks));
      Tensor x = device->allocate(DType::kFloat32, {3});
      do_pass(*device, [&] {
        if (ranks.rank() == 0) device->send(x, 1);
        if (ranks.rank() == 1) device->receive(x, 0);
      });
    })[static_cast<std::size_t>(rank)];
  };
  CHECK(error_between_two("ncclSend", 0) ==
        "NCCL failed while numbers were sent to another rank: unhandled system error");
  CHECK(error_between_two("ncclRecv", 1) ==
        "NCCL failed while numbers of another rank were received: unhandled system error");
  CHECK(nccl_stand_in::endless_waits() == 0);
}

/// What each of two ranks throws in a second pass of that many tokens, before which they call `harm`. All
/// that they own ends then.
std::vector<std::string> errors_of_second_pass(std::size_t tokens,
                                               const std::function<void(TurningRanks&)>& harm) {
  const FreesAbandoned frees_abandoned;
  nccl_stand_in::begin();
  const cuda_emulation::Settings before = cuda_emulation::settings;
  const int waits = cuda_emulation::endless_waits;
  const auto errors = on_ranks(2, [&](TurningRanks& ranks) {
    Model model = Model::load(find_model("tales-llama-1m"), make_cuda_device(), DType::kFloat32, ranks);
    StaticKvCache cache(model);
    model.next_logits(std::vector<int>{321, 11, 5}, cache);
    ranks.broadcast("both have come so far");
    harm(ranks);
    model.next_logits(std::vector<int>(tokens, 7), cache);
  });
  cuda_emulation::settings = before;
  CHECK(cuda_emulation::endless_waits == waits);
  CHECK(nccl_stand_in::endless_waits() == 0);
  for (int rank = 0; rank < 2; ++rank) {
    for (const auto& call : calls_of(rank))
      CHECK((call.name != "ncclCommAbort" && call.name != "ncclCommDestroy"));
  }
  return errors;
}

TEST_CASE("a rank that is lost while GPUs compute ends the wait of the others, and their memory stays") {
  const auto errors = errors_of_second_pass(3, [](TurningRanks&) {
    cuda_emulation::settings.unfinished = -1;  // its kernels wait for the lost rank
    nccl_stand_in::lose_rank(6);
  });
  for (const std::string& error : errors) {
    CHECK(error ==
          "NCCL failed while GPUs of several ranks computed: remote process exited or there was a "
          "network error");
  }
}

TEST_CASE("a rank that is stopped while GPUs compute ends the wait of the others after a while") {
  const auto usual = cuda::NcclLink::longest_wait;
  cuda::NcclLink::longest_wait = std::chrono::milliseconds(200);
  const auto errors =
      errors_of_second_pass(3, [](TurningRanks&) { cuda_emulation::settings.unfinished = -1; });
  cuda::NcclLink::longest_wait = usual;
  for (const std::string& error : errors) {
    CHECK(error ==
          "another rank has not answered for 0.2 seconds: it has ended, is stopped or cannot be reached");
  }
}

TEST_CASE("a rank without memory for a pass ends with that, although the other one waits for it") {
  const auto errors = errors_of_second_pass(40, [](TurningRanks& ranks) {  // more memory than the first
    if (ranks.rank() == 1) cuda_emulation::settings.memory = 0;
  });
  CHECK(begins_with(errors[1], "the GPU has too little memory"));
}

TEST_CASE("a rank that fails between two passes waits for no other") {
  const auto errors = errors_of_second_pass(3, [](TurningRanks& ranks) {
    if (ranks.rank() == 1) throw Error("so it goes");
  });
  CHECK(errors[1] == "so it goes");
}

/// What is asked of a device, with the tensors few [1, 4], out [1, 4] and many [50].
using Wish = std::function<void(Device& device, Tensor& few, Tensor& out, Tensor& many)>;

/// What each of two ranks throws when it asks that of a GPU whose kernels wait for the other one for ever.
/// That of rank 0 ends by the exception, or after it.
std::vector<std::string> errors_of_waiting(const Wish& wish, bool ends_by_exception) {
  const FreesAbandoned frees_abandoned;
  nccl_stand_in::begin();
  const cuda_emulation::Settings before = cuda_emulation::settings;
  const auto usual = cuda::NcclLink::longest_wait;
  const int waits = cuda_emulation::endless_waits;
  cuda::NcclLink::longest_wait = std::chrono::milliseconds(100);
  const auto errors = on_ranks(2, [&](TurningRanks& ranks) {
    std::string error;
    {
      const std::unique_ptr<Device> device = make_cuda_device();
      device->join(as_device_rank(ranks));
      Tensor few = uploaded(*device, {1, 4}, {1, 2, 3, 4}), out = uploaded(*device, {1, 4}, Floats(4)),
             many = uploaded(*device, {50}, Floats(50));
      device->all_reduce(few);
      CHECK(downloaded(*device, few) == Floats{2, 4, 6, 8});
      ranks.broadcast("both have come so far");
      cuda_emulation::settings.unfinished = -1;
      try {
        do_pass(*device, [&] { wish(*device, few, out, many); });
      } catch (const std::exception& thrown) {
        if (ends_by_exception || ranks.rank() == 1) throw;
        error = thrown.what();
      }
    }
    throw Error("{}", error);
  });
  cuda_emulation::settings = before;
  cuda::NcclLink::longest_wait = usual;
  CHECK(cuda_emulation::endless_waits == waits);
  CHECK(nccl_stand_in::endless_waits() == 0);
  return errors;
}

TEST_CASE("whatever is asked of a GPU that waits for a lost rank, the answer comes in time") {
  const Wish wishes[] = {
      [](Device& device, Tensor& few, Tensor&, Tensor&) {  // results
        downloaded(device, few);
      },
      [](Device& device, Tensor&, Tensor&, Tensor&) {  // memory
        device.allocate(DType::kFloat32, {8});
      },
      [](Device& device, Tensor&, Tensor&, Tensor& many) {  // other memory for the parts of all ranks
        device.all_reduce(many);
      },
      [](Device& device, Tensor& few, Tensor& out, Tensor&) {  // more launches than a GPU takes
        for (int i = 0; i < 1100; ++i) device.normalize(few, {NormKind::kRms, {}, {}, 1e-5f}, out);
      },
  };
  for (const Wish& wish : wishes) {
    CAPTURE(&wish - wishes);
    for (const bool ends_by_exception : {true, false}) {
      for (const std::string& error : errors_of_waiting(wish, ends_by_exception)) {
        CHECK(error ==
              "another rank has not answered for 0.1 seconds: it has ended, is stopped or cannot be "
              "reached");
      }
    }
  }
}

TEST_CASE("after a wait for other ranks no error remains, which NCCL would report as its own") {
  on_gpus(2, [](Device& device, TurningRanks& ranks) {
    Tensor x = uploaded(device, {3}, {1, 2, 3});
    device.all_reduce(x);
    ranks.broadcast("both have come so far");
    cuda_emulation::settings.unfinished = 3;
    CHECK(downloaded(device, x) == Floats{2, 4, 6});
    CHECK(cudaGetLastError() == cudaSuccess);
  });
}

TEST_CASE("ranks on a CPU and on a GPU are refused") {
  nccl_stand_in::begin();
  const auto errors = on_ranks(2, [](TurningRanks& ranks) {
    Model::load(find_model("tales-llama-1m"), ranks.rank() == 0 ? make_cuda_device() : make_cpu_device(1),
                DType::kFloat32, ranks);
  });
  for (const std::string& error : errors) {
    CHECK(error == "rank 1 uses a different kind of device than rank 0; run every rank with --device cpu");
  }
}

TEST_CASE("whole blocks may be on different kinds of devices") {
  nccl_stand_in::begin();
  const auto errors = on_ranks(2, [](TurningRanks& ranks) {
    Model::load(find_model("tales-llama-1m"), ranks.rank() == 0 ? make_cuda_device() : make_cpu_device(1),
                DType::kFloat32, ranks, Split::kBlocks);
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("a GPU that is not linked, and a CPU, refuse what needs others") {
  for (const bool gpu : {true, false}) {
    const std::unique_ptr<Device> device = gpu ? make_cuda_device() : make_cpu_device(1);
    CHECK(device->can_join() == gpu);
    Tensor x = device->allocate(DType::kFloat32, {3});
    CHECK_THROWS_WITH(device->all_reduce(x), "this device is not linked to others");
    CHECK_THROWS_WITH(device->all_gather(x, 3, x), "this device is not linked to others");
    CHECK_THROWS_WITH(device->send(x, 1), "this device is not linked to others");
    CHECK_THROWS_WITH(device->receive(x, 1), "this device is not linked to others");
    CHECK_FALSE(device->is_linked());
  }
}

}  // namespace
}  // namespace staircase
