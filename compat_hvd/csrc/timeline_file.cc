#include "timeline_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "thread.h"

namespace compat_hvd {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(100);
// What is written at once: it touches two pages of the file, which a reader or the death of the process can tear apart
// only between the two copies.
constexpr size_t kWriteBytes = 4096;
const char* const kEnd = "\n]\n";

void warn(const std::string& path, const std::string& what) {
  std::fprintf(stderr, "compat_hvd: warning: timeline '%s': %s. The job goes on.\n", path.c_str(), what.c_str());
}

bool write_all(int descriptor, const std::string& text, size_t at) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t count = pwrite(descriptor, text.data() + done, text.size() - done, static_cast<off_t>(at + done));
    if (count > 0) {
      done += static_cast<size_t>(count);
    } else if (count == 0 || errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::unique_ptr<TimelineFile> TimelineFile::open(const std::string& path, const std::string& first, size_t limit) {
  // Without O_NONBLOCK a named pipe would be waited for.
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0666);
  if (descriptor < 0) {
    warn(path, std::string("cannot be opened for writing: ") + std::strerror(errno));
    return nullptr;
  }
  std::unique_ptr<TimelineFile> file(new TimelineFile(path, descriptor, limit));
  if (!file->write("[\n" + first)) return nullptr;
  file->thread_ = start_thread([raw = file.get()] { raw->run(); });
  return file;
}

TimelineFile::TimelineFile(std::string path, int descriptor, size_t limit)
    : path_(std::move(path)), descriptor_(descriptor), limit_(limit) {}

TimelineFile::~TimelineFile() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
  close(descriptor_);
}

void TimelineFile::append(const std::string& element) {
  bool first;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (failed_) return;
    first = waiting_.empty();
    waiting_ += ",\n";
    waiting_ += element;
  }
  if (first) changed_.notify_one();
}

bool TimelineFile::crowded() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return failed_ || waiting_.size() + in_writing_ > limit_;
}

bool TimelineFile::is_at(const std::string& path) const {
  struct stat own, other;
  return fstat(descriptor_, &own) == 0 && stat(path.c_str(), &other) == 0 && own.st_dev == other.st_dev &&
         own.st_ino == other.st_ino;
}

// ---- The thread ----

void TimelineFile::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return closing_ || !waiting_.empty(); });
    changed_.wait_for(lock, kInterval, [this] { return closing_; });
    std::string batch;
    batch.swap(waiting_);
    if (batch.empty()) return;
    in_writing_ = batch.size();
    lock.unlock();
    const bool written = write(batch);
    lock.lock();
    in_writing_ = 0;
    if (written) continue;
    failed_ = true;
    waiting_.clear();
    return;
  }
}

// Writes elements a part at a time, each part ending where an element ends. Blanks behind the closing bracket come
// first: then there is room on the disk, and the write that matters is as short as it can be.
bool TimelineFile::write(const std::string& elements) {
  for (size_t at = 0; at < elements.size();) {
    size_t next = elements.size();
    if (next - at > kWriteBytes) {
      next = elements.rfind(",\n", at + kWriteBytes);
      if (next <= at) next = std::min(elements.find(",\n", at + kWriteBytes), elements.size());
    }
    const bool room = end_ == 0 || write_all(descriptor_, std::string(next - at, ' '), end_ + std::strlen(kEnd));
    if (!room || !write_all(descriptor_, elements.substr(at, next - at) + kEnd, end_)) return give_up(), false;
    end_ += next - at;
    at = next;
  }
  return true;
}

// What was written before stays an array.
void TimelineFile::give_up() {
  const std::string reason = std::strerror(errno);
  const bool closed = end_ > 0 && write_all(descriptor_, kEnd, end_) &&
                      ftruncate(descriptor_, static_cast<off_t>(end_ + std::strlen(kEnd))) == 0;
  warn(path_, "cannot be written: " + reason + (closed ? "; it ends here" : ""));
}

}  // namespace compat_hvd
