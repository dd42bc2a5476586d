/*!
 * \file bilstm_ffi.h
 * \brief The bidirectional LSTM for tvm-ffi callers: checks its arguments, then runs the kernel on TVM's thread pool.
 *
 * Destination-passing style, outputs last, as the Relax VM calls it. All tensors are dense, row-major and on the CPU;
 * floats are float32 and lengths int64. Shape legend: B batch, N steps, I input, H hidden.
 *
 * Errors: TypeError for a wrong dtype, ValueError for a wrong rank, shape, device, stride or alignment, for a length
 * outside of 1 ... N and for an output that overlaps another tensor. The outputs are then untouched.
 *
 * Threads: those of TVM's pool, if libtvm_runtime is loaded in the process; otherwise one. A parallel region of TVM
 * cannot be nested, so these functions must not be called from inside one (the Relax VM calls them from outside).
 */
#ifndef KOKORO_TVM_BILSTM_BILSTM_FFI_H_
#define KOKORO_TVM_BILSTM_BILSTM_FFI_H_

#include <tvm/ffi/container/tensor.h>

namespace kokoro_tvm {
namespace bilstm {

using tvm::ffi::TensorView;

/*!
 * \brief x f32[B,N,I], lengths i64[B], w_ih f32[2,4H,I], w_hh f32[2,4H,H], b_ih f32[2,4H], b_hh f32[2,4H]
 *        -> y f32[B,N,2H], starting from zero states.
 */
void BiLstm(TensorView x, TensorView lengths, TensorView w_ih, TensorView w_hh, TensorView b_ih, TensorView b_hh,
            TensorView y);

/*! \brief As BiLstm, with initial states h0, c0 f32[2,B,H] -> y and final states h_n, c_n f32[2,B,H]. */
void BiLstmStateful(TensorView x, TensorView lengths, TensorView w_ih, TensorView w_hh, TensorView b_ih,
                    TensorView b_hh, TensorView h0, TensorView c0, TensorView y, TensorView h_n, TensorView c_n);

/*!
 * \brief The recurrence alone: gates f32[B,N,8H] (w_ih x + b_ih + b_hh, the forward direction's 4H first), lengths i64[B],
 *        w_hh f32[2,4H,H] -> y f32[B,N,2H]. For a projection that is made elsewhere, in another precision.
 */
void BiLstmRecurrence(TensorView gates, TensorView lengths, TensorView w_hh, TensorView y);

}  // namespace bilstm
}  // namespace kokoro_tvm

#endif  // KOKORO_TVM_BILSTM_BILSTM_FFI_H_
