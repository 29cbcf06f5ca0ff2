#include "common/server/cache_file.h"

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/base/message.h"
#include "common/base/quoted.h"

namespace staircase {
namespace {

/// Positions of a row of a paged cache, and where the file stores them.
struct Piece {
  std::vector<int> blocks;  ///< of the row
  int first, last;          ///< positions in the row
  int at;                   ///< file position of the first one
};

/// Copies the pieces from a file's keys and values, [1, n_kv_head, positions, size] each, to a cache's,
/// [n_blocks, n_kv_head, kBlockSize, size] each, or back.
void copy(Device& device, const std::vector<Piece>& pieces, const KeysValues& file, const KeysValues& cache,
          bool to_cache) {
  for (auto [in_file, in_cache] : {std::pair(file.keys, cache.keys), std::pair(file.values, cache.values)}) {
    for (const Piece& piece : pieces) {
      for (int p = piece.first; p < piece.last;) {
        const int count = std::min(kBlockSize - p % kBlockSize, piece.last - p);
        const int at = piece.at + p - piece.first;
        Tensor block = in_cache.rows(piece.blocks[p / kBlockSize], 1);
        if (to_cache) {
          device.copy_positions(in_file, at, count, block, p % kBlockSize);
        } else {
          device.copy_positions(block, p % kBlockSize, count, in_file, at);
        }
        p += count;
      }
    }
  }
}

/// The pieces of all texts in layers without and with a window, and how many file positions they fill.
struct Pieces {
  std::vector<Piece> whole, windows;
  int whole_positions = 0, window_positions = 0;
};

/// Gives the engine the texts of a session as far as it has room. Returns the pieces that the cache lacks.
/// Throws Error for a session that no server has written.
Pieces taken_back(const Session& session, const std::string& name, EndedTexts& engine,
                  WindowedKvCache& cache) {
  Pieces pieces;
  pieces.whole_positions = session.cached;
  std::size_t at = 0;
  bool is_ours = session.firsts.size() == session.known.size();
  for (std::size_t i = 0; i < session.firsts.size() && is_ours; ++i) {
    const std::vector<int>& tokens = session.known[i].tokens;
    const int first = session.firsts[i], length = static_cast<int>(tokens.size());
    is_ours = first < length && at + length - first <= static_cast<std::size_t>(session.cached);
    if (!is_ours) break;
    const int kept = cache.first_kept(length);
    engine.take_back(tokens, [&](int row) {
      const std::optional<int> missing = cache.take_back(row, tokens, first);
      if (!missing) return false;
      const int begin = static_cast<int>(at) + *missing - first;
      pieces.whole.push_back({cache.row_blocks(row), *missing, length, begin});
      pieces.windows.push_back({cache.window_blocks(row), kept, length, pieces.window_positions});
      return true;
    });
    at += static_cast<std::size_t>(length - first);
    pieces.window_positions += length - kept;
  }
  if (is_ours) return pieces;
  throw Error("{} does not hold what the cache of a server needs; choose another file", name);
}

/// Memory for this many positions of all heads of a layer, in the file's order.
struct Gathered {
  int positions;
  KeysValues memory;

  Gathered(Model& model, int count) : positions(count) {
    const std::vector<std::int64_t> shape = model.kv_shape(1, count);
    memory.keys = model.device().allocate(model.kv_dtype(), shape);
    memory.values = model.device().allocate(model.kv_dtype(), shape);
  }
};

}  // namespace

CacheFile::CacheFile(OptionSink& sink) {
  sink.add("--cache-file", Path{&name_, "FILE"},
           "keep the keys and values of finished texts in FILE across restarts");
}

void CacheFile::restore(Model& model, EndedTexts& engine, WindowedKvCache& cache) {
  if (name_.empty()) return;
  if (model.is_split()) throw UsageError("--cache-file needs the whole model; start the server on one rank");
  if (!engine.keeps_texts()) throw UsageError("--cache-file needs --prefix-caching, which is off");
  model_ = &model;
  engine_ = &engine;
  cache_ = &cache;
  file_.emplace(name_, model);
  engine.keep_whole();
  auto saved = file_->read();
  if (!saved || saved->session().cached == 0) return;
  const Session& session = saved->session();
  const Pieces pieces = taken_back(session, typed(name_), engine, cache);
  const Gathered whole(model, pieces.whole_positions), windows(model, pieces.window_positions);
  for (int l = 0; l < model.config().n_layer; ++l) {
    const bool is_window = cache.keeps_window(l);
    const Gathered& layer = is_window ? windows : whole;
    saved->get(model.device(), layer.memory, layer.positions);
    copy(model.device(), is_window ? pieces.windows : pieces.whole, layer.memory, cache.layer(l), true);
  }
  say(fmt::format("{} of {} saved texts are in the cache.", pieces.whole.size(), session.known.size()));
}

void CacheFile::save() {
  if (!file_) return;
  Session session;
  Pieces pieces;
  std::set<int> written;  // full blocks
  for (const auto& [row, tokens] : engine_->kept()) {
    const int length = static_cast<int>(tokens.size());
    Piece piece{cache_->row_blocks(row), 0, length, session.cached};
    // A restored text never shares the block that holds its last token.
    while (piece.last - piece.first > kBlockSize && written.contains(piece.blocks[piece.first / kBlockSize]))
      piece.first += kBlockSize;
    for (int b = piece.first / kBlockSize; b < piece.last / kBlockSize; ++b) written.insert(piece.blocks[b]);
    session.tokens.insert(session.tokens.end(), tokens.begin() + piece.first, tokens.end());
    session.cached = static_cast<int>(session.tokens.size());
    session.firsts.push_back(piece.first);
    session.known.push_back({{}, tokens});
    pieces.whole.push_back(std::move(piece));
    const int kept = cache_->first_kept(length);
    pieces.windows.push_back({cache_->window_blocks(row), kept, length, pieces.window_positions});
    pieces.window_positions += length - kept;
  }
  pieces.whole_positions = session.cached;
  SessionWriter writer = file_->write(session);
  const Gathered whole(*model_, pieces.whole_positions), windows(*model_, pieces.window_positions);
  for (int l = 0; l < model_->config().n_layer; ++l) {
    const bool is_window = cache_->keeps_window(l);
    const Gathered& layer = is_window ? windows : whole;
    copy(model_->device(), is_window ? pieces.windows : pieces.whole, layer.memory, cache_->layer(l), false);
    writer.put(model_->device(), layer.memory, layer.positions);
  }
  writer.finish();
}

}  // namespace staircase
