#include "common/server/access.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <sstream>

#include "common/base/file.h"
#include "common/base/quoted.h"

namespace staircase {
namespace {

constexpr std::string_view kSpaces = " \t\r";

std::string_view trimmed(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kSpaces), text.size()));
  return text.substr(0, text.find_last_not_of(kSpaces) + 1);
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char c) { return std::tolower(c); });
  return result;
}

/// The lines of the file, without spaces around them and without the byte order mark of an editor.
std::vector<std::string> read_keys(const std::string& file) {
  std::istringstream lines(std::string(without_byte_order_mark(read_file_or_pipe(file))));
  std::vector<std::string> keys;
  for (std::string line; std::getline(lines, line);) {
    if (const std::string_view key = trimmed(line); !key.empty()) keys.emplace_back(key);
  }
  if (keys.empty()) throw Error("--api-key-file {}: it contains no key", file);
  return keys;
}

/// Compares in a time that depends only on the length of `given`, so the time reveals nothing about the key
/// (CWE-208).
bool same_key(const std::string& key, std::string_view given) {
  unsigned difference = key.size() != given.size();
  for (std::size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(key[i % key.size()]);
  }
  return difference == 0;
}

/// Whether a Content-Type is JSON, with or without parameters.
bool is_json(std::string_view content_type) {
  return lower(trimmed(content_type.substr(0, content_type.find(';')))) == "application/json";
}

/// The credentials after the case-insensitive scheme and spaces (RFC 9110, section 11.4).
std::optional<std::string_view> bearer_of(std::string_view authorization) {
  static constexpr std::string_view kScheme = "bearer";
  if (lower(authorization.substr(0, kScheme.size())) != kScheme) return std::nullopt;
  authorization.remove_prefix(kScheme.size());
  if (authorization.empty() || kSpaces.find(authorization[0]) == kSpaces.npos) return std::nullopt;
  return trimmed(authorization);
}

/// The name in a Host field, without its port.
std::string name_of(std::string_view host) {
  if (host.starts_with('[')) return lower(host.substr(0, host.find(']') + 1));
  return lower(host.substr(0, host.find(':')));
}

/// Whether a name can only mean this machine or an address, so that no other owner can point it here.
bool is_own_name(const std::string& name) {
  return name.find_first_not_of("0123456789.") == name.npos || name.starts_with('[') || name == "localhost" ||
         name.ends_with(".localhost");
}

}  // namespace

std::string origin_of(const std::string& option) {
  if (option == "*" || option == "null") return option;
  const auto is_one_of = [](std::string_view signs, bool letters) {
    return [=](char c) {
      const bool plain = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
      return (letters && plain) || signs.find(c) != signs.npos;
    };
  };
  std::string origin = option;
  for (char& c : origin)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  if (origin.ends_with('/') && !origin.ends_with("//")) origin.pop_back();
  const std::size_t colons = origin.find("://");
  const std::string scheme = origin.substr(0, colons);
  std::string host = colons == origin.npos ? "" : origin.substr(colons + 3);
  const std::size_t end = host.starts_with('[') ? host.find(']') : host.find(':');
  const std::size_t colon = end == host.npos ? end : host.find(':', end);
  const std::string port = colon == host.npos ? "" : host.substr(colon + 1);
  if (colon != host.npos) host.resize(colon);
  const bool is_address = host.starts_with('[') && host.ends_with(']');
  const std::string_view inside = is_address ? std::string_view(host).substr(1, host.size() - 2) : host;
  if (scheme.empty() || !std::ranges::all_of(scheme, is_one_of("+.-", true)) || inside.empty() ||
      !std::ranges::all_of(inside, is_one_of(is_address ? ":." : ".-_", true)) ||
      !std::ranges::all_of(port, is_one_of("0123456789", false)) || (colon != host.npos && port.empty()) ||
      port.size() > 5) {
    throw UsageError(
        "--cors-origin is {}, but it must be one origin as browsers send it, such as https://example.org or "
        "http://localhost:3000; repeat the option for several",
        quoted(option, 80));
  }
  const bool is_default = (scheme == "http" && port == "80") || (scheme == "https" && port == "443");
  return scheme + "://" + host + (port.empty() || is_default ? "" : ":" + port);
}

Access::Access(const AccessOptions& options)
    : origins_(options.cors_origins),
      keys_(options.api_key_file.empty() ? std::vector<std::string>() : read_keys(options.api_key_file)),
      checks_host_(!options.allowed_hosts.empty()),
      max_per_key_(options.max_per_key) {
  for (const std::string& host : options.allowed_hosts) hosts_.push_back(name_of(host));
}

void Access::check_host(const HttpRequest& request) const {
  const std::string name = name_of(request.host);
  if (!checks_host_ || is_own_name(name) || std::ranges::find(hosts_, name) != hosts_.end()) return;
  throw HttpError(403,
                  fmt::format("the host {} is not this server's; --allowed-host {} would allow it",
                              in_json(request.host), name),
                  "", "host_not_allowed");
}

bool Access::allows(const std::string& origin) const {
  return !origin.empty() && std::ranges::any_of(origins_, [&](const std::string& allowed) {
    return allowed == "*" || allowed == origin;
  });
}

HttpFields Access::cross_origin_fields(const HttpRequest& request) const {
  if (origins_.empty()) return {};
  HttpFields fields{{"Vary", "Origin"}};
  if (!allows(request.origin)) return fields;
  fields.emplace_back("Access-Control-Allow-Origin", request.origin);
  fields.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
  return fields;
}

HttpResponse Access::preflight(const HttpRequest& request) {
  return {.content_type = "text/plain; charset=utf-8",
          .fields = {{"Access-Control-Allow-Methods", "GET, HEAD, POST"},
                     {"Access-Control-Allow-Headers", request.requested_headers.empty()
                                                          ? "Authorization, Content-Type, X-Request-Id"
                                                          : request.requested_headers},
                     {"Access-Control-Max-Age", "600"}}};
}

void Access::check_key(const HttpRequest& request) const {
  if (keys_.empty()) return;
  const auto given = bearer_of(request.authorization);
  bool known = false;
  for (const std::string& key : keys_) known |= same_key(key, given.value_or(""));  // all, even after a match
  if (given && known) return;
  HttpError error(401, "this server requires a valid API key: Authorization: Bearer KEY", "",
                  "invalid_api_key");
  error.fields = {{"WWW-Authenticate", "Bearer"}};
  throw error;
}

void Access::begin(const HttpRequest& request) {
  if (!max_per_key_) return;
  const std::string key(bearer_of(request.authorization).value_or(""));
  const auto count =
      std::ranges::count(unfinished_, key, &std::pair<const HttpRequest* const, std::string>::second);
  if (count < *max_per_key_) {
    unfinished_[&request] = key;
    return;
  }
  HttpError error(
      429,
      fmt::format("this API key already has {} unfinished {} and may have no more: try again when "
                  "one has ended",
                  count, count == 1 ? "request" : "requests"),
      "", "rate_limit_exceeded");
  error.fields = {{"Retry-After", "1"}};
  throw error;
}

void require_json_body(const HttpRequest& request) {
  if (!is_json(request.content_type)) {
    throw HttpError(415, fmt::format("the body needs Content-Type: application/json, not {}",
                                     in_json(request.content_type)));
  }
  const std::string coding = lower(trimmed(request.content_encoding));
  if (coding.empty() || coding == "identity") return;
  HttpError error(415, fmt::format("the body must not be encoded, but it has Content-Encoding: {}",
                                   in_json(request.content_encoding)));
  error.fields = {{"Accept-Encoding", "identity"}};
  throw error;
}

}  // namespace staircase
