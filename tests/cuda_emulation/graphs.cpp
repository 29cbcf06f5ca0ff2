// Device::run: work that comes again is done as a graph, and a graph is never used for other work.
#include <doctest/doctest.h>

#include <functional>
#include <initializer_list>
#include <vector>

#include "kernels/cuda/operation_list.h"
#include "tests/cuda_emulation/include/cuda_runtime.h"
#include "tests/kernels/kernel_test.h"

namespace staircase {
namespace {

/// Calls test(device) with devices that have not run anything yet, in the orders of on_every_device.
template <typename Test>
void on_new_devices(const Test& test) {
  on_every_device([&](Device&) { test(*make_cuda_device()); });
}

/// How many graphs were launched meanwhile.
template <typename Action>
int graphs_during(const Action& action) {
  const int before = cuda_emulation::graphs_launched;
  action();
  return cuda_emulation::graphs_launched - before;
}

/// One decoding step of an attention layer: a product, the cache and a second product, of more rows than the
/// kernels for a few take.
struct Layer {
  static constexpr std::int64_t kWidth = 24, kRows = 33, kHeads = 3;

  Device& device;
  DType dtype = DType::kFloat16;
  Values w = random_values(3 * kWidth * kWidth, 1), bias = random_values(3 * kWidth, 2);
  Weight weight =
      device.load_weight({w.data(), DType::kFloat32, kWidth, 3 * kWidth}, WeightOrder::kInputFirst, dtype);
  Tensor device_bias = upload(device, {3 * kWidth}, bias);
  Tensor x = upload(device, {kRows, kWidth}, random_values(kRows* kWidth, 3));
  Tensor queries = result_tensor(device, {kRows, kWidth}), out = result_tensor(device, {kRows, kWidth});
  Batch batch = make_batch(device, std::vector<Sequence>(kRows, Sequence{0, 1}));

  KeysValues cache(std::int64_t capacity) const {
    return {result_tensor(device, {kRows, kHeads, capacity, kWidth / kHeads}),
            result_tensor(device, {kRows, kHeads, capacity, kWidth / kHeads})};
  }

  void go_to(std::int32_t position) {
    device.copy_from_host(std::vector<std::int32_t>(kRows, position), batch.starts);
  }

  void work(KeysValues& cache) {
    device.query_key_value(batch, x, {}, weight, device_bias, queries, cache);
    device.attention(batch, queries, cache, out);
  }

  /// What the step gives, by run() or without it.
  Values step(KeysValues& cache, bool by_run) {
    if (by_run) {
      device.run([&] { work(cache); });
    } else {
      work(cache);
    }
    return download(device, out);
  }
};

TEST_CASE("a list of operations distinguishes everything that their kernels can distinguish") {
  const auto list_of = [](const auto& argument) {
    cuda::OperationList list;
    list.add(argument);
    return list;
  };
  const std::unique_ptr<Device> device = make_cuda_device();
  const Tensor a = device->allocate(DType::kFloat32, {6}), b = device->allocate(DType::kFloat32, {6});
  CHECK(list_of(a) == list_of(a.rows(0, 6)));
  for (const Tensor& other : {b, a.rows(1, 5), a.reshaped({2, 3}), a.reshaped({3, 2}), Tensor(),
                              Tensor(DType::kInt32, {6}, {a.data<void>(), [](void*) {}})}) {
    CHECK(list_of(a) != list_of(other));
  }
  const Weight weight{a, 2, 3};
  CHECK(list_of(weight) == list_of(Weight{a, 2, 3}));
  for (const Weight& other : {Weight{b, 2, 3}, Weight{a, 3, 3}, Weight{a, 2, 2}}) {
    CHECK(list_of(weight) != list_of(other));
  }
  const auto layer = NormKind::kLayer;
  const Norm norm{layer, a, a, 1e-5f};
  CHECK(list_of(norm) == list_of(Norm{layer, a, a, 1e-5f}));
  for (const Norm& other : {Norm{layer, b, a, 1e-5f}, Norm{layer, a, b, 1e-5f}, Norm{layer, a, a, 1e-6f},
                            Norm{NormKind::kRms, a, a, 1e-5f}, Norm{layer, a, {}, 1e-5f}}) {
    CHECK(list_of(norm) != list_of(other));
  }
  CHECK(list_of(HeadRule{norm, norm, a}) == list_of(HeadRule{norm, norm, a}));
  for (const HeadRule& other : {HeadRule{{}, norm, a}, HeadRule{norm, {}, a}, HeadRule{norm, norm, b},
                                HeadRule{norm, norm, a, true}}) {
    CHECK(list_of(HeadRule{norm, norm, a}) != list_of(other));
  }
  const Batch batch{a, a, a};
  CHECK(list_of(batch) == list_of(Batch{a, a, a}));
  for (const Batch& other : {Batch{b, a, a}, Batch{a, b, a}, Batch{a, a, b}}) {
    CHECK(list_of(batch) != list_of(other));
  }
  CHECK(list_of(KeysValues{a, a}) == list_of(KeysValues{a, a}));
  for (const KeysValues& other : {KeysValues{b, a}, KeysValues{a, b}, KeysValues{a, a, b}}) {
    CHECK(list_of(KeysValues{a, a}) != list_of(other));
  }
}

TEST_CASE("an operation is other work with any other argument") {
  on_new_devices([](Device& device) {
    /// No call is taken for one before it; the second time each is done as a graph.
    const auto tells_apart = [&](std::initializer_list<std::function<void()>> calls) {
      for (const auto& call : calls) {
        CAPTURE(&call - calls.begin());
        CHECK(graphs_during([&] { device.run(call); }) == 0);
        CHECK(graphs_during([&] { device.run(call); }) == 1);
      }
    };
    const auto some = [&](const Shape& shape) {
      return upload(device, shape, random_values(element_count(shape), 1));
    };
    const auto weight = [&](std::size_t columns) {
      return upload_weight(device, random_values(16 * columns, 1), 16, columns);
    };
    const Batch batch = make_batch(device, {{0, 3}}), batch2 = make_batch(device, {{0, 3}});
    const Tensor x = some({3, 16}), x2 = some({3, 16}), table = some({9, 16}), table2 = some({9, 16});
    const Norm norm{NormKind::kLayer, some({16}), some({16}), 1e-5f},
        norm2{NormKind::kRms, norm.weight, norm.bias, 1e-5f};
    Tensor out = some({3, 16}), out2 = some({3, 16});
    const Weight tokens = weight(9), tokens2 = weight(9);
    tells_apart({[&] { device.embedding(batch, tokens, table, out); },
                 [&] { device.embedding(batch2, tokens, table, out); },
                 [&] { device.embedding(batch, tokens2, table, out); },
                 [&] { device.embedding(batch, tokens, table2, out); },
                 [&] { device.embedding(batch, tokens, Tensor(), out); },
                 [&] { device.embedding(batch, tokens, table, out2); }});
    tells_apart({[&] { device.normalize(x, norm, out); }, [&] { device.normalize(x2, norm, out); },
                 [&] { device.normalize(x, norm2, out); }, [&] { device.normalize(x, norm, out2); },
                 [&] { device.add_normalized(x, norm, out); }, [&] { device.add_normalized(x2, norm, out); },
                 [&] { device.add_normalized(x, norm2, out); },
                 [&] { device.add_normalized(x, norm, out2); }});
    const Weight w = weight(16), w2 = weight(16);
    const Tensor bias = some({16}), bias2 = some({16});
    tells_apart({[&] { device.linear(x, norm, w, bias, Epilogue::kStore, out); },
                 [&] { device.linear(x2, norm, w, bias, Epilogue::kStore, out); },
                 [&] { device.linear(x, norm2, w, bias, Epilogue::kStore, out); },
                 [&] { device.linear(x, norm, w2, bias, Epilogue::kStore, out); },
                 [&] { device.linear(x, norm, w, bias2, Epilogue::kStore, out); },
                 [&] { device.linear(x, norm, w, bias, Epilogue::kGelu, out); },
                 [&] { device.linear(x, norm, w, bias, Epilogue::kGeluErf, out); },
                 [&] { device.linear(x, norm, w, bias, Epilogue::kStore, out2); }});
    KeysValues cache{some({1, 2, 4, 8}), some({1, 2, 4, 8})}, cache2{some({1, 2, 4, 8}), some({1, 2, 4, 8})};
    const Weight qkv = weight(48), qkv2 = weight(48);
    const Tensor qkv_bias = some({48}), qkv_bias2 = some({48});
    tells_apart({[&] { device.query_key_value(batch, x, norm, qkv, qkv_bias, out, cache); },
                 [&] { device.query_key_value(batch2, x, norm, qkv, qkv_bias, out, cache); },
                 [&] { device.query_key_value(batch, x2, norm, qkv, qkv_bias, out, cache); },
                 [&] { device.query_key_value(batch, x, norm2, qkv, qkv_bias, out, cache); },
                 [&] { device.query_key_value(batch, x, norm, qkv2, qkv_bias, out, cache); },
                 [&] { device.query_key_value(batch, x, norm, qkv, qkv_bias2, out, cache); },
                 [&] { device.query_key_value(batch, x, norm, qkv, qkv_bias, out2, cache); },
                 [&] { device.query_key_value(batch, x, norm, qkv, qkv_bias, out, cache2); }});
    // Two heads of queries share one of keys.
    const Tensor projected = some({3, 32}), projected2 = some({3, 32}), rotations = some({3, 8}),
                 rotations2 = some({3, 8});
    const HeadRule rule{{NormKind::kRms, some({8}), {}, 1e-5f}, {}, rotations};
    KeysValues shared{some({1, 1, 4, 8}), some({1, 1, 4, 8})},
        shared2{some({1, 1, 4, 8}), some({1, 1, 4, 8})};
    tells_apart({[&] { device.split_heads(batch, projected, rule, out, shared); },
                 [&] { device.split_heads(batch2, projected, rule, out, shared); },
                 [&] { device.split_heads(batch, projected2, rule, out, shared); },
                 [&] {
                   device.split_heads(batch, projected, {{}, {}, rotations}, out, shared);
                 },
                 [&] {
                   device.split_heads(batch, projected, {{}, {}, rotations2}, out, shared);
                 },
                 [&] { device.split_heads(batch, projected, {}, out, shared); },
                 [&] { device.split_heads(batch, projected, rule, out2, shared); },
                 [&] { device.split_heads(batch, projected, rule, out, shared2); }});
    tells_apart(
        {[&] { device.attention(batch, x, cache, out); }, [&] { device.attention(batch2, x, cache, out); },
         [&] { device.attention(batch, x2, cache, out); }, [&] { device.attention(batch, x, cache2, out); },
         [&] { device.attention(batch, x, shared, out); }, [&] { device.attention(batch, x, cache, out2); }});
    Tensor to = some({1, 2, 4, 8}), to2 = some({1, 2, 4, 8});
    tells_apart({[&] { device.copy_positions(cache.keys, 0, 1, to, 0); },
                 [&] { device.copy_positions(cache2.keys, 0, 1, to, 0); },
                 [&] { device.copy_positions(cache.keys, 2, 1, to, 0); },
                 [&] { device.copy_positions(cache.keys, 0, 2, to, 0); },
                 [&] { device.copy_positions(cache.keys, 0, 1, to2, 0); },
                 [&] { device.copy_positions(cache.keys, 0, 1, to, 2); }});
    const Tensor rows = upload_ints(device, {2, 0, 1}), rows2 = upload_ints(device, {2, 0, 1});
    tells_apart({[&] { device.gather_rows(x, rows, out); }, [&] { device.gather_rows(x2, rows, out); },
                 [&] { device.gather_rows(x, rows2, out); }, [&] { device.gather_rows(x, rows, out2); }});
    Tensor chosen = upload_ints(device, {0, 0, 0}).reshaped({3, 1}), shares = some({3, 1}),
           chosen2 = upload_ints(device, {0, 0, 0}).reshaped({3, 1}), shares2 = some({3, 1});
    tells_apart({[&] { device.choose_experts(x, RouterSoftmax::kAll, chosen, shares); },
                 [&] { device.choose_experts(x2, RouterSoftmax::kAll, chosen, shares); },
                 [&] { device.choose_experts(x, RouterSoftmax::kChosen, chosen, shares); },
                 [&] { device.choose_experts(x, RouterSoftmax::kAll, chosen2, shares); },
                 [&] { device.choose_experts(x, RouterSoftmax::kAll, chosen, shares2); }});
    const Tensor places = rows.reshaped({3, 1}), places2 = rows2.reshaped({3, 1});
    tells_apart({[&] { device.combine_rows(x, places, shares, Epilogue::kStore, out); },
                 [&] { device.combine_rows(x2, places, shares, Epilogue::kStore, out); },
                 [&] { device.combine_rows(x, places2, shares, Epilogue::kStore, out); },
                 [&] { device.combine_rows(x, places, shares2, Epilogue::kStore, out); },
                 [&] { device.combine_rows(x, places, shares, Epilogue::kAdd, out); },
                 [&] { device.combine_rows(x, places, shares, Epilogue::kStore, out2); }});
    const Tensor whose = upload_ints(device, {0, 0, 0}), whose2 = upload_ints(device, {0, 0, 0}),
                 firsts = upload_ints(device, {0, 1}), columns = upload_ints(device, {0, 2}).reshaped({1, 2});
    const LowRank change{some({1, 16}), some({1, 16}), some({1}), columns, firsts},
        change2{some({1, 16}), some({1, 16}), some({1}), columns, firsts};
    tells_apart({[&] { device.add_low_rank(x, whose, change, out); },
                 [&] { device.add_low_rank(x2, whose, change, out); },
                 [&] { device.add_low_rank(x, whose2, change, out); },
                 [&] { device.add_low_rank(x, whose, change2, out); },
                 [&] { device.add_low_rank(x, whose, change, out2); }});
    tells_apart({[&] { device.activate(x, Epilogue::kGelu, out); },
                 [&] { device.activate(x2, Epilogue::kGelu, out); },
                 [&] { device.activate(x, Epilogue::kGeluErf, out); },
                 [&] { device.activate(x, Epilogue::kGelu, out2); }});
    Batch next = make_batch(device, {{0, 1}, {0, 1}, {0, 1}}),
          next2 = make_batch(device, {{0, 1}, {0, 1}, {0, 1}});
    Tensor largest = upload_ints(device, {0, 0, 0}), largest2 = upload_ints(device, {0, 0, 0});
    tells_apart({[&] { device.argmax(x, largest); }, [&] { device.argmax(x2, largest); },
                 [&] { device.argmax(x, largest2); }, [&] { device.argmax(x, largest, &next); },
                 [&] { device.argmax(x, largest, &next2); }});
    Tensor found = upload_ints(device, std::vector<std::int32_t>(15)).reshaped({3, 5}),
           found2 = upload_ints(device, std::vector<std::int32_t>(15)).reshaped({3, 5});
    tells_apart({[&] { device.k_largest(x, 2, found); }, [&] { device.k_largest(x2, 2, found); },
                 [&] { device.k_largest(x, 1, found); }, [&] { device.k_largest(x, 2, found2); }});
  });
}

TEST_CASE("repeated work runs as a graph, with the tensors' current contents") {
  on_new_devices([](Device& device) {
    Layer layer{device};
    KeysValues plain = layer.cache(8), by_graph = layer.cache(8);
    for (int position = 0; position < 8; ++position) {
      layer.go_to(position);
      const Values want = layer.step(plain, false);
      const int graphs = graphs_during([&] { CHECK(same_bits(layer.step(by_graph, true), want)); });
      CAPTURE(position);
      CHECK(graphs == (position < 1 ? 0 : 1));
    }
  });
}

TEST_CASE("a graph reads the block table at the time when the graph runs") {
  on_new_devices([](Device& device) {
    Layer layer{device};
    KeysValues plain = layer.cache(32);
    const Shape shape{2 * Layer::kRows, Layer::kHeads, 16, Layer::kWidth / Layer::kHeads};
    KeysValues paged{
        result_tensor(device, shape), result_tensor(device, shape),
        upload_ints(device, std::vector<std::int32_t>(2 * Layer::kRows)).reshaped({Layer::kRows, 2})};
    std::vector<std::int32_t> table(2 * Layer::kRows);
    for (int position = 0; position < 32; ++position) {
      if (position % 16 == 0) {  // each row gets its next block
        for (std::size_t row = 0; row < Layer::kRows; ++row) {
          const auto block = static_cast<std::size_t>(position) / 16;
          table[2 * row + block] = static_cast<std::int32_t>((7 * (2 * row + block) + 3) % table.size());
        }
        device.copy_from_host(table, paged.blocks);
      }
      layer.go_to(position);
      const Values want = layer.step(plain, false);
      const int graphs = graphs_during([&] { CHECK(same_bits(layer.step(paged, true), want)); });
      CAPTURE(position);
      CHECK(graphs == (position < 1 ? 0 : 1));
    }
  });
}

TEST_CASE("a cache that has moved is never read where it was") {
  on_new_devices([](Device& device) {
    Layer layer{device};
    KeysValues cache = layer.cache(8);
    for (int position = 0; position < 5; ++position) {
      layer.go_to(position);
      layer.step(cache, true);
    }
    // Others of the same shape and of another one; the memory of the one before is given back each time.
    for (const std::int64_t capacity : {8, 16, 8}) {
      cache = {};
      cache = layer.cache(capacity);
      KeysValues plain = layer.cache(capacity);
      for (int position = 0; position < 5; ++position) {
        layer.go_to(position);
        const Values want = layer.step(plain, false);
        CAPTURE(position);
        CHECK(same_bits(layer.step(cache, true), want));
      }
    }
  });
}

TEST_CASE("memory for intermediate results that has moved is never used where it was") {
  // With 16-bit weights the rows are rounded into such memory, too.
  const auto check = [](Device& device, DType dtype) {
    Layer layer{device, dtype};
    // The product of ten rows is kept in such memory on its way to the cache.
    KeysValues cache = layer.cache(8), plain = layer.cache(8);
    for (int position = 0; position < 4; ++position) {
      layer.go_to(position);
      layer.step(cache, true);
      layer.step(plain, false);
    }
    // One of many rows needs more of it.
    const Tensor x = upload(device, {600, 24}, random_values(600 * 24, 4));
    KeysValues large{result_tensor(device, {1, 3, 600, 8}), result_tensor(device, {1, 3, 600, 8})};
    Tensor queries = result_tensor(device, {600, 24});
    device.query_key_value(make_batch(device, {{0, 600}}), x, {}, layer.weight, layer.device_bias, queries,
                           large);
    for (int position = 4; position < 8; ++position) {
      layer.go_to(position);
      const Values want = layer.step(plain, false);
      const int graphs = graphs_during([&] { CHECK(same_bits(layer.step(cache, true), want)); });
      CHECK(graphs == (position == 4 ? 0 : 1));  // the graph from before is of no use
    }
  };
  on_new_devices([&](Device& device) { check(device, DType::kFloat32); });
  on_new_devices([&](Device& device) { check(device, DType::kFloat16); });
}

TEST_CASE("memory for weights that were widened is never used where it was") {
  const auto check = [](Device& device, DType dtype) {
    CAPTURE(to_string(dtype));
    Layer layer{device, dtype};
    // Staging memory grows when weights are loaded, so all of them are there before.
    const Values w = random_values(24 * 600, 4);
    const Weight larger =
        device.load_weight({w.data(), DType::kFloat32, 24, 600}, WeightOrder::kInputFirst, dtype);
    Tensor out = result_tensor(device, {Layer::kRows, 600});
    KeysValues cache = layer.cache(8), plain = layer.cache(8);
    for (int position = 0; position < 8; ++position) {
      if (position == 4) device.linear(layer.x, {}, larger, Tensor(), Epilogue::kStore, out);
      layer.go_to(position);
      const Values want = layer.step(plain, false);
      const int graphs = graphs_during([&] { CHECK(same_bits(layer.step(cache, true), want)); });
      CAPTURE(position);
      CHECK(graphs == (position == 0 || position == 4 ? 0 : 1));
    }
  };
  on_new_devices([&](Device& device) { check(device, DType::kInt8); });
  on_new_devices([&](Device& device) { check(device, DType::kInt4); });
}

TEST_CASE("two pieces of work in turns have a graph each") {
  on_new_devices([](Device& device) {
    Layer one{device}, other{device};
    KeysValues first = one.cache(8), second = other.cache(8);
    for (int i = 0; i < 4; ++i) one.step(first, true), other.step(second, true);
    const int graphs = graphs_during([&] {
      for (int i = 0; i < 3; ++i) one.step(first, true), other.step(second, true);
    });
    CHECK(graphs == 6);
  });
}

TEST_CASE("work of ever other shapes makes no graph and fills no memory") {
  on_new_devices([](Device& device) {
    Layer layer{device};
    const int graphs = graphs_during([&] {
      for (std::int64_t capacity = 1; capacity < 200; ++capacity) {
        KeysValues cache = layer.cache(capacity);
        layer.step(cache, true);
        CHECK(cuda_emulation::allocations.size() < 40);
      }
    });
    CHECK(graphs < 5);  // allocations may reuse the addresses of others
  });
}

TEST_CASE("work that fails leaves the device unchanged") {
  on_new_devices([](Device& device) {
    Layer layer{device};
    KeysValues cache = layer.cache(8);
    const Values want = layer.step(cache, false);
    for (int i = 0; i < 5; ++i) {
      int calls = 0;
      const auto fail = [&](int at) {
        device.run([&] {
          layer.work(cache);
          if (++calls == at) throw std::runtime_error("so it goes");
        });
      };
      CHECK_THROWS_WITH(fail(1), "so it goes");  // while operations are listed
      calls = 0;
      if (i > 2) fail(3);
      calls = 0;
      if (i < 2) CHECK_THROWS_WITH(fail(2), "so it goes");  // while they are done or captured
      CHECK(same_bits(download(device, layer.out), want));
    }
    CHECK(cuda_emulation::captures == 0);
    CHECK(same_bits(layer.step(cache, true), want));
  });
}

/// Puts the settings back when a test ends.
struct Restore {
  cuda_emulation::Settings before = cuda_emulation::settings;
  ~Restore() { cuda_emulation::settings = before; }
};

TEST_CASE("work that found no memory is done as usual once there is some") {
  on_new_devices([](Device& device) {
    Layer layer{device}, other{device};
    KeysValues cache = layer.cache(8), plain = layer.cache(8);
    {
      const Restore restore;
      cuda_emulation::settings.memory = 0;
      for (int i = 0; i < 3; ++i) {
        CHECK_THROWS_WITH_AS(layer.step(cache, true), doctest::Contains("the GPU has too little memory"),
                             std::runtime_error);
      }
    }
    const int graphs = graphs_during([&] {
      for (int i = 0; i < 3; ++i) CHECK(same_bits(layer.step(cache, true), other.step(plain, false)));
    });
    CHECK(graphs == 2);
  });
}

TEST_CASE("work whose graph finds no memory is done without one") {
  on_new_devices([](Device& device) {
    Layer layer{device};
    KeysValues cache = layer.cache(8), plain = layer.cache(8);
    const Values want = layer.step(plain, false);
    const auto graphs_of_steps = [&](int steps) {
      return graphs_during([&] {
        for (int i = 0; i < steps; ++i) CHECK(same_bits(layer.step(cache, true), want));
      });
    };
    {
      const Restore restore;
      cuda_emulation::settings.has_memory_for_graphs = false;  // to make one
      CHECK(graphs_of_steps(4) == 0);
    }
    CHECK(graphs_of_steps(3) >= 1);
    {
      const Restore restore;
      cuda_emulation::settings.has_memory_for_graphs = false;  // to launch one
      CHECK(graphs_of_steps(4) == 0);
    }
    CHECK(graphs_of_steps(3) >= 1);
    CHECK(cudaGetLastError() == cudaSuccess);
  });
}

TEST_CASE("copies between the operations of a run are refused") {
  on_new_devices([](Device& device) {
    Layer layer{device};
    CHECK_THROWS_AS(device.run([&] { layer.go_to(1); }), std::logic_error);
    CHECK_THROWS_AS(device.run([&] { download(device, layer.out); }), std::logic_error);
    layer.go_to(1);
  });
}

}  // namespace
}  // namespace staircase
