// Binary encoding of control messages: fixed-width little-endian fields (all supported processors are little-endian),
// strings and lists behind a 32-bit length. Decoding checks bounds, so a damaged frame is an error and not a crash.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace compat_hvd {

class Encoder {
 public:
  template <typename T>
  void put(T value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put(const std::string& text) {
    put(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
  }
  template <typename T>
  void put(const std::vector<T>& values) {
    put(static_cast<uint32_t>(values.size()));
    for (const T& value : values) put(value);
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Decoder {
 public:
  explicit Decoder(const std::string& bytes, size_t from = 0) : bytes_(bytes), at_(from) {}

  template <typename T>
  T get() {
    if constexpr (std::is_same_v<T, std::string>) {
      const uint32_t size = get<uint32_t>();
      require(size);
      std::string text = bytes_.substr(at_, size);
      at_ += size;
      return text;
    } else {
      static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
      require(sizeof(T));
      T value;
      std::memcpy(&value, bytes_.data() + at_, sizeof value);
      at_ += sizeof value;
      return value;
    }
  }
  template <typename T>
  std::vector<T> list() {
    const uint32_t size = get<uint32_t>();
    std::vector<T> values;
    values.reserve(size < 4096 ? size : 4096);
    for (uint32_t i = 0; i < size; ++i) values.push_back(get<T>());
    return values;
  }

 private:
  void require(size_t size) const {
    if (bytes_.size() - at_ < size) throw std::runtime_error("control message is shorter than its fields");
  }

  const std::string& bytes_;
  size_t at_;
};

}  // namespace compat_hvd
