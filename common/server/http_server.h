// HTTP/1.1 over TCP for many slow clients at once, in one thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/server/http.h"

namespace staircase {

/// All addresses of a host, because clients may try any of them first. Throws Error if there is none.
std::vector<std::string> addresses_of(const std::string& host);

/// Serves all connections in one thread, since none of them ever blocks it: a stream costs memory, no thread.
class HttpServer {
 public:
  /// Called in the server thread; may answer then or later.
  using Handler = std::function<void(std::shared_ptr<Exchange> exchange)>;

  /// Gets a request without its body, which arrives later. Throws HttpError to reject it before that.
  using Check = std::function<void(const HttpRequest& request)>;

  /// Called when an answer has ended, including rejections by the server itself: with its status, or with
  /// kClientLeft if the client did not wait for all of it.
  using OnAnswered = std::function<void(const HttpRequest& request, int status)>;
  static constexpr int kClientLeft = 499;  ///< nginx's code for a client that left

  /// Additional header fields for each answer to the request.
  using Fields = std::function<HttpFields(const HttpRequest& request)>;

  /// Listens on the port, or on a free one for 0, at all of the host's addresses that this machine has.
  /// Throws Error with one sentence if that fails.
  HttpServer(const std::vector<std::string>& addresses, int port, const HttpLimits& limits, Handler handler,
             Check check = {}, OnAnswered on_answered = {}, Fields fields = {});

  /// Disconnects all clients.
  ~HttpServer();

  /// "http://127.0.0.1:8080"
  std::string url() const;

  /// Whether only this machine can reach the server.
  bool is_local() const;

  /// Answers requests from now on. The first SIGTERM, SIGINT or SIGUSR1 closes the port and calls `on_stop`,
  /// in the server thread; connected clients get their answers. The second signal ends the process as if
  /// signals were not handled.
  void start(std::function<void()> on_stop);

  /// Lets the server thread do all work that was posted to its exchanges. Any thread may call this. Waking a
  /// thread costs more than a token's JSON, so call it once for all tokens of a pass.
  void flush();

  /// Returns when the last connection has closed after the first signal.
  void wait();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace staircase
