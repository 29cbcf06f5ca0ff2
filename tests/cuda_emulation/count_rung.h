// The ladders of a GPU as tests and `tools/step check` see them: what to compare a rung with, and what to
// count.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/rungs/cuda/attention/prepared.h"
#include "kernels/rungs/cuda/boundaries/prepared.h"
#include "kernels/rungs/cuda/layer_norm/prepared.h"
#include "kernels/rungs/cuda/matvec/prepared.h"
#include "kernels/rungs/cuda/product/prepared.h"
#include "kernels/rungs/cuda/softmax/prepared.h"
#include "tests/cuda_emulation/counters.h"
#include "tests/kernels/gpu_rung_cases.h"

namespace staircase::rungs {

/// What a rung requests of memory and of the host.
struct Counted : cuda_emulation::CountedLaunch {
  std::size_t kernels = 0;
  std::uint64_t waits = 0;
  int graphs = 0;

  cuda_emulation::Traffic read() const {
    cuda_emulation::Traffic all = loads;
    all += streams;
    return all;
  }
};

/// The counters of the last kernel that a prepared rung starts, or of all together, with the blocks of the
/// largest. `watch` may choose the memory that counts.
template <bool kTogether, typename Prepared, typename Watch>
Counted counted(Prepared& prepared, const Watch& watch) {
  prepared.write_x();
  const std::uint64_t waits = cuda_emulation::waits;
  const int graphs = cuda_emulation::graphs_launched;
  cuda_emulation::Counters counters;
  watch(counters);
  prepared.run();
  const std::vector<cuda_emulation::CountedLaunch>& launches = counters.launches();
  Counted all{kTogether ? launches.front() : launches.back()};
  all.kernels = launches.size();
  all.waits = cuda_emulation::waits - waits;
  all.graphs = cuda_emulation::graphs_launched - graphs;
  for (std::size_t i = 1; kTogether && i < launches.size(); ++i) {
    all.blocks = std::max(all.blocks, launches[i].blocks);
    all.loads += launches[i].loads;
    all.streams += launches[i].streams;
    all.barriers += launches[i].barriers;
    all.conflicts += launches[i].conflicts;
  }
  return all;
}

/// A counter that a rung's idea must lower, or raise.
struct Counter {
  std::string_view name;
  bool rises;
  double (*of)(const Counted& counted);

  /// Whether `own` is better than `below`.
  bool gains(const Counted& below, const Counted& own) const {
    return rises ? of(own) > of(below) : of(own) < of(below);
  }
};

using OfCounted = const Counted&;

inline constexpr Counter kSectors{"sectors a request", false, [](OfCounted c) {
                                    const cuda_emulation::Traffic read = c.read();
                                    return static_cast<double>(read.sectors) /
                                           static_cast<double>(read.requests);
                                  }};
inline constexpr Counter kRequests{"requests", false,
                                   [](OfCounted c) { return static_cast<double>(c.read().requests); }};
inline constexpr Counter kKilobytes{"KB read", false,
                                    [](OfCounted c) { return static_cast<double>(c.read().bytes) / 1e3; }};
inline constexpr Counter kEarly{"KB requested before the wait", true,
                                [](OfCounted c) { return static_cast<double>(c.read().early_bytes) / 1e3; }};
inline constexpr Counter kAtOnce{"bytes that a thread requests at once", true,
                                 [](OfCounted c) { return static_cast<double>(c.bytes_at_once); }};
inline constexpr Counter kBlocks{"blocks", true, [](OfCounted c) { return static_cast<double>(c.blocks); }};
inline constexpr Counter kBarriers{"barriers a block", false,
                                   [](OfCounted c) { return static_cast<double>(c.barriers) / c.blocks; }};
inline constexpr Counter kSharedBytes{
    "bytes of shared memory that grow with the text", false,
    [](OfCounted c) { return static_cast<double>(c.dynamic_shared_bytes); }};
inline constexpr Counter kKernels{"kernels", false,
                                  [](OfCounted c) { return static_cast<double>(c.kernels); }};
inline constexpr Counter kWaits{"waits of the host", false,
                                [](OfCounted c) { return static_cast<double>(c.waits); }};
inline constexpr Counter kGraphs{"graphs", true, [](OfCounted c) { return static_cast<double>(c.graphs); }};

struct CountedMatvec {
  static constexpr std::string_view kName = "gpu-matvec";
  static constexpr std::string_view kSubject =
      "one row times every fourth output of the last matrix of GPT-2 124M's MLP (n_in 3072, n_out 192); what "
      "the rungs "
      "read of W";
  static constexpr int kIn = 3072, kOut = 192;

  /// The counter in which each rung from the second on gains over the one below it.
  static constexpr std::array kGains{kSectors, kRequests,  kAtOnce,    kBlocks,  kEarly,
                                     kEarly,   kKilobytes, kKilobytes, kRequests};

  static std::span<const gpu_matvec::MatvecRung> ladder() { return gpu_matvec::ladder(); }

  static Counted count(const gpu_matvec::MatvecRung& rung) {
    const std::vector<float> w(std::size_t{kIn} * kOut, 0.25f), x(kIn, 0.5f);
    gpu_matvec::Prepared prepared(rung, kIn, kOut, w.data(), x.data());
    return counted<false>(prepared, [&](cuda_emulation::Counters& counters) {
      counters.only(prepared.operands().w, prepared.weight_bytes());
    });
  }

  /// Calls use(a sentence's beginning, the results of rung 1, those of the rung, how far they may be apart)
  /// for each odd size.
  template <typename Use>
  static void compare(const gpu_matvec::MatvecRung& rung, const Use& use) {
    for (const MatrixSize& size : kOddMatrices) {
      const Wholes numbers(size.n_in, size.n_out);
      const auto results = [&](const gpu_matvec::MatvecRung& of) {
        gpu_matvec::Prepared prepared(of, size.n_in, size.n_out, numbers.w.data(), numbers.x.data());
        prepared.run_after_kernel();
        return prepared.result();
      };
      use("With W [" + std::to_string(size.n_out) + ", " + std::to_string(size.n_in) + "] and x [" +
              std::to_string(size.n_in) + "],",
          results(ladder()[0]), results(rung), 0.0);  // whole numbers
    }
  }
};

struct CountedLayerNorm {
  static constexpr std::string_view kName = "gpu-layer-norm";
  static constexpr std::string_view kSubject =
      "8 rows of GPT-2 124M (width 768); what the rungs read of x, weight and bias";
  static constexpr int kRows = 8, kWidth = 768;

  static constexpr std::array kGains{kRequests, kBarriers, kRequests, kBarriers, kBarriers, kEarly};

  static std::span<const gpu_layer_norm::LayerNormRung> ladder() { return gpu_layer_norm::ladder(); }

  static Counted count(const gpu_layer_norm::LayerNormRung& rung) {
    const NormCase numbers(kRows, kWidth, 0.0f);
    gpu_layer_norm::Prepared prepared(rung, numbers.x, numbers.weight, numbers.bias);
    return counted<false>(prepared, [](cuda_emulation::Counters&) {});
  }

  template <typename Use>
  static void compare(const gpu_layer_norm::LayerNormRung& rung, const Use& use) {
    for (const RowSize& size : kOddRows) {
      for (const float mean : {0.0f, 100.0f}) {
        const NormCase numbers(size.rows, size.width, mean);
        const auto results = [&](const gpu_layer_norm::LayerNormRung& of) {
          gpu_layer_norm::Prepared prepared(of, numbers.x, numbers.weight, numbers.bias);
          prepared.run_after_kernel();
          return prepared.result();
        };
        use("With x [" + std::to_string(size.rows) + ", " + std::to_string(size.width) + "] around " +
                (mean == 0.0f ? "0," : "100,"),
            results(ladder()[0]), results(rung), NormCase::tolerance(mean) * 2.0);
      }
    }
  }
};

struct CountedSoftmax {
  static constexpr std::string_view kName = "gpu-softmax";
  static constexpr std::string_view kSubject = "one row of 50,257 logits; what the rungs read";
  static constexpr int kWidth = 50257;

  static constexpr std::array kGains{kRequests, kRequests, kBlocks};

  static std::span<const gpu_softmax::SoftmaxRung> ladder() { return gpu_softmax::ladder(); }

  static Counted count(const gpu_softmax::SoftmaxRung& rung) {
    gpu_softmax::Prepared prepared(rung, std::vector<float>(kWidth, 0.5f), kWidth);
    return counted<true>(prepared, [](cuda_emulation::Counters&) {});
  }

  template <typename Use>
  static void compare(const gpu_softmax::SoftmaxRung& rung, const Use& use) {
    for (const RowSize& size : kOddLogits) {
      for (const float scale : {1.0f, 30.0f}) {
        const std::vector<float> x = logits(size, scale);
        const auto results = [&](const gpu_softmax::SoftmaxRung& of) {
          gpu_softmax::Prepared prepared(of, x, size.width);
          prepared.run_after_kernel();
          return prepared.result();
        };
        use("With x [" + std::to_string(size.rows) + ", " + std::to_string(size.width) + "], " +
                (scale == 1.0f ? "normal numbers," : "30 times normal numbers,"),
            results(ladder()[0]), results(rung), 2.0 * kErrorOfSoftmax);
      }
    }
  }
};

struct CountedAttention {
  static constexpr std::string_view kName = "gpu-attention";
  static constexpr std::string_view kSubject =
      "one token of SmolLM2-135M, 9 query heads and 3 of keys, after 1,024 positions; what the rungs read of "
      "keys and values";
  static constexpr int kHeads = 9, kKvHeads = 3, kSize = 64, kPositions = 1024;

  static constexpr std::array kGains{kKernels, kRequests, kSharedBytes, kRequests, kBlocks, kKernels};

  static std::span<const gpu_attention::AttentionRung> ladder() { return gpu_attention::ladder(); }

  static Counted count(const gpu_attention::AttentionRung& rung) {
    const HeadsCase numbers({kHeads, kKvHeads, kSize, kPositions}, 1.0f);
    gpu_attention::Prepared prepared(rung, kKvHeads, kSize, numbers.queries, numbers.keys, numbers.values);
    return counted<true>(prepared, [&](cuda_emulation::Counters& counters) {
      counters.only(prepared.operands().keys, prepared.cache_bytes());
    });
  }

  template <typename Use>
  static void compare(const gpu_attention::AttentionRung& rung, const Use& use) {
    for (const HeadsSize& size : kOddHeads) {
      for (const float of_queries : {1.0f, 30.0f}) {
        const HeadsCase numbers(size, of_queries);
        const auto results = [&](const gpu_attention::AttentionRung& of) {
          gpu_attention::Prepared prepared(of, size.n_kv_head, size.size, numbers.queries, numbers.keys,
                                           numbers.values);
          prepared.run_after_kernel();
          return prepared.result();
        };
        use("With " + std::to_string(size.n_head) + " query heads of " + std::to_string(size.size) + ", " +
                std::to_string(size.n_kv_head) + " of keys and " + std::to_string(size.positions) +
                " positions,",
            results(ladder()[0]), results(rung), 2.0 * HeadsCase::tolerance(of_queries));
      }
    }
  }
};

struct CountedProduct {
  static constexpr std::string_view kName = "gpu-product";
  static constexpr std::string_view kSubject =
      "64 rows times a corner of a matrix (n_in 256, n_out 128); what the rungs read of both";
  static constexpr int kRows = 64, kIn = 256, kOut = 128;
  static constexpr double kProducts = double{kRows} * kIn * kOut;

  static constexpr std::array kGains{kRequests, kRequests, kRequests, kBarriers, kEarly};

  static std::span<const gpu_product::ProductRung> ladder() { return gpu_product::ladder(); }

  static Counted count(const gpu_product::ProductRung& rung) {
    const std::vector<float> w(std::size_t{kIn} * kOut, 0.25f), x(std::size_t{kIn} * kRows, 0.5f);
    gpu_product::Prepared prepared(rung, kRows, kIn, kOut, w.data(), x.data());
    return counted<false>(prepared, [](cuda_emulation::Counters&) {});
  }

  template <typename Use>
  static void compare(const gpu_product::ProductRung& rung, const Use& use) {
    for (const ProductSize& size : kOddProducts) {
      const WholeRows numbers(size);
      const auto results = [&](const gpu_product::ProductRung& of) {
        gpu_product::Prepared prepared(of, size.rows, size.n_in, size.n_out, numbers.w.data(),
                                       numbers.x.data());
        prepared.run_after_kernel();
        return prepared.result();
      };
      use("With x [" + std::to_string(size.rows) + ", " + std::to_string(size.n_in) + "] and W [" +
              std::to_string(size.n_out) + ", " + std::to_string(size.n_in) + "],",
          results(ladder()[0]), results(rung), 0.0);
    }
  }
};

struct CountedBoundaries {
  static constexpr std::string_view kName = "gpu-boundaries";
  static constexpr std::string_view kSubject =
      "a chain of 6 layers of width 256 on a GPU of 13 multiprocessors; what the rungs read of W and x";
  static constexpr ChainSize kSize{6, 256};

  static constexpr std::array kGains{kWaits, kGraphs, kEarly, kKernels};

  static std::span<const gpu_boundaries::BoundaryRung> ladder() { return gpu_boundaries::ladder(); }

  static Counted count(const gpu_boundaries::BoundaryRung& rung) {
    const ChainCase numbers(kSize);
    gpu_boundaries::Prepared prepared(rung, numbers.w, numbers.x);
    return counted<true>(prepared, [](cuda_emulation::Counters&) {});
  }

  template <typename Use>
  static void compare(const gpu_boundaries::BoundaryRung& rung, const Use& use) {
    for (const ChainSize& size : kOddChains) {
      const ChainCase numbers(size);
      const auto results = [&](const gpu_boundaries::BoundaryRung& of) {
        gpu_boundaries::Prepared prepared(of, numbers.w, numbers.x);
        prepared.run_after_kernel();
        return prepared.result();
      };
      use("With layers of width " + std::to_string(size.width) + ", " + std::to_string(size.layers) +
              " in all,",
          results(ladder()[0]), results(rung), 2.0 * kErrorOfChain);
    }
  }
};

}  // namespace staircase::rungs
