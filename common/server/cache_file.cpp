#include "common/server/cache_file.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/base/message.h"
#include "common/base/quoted.h"

namespace staircase {
namespace {

/// Positions of a row of a paged cache, and where they are among those of the file.
struct Piece {
  std::vector<int> blocks;  ///< of the row
  int first, last;          ///< positions in the row
  int at;                   ///< of the first one in the file
};

/// Copies the pieces from the tensor of a file, [1, n_kv_head, positions, size], to that of a cache,
/// [n_blocks, n_kv_head, kBlockSize, size], or back.
void copy(Device& device, const std::vector<Piece>& pieces, Tensor file, const Tensor& cache, bool to_cache) {
  for (const Piece& piece : pieces) {
    for (int p = piece.first; p < piece.last;) {
      const int count = std::min(kBlockSize - p % kBlockSize, piece.last - p);
      const int at = piece.at + p - piece.first;
      Tensor block = cache.rows(piece.blocks[p / kBlockSize], 1);
      if (to_cache) {
        device.copy_positions(file, at, count, block, p % kBlockSize);
      } else {
        device.copy_positions(block, p % kBlockSize, count, file, at);
      }
      p += count;
    }
  }
}

/// Gives the engine the texts of a session as far as it has room for them. Returns what of them the cache
/// lacks. Throws Error for a session that no server has written.
std::vector<Piece> taken_back(const Session& session, const std::string& name, EndedTexts& engine,
                              const PagedKvCache& cache) {
  std::vector<Piece> pieces;
  std::size_t at = 0;
  bool is_ours = session.firsts.size() == session.known.size();
  for (std::size_t i = 0; i < session.firsts.size() && is_ours; ++i) {
    const std::vector<int>& tokens = session.known[i].tokens;
    const int first = session.firsts[i], length = static_cast<int>(tokens.size());
    is_ours = first < length && at + length - first <= static_cast<std::size_t>(session.cached);
    if (!is_ours) break;
    int missing = first;
    if (const auto row = engine.take_back(tokens, missing)) {
      const int begin = static_cast<int>(at) + missing - first;
      pieces.push_back({cache.row_blocks(*row), missing, length, begin});
    }
    at += static_cast<std::size_t>(length - first);
  }
  if (is_ours) return pieces;
  throw Error("{} does not hold what the cache of a server needs; choose another file", name);
}

/// Memory for that many positions of all heads of a layer.
KeysValues gathered(Model& model, int positions) {
  const std::vector<std::int64_t> shape = model.kv_shape(1, positions);
  return {model.device().allocate(model.kv_dtype(), shape), model.device().allocate(model.kv_dtype(), shape)};
}

}  // namespace

CacheFile::CacheFile(OptionSink& sink) {
  sink.add("--cache-file", Path{&name_, "FILE"},
           "keep the keys and values of ended texts in FILE while the server does not run");
}

void CacheFile::restore(Model& model, EndedTexts& engine, PagedKvCache& cache) {
  if (name_.empty()) return;
  if (model.is_split()) throw UsageError("--cache-file needs the whole model; start the server on one rank");
  if (!model.config().windows.empty())
    throw UsageError("--cache-file does not keep layers with a window; leave it out for this model");
  if (!engine.keeps_texts()) throw UsageError("--cache-file needs --prefix-caching, which is off");
  model_ = &model;
  engine_ = &engine;
  cache_ = &cache;
  file_.emplace(name_, model);
  engine.keep_whole();
  auto saved = file_->read();
  if (!saved || saved->session().cached == 0) return;
  const Session& session = saved->session();
  const std::vector<Piece> pieces = taken_back(session, typed(name_), engine, cache);
  const KeysValues layer = gathered(model, session.cached);
  for (int l = 0; l < model.config().n_layer; ++l) {
    saved->get(model.device(), layer);
    copy(model.device(), pieces, layer.keys, cache.layer(l).keys, true);
    copy(model.device(), pieces, layer.values, cache.layer(l).values, true);
  }
  say(fmt::format("{} of {} saved texts are in the cache.", pieces.size(), session.known.size()));
}

void CacheFile::save() {
  if (!file_) return;
  Session session;
  std::vector<Piece> pieces;
  std::set<int> written;  // full blocks
  for (const auto& [row, tokens] : engine_->kept()) {
    Piece piece{cache_->row_blocks(row), 0, static_cast<int>(tokens.size()), session.cached};
    // A text that is taken back shares no block that holds its last token.
    while (piece.last - piece.first > kBlockSize && written.contains(piece.blocks[piece.first / kBlockSize]))
      piece.first += kBlockSize;
    for (int b = piece.first / kBlockSize; b < piece.last / kBlockSize; ++b) written.insert(piece.blocks[b]);
    session.tokens.insert(session.tokens.end(), tokens.begin() + piece.first, tokens.end());
    session.cached = static_cast<int>(session.tokens.size());
    session.firsts.push_back(piece.first);
    session.known.push_back({{}, tokens});
    pieces.push_back(std::move(piece));
  }
  SessionWriter writer = file_->write(session);
  const KeysValues layer = gathered(*model_, session.cached);
  for (int l = 0; l < model_->config().n_layer; ++l) {
    copy(model_->device(), pieces, layer.keys, cache_->layer(l).keys, false);
    copy(model_->device(), pieces, layer.values, cache_->layer(l).values, false);
    writer.put(model_->device(), layer);
  }
  writer.finish();
}

}  // namespace staircase
