#include "json.h"

#include <cstdint>
#include <cstdio>

namespace compat_hvd {
namespace {

constexpr uint32_t kReplacement = 0xfffd;

// Takes one character out of UTF-8 text (Unicode standard, table 3-7) and moves `at` behind it; behind one byte when
// the bytes there are no character.
uint32_t next_character(const std::string& text, size_t* at) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : 0u; };
  const uint32_t first = byte((*at)++);
  if (first < 0x80) return first;
  const int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
  if (first < 0xc2 || first > 0xf4) return kReplacement;
  uint32_t character = first & (0x3f >> more);
  for (int i = 0; i < more; ++i) {
    const uint32_t next = byte(*at + i);
    if ((next & 0xc0) != 0x80) return kReplacement;
    character = character << 6 | (next & 0x3f);
  }
  const bool overlong = (more == 2 && character < 0x800) || (more == 3 && character < 0x10000);
  const bool surrogate = character >= 0xd800 && character <= 0xdfff;
  if (overlong || surrogate || character > 0x10ffff) return kReplacement;
  *at += more;
  return character;
}

void append_escape(std::string* out, uint32_t unit) {
  char escape[8];
  std::snprintf(escape, sizeof escape, "\\u%04x", unit & 0xffff);
  *out += escape;
}

}  // namespace

std::string json_string(const std::string& text) {
  std::string out = "\"";
  for (size_t at = 0; at < text.size();) {
    const uint32_t character = next_character(text, &at);
    if (character == '"' || character == '\\') {
      out += '\\';
      out += static_cast<char>(character);
    } else if (character >= 0x20 && character < 0x7f) {
      out += static_cast<char>(character);
    } else if (character < 0x10000) {
      append_escape(&out, character);
    } else {
      append_escape(&out, 0xd800 + ((character - 0x10000) >> 10));
      append_escape(&out, 0xdc00 + ((character - 0x10000) & 0x3ff));
    }
  }
  return out + '"';
}

}  // namespace compat_hvd
