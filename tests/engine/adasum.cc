// Adasum over many shapes of worlds, against the recursion that defines it, computed in double.
#include <algorithm>
#include <cmath>
#include <limits>

#include "world.h"

using namespace compat_hvd;

namespace {

using Vector = std::vector<double>;

const std::vector<std::vector<int>> kSplits = {{1},    {2},    {1, 1},    {4},          {2, 2},
                                               {1, 3}, {3, 1}, {1, 2, 1}, {1, 1, 1, 1}, {8},
                                               {3, 5}, {4, 4}, {1, 4, 3}, {2, 2, 2, 2}, {7, 9}};

Vector adaptive(const Vector& a, const Vector& b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) ab += a[i] * b[i], aa += a[i] * a[i], bb += b[i] * b[i];
  Vector result(a.size());
  const double of_a = aa == 0 ? 1 : 1 - ab / (2 * aa), of_b = bb == 0 ? 1 : 1 - ab / (2 * bb);
  for (size_t i = 0; i < a.size(); ++i) result[i] = of_a * a[i] + of_b * b[i];
  return result;
}

Vector tree(const std::vector<Vector>& vectors) {
  if (vectors.size() == 1) return vectors[0];
  const auto middle = vectors.begin() + vectors.size() / 2;
  return adaptive(tree({vectors.begin(), middle}), tree({middle, vectors.end()}));
}

struct Half {
  uint16_t bits;
};
struct Bfloat {
  uint16_t bits;
};

// Only numbers that are normal in both.
template <typename T>
T from_double(double value) {
  return static_cast<T>(value);
}
template <>
Half from_double<Half>(double value) {
  if (value == 0) return {0};
  int exponent;
  const double fraction = std::frexp(std::fabs(value), &exponent);
  const int bits = static_cast<int>(std::nearbyint((2 * fraction - 1) * 1024)) + ((exponent + 14) << 10);
  return {static_cast<uint16_t>(bits | (value < 0 ? 0x8000 : 0))};
}
template <>
Bfloat from_double<Bfloat>(double value) {
  const float single = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &single, sizeof bits);
  return {static_cast<uint16_t>(bits >> 16)};
}
template <typename T>
double to_double(T value) {
  return value;
}
double to_double(Half value) {
  const int exponent = value.bits >> 10 & 31, fraction = value.bits & 1023;
  const double magnitude = exponent == 0    ? std::ldexp(fraction, -24)
                           : exponent == 31 ? (fraction ? NAN : INFINITY)
                                            : std::ldexp(1024 + fraction, exponent - 25);
  return value.bits & 0x8000 ? -magnitude : magnitude;
}
double to_double(Bfloat value) {
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float single;
  std::memcpy(&single, &bits, sizeof single);
  return single;
}

Request adasum_of(const std::string& name, DataType dtype) {
  Request request = sum_of(name, dtype);
  request.op = ReduceOp::kAdasum;
  return request;
}

// Few bits, so that every type holds it; neither parallel nor orthogonal from rank to rank.
double value_of(int rank, size_t t, size_t i) {
  return static_cast<double>((i * (rank + 2) + t * 3 + i / 7 * rank) % 13) - 4.0 + (rank + static_cast<int>(t)) % 5;
}

template <typename T>
void check_values(DataType dtype, double precision) {
  const std::vector<size_t> counts = {0, 1, 2, 3, 63, 64, 1001, 7};
  for (const auto& split : kSplits) {
    for (const size_t fusion : {size_t{0}, size_t{1} << 20}) {
      World world({split, 256, static_cast<unsigned>(split[0]), {fusion, 1024, {}}, {}});
      const int n = world.size();
      for (int round = 0; round < 3; ++round) {
        std::vector<std::vector<std::shared_ptr<Outcome>>> outcomes(n);
        std::vector<std::shared_ptr<Outcome>> all;
        for (int rank = 0; rank < n; ++rank) {
          for (size_t t = 0; t < counts.size(); ++t) {
            std::vector<T> values;
            for (size_t i = 0; i < counts[t]; ++i) values.push_back(from_double<T>(value_of(rank, t + round, i)));
            Request request = adasum_of("tensor" + std::to_string(t), dtype);
            request.prescale = 0.5, request.postscale = 4.0;
            all.push_back(world.submit(rank, request, values));
            outcomes[rank].push_back(all.back());
          }
        }
        CHECK(world.run_all(all));
        for (size_t t = 0; t < counts.size(); ++t) {
          std::vector<Vector> inputs(n);
          for (int rank = 0; rank < n; ++rank) {
            for (size_t i = 0; i < counts[t]; ++i) inputs[rank].push_back(value_of(rank, t + round, i));
          }
          const Vector expected = tree(inputs);
          double largest = 0;
          for (double one : expected) largest = std::max(largest, std::fabs(one));
          for (int rank = 0; rank < n; ++rank) {
            CHECK(outcomes[rank][t]->status.ok());
            CHECK(outcomes[rank][t]->output == outcomes[0][t]->output);
            const std::vector<T> result = outcomes[rank][t]->values<T>();
            CHECK(result.size() == counts[t]);
            for (size_t i = 0; i < counts[t]; ++i) {
              CHECK(std::fabs(to_double(result[i]) - 2 * expected[i]) <= 2 * precision * largest);
            }
          }
        }
      }
    }
  }
}

void singles() { check_values<float>(DataType::kFloat32, 1e-6); }
void doubles() { check_values<double>(DataType::kFloat64, 1e-14); }
void halves() { check_values<Half>(DataType::kFloat16, 6e-4); }
void bfloats() { check_values<Bfloat>(DataType::kBfloat16, 5e-3); }

// One tensor, with every rank's values.
template <typename T>
std::vector<T> reduce(World* world, DataType dtype, const std::vector<Vector>& inputs) {
  std::vector<std::shared_ptr<Outcome>> all;
  for (int rank = 0; rank < world->size(); ++rank) {
    std::vector<T> values;
    for (double value : inputs[rank]) values.push_back(from_double<T>(value));
    all.push_back(world->submit(rank, adasum_of("x", dtype), values));
  }
  CHECK(world->run_all(all));
  for (const auto& outcome : all) {
    CHECK(outcome->status.ok());
    CHECK(outcome->output == all[0]->output);
  }
  return all[0]->values<T>();
}

// Equal vectors give themselves, orthogonal ones their sum, opposite ones nothing, zeros change nothing.
void known_sums() {
  for (const auto& split : kSplits) {
    World world({split, 256, 1, {}, {}});
    const int n = world.size();
    const Vector one = {3.0, -4.0, 0.5}, none(3, 0.0);
    CHECK(reduce<float>(&world, DataType::kFloat32, std::vector<Vector>(n, one)) ==
          std::vector<float>(one.begin(), one.end()));
    CHECK(reduce<float>(&world, DataType::kFloat32, std::vector<Vector>(n, none)) == std::vector<float>(3, 0.0f));
    std::vector<Vector> single(n, none), orthogonal(n, Vector(n, 0.0));
    single[n - 1] = one;
    CHECK(reduce<float>(&world, DataType::kFloat32, single) == std::vector<float>(one.begin(), one.end()));
    for (int rank = 0; rank < n; ++rank) orthogonal[rank][rank] = rank + 1.0;
    const std::vector<double> sum = reduce<double>(&world, DataType::kFloat64, orthogonal);
    for (int rank = 0; rank < n; ++rank) CHECK(sum[rank] == rank + 1.0);
    if (n != 2) continue;
    CHECK(reduce<float>(&world, DataType::kFloat32, {{1.0, 2.0}, {-1.0, -2.0}}) == std::vector<float>(2, 0.0f));
  }
}

// Squares that the element type, or float, does not hold.
void products_do_not_overflow() {
  World world({{2, 2}, 256, 1, {}, {}});
  const Vector large(500, 60000.0);
  for (const Half& one : reduce<Half>(&world, DataType::kFloat16, std::vector<Vector>(4, large))) {
    CHECK(to_double(one) == to_double(from_double<Half>(60000.0)));
  }
  for (float extreme : {1e30f, 1e-30f}) {
    const std::vector<Vector> equal(4, Vector(500, extreme));
    CHECK(reduce<float>(&world, DataType::kFloat32, equal) == std::vector<float>(500, extreme));
  }
}

// NaN and infinity are not hidden, and stay within their tensor.
void other_tensors_keep_clear_of_nan() {
  World world({{4}, 256, 1, {1u << 20, 1024, {}}, {}});
  std::vector<std::shared_ptr<Outcome>> all;
  for (int rank = 0; rank < 4; ++rank) {
    const float bad = rank == 2 ? std::numeric_limits<float>::quiet_NaN() : 1.0f;
    all.push_back(world.submit(rank, adasum_of("bad", DataType::kFloat32), std::vector<float>{bad, 1.0f}));
    all.push_back(world.submit(rank, adasum_of("good", DataType::kFloat32), std::vector<float>{2.0f, 1.0f}));
  }
  CHECK(world.run_all(all));
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(std::isnan(all[2 * rank]->values<float>()[0]));
    CHECK((all[2 * rank + 1]->values<float>() == std::vector<float>{2.0f, 1.0f}));
  }
}

std::vector<char> bits(unsigned seed, bool fused) {
  World world({{1, 3}, 256, seed, {fused ? 1u << 20 : 0u, 1024, {}}, {}});
  std::vector<std::shared_ptr<Outcome>> all, wanted;
  for (int rank = 0; rank < 4; ++rank) {
    std::vector<int> order = {0, 1, 2, 3, 4};
    std::shuffle(order.begin(), order.end(), world.random());
    for (int t : order) {
      std::vector<double> values;
      for (int i = 0; i < 97 + t; ++i) values.push_back(std::sin(rank * 31.0 + i * (t + 1)));
      all.push_back(world.submit(rank, adasum_of("t" + std::to_string(t), DataType::kFloat64), values));
      if (t == 2) wanted.push_back(all.back());
    }
  }
  CHECK(world.run_all(all));
  return wanted[0]->output;
}

void deterministic() {
  const std::vector<char> expected = bits(1, true);
  for (unsigned seed = 2; seed < 8; ++seed) CHECK(bits(seed, seed % 2 == 0) == expected);
}

// Ranks that have joined are left out of the tree, whose shape stays.
void joined() {
  for (const auto& split : std::vector<std::vector<int>>{{4}, {2, 2}, {1, 3}, {1, 1, 1, 1}}) {
    for (int without : {0, 2, 3}) {
      World world({split, 256, 1, {}, {}});
      Request join = sum_of("join");
      join.collective = Collective::kJoin;
      std::vector<std::shared_ptr<Outcome>> joining = {world.submit(without, join, std::vector<int8_t>{})};
      std::vector<std::shared_ptr<Outcome>> all;
      std::vector<Vector> inputs(4, Vector(50, 0.0));
      for (int rank = 0; rank < 4; ++rank) {
        if (rank == without) continue;
        for (size_t i = 0; i < 50; ++i) inputs[rank][i] = value_of(rank, 0, i);
        all.push_back(world.submit(rank, adasum_of("x", DataType::kFloat64), inputs[rank]));
      }
      CHECK(world.run_all(all));
      const Vector expected = tree(inputs);
      for (const auto& outcome : all) {
        const Vector result = outcome->values<double>();
        for (size_t i = 0; i < 50; ++i) CHECK(std::fabs(result[i] - expected[i]) < 1e-12);
      }
      for (int rank = 0; rank < 4; ++rank) {
        if (rank != without) joining.push_back(world.submit(rank, join, std::vector<int8_t>{}));
      }
      CHECK(world.run_all(joining));
    }
  }
}

void refuse(const std::vector<int>& split, const std::vector<int>& members, const std::function<void(Request*)>& change,
            const std::string& expected) {
  World world({split, 256, 1, {}, {{0, 1}}});
  for (int round = 0; round < 2; ++round) {
    std::vector<std::shared_ptr<Outcome>> all;
    for (int rank : members) {
      Request request = adasum_of("x", DataType::kFloat32);
      request.shape = {4};
      change(&request);
      all.push_back(world.submit(rank, request, std::vector<float>(4)));
    }
    CHECK(world.run_all(all));
    for (const auto& outcome : all) {
      CHECK(outcome->status.code == Code::kInvalidArgument);
      CHECK(outcome->status.message.find("'x'") != std::string::npos);
      CHECK(outcome->status.message.find(expected) != std::string::npos);
    }
    all.clear();
    for (int rank = 0; rank < world.size(); ++rank) all.push_back(world.submit(rank, sum_of("x"), Vector{1.0}));
    CHECK(world.run_all(all));
    for (const auto& outcome : all) CHECK(outcome->status.ok());
  }
}

void refused() {
  refuse({3}, {0, 1, 2}, [](Request*) {}, "power of two, not 3");
  refuse({1, 5}, {0, 1, 2, 3, 4, 5}, [](Request*) {}, "power of two, not 6");
  refuse({2, 2}, {0, 1}, [](Request* r) { r->process_set = 1; }, "process set 1");
  refuse({2}, {0, 1}, [](Request* r) { r->dtype = DataType::kInt32; }, "int32");
  refuse({2}, {0, 1}, [](Request* r) { r->collective = Collective::kReducescatter; }, "allreduce");
}

}  // namespace

int main(int argc, char** argv) {
  return run_cases(argc, argv,
                   {{"singles", singles},
                    {"doubles", doubles},
                    {"halves", halves},
                    {"bfloats", bfloats},
                    {"known_sums", known_sums},
                    {"products_do_not_overflow", products_do_not_overflow},
                    {"other_tensors_keep_clear_of_nan", other_tensors_keep_clear_of_nan},
                    {"deterministic", deterministic},
                    {"joined", joined},
                    {"refused", refused}});
}
