// HTTP/1.1 over TCP for many slow clients at once, in one thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/server/http.h"

namespace staircase {

/// All addresses of a host: clients may try any of them first. Throws Error where there is none.
std::vector<std::string> addresses_of(const std::string& host);

/// A thread for all connections, as none of them ever waits in it: a stream costs memory, but no thread.
class HttpServer {
 public:
  /// Called in the thread of the server; answers then or later.
  using Handler = std::function<void(std::shared_ptr<Exchange> exchange)>;

  /// Sees a request without its body, which comes later. Throws HttpError to refuse it before that.
  using Check = std::function<void(const HttpRequest& request)>;

  /// Called when an answer has ended, refusals of the server itself included: with its status, or with
  /// kClientLeft where the client has not waited for all of it.
  using OnAnswered = std::function<void(const HttpRequest& request, int status)>;
  static constexpr int kClientLeft = 499;  ///< as nginx counts it

  /// What the header of each answer to the request has besides.
  using Fields = std::function<HttpFields(const HttpRequest& request)>;

  /// Takes the port, 0 for a free one, at all of the addresses that this machine has. Throws Error with one
  /// sentence where it cannot be had.
  HttpServer(const std::vector<std::string>& addresses, int port, const HttpLimits& limits, Handler handler,
             Check check = {}, OnAnswered on_answered = {}, Fields fields = {});

  /// Cuts off who is still connected.
  ~HttpServer();

  /// "http://127.0.0.1:8080"
  std::string url() const;

  /// Whether only this machine can reach it.
  bool is_local() const;

  /// Answers requests from now on. The first SIGTERM, SIGINT or SIGUSR1 closes the port and calls `on_stop`,
  /// in the thread of the server; those that are connected get their answers. The second one ends the process
  /// as if nobody listened to signals.
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
