#include "common/server/http_server.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <boost/asio.hpp>
#include <boost/beast/http.hpp>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <list>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

#include "common/server/request_reader.h"

namespace staircase {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;
using boost::system::error_code;
using SteadyClock = std::chrono::steady_clock;

class Connection;

constexpr std::size_t kWrite = 64 << 10;  ///< bytes that are sent before other clients have their turn

/// The state that all connections share.
struct Room {
  HttpLimits limits;
  HttpServer::Handler handler;
  HttpServer::Check check;
  HttpServer::OnAnswered on_answered;
  HttpServer::Fields fields;
  asio::io_context io{1};
  asio::steady_timer clock{io};
  std::set<std::shared_ptr<Connection>> connections = {};
  bool stopping = false;                                     ///< connections end with their answers
  std::vector<char> received = std::vector<char>(64 << 10);  ///< buffer of the connection that is reading
  std::mutex mutex = {};
  std::vector<std::function<void()>> posted = {};  ///< work from other threads; guarded by the mutex
};

/// The time in HTTP's format (RFC 9110, section 5.6.7).
std::string http_date() {
  static std::time_t last = 0;
  static std::string text;
  if (const std::time_t now = std::time(nullptr); now != last) {
    text = fmt::format("{:%a, %d %b %Y %H:%M:%S GMT}", fmt::gmtime(now));
    last = now;
  }
  return text;
}

/// A client, from the first request to the last. Every function and every callback runs in the server thread.
class Connection : public Exchange, public std::enable_shared_from_this<Connection> {
 public:
  Connection(Room& room, tcp::socket socket) : room_(room), socket_(std::move(socket)), reader_(room.limits) {
    error_code ignored;
    socket_.non_blocking(true, ignored);
    // A token is sent immediately: it does not wait until the previous one has arrived (Nagle 1984).
    socket_.set_option(tcp::no_delay(true), ignored);
  }

  void begin() {
    set_deadline(room_.limits.request_timeout);
    watch();
  }

  /// Closes an idle connection; a new connection gets another second for its request.
  void stop() {
    error_code error;
    if (state_ != State::kIdle || socket_.available(error) > 0) return;
    if (has_asked_) return close();
    set_deadline(std::chrono::seconds(1));
  }

  /// Called at each tick: checks whether the client is too slow, has left, or has received nothing for long.
  void look_at_the_clock(SteadyClock::time_point now) {
    if (!sign_of_life_.empty() && state_ == State::kAnswering && now >= last_part_ + room_.limits.silence) {
      write(std::string(sign_of_life_));
    }
    if (!deadline_ || now < *deadline_) return;
    if (state_ == State::kReading) {
      const double seconds = std::chrono::duration<double>(room_.limits.request_timeout).count();
      refuse(HttpError(408, fmt::format("the request was not complete after {:g} seconds", seconds)));
    } else {
      leave();
    }
  }

  // ── Exchange ──

  const HttpRequest& request() const override { return request_; }

  void send(HttpResponse response) override {
    if (state_ != State::kAnswering) return;
    auto message = header_of(response.status, response.content_type);
    for (const auto& [name, value] : response.fields) message.set(name, value);
    std::size_t length = response.body.size();
    for (const std::string& piece : response.more) length += piece.size();
    message.content_length(length);
    append(text_of(message));
    if (request_.method != "HEAD") {
      append(std::move(response.body));
      for (std::string& piece : response.more) append(std::move(piece));
    }
    finish();
  }

  void begin_stream(const std::string& content_type, const std::string& sign_of_life) override {
    if (state_ != State::kAnswering) return;
    in_chunks_ = request_.version >= 11;  // before HTTP/1.1, the end of the connection was the end of a
                                          // stream
    keeps_alive_ = keeps_alive_ && in_chunks_;
    auto message = header_of(200, content_type);
    message.set(http::field::cache_control, "no-store");
    message.set("X-Accel-Buffering", "no");  // nginx would buffer 4 KiB of it
    message.chunked(in_chunks_);
    put(text_of(message));
    sign_of_life_ = sign_of_life;
    last_part_ = SteadyClock::now();
  }

  void write(const std::string& part) override {
    if (state_ != State::kAnswering || part.empty()) return;
    last_part_ = SteadyClock::now();
    put(in_chunks_ ? fmt::format("{:x}\r\n{}\r\n", part.size(), part) : part);
    if (unsent_ > room_.limits.unread_bytes) leave();
  }

  void end_stream() override {
    if (state_ != State::kAnswering) return;
    if (in_chunks_) put("0\r\n\r\n");
    finish();
  }

  void on_left(std::function<void()> call) override {
    if (state_ == State::kAnswering) on_left_ = std::move(call);
  }

  void post(std::function<void()> work) override {
    const std::scoped_lock lock(room_.mutex);
    room_.posted.push_back(std::move(work));
  }

  void post_without_flush(std::function<void()> work) override { asio::post(room_.io, std::move(work)); }

  void close() {
    state_ = State::kClosed;
    deadline_.reset();
    on_left_ = nullptr;
    error_code ignored;
    socket_.close(ignored);
    room_.connections.erase(shared_from_this());
    if (room_.stopping && room_.connections.empty()) room_.clock.cancel();  // the whole answer
  }

 private:
  enum class State {
    kIdle,       ///< no byte of a request has arrived
    kReading,    ///< a request is arriving
    kAnswering,  ///< the handler has it
    kEnding,     ///< the answer is complete, but not completely sent
    kLingering,  ///< the client should close first, or its remaining bytes would destroy the answer
    kClosed,
  };

  template <typename Message>
  static std::string text_of(const Message& message) {
    std::ostringstream text;
    text << message.base();
    return text.str();
  }

  http::response<http::empty_body> header_of(int status, const std::string& content_type) {
    http::response<http::empty_body> message{static_cast<http::status>(status),
                                             static_cast<unsigned>(request_.version)};
    status_ = status;
    message.set(http::field::date, http_date());
    message.set(http::field::content_type, content_type);
    message.set("X-Request-Id", request_.request_id);
    if (room_.fields) {
      for (const auto& [name, value] : room_.fields(request_)) message.set(name, value);
    }
    message.keep_alive(stays());
    return message;
  }

  bool stays() const { return keeps_alive_ && !room_.stopping; }

  void set_deadline(SteadyClock::duration time) { deadline_ = SteadyClock::now() + time; }

  // ── Reading ──

  /// Waits for the client even during its answer, because it may leave. Waiting needs no memory.
  void watch() {
    if (watching_ || state_ == State::kClosed) return;
    watching_ = true;
    socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](error_code error) {
      self->watching_ = false;
      if (!error && self->state_ != State::kClosed) self->receive();
    });
  }

  void receive() {
    error_code error;
    const std::size_t count = socket_.read_some(asio::buffer(room_.received), error);
    if (error == asio::error::would_block) return watch();
    if (error) return leave();
    if (state_ != State::kLingering) reader_.push({room_.received.data(), count});
    // Only reading reveals the end of the connection. Bytes beyond the limit are dropped, and the connection
    // ends once the answer is sent.
    const bool answers = state_ == State::kAnswering || state_ == State::kEnding;
    if (answers && reader_.ahead() > room_.limits.ahead_bytes) {
      reader_.drop();
      keeps_alive_ = false;
    }
    if (state_ == State::kIdle || state_ == State::kReading) read();
    watch();
  }

  void read() {
    try {
      while (true) {
        const auto progress = reader_.read();
        if (progress == RequestReader::Progress::kNothing) return;
        if (state_ == State::kIdle) set_deadline(room_.limits.request_timeout);
        state_ = State::kReading;
        if (progress == RequestReader::Progress::kPart) return;
        if (progress == RequestReader::Progress::kWhole) return answer();
        if (const auto refused = check()) return refuse(*refused, body_is_there());
        if (reader_.request().expects_continue && reader_.ahead() == 0) put("HTTP/1.1 100 Continue\r\n\r\n");
      }
    } catch (const HttpError& error) {
      refuse(error);
    }
  }

  /// Rejects a body that will not be read before it takes memory.
  std::optional<HttpError> check() const {
    try {
      if (room_.check) room_.check(reader_.request());
    } catch (const HttpError& error) {
      return error;
    }
    return std::nullopt;
  }

  bool body_is_there() { return reader_.read() == RequestReader::Progress::kWhole; }

  void answer() {
    begin_answer(reader_.take());
    room_.handler(shared_from_this());
  }

  void begin_answer(HttpRequest request) {
    request_ = std::move(request);
    if (!is_id(request_.request_id)) request_.request_id = "req-" + unique_id();
    state_ = State::kAnswering;
    deadline_.reset();
    has_asked_ = true;
    keeps_alive_ = request_.keeps_alive;
    in_chunks_ = false;
  }

  // ── Answering ──

  /// Rejects a request. If its end is unknown, the connection ends with the answer.
  void refuse(const HttpError& error, bool is_whole = false) {
    HttpRequest request = is_whole ? reader_.take() : reader_.request();
    request.keeps_alive = request.keeps_alive && is_whole;
    begin_answer(std::move(request));
    send(error_response(error));
  }

  void put(std::string text) {
    append(std::move(text));
    if (!is_sending_) send_more();
  }

  /// Joins small pieces into one packet. Large ones stay apart, because copying megabytes takes too long.
  void append(std::string text) {
    unsent_ += text.size();
    // The first piece is being sent, so it cannot grow.
    const bool joins = waiting_.size() > (is_sending_ ? 1 : 0);
    if (joins && waiting_.back().size() + text.size() <= kWrite) {
      waiting_.back() += text;
    } else if (!text.empty()) {
      waiting_.push_back(std::move(text));
    }
  }

  void send_more() {
    const bool answers = state_ == State::kAnswering || state_ == State::kEnding;
    is_sending_ = !waiting_.empty();
    if (!is_sending_) {
      if (answers) deadline_.reset();
      if (state_ == State::kEnding) after_the_answer();
      return;
    }
    if (answers) set_deadline(room_.limits.write_timeout);
    const std::string& piece = waiting_.front();
    socket_.async_write_some(asio::buffer(piece.data() + sent_, std::min(piece.size() - sent_, kWrite)),
                             [self = shared_from_this()](error_code error, std::size_t count) {
                               if (self->state_ == State::kClosed) return;
                               if (error) return self->leave();
                               self->unsent_ -= count;
                               self->sent_ += count;
                               if (self->sent_ == self->waiting_.front().size()) {
                                 self->waiting_.pop_front();
                                 self->sent_ = 0;
                               }
                               self->send_more();
                             });
  }

  void finish() {
    state_ = State::kEnding;
    on_left_ = nullptr;
    sign_of_life_.clear();
    if (!is_sending_) send_more();
  }

  void after_the_answer() {
    if (room_.on_answered) room_.on_answered(request_, status_);
    request_ = {};
    if (!stays()) return linger();
    state_ = State::kIdle;
    set_deadline(room_.limits.between);
    read();
    watch();
  }

  /// Closes this end, then reads and discards everything from the client until it closes the other.
  void linger() {
    state_ = State::kLingering;
    set_deadline(std::chrono::seconds(3));
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    watch();
  }

  void leave() {
    const auto call = std::exchange(on_left_, nullptr);
    const bool misses_its_answer = state_ == State::kAnswering || state_ == State::kEnding;
    close();
    if (misses_its_answer && room_.on_answered) room_.on_answered(request_, HttpServer::kClientLeft);
    if (call) call();
  }

  Room& room_;
  tcp::socket socket_;
  State state_ = State::kIdle;
  std::optional<SteadyClock::time_point> deadline_ = {};
  RequestReader reader_;
  HttpRequest request_ = {};
  int status_ = 0;
  bool has_asked_ = false, keeps_alive_ = false, in_chunks_ = false, watching_ = false;
  std::list<std::string> waiting_;  // the first piece is being sent
  bool is_sending_ = false;
  std::size_t sent_ = 0;           // bytes of the first piece
  std::size_t unsent_ = 0;         // bytes of all pieces
  std::string sign_of_life_ = {};  // of a stream
  SteadyClock::time_point last_part_ = {};
  std::function<void()> on_left_ = {};
};

std::string url_of(const tcp::endpoint& endpoint) {
  const std::string address = endpoint.address().to_string();
  return fmt::format("http://{}:{}", endpoint.address().is_v6() ? "[" + address + "]" : address,
                     endpoint.port());
}

}  // namespace

struct HttpServer::Impl {
  Impl(const HttpLimits& limits, Handler handler, Check check, OnAnswered on_answered, Fields fields)
      : room{limits, std::move(handler), std::move(check), std::move(on_answered), std::move(fields)} {}

  /// Listens on the port at this address.
  void listen(const tcp::endpoint& endpoint) {
    tcp::acceptor acceptor(room.io);
    acceptor.open(endpoint.protocol());
    acceptor.set_option(asio::socket_base::reuse_address(true));
    if (endpoint.address().is_v6()) acceptor.set_option(asio::ip::v6_only(true));
    acceptor.bind(endpoint);
    acceptor.listen(asio::socket_base::max_listen_connections);
    acceptors.push_back(std::move(acceptor));
  }

  void accept(tcp::acceptor& acceptor) {
    acceptor.async_accept([this, &acceptor](error_code error, tcp::socket socket) {
      // A signal may have closed the port meanwhile, but this client connected before it.
      if (!error) add(std::move(socket));
      if (!acceptor.is_open()) return;
      if (!error) return accept(acceptor);
      // Most likely, too many files are open; some will be closed soon.
      const auto pause = std::make_shared<asio::steady_timer>(room.io, std::chrono::milliseconds(100));
      pause->async_wait([this, &acceptor, pause](error_code) {
        if (acceptor.is_open()) accept(acceptor);
      });
    });
  }

  void add(tcp::socket socket) {
    const auto connection = std::make_shared<Connection>(room, std::move(socket));
    room.connections.insert(connection);
    connection->begin();
    if (room.stopping) connection->stop();
  }

  /// Calls `visit` for all connections, which may close them.
  template <typename Visit>
  void for_each(Visit visit) {
    const auto connections = room.connections;
    for (const auto& connection : connections) visit(*connection);
  }

  void tick() {
    if (room.stopping && room.connections.empty()) return;
    room.clock.expires_after(room.limits.tick);
    room.clock.async_wait([this](error_code) {  // fires early once the last connection has ended
      const auto now = SteadyClock::now();
      for_each([&](Connection& connection) { connection.look_at_the_clock(now); });
      tick();
    });
  }

  void stop() {
    room.stopping = true;
    for_each([](Connection& connection) { connection.stop(); });
    for (tcp::acceptor& acceptor : acceptors) {
      error_code error;
      // Clients that are connected but not yet accepted must also be answered.
      acceptor.non_blocking(true, error);
      while (!error) {
        tcp::socket socket(room.io);
        acceptor.accept(socket, error);
        if (!error) add(std::move(socket));
      }
      acceptor.close(error);
    }
    if (room.connections.empty()) room.clock.cancel();
  }

  Room room;
  std::list<tcp::acceptor> acceptors;
  asio::signal_set signals{room.io};
  std::thread thread;
};

std::vector<std::string> addresses_of(const std::string& host) {
  asio::io_context io;
  error_code error;
  const auto found = tcp::resolver(io).resolve(host, "0", tcp::resolver::passive, error);
  if (error || found.empty()) throw Error("--host {}: there is no such address: {}", host, error.message());
  std::set<asio::ip::address> addresses;
  for (const auto& entry : found) addresses.insert(entry.endpoint().address());
  std::vector<std::string> names;
  for (const auto& address : addresses) names.push_back(address.to_string());
  return names;
}

HttpServer::HttpServer(const std::vector<std::string>& addresses, int port, const HttpLimits& limits,
                       Handler handler, Check check, OnAnswered on_answered, Fields fields)
    : impl_(std::make_unique<Impl>(limits, std::move(handler), std::move(check), std::move(on_answered),
                                   std::move(fields))) {
  std::optional<Error> absent;
  for (const std::string& address : addresses) {
    const auto& acceptors = impl_->acceptors;
    const int own_port = acceptors.empty() ? port : acceptors.front().local_endpoint().port();
    try {
      impl_->listen({asio::ip::make_address(address), static_cast<std::uint16_t>(own_port)});
    } catch (const boost::system::system_error& error) {
      const Error sentence("cannot listen on port {} of {}: {}", own_port, address, error.code().message());
      // localhost often includes ::1, even on machines without IPv6.
      const bool is_absent = error.code() == boost::system::errc::address_not_available ||
                             error.code() == boost::system::errc::address_family_not_supported;
      if (!is_absent) throw sentence;
      absent = sentence;
    }
  }
  if (impl_->acceptors.empty() && absent) throw *absent;
}

HttpServer::~HttpServer() {
  impl_->room.io.stop();
  if (impl_->thread.joinable()) impl_->thread.join();
  impl_->for_each([](Connection& connection) { connection.close(); });
}

std::string HttpServer::url() const {
  return url_of(impl_->acceptors.front().local_endpoint());
}

bool HttpServer::is_local() const {
  return std::ranges::all_of(impl_->acceptors, [](const tcp::acceptor& acceptor) {
    return acceptor.local_endpoint().address().is_loopback();
  });
}

void HttpServer::start(std::function<void()> on_stop) {
  asio::signal_set& signals = impl_->signals;
  signals.add(SIGINT);
  signals.add(SIGTERM);
#ifdef SIGUSR1
  signals.add(SIGUSR1);  // mpirun forwards it; after SIGTERM it kills its processes within 1 s
#endif
  signals.async_wait([this, on_stop = std::move(on_stop)](error_code stopped, int) {
    if (stopped) return;
    impl_->signals.clear();  // the next signal has its default effect
    impl_->stop();
    on_stop();
  });
  for (tcp::acceptor& acceptor : impl_->acceptors) impl_->accept(acceptor);
  impl_->tick();
  impl_->thread = std::thread([this] { impl_->room.io.run(); });
}

void HttpServer::flush() {
  asio::post(impl_->room.io, [room = &impl_->room] {
    std::vector<std::function<void()>> posted;
    {
      const std::scoped_lock lock(room->mutex);
      posted.swap(room->posted);
    }
    for (const auto& work : posted) work();
  });
}

void HttpServer::wait() {
  impl_->thread.join();
}

}  // namespace staircase
