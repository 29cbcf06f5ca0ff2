// Files that are part of the program.
#pragma once

namespace staircase {

extern const char* const kPage;      ///< page.html
extern const char* const kChatPage;  ///< chat.html
extern const char* const kOpenApi;   ///< openapi.json

}  // namespace staircase
