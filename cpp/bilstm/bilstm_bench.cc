/*!
 * \file bilstm_bench.cc
 * \brief Times the kernel alone, per code path: no framework, no comparison (that is kokoro_tvm.cli.bench_bilstm).
 *
 * Usage: bilstm_bench [threads]
 *
 * The CPU time is the median over all threads together: on a busy machine it is steadier than the time that passes.
 */
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <random>
#include <vector>

#include "bilstm.h"
#include "thread_parallel_for.h"

namespace {

using namespace kokoro_tvm::bilstm;

// On cache lines, as tensors are; otherwise every second vector load would straddle two of them.
struct alignas(64) Line {
  float v[16];
};

std::vector<Line> Uniform(int64_t count, float bound, std::mt19937* rng) {
  std::uniform_real_distribution<float> distribution(-bound, bound);
  std::vector<Line> lines(static_cast<size_t>((count + 15) / 16));
  for (Line& line : lines) {
    for (float& v : line.v) v = distribution(*rng);
  }
  return lines;
}

void Bench(Isa isa, int64_t batch, int64_t steps, int64_t threads) {
  const Shape shape{batch, steps, 640, 256};
  const int64_t rows = 2 * 4 * 256;
  std::mt19937 rng(0);
  const auto x = Uniform(batch * steps * 640, 1.0f, &rng);
  const auto w_ih = Uniform(rows * 640, 1.0f / 16, &rng), w_hh = Uniform(rows * 256, 1.0f / 16, &rng);
  const auto b_ih = Uniform(rows, 1.0f / 16, &rng), b_hh = Uniform(rows, 1.0f / 16, &rng);
  const std::vector<int64_t> lengths(static_cast<size_t>(batch), steps);
  auto y = Uniform(batch * steps * 512, 0.0f, &rng);
  std::vector<char> scratch(ScratchBytes(shape, threads));
  Arrays arrays{};
  arrays.x = x[0].v;
  arrays.lengths = lengths.data();
  arrays.w_ih = w_ih[0].v;
  arrays.w_hh = w_hh[0].v;
  arrays.b_ih = b_ih[0].v;
  arrays.b_hh = b_hh[0].v;
  arrays.y = y[0].v;
  const Executor executor = ThreadExecutor(threads);
  std::vector<double> times, cpu_times;
  for (int i = 0; i < 11; ++i) {
    const std::clock_t cpu_start = std::clock();
    const auto start = std::chrono::steady_clock::now();
    Run(shape, arrays, executor, scratch.data(), isa);
    times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
    cpu_times.push_back(1e3 * static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC);
  }
  std::sort(times.begin(), times.end());
  std::sort(cpu_times.begin(), cpu_times.end());
  // Multiply-adds of projection and recurrence, both directions.
  const double gmac = 1e-9 * static_cast<double>(batch * steps * rows * (640 + 256));
  std::printf("%-8s  batch %lld x %3lld steps, %lld threads: median %7.2f ms, best %7.2f ms, %6.1f GFLOP/s, CPU %7.2f ms\n",
              IsaName(isa), static_cast<long long>(batch), static_cast<long long>(steps),
              static_cast<long long>(threads), times[times.size() / 2], times[0], 2e3 * gmac / times[0], cpu_times[cpu_times.size() / 2]);
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t threads = argc > 1 ? std::atoll(argv[1]) : 2;
  if (threads < 1) {
    std::fprintf(stderr, "bilstm_bench: got %s threads, expected at least 1\n", argv[1]);
    return 2;
  }
  for (Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kNeon}) {
    if (!IsaSupported(isa)) continue;
    for (int64_t steps : {64, 256, 512}) Bench(isa, 1, steps, threads);
    Bench(isa, 8, 512, threads);
  }
  return 0;
}
