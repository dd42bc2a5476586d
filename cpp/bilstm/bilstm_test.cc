/*!
 * \file bilstm_test.cc
 * \brief The kernel against the scalar reference, on every code path that this CPU can run.
 *
 * Usage: bilstm_test [case ...]; without a case all of them run. Exit code 1 if anything failed, 2 for an unknown case.
 */
#include "bilstm.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "bilstm_reference.h"
#include "thread_parallel_for.h"

namespace {

using namespace kokoro_tvm::bilstm;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Absolute, for outputs in (-1, 1), against double precision: 12 float32 epsilons. The rounding of some hundred steps
// does not add up, because the gates are contractions.
constexpr double kTolerance = 12 * std::numeric_limits<float>::epsilon();

int failures = 0;

#define EXPECT(condition, ...)                                    \
  do {                                                            \
    if (!(condition)) {                                           \
      ++failures;                                                 \
      std::printf("%s:%d: %s: ", __FILE__, __LINE__, #condition); \
      std::printf(__VA_ARGS__);                                   \
      std::printf("\n");                                          \
    }                                                             \
  } while (0)

/*! \brief A random problem with PyTorch's initial weights, U(-1/sqrt(H), 1/sqrt(H)), and its outputs set to NaN. */
struct Problem {
  Shape shape;
  std::vector<int64_t> lengths;
  std::vector<float> x, w_ih, w_hh, b_ih, b_hh, h0, c0, y, h_n, c_n, gates;
  bool stateful;

  Problem(int64_t input, int64_t hidden, int64_t steps, std::vector<int64_t> sample_lengths, bool with_states = false)
      : shape{static_cast<int64_t>(sample_lengths.size()), steps, input, hidden},
        lengths(std::move(sample_lengths)),
        stateful(with_states) {
    std::mt19937 rng(static_cast<uint32_t>(input * 7919 + hidden * 104729 + steps));
    const float bound = 1.0f / std::sqrt(static_cast<float>(hidden));
    const int64_t B = shape.batch;
    Fill(&x, B * steps * input, 1.7f, &rng);
    Fill(&w_ih, 2 * 4 * hidden * input, bound, &rng);
    Fill(&w_hh, 2 * 4 * hidden * hidden, bound, &rng);
    Fill(&b_ih, 2 * 4 * hidden, bound, &rng);
    Fill(&b_hh, 2 * 4 * hidden, bound, &rng);
    Fill(&h0, 2 * B * hidden, 1.0f, &rng);
    Fill(&c0, 2 * B * hidden, 2.0f, &rng);
    y.assign(static_cast<size_t>(B * steps * 2 * hidden), kNaN);
    h_n.assign(h0.size(), kNaN);
    c_n.assign(c0.size(), kNaN);
  }

  static void Fill(std::vector<float>* values, int64_t count, float bound, std::mt19937* rng) {
    std::uniform_real_distribution<float> distribution(-bound, bound);
    values->resize(static_cast<size_t>(count));
    for (float& v : *values) v = distribution(*rng);
  }

  Arrays arrays() {
    return {x.data(),
            lengths.data(),
            w_ih.data(),
            w_hh.data(),
            b_ih.data(),
            b_hh.data(),
            stateful ? h0.data() : nullptr,
            stateful ? c0.data() : nullptr,
            y.data(),
            stateful ? h_n.data() : nullptr,
            stateful ? c_n.data() : nullptr,
            gates.empty() ? nullptr : gates.data()};
  }

  /*! \brief The problem that begins with the gates: they take the place of the input, its weights and the biases. */
  void GiveGates(std::mt19937* rng) {
    Fill(&gates, shape.batch * shape.steps * 8 * shape.hidden, 3.0f, rng);
    shape.input = 0;
    for (auto* v : {&x, &w_ih, &b_ih, &b_hh}) v->clear();
  }

  void RunKernel(Isa isa, int64_t threads) {
    // Exactly as large as promised, so that the sanitizer sees an overrun.
    std::vector<char> scratch(ScratchBytes(shape, threads), '\xff');
    Run(shape, arrays(), ThreadExecutor(threads), scratch.data(), isa);
  }
};

std::vector<Isa> Paths() {
  std::vector<Isa> paths;
  for (Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kNeon}) {
    if (IsaSupported(isa)) paths.push_back(isa);
  }
  return paths;
}

/*! \brief The largest difference. NaN anywhere gives infinity. */
double MaxError(const std::vector<float>& got, const std::vector<float>& want) {
  double worst = 0.0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::fabs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    if (!(error <= worst)) worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
  }
  return worst;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void ExpectZeroPadding(const Problem& p) {
  const int64_t row = 2 * p.shape.hidden;
  for (int64_t b = 0; b < p.shape.batch; ++b) {
    for (int64_t i = p.lengths[b] * row; i < p.shape.steps * row; ++i) {
      const float v = p.y[static_cast<size_t>(b * p.shape.steps * row + i)];
      if (v != 0.0f || std::signbit(v)) {
        EXPECT(false, "sample %lld: %g past the length", static_cast<long long>(b), v);
        return;
      }
    }
  }
}

/*! \brief Run a problem on every path, with 1 thread and more, against the reference and against itself. */
void Check(Problem p) {
  Problem reference = p;
  RunReference(reference.shape, reference.arrays());
  for (Isa isa : Paths()) {
    Problem one = p;
    one.RunKernel(isa, 1);
    const double error = MaxError(one.y, reference.y);
    EXPECT(error <= kTolerance, "%s, batch %lld, steps %lld, input %lld, hidden %lld: y is off by %g", IsaName(isa),
           static_cast<long long>(p.shape.batch), static_cast<long long>(p.shape.steps),
           static_cast<long long>(p.shape.input), static_cast<long long>(p.shape.hidden), error);
    ExpectZeroPadding(one);
    if (p.stateful) {
      EXPECT(MaxError(one.h_n, reference.h_n) <= kTolerance, "%s: h_n", IsaName(isa));
      // Cell states are not bounded by 1: here they stay below 4.
      EXPECT(MaxError(one.c_n, reference.c_n) <= 4 * kTolerance, "%s: c_n", IsaName(isa));
    }
    for (int64_t threads : {2, 3, 5}) {
      Problem many = p;
      many.RunKernel(isa, threads);
      EXPECT(SameBits(one.y, many.y), "%s: y differs with %lld threads", IsaName(isa), static_cast<long long>(threads));
      EXPECT(!p.stateful || (SameBits(one.h_n, many.h_n) && SameBits(one.c_n, many.c_n)), "%s: states, %lld threads",
             IsaName(isa), static_cast<long long>(threads));
    }
  }
}

// Sizes around the vectors (4, 8, 16), the column block (8), the row tiles (3, 6) and the groups of 32 rows, and far from them.
void Grid() {
  for (int64_t hidden : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64}) {
    for (int64_t input : {1, 3, 8, 16, 17, 40}) Check({input, hidden, 6, {4, 6, 1}});
  }
  for (int64_t hidden : {127, 200, 256}) Check({65, hidden, 9, {9, 2, 5, 7}});
}

// Every batch of 1 ... 8, unsorted, with lengths of 1, of the capacity, equal ones and ones around the 64-row chunk.
void Lengths() {
  const std::vector<int64_t> pool = {5, 66, 1, 64, 70, 5, 63, 65};
  for (size_t batch = 1; batch <= pool.size(); ++batch) {
    Check({10, 12, 70, std::vector<int64_t>(pool.begin(), pool.begin() + static_cast<std::ptrdiff_t>(batch))});
  }
  Check({10, 12, 1, {1}});
  Check({10, 12, 90, {7}});  // all but a few steps are padding
  // Batches above the chunk's 64 rows, and chunks that end with part of the batch.
  std::vector<int64_t> many(70);
  for (size_t b = 0; b < many.size(); ++b) many[b] = 1 + static_cast<int64_t>(b * 37 % 9);
  Check({6, 5, 9, many});
}

// The model's size and length: input 640, hidden 256, 512 steps. Sanitizers take their time; they get a quarter of the steps.
void Long() {
#if defined(__SANITIZE_ADDRESS__)
  Check({640, 256, 128, {65, 128}, true});
#else
  Check({640, 256, 512, {65, 512}, true});
#endif
}

// One sample with the model's hidden size: the recurrence of a chunk of 32 rows may run beside the projection of the
// next one, unless there are threads for both. Inputs around the 32 terms of a block, too short for all of the
// recurrence, and the model's; lengths around one and several chunks. Fewer of them under sanitizers.
void Beside() {
  Check({1, 256, 40, {33}});
  Check({33, 256, 100, {49}, true});
  Check({40, 12, 100, {97}});
#if !defined(__SANITIZE_ADDRESS__)
  for (int64_t input : {31, 100, 512, 640}) {
    for (int64_t length : {1, 32, 64, 97}) Check({input, 256, 100, {length}});
  }
  Check({40, 64, 100, {97}});
#endif
}

void States() {
  Check({20, 24, 11, {3, 11, 1, 8}, true});
  // Null outputs and inputs mix freely.
  Problem p(20, 24, 11, {3, 11}, true);
  Problem reference = p;
  Arrays arrays = reference.arrays();
  arrays.c0 = nullptr;
  RunReference(reference.shape, arrays);
  arrays = p.arrays();
  arrays.c0 = nullptr;
  arrays.h_n = nullptr;
  std::vector<char> scratch(ScratchBytes(p.shape, 1));
  Run(p.shape, arrays, Executor{}, scratch.data());
  EXPECT(MaxError(p.y, reference.y) <= kTolerance, "h0 without c0");
  EXPECT(MaxError(p.c_n, reference.c_n) <= 4 * kTolerance, "c_n without h_n");
  EXPECT(std::isnan(p.h_n[0]), "h_n was written");
}

// Thread counts above the tracks: batch 1 on 16 threads splits the projection into 8 slices.
void Threads() {
  for (Isa isa : Paths()) {
    for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{300}, {40, 150, 3}}) {
      Problem one(33, 20, 300, lengths, true);
      one.RunKernel(isa, 1);
      for (int64_t threads : {2, 4, 6, 7, 8, 16}) {
        Problem many(33, 20, 300, lengths, true);
        many.RunKernel(isa, threads);
        EXPECT(SameBits(one.y, many.y) && SameBits(one.h_n, many.h_n) && SameBits(one.c_n, many.c_n),
               "%s: %lld threads", IsaName(isa), static_cast<long long>(threads));
      }
    }
  }
}

// A sample's result does not depend on its neighbours, on the capacity or on what the padding holds, to the bit.
void Poison() {
  const std::vector<int64_t> lengths = {17, 40, 1, 80, 33};
  for (Isa isa : Paths()) {
    Problem batch(19, 21, 80, lengths);
    for (size_t b = 0; b < lengths.size(); ++b) {
      for (int64_t i = lengths[b] * 19; i < 80 * 19; ++i) batch.x[b * 80 * 19 + static_cast<size_t>(i)] = kNaN;
    }
    batch.RunKernel(isa, 2);
    ExpectZeroPadding(batch);
    for (size_t b = 0; b < lengths.size(); ++b) {
      Problem alone(19, 21, 80, {lengths[b]});
      alone.shape.steps = lengths[b];
      alone.x.assign(batch.x.begin() + static_cast<std::ptrdiff_t>(b * 80 * 19),
                     batch.x.begin() + static_cast<std::ptrdiff_t>(b * 80 * 19 + static_cast<size_t>(lengths[b]) * 19));
      alone.w_ih = batch.w_ih, alone.w_hh = batch.w_hh, alone.b_ih = batch.b_ih, alone.b_hh = batch.b_hh;
      alone.y.resize(static_cast<size_t>(lengths[b]) * 42);
      alone.RunKernel(isa, 1);
      EXPECT(std::memcmp(alone.y.data(), batch.y.data() + b * 80 * 42, alone.y.size() * sizeof(float)) == 0,
             "%s: sample %zu depends on its batch", IsaName(isa), b);
      EXPECT(!std::isnan(alone.y[0]), "%s: padding was read", IsaName(isa));
    }
    // A NaN that is valid input must not be hidden, and stays in its sample.
    Problem bad(19, 21, 10, {10, 10});
    bad.x[5 * 19] = kNaN;
    bad.RunKernel(isa, 1);
    EXPECT(std::isnan(bad.y[9 * 42]) && std::isnan(bad.y[21]), "%s: NaN input was hidden", IsaName(isa));
    EXPECT(!std::isnan(bad.y[10 * 42]), "%s: NaN input spread", IsaName(isa));
  }
}

// Every pointer 4 bytes off any vector boundary, and the scratch memory 1 byte off.
void Alignment() {
  Problem p(37, 29, 20, {20, 7}, true);
  for (Isa isa : Paths()) {
    Problem want = p;
    want.RunKernel(isa, 1);
    Problem got = p;
    for (auto* v : {&got.x, &got.w_ih, &got.w_hh, &got.b_ih, &got.b_hh, &got.h0, &got.c0, &got.y, &got.h_n, &got.c_n}) {
      v->insert(v->begin(), kNaN);
    }
    Arrays a = got.arrays();
    ++a.x, ++a.w_ih, ++a.w_hh, ++a.b_ih, ++a.b_hh, ++a.h0, ++a.c0, ++a.y, ++a.h_n, ++a.c_n;
    std::vector<char> scratch(ScratchBytes(got.shape, 1) + 1);
    Run(got.shape, a, Executor{}, scratch.data() + 1, isa);
    for (auto* v : {&got.y, &got.h_n, &got.c_n}) v->erase(v->begin());
    EXPECT(SameBits(got.y, want.y) && SameBits(got.h_n, want.h_n) && SameBits(got.c_n, want.c_n), "%s", IsaName(isa));
  }
}

// The activations over their whole range: one unit, no recurrence, gates set through the biases.
void Extremes() {
  for (Isa isa : Paths()) {
    double worst = 0.0;
    for (float gate :
         {0.0f, 1e-30f, 1e-8f, 1e-4f, 0.01f, 0.3f, 0.35f, 1.0f, 3.0f, 8.0f, 9.1f, 20.0f, 88.0f, 1e4f, 3e38f}) {
      for (float sign : {-1.0f, 1.0f}) {
        Problem p(1, 1, 1, {1}, true);
        for (auto* v : {&p.w_ih, &p.w_hh, &p.b_hh}) v->assign(v->size(), 0.0f);
        p.b_ih.assign(8, sign * gate);
        p.c0.assign(2, sign * std::fmin(gate, 10.0f));  // the sign of the gate: nothing cancels
        Problem reference = p;
        RunReference(reference.shape, reference.arrays());
        p.RunKernel(isa, 1);
        for (size_t i = 0; i < 2; ++i) {
          const double want = reference.c_n[i];
          // Relative down to the smallest normal number: small gates must not be lost.
          worst = std::fmax(worst, std::fabs(p.c_n[i] - want) / std::fmax(std::fabs(want), 1e-30));
          EXPECT(MaxError(p.y, reference.y) <= kTolerance, "%s: gates of %g", IsaName(isa), sign * gate);
        }
      }
    }
    // One cell: two sigmoids, a tanh, two products and a sum.
    EXPECT(worst <= 8 * std::numeric_limits<float>::epsilon(), "%s: relative error %g", IsaName(isa), worst);
  }
}

// The recurrence alone, with gates past the lengths that must not be read.
void Recurrence() {
  std::mt19937 rng(1);
  for (int64_t hidden : {1, 5, 8, 17, 33, 256}) {
    Problem p(3, hidden, 80, {80, 1, 17, 66}, true);
    p.GiveGates(&rng);
    const size_t row = static_cast<size_t>(8 * hidden);
    for (size_t b = 0; b < 4; ++b) {
      const auto begin = p.gates.begin() + static_cast<std::ptrdiff_t>(b * 80 * row);
      std::fill(begin + static_cast<std::ptrdiff_t>(static_cast<size_t>(p.lengths[b]) * row), begin + static_cast<std::ptrdiff_t>(80 * row), kNaN);
    }
    Check(p);
  }
}

struct Case {
  const char* name;
  void (*run)();
};

constexpr Case kCases[] = {{"grid", Grid},           {"lengths", Lengths},  {"long", Long},
                           {"beside", Beside},       {"states", States},    {"threads", Threads},
                           {"poison", Poison},       {"alignment", Alignment}, {"extremes", Extremes},
                           {"recurrence", Recurrence}};

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> wanted(argv + 1, argv + argc);
  if (wanted.empty()) {
    for (const Case& c : kCases) wanted.push_back(c.name);
  }
  for (const std::string& name : wanted) {
    bool found = false;
    for (const Case& c : kCases) {
      if (name != c.name) continue;
      found = true;
      const int before = failures;
      c.run();
      std::printf("%-10s %s\n", c.name, failures == before ? "ok" : "FAILED");
    }
    if (!found) {
      std::fprintf(stderr, "bilstm_test: unknown case %s, expected one of:", name.c_str());
      for (const Case& c : kCases) std::fprintf(stderr, " %s", c.name);
      std::fprintf(stderr, "\n");
      return 2;
    }
  }
  return failures == 0 ? 0 : 1;
}
