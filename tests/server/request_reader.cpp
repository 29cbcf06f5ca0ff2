// Which bytes are a request, where it ends, and how much of it is held.
#include "common/server/request_reader.h"
#include "tests/error_message.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <random>
#include <vector>

using namespace staircase;
using Progress = RequestReader::Progress;

namespace {

const std::string kPost = "POST /v1/completions HTTP/1.1\r\nHost: a\r\n";

/// What becomes of the bytes: "POST / 5" for each request with the length of its body, and the status of the
/// refusal that ends them.
std::string reading(const std::string& bytes, std::size_t piece = std::string::npos,
                    const HttpLimits& limits = {}) {
  RequestReader reader(limits);
  std::string result;
  try {
    for (std::size_t i = 0; i < bytes.size(); i += std::min(piece, bytes.size() - i)) {
      reader.push(std::string_view(bytes).substr(i, piece));
      for (Progress progress; (progress = reader.read()) >= Progress::kHeader;) {
        if (progress == Progress::kHeader) continue;
        const HttpRequest request = reader.take();
        result += fmt::format("{} {} {}, ", request.method, request.path, request.body.size());
      }
    }
    return result + (reader.ahead() > 0 || reader.read() == Progress::kPart ? "part" : "end");
  } catch (const HttpError& error) {
    CHECK(error.what() != std::string());
    return result + fmt::format("{}", error.status);
  }
}

/// The same in any pieces.
void check(const std::string& bytes, const std::string& wanted) {
  CAPTURE(bytes);
  CHECK(reading(bytes) == wanted);
  for (std::size_t piece = 1; piece <= 8; ++piece) {
    CAPTURE(piece);
    CHECK(reading(bytes, piece) == wanted);
  }
}

HttpRequest request(const std::string& bytes) {
  RequestReader reader({});
  reader.push(bytes);
  while (reader.read() == Progress::kHeader) continue;
  return reader.take();
}

/// The most that is held while these bytes come, again and again.
std::size_t most_held(const std::string& begin, const std::string& again, std::size_t bytes,
                      std::string& end) {
  RequestReader reader({});
  std::size_t most = 0;
  try {
    reader.push(begin);
    for (std::size_t sent = 0; sent < bytes; sent += again.size()) {
      reader.push(again);
      reader.read();
      most = std::max(most, reader.held());
    }
    end = "none";
  } catch (const HttpError& error) {
    end = fmt::format("{}", error.status);
  }
  return std::max(most, reader.held());
}

}  // namespace

TEST_CASE("requests follow each other, in any pieces") {
  check("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET / 0, end");
  check("GET /a?b=c HTTP/1.1\r\nHost: a\r\n\r\nGET /d HTTP/1.0\r\n\r\n", "GET /a 0, GET /d 0, end");
  check(kPost + "Content-Length: 5\r\n\r\nhelloGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST /v1/completions 5, GET / 0, end");
  check(kPost +
            "Transfer-Encoding: Chunked\r\n\r\n3\r\nabc\r\nA;x=\"y\"\r\n0123456789\r\n0\r\nX: y\r\n\r\nGET / "
            "HTTP/1.0\r\n\r\n",
        "POST /v1/completions 13, GET / 0, end");
  check(kPost + "Content-Length: 5\r\n\r\nhell", "part");
}

TEST_CASE("empty lines before a request are skipped") {
  check("\r\n\r\nGET / HTTP/1.0\r\n\r\n", "GET / 0, end");
  check(kPost + "Content-Length: 2\r\n\r\nhi\r\nGET / HTTP/1.0\r\n\r\n\r\n",
        "POST /v1/completions 2, GET / 0, end");
  check("\r\n", "end");
}

TEST_CASE("a body whose end can be read in two ways is refused") {
  const std::string smuggled = "\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
  for (const char* coding : {"cow", "gzip", "chunked, identity", "identity", "chunked, chunked, x", "",
                             "chunkedx", "\"chunked\"", "chunked;q=1", "xchunked", ","}) {
    check(fmt::format("{}Transfer-Encoding: {}{}", kPost, coding, smuggled), "400");
  }
  for (const char* coding : {"gzip, chunked", "identity,chunked", "chunked, chunked"}) {
    check(fmt::format("{}Transfer-Encoding: {}{}", kPost, coding, smuggled), "501");
  }
  check(kPost + "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked" + smuggled, "501");
  check(kPost + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity" + smuggled, "400");
  check(kPost + "Transfer-Encoding: chunked\r\nContent-Length: 3" + smuggled, "400");
  check(kPost + "Content-Length: 3\r\nTransfer-Encoding: chunked" + smuggled, "400");
  check(kPost + "Content-Length: 3\r\nTransfer-Encoding: cow" + smuggled, "400");
  check("POST / HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked" + smuggled, "400");
  // The same where the bytes are a body in chunks, an empty one.
  const std::string empty = "\r\n\r\n0" + smuggled;
  check(kPost + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity" + empty, "400");
  check(kPost + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked" + empty, "400");
  check(kPost + "Transfer-Encoding: chunked\r\nContent-Length: 5" + empty, "400");
  check(kPost + "Content-Length: 5\r\nTransfer-Encoding: chunked" + empty, "400");
  check("POST / HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked" + empty, "400");
  for (const char* length : {"-1", "+3", "3, 4", "0x3", "3 4", "", "99999999999999999999", "3;"}) {
    check(fmt::format("{}Content-Length: {}{}", kPost, length, smuggled), "400");
  }
  check(kPost + "Content-Length: 3\r\nContent-Length: 4" + smuggled, "400");
  check(kPost + "Content-Length : 3" + smuggled, "400");
  check(kPost + "Transfer-Encoding : chunked" + smuggled, "400");
}

TEST_CASE("a chunk is written in one way") {
  const std::string begin = kPost + "Transfer-Encoding: chunked\r\n\r\n";
  for (const char* chunk :
       {"0x3\r\nabc\r\n", "+3\r\nabc\r\n", "-3\r\nabc\r\n", "\r\nabc\r\n", "3\nabc\n", "3\r\nabcd\r\n",
        "3;a\nb\r\nabc\r\n", "11111111111111111\r\nabc\r\n", "g\r\nabc\r\n"}) {
    CAPTURE(chunk);
    CHECK(begins_with(reading(begin + chunk + "0\r\n\r\n"), "4"));
  }
}

TEST_CASE("a request names one host") {
  check("GET / HTTP/1.1\r\n\r\n", "400");
  check("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", "400");
  check("GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", "400");
  check("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", "400");
  check("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", "400");
  check("GET / HTTP/1.1\r\nHost: a@b\r\n\r\n", "400");
  check("GET / HTTP/1.1\r\nHost:\r\n\r\n", "GET / 0, end");
  for (const std::string host : {"[::1]:80", "my_service", "a-b.example.org:8080", "10.0.0.7", "%41"})
    CHECK(request("GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n").host == host);
}

TEST_CASE("a target is a path, or a whole address whose host counts") {
  check("GET http://b:1/health?x HTTP/1.1\r\nHost: a\r\n\r\n", "GET /health 0, end");
  check("GET HTTPS://b HTTP/1.1\r\nHost: a\r\n\r\n", "GET / 0, end");
  check("GET http://b?x HTTP/1.1\r\nHost: a\r\n\r\n", "GET / 0, end");
  CHECK(request("GET http://b:1/ HTTP/1.1\r\nHost: a\r\n\r\n").host == "b:1");
  check("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "OPTIONS * 0, end");
  for (const char* target : {"a", "http://", "http:///x", "ftp://a/", "a:80", "http://x@a/"}) {
    check(fmt::format("GET {} HTTP/1.1\r\nHost: a\r\n\r\n", target), "400");
  }
}

TEST_CASE("an id of a request has 1 to 128 visible characters") {
  CHECK(is_id("a"));
  CHECK(is_id("!~"));
  CHECK(is_id(std::string(128, 'a')));
  for (const std::string& wrong : {std::string(), std::string(129, 'a'), std::string("a b"),
                                   std::string(1, '\x7f'), std::string(1, '\x80'), std::string(1, '\0')})
    CHECK_FALSE(is_id(wrong));
}

TEST_CASE("anything other than HTTP is refused") {
  for (const char* bytes : {"\x16\x03\x01\x02", "hello\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "GET /\r\n\r\n",
                            " GET / HTTP/1.1\r\n\r\n", "GET  / HTTP/1.1\r\n\r\n",
                            "GET / HTTP/1.1\r\nA B: c\r\n\r\n", "GET / HTTP/1.1\nHost: a\n\n"}) {
    CAPTURE(bytes);
    CHECK(reading(bytes) == "400");
  }
}

TEST_CASE("a header's effect on the connection depends on the version") {
  const std::string lines = "Host: a\r\nExpect: 100-continue\r\nContent-Length: 0\r\n\r\n";
  CHECK(request("POST / HTTP/1.1\r\n" + lines).expects_continue);
  CHECK_FALSE(request("POST / HTTP/1.0\r\n" + lines).expects_continue);
  CHECK(request("GET / HTTP/1.1\r\nHost: a\r\n\r\n").keeps_alive);
  CHECK_FALSE(request("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").keeps_alive);
  CHECK_FALSE(request("GET / HTTP/1.0\r\n\r\n").keeps_alive);
  CHECK(request("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").keeps_alive);
}

TEST_CASE("fields after the body change nothing") {
  const HttpRequest read = request(kPost +
                                   "Transfer-Encoding: chunked\r\nAuthorization: a\r\n\r\n1\r\nx\r\n0\r\n"
                                   "Authorization: b\r\nHost: c\r\nConnection: close\r\n\r\n");
  CHECK(read.authorization == "a");
  CHECK(read.host == "a");
  CHECK(read.keeps_alive);
}

TEST_CASE("limits hold to the byte") {
  const HttpLimits limits{.header_bytes = 100, .body_bytes = 10};
  const auto header = [](std::size_t size) {
    const std::string begin = "GET / HTTP/1.1\r\nHost: a\r\nX: ", end = "\r\n\r\n";
    return begin + std::string(size - begin.size() - end.size(), 'x') + end;
  };
  for (const std::size_t piece : {std::size_t(1), std::size_t(9), std::string::npos}) {
    CAPTURE(piece);
    CHECK(reading(header(100), piece, limits) == "GET / 0, end");
    CHECK(reading(header(101), piece, limits) == "431");
    const std::string post = "POST / HTTP/1.1\r\nHost: a\r\n";
    CHECK(reading(post + "Content-Length: 10\r\n\r\n0123456789", piece, limits) == "POST / 10, end");
    CHECK(reading(post + "Content-Length: 11\r\n\r\n", piece, limits) == "413");
    CHECK(reading(post + "Transfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n5\r\n01234\r\n0\r\n\r\n", piece,
                  limits) == "POST / 10, end");
    CHECK(reading(post + "Transfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n6\r\n012345\r\n0\r\n\r\n", piece,
                  limits) == "413");
  }
}

TEST_CASE("a refusal names the limit that is exceeded") {
  const auto refusal = [](const std::string& bytes) {
    return error_message([&] {
      RequestReader reader({.header_bytes = 100, .body_bytes = 10});
      reader.push(bytes);
      while (reader.read() == Progress::kHeader) continue;
    });
  };
  const std::string many(200, 'x'), post = "POST / HTTP/1.1\r\nHost: a\r\n";
  CHECK(refusal("GET / HTTP/1.1\r\nX: " + many + "\r\n\r\n") ==
        "the header of the request has more than 100 bytes");
  CHECK(refusal(post + "Transfer-Encoding: chunked\r\n\r\n1;" + many + "\r\nx\r\n0\r\n\r\n") ==
        "chunk extensions and trailers have at most 100 bytes each");
  CHECK(refusal(post + "Content-Length: 11\r\n\r\n") == "the body of a request has at most 10 bytes");
}

TEST_CASE("however much a client sends, little is held") {
  const std::string chunked = kPost + "Transfer-Encoding: chunked\r\n\r\n", kilobyte(1024, 'x');
  const std::size_t most = 4 * (HttpLimits().header_bytes + HttpLimits().ahead_bytes);
  std::string end;
  CHECK(most_held("GET / HTTP/1.1\r\n", "X: " + kilobyte + "\r\n", 100 << 20, end) < most);
  CHECK(end == "431");
  CHECK(most_held("GET /", kilobyte, 100 << 20, end) < most);
  CHECK(end == "431");
  CHECK(most_held(chunked + "0\r\n", "X: " + kilobyte + "\r\n", 100 << 20, end) < most);  // trailers
  CHECK(end == "431");
  CHECK(most_held(chunked + "1;", kilobyte, 100 << 20, end) < most);  // an extension
  CHECK(end == "431");
  CHECK(most_held(chunked, "1;" + kilobyte + "\r\nx\r\n", 100 << 20, end) < most);  // many of them
  CHECK(end == "431");
  CHECK(most_held(chunked, fmt::format("{:x}\r\n{}\r\n", kilobyte.size(), kilobyte), 100 << 20, end) <
        most + 2 * HttpLimits().body_bytes);
  CHECK(end == "413");
  CHECK(most_held("", "\r\n", 1 << 20, end) < most);
  CHECK(end == "none");
}

TEST_CASE("nothing is held between two requests") {
  RequestReader reader({});
  reader.push(kPost + "Content-Length: 100000\r\n\r\n" + std::string(100000, 'x'));
  while (reader.read() == Progress::kHeader) continue;
  CHECK(reader.take().body.size() == 100000);
  CHECK(reader.held() < 100);
}
