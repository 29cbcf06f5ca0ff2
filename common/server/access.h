// Who may call the server: the names that it goes by, pages of other origins, keys.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/server/http.h"

namespace staircase {

struct AccessOptions {
  std::vector<std::string> allowed_hosts = {};  ///< besides addresses and localhost
  std::vector<std::string> cors_origins = {};   ///< whose pages may call; "*" allows all
  std::string api_key_file = {};                ///< none: no key is needed
  std::optional<int> max_per_key = {};          ///< unfinished requests of each key; without a value, any
};

/// The origin that --cors-origin names, as a browser sends it: without capitals, a slash at the end or the
/// scheme's own port. Throws UsageError for anything else but * and null.
std::string origin_of(const std::string& option);

class Access {
 public:
  /// Throws Error for a key file that cannot be read or has no key.
  explicit Access(const AccessOptions& options);

  /// Only this machine can reach the server, so names are checked without --allowed-host as well.
  void serve_locally() { checks_host_ = true; }

  /// A page of another site may have a name that points here: its requests come from a browser that takes
  /// this server for the same site ("DNS rebinding"). Throws HttpError for a name that is not this server's.
  void check_host(const HttpRequest& request) const;

  /// Whether pages of that origin may call this server.
  bool allows(const std::string& origin) const;

  /// Headers that let a browser pass the answer to a page of another origin (the Fetch standard, section
  /// 3.2).
  HttpFields cross_origin_fields(const HttpRequest& request) const;

  /// The answer to a browser that asks before the request itself. It has no key yet.
  static HttpResponse preflight(const HttpRequest& request);

  /// Throws HttpError unless the request has one of the keys, or none is needed.
  void check_key(const HttpRequest& request) const;

  /// Counts a request among the unfinished ones of its key, until `end`. Throws HttpError if these are as
  /// many as its key may have.
  void begin(const HttpRequest& request);

  /// The request has its answer, or its client has left. Does nothing for one that was not counted.
  void end(const HttpRequest& request) { unfinished_.erase(&request); }

 private:
  std::vector<std::string> origins_, keys_, hosts_;
  bool checks_host_;
  std::optional<int> max_per_key_;
  std::map<const HttpRequest*, std::string> unfinished_ = {};  // and their keys
};

/// Throws HttpError unless the body is plain JSON.
void require_json_body(const HttpRequest& request);

}  // namespace staircase
