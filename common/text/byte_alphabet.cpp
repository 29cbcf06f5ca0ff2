#include "common/text/byte_alphabet.h"

namespace staircase {

ByteAlphabet::ByteAlphabet() {
  bytes_.fill(-1);
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    bytes_[prints ? byte : next++] = byte;
  }
}

std::optional<std::string> ByteAlphabet::read(std::string_view written) const {
  std::string bytes;
  for (std::size_t i = 0; i < written.size(); ++i) {
    unsigned code_point = static_cast<unsigned char>(written[i]);
    if (code_point >= 0xE0) return {};  // three bytes or more: far above the alphabet
    if (code_point >= 0xC0) code_point = (code_point & 0x1F) << 6 | (written[++i] & 0x3F);
    if (code_point >= bytes_.size() || bytes_[code_point] < 0) return {};
    bytes += static_cast<char>(bytes_[code_point]);
  }
  return bytes;
}

}  // namespace staircase
