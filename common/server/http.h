// A request over HTTP, its answer, and the limits of both, without the network.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/error.h"

namespace staircase {

/// What a client may send to the server, and how long it may take.
struct HttpLimits {
  std::size_t header_bytes = 16 << 10;  ///< also of chunk extensions and trailers, each in total
  std::size_t body_bytes = 2 << 20;
  std::size_t ahead_bytes = 64 << 10;   ///< sent before the answer to the previous request
  std::size_t unread_bytes = 16 << 20;  ///< of a stream that the client does not read
  std::chrono::milliseconds request_timeout = std::chrono::seconds(15);  ///< until a request is complete
  std::chrono::milliseconds write_timeout =
      std::chrono::seconds(30);                                  ///< until the client reads more of an answer
  std::chrono::milliseconds between = std::chrono::seconds(75);  ///< between two requests of one connection
  std::chrono::milliseconds silence = std::chrono::seconds(10);  ///< of a stream, until the client gets a
                                                                 ///< sign of life
  std::chrono::milliseconds tick = std::chrono::seconds(1);      ///< how often the times are checked
};

/// Names and values of a header.
using HttpFields = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method = {}, path = {};  ///< the path without its query
  std::string host = {};               ///< with the port, as the client wrote it; empty if missing
  std::string content_type = {}, content_encoding = {}, authorization = {}, request_id = {};
  std::string origin = {};             ///< of the calling page, from a browser
  std::string requested_headers = {};  ///< headers that this page is about to send
  std::string body = {};
  int version = 11;  ///< 10 for HTTP/1.0
  bool keeps_alive = false;
  bool expects_continue = false;  ///< the client waits for permission to send the body
};

struct HttpResponse {
  int status = 200;
  std::string body = {};
  std::string content_type = "application/json";
  HttpFields fields = {};              ///< additional fields of the header
  std::vector<std::string> more = {};  ///< the body continues in pieces: joining large ones takes long
};

/// A rejected request. Its message is one sentence for a person; `key` is the key of the body concerned, and
/// `code` is OpenAI's word for the case. Both may be empty.
struct HttpError : Error {
  int status;
  std::string key, code;
  HttpFields fields = {};

  HttpError(int status, const std::string& message, std::string key = "", std::string code = "")
      : Error(message), status(status), key(std::move(key)), code(std::move(code)) {}
};

/// A new id with each call, unique even among processes that start at the same time.
std::string unique_id();

/// Whether a client's own request id can be sent back: short, and without spaces.
bool is_id(std::string_view id);

/// The answer to a rejected request, in OpenAI's form of an error.
HttpResponse error_response(const HttpError& error);

/// A request, and the way back to the client. All of it belongs to the server thread, except `request`,
/// `post` and `post_without_flush`, which any thread may call. A client
/// has left when it has closed its end of the connection, or reads nothing for too long; from then on,
/// everything sent is dropped.
class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual const HttpRequest& request() const = 0;

  /// Sends the whole answer at once.
  virtual void send(HttpResponse response) = 0;

  /// Sends an answer in parts: the header, any number of parts, and the end. During pauses, `sign_of_life` is
  /// sent from time to time, so no proxy ends the connection.
  virtual void begin_stream(const std::string& content_type, const std::string& sign_of_life) = 0;
  virtual void write(const std::string& part) = 0;
  virtual void end_stream() = 0;

  /// Calls `call` if the client leaves before the end of the answer.
  virtual void on_left(std::function<void()> call) = 0;

  /// Lets the server thread call `work` at the next flush. Any thread may call this.
  virtual void post(std::function<void()> work) = 0;

  /// Like post(), but without a flush, after the other clients' turns. Any thread may call this.
  virtual void post_without_flush(std::function<void()> work) = 0;
};

}  // namespace staircase
