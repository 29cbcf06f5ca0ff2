// Who may call the server: checks the server's names, pages of other origins, and keys.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/server/http.h"

namespace staircase {

struct AccessOptions {
  std::vector<std::string> allowed_hosts = {};  ///< in addition to addresses and localhost
  std::vector<std::string> cors_origins = {};   ///< origins whose pages may call; "*" allows all
  std::string api_key_file = {};                ///< if empty, no key is needed
  std::optional<int> max_per_key = {};          ///< maximum unfinished requests per key; unset: no limit
};

/// The origin that --cors-origin names, as a browser sends it: without capitals, a slash at the end or the
/// scheme's own port. Throws UsageError for anything else except * and null.
std::string origin_of(const std::string& option);

class Access {
 public:
  /// Throws Error for a key file that cannot be read or has no key.
  explicit Access(const AccessOptions& options);

  /// Call this if only this machine can reach the server: it then checks names even without --allowed-host.
  void serve_locally() { checks_host_ = true; }

  /// Prevents "DNS rebinding": another site points its name here, so a browser takes this server for the same
  /// site. Throws HttpError for a name that is not this server's.
  void check_host(const HttpRequest& request) const;

  /// Whether pages of this origin may call the server.
  bool allows(const std::string& origin) const;

  /// Headers that let a browser pass the answer to a page of another origin (the Fetch standard, section
  /// 3.2).
  HttpFields cross_origin_fields(const HttpRequest& request) const;

  /// The answer to a browser's preflight request, which carries no key.
  static HttpResponse preflight(const HttpRequest& request);

  /// Throws HttpError unless the request has one of the keys or no key is needed.
  void check_key(const HttpRequest& request) const;

  /// Counts a request as unfinished for its key until `end`. Throws HttpError if the key already has the
  /// maximum number.
  void begin(const HttpRequest& request);

  /// Call when a request has its answer or its client has left. Ignores requests that were not counted.
  void end(const HttpRequest& request) { unfinished_.erase(&request); }

 private:
  std::vector<std::string> origins_, keys_, hosts_;
  bool checks_host_;
  std::optional<int> max_per_key_;
  std::map<const HttpRequest*, std::string> unfinished_ = {};  // requests and their keys
};

/// Throws HttpError unless the body is plain JSON.
void require_json_body(const HttpRequest& request);

}  // namespace staircase
