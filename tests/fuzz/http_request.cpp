// Any bytes as what a client sends, in any pieces: the requests are the same however they are cut, little is
// held, and what is refused has a sentence.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "common/server/request_reader.h"

namespace {

using namespace staircase;

constexpr HttpLimits kLimits{.header_bytes = 512, .body_bytes = 1024, .ahead_bytes = 4096};

void require(bool promise) {
  if (!promise) std::abort();
}

struct Reading {
  std::string requests;
  int refusal = 0;
};

Reading reading(std::string_view bytes, std::size_t piece) {
  RequestReader reader(kLimits);
  Reading result;
  try {
    for (std::size_t i = 0; i < bytes.size(); i += piece) {
      reader.push(bytes.substr(i, piece));
      for (auto progress = reader.read(); progress >= RequestReader::Progress::kHeader;
           progress = reader.read()) {
        if (progress == RequestReader::Progress::kHeader) {
          require(reader.request().body.empty() && reader.request().version >= 10);
          continue;
        }
        const HttpRequest request = reader.take();
        require(request.body.size() <= kLimits.body_bytes && !request.method.empty() &&
                !request.path.empty());
        result.requests +=
            fmt::format("{} {} {} {} {}|{}|{}\n", request.method, request.path, request.host, request.version,
                        request.keeps_alive, request.authorization, request.body);
      }
      // What is not read is a part of a header, of a chunk's or of trailers.
      require(reader.ahead() <= kLimits.header_bytes);
      require(reader.held() <=
              4 * (kLimits.header_bytes + kLimits.body_bytes + std::min(piece, bytes.size())));
    }
  } catch (const HttpError& error) {
    require(error.status == 400 || error.status == 413 || error.status == 431 || error.status == 501);
    require(error.what()[0] != '\0');
    result.refusal = error.status;
  }
  return result;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Reading whole = reading(bytes, std::max<std::size_t>(bytes.size(), 1));
  const Reading pieces = reading(bytes, 1 + data[0] % 64);
  // At a limit the pieces decide which of two faults is met first.
  for (const int refusal : {whole.refusal, pieces.refusal}) {
    if (refusal == 413 || refusal == 431) return 0;
  }
  require(whole.requests == pieces.requests);
  // Of a header in pieces a fault may be found at its end only.
  require(whole.refusal == pieces.refusal || whole.refusal == 0 || pieces.refusal == 0);
  return 0;
}
