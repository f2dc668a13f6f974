// Errors and departures: one rank's error is every rank's, at its submission, and the job goes on.
#include <numeric>

#include "world.h"

using namespace compat_hvd;

namespace {

const std::vector<std::vector<int>> kSplits = {{2}, {1, 1}, {3}, {1, 2}, {2, 2}, {1, 1, 1, 1}};

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void good_round(World* world, const std::string& name) {
  std::vector<std::shared_ptr<Outcome>> all;
  for (int rank = 0; rank < world->size(); ++rank) {
    all.push_back(world->submit(rank, sum_of(name), std::vector<float>{static_cast<float>(rank + 1)}));
  }
  CHECK(world->run_all(all));
  for (const auto& outcome : all) {
    CHECK(outcome->status.ok());
    CHECK(outcome->values<float>()[0] == static_cast<float>(world->size() * (world->size() + 1) / 2));
  }
}

// The last rank sends what `spoil` makes of the request.
void mismatch(const std::function<void(Request*)>& prepare, const std::function<void(Request*)>& spoil, Code code,
              const std::string& expected) {
  for (const auto& split : kSplits) {
    World world({split, 256, 1, {}, {}});
    const int last = world.size() - 1;
    for (int round = 0; round < 2; ++round) {
      std::vector<std::shared_ptr<Outcome>> all;
      for (int rank = 0; rank <= last; ++rank) {
        Request request = sum_of("bad");
        request.shape = {6, 2};
        prepare(&request);
        if (rank == last) spoil(&request);
        all.push_back(world.submit(rank, request, std::vector<double>(12, 1.0)));
      }
      CHECK(world.run_all(all));
      for (const auto& outcome : all) {
        CHECK(outcome->status.code == code);
        CHECK(contains(outcome->status.message, "'bad'"));
        CHECK(contains(outcome->status.message, expected));
      }
      CHECK(contains(all[0]->status.message, "rank " + std::to_string(last)) || code == Code::kInvalidArgument);
      good_round(&world, "bad");
    }
  }
}

void mismatches() {
  const auto allreduce = [](Request*) {};
  const auto broadcast = [](Request* r) { r->collective = Collective::kBroadcast, r->root = 0; };
  const auto allgather = [](Request* r) { r->collective = Collective::kAllgather; };
  const Code code = Code::kFailedPrecondition;
  mismatch(allreduce, [](Request* r) { r->shape = {2, 6}; }, code, "[2, 6]");
  mismatch(allreduce, [](Request* r) { r->dtype = DataType::kFloat64; }, code, "float64");
  mismatch(allreduce, [](Request* r) { r->op = ReduceOp::kMax; }, code, "Max");
  mismatch(allreduce, [](Request* r) { r->postscale = 0.5; }, code, "factors (1, 0.5)");
  mismatch(allreduce, [](Request* r) { r->collective = Collective::kAllgather; }, code, "allgather");
  mismatch(broadcast, [](Request* r) { r->root = 1; }, code, "root rank 1");
  mismatch(broadcast, [](Request* r) { r->shape = {3}; }, code, "[3]");
  mismatch(allgather, [](Request* r) { r->shape = {6, 3}; }, code, "[?, 3]");
  mismatch([](Request* r) { r->collective = Collective::kBroadcast, r->root = 77; }, [](Request*) {},
           Code::kInvalidArgument, "root rank 77");
  mismatch([](Request* r) { r->op = static_cast<ReduceOp>(6); }, [](Request*) {}, Code::kInvalidArgument,
           "reduce op 6");
  mismatch(allreduce, [](Request* r) { r->op = ReduceOp::kAdasum; }, code, "Adasum");
}

// A local error on one rank: the others get it when they come, however late, and only once.
void local_error_reaches_late_ranks() {
  for (const auto& split : kSplits) {
    World world({split, 256, 1, {}, {}});
    good_round(&world, "x");
    Request request = sum_of("x");
    request.error = Status::invalid_argument("splits are wrong on rank 1");
    auto failed = world.submit(1, request, std::vector<float>{1.0f});
    CHECK(world.run_all({failed}));
    CHECK(contains(failed->status.message, "splits are wrong"));
    for (int rank = 0; rank < world.size(); ++rank) {
      if (rank == 1) continue;
      auto late = world.submit(rank, sum_of("x"), std::vector<float>{1.0f});
      CHECK(world.run_all({late}));
      CHECK(late->status.code == Code::kInvalidArgument);
      CHECK(contains(late->status.message, "splits are wrong"));
    }
    good_round(&world, "x");
  }
}

void duplicate_names() {
  for (const auto& split : kSplits) {
    World world({split, 256, 4, {}, {}});
    for (int round = 0; round < 2; ++round) {
      std::vector<std::shared_ptr<Outcome>> all;
      for (int rank = 0; rank < world.size(); ++rank) {
        for (int thread = 0; thread < 2; ++thread) {
          all.push_back(world.submit(rank, sum_of("twice"), std::vector<float>{static_cast<float>(thread)}));
        }
      }
      CHECK(world.run_all(all));
      for (const auto& outcome : all) {
        CHECK(outcome->status.code == Code::kInvalidArgument);
        CHECK(contains(outcome->status.message, "'twice'"));
      }
      good_round(&world, "twice");
    }
  }
}

// Groups of different sizes: an error at once, on every rank, for every tensor, and the next round is as always.
void groups_of_different_sizes() {
  for (const auto& split : kSplits) {
    for (int odd = 0; odd < 2; ++odd) {
      World world({split, 256, 7, {}, {}});
      const auto submit = [&](int rank, int size, std::vector<std::shared_ptr<Outcome>>* all) {
        std::vector<int> order(size);
        std::iota(order.begin(), order.end(), 1);
        std::shuffle(order.begin(), order.end(), world.random());
        for (int member : order) {
          Request request = sum_of("g_" + std::to_string(member) + "of" + std::to_string(size));
          request.group_member = member;
          request.group_size = size;
          all->push_back(world.submit(rank, request, std::vector<float>{1.0f}));
        }
      };
      for (int round = 0; round < 4; ++round) {
        std::vector<std::shared_ptr<Outcome>> all;
        for (int rank = 0; rank < world.size(); ++rank) {
          submit(rank, round % 2 ? 3 : rank == world.size() - 1 ? 2 + 2 * odd : 3, &all);
          if (round > 1) world.run([] { return false; });
        }
        CHECK(world.run_all(all));
        for (const auto& outcome : all) {
          if (round % 2) {
            CHECK(outcome->status.ok() && outcome->values<float>()[0] == static_cast<float>(world.size()));
          } else {
            CHECK(outcome->status.code == Code::kFailedPrecondition);
            CHECK(contains(outcome->status.message, "a group of 3"));
            CHECK(contains(outcome->status.message, "rank " + std::to_string(world.size() - 1)));
          }
        }
      }
    }
  }
}

void not_a_member() {
  World world({{1, 2}, 256, 1, {}, {{0, 1}}});
  auto outsider = world.submit(2, sum_of("x", DataType::kFloat32, 1), std::vector<float>{1.0f});
  auto unknown = world.submit(0, sum_of("x", DataType::kFloat32, 9), std::vector<float>{1.0f});
  CHECK(world.run_all({outsider, unknown}));
  CHECK(outsider->status.code == Code::kInvalidArgument &&
        contains(outsider->status.message, "rank 2 is not a member"));
  CHECK(unknown->status.code == Code::kInvalidArgument && contains(unknown->status.message, "does not exist"));
  good_round(&world, "x");
}

bool all_stopped(World* world) {
  for (int rank = 0; rank < world->size(); ++rank) {
    if (!world->engine(rank).stopped()) return false;
  }
  return true;
}

// One rank leaves: what waits for it fails and names it, what does not goes on, and all end when all have left.
void goodbye() {
  for (const auto& split : kSplits) {
    World world({split, 256, 2, {}, {{0, 1}}});
    const int last = world.size() - 1;
    good_round(&world, "x");
    auto waiting = world.submit(0, sum_of("x"), std::vector<float>{1.0f});
    CHECK(!world.run_all({waiting}));
    world.engine(last).goodbye();
    CHECK(world.run_all({waiting}));
    CHECK(waiting->status.code == Code::kUnknown);
    CHECK(contains(waiting->status.message, "rank " + std::to_string(last)));
    CHECK(contains(waiting->status.message, "after 1 collectives"));
    auto later = world.submit(0, sum_of("y"), std::vector<float>{1.0f});
    CHECK(world.run_all({later}));
    CHECK(later->status.code == Code::kUnknown);
    if (world.size() > 2) {
      auto a = world.submit(0, sum_of("z", DataType::kFloat32, 1), std::vector<float>{1.0f});
      auto b = world.submit(1, sum_of("z", DataType::kFloat32, 1), std::vector<float>{1.0f});
      CHECK(world.run_all({a, b}));
      CHECK(a->status.ok() && a->values<float>()[0] == 2.0f);
    }
    auto refused = world.submit(last, sum_of("x"), std::vector<float>{1.0f});
    CHECK(refused->done && refused->status.code == Code::kUnknown);
    CHECK(!world.run([&] { return world.engine(last).stopped(); }));
    for (int rank = 0; rank < last; ++rank) world.engine(rank).goodbye();
    CHECK(world.run([&] { return all_stopped(&world); }));
    for (int rank = 0; rank <= last; ++rank) CHECK(world.mover(rank).receives() == 0);  // MPI could be finalised now
  }
}

// A rank may leave while its last collective is still being executed.
void goodbye_while_executing() {
  for (const auto& split : kSplits) {
    for (unsigned seed = 1; seed < 30; ++seed) {
      World world({split, 64, seed, {}, {}});
      std::vector<std::shared_ptr<Outcome>> all;
      for (int rank = 0; rank < world.size(); ++rank) {
        all.push_back(world.submit(rank, sum_of("x"), std::vector<float>(500, 1.0f)));
      }
      for (int rank = 0; rank < world.size(); ++rank) {
        world.run([&] { return all[rank]->done; });
        world.engine(rank).goodbye();
      }
      CHECK(world.run([&] { return all_stopped(&world); }));
      for (const auto& outcome : all) CHECK(outcome->values<float>() == std::vector<float>(500, world.size()));
    }
  }
}

void failure() {
  for (const auto& split : kSplits) {
    World world({split, 256, 1, {}, {}});
    auto waiting = world.submit(0, sum_of("x"), std::vector<float>{1.0f});
    world.engine(1).fail("ended because of an uncaught exception");
    CHECK(world.run([&] {
      for (int rank = 0; rank < world.size(); ++rank) {
        if (!world.engine(rank).has_fatal()) return false;
      }
      return true;
    }));
    CHECK(waiting->done && waiting->status.code == Code::kUnknown);
    CHECK(contains(waiting->status.message, "rank 1 ended because of an uncaught exception"));
    auto later = world.submit(0, sum_of("y"), std::vector<float>{1.0f});
    CHECK(later->done && later->status.code == Code::kUnknown);
  }
}

// A dead rank is noticed although nobody waits for it.
void death(const std::vector<int>& split, int victim) {
  World world({split, 256, 1, {}, {}});
  good_round(&world, "x");
  world.node_of(victim).dead_.insert(victim);
  const auto everybody_knows = [&] {
    world.advance(50000000);
    for (int rank = 0; rank < world.size(); ++rank) {
      if (rank != victim && !world.engine(rank).has_fatal()) return false;
    }
    return true;
  };
  CHECK(world.run(everybody_knows, {}, victim));
  for (int rank = 0; rank < world.size(); ++rank) {
    if (rank != victim) CHECK(contains(world.engine(rank).fatal().message, "rank"));
  }
}

void deaths() {
  death({2}, 1);
  death({2}, 0);
  death({3}, 0);
  death({2, 2}, 3);
  death({2, 2}, 1);
  death({2, 2}, 2);     // another node's leader: its node notices at once, the others by its silence
  death({2, 2}, 0);     // the coordinator
  death({1, 1, 1}, 2);  // nobody shares memory with it
}

}  // namespace

int main(int argc, char** argv) {
  return run_cases(argc, argv,
                   {{"mismatches", mismatches},
                    {"local_error_reaches_late_ranks", local_error_reaches_late_ranks},
                    {"duplicate_names", duplicate_names},
                    {"groups_of_different_sizes", groups_of_different_sizes},
                    {"not_a_member", not_a_member},
                    {"goodbye", goodbye},
                    {"goodbye_while_executing", goodbye_while_executing},
                    {"failure", failure},
                    {"deaths", deaths}});
}
