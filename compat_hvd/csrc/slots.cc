#include "slots.h"

namespace compat_hvd {

bool Slots::finished(ByteMover* mover, LastUse* last) const {
  while (!last->transfers.empty()) {
    if (!mover->done(&last->transfers.back())) return false;
    last->transfers.pop_back();
  }
  return true;
}

char* Slots::acquire(uint64_t sequence, uint64_t use, ByteMover* mover) {
  const int slot = index(sequence, use);
  LastUse& last = last_[slot];
  if (!finished(mover, &last)) return nullptr;
  for (int reader : last.readers) {
    if (own_.released(slot, memory_->reader_index(reader)).load(std::memory_order_acquire) < last.tag) return nullptr;
  }
  last.readers.clear();
  return own_.slot(slot);
}

void Slots::publish(uint64_t sequence, uint64_t use, const std::vector<int>& readers) {
  const int slot = index(sequence, use);
  last_[slot].tag = tag(sequence, use);
  last_[slot].readers = readers;
  own_.tag(slot).store(last_[slot].tag, std::memory_order_release);
  for (int reader : readers) memory_->wake(reader);
}

ByteMover::Transfer* Slots::add_transfer(uint64_t sequence, uint64_t use) {
  std::vector<ByteMover::Transfer>& transfers = last_[index(sequence, use)].transfers;
  transfers.emplace_back();
  return &transfers.back();
}

bool Slots::transfers_done(ByteMover* mover) {
  for (LastUse& last : last_) {
    if (!finished(mover, &last)) return false;
  }
  return true;
}

const char* Slots::read(int writer, uint64_t sequence, uint64_t use) const {
  const Segment& segment = memory_->of(writer);
  const int slot = index(sequence, use);
  return segment.tag(slot).load(std::memory_order_acquire) == tag(sequence, use) ? segment.slot(slot) : nullptr;
}

void Slots::release(int writer, uint64_t sequence, uint64_t use) const {
  memory_->of(writer)
      .released(index(sequence, use), memory_->reader_index(rank_))
      .store(tag(sequence, use), std::memory_order_release);
  memory_->wake(writer);
}

}  // namespace compat_hvd
