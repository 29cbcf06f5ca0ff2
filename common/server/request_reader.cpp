#include "common/server/request_reader.h"

#include <algorithm>
#include <boost/beast/http.hpp>
#include <cctype>
#include <functional>
#include <utility>

namespace staircase {

namespace http = boost::beast::http;
using boost::beast::iequals;
using boost::system::error_code;

namespace {

std::string_view view(boost::beast::string_view text) {
  return {text.data(), text.size()};
}

HttpError bad_request(const std::string& message) {
  return {400, "this is not a request of HTTP/1.1: " + message};
}

/// The parser's error, as a rejection.
HttpError refusal(const error_code& error, const HttpLimits& limits) {
  if (error == http::error::header_limit) {
    return {431, fmt::format("the header of the request has more than {} bytes", limits.header_bytes)};
  }
  if (error == http::error::buffer_overflow) {
    return {431,
            fmt::format("chunk extensions and trailers have at most {} bytes each", limits.header_bytes)};
  }
  if (error == http::error::body_limit) {
    return {413, fmt::format("the body of a request has at most {} bytes", limits.body_bytes)};
  }
  return bad_request(error.message());
}

/// Whether `host` is valid: a name or an address, optionally with a port (RFC 3986, section 3.2).
bool is_host(std::string_view host) {
  return std::ranges::all_of(host, [](unsigned char byte) {
    return std::isalnum(byte) ||
           std::string_view("-._~!$&'()*+,;=%:[]").find(char(byte)) != std::string_view::npos;
  });
}

std::string path_of(std::string_view target) {
  return std::string(target.substr(0, target.find('?')));
}

/// Splits a target into host and path. The absolute form comes from clients of proxies; its host overrides
/// the field's (RFC 9112, section 3.2.2).
void set_target(HttpRequest& request, std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!iequals(boost::beast::string_view(target.data(), std::min(target.size(), scheme.size())),
                 boost::beast::string_view(scheme.data(), scheme.size())))
      continue;
    target.remove_prefix(scheme.size());
    const std::size_t end = std::min(target.find_first_of("/?"), target.size());
    request.host = target.substr(0, end);
    if (request.host.empty() || !is_host(request.host)) throw bad_request("its target names no host");
    target.remove_prefix(end);
    request.path = path_of(target);
    if (request.path.empty()) request.path = "/";
    return;
  }
  if (!target.starts_with('/') && target != "*") throw bad_request("its target is not a path");
  request.path = path_of(target);
}

/// If a proxy disagrees on where a body ends, a client can smuggle a request past it (RFC 9112, section
/// 11.2). So any doubt leads to a rejection.
void check_framing(const http::fields& fields, int version) {
  const auto codings = fields.equal_range(http::field::transfer_encoding);
  if (codings.first == codings.second) return;
  if (version < 11) throw bad_request("HTTP/1.0 has no Transfer-Encoding");
  if (fields.count(http::field::content_length) > 0) {
    throw bad_request("it has both Transfer-Encoding and Content-Length");
  }
  const bool is_one = std::next(codings.first) == codings.second;
  if (is_one && iequals(codings.first->value(), "chunked")) return;
  const std::string_view last = view(std::prev(codings.second)->value());
  const std::size_t comma = last.find_last_of(", \t");
  const std::string_view name = comma == last.npos ? last : last.substr(comma + 1);
  if (iequals(boost::beast::string_view(name.data(), name.size()), "chunked")) {
    throw HttpError(501, "the body may be chunked, but not coded in another way: Transfer-Encoding: chunked");
  }
  throw bad_request("its Transfer-Encoding does not determine where the body ends");
}

}  // namespace

struct RequestReader::Parser {
  explicit Parser(const HttpLimits& limits)
      : count_extension([this, most = limits.header_bytes](auto, auto extension, error_code& error) {
          extension_bytes += extension.size();
          if (extension_bytes > most) error = http::error::buffer_overflow;
        }) {
    http.header_limit(static_cast<std::uint32_t>(limits.header_bytes));
    http.body_limit(limits.body_bytes);
    http.on_chunk_header(count_extension);
  }

  http::request_parser<http::string_body> http;
  std::size_t header_bytes = 0;
  std::size_t extension_bytes = 0;
  // Nothing else bounds the text next to the lengths of chunks (RFC 9112, section 7.1.1).
  std::function<void(std::uint64_t, boost::beast::string_view, error_code&)> count_extension;
  bool told_header = false;
};

RequestReader::RequestReader(const HttpLimits& limits) : limits_(limits) {}
RequestReader::~RequestReader() = default;

RequestReader::Progress RequestReader::read() {
  if (!parser_) {
    // Old clients send an empty line after a body (RFC 9112, section 2.2).
    const std::size_t first = input_.find_first_not_of("\r\n");
    input_.erase(0, first);
    if (input_.empty()) return Progress::kNothing;
    parser_ = std::make_unique<Parser>(limits_);
    request_ = {};
  }
  Parser& parser = *parser_;
  while (!parser.http.is_done()) {
    // At least the last chunk, "0", and two line ends remain. The parser aborts if it sees one byte less
    // again.
    if (parser.told_header && parser.http.chunked() && input_.size() < 5) break;
    error_code error;
    const std::size_t count = parser.http.put(boost::asio::const_buffer(input_.data(), input_.size()), error);
    input_.erase(0, count);
    const bool needs_more = error == http::error::need_more;
    if (!parser.told_header) {
      request_.method = view(parser.http.get().method_string());
      request_.path = path_of(view(parser.http.get().target()));
    }
    if (error && !needs_more) throw refusal(error, limits_);
    if (!parser.told_header) {
      parser.header_bytes += count;
      if (parser.header_bytes + (needs_more ? input_.size() : 0) > limits_.header_bytes) {
        throw refusal(http::error::header_limit, limits_);
      }
    } else if (needs_more && input_.size() > limits_.header_bytes) {
      throw refusal(http::error::buffer_overflow, limits_);
    }
    if (!parser.told_header && parser.http.is_header_done()) {
      parser.told_header = true;
      parser.http.eager(true);
      read_header();
      if (!parser.http.is_done()) return Progress::kHeader;
    }
    if (needs_more || input_.empty()) break;
  }
  return parser.http.is_done() ? Progress::kWhole : Progress::kPart;
}

void RequestReader::read_header() {
  const auto& header = parser_->http.get();
  const auto text = [&](http::field name) { return std::string(view(header[name])); };
  request_.version = static_cast<int>(header.version());
  request_.method = view(header.method_string());
  request_.content_type = text(http::field::content_type);
  request_.content_encoding = text(http::field::content_encoding);
  request_.authorization = text(http::field::authorization);
  request_.origin = text(http::field::origin);
  request_.requested_headers = text(http::field::access_control_request_headers);
  request_.request_id = view(header["X-Request-Id"]);
  request_.keeps_alive = header.keep_alive();
  // HTTP/1.0 clients do not know 100-continue (RFC 9110, section 10.1.1).
  request_.expects_continue = header.version() >= 11 && iequals(header[http::field::expect], "100-continue");
  check_framing(header, request_.version);
  const std::size_t hosts = header.count(http::field::host);
  request_.host = text(http::field::host);
  if (hosts > 1 || !is_host(request_.host)) throw bad_request("it does not name one host");
  if (hosts == 0 && request_.version >= 11) throw bad_request("the field Host is missing");
  set_target(request_, view(header.target()));
}

HttpRequest RequestReader::take() {
  request_.body = std::move(parser_->http.get().body());
  parser_.reset();
  if (input_.empty()) input_.shrink_to_fit();  // a connection may be idle for long
  return std::exchange(request_, {});
}

std::size_t RequestReader::held() const {
  return input_.capacity() + (parser_ ? parser_->http.get().body().capacity() : 0);
}

}  // namespace staircase
