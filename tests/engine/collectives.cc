// Values: every collective over many shapes of worlds, in random orders of submission and of steps.
#include <algorithm>
#include <limits>
#include <numeric>

#include "../../compat_hvd/csrc/reduce_kernels.h"
#include "world.h"

using namespace compat_hvd;

namespace {

const std::vector<std::vector<int>> kSplits = {{1},       {2},          {1, 1},    {3},      {1, 2},       {7},
                                               {3, 4},    {1, 3, 3},    {2, 2},    {1, 3},   {1, 1, 1, 1}, {5},
                                               {4, 1, 2}, {2, 2, 2, 1}, {1, 1, 1}, {4, 4, 4}};

std::vector<int> shuffled(int count, std::mt19937* random) {
  std::vector<int> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), *random);
  return order;
}

// 40 sums per rank, each rank in its own order, three rounds: the first negotiates, the others use the cache.
void random_orders() {
  for (const auto& split : kSplits) {
    World world({split, 256, static_cast<unsigned>(split.size() * 7 + split[0]), {}, {}});
    const int n = world.size();
    for (int round = 0; round < 3; ++round) {
      std::vector<std::vector<std::shared_ptr<Outcome>>> outcomes(n, std::vector<std::shared_ptr<Outcome>>(40));
      std::vector<std::shared_ptr<Outcome>> all;
      for (int rank = 0; rank < n; ++rank) {
        for (int t : shuffled(40, &world.random())) {
          std::vector<float> values(t * t);
          for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>((rank + 1) * (t + 1) + i + round);
          outcomes[rank][t] = world.submit(rank, sum_of("tensor" + std::to_string(t)), values);
          all.push_back(outcomes[rank][t]);
          if (world.random()() % 8 == 0) world.engine(rank).step();
        }
      }
      CHECK(world.run_all(all));
      for (int rank = 0; rank < n; ++rank) {
        for (int t = 0; t < 40; ++t) {
          CHECK(outcomes[rank][t]->status.ok());
          const std::vector<float> result = outcomes[rank][t]->values<float>();
          CHECK(result.size() == static_cast<size_t>(t * t));
          for (size_t i = 0; i < result.size(); ++i) {
            CHECK(result[i] == static_cast<float>((t + 1) * n * (n + 1) / 2 + n * (static_cast<int>(i) + round)));
          }
        }
      }
    }
  }
}

template <typename T>
void check_op(DataType dtype, ReduceOp op, const std::vector<int>& split, size_t count) {
  World world({split, 256, 3, {}, {}});
  const int n = world.size();
  std::vector<std::shared_ptr<Outcome>> all;
  for (int rank = 0; rank < n; ++rank) {
    Request request = sum_of("x", dtype);
    request.op = op;
    std::vector<T> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = static_cast<T>((rank + static_cast<int>(i)) % 3 + 1);
    all.push_back(world.submit(rank, request, values));
  }
  CHECK(world.run_all(all));
  for (int rank = 0; rank < n; ++rank) {
    CHECK(all[rank]->status.ok());
    const std::vector<T> result = all[rank]->values<T>();
    for (size_t i = 0; i < count; ++i) {
      int64_t sum = 0, product = 1, low = 3, high = 1;
      for (int r = 0; r < n; ++r) {
        const int64_t value = (r + static_cast<int>(i)) % 3 + 1;
        sum += value, product *= value, low = std::min(low, value), high = std::max(high, value);
      }
      T expected = static_cast<T>(sum);
      if (op == ReduceOp::kAverage) expected = static_cast<T>(static_cast<T>(sum) / static_cast<T>(n));
      if (op == ReduceOp::kProduct) expected = static_cast<T>(product);
      if (op == ReduceOp::kMin) expected = static_cast<T>(low);
      if (op == ReduceOp::kMax) expected = static_cast<T>(high);
      CHECK(result[i] == expected);
    }
  }
}

void all_ops() {
  for (const auto& split : kSplits) {
    for (ReduceOp op : {ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      for (size_t count : {0, 1, 2, 63, 1000}) {
        check_op<float>(DataType::kFloat32, op, split, count);
        check_op<double>(DataType::kFloat64, op, split, count);
        check_op<int32_t>(DataType::kInt32, op, split, count);
        check_op<int64_t>(DataType::kInt64, op, split, count);
        check_op<int8_t>(DataType::kInt8, op, split, count);
        check_op<uint8_t>(DataType::kUint8, op, split, count);
      }
    }
  }
}

// The sum of the members' values does not fit the type; their average does.
template <typename T>
void check_extreme_average(DataType dtype) {
  for (const auto& split : kSplits) {
    for (const T extreme : {std::numeric_limits<T>::max(), std::numeric_limits<T>::min()}) {
      World world({split, 256, 3, {}, {}});
      std::vector<std::shared_ptr<Outcome>> all;
      for (int rank = 0; rank < world.size(); ++rank) {
        Request request = sum_of("x", dtype);
        request.op = ReduceOp::kAverage;
        all.push_back(world.submit(rank, request, std::vector<T>(100, extreme)));
      }
      CHECK(world.run_all(all));
      for (const auto& outcome : all) CHECK(outcome->values<T>() == std::vector<T>(100, extreme));
    }
  }
}

void averages_do_not_overflow() {
  check_extreme_average<int8_t>(DataType::kInt8);
  check_extreme_average<uint8_t>(DataType::kUint8);
  check_extreme_average<int32_t>(DataType::kInt32);
  check_extreme_average<int64_t>(DataType::kInt64);
}

// The result of one sum of values that rounding makes depend on the order, with extra traffic to change fusion.
std::vector<float> sum_with_traffic(unsigned seed, bool fused) {
  World world({{2, 3}, 256, seed, {fused ? 1u << 20 : 0u, 1024, {}}, {}});
  std::vector<std::shared_ptr<Outcome>> all, mine;
  for (int rank : shuffled(world.size(), &world.random())) {
    for (int t : shuffled(10, &world.random())) {
      std::vector<float> values(333);
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = 1.0f / static_cast<float>(1 + rank * 37 + t + static_cast<int>(i));
      all.push_back(world.submit(rank, sum_of("t" + std::to_string(t)), values));
      if (t == 4) mine.push_back(all.back());
      if (world.random()() % 2) world.engine(rank).step();
    }
  }
  CHECK(world.run_all(all));
  for (const auto& outcome : mine) CHECK(outcome->output == mine[0]->output);
  return mine[0]->values<float>();
}

void deterministic() {
  const std::vector<float> expected = sum_with_traffic(1, false);
  for (unsigned seed = 2; seed < 20; ++seed) CHECK(sum_with_traffic(seed, seed % 2) == expected);
}

void broadcasts() {
  for (const auto& split : kSplits) {
    World world({split, 128, 5, {}, {}});
    for (int root = 0; root < world.size(); ++root) {
      std::vector<std::shared_ptr<Outcome>> all;
      for (int rank = 0; rank < world.size(); ++rank) {
        for (size_t count : {0, 1, 17, 700}) {
          Request request = sum_of("b" + std::to_string(count), DataType::kInt32);
          request.collective = Collective::kBroadcast;
          request.root = root;
          std::vector<int32_t> values(count);
          for (size_t i = 0; i < count; ++i) values[i] = static_cast<int32_t>(rank * 1000 + i);
          all.push_back(world.submit(rank, request, values));
        }
      }
      CHECK(world.run_all(all));
      for (const auto& outcome : all) {
        CHECK(outcome->status.ok());
        const std::vector<int32_t> result = outcome->values<int32_t>();
        for (size_t i = 0; i < result.size(); ++i) CHECK(result[i] == static_cast<int32_t>(root * 1000 + i));
      }
    }
  }
}

// Two fused gathers whose row counts change from round to round, with ranks that have none.
void allgathers() {
  for (const auto& split : kSplits) {
    World world({split, 128, 6, {}, {}});
    const int n = world.size();
    for (int round = 0; round < 4; ++round) {
      std::vector<std::shared_ptr<Outcome>> all;
      const auto rows = [&](int rank, int t) { return (rank * 5 + round * 3 + t) % 4 * 9; };
      for (int rank = 0; rank < n; ++rank) {
        for (int t : {0, 1}) {
          Request request = sum_of("g" + std::to_string(t), t ? DataType::kInt64 : DataType::kInt8);
          request.collective = Collective::kAllgather;
          request.shape = {rows(rank, t), 3};
          if (t) {
            all.push_back(world.submit(rank, request, std::vector<int64_t>(rows(rank, t) * 3, rank + 100)));
          } else {
            all.push_back(
                world.submit(rank, request, std::vector<int8_t>(rows(rank, t) * 3, static_cast<int8_t>(rank))));
          }
        }
      }
      CHECK(world.run_all(all));
      for (size_t k = 0; k < all.size(); ++k) {
        CHECK(all[k]->status.ok());
        const int t = static_cast<int>(k % 2);
        std::vector<int64_t> expected;
        for (int rank = 0; rank < n; ++rank) expected.insert(expected.end(), rows(rank, t) * 3, rank + (t ? 100 : 0));
        if (t) {
          CHECK(all[k]->values<int64_t>() == expected);
        } else {
          const std::vector<int8_t> result = all[k]->values<int8_t>();
          CHECK(std::vector<int64_t>(result.begin(), result.end()) == expected);
        }
      }
    }
  }
}

// A slot must not be refilled before a slow reader of another set has read it.
void overlapping_sets() {
  for (const auto& split : std::vector<std::vector<int>>{{3}, {4}, {1, 2}, {2, 2}, {1, 1, 1}}) {
    for (int delayed = 0; delayed < 3; ++delayed) {
      World world({split, 128, static_cast<unsigned>(delayed + 1), {}, {{0, 1}, {1, 2}, {0, 1, 2}}});
      for (int round = 0; round < 20; ++round) {
        std::vector<std::shared_ptr<Outcome>> all;
        std::vector<std::pair<int, int>> what;
        for (int rank = 0; rank < 3; ++rank) {
          std::vector<int> sets = {1, 2, 3};
          if (rank % 2) std::reverse(sets.begin(), sets.end());  // opposite orders
          for (int set : sets) {
            if (!world.engine(rank).process_sets().find(set)->contains(rank)) continue;
            const std::vector<int32_t> values(100 + round, rank * 10 + set + round);
            all.push_back(world.submit(rank, sum_of("x", DataType::kInt32, set), values));
            what.push_back({set, rank});
          }
        }
        CHECK(world.run_all(all, {delayed}));
        for (size_t k = 0; k < all.size(); ++k) {
          int32_t expected = 0;
          for (int r : world.engine(0).process_sets().find(what[k].first)->ranks)
            expected += r * 10 + what[k].first + round;
          CHECK(all[k]->values<int32_t>() == std::vector<int32_t>(100 + round, expected));
        }
      }
    }
  }
}

void barriers() {
  World world({{2, 2}, 128, 1, {}, {}});
  Request request = sum_of("barrier");
  request.collective = Collective::kBarrier;
  std::vector<std::shared_ptr<Outcome>> all;
  for (int rank = 0; rank < 3; ++rank) all.push_back(world.submit(rank, request, std::vector<int8_t>{}));
  CHECK(!world.run_all(all));
  all.push_back(world.submit(3, request, std::vector<int8_t>{}));
  CHECK(world.run_all(all));
}

// Far more control traffic than the rings hold.
void long_names() {
  for (const auto& split : std::vector<std::vector<int>>{{3}, {1, 2}}) {
    World world({split, 256, 1, {}, {}});
    std::vector<std::shared_ptr<Outcome>> all;
    for (int t = 0; t < 300; ++t) {
      for (int rank = 0; rank < 3; ++rank) {
        all.push_back(world.submit(rank, sum_of(std::string(1000, 'n') + std::to_string(t)), std::vector<float>{1.0f}));
      }
    }
    const std::string huge(200000, 'h');  // one frame larger than a ring
    for (int rank = 0; rank < 3; ++rank) all.push_back(world.submit(rank, sum_of(huge), std::vector<float>{1.0f}));
    CHECK(world.run_all(all));
    for (const auto& outcome : all) CHECK(outcome->values<float>()[0] == 3.0f);
  }
}

// More names than the cache holds, and shapes that change: ids are revoked while requests with them may be on their
// way.
void cache_turnover() {
  World world({{1, 2}, 256, 9, {1u << 20, 5, {}}, {{0, 2}}});
  for (int round = 0; round < 60; ++round) {
    std::vector<std::shared_ptr<Outcome>> all;
    for (int rank = 0; rank < 3; ++rank) {
      for (int t : shuffled(8, &world.random())) {
        const int set = t % 3 == 0 ? 1 : 0;
        if (set == 1 && rank == 1) continue;
        const std::vector<int32_t> values(t + 1 + (round / 7) % 3, rank + t + round);
        all.push_back(world.submit(rank, sum_of("t" + std::to_string(t), DataType::kInt32, set), values));
      }
    }
    CHECK(world.run_all(all));
    for (const auto& outcome : all) CHECK(outcome->status.ok());
  }
}

// The average of equal integers is that integer, whatever the number of ranks: a product with the reciprocal, rounded
// down, is one too low for 49, 98, 103 and others.
void averages_of_equal_integers() {
  const int32_t ones[4] = {1, 7, -7, 2147483647};
  for (int n = 1; n <= 256; ++n) {
    const std::vector<const char*> sources(n, reinterpret_cast<const char*>(ones));
    int32_t result[4];
    Scaling scaling;
    scaling.divisor = n;
    reduce_to_output(DataType::kInt32, ReduceOp::kAverage, sources.data(), n, reinterpret_cast<char*>(result), 4,
                     scaling);
    CHECK(std::equal(ones, ones + 4, result));
    scaling.postscale = 2.0;
    reduce_to_output(DataType::kInt32, ReduceOp::kAverage, sources.data(), n, reinterpret_cast<char*>(result), 3,
                     scaling);
    CHECK(result[0] == 2 && result[1] == 14 && result[2] == -14);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return run_cases(argc, argv,
                   {{"random_orders", random_orders},
                    {"all_ops", all_ops},
                    {"averages_do_not_overflow", averages_do_not_overflow},
                    {"averages_of_equal_integers", averages_of_equal_integers},
                    {"deterministic", deterministic},
                    {"broadcasts", broadcasts},
                    {"allgathers", allgathers},
                    {"overlapping_sets", overlapping_sets},
                    {"barriers", barriers},
                    {"long_names", long_names},
                    {"cache_turnover", cache_turnover}});
}
