// Cuts the bytes of a connection into requests of HTTP/1.1, as strictly as a proxy in front of it does.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "common/server/http.h"

namespace staircase {

/// What a client can make it hold is bounded: a header, a body and what came ahead of the next request, each
/// by its limit. No network is needed for it.
class RequestReader {
 public:
  explicit RequestReader(const HttpLimits& limits);
  ~RequestReader();

  /// The bytes that the client has sent next.
  void push(std::string_view bytes) { input_ += bytes; }

  enum class Progress {
    kNothing,  ///< no byte of a request is there
    kPart,
    kHeader,  ///< once: the header is complete, the body is not
    kWhole,   ///< `take` the request
  };

  /// Reads on. Throws HttpError for what is not a request; then it is unknown where the next one would begin.
  Progress read();

  /// What is known: all but the body once the header is there.
  const HttpRequest& request() const { return request_; }

  /// The complete request. The next one begins.
  HttpRequest take();

  /// Forgets what was pushed and not yet read.
  void drop() { input_ = std::string(); }

  /// Bytes that were pushed and not yet read.
  std::size_t ahead() const { return input_.size(); }

  /// Bytes that it holds at present.
  std::size_t held() const;

 private:
  struct Parser;

  void read_header();

  const HttpLimits limits_;
  std::string input_;
  std::unique_ptr<Parser> parser_;  // of the request that has begun
  HttpRequest request_;
};

}  // namespace staircase
