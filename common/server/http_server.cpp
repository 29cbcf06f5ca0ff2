#include "common/server/http_server.h"

#include <algorithm>
#include <boost/asio.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <csignal>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

namespace staircase {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;
using boost::system::error_code;
using SteadyClock = std::chrono::steady_clock;

class Connection;

/// What the connections share.
struct Room {
  HttpLimits limits;
  HttpServer::Handler handler;
  asio::io_context io{1};
  asio::steady_timer clock{io};  ///< rings every second
  std::set<std::shared_ptr<Connection>> connections = {};
  bool stopping = false;  ///< no connection outlives its answer
  std::mutex mutex = {};
  std::vector<std::function<void()>> posted = {};  ///< by other threads; guarded by the mutex
};

/// A client, from the first request to the last. Every function and every callback runs in the thread of the
/// server.
class Connection : public Exchange, public std::enable_shared_from_this<Connection> {
 public:
  Connection(Room& room, tcp::socket socket) : room_(room), socket_(std::move(socket)) {
    error_code ignored;
    socket_.non_blocking(true, ignored);
    // A token goes out when it is there: it does not wait until the one before has arrived (Nagle 1984).
    socket_.set_option(tcp::no_delay(true), ignored);
  }

  void begin() { read_request(); }

  /// Who asks for nothing is let go, and who is about to has another second.
  void stop() {
    error_code error;
    if (state_ == State::kIdle && socket_.available(error) == 0) return close();
    if (state_ == State::kReading && !has_begun()) set_deadline(std::chrono::seconds(1));
  }

  /// Every second: is the client too slow?
  void look_at_the_clock(SteadyClock::time_point now) {
    if (!deadline_ || now < *deadline_) return;
    if (state_ == State::kReading && has_begun()) {
      error_code ignored;
      socket_.cancel(ignored);
      refuse(408, fmt::format("the request was not complete after {} seconds", room_.limits.to_ask.count()));
    } else {
      leave();
    }
  }

  // ── Exchange ──

  const HttpRequest& request() const override { return request_; }

  void send(const HttpResponse& response) override {
    if (state_ != State::kAnswering) return;
    http::response<http::string_body> message{static_cast<http::status>(response.status), version_};
    message.set(http::field::content_type, response.content_type);
    for (const auto& [name, value] : response.fields) message.set(name, value);
    message.keep_alive(stays());
    message.body() = response.body;
    message.prepare_payload();
    if (request_.method == "HEAD") message.body().clear();
    put(text_of(message));
    finish();
  }

  void begin_stream(const std::string& content_type) override {
    if (state_ != State::kAnswering) return;
    http::response<http::empty_body> message{http::status::ok, version_};
    message.set(http::field::content_type, content_type);
    message.set(http::field::cache_control, "no-store");
    in_chunks_ = version_ >= 11;  // before HTTP/1.1 the end of the connection was the end of a stream
    keeps_alive_ = keeps_alive_ && in_chunks_;
    message.keep_alive(stays());
    message.chunked(in_chunks_);
    put(text_of(message.base()));
  }

  void write(const std::string& part) override {
    if (state_ != State::kAnswering || part.empty()) return;
    put(in_chunks_ ? fmt::format("{:x}\r\n{}\r\n", part.size(), part) : part);
    if (waiting_.size() > room_.limits.unread_bytes) leave();
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

  void close() {
    state_ = State::kClosed;
    deadline_.reset();
    on_left_ = nullptr;
    error_code ignored;
    socket_.close(ignored);
    room_.connections.erase(shared_from_this());
    if (room_.stopping && room_.connections.empty()) room_.clock.cancel();  // that was all
  }

 private:
  enum class State {
    kIdle,       ///< between two requests
    kReading,    ///< a request comes
    kAnswering,  ///< the handler has it
    kEnding,     ///< all of the answer is there, but not all of it is sent
    kLingering,  ///< the client is to close first, or what it still sends would destroy the answer
    kClosed,
  };

  template <typename Message>
  static std::string text_of(const Message& message) {
    std::ostringstream text;
    text << message;
    return text.str();
  }

  /// Whether a part of the request is there.
  bool has_begun() const { return header_is_there_ || buffer_.size() > 0; }

  bool stays() const { return keeps_alive_ && !room_.stopping; }

  void set_deadline(std::chrono::seconds time) { deadline_ = SteadyClock::now() + time; }

  /// Calls `then` with the result of an operation that was begun in this state, unless something else has
  /// come in between.
  template <typename Then>
  auto in_state(State state, Then then) {
    return [self = shared_from_this(), state, then](error_code error, std::size_t = 0) {
      if (self->state_ == state) then(error);
    };
  }

  // ── Reading ──

  void read_request() {
    state_ = State::kReading;
    set_deadline(room_.limits.to_ask);
    header_is_there_ = false;
    parser_.emplace();
    parser_->header_limit(static_cast<std::uint32_t>(room_.limits.header_bytes));
    parser_->body_limit(room_.limits.body_bytes);
    http::async_read_header(socket_, buffer_, *parser_,
                            in_state(State::kReading, [this](error_code error) { read_body(error); }));
  }

  void read_body(error_code error) {
    if (error) return refuse(error);
    header_is_there_ = true;
    const auto read = [this] {
      http::async_read(socket_, buffer_, *parser_,
                       in_state(State::kReading, [this](error_code error) { take_request(error); }));
    };
    const auto expect = parser_->get()[http::field::expect];
    if (!boost::beast::iequals(expect, "100-continue")) return read();
    static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    asio::async_write(socket_, asio::buffer(kContinue.data(), kContinue.size()),
                      in_state(State::kReading, [this, read](error_code error) {
                        if (error) return close();
                        read();
                      }));
  }

  void take_request(error_code error) {
    if (error) return refuse(error);
    auto message = parser_->release();
    const auto text = [](auto view) { return std::string(view.data(), view.size()); };
    request_ = {.method = text(message.method_string()),
                .path = text(message.target()),
                .content_type = text(message[http::field::content_type]),
                .authorization = text(message[http::field::authorization]),
                .body = std::move(message.body())};
    request_.path = request_.path.substr(0, request_.path.find('?'));
    begin_answer(message.version(), message.keep_alive());
    watch();
    room_.handler(shared_from_this());
  }

  void begin_answer(unsigned version, bool keeps_alive) {
    state_ = State::kAnswering;
    deadline_.reset();
    version_ = version;
    keeps_alive_ = keeps_alive;
    in_chunks_ = false;
  }

  /// Waits for what the client does while it gets its answer, and for its next request.
  void watch() {
    if (std::exchange(watching_, true)) return;
    socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](error_code error) {
      self->watching_ = false;
      if (error || self->state_ == State::kClosed) return;
      self->client_stirs();
    });
  }

  void client_stirs() {
    if (state_ == State::kIdle) return read_request();
    if (state_ != State::kAnswering && state_ != State::kEnding) return;
    char byte = 0;
    error_code error;
    socket_.receive(asio::buffer(&byte, 1), tcp::socket::message_peek, error);
    if (error == asio::error::would_block) return watch();
    if (error) return leave();
    has_more_ = true;  // its next request, which has to wait
  }

  // ── Answering ──

  /// What could not be read gets an answer as well, where there is somebody to read it.
  void refuse(error_code error) {
    if (error == http::error::header_limit || error == http::error::buffer_overflow) {
      return refuse(
          431, fmt::format("the header of the request has more than {} bytes", room_.limits.header_bytes));
    }
    if (error == http::error::body_limit) {
      return refuse(413, fmt::format("the body of a request has at most {} bytes", room_.limits.body_bytes));
    }
    const bool is_malformed = error.category() == http::make_error_code(http::error::bad_method).category() &&
                              error != http::error::end_of_stream && error != http::error::partial_message;
    if (!is_malformed) return close();
    refuse(400, fmt::format("this is no request of HTTP/1.1: {}", error.message()));
  }

  void refuse(int status, const std::string& message) {
    begin_answer(11, false);
    request_ = {};
    send(error_response(HttpError(status, message)));
  }

  void put(const std::string& text) {
    waiting_ += text;
    if (sent_ == sending_.size()) send_more();
  }

  void send_more() {
    if (sent_ == sending_.size()) {
      sending_ = std::exchange(waiting_, {});
      sent_ = 0;
    }
    if (sending_.empty()) {
      deadline_.reset();
      if (state_ == State::kEnding) after_the_answer();
      return;
    }
    set_deadline(room_.limits.to_take);
    socket_.async_write_some(asio::buffer(sending_.data() + sent_, sending_.size() - sent_),
                             [self = shared_from_this()](error_code error, std::size_t count) {
                               if (self->state_ != State::kAnswering && self->state_ != State::kEnding)
                                 return;
                               if (error) return self->leave();
                               self->sent_ += count;
                               self->send_more();
                             });
  }

  void finish() {
    state_ = State::kEnding;
    on_left_ = nullptr;
    if (sent_ == sending_.size() && waiting_.empty()) after_the_answer();
  }

  void after_the_answer() {
    if (!stays()) return linger();
    if (std::exchange(has_more_, false) || buffer_.size() > 0) return read_request();
    state_ = State::kIdle;
    set_deadline(room_.limits.between);
    watch();
  }

  /// Closes this end, and reads and forgets what the client still sends until it closes the other.
  void linger() {
    state_ = State::kLingering;
    set_deadline(std::chrono::seconds(3));
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    discarded_.resize(1 << 16);
    discard();
  }

  void discard() {
    socket_.async_read_some(asio::buffer(discarded_), in_state(State::kLingering, [this](error_code error) {
                              if (error) return close();
                              discard();
                            }));
  }

  void leave() {
    const auto call = std::exchange(on_left_, nullptr);
    close();
    if (call) call();
  }

  Room& room_;
  tcp::socket socket_;
  State state_ = State::kIdle;
  std::optional<SteadyClock::time_point> deadline_ = {};
  boost::beast::flat_buffer buffer_;  // read, but not yet understood
  std::optional<http::request_parser<http::string_body>> parser_ = {};
  bool header_is_there_ = false;
  HttpRequest request_ = {};
  unsigned version_ = 11;
  bool keeps_alive_ = false, in_chunks_ = false;
  bool watching_ = false, has_more_ = false;
  std::string sending_, waiting_;  // on its way, and behind that
  std::size_t sent_ = 0;           // bytes of `sending_`
  std::vector<char> discarded_;    // what comes behind the last answer
  std::function<void()> on_left_ = {};
};

tcp::endpoint endpoint_of(const std::string& host, int port) {
  asio::io_context io;
  error_code error;
  const auto found = tcp::resolver(io).resolve(host, std::to_string(port), tcp::resolver::passive, error);
  if (error || found.empty()) throw Error("--host {}: there is no such address: {}", host, error.message());
  return *found.begin();
}

}  // namespace

struct HttpServer::Impl {
  Impl(const HttpLimits& limits, Handler handler) : room{limits, std::move(handler)} {}

  void accept() {
    acceptor.async_accept([this](error_code error, tcp::socket socket) {
      if (!acceptor.is_open()) return;
      if (!error) {
        add(std::move(socket));
        return accept();
      }
      // Most likely there are too many open files: some of them will be closed.
      pause.expires_after(std::chrono::milliseconds(100));
      pause.async_wait([this](error_code stopped) {
        if (!stopped) accept();
      });
    });
  }

  void add(tcp::socket socket) {
    const auto connection = std::make_shared<Connection>(room, std::move(socket));
    room.connections.insert(connection);
    connection->begin();
  }

  /// Calls `visit` for all connections, which may close them.
  template <typename Visit>
  void for_each(Visit visit) {
    const auto connections = room.connections;
    for (const auto& connection : connections) visit(*connection);
  }

  void tick() {
    if (room.stopping && room.connections.empty()) return;
    room.clock.expires_after(std::chrono::seconds(1));
    room.clock.async_wait([this](error_code stopped) {
      if (stopped) return;
      const auto now = SteadyClock::now();
      for_each([&](Connection& connection) { connection.look_at_the_clock(now); });
      tick();
    });
  }

  void stop() {
    room.stopping = true;
    error_code error;
    // Those that are connected and wait to be accepted are to hear of it, too.
    acceptor.non_blocking(true, error);
    while (!error) {
      tcp::socket socket(room.io);
      acceptor.accept(socket, error);
      if (!error) add(std::move(socket));
    }
    acceptor.close(error);
    pause.cancel();
    for_each([](Connection& connection) { connection.stop(); });
    if (room.connections.empty()) room.clock.cancel();
  }

  Room room;
  tcp::acceptor acceptor{room.io};
  asio::steady_timer pause{room.io};
  asio::signal_set signals{room.io};
  std::string url;
  std::thread thread;
};

HttpServer::HttpServer(const std::string& host, int port, const HttpLimits& limits, Handler handler)
    : impl_(std::make_unique<Impl>(limits, std::move(handler))) {
  const tcp::endpoint endpoint = endpoint_of(host, port);
  tcp::acceptor& acceptor = impl_->acceptor;
  try {
    acceptor.open(endpoint.protocol());
    acceptor.set_option(asio::socket_base::reuse_address(true));
    acceptor.bind(endpoint);
    acceptor.listen(asio::socket_base::max_listen_connections);
  } catch (const boost::system::system_error& error) {
    throw Error("port {} of {} cannot be had: {}", port, host, error.code().message());
  }
  const tcp::endpoint own = acceptor.local_endpoint();
  const std::string address = own.address().to_string();
  impl_->url = fmt::format("http://{}:{}", own.address().is_v6() ? "[" + address + "]" : address, own.port());
}

HttpServer::~HttpServer() {
  impl_->room.io.stop();
  if (impl_->thread.joinable()) impl_->thread.join();
  impl_->for_each([](Connection& connection) { connection.close(); });
}

std::string HttpServer::url() const {
  return impl_->url;
}

void HttpServer::start(std::function<void()> on_stop) {
  asio::signal_set& signals = impl_->signals;
  signals.add(SIGINT);
  signals.add(SIGTERM);
  signals.async_wait([this, on_stop = std::move(on_stop)](error_code stopped, int) {
    if (stopped) return;
    impl_->signals.clear();  // the next one is for the system
    impl_->stop();
    on_stop();
  });
  impl_->accept();
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
