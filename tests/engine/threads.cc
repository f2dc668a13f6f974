// Each engine on a thread of its own, with others that submit: what the sanitizers for threads look at.
#include <atomic>
#include <thread>

#include "world.h"

using namespace compat_hvd;

namespace {

// Ranks of one node only: the network of the tests is not made for threads.
void run_threads(int ranks, const std::vector<std::vector<int>>& sets) {
  World::Options options;
  options.split = {ranks};
  options.slot_bytes = 256;
  options.process_sets = sets;
  World world(options);
  constexpr int kRounds = 40, kTensors = 6;
  std::atomic<int> running{ranks};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&world, rank] {
      while (!world.engine(rank).stopped()) {
        if (!world.engine(rank).step()) std::this_thread::yield();
      }
    });
    threads.emplace_back([&, rank] {
      for (int round = 0; round < kRounds; ++round) {
        std::atomic<int> left{0};
        std::vector<std::vector<int32_t>> values, results;
        const int all_sets = static_cast<int>(sets.size()) + 1;
        values.reserve(kTensors * all_sets);
        results.reserve(kTensors * all_sets);
        std::vector<int32_t> expected;
        for (int k = 0; k < kTensors * all_sets; ++k) {
          const int set = (k + rank + round) % all_sets, tensor = k / all_sets;
          const ProcessSetPointer members = world.engine(rank).process_sets().find(set);
          if (!members->contains(rank)) continue;
          values.emplace_back(tensor * tensor * 10 + 1, rank + round + set);
          results.emplace_back(values.back().size());
          int32_t sum = 0;
          for (int member : members->ranks) sum += member + round + set;
          expected.push_back(sum);
          auto entry = std::make_unique<Entry>();
          entry->request = sum_of("t" + std::to_string(tensor), DataType::kInt32, set);
          entry->request.shape = {static_cast<int64_t>(values.back().size())};
          entry->input = reinterpret_cast<const char*>(values.back().data());
          entry->output = reinterpret_cast<char*>(results.back().data());
          entry->done = [&left](const Status& status) {
            CHECK(status.ok());
            left.fetch_sub(1, std::memory_order_release);
          };
          left.fetch_add(1, std::memory_order_relaxed);
          world.engine(rank).submit(std::move(entry));
        }
        while (left.load(std::memory_order_acquire) > 0) std::this_thread::yield();
        for (size_t k = 0; k < results.size(); ++k) {
          CHECK(results[k] == std::vector<int32_t>(results[k].size(), expected[k]));
        }
      }
      world.engine(rank).goodbye();
      --running;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(running == 0);
}

void world_only() { run_threads(2, {}); }
void overlapping_sets() { run_threads(3, {{0, 1}, {1, 2}}); }
void shared_work() { run_threads(5, {{0, 2, 4}}); }

}  // namespace

int main(int argc, char** argv) {
  return run_cases(argc, argv,
                   {{"world_only", world_only}, {"overlapping_sets", overlapping_sets}, {"shared_work", shared_work}});
}
