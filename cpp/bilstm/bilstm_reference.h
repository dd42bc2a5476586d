/*!
 * \file bilstm_reference.h
 * \brief The bidirectional LSTM as plain scalar loops in double precision: what the fast kernel is judged by.
 *
 * It shares no code with the kernel, only the contract in bilstm.h.
 */
#ifndef KOKORO_TVM_BILSTM_BILSTM_REFERENCE_H_
#define KOKORO_TVM_BILSTM_BILSTM_REFERENCE_H_

#include "bilstm.h"

namespace kokoro_tvm {
namespace bilstm {

/*! \brief As Run, with states and sums in double and outputs rounded once. */
void RunReference(const Shape& shape, const Arrays& arrays);

}  // namespace bilstm
}  // namespace kokoro_tvm

#endif  // KOKORO_TVM_BILSTM_BILSTM_REFERENCE_H_
