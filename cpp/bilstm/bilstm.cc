/*! \file bilstm.cc \brief The schedule of the bidirectional LSTM over the inner kernels; see bilstm.h. */
#include "bilstm.h"

#include <algorithm>
#include <cstring>

#include "kernels.h"

namespace kokoro_tvm {
namespace bilstm {
namespace {

// Rows that one thread projects before it runs them through the recurrence. More rows read w_ih from the L3 cache less
// often; 64 rows of 640 inputs and 4 x 256 gates still leave half of a 1 MB or most of a 512 KB L2 cache.
constexpr int64_t kChunkRows = 64;

constexpr size_t kCacheLine = 64;

int64_t PadRow(int64_t floats) { return (floats + kRowAlign - 1) / kRowAlign * kRowAlign; }

/*!
 * \brief How the work is cut. A group of samples in one direction is a track: the recurrence of a track is serial.
 *
 * With at least as many threads as tracks could use, each track's projection is cut further into slices.
 */
struct Plan {
  int64_t groups;      // of samples; 2 * groups tracks
  int64_t group_size;  // samples in the largest group
  int64_t slices;      // of the projection of a track
  int64_t steps_per_chunk;

  Plan(const Shape& shape, int64_t num_threads) {
    groups = std::min(shape.batch, std::max<int64_t>(1, num_threads / 2));
    group_size = (shape.batch + groups - 1) / groups;
    slices = std::max<int64_t>(1, num_threads / (2 * groups));
    steps_per_chunk = std::max<int64_t>(1, kChunkRows * slices / group_size);
  }
  int64_t tracks() const { return 2 * groups; }
  int64_t chunk_rows() const { return group_size * steps_per_chunk; }
};

/*! \brief Cuts scratch memory into aligned arrays. With a null base it only measures. */
class Arena {
 public:
  explicit Arena(void* base) : base_(reinterpret_cast<uintptr_t>(base)), next_(Align(base_)) {}
  template <class T>
  T* Take(int64_t count) {
    T* taken = reinterpret_cast<T*>(next_);
    next_ = Align(next_ + static_cast<size_t>(count) * sizeof(T));
    return taken;
  }
  size_t used() const { return next_ - base_; }

 private:
  static uintptr_t Align(uintptr_t p) { return (p + kCacheLine - 1) / kCacheLine * kCacheLine; }
  uintptr_t base_;
  uintptr_t next_;
};

/*!
 * \brief One direction of one group of samples.
 *
 * Its samples are sorted by falling length, so that those still running at a step are the first `active` ones. Step s
 * of the forward direction is time s, of the backward direction time length - 1 - s.
 */
struct Track {
  int64_t direction;
  int64_t size;      // samples
  int64_t* samples;  // [size] indices into the batch
  float* bias;       // [4H]: b_ih + b_hh
  float* h;          // [size, PadRow(H)]
  float* c;          // [size, PadRow(H)]
  float* inputs;     // [chunk rows, PadRow(I)]: rows of x of one chunk, by step, then by sample
  float* gates;      // [chunk rows, 4H]: the same rows
  int64_t begin;     // the steps of the current chunk
  int64_t end;
  int64_t rows;  // and its rows

  Track(const Shape& shape, const Plan& plan, Arena* arena) : direction(0), size(0), begin(0), end(0), rows(0) {
    samples = arena->Take<int64_t>(plan.group_size);
    bias = arena->Take<float>(4 * shape.hidden);
    h = arena->Take<float>(plan.group_size * PadRow(shape.hidden));
    c = arena->Take<float>(plan.group_size * PadRow(shape.hidden));
    inputs = arena->Take<float>(plan.chunk_rows() * PadRow(shape.input));
    gates = arena->Take<float>(plan.chunk_rows() * 4 * shape.hidden);
  }
};

class Runner {
 public:
  Runner(const Shape& shape, const Arrays& arrays, const Kernels& kernels)
      : shape_(shape), arrays_(arrays), kernels_(kernels) {}

  /*! \brief Set a track to its first step, and zero its direction's half of the padded outputs. */
  void Start(Track* track) const {
    const int64_t hidden = shape_.hidden;
    if (!arrays_.gates) {
      const float* b_ih = arrays_.b_ih + track->direction * 4 * hidden;
      const float* b_hh = arrays_.b_hh + track->direction * 4 * hidden;
      for (int64_t i = 0; i < 4 * hidden; ++i) track->bias[i] = b_ih[i] + b_hh[i];
    }
    for (int64_t j = 0; j < track->size; ++j) {
      const int64_t state = (track->direction * shape_.batch + track->samples[j]) * hidden;
      LoadState(arrays_.h0, state, track->h + j * PadRow(hidden));
      LoadState(arrays_.c0, state, track->c + j * PadRow(hidden));
      for (int64_t t = Length(*track, j); t < shape_.steps; ++t) {
        std::memset(Output(*track, j, t), 0, static_cast<size_t>(hidden) * sizeof(float));
      }
    }
    track->end = 0;
  }

  /*! \brief Gather the inputs, or the gates, of the next chunk. False when the track has no step left. */
  bool Advance(Track* track, int64_t steps) const {
    const int64_t cols = 4 * shape_.hidden;
    track->begin = track->end;
    track->end = std::min(track->begin + steps, Length(*track, 0));
    track->rows = 0;
    for (int64_t s = track->begin; s < track->end; ++s) {
      const int64_t active = Active(*track, s);
      for (int64_t j = 0; j < active; ++j, ++track->rows) {
        const int64_t row = track->samples[j] * shape_.steps + Time(*track, j, s);
        if (arrays_.gates) {
          std::copy_n(arrays_.gates + (2 * row + track->direction) * cols, cols, track->gates + track->rows * cols);
        } else {
          std::copy_n(arrays_.x + row * shape_.input, shape_.input, track->inputs + track->rows * PadRow(shape_.input));
        }
      }
    }
    return track->begin < track->end;
  }

  /*! \brief One of the equal slices of gates = w_ih x + b_ih + b_hh over the rows of the chunk, unless given. */
  void Project(const Track& track, int64_t slice, int64_t slices) const {
    if (arrays_.gates) return;
    const int64_t first = track.rows * slice / slices;
    const int64_t rows = track.rows * (slice + 1) / slices - first;
    const int64_t cols = 4 * shape_.hidden;
    const int64_t lda = PadRow(shape_.input);
    kernels_.matmul({rows, cols, shape_.input, track.inputs + first * lda, lda,
                     arrays_.w_ih + track.direction * cols * shape_.input, track.bias, track.gates + first * cols,
                     /*descending=*/false});
  }

  /*!
   * \brief Run the chunk through the recurrence.
   *
   * Every step reads all of w_hh: 1 MB for 256 units, more than many an L2 cache. Read in the same order each time it
   * would evict itself just before it is needed; turning round at each end keeps what was read last.
   */
  void Recur(const Track& track) const {
    const int64_t hidden = shape_.hidden, cols = 4 * hidden, ldh = PadRow(hidden);
    const float* w_hh = arrays_.w_hh + track.direction * cols * hidden;
    float* gates = track.gates;
    for (int64_t s = track.begin; s < track.end; ++s) {
      const int64_t active = Active(track, s);
      kernels_.matmul({active, cols, hidden, track.h, ldh, w_hh, nullptr, gates, /*descending=*/s % 2 == 1});
      for (int64_t j = 0; j < active; ++j, gates += cols) {
        kernels_.cell(hidden, gates, track.c + j * ldh, track.h + j * ldh, Output(track, j, Time(track, j, s)));
      }
    }
  }

  /*! \brief Write the final states where wanted: a sample's state has not moved since its last step. */
  void Finish(const Track& track) const {
    const int64_t hidden = shape_.hidden;
    for (int64_t j = 0; j < track.size; ++j) {
      const int64_t state = (track.direction * shape_.batch + track.samples[j]) * hidden;
      StoreState(track.h + j * PadRow(hidden), arrays_.h_n, state);
      StoreState(track.c + j * PadRow(hidden), arrays_.c_n, state);
    }
  }

 private:
  int64_t Length(const Track& track, int64_t j) const { return arrays_.lengths[track.samples[j]]; }

  int64_t Active(const Track& track, int64_t s) const {
    int64_t active = track.size;
    while (active > 0 && Length(track, active - 1) <= s) --active;
    return active;
  }

  int64_t Time(const Track& track, int64_t j, int64_t s) const {
    return track.direction == 0 ? s : Length(track, j) - 1 - s;
  }

  float* Output(const Track& track, int64_t j, int64_t t) const {
    return arrays_.y + ((track.samples[j] * shape_.steps + t) * 2 + track.direction) * shape_.hidden;
  }

  void LoadState(const float* from, int64_t offset, float* to) const {
    const size_t bytes = static_cast<size_t>(shape_.hidden) * sizeof(float);
    if (from) {
      std::memcpy(to, from + offset, bytes);
    } else {
      std::memset(to, 0, bytes);
    }
  }

  void StoreState(const float* from, float* to, int64_t offset) const {
    if (to) std::memcpy(to + offset, from, static_cast<size_t>(shape_.hidden) * sizeof(float));
  }

  const Shape& shape_;
  const Arrays& arrays_;
  const Kernels& kernels_;
};

const Kernels& KernelsOf(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx2:
      return kAvx2Kernels;
    case Isa::kAvx512:
      return kAvx512Kernels;
#elif defined(__aarch64__)
    case Isa::kNeon:
      return kNeonKernels;
#endif
    default:
      return kPortableKernels;
  }
}

}  // namespace

const char* IsaName(Isa isa) {
  switch (isa) {
    case Isa::kAuto:
      return "auto";
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kNeon:
      return "neon";
  }
  return "unknown";
}

bool IsaSupported(Isa isa) {
  switch (isa) {
    case Isa::kAuto:
    case Isa::kPortable:
      return true;
#if defined(__x86_64__)
    // The built-in also asks whether the operating system saves the registers.
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case Isa::kAvx512:
      return __builtin_cpu_supports("avx512f") && IsaSupported(Isa::kAvx2);
#elif defined(__aarch64__)
    case Isa::kNeon:
      return true;
#endif
    default:
      return false;
  }
}

Isa BestIsa() {
  for (Isa isa : {Isa::kAvx512, Isa::kAvx2, Isa::kNeon}) {
    if (IsaSupported(isa)) return isa;
  }
  return Isa::kPortable;
}

size_t ScratchBytes(const Shape& shape, int64_t num_threads) {
  const Plan plan(shape, num_threads);
  Arena arena(nullptr);
  arena.Take<int64_t>(shape.batch);
  arena.Take<Track>(plan.tracks());
  for (int64_t i = 0; i < plan.tracks(); ++i) Track(shape, plan, &arena);
  return arena.used() + kCacheLine;  // the base may have any alignment
}

void Run(const Shape& shape, const Arrays& arrays, const Executor& executor, void* scratch, Isa isa) {
  const Plan plan(shape, executor.num_threads);
  Arena arena(scratch);
  int64_t* order = arena.Take<int64_t>(shape.batch);
  Track* tracks = arena.Take<Track>(plan.tracks());

  for (int64_t b = 0; b < shape.batch; ++b) order[b] = b;
  std::sort(order, order + shape.batch, [&](int64_t a, int64_t b) {
    return arrays.lengths[a] != arrays.lengths[b] ? arrays.lengths[a] > arrays.lengths[b] : a < b;
  });
  for (int64_t i = 0; i < plan.tracks(); ++i) {
    Track* track = new (&tracks[i]) Track(shape, plan, &arena);
    track->direction = i % 2;
    // Dealt out like cards, so that every group gets long and short samples.
    for (int64_t j = i / 2; j < shape.batch; j += plan.groups) track->samples[track->size++] = order[j];
  }

  const Runner runner(shape, arrays, KernelsOf(isa == Isa::kAuto ? BestIsa() : isa));
  const auto parallel_for = [&](int64_t count, const std::function<void(int64_t)>& task) {
    if (executor.parallel_for && executor.num_threads > 1 && count > 1) {
      executor.parallel_for(count, task);
    } else {
      for (int64_t i = 0; i < count; ++i) task(i);
    }
  };

  if (plan.slices == 1) {
    // Enough tracks for the threads: they never wait for one another.
    parallel_for(plan.tracks(), [&](int64_t i) {
      runner.Start(&tracks[i]);
      while (runner.Advance(&tracks[i], plan.steps_per_chunk)) {
        runner.Project(tracks[i], 0, 1);
        runner.Recur(tracks[i]);
      }
      runner.Finish(tracks[i]);
    });
    return;
  }
  // Threads to spare: all share the projection of a chunk, then one per track runs the recurrence.
  for (int64_t i = 0; i < plan.tracks(); ++i) runner.Start(&tracks[i]);
  for (bool more = true; more;) {
    more = false;
    for (int64_t i = 0; i < plan.tracks(); ++i) more |= runner.Advance(&tracks[i], plan.steps_per_chunk);
    if (!more) break;
    parallel_for(plan.tracks() * plan.slices,
                 [&](int64_t i) { runner.Project(tracks[i / plan.slices], i % plan.slices, plan.slices); });
    parallel_for(plan.tracks(), [&](int64_t i) { runner.Recur(tracks[i]); });
  }
  for (int64_t i = 0; i < plan.tracks(); ++i) runner.Finish(tracks[i]);
}

}  // namespace bilstm
}  // namespace kokoro_tvm
