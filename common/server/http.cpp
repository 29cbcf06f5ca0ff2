#include "common/server/http.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>

namespace staircase {

using nlohmann::json;

std::string unique_id() {
  static const auto random = [] {
    std::random_device device;
    return static_cast<std::uint64_t>(device()) << 32 | device();
  }();
  static std::atomic<std::uint64_t> count = 0;
  return fmt::format("{:016x}-{}", random, ++count);
}

bool is_id(std::string_view id) {
  return !id.empty() && id.size() <= 128 &&
         std::ranges::all_of(id, [](unsigned char byte) { return byte > ' ' && byte < 0x7f; });
}

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
