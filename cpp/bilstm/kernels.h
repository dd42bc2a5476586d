/*!
 * \file kernels.h
 * \brief The two inner kernels that exist once per instruction set; bilstm.cc schedules them.
 */
#ifndef KOKORO_TVM_BILSTM_KERNELS_H_
#define KOKORO_TVM_BILSTM_KERNELS_H_

#include <cstdint>

namespace kokoro_tvm {
namespace bilstm {

/*! \brief Rows of scratch matrices are padded to this many floats, one cache line, so that they start on one. */
constexpr int64_t kRowAlign = 16;

/*!
 * \brief c[m, n] = dot(a[m, :], w[n, :]) + (bias ? bias[n] : c[m, n]).
 *
 * Both operands have the summed dimension innermost, as PyTorch stores weights: nothing has to be packed. Every dot
 * product is summed in the same order wherever its row falls in a tile, so that splitting the rows changes no bit.
 */
struct Matmul {
  int64_t rows;       //!< of a and c
  int64_t cols;       //!< of c, rows of w: a multiple of 4
  int64_t depth;      //!< length of the dot products
  const float* a;     //!< [rows, lda]
  int64_t lda;        //
  const float* w;     //!< [cols, depth], dense
  const float* bias;  //!< [cols], or null to accumulate onto c
  float* c;           //!< [rows, cols], dense
  bool descending;    //!< walk through w from its end: see Recur in bilstm.cc
};

struct Kernels {
  void (*matmul)(const Matmul& args);
  /*! \brief One step of one sample: gates [4, hidden] before activation -> c [hidden] in place, h and y [hidden]. */
  void (*cell)(int64_t hidden, const float* gates, float* c, float* h, float* y);
};

extern const Kernels kPortableKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#elif defined(__aarch64__)
extern const Kernels kNeonKernels;
#endif

}  // namespace bilstm
}  // namespace kokoro_tvm

#endif  // KOKORO_TVM_BILSTM_KERNELS_H_
