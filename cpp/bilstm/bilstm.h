/*!
 * \file bilstm.h
 * \brief A bidirectional LSTM over a batch of sequences of different lengths: the contract of the kernel.
 *
 * Semantics: PyTorch's pack_padded_sequence -> nn.LSTM(bidirectional=True, batch_first=True) -> pad_packed_sequence,
 * for one layer, without the packing. The forward direction stops at each sample's length, the backward direction
 * starts there, outputs past the length are exactly zero and inputs past the length are never read (they may hold NaN).
 *
 *   i, f, g, o = split(w_ih x_t + b_ih + w_hh h + b_hh)
 *   c = sigmoid(f) c + sigmoid(i) tanh(g)
 *   h = sigmoid(o) tanh(c)
 *
 * Cost is proportional to the sum of the lengths, apart from zeroing the padded outputs.
 *
 * What this is not: it knows no framework, checks nothing and starts no thread. bilstm_ffi.cc checks and adapts.
 */
#ifndef KOKORO_TVM_BILSTM_BILSTM_H_
#define KOKORO_TVM_BILSTM_BILSTM_H_

#include <cstddef>
#include <cstdint>
#include <functional>

namespace kokoro_tvm {
namespace bilstm {

/*! \brief Extents, all at least 1, but input 0 with Arrays::gates. Legend: B batch, N steps (capacity), I input, H hidden. */
struct Shape {
  int64_t batch;
  int64_t steps;
  int64_t input;
  int64_t hidden;
};

/*!
 * \brief Pointers to dense row-major arrays; direction 0 is forward, 1 is backward.
 *
 * Alignment: that of the element type is enough; weights on cache lines are read about a tenth faster. Aliasing: an
 * output overlaps no other array. The gate order of the 4H rows is i, f, g, o.
 */
struct Arrays {
  const float* x;          //!< [B, N, I]
  const int64_t* lengths;  //!< [B], 0 < length <= N, in any order
  const float* w_ih;       //!< [2, 4H, I]
  const float* w_hh;       //!< [2, 4H, H]
  const float* b_ih;       //!< [2, 4H]
  const float* b_hh;       //!< [2, 4H]
  const float* h0;         //!< [2, B, H], or null for zeros
  const float* c0;         //!< [2, B, H], or null for zeros
  float* y;                //!< [B, N, 2H]: the forward direction in [..., :H], the backward one in [..., H:]
  float* h_n;              //!< [2, B, H], the state after each direction's last step, or null
  float* c_n;              //!< [2, B, H], or null
  const float* gates;      //!< [B, N, 2, 4H]: w_ih x_t + b_ih + b_hh; then x, w_ih, b_ih and b_hh are not read. Or null
};

/*!
 * \brief Runs task(0) ... task(count - 1), each exactly once and in any order, and returns when all are done.
 *
 * Tasks do not wait for one another, so a serial loop is a valid implementation. They do not throw.
 */
using ParallelFor = std::function<void(int64_t count, const std::function<void(int64_t)>& task)>;

/*! \brief The threads to use. The result has the same bits for every thread count. */
struct Executor {
  int64_t num_threads = 1;   //!< at least 1; how finely to split the work
  ParallelFor parallel_for;  //!< empty means a serial loop
};

/*! \brief A code path. Different paths round differently; one path always gives the same bits. */
enum class Isa { kAuto, kPortable, kAvx2, kAvx512, kNeon };

/*! \brief The name of a path, such as "avx2". */
const char* IsaName(Isa isa);

/*! \brief Whether the path was compiled in and this CPU can run it. kAuto and kPortable always can. */
bool IsaSupported(Isa isa);

/*! \brief The path that kAuto stands for on this CPU. */
Isa BestIsa();

/*!
 * \brief The size of the scratch memory that Run needs.
 *
 * It depends on the number of threads but not on the number of steps (about 0.9 MB for batch 1, input 640, hidden 256).
 */
size_t ScratchBytes(const Shape& shape, int64_t num_threads);

/*!
 * \brief Compute y, and h_n and c_n where given. Allocates nothing per step.
 *
 * \param shape The extents.
 * \param arrays The inputs and outputs.
 * \param executor The threads.
 * \param scratch ScratchBytes(shape, executor.num_threads) bytes of any alignment; its contents do not matter before or
 *        after. Two calls at the same time need two of them.
 * \param isa The path; must be supported.
 */
void Run(const Shape& shape, const Arrays& arrays, const Executor& executor, void* scratch, Isa isa = Isa::kAuto);

}  // namespace bilstm
}  // namespace kokoro_tvm

#endif  // KOKORO_TVM_BILSTM_BILSTM_H_
