// Alltoall, reducescatter, join, and process sets that come and go.
#include <numeric>

#include "world.h"

using namespace compat_hvd;

namespace {

const std::vector<std::vector<int>> kSplits = {{1}, {2},    {1, 1}, {3},    {1, 2},
                                               {7}, {3, 4}, {2, 2}, {1, 3}, {1, 1, 1, 1}};

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Rank r sends (r + 2k + round) % 3 * 5 rows of two columns to rank k, with values that name sender, receiver and row.
void alltoall() {
  for (const auto& split : kSplits) {
    World world({split, 128, 3, {}, {}});
    const int n = world.size();
    for (int round = 0; round < 3; ++round) {
      const auto rows = [&](int from, int to) { return (from + 2 * to + round) % 3 * 5; };
      std::vector<std::shared_ptr<Outcome>> all;
      for (int rank = 0; rank < n; ++rank) {
        Request request = sum_of("a", DataType::kInt32);
        request.collective = Collective::kAlltoall;
        std::vector<int32_t> values;
        for (int to = 0; to < n; ++to) {
          request.sizes.push_back(rows(rank, to));
          for (int i = 0; i < 2 * rows(rank, to); ++i) values.push_back(rank * 10000 + to * 100 + i);
        }
        request.shape = {static_cast<int64_t>(values.size()) / 2, 2};
        all.push_back(world.submit(rank, request, values));
      }
      CHECK(world.run_all(all));
      for (int rank = 0; rank < n; ++rank) {
        CHECK(all[rank]->status.ok());
        std::vector<int32_t> expected;
        std::vector<int64_t> received;
        for (int from = 0; from < n; ++from) {
          received.push_back(rows(from, rank));
          for (int i = 0; i < 2 * rows(from, rank); ++i) expected.push_back(from * 10000 + rank * 100 + i);
        }
        CHECK(all[rank]->values<int32_t>() == expected);
        CHECK(all[rank]->results == received);
      }
    }
  }
}

void equal_splits_and_wrong_ones() {
  World world({{2, 1}, 128, 3, {}, {}});
  Request request = sum_of("a", DataType::kInt32);
  request.collective = Collective::kAlltoall;
  std::vector<std::shared_ptr<Outcome>> all;
  for (int rank = 0; rank < 3; ++rank)
    all.push_back(world.submit(rank, request, std::vector<int32_t>{rank, rank, rank}));
  CHECK(world.run_all(all));
  for (const auto& outcome : all) CHECK((outcome->values<int32_t>() == std::vector<int32_t>{0, 1, 2}));
  for (const std::vector<int64_t>& wrong :
       std::vector<std::vector<int64_t>>{{1, 1}, {1, 1, 2}, {0, 1, 1}, {-1, 2, 2}}) {
    all.clear();
    for (int rank = 0; rank < 3; ++rank) {
      request.sizes = rank == 1 ? wrong : std::vector<int64_t>{1, 1, 1};
      all.push_back(world.submit(rank, request, std::vector<int32_t>{rank, rank, rank}));
    }
    CHECK(world.run_all(all));
    for (const auto& outcome : all) CHECK(outcome->status.code == Code::kInvalidArgument);
  }
}

void reducescatter() {
  for (const auto& split : kSplits) {
    World world({split, 128, 4, {}, {}});
    const int n = world.size();
    for (int64_t rows : {0, 1, 5, 70}) {
      std::vector<std::shared_ptr<Outcome>> all;
      for (int rank = 0; rank < n; ++rank) {
        for (int t : {0, 1}) {  // two, to be fused
          Request request = sum_of("s" + std::to_string(t), DataType::kInt32);
          request.collective = Collective::kReducescatter;
          request.shape = {rows, 3};
          std::vector<int32_t> values(rows * 3);
          std::iota(values.begin(), values.end(), rank * 1000 + t);
          all.push_back(world.submit(rank, request, values));
        }
      }
      CHECK(world.run_all(all));
      for (int rank = 0; rank < n; ++rank) {
        const int64_t extra = rows % n, count = rows / n + (rank < extra ? 1 : 0);
        const int64_t first = rank * (rows / n) + std::min<int64_t>(rank, extra);
        for (int t : {0, 1}) {
          const auto& outcome = all[rank * 2 + t];
          CHECK(outcome->status.ok());
          const std::vector<int32_t> result = outcome->values<int32_t>();
          CHECK(static_cast<int64_t>(result.size()) == count * 3);
          for (size_t i = 0; i < result.size(); ++i) {
            CHECK(result[i] ==
                  static_cast<int32_t>(n * (first * 3 + t + static_cast<int>(i)) + 1000 * n * (n - 1) / 2));
          }
        }
      }
    }
  }
}

std::shared_ptr<Outcome> join(World* world, int rank) {
  Request request = sum_of("join");
  request.collective = Collective::kJoin;
  return world->submit(rank, request, std::vector<int8_t>{});
}

std::shared_ptr<Outcome> reduce(World* world, int rank, const std::string& name, ReduceOp op, int32_t value) {
  Request request = sum_of(name, DataType::kInt32);
  request.op = op;
  return world->submit(rank, request, std::vector<int32_t>(100, value));
}

// Rank r has r + 1 steps; those that are done take no part in sums, minima, products and the divisor of averages.
void joins() {
  for (const auto& split : std::vector<std::vector<int>>{{1}, {2}, {3}, {1, 2}, {2, 2}, {1, 1, 1, 1}}) {
    World world({split, 128, 5, {}, {}});
    const int n = world.size();
    for (int round = 0; round < 3; ++round) {
      std::vector<std::shared_ptr<Outcome>> joined(n);
      for (int step = 0; step <= n; ++step) {
        std::vector<std::shared_ptr<Outcome>> all;
        for (int rank = 0; rank < n; ++rank) {
          if (rank == step - 1) joined[rank] = join(&world, rank);
          if (rank < step) continue;
          all.push_back(reduce(&world, rank, "sum", ReduceOp::kSum, rank + 1));
          all.push_back(reduce(&world, rank, "min", ReduceOp::kMin, rank + 1));
          all.push_back(reduce(&world, rank, "average", ReduceOp::kAverage, 2 * (rank + 1)));
        }
        CHECK(world.run_all(all));
        int32_t sum = 0;
        for (int rank = step; rank < n; ++rank) sum += rank + 1;
        for (size_t k = 0; k < all.size(); ++k) {
          CHECK(all[k]->status.ok());
          const int32_t expected = k % 3 == 0 ? sum : k % 3 == 1 ? step + 1 : 2 * sum / (n - step);
          CHECK(all[k]->values<int32_t>() == std::vector<int32_t>(100, expected));
        }
      }
      CHECK(world.run_all(joined));
      for (const auto& outcome : joined) CHECK(outcome->results == std::vector<int64_t>{n - 1});
    }
  }
}

// Joins of one rank that are in flight at once follow one another, however the others run theirs.
void joins_at_once() {
  for (const auto& split : std::vector<std::vector<int>>{{1}, {2}, {1, 2}, {1, 1, 1, 1}}) {
    World world({split, 128, 5, {}, {}});
    const int last = world.size() - 1;
    std::vector<std::shared_ptr<Outcome>> early, late;
    for (int rank = 0; rank < last; ++rank) {
      for (int k = 0; k < 3; ++k) early.push_back(join(&world, rank));
    }
    for (int k = 0; k < 3; ++k) {
      CHECK(last == 0 || !world.run_all(early));
      auto alone = reduce(&world, last, "sum", ReduceOp::kSum, 5);
      CHECK(world.run_all({alone}));
      CHECK(alone->values<int32_t>() == std::vector<int32_t>(100, 5));
      late.push_back(join(&world, last));
      CHECK(world.run_all({late.back()}));
      CHECK(late.back()->results == std::vector<int64_t>{last});
    }
    CHECK(world.run_all(early));
    for (const auto& outcome : early) CHECK(outcome->status.ok());
  }
}

void only_allreduce_while_joined() {
  World world({{1, 2}, 128, 5, {}, {}});
  auto joined = join(&world, 2);
  CHECK(!world.run_all({joined}));
  Request request = sum_of("g");
  request.collective = Collective::kAllgather;
  request.shape = {1};
  std::vector<std::shared_ptr<Outcome>> all;
  for (int rank : {0, 1}) all.push_back(world.submit(rank, request, std::vector<float>{1.0f}));
  CHECK(world.run_all(all));
  for (const auto& outcome : all) {
    CHECK(outcome->status.code == Code::kFailedPrecondition && contains(outcome->status.message, "rank 2"));
  }
  std::vector<std::shared_ptr<Outcome>> rest{joined, join(&world, 0), join(&world, 1)};
  CHECK(world.run_all(rest));
  all.clear();
  for (int rank : {0, 1, 2}) all.push_back(world.submit(rank, request, std::vector<float>{1.0f}));
  CHECK(world.run_all(all));
  for (const auto& outcome : all) CHECK(outcome->status.ok());
}

std::shared_ptr<Outcome> change_set(World* world, int rank, Collective collective, const std::vector<int64_t>& sizes) {
  Request request = sum_of("process_set");
  request.collective = collective;
  request.sizes = sizes;
  return world->submit(rank, request, std::vector<int8_t>{});
}

std::vector<std::shared_ptr<Outcome>> change_sets(World* world, Collective collective,
                                                  const std::vector<int64_t>& sizes) {
  std::vector<std::shared_ptr<Outcome>> all;
  for (int rank = 0; rank < world->size(); ++rank) all.push_back(change_set(world, rank, collective, sizes));
  CHECK(world->run_all(all));
  return all;
}

void sets_come_and_go() {
  for (const auto& split : std::vector<std::vector<int>>{{3}, {1, 2}, {1, 1, 1}, {2, 2}}) {
    World world({split, 128, 5, {}, {{0, 1}}});
    for (int round = 0; round < 3; ++round) {
      const std::vector<int64_t> ranks = round % 2 ? std::vector<int64_t>{0, 2} : std::vector<int64_t>{1, 2};
      auto added = change_sets(&world, Collective::kAddProcessSet, ranks);
      for (const auto& outcome : added) CHECK(outcome->status.ok() && outcome->results[0] == 2);
      for (const auto& outcome : change_sets(&world, Collective::kAddProcessSet, ranks)) {
        CHECK(outcome->status.code == Code::kInvalidArgument && contains(outcome->status.message, "exists already"));
      }
      for (int step = 0; step < 3; ++step) {
        std::vector<std::shared_ptr<Outcome>> all;
        for (int64_t rank : ranks) {
          all.push_back(
              world.submit(static_cast<int>(rank), sum_of("x", DataType::kInt32, 2), std::vector<int32_t>(50, 7)));
        }
        CHECK(world.run_all(all));
        for (const auto& outcome : all) CHECK(outcome->values<int32_t>() == std::vector<int32_t>(50, 14));
      }
      for (const auto& outcome : change_sets(&world, Collective::kRemoveProcessSet, {2})) CHECK(outcome->status.ok());
      auto gone = world.submit(2, sum_of("x", DataType::kInt32, 2), std::vector<int32_t>{1});
      CHECK(world.run_all({gone}));
      CHECK(gone->status.code == Code::kInvalidArgument && contains(gone->status.message, "does not exist"));
    }
    // Ranks that disagree.
    std::vector<std::shared_ptr<Outcome>> all;
    for (int rank = 0; rank < world.size(); ++rank) {
      all.push_back(change_set(&world, rank, Collective::kAddProcessSet, {0, rank == 1 ? 1 : 2}));
    }
    CHECK(world.run_all(all));
    for (const auto& outcome : all) CHECK(outcome->status.code == Code::kFailedPrecondition);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return run_cases(argc, argv,
                   {{"alltoall", alltoall},
                    {"equal_splits_and_wrong_ones", equal_splits_and_wrong_ones},
                    {"reducescatter", reducescatter},
                    {"joins_at_once", joins_at_once},
                    {"joins", joins},
                    {"only_allreduce_while_joined", only_allreduce_while_joined},
                    {"sets_come_and_go", sets_come_and_go}});
}
