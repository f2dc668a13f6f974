// Threads of the engine take no signals: those belong to Python's main thread.
#pragma once

#include <signal.h>

#include <thread>
#include <utility>

namespace compat_hvd {

template <typename Function>
std::thread start_thread(Function function) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(function));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace compat_hvd
