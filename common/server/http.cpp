#include "common/server/http.h"

#include <nlohmann/json.hpp>

namespace staircase {

using nlohmann::json;

HttpResponse error_response(const HttpError& error) {
  const auto or_null = [](const std::string& text) { return text.empty() ? json() : json(text); };
  const char* const type = error.status == 401   ? "authentication_error"
                           : error.status == 429 ? "rate_limit_error"
                           : error.status >= 500 ? "server_error"
                                                 : "invalid_request_error";
  const json body{{"error",
                   {{"message", error.what()},
                    {"type", type},
                    {"param", or_null(error.key)},
                    {"code", or_null(error.code)}}}};
  return {.status = error.status,
          .body = body.dump(-1, ' ', false, json::error_handler_t::replace),
          .fields = error.fields};
}

}  // namespace staircase
