/*!
 * \file kernels.h
 * \brief The inner kernels that exist once per instruction set; bilstm.cc schedules them.
 */
#ifndef KOKORO_TVM_BILSTM_KERNELS_H_
#define KOKORO_TVM_BILSTM_KERNELS_H_

#include <cstdint>

namespace kokoro_tvm {
namespace bilstm {

/*! \brief Rows of scratch matrices are padded to this many floats, one cache line, so that they start on one. */
constexpr int64_t kRowAlign = 16;

/*! \brief Rows that a projection takes at a time, as lanes. */
constexpr int64_t kGroupRows = 32;

/*!
 * \brief gates = x w^T + bias: many rows at once, each in a lane of its own, so that no sum crosses lanes.
 *
 * Every sum is added up in the same order wherever its row falls, so that splitting the rows changes no bit.
 */
struct Projection {
  int64_t rows;       //!< of x and gates
  int64_t cols;       //!< of gates, rows of w: a multiple of 4
  int64_t depth;      //!< length of the sums
  const float* x;     //!< [ceil(rows / kGroupRows), depth, kGroupRows]: transposed, zeros in lanes past the rows
  const float* w;     //!< [cols, depth], dense, as PyTorch stores it: nothing has to be packed
  const float* bias;  //!< [cols]
  float* gates;       //!< [rows, ld_gates]
  int64_t ld_gates;   //
};

/*!
 * \brief gates += h w^T: one row for each running sample, so w is what has to be moved.
 *
 * Lanes run along the summed dimension. Here too the order of a sum does not depend on its row.
 */
struct Recurrence {
  int64_t rows;      //!< of h and gates
  int64_t cols;      //!< of gates, rows of w: a multiple of 4
  int64_t depth;     //!< length of the dot products
  const float* h;    //!< [rows, ldh]
  int64_t ldh;       //
  const float* w;    //!< [cols, depth], dense
  float* gates;      //!< [rows, ld_gates]
  int64_t ld_gates;  //
  bool descending;   //!< walk through w from its end: see Recur in bilstm.cc
};

struct Kernels {
  /*! \brief rows [count][depth], count <= kGroupRows -> to [depth, kGroupRows], transposed; zeros past count. */
  void (*lanes)(const float* const* rows, int64_t count, int64_t depth, float* to);
  /*! \brief The part-th of `parts` equal shares of the columns. */
  void (*project)(const Projection& args, int64_t part, int64_t parts);
  void (*recur)(const Recurrence& args);
  /*!
   * \brief Both, with the same bits: recur for one row, and a share of the columns of an unrelated projection.
   *
   * One waits for the cache and the other for the arithmetic. Null where the registers do not suffice.
   */
  void (*recur_and_project)(const Recurrence& args, const Projection& other, int64_t part, int64_t parts);
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
