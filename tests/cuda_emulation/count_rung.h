// The ladders of a GPU as tests and `tools/step check` see them: what to compare a rung with, and what to
// count.
#pragma once

#include <algorithm>
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

/// The counters of the last kernel that a prepared rung starts. `watch` may choose the memory that counts.
template <typename Prepared, typename Watch>
cuda_emulation::CountedLaunch counted(Prepared& prepared, const Watch& watch) {
  prepared.write_x();
  cuda_emulation::Counters counters;
  watch(counters);
  prepared.run();
  return counters.launches().back();
}

/// The same of all kernels together, with the blocks of the largest.
template <typename Prepared, typename Watch>
cuda_emulation::CountedLaunch counted_together(Prepared& prepared, const Watch& watch) {
  prepared.write_x();
  cuda_emulation::Counters counters;
  watch(counters);
  prepared.run();
  cuda_emulation::CountedLaunch all = counters.launches().front();
  for (const cuda_emulation::CountedLaunch& launch : std::span(counters.launches()).subspan(1)) {
    all.blocks = std::max(all.blocks, launch.blocks);
    all.loads += launch.loads;
    all.streams += launch.streams;
    all.barriers += launch.barriers;
    all.conflicts += launch.conflicts;
  }
  return all;
}

struct CountedMatvec {
  static constexpr std::string_view kName = "gpu-matvec";
  static constexpr std::string_view kSubject =
      "one row times every fourth output of the last matrix of GPT-2 124M's MLP (n_in 3072, n_out 192); what "
      "the rungs "
      "read of W";
  static constexpr int kIn = 3072, kOut = 192;

  static std::span<const gpu_matvec::MatvecRung> ladder() { return gpu_matvec::ladder(); }

  static cuda_emulation::CountedLaunch count(const gpu_matvec::MatvecRung& rung) {
    const std::vector<float> w(std::size_t{kIn} * kOut, 0.25f), x(kIn, 0.5f);
    gpu_matvec::Prepared prepared(rung, kIn, kOut, w.data(), x.data());
    return counted(prepared, [&](cuda_emulation::Counters& counters) {
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

  static std::span<const gpu_layer_norm::LayerNormRung> ladder() { return gpu_layer_norm::ladder(); }

  static cuda_emulation::CountedLaunch count(const gpu_layer_norm::LayerNormRung& rung) {
    const NormCase numbers(kRows, kWidth, 0.0f);
    gpu_layer_norm::Prepared prepared(rung, numbers.x, numbers.weight, numbers.bias);
    return counted(prepared, [](cuda_emulation::Counters&) {});
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

  static std::span<const gpu_softmax::SoftmaxRung> ladder() { return gpu_softmax::ladder(); }

  static cuda_emulation::CountedLaunch count(const gpu_softmax::SoftmaxRung& rung) {
    gpu_softmax::Prepared prepared(rung, std::vector<float>(kWidth, 0.5f), kWidth);
    return counted_together(prepared, [](cuda_emulation::Counters&) {});
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

  static std::span<const gpu_attention::AttentionRung> ladder() { return gpu_attention::ladder(); }

  static cuda_emulation::CountedLaunch count(const gpu_attention::AttentionRung& rung) {
    const HeadsCase numbers({kHeads, kKvHeads, kSize, kPositions}, 1.0f);
    gpu_attention::Prepared prepared(rung, kKvHeads, kSize, numbers.queries, numbers.keys, numbers.values);
    return counted_together(prepared, [&](cuda_emulation::Counters& counters) {
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

  static std::span<const gpu_product::ProductRung> ladder() { return gpu_product::ladder(); }

  static cuda_emulation::CountedLaunch count(const gpu_product::ProductRung& rung) {
    const std::vector<float> w(std::size_t{kIn} * kOut, 0.25f), x(std::size_t{kIn} * kRows, 0.5f);
    gpu_product::Prepared prepared(rung, kRows, kIn, kOut, w.data(), x.data());
    return counted(prepared, [](cuda_emulation::Counters&) {});
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

  static std::span<const gpu_boundaries::BoundaryRung> ladder() { return gpu_boundaries::ladder(); }

  static cuda_emulation::CountedLaunch count(const gpu_boundaries::BoundaryRung& rung) {
    const ChainCase numbers(kSize);
    gpu_boundaries::Prepared prepared(rung, numbers.w, numbers.x);
    return counted_together(prepared, [](cuda_emulation::Counters&) {});
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
