// Splits the bytes of a connection into HTTP/1.1 requests, as strictly as a proxy in front of it does.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "common/server/http.h"

namespace staircase {

/// A client can only make it hold a bounded amount: a header, a body and the start of the next requests, each
/// with its limit. It needs no network.
class RequestReader {
 public:
  explicit RequestReader(const HttpLimits& limits);
  ~RequestReader();

  /// Adds the bytes that the client has sent next.
  void push(std::string_view bytes) { input_ += bytes; }

  enum class Progress {
    kNothing,  ///< no byte of a request has arrived
    kPart,
    kHeader,  ///< once: the header is complete, the body is not
    kWhole,   ///< call `take` for the request
  };

  /// Reads on. Throws HttpError for an invalid, oversized or unsupported request. After that, the start of
  /// the next one cannot be found.
  Progress read();

  /// The request as far as it is known: all but the body once the header is complete.
  const HttpRequest& request() const { return request_; }

  /// Returns the complete request, and begins the next one.
  HttpRequest take();

  /// Discards the bytes that were pushed and not yet read.
  void drop() { input_ = std::string(); }

  /// Bytes that were pushed and not yet read.
  std::size_t ahead() const { return input_.size(); }

  /// The bytes that the reader holds at present, for tests.
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
