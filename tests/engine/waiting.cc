// Stalls and mutual waits.
#include "world.h"

using namespace compat_hvd;

namespace {

constexpr int64_t kSecond = 1000000000;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Lets time pass in small steps; `busy` ranks use half a core of it.
void pass(World* world, int64_t seconds, const std::vector<int>& busy = {}) {
  for (int64_t i = 0; i < seconds * 4; ++i) {
    world->advance(kSecond / 4);
    for (int rank : busy) world->usage(rank) += kSecond / 8;
    for (int k = 0; k < 40; ++k) {
      for (int rank = 0; rank < world->size(); ++rank) world->engine(rank).step();
    }
  }
}

std::shared_ptr<Outcome> one(World* world, int rank, const std::string& name, int set = 0) {
  return world->submit(rank, sum_of(name, DataType::kFloat32, set), std::vector<float>{1.0f});
}

void groups() {
  const auto group = [](const std::vector<Waiting>& waiting) { return mutually_waiting(waiting); };
  CHECK(group({}) == std::set<int>{});
  CHECK(group({{"a", {0}, {1}, 0}}) == std::set<int>{});  // 1 has nothing pending: it is late
  CHECK((group({{"a", {0}, {1}, 0}, {"b", {1}, {0}, 0}}) == std::set<int>{0, 1}));
  // 2 may come to "b" and free 1, which frees 0.
  CHECK(group({{"a", {0}, {1}, 0}, {"b", {1}, {2}, 0}}) == std::set<int>{});
  CHECK((group({{"a", {0}, {1}, 0}, {"b", {1}, {2}, 0}, {"c", {2}, {0}, 0}}) == std::set<int>{0, 1, 2}));
  // 3 waits as well, but not for each other's sake only.
  CHECK((group({{"a", {0}, {1}, 0}, {"b", {1}, {0}, 0}, {"c", {3}, {4}, 0}}) == std::set<int>{0, 1}));
}

void stall_limit() {
  CoordinatorOptions options;
  options.stall = {5 * kSecond, 20 * kSecond, 0};
  World world({{2, 1}, 256, 1, options, {}});
  world.advance(1000 * kSecond);  // clocks do not start at zero
  auto waiting = one(&world, 0, "x");
  pass(&world, 19);
  CHECK(!waiting->done);
  pass(&world, 3);
  CHECK(waiting->done && waiting->status.code == Code::kUnknown);
  CHECK(contains(waiting->status.message, "'x'") && contains(waiting->status.message, "ranks 1, 2"));
  for (int rank : {1, 2}) {
    auto late = one(&world, rank, "x");
    CHECK(world.run_all({late}));
    CHECK(late->status.code == Code::kUnknown);
  }
  std::vector<std::shared_ptr<Outcome>> all;
  for (int rank = 0; rank < 3; ++rank) all.push_back(one(&world, rank, "x"));
  CHECK(world.run_all(all));
  CHECK(all[0]->status.ok());
}

void mutual_wait() {
  World world({{2, 1}, 256, 1, {}, {}});
  auto a = one(&world, 0, "a");
  auto a2 = one(&world, 2, "a");
  auto b = one(&world, 1, "b");
  pass(&world, 24);
  CHECK(!a->done && !b->done);
  pass(&world, 4);
  for (const auto& outcome : {a, a2, b}) {
    CHECK(outcome->done && outcome->status.code == Code::kUnknown);
    CHECK(contains(outcome->status.message, "wait for each other"));
  }
}

// Two healthy ranks compute for a minute between collectives that they run in opposite orders.
void computing_is_no_deadlock() {
  for (const std::vector<int>& busy : std::vector<std::vector<int>>{{0, 1}, {0}, {1}}) {
    World world({{2}, 256, 1, {}, {}});
    auto a0 = one(&world, 0, "a"), b1 = one(&world, 1, "b");
    pass(&world, 60, busy);
    CHECK(!a0->done && !b1->done);
    auto b0 = one(&world, 0, "b"), a1 = one(&world, 1, "a");
    CHECK(world.run_all({a0, a1, b0, b1}));
    for (const auto& outcome : {a0, a1, b0, b1}) CHECK(outcome->status.ok());
  }
}

// A rank that evaluates or saves has nothing pending; the others wait for it as long as it takes.
void late_is_no_deadlock() {
  World world({{3}, 256, 1, {}, {}});
  auto first = one(&world, 1, "x"), second = one(&world, 2, "x");
  pass(&world, 200);
  CHECK(!first->done && !second->done);
  auto last = one(&world, 0, "x");
  CHECK(world.run_all({first, second, last}));
  CHECK(first->status.ok());
}

}  // namespace

int main(int argc, char** argv) {
  return run_cases(argc, argv,
                   {{"groups", groups},
                    {"stall_limit", stall_limit},
                    {"mutual_wait", mutual_wait},
                    {"computing_is_no_deadlock", computing_is_no_deadlock},
                    {"late_is_no_deadlock", late_is_no_deadlock}});
}
