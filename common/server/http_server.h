// HTTP/1.1 over TCP for many slow clients at once, in one thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "common/server/http.h"

namespace staircase {

/// What a client may ask of the server.
struct HttpLimits {
  std::size_t header_bytes = 16 << 10;
  std::size_t body_bytes = 2 << 20;
  std::size_t unread_bytes = 16 << 20;  ///< of a stream that the client does not take
  std::chrono::seconds to_ask{15};      ///< until a request is complete
  std::chrono::seconds to_take{30};     ///< until the client takes more of an answer
  std::chrono::seconds between{75};     ///< two requests of one connection
};

/// A thread for all connections, as none of them ever waits in it: a stream costs memory, but no thread.
class HttpServer {
 public:
  /// Called in the thread of the server; answers then or later.
  using Handler = std::function<void(std::shared_ptr<Exchange> exchange)>;

  /// Takes the port, 0 for a free one. Throws Error with one sentence where it cannot be had.
  HttpServer(const std::string& host, int port, const HttpLimits& limits, Handler handler);

  /// Cuts off who is still connected.
  ~HttpServer();

  /// "http://127.0.0.1:8080"
  std::string url() const;

  /// Answers requests from now on. The first SIGTERM or SIGINT closes the port and calls `on_stop`, in the
  /// thread of the server; those that are connected get their answers. The second one ends the process as if
  /// nobody listened to signals.
  void start(std::function<void()> on_stop);

  /// Has the thread of the server do all that was posted to its exchanges. From any thread. To wake a thread
  /// costs more than a token's JSON: it is done once for all tokens of a pass.
  void flush();

  /// Returns when the last connection is closed behind such a signal.
  void wait();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace staircase
