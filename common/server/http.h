// What a request over HTTP and its answer are, whoever carries them.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/error.h"

namespace staircase {

struct HttpRequest {
  std::string method, path;  ///< without the query behind the path
  std::string content_type, authorization;
  std::string body;
};

struct HttpResponse {
  int status = 200;
  std::string body = {};
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> fields = {};  ///< of the header, besides
};

/// A request that is refused. Its message is one sentence for a person; `key` is the key of the body that it
/// is about and `code` OpenAI's word for the case, both empty where there is none.
struct HttpError : Error {
  int status;
  std::string key, code;
  std::vector<std::pair<std::string, std::string>> fields = {};

  HttpError(int status, const std::string& message, std::string key = "", std::string code = "")
      : Error(message), status(status), key(std::move(key)), code(std::move(code)) {}
};

/// The answer to a refused request: OpenAI's form of an error.
HttpResponse error_response(const HttpError& error);

/// A request, and the way back to the client. All of it belongs to the thread of the server but for `post`.
/// A client has left when it has closed its end of the connection, or takes nothing for too long; from then
/// on what is sent goes nowhere.
class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual const HttpRequest& request() const = 0;

  /// The whole answer at once.
  virtual void send(const HttpResponse& response) = 0;

  /// An answer that comes in parts: the header, any number of parts, and the end.
  virtual void begin_stream(const std::string& content_type) = 0;
  virtual void write(const std::string& part) = 0;
  virtual void end_stream() = 0;

  /// Calls `call` if the client leaves before the end of the answer.
  virtual void on_left(std::function<void()> call) = 0;

  /// Has the thread of the server call `work` when the server is flushed. From any thread.
  virtual void post(std::function<void()> work) = 0;
};

}  // namespace staircase
