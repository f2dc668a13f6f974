#include "runtime.h"

#include <sched.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <chrono>

#include "completion.h"
#include "futex.h"
#include "thread.h"

namespace compat_hvd {
namespace {

constexpr int64_t kMicrosecond = 1000, kMillisecond = 1000000, kSecond = 1000000000;
// How long a worker with something pending looks without sleeping.
constexpr int64_t kSpinTime = 50 * kMicrosecond;
// After a fatal error, time for Python to print what it knows.
constexpr int64_t kGrace = 3 * kSecond;
// MPI_Abort may hang; the process ends all the same.
constexpr int64_t kAbortLimit = 5 * kSecond;

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int64_t clock_time(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return time.tv_sec * kSecond + time.tv_nsec;
}

int usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Never destroyed: kernels may still run while the process ends.
std::shared_ptr<Runtime>& slot() {
  static auto* runtime = new std::shared_ptr<Runtime>;
  return *runtime;
}
std::atomic<pid_t> owner{0};

EngineOptions options_of(const RuntimeConfig& config) {
  EngineOptions options;
  options.coordinator = config.coordinator;
  options.now = now;
  options.usage = [] { return clock_time(CLOCK_PROCESS_CPUTIME_ID) - clock_time(CLOCK_THREAD_CPUTIME_ID); };
  options.complete = [](std::unique_ptr<Entry> entry, const Status& status) {
    Completion::instance().post(std::move(entry), status);
  };
  options.process_sets = config.process_sets;
  return options;
}

}  // namespace

std::shared_ptr<Runtime> Runtime::current() {
  if (owner.load(std::memory_order_acquire) != getpid()) return nullptr;
  return std::atomic_load(&slot());
}

void Runtime::start(RuntimeConfig config, std::unique_ptr<SharedNodeMemory> memory) {
  auto runtime = std::make_shared<Runtime>(std::move(config), std::move(memory));
  if (!runtime->config_.timeline.path.empty()) runtime->start_timeline(runtime->config_.timeline);
  // The worker keeps itself alive: a kernel may hold the last other reference.
  runtime->worker_ = start_thread([runtime] { runtime->work(); });
  std::atomic_store(&slot(), runtime);
  owner.store(getpid(), std::memory_order_release);
}

Runtime::Runtime(RuntimeConfig config, std::unique_ptr<SharedNodeMemory> memory)
    : config_(std::move(config)),
      memory_(std::move(memory)),
      mover_(config_.mpi),
      engine_(Topology(config_.rank, config_.node_of), memory_.get(), &mover_, options_of(config_)),
      own_(memory_->of(config_.rank).header()),
      pid_(getpid()) {
  const Topology& topology = engine_.topology();
  crowded_ = static_cast<int>(topology.ranks_of_node(topology.node()).size()) > usable_cores();
}

// ---- The worker ----

void Runtime::work() {
  prctl(PR_SET_NAME, "compat_hvd");
  prctl(PR_SET_TIMERSLACK, 1);
  pthread_mutex_lock(&own_.alive);
  own_.started.store(1, std::memory_order_release);
  while (!engine_.stopped()) {
    try {
      if (engine_.step()) {
        idle_since_ = 0;
      } else {
        rest();
      }
    } catch (const std::exception& error) {
      if (engine_.has_fatal()) abort();
      engine_.panic(error.what());
    }
    if (engine_.has_fatal()) attend_to_fatal();
  }
  own_.started.store(0, std::memory_order_release);
  pthread_mutex_unlock(&own_.alive);
}

// Looks again for a short while when something is pending and a core is free for it, then sleeps.
void Runtime::rest() {
  const int64_t time = now();
  if (idle_since_ == 0) idle_since_ = time;
  if (engine_.pending() > 0 && time - idle_since_ < kSpinTime) {
    if (crowded_) {
      sched_yield();
    } else {
      relax();
    }
    return;
  }
  sleep();
}

void Runtime::sleep() {
  const uint32_t seen = own_.wake.load(std::memory_order_relaxed);
  own_.sleeping.store(1, std::memory_order_relaxed);
  // Pairs with NodeMemory::wake: one of the two sees the other's store.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (engine_.step()) {
    idle_since_ = 0;
  } else {
    futex_wait(&own_.wake, seen, sleep_time());
  }
  own_.sleeping.store(0, std::memory_order_relaxed);
}

int64_t Runtime::sleep_time() const {
  const bool backlog = Completion::instance().relieve();
  if (engine_.must_poll()) return engine_.pending() > 0 ? 50 * kMicrosecond : kMillisecond;
  return backlog ? 5 * kMillisecond : 100 * kMillisecond;
}

void Runtime::attend_to_fatal() {
  if (fatal_since_ == 0) {
    fatal_since_ = now();
    const int leader = engine_.topology().leader();
    if (leader == config_.rank || memory_->dead(leader)) {
      fprintf(stderr, "compat_hvd: rank %d: %s\n", config_.rank, engine_.fatal().message.c_str());
    }
  }
  if (now() - fatal_since_ > kGrace) abort();
}

void Runtime::abort() {
  start_thread([] {
    std::this_thread::sleep_for(std::chrono::nanoseconds(kAbortLimit));
    _exit(1);
  }).detach();
  stop_timeline();
  if (config_.mpi.abort) config_.mpi.abort(config_.mpi.comm, 1);
  _exit(1);
}

// ---- The ends ----

void Runtime::goodbye() {
  if (pid_ != getpid()) return;
  engine_.goodbye();
  if (worker_.joinable()) worker_.join();
  stop_timeline();
  owner.store(0, std::memory_order_release);
  std::atomic_store(&slot(), std::shared_ptr<Runtime>());
}

void Runtime::fail(const std::string& text) {
  engine_.fail(text);
  // The coordinator's answer shows that the others have been told.
  const int64_t since = now();
  while (!engine_.has_fatal() && now() - since < kSecond) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  abort();
}

}  // namespace compat_hvd
