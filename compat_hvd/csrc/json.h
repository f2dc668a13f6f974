// Text as JSON wants it.
#pragma once

#include <string>

namespace compat_hvd {

// A JSON string of ASCII characters, with its quotes. Bytes that are not UTF-8 become U+FFFD.
std::string json_string(const std::string& text);

}  // namespace compat_hvd
