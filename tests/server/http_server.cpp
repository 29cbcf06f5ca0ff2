// HTTP for clients that are slow, silent or gone, with limits of fractions of a second.
#include "common/server/http_server.h"
#include "common/server/worker.h"
#include "tests/error_message.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <ctime>
#include <list>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#ifndef MSG_NOSIGNAL  // a Mac has an option of the socket instead
#define MSG_NOSIGNAL 0
#endif

using namespace staircase;
using namespace std::chrono_literals;
using SteadyClock = std::chrono::steady_clock;

namespace {

const std::string kGet = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// A client that reads when the test requests it.
class Client {
 public:
  explicit Client(int port, int receive_bytes = 0, const char* host = "127.0.0.1")
      : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    REQUIRE(fd_ >= 0);
#ifdef SO_NOSIGPIPE
    const int on = 1;
    ::setsockopt(fd_, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#endif
    if (receive_bytes > 0) ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    REQUIRE(::inet_pton(AF_INET, host, &address.sin_addr) == 1);
    REQUIRE(::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  }
  ~Client() {
    ::close(fd_);
  }
  Client(const Client&) = delete;

  void send(const std::string& bytes) const {
    CHECK(::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) == std::ssize(bytes));
  }

  /// The data up to `end`, the end of the connection, or a pause.
  std::string read(const std::string& end = "\r\n\r\n", std::chrono::milliseconds patience = 5s) {
    std::string bytes;
    pollfd ready{fd_, POLLIN, 0};
    while (bytes.find(end) == bytes.npos && ::poll(&ready, 1, static_cast<int>(patience.count())) > 0) {
      char piece[65536];
      const auto count = ::recv(fd_, piece, sizeof piece, 0);
      if (count <= 0) {
        has_ended_ = true;
        break;
      }
      bytes.append(piece, static_cast<std::size_t>(count));
    }
    return bytes;
  }

  /// The next piece.
  std::string some() {
    std::string bytes(1 << 16, '\0');
    bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(::recv(fd_, bytes.data(), bytes.size(), 0), 0)));
    return bytes;
  }

  /// This many bytes.
  std::string exactly(std::size_t size) const {
    std::string bytes(size, '\0');
    REQUIRE(::recv(fd_, bytes.data(), size, MSG_WAITALL) == static_cast<ssize_t>(size));
    return bytes;
  }

  /// Whether the server closes the connection within that time.
  bool ends(std::chrono::milliseconds patience = 5s) {
    read("no such bytes", patience);
    return has_ended_;
  }

 private:
  int fd_;
  bool has_ended_ = false;
};

struct Served {
  explicit Served(HttpLimits limits, HttpServer::Handler handler = {})
      : http(
            {"127.0.0.1"}, 0, [&] { return limits.tick = 10ms, limits; }(),
            [this, handler](const std::shared_ptr<Exchange>& exchange) {
              exchange->on_left([this] { ++left; });
              if (handler) return handler(exchange);
              exchange->send({.body = "hello"});
            },
            {},
            [this](const HttpRequest&, int status) {
              const std::lock_guard lock(mutex);
              statuses.push_back(status);
            }) {
    http.start([this] { stopped = true; });
    port = std::stoi(http.url().substr(http.url().rfind(':') + 1));
  }

  std::vector<int> seen() {
    const std::lock_guard lock(mutex);
    return statuses;
  }

  bool wait_for(const std::vector<int>& wanted) {
    for (int i = 0; i < 500 && seen() != wanted; ++i) std::this_thread::sleep_for(10ms);
    return seen() == wanted;
  }

  std::atomic<int> left = 0;
  std::atomic<bool> stopped = false;
  std::mutex mutex;
  std::vector<int> statuses;
  HttpServer http;
  int port = 0;
};

}  // namespace

TEST_CASE("a stream that its client does not read ends at the limit of unread bytes") {
  std::atomic<std::size_t> written = 0;
  Served served({.unread_bytes = 1 << 20, .write_timeout = 60s},
                [&](const std::shared_ptr<Exchange>& exchange) {
                  exchange->begin_stream("text/plain", "");
                  for (; served.left == 0 && written < 64; ++written)
                    exchange->write(std::string(1 << 20, 'x'));
                });
  Client client(served.port, 4096);
  client.send(kGet);
  CHECK(served.wait_for({HttpServer::kClientLeft}));
  CHECK(served.left == 1);
  CHECK(written < 20);  // the network takes some of it
}

TEST_CASE("a client that reads nothing of its answer for too long is disconnected") {
  Served served({.write_timeout = 200ms}, [](const std::shared_ptr<Exchange>& exchange) {
    exchange->send({.body = std::string(32 << 20, 'x')});
  });
  Client client(served.port, 4096);
  client.send(kGet);
  const auto start = SteadyClock::now();
  CHECK(served.wait_for({HttpServer::kClientLeft}));
  CHECK(SteadyClock::now() - start >= 200ms);
}

TEST_CASE("a client that reads slowly but steadily gets all of its answer") {
  Served served({.write_timeout = 500ms}, [](const std::shared_ptr<Exchange>& exchange) {
    exchange->send({.body = std::string(20 << 20, 'x') + "end"});
  });
  Client client(served.port);
  client.send(kGet);
  std::size_t size = 0;
  for (std::string bytes; !bytes.ends_with("end"); size += bytes.size()) {
    bytes = client.some();
    REQUIRE(!bytes.empty());
    if (size % 10 == 0) std::this_thread::sleep_for(1ms);
  }
  CHECK(size > 20 << 20);
  CHECK(served.wait_for({200}));
}

TEST_CASE("an answer in pieces is one answer, small and large ones in their order") {
  std::string all = "first";
  std::vector<std::string> more;
  for (const std::size_t size : {0, 1, 1, 70000, 1, 65536, 65535, 2, 0, 1 << 20, 300}) {
    more.emplace_back(size, static_cast<char>('a' + more.size()));
    all += more.back();
  }
  Served served({}, [&](const std::shared_ptr<Exchange>& exchange) {
    exchange->send({.body = "first", .more = more});
  });
  Client client(served.port);
  const std::string length = fmt::format("Content-Length: {}\r\n", all.size());
  const auto read_header = [&] {
    std::string said;
    while (!said.ends_with("\r\n\r\n")) said += client.exactly(1);
    CHECK(begins_with(said, "HTTP/1.1 200 "));
    CHECK(contains(said, length));
  };
  client.send(kGet + kGet + "HEAD" + kGet.substr(3) + kGet);
  for (const bool has_body : {true, true, false, true}) {
    read_header();
    if (has_body) CHECK(client.exactly(all.size()) == all);
  }
  CHECK(served.wait_for({200, 200, 200, 200}));
}

TEST_CASE("an idle connection is closed, though not too early") {
  Served served({.between = 300ms});
  Client client(served.port);
  client.send(kGet);
  CHECK(ends_with(client.read("hello"), "hello"));
  CHECK_FALSE(client.ends(100ms));
  client.send(kGet);  // and from then on again
  CHECK(ends_with(client.read("hello"), "hello"));
  const auto start = SteadyClock::now();
  CHECK(client.ends());
  CHECK(SteadyClock::now() - start > 200ms);
  CHECK(served.seen() == std::vector{200, 200});
}

TEST_CASE("a request must be complete in time, and a silent client is disconnected silently") {
  Served served({.request_timeout = 200ms});
  Client slow(served.port), silent(served.port), lines(served.port);
  slow.send("GET / HT");
  lines.send("\r\n");
  const std::string refused = slow.read("seconds");
  CHECK(begins_with(refused, "HTTP/1.1 408 "));
  CHECK(contains(refused, "the request was not complete after 0.2 seconds"));
  CHECK(silent.read() == "");
  CHECK(silent.ends());
  CHECK(lines.read() == "");
  CHECK(served.wait_for({408}));
}

TEST_CASE("a stream may pause for longer than anything else, and sends signs of life") {
  std::shared_ptr<Exchange> stream;
  Served served({.request_timeout = 100ms, .write_timeout = 100ms, .between = 100ms, .silence = 50ms},
                [&](const std::shared_ptr<Exchange>& exchange) {
                  stream = exchange;
                  exchange->begin_stream("text/plain", "(alive)");
                });
  Client client(served.port);
  client.send(kGet);
  CHECK(begins_with(client.read(), "HTTP/1.1 200 "));
  std::string said;
  for (const auto start = SteadyClock::now(); SteadyClock::now() - start < 500ms;) {
    said += client.read("alive", 1s);
  }
  CHECK(std::count(said.begin(), said.end(), '(') >= 3);
  CHECK(std::count(said.begin(), said.end(), '(') <= 11);
  stream->post_without_flush([&] {
    stream->write("word");
    stream->end_stream();
  });
  CHECK(ends_with(client.read("0\r\n\r\n"), "4\r\nword\r\n0\r\n\r\n"));
  CHECK(served.wait_for({200}));
}

TEST_CASE("signs of life end with their stream, and the next answer has none") {
  std::shared_ptr<Exchange> second;
  Served served({.silence = 50ms}, [&](const std::shared_ptr<Exchange>& exchange) {
    if (exchange->request().path == "/slow") {
      second = exchange;
      return;
    }
    exchange->begin_stream("text/plain", "(alive)");
    exchange->end_stream();
  });
  Client client(served.port);
  client.send(kGet);
  CHECK(ends_with(client.read("0\r\n\r\n"), "0\r\n\r\n"));
  client.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
  std::this_thread::sleep_for(250ms);
  REQUIRE(second != nullptr);
  second->post_without_flush([&] { second->send({.body = "done"}); });
  CHECK(begins_with(client.read("done"), "HTTP/1.1 200 "));
}

TEST_CASE("an answer may take longer than a request may") {
  std::shared_ptr<Exchange> waits;
  Served served({.request_timeout = 100ms, .write_timeout = 100ms, .between = 100ms},
                [&](const std::shared_ptr<Exchange>& exchange) { waits = exchange; });
  Client client(served.port);
  client.send(kGet);
  std::this_thread::sleep_for(400ms);
  REQUIRE(waits != nullptr);
  waits->post_without_flush([&] { waits->send({.body = "done"}); });
  CHECK(begins_with(client.read("done"), "HTTP/1.1 200 "));
  CHECK(served.wait_for({200}));
}

TEST_CASE("an answer has the date of its own second") {
  Served served({});
  Client client(served.port);
  const auto date = [&] {
    client.send(kGet);
    const std::string answer = client.read("hello");
    const std::size_t begin = answer.find("\r\nDate: ");
    REQUIRE(begin != answer.npos);
    return answer.substr(begin + 2, answer.find("\r\n", begin + 2) - begin);
  };
  const std::string first = date();
  std::tm parts{};
  REQUIRE(::strptime(first.c_str(), "Date: %a, %d %b %Y %H:%M:%S GMT", &parts) != nullptr);
  CHECK(std::abs(std::difftime(::timegm(&parts), std::time(nullptr))) <= 2.0);
  std::this_thread::sleep_for(1s);
  CHECK(date() != first);
}

TEST_CASE("a stream without signs of life may pause for longer than its client may") {
  std::shared_ptr<Exchange> stream;
  Served served({.request_timeout = 50ms, .write_timeout = 50ms, .between = 50ms, .silence = 60s},
                [&](const std::shared_ptr<Exchange>& exchange) {
                  stream = exchange;
                  exchange->begin_stream("text/plain", "(alive)");
                });
  Client client(served.port);
  client.send(kGet);
  const std::string header = client.read();
  CHECK(begins_with(header, "HTTP/1.1 200 "));
  CHECK(contains(header, "\r\nCache-Control: no-store\r\n"));
  CHECK(contains(header, "\r\nX-Accel-Buffering: no\r\n"));
  CHECK(client.read("no such bytes", 300ms) == "");
  stream->post_without_flush([&] { stream->end_stream(); });
  CHECK(client.read("0\r\n\r\n") == "0\r\n\r\n");
  CHECK(served.wait_for({200}));
}

TEST_CASE(
    "a stream that its client reads may be longer than the limit of unread bytes, and arrives as written") {
  std::atomic<int> asked = 0;
  std::shared_ptr<Exchange> stream;
  Served served({.unread_bytes = 4 << 20}, [&](const std::shared_ptr<Exchange>& exchange) {
    stream = exchange;
    ++asked;
    exchange->begin_stream("text/plain", "");
  });
  Client client(served.port, 4096);
  client.send("GET / HTTP/1.0\r\n\r\n");
  CHECK(begins_with(client.read(), "HTTP/1.0 200 "));
  REQUIRE(asked == 1);
  for (int round = 0; round < 4; ++round) {
    std::string wanted;
    for (int part = 0; part < 200; ++part) {  // more than the system takes while the client does not read
      const std::string text = fmt::format("{:8}{:8}{:16000}", round, part, "");
      wanted += text;
      stream->post_without_flush([&stream, text] { stream->write(text); });
    }
    std::this_thread::sleep_for(50ms);
    REQUIRE(client.exactly(wanted.size()) == wanted);
  }
  stream->post_without_flush([&] { stream->end_stream(); });
  CHECK(served.wait_for({200}));
}

TEST_CASE("a piece that is being sent does not grow with those that follow it") {
  std::shared_ptr<Exchange> stream;
  std::atomic<int> written = 0;
  Served served({}, [&](const std::shared_ptr<Exchange>& exchange) {
    stream = exchange;
    exchange->begin_stream("text/plain", "");
    ++written;
  });
  Client client(served.port, 4096);
  client.send("GET / HTTP/1.0\r\n\r\n");
  CHECK(begins_with(client.read(), "HTTP/1.0 200 "));
  // Each piece is sent alone until the system takes no more. If the piece in flight grew then, it would move,
  // and the next ones would overwrite the memory that the system is still to read.
  std::string wanted;
  for (int part = 1; wanted.size() < 8 << 20; ++part) {
    const std::string text = fmt::format("{:4000}", part);
    wanted += text;
    stream->post_without_flush([&, text] {
      stream->write(text);
      ++written;
    });
    while (written <= part) std::this_thread::yield();
  }
  CHECK((client.exactly(wanted.size()) == wanted));  // not to be printed
  stream->post_without_flush([&] { stream->end_stream(); });
  CHECK(served.wait_for({200}));
}

TEST_CASE("data that a client sends ahead of its answer is bounded, and its leaving is noticed") {
  std::shared_ptr<Exchange> waits;
  Served served({.ahead_bytes = 1000}, [&](const std::shared_ptr<Exchange>& exchange) { waits = exchange; });
  {
    Client client(served.port);
    client.send(kGet);
    for (int i = 0; i < 50; ++i) client.send(std::string(1 << 16, 'x'));
  }
  CHECK(served.wait_for({HttpServer::kClientLeft}));
  CHECK(served.left == 1);
}

TEST_CASE(
    "requests that a client sends ahead are answered up to the limit; beyond it the answer is the last") {
  std::shared_ptr<Exchange> waits;
  std::atomic<bool> has_come = false;
  Served served({.ahead_bytes = 10 * kGet.size()}, [&](const std::shared_ptr<Exchange>& exchange) {
    if (has_come) return exchange->send({.body = "hello"});
    waits = exchange;
    has_come = true;
  });
  for (const int ahead : {10, 11}) {
    CAPTURE(ahead);
    has_come = false;
    Client client(served.port);
    client.send(kGet);
    while (!has_come) std::this_thread::yield();
    std::string more;
    for (int i = 0; i < ahead; ++i) more += kGet;
    client.send(more);
    std::this_thread::sleep_for(100ms);
    waits->post_without_flush([&] { waits->send({.body = "hello"}); });
    const std::string answers = client.read("no such bytes", 300ms);
    int count = 0;
    for (std::size_t at = 0; (at = answers.find("hello", at)) != answers.npos; ++at) ++count;
    CHECK(count == (ahead == 10 ? 11 : 1));
    CHECK(client.ends(1ms) == (ahead > 10));
    waits.reset();
  }
}

TEST_CASE("what is sent after an answer, or to a client that has left, goes nowhere and is not counted") {
  std::shared_ptr<Exchange> late;
  std::atomic<bool> has_come = false, has_sent = false;
  const auto send_all = [](Exchange& exchange) {
    exchange.send({.body = "late"});
    exchange.begin_stream("text/plain", "");
    exchange.write("late");
    exchange.end_stream();
  };
  Served served({}, [&](const std::shared_ptr<Exchange>& exchange) {
    if (exchange->request().path == "/twice") {
      exchange->send({.body = "hello"});
      return send_all(*exchange);
    }
    late = exchange;
    has_come = true;
  });
  {
    Client client(served.port);
    client.send("GET /twice HTTP/1.1\r\nHost: a\r\n\r\n");
    CHECK(ends_with(client.read("no such bytes", 200ms), "hello"));
    client.send(kGet);
    while (!has_come) std::this_thread::yield();
  }
  REQUIRE(served.wait_for({200, HttpServer::kClientLeft}));
  late->post_without_flush([&] {
    send_all(*late);
    has_sent = true;
  });
  while (!has_sent) std::this_thread::yield();
  std::this_thread::sleep_for(50ms);
  CHECK(served.seen() == std::vector{200, HttpServer::kClientLeft});
  CHECK(served.left == 1);
}

TEST_CASE("a stream before HTTP/1.1 ends with its connection") {
  Served served({}, [](const std::shared_ptr<Exchange>& exchange) {
    exchange->begin_stream("text/plain", "");
    exchange->write("hello");
    exchange->end_stream();
  });
  Client client(served.port);
  client.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const std::string answer = client.read("no such bytes");
  CHECK(answer.ends_with("\r\n\r\nhello"));
  CHECK(client.ends(1ms));
}

TEST_CASE("nothing that another thread posts is lost while the server takes what came before") {
  constexpr int kCount = 200'000;
  std::shared_ptr<Exchange> kept;
  std::atomic<bool> has_come = false, in_order = true;
  std::atomic<int> done = 0;
  Served served({}, [&](const std::shared_ptr<Exchange>& exchange) {
    kept = exchange;
    has_come = true;
  });
  Client client(served.port);
  client.send(kGet);
  while (!has_come) std::this_thread::sleep_for(1ms);
  for (int i = 0; i < kCount; ++i) {
    kept->post([&, i] {
      if (done++ != i) in_order = false;
    });
    if (i % 10 == 9) served.http.flush();
  }
  kept->post([&] { std::exchange(kept, nullptr)->send({.body = "all"}); });
  served.http.flush();
  CHECK(ends_with(client.read("all"), "all"));
  CHECK(done == kCount);
  CHECK(in_order);
}

TEST_CASE("a worker that is stopped finishes the job that has begun, and begins no other") {
  std::atomic<bool> begun = false;
  std::atomic<int> finished = 0;
  Worker worker;
  worker.post([&] {
    begun = true;
    std::this_thread::sleep_for(100ms);
    ++finished;
  });
  worker.post([&] { ++finished; });
  while (!begun) std::this_thread::yield();
  worker.stop();
  CHECK(finished == 1);
  worker.post([&] { ++finished; });
  worker.stop();  // once more is nothing
  std::this_thread::sleep_for(20ms);
  CHECK(finished == 1);
}

TEST_CASE("a request that has arrived when the server is stopped gets its answer") {
  std::atomic<int> held = 0, released = 0;
  Served served({}, [&](const std::shared_ptr<Exchange>& exchange) {
    if (exchange->request().path == "/hold") {
      const int number = ++held;
      while (released < number) std::this_thread::sleep_for(1ms);
    }
    exchange->send({.body = "hello"});
  });
  const auto wait_until_held = [&](int number) {
    for (int i = 0; i < 5000 && held < number; ++i) std::this_thread::sleep_for(1ms);
    REQUIRE(held == number);
  };
  Client idle(served.port), silent(served.port), one(served.port), other(served.port);
  for (Client* client : {&idle, &silent}) {
    client->send(kGet);
    CHECK(ends_with(client->read("hello"), "hello"));
  }
  const std::string hold = "GET /hold HTTP/1.1\r\nHost: localhost\r\n\r\n";
  one.send(hold);
  wait_until_held(1);
  // The server learns of both at the same time. It has not yet handled the signal when it reads from the
  // client.
  std::raise(SIGTERM);
  other.send(hold);
  released = 1;
  wait_until_held(2);
  idle.send(kGet);
  released = 2;
  const std::string answer = idle.read("hello");
  CHECK(begins_with(answer, "HTTP/1.1 200 "));
  CHECK(contains(answer, "Connection: close"));
  CHECK(silent.ends());
  CHECK((idle.ends() && one.ends() && other.ends()));
  served.http.wait();
  CHECK(served.stopped);
}

TEST_CASE("clients that the server has not accepted yet when it is stopped get their answers") {
  std::atomic<bool> held = false, released = false;
  Served served({}, [&](const std::shared_ptr<Exchange>& exchange) {
    if (!held.exchange(true)) {
      while (!released) std::this_thread::sleep_for(1ms);
    }
    exchange->send({.body = "hello"});
  });
  std::list<Client> asking, silent;
  asking.emplace_back(served.port).send(kGet);
  while (!held) std::this_thread::sleep_for(1ms);
  // The system accepts these, but not the server's thread: it learns of all of them and of the signal in one
  // look.
  for (int i = 0; i < 5; ++i) {
    asking.emplace_back(served.port).send(kGet);
    silent.emplace_back(served.port);
  }
  std::raise(SIGTERM);
  released = true;
  for (Client& client : asking) CHECK(ends_with(client.read("hello"), "hello"));
  for (Client& client : silent) CHECK(client.ends());  // it has a moment, too
  asking.clear();
  served.http.wait();
  CHECK(served.seen() == std::vector(6, 200));
}

TEST_CASE("a connection that is new when the server is stopped has a moment for its request") {
  Served served({});
  Client fresh(served.port), other(served.port);
  other.send(kGet);
  CHECK(ends_with(other.read("hello"), "hello"));  // the first one was accepted before
  std::raise(SIGTERM);
  for (int i = 0; i < 5000 && !served.stopped; ++i) std::this_thread::sleep_for(1ms);
  CHECK(other.ends());
  fresh.send(kGet);
  CHECK(begins_with(fresh.read("hello"), "HTTP/1.1 200 "));
  CHECK(fresh.ends());
  served.http.wait();
}

TEST_CASE("a server without a free file descriptor accepts again when there is one") {
  Served served({});
  Client first(served.port);
  first.send(kGet);
  CHECK(ends_with(first.read("hello"), "hello"));
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  std::vector<int> taken;
  for (int copy; (copy = ::dup(fd)) >= 0;) taken.push_back(copy);
  ::close(fd);
  Client waits(served.port);  // the system has accepted it, the server cannot
  waits.send(kGet);
  CHECK(waits.read("hello", 300ms) == "");
  for (const int copy : taken) ::close(copy);
  CHECK(ends_with(waits.read("hello"), "hello"));
}

TEST_CASE("a check gets the header alone, and refuses a body before it is sent") {
  std::atomic<int> checked = 0;
  HttpServer http(
      {"127.0.0.1"}, 0, {},
      [](const std::shared_ptr<Exchange>& exchange) { exchange->send({.body = "hello"}); },
      [&](const HttpRequest& request) {
        ++checked;
        CHECK(request.body.empty());
        if (request.authorization != "yes") throw HttpError(401, "no");
      });
  http.start([] {});
  const int port = std::stoi(http.url().substr(http.url().rfind(':') + 1));
  const auto post = [](const std::string& more) {
    return "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n" + more + "\r\n\r\n";
  };
  Client known(port), unknown(port), whole(port);
  known.send(post("Authorization: yes\r\nExpect: 100-continue"));
  CHECK(known.read() == "HTTP/1.1 100 Continue\r\n\r\n");
  known.send("12345");
  CHECK(begins_with(known.read("hello"), "HTTP/1.1 200 "));
  unknown.send(post("Expect: 100-continue"));
  CHECK(begins_with(unknown.read(), "HTTP/1.1 401 "));
  CHECK(unknown.ends());
  whole.send(post("A: b") + "12345" + post("Authorization: yes") + "12345");
  const std::string both = whole.read("hello");
  CHECK(begins_with(both, "HTTP/1.1 401 "));
  CHECK(contains(both, "HTTP/1.1 200 "));
  CHECK(checked == 4);
}

TEST_CASE("a server listens on each of its addresses that the machine has, at one port") {
  // All of 127.0.0.0/8 is this machine (RFC 1122, section 3.2.1.3); 192.0.2.1 is no machine's (RFC 5737).
  const auto answer = [](const std::shared_ptr<Exchange>& exchange) { exchange->send({.body = "hello"}); };
  HttpServer http({"127.0.0.1", "192.0.2.1", "127.0.0.2"}, 0, {}, answer);
  http.start([] {});
  CHECK(http.is_local());
  const int port = std::stoi(http.url().substr(http.url().rfind(':') + 1));
  for (const char* address : {"127.0.0.1", "127.0.0.2"}) {
    Client client(port, 0, address);
    client.send(kGet);
    CHECK(ends_with(client.read("hello"), "hello"));
  }
  CHECK_THROWS_WITH_AS(
      HttpServer({"127.0.0.2", "127.0.0.1"}, port, {}, answer),
      fmt::format("cannot listen on port {} of 127.0.0.2: Address already in use", port).c_str(), Error);
  CHECK_THROWS_AS(HttpServer({"192.0.2.1"}, 0, {}, answer), Error);
}

TEST_CASE("the address of a server with IPv6 is in brackets") {
  std::string url;
  try {
    HttpServer http({"::1"}, 0, {}, [](const std::shared_ptr<Exchange>&) {});
    url = http.url();
  } catch (const Error&) {  // a machine without IPv6
    return;
  }
  CHECK(begins_with(url, "http://[::1]:"));
  CHECK(std::stoi(url.substr(13)) > 0);
}

TEST_CASE("a host is all of its addresses") {
  CHECK(addresses_of("127.0.0.1") == std::vector<std::string>{"127.0.0.1"});
  CHECK(addresses_of("::1") == std::vector<std::string>{"::1"});
  CHECK(addresses_of("") == std::vector<std::string>{"0.0.0.0", "::"});  // no file of hosts is read for it
  CHECK_THROWS_AS(addresses_of("no such host"), Error);
}
