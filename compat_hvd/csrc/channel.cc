#include "channel.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace compat_hvd {
namespace {

constexpr size_t kMessageBytes = 16 << 10;

}  // namespace

size_t RingPipe::write(const char* data, size_t size) {
  const uint64_t written = out_->written.load(std::memory_order_relaxed);
  const size_t room = kRingBytes - static_cast<size_t>(written - out_->read.load(std::memory_order_acquire));
  const size_t count = std::min(size, room);
  if (count == 0) return 0;
  const size_t from = written % kRingBytes;
  const size_t first = std::min(count, kRingBytes - from);
  std::memcpy(out_->data + from, data, first);
  std::memcpy(out_->data, data + first, count - first);
  out_->written.store(written + count, std::memory_order_release);
  memory_->wake(far_);
  return count;
}

size_t RingPipe::read(char* data, size_t size) {
  const uint64_t read = in_->read.load(std::memory_order_relaxed);
  const uint64_t available = in_->written.load(std::memory_order_acquire) - read;
  const size_t count = std::min<size_t>(size, available);
  if (count == 0) return 0;
  const size_t from = read % kRingBytes;
  const size_t first = std::min(count, kRingBytes - from);
  std::memcpy(data, in_->data + from, first);
  std::memcpy(data + first, in_->data, count - first);
  in_->read.store(read + count, std::memory_order_release);
  if (available == kRingBytes) memory_->wake(far_);  // the writer may have been waiting for room
  return count;
}

MoverPipe::MoverPipe(ByteMover* mover, int far)
    : mover_(mover), far_(far), outgoing_(kMessageBytes), incoming_(kMessageBytes) {}

size_t MoverPipe::write(const char* data, size_t size) {
  if (!mover_->done(&sending_)) return 0;
  const uint32_t count = static_cast<uint32_t>(std::min(size, kMessageBytes - sizeof(uint32_t)));
  std::memcpy(outgoing_.data(), &count, sizeof count);
  std::memcpy(outgoing_.data() + sizeof count, data, count);
  mover_->send(far_, kControlTag, outgoing_.data(), sizeof count + count, &sending_);
  return count;
}

size_t MoverPipe::read(char* data, size_t size) {
  if (available_ == 0) {
    if (!posted_) {
      mover_->receive(far_, kControlTag, incoming_.data(), kMessageBytes, &receiving_);
      posted_ = true;
    }
    if (!mover_->done(&receiving_)) return 0;
    posted_ = false;
    uint32_t count;
    std::memcpy(&count, incoming_.data(), sizeof count);
    at_ = sizeof count;
    available_ = count;
  }
  const size_t count = std::min(size, available_);
  std::memcpy(data, incoming_.data() + at_, count);
  at_ += count;
  available_ -= count;
  return count;
}

void Channel::send(const std::string& frame) {
  const uint32_t size = static_cast<uint32_t>(frame.size());
  outgoing_.append(reinterpret_cast<const char*>(&size), sizeof size);
  outgoing_.append(frame);
}

bool Channel::flush() {
  bool moved = false;
  while (sent_ < outgoing_.size()) {
    const size_t count = pipe_->write(outgoing_.data() + sent_, outgoing_.size() - sent_);
    if (count == 0) return moved;
    sent_ += count;
    moved = true;
  }
  outgoing_.clear();
  sent_ = 0;
  return moved;
}

bool Channel::receive(std::string* frame) {
  for (;;) {
    uint32_t size;
    if (incoming_.size() - taken_ >= sizeof size) {
      std::memcpy(&size, incoming_.data() + taken_, sizeof size);
      if (incoming_.size() - taken_ - sizeof size >= size) {
        frame->assign(incoming_, taken_ + sizeof size, size);
        taken_ += sizeof size + size;
        if (taken_ == incoming_.size()) incoming_.clear(), taken_ = 0;
        return true;
      }
    }
    char piece[4096];
    const size_t count = pipe_->read(piece, sizeof piece);
    if (count == 0) return false;
    if (taken_ > 0) incoming_.erase(0, taken_), taken_ = 0;
    incoming_.append(piece, count);
  }
}

}  // namespace compat_hvd
