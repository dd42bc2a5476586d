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
static_assert(kChunkRows >= 2 * kGroupRows, "RunTrack halves a chunk");

constexpr size_t kCacheLine = 64;

int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

int64_t PadRow(int64_t floats) { return RoundUp(floats, kRowAlign); }

// From one row of gates to the next: not the 4 KB that 256 units make, which would put the same column of all rows
// into the same few places of the L1 cache.
int64_t GatesRow(const Shape& shape) { return PadRow(4 * shape.hidden) + kRowAlign; }

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

/*! \brief Some consecutive steps of a track: their projection first, then their recurrence. */
struct Chunk {
  float* x;       // [rows / kGroupRows, I, kGroupRows]: rows of x, by step, then by sample, transposed
  float* gates;   // [rows, GatesRow]: the same rows
  int64_t begin;  // steps
  int64_t end;
  int64_t rows;
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
  Chunk chunk;       // the current one

  Track(const Shape& shape, const Plan& plan, Arena* arena) : direction(0), size(0), chunk{} {
    samples = arena->Take<int64_t>(plan.group_size);
    bias = arena->Take<float>(4 * shape.hidden);
    h = arena->Take<float>(plan.group_size * PadRow(shape.hidden));
    c = arena->Take<float>(plan.group_size * PadRow(shape.hidden));
    chunk.x = arena->Take<float>(RoundUp(plan.chunk_rows(), kGroupRows) * shape.input);
    chunk.gates = arena->Take<float>(plan.chunk_rows() * GatesRow(shape));
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
    track->chunk.end = 0;
  }

  /*! \brief Gather inputs, or gates, of at most `steps` steps from `begin` on into a chunk. False if none is left. */
  bool Gather(const Track& track, int64_t begin, int64_t steps, Chunk* chunk) const {
    const int64_t cols = 4 * shape_.hidden;
    chunk->begin = begin;
    chunk->end = std::min(begin + steps, Length(track, 0));
    chunk->rows = 0;
    const float* group[kGroupRows];
    for (int64_t s = chunk->begin; s < chunk->end; ++s) {
      const int64_t active = Active(track, s);
      for (int64_t j = 0; j < active; ++j, ++chunk->rows) {
        const int64_t row = track.samples[j] * shape_.steps + Time(track, j, s);
        if (arrays_.gates) {
          std::copy_n(arrays_.gates + (2 * row + track.direction) * cols, cols,
                      chunk->gates + chunk->rows * GatesRow(shape_));
        } else {
          const int64_t lane = chunk->rows % kGroupRows;
          group[lane] = arrays_.x + row * shape_.input;
          if (lane == kGroupRows - 1) MakeLanes(group, chunk->rows - lane, kGroupRows, chunk);
        }
      }
    }
    const int64_t rest = chunk->rows % kGroupRows;
    if (!arrays_.gates && rest > 0) MakeLanes(group, chunk->rows - rest, rest, chunk);
    return chunk->begin < chunk->end;
  }

  /*! \brief gates = w_ih x + b_ih + b_hh over the rows of the chunk. */
  Projection ProjectionOf(const Track& track, const Chunk& chunk) const {
    const int64_t cols = 4 * shape_.hidden;
    const float* w_ih = arrays_.w_ih + track.direction * cols * shape_.input;
    return {chunk.rows, cols, shape_.input, chunk.x, w_ih, track.bias, chunk.gates, GatesRow(shape_)};
  }

  /*! \brief One of the equal slices of the projection of the chunk, unless its gates were given. */
  void Project(const Track& track, const Chunk& chunk, int64_t slice, int64_t slices) const {
    if (!arrays_.gates) kernels_.project(ProjectionOf(track, chunk), slice, slices);
  }

  /*!
   * \brief Run a chunk through the recurrence, and meanwhile, step by step, project another one if there is one.
   *
   * Every step reads all of w_hh: 1 MB for 256 units, as much as a large L2 cache holds. Read in the same order each
   * time it would evict itself just before it is needed; turning round at each end keeps what was read last.
   */
  void Recur(const Track& track, const Chunk& chunk, const Chunk* next = nullptr) const {
    const int64_t hidden = shape_.hidden, cols = 4 * hidden, ldh = PadRow(hidden);
    const float* w_hh = arrays_.w_hh + track.direction * cols * hidden;
    float* gates = chunk.gates;
    for (int64_t s = chunk.begin; s < chunk.end; ++s) {
      const int64_t active = Active(track, s);
      const bool descending = s % 2 == 1;
      const Recurrence step = {active, cols, hidden, track.h, ldh, w_hh, gates, GatesRow(shape_), descending};
      if (next) {
        kernels_.recur_and_project(step, ProjectionOf(track, *next), s - chunk.begin, chunk.end - chunk.begin);
      } else {
        kernels_.recur(step);
      }
      for (int64_t j = 0; j < active; ++j, gates += GatesRow(shape_)) {
        kernels_.cell(hidden, gates, track.c + j * ldh, track.h + j * ldh, Output(track, j, Time(track, j, s)));
      }
    }
  }

  /*! \brief All steps of a track, on one thread. */
  void RunTrack(Track* track, int64_t steps) const {
    Start(track);
    if (track->size > 1 || arrays_.gates || !kernels_.recur_and_project) {
      Chunk& chunk = track->chunk;
      while (Gather(*track, chunk.end, steps, &chunk)) {
        Project(*track, chunk, 0, 1);
        Recur(*track, chunk);
      }
    } else {
      // Two chunks share the memory of one: while one recurs, the next is projected.
      const int64_t half = kGroupRows;
      Chunk now = track->chunk, next = now;
      next.x += half * shape_.input;
      next.gates += half * GatesRow(shape_);
      Gather(*track, 0, half, &now);
      Project(*track, now, 0, 1);
      while (Gather(*track, now.end, half, &next)) {
        Recur(*track, now, &next);
        std::swap(now, next);
      }
      Recur(*track, now);
    }
    Finish(*track);
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

  /*! \brief Transpose `count` rows of x, which are the chunk's from `row` on. */
  void MakeLanes(const float* const* rows, int64_t row, int64_t count, Chunk* chunk) const {
    kernels_.lanes(rows, count, shape_.input, chunk->x + row * shape_.input);
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
    parallel_for(plan.tracks(), [&](int64_t i) { runner.RunTrack(&tracks[i], plan.steps_per_chunk); });
    return;
  }
  // Threads to spare: all share the projection of a chunk, then one per track runs the recurrence.
  for (int64_t i = 0; i < plan.tracks(); ++i) runner.Start(&tracks[i]);
  for (bool more = true; more;) {
    more = false;
    for (int64_t i = 0; i < plan.tracks(); ++i) {
      Chunk& chunk = tracks[i].chunk;
      more |= runner.Gather(tracks[i], chunk.end, plan.steps_per_chunk, &chunk);
    }
    if (!more) break;
    parallel_for(plan.tracks() * plan.slices, [&](int64_t i) {
      const Track& track = tracks[i / plan.slices];
      runner.Project(track, track.chunk, i % plan.slices, plan.slices);
    });
    parallel_for(plan.tracks(), [&](int64_t i) { runner.Recur(tracks[i], tracks[i].chunk); });
  }
  for (int64_t i = 0; i < plan.tracks(); ++i) runner.Finish(tracks[i]);
}

}  // namespace bilstm
}  // namespace kokoro_tvm
