/*! \file registry.cc \brief The names under which tvm-ffi finds the externs. Registration lines only. */
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include "bilstm/bilstm_ffi.h"

namespace {

// Loading the library twice, from two paths, is harmless: the first one keeps its names.
template <class F>
void Register(const char* name, F function) {
  if (!tvm::ffi::Function::GetGlobal(name)) tvm::ffi::reflection::GlobalDef().def(name, function);
}

TVM_FFI_STATIC_INIT_BLOCK() {
  Register("kokoro_tvm.bilstm", kokoro_tvm::bilstm::BiLstm);
  Register("kokoro_tvm.bilstm_recurrence", kokoro_tvm::bilstm::BiLstmRecurrence);
  Register("kokoro_tvm.bilstm_stateful", kokoro_tvm::bilstm::BiLstmStateful);
}

}  // namespace
