// A file that holds a JSON array whenever it is looked at, written by a thread of its own.
//
// What is appended gathers in memory for a tenth of a second and is then written in one go, over the closing bracket
// and with a new one behind it. So a process that is killed leaves a file that can be read, which lacks the last tenth
// of a second. The system makes no write of several pages a whole, so that a reader may see half of one, for less than
// a microsecond of each tenth of a second. Writing more often would make that likely.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace compat_hvd {

class TimelineFile {
 public:
  // Makes the file, or empties it, and writes `first` as the first elements: JSON texts with ",\n" between them.
  // Returns nullptr after a warning when that is not possible. `limit` is how many bytes may wait for the disk.
  static std::unique_ptr<TimelineFile> open(const std::string& path, const std::string& first, size_t limit);
  // Writes what waits, and returns when the file is complete.
  ~TimelineFile();

  // Never waits for the disk. `element` holds no line break.
  void append(const std::string& element);
  // True when more waits than should: the caller appends only what it must. So memory is bounded.
  bool crowded() const;
  // Whether `path` leads to this file.
  bool is_at(const std::string& path) const;

 private:
  TimelineFile(std::string path, int descriptor, size_t limit);
  void run();
  bool write(const std::string& elements);
  void give_up();

  const std::string path_;
  const int descriptor_;
  const size_t limit_;
  size_t end_ = 0;  // where the closing bracket's line begins

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::string waiting_;    // elements, each behind ",\n"
  size_t in_writing_ = 0;  // bytes that the thread has taken
  bool closing_ = false, failed_ = false;
  std::thread thread_;
};

}  // namespace compat_hvd
