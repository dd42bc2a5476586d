/*! \file bilstm_ffi.cc \brief See bilstm_ffi.h. */
#include "bilstm_ffi.h"

#include <dlfcn.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <atomic>
#include <initializer_list>
#include <memory>
#include <optional>
#include <sstream>
#include <string>

#include "bilstm.h"

namespace kokoro_tvm {
namespace bilstm {
namespace {

// ---------------------------------------------------------------------------------------------------------- checking

template <class Sizes>
std::string ShapeText(const Sizes& sizes) {
  std::ostringstream text;
  const char* separator = "[";
  for (int64_t size : sizes) {
    text << separator << size;
    separator = ", ";
  }
  text << (sizes.size() ? "]" : "[]");
  return text.str();
}

std::string DTypeText(DLDataType dtype) { return std::string(tvm::ffi::DLDataTypeToString(dtype)); }

/*! \brief Check dtype, device, rank, layout and alignment, in this order. */
void CheckTensor(const char* name, const TensorView& t, DLDataTypeCode code, int bits, int rank) {
  const DLDataType want{static_cast<uint8_t>(code), static_cast<uint8_t>(bits), 1};
  const DLDataType got = t.dtype();
  if (got.code != want.code || got.bits != want.bits || got.lanes != 1) {
    TVM_FFI_THROW(TypeError) << "bilstm: " << name << " has dtype " << DTypeText(got) << ", expected "
                             << DTypeText(want);
  }
  if (t.device().device_type != kDLCPU) {
    TVM_FFI_THROW(ValueError) << "bilstm: " << name << " is on device type " << t.device().device_type
                              << ", expected the CPU (" << kDLCPU << ")";
  }
  if (t.ndim() != rank) {
    TVM_FFI_THROW(ValueError) << "bilstm: " << name << " has shape " << ShapeText(t.shape()) << ", expected " << rank
                              << " dimensions";
  }
  if (!t.IsContiguous()) {
    TVM_FFI_THROW(ValueError) << "bilstm: " << name << " has strides " << ShapeText(t.strides()) << " for shape "
                              << ShapeText(t.shape()) << ", expected a contiguous tensor";
  }
}

void CheckShape(const char* name, const TensorView& t, std::initializer_list<int64_t> want, const char* meaning) {
  if (!std::equal(want.begin(), want.end(), t.shape().begin(), t.shape().end())) {
    TVM_FFI_THROW(ValueError) << "bilstm: " << name << " has shape " << ShapeText(t.shape()) << ", expected "
                              << ShapeText(want) << " = " << meaning;
  }
}

template <class T>
T* Data(const char* name, const TensorView& t) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(t.data_ptr()) + t.byte_offset();
  if (address % alignof(T) != 0) {
    TVM_FFI_THROW(ValueError) << "bilstm: " << name << " is at address " << address << ", expected a multiple of "
                              << alignof(T);
  }
  return reinterpret_cast<T*>(address);
}

struct Named {
  const char* name;
  const TensorView& tensor;
};

void CheckOverlap(const Named& output, const Named& other) {
  const auto begin = [](const TensorView& t) { return reinterpret_cast<uintptr_t>(t.data_ptr()) + t.byte_offset(); };
  const auto end = [&](const TensorView& t) {
    return begin(t) + static_cast<uintptr_t>(t.numel()) * (t.dtype().bits / 8);
  };
  if (begin(output.tensor) < end(other.tensor) && begin(other.tensor) < end(output.tensor)) {
    TVM_FFI_THROW(ValueError) << "bilstm: output " << output.name << " overlaps " << other.name
                              << ", expected memory of its own";
  }
}

// --------------------------------------------------------------------------------------------------------- threading

/*! \brief The part of TVM's C back-end interface in use here. Declared, not included: only libtvm_ffi is linked. */
struct ParallelGroupEnv {
  void* sync_handle;
  int32_t num_task;
};
using ParallelLambda = int (*)(int task_id, ParallelGroupEnv* env, void* data);
using ParallelLaunch = int (*)(ParallelLambda lambda, void* data, int num_task);

ParallelLaunch FindParallelLaunch() {
  constexpr const char* kSymbol = "TVMBackendParallelLaunch";
  void* symbol = dlsym(RTLD_DEFAULT, kSymbol);
#if defined(RTLD_NOLOAD)
  // Loaded, but its symbols kept local.
  for (const char* library : {"libtvm_runtime.so", "libtvm.so", "libtvm_runtime.dylib"}) {
    if (symbol) break;
    if (void* handle = dlopen(library, RTLD_NOLOAD | RTLD_LAZY)) symbol = dlsym(handle, kSymbol);
  }
#endif
  return reinterpret_cast<ParallelLaunch>(symbol);
}

struct Job {
  std::atomic<int64_t> next;
  int64_t count;
  const std::function<void(int64_t)>& task;
};

int RunJob(int, ParallelGroupEnv*, void* data) {
  Job& job = *static_cast<Job*>(data);
  for (int64_t i; (i = job.next.fetch_add(1)) < job.count;) job.task(i);
  return 0;
}

/*! \brief TVM's pool as it is configured now. Looked up at every call, as TVM may be loaded after this library. */
Executor TvmExecutor() {
  const auto num_threads = tvm::ffi::Function::GetGlobal("runtime.NumThreads");
  const ParallelLaunch launch = num_threads ? FindParallelLaunch() : nullptr;
  if (!launch) return {};
  const int64_t threads = std::max<int64_t>(1, (*num_threads)().cast<int64_t>());
  return {threads, [launch, threads](int64_t count, const std::function<void(int64_t)>& task) {
            Job job{{0}, count, task};
            // Only the pool itself can fail here, and then it has set the error.
            TVM_FFI_CHECK_SAFE_CALL(launch(RunJob, &job, static_cast<int>(std::min(threads, count))));
          }};
}

// ---------------------------------------------------------------------------------------------------------- adapting

/*! \brief Scratch memory that a thread keeps: a call would otherwise spend its time on page faults. */
void* Scratch(size_t bytes) {
  thread_local std::unique_ptr<char[]> memory;
  thread_local size_t size = 0;
  if (size < bytes) {
    size = 0;
    memory.reset(new char[bytes]);
    size = bytes;
  }
  return memory.get();
}

void CheckLengths(const int64_t* lengths, const Shape& shape, const char* of) {
  for (int64_t b = 0; b < shape.batch; ++b) {
    if (lengths[b] < 1 || lengths[b] > shape.steps) {
      TVM_FFI_THROW(ValueError) << "bilstm: lengths[" << b << "] is " << lengths[b] << ", expected 1 to " << shape.steps
                                << " (the steps of " << of << ")";
    }
  }
}

void RunOnPool(const Shape& shape, const Arrays& arrays) {
  const Executor executor = TvmExecutor();
  Run(shape, arrays, executor, Scratch(ScratchBytes(shape, executor.num_threads)));
}

struct States {
  TensorView h0, c0, h_n, c_n;
};

void CheckAndRun(const TensorView& x, const TensorView& lengths, const TensorView& w_ih, const TensorView& w_hh,
                 const TensorView& b_ih, const TensorView& b_hh, const TensorView& y, const States* states) {
  // 1. Validate.
  CheckTensor("x", x, kDLFloat, 32, 3);
  CheckTensor("lengths", lengths, kDLInt, 64, 1);
  CheckTensor("w_ih", w_ih, kDLFloat, 32, 3);
  CheckTensor("w_hh", w_hh, kDLFloat, 32, 3);
  CheckTensor("b_ih", b_ih, kDLFloat, 32, 2);
  CheckTensor("b_hh", b_hh, kDLFloat, 32, 2);
  CheckTensor("y", y, kDLFloat, 32, 3);
  const Shape shape{x.size(0), x.size(1), x.size(2), w_hh.size(2)};
  const int64_t B = shape.batch, N = shape.steps, I = shape.input, H = shape.hidden;
  if (B < 1 || N < 1 || I < 1) {
    TVM_FFI_THROW(ValueError) << "bilstm: x has shape " << ShapeText(x.shape()) << ", expected no empty dimension";
  }
  if (H < 1) {
    TVM_FFI_THROW(ValueError) << "bilstm: w_hh has shape " << ShapeText(w_hh.shape())
                              << ", expected at least one hidden unit";
  }
  CheckShape("lengths", lengths, {B}, "[batch]");
  CheckShape("w_ih", w_ih, {2, 4 * H, I}, "[2, 4 * hidden, input]");
  CheckShape("w_hh", w_hh, {2, 4 * H, H}, "[2, 4 * hidden, hidden]");
  CheckShape("b_ih", b_ih, {2, 4 * H}, "[2, 4 * hidden]");
  CheckShape("b_hh", b_hh, {2, 4 * H}, "[2, 4 * hidden]");
  CheckShape("y", y, {B, N, 2 * H}, "[batch, steps, 2 * hidden]");

  Arrays arrays{};
  arrays.x = Data<float>("x", x);
  arrays.lengths = Data<int64_t>("lengths", lengths);
  arrays.w_ih = Data<float>("w_ih", w_ih);
  arrays.w_hh = Data<float>("w_hh", w_hh);
  arrays.b_ih = Data<float>("b_ih", b_ih);
  arrays.b_hh = Data<float>("b_hh", b_hh);
  arrays.y = Data<float>("y", y);
  const Named inputs[] = {{"x", x},       {"lengths", lengths}, {"w_ih", w_ih},
                          {"w_hh", w_hh}, {"b_ih", b_ih},       {"b_hh", b_hh}};
  for (const Named& input : inputs) CheckOverlap({"y", y}, input);

  if (states) {
    const Named all[] = {{"h0", states->h0}, {"c0", states->c0}, {"h_n", states->h_n}, {"c_n", states->c_n}};
    for (const Named& state : all) {
      CheckTensor(state.name, state.tensor, kDLFloat, 32, 3);
      CheckShape(state.name, state.tensor, {2, B, H}, "[2, batch, hidden]");
      CheckOverlap({"y", y}, state);
    }
    for (const Named& output : {all[2], all[3]}) {
      for (const Named& input : inputs) CheckOverlap(output, input);
      for (const Named& input : {all[0], all[1]}) CheckOverlap(output, input);
    }
    CheckOverlap(all[2], all[3]);
    arrays.h0 = Data<float>("h0", states->h0);
    arrays.c0 = Data<float>("c0", states->c0);
    arrays.h_n = Data<float>("h_n", states->h_n);
    arrays.c_n = Data<float>("c_n", states->c_n);
  }
  CheckLengths(arrays.lengths, shape, "x");

  // 2. Run.
  RunOnPool(shape, arrays);
}

}  // namespace

void BiLstm(TensorView x, TensorView lengths, TensorView w_ih, TensorView w_hh, TensorView b_ih, TensorView b_hh,
            TensorView y) {
  CheckAndRun(x, lengths, w_ih, w_hh, b_ih, b_hh, y, nullptr);
}

void BiLstmStateful(TensorView x, TensorView lengths, TensorView w_ih, TensorView w_hh, TensorView b_ih,
                    TensorView b_hh, TensorView h0, TensorView c0, TensorView y, TensorView h_n, TensorView c_n) {
  const States states{h0, c0, h_n, c_n};
  CheckAndRun(x, lengths, w_ih, w_hh, b_ih, b_hh, y, &states);
}

void BiLstmRecurrence(TensorView gates, TensorView lengths, TensorView w_hh, TensorView y) {
  // 1. Validate.
  CheckTensor("gates", gates, kDLFloat, 32, 3);
  CheckTensor("lengths", lengths, kDLInt, 64, 1);
  CheckTensor("w_hh", w_hh, kDLFloat, 32, 3);
  CheckTensor("y", y, kDLFloat, 32, 3);
  const Shape shape{gates.size(0), gates.size(1), 0, w_hh.size(2)};
  const int64_t B = shape.batch, N = shape.steps, H = shape.hidden;
  if (B < 1 || N < 1) {
    TVM_FFI_THROW(ValueError) << "bilstm: gates has shape " << ShapeText(gates.shape())
                              << ", expected no empty dimension";
  }
  if (H < 1) {
    TVM_FFI_THROW(ValueError) << "bilstm: w_hh has shape " << ShapeText(w_hh.shape())
                              << ", expected at least one hidden unit";
  }
  CheckShape("gates", gates, {B, N, 8 * H}, "[batch, steps, 8 * hidden]");
  CheckShape("lengths", lengths, {B}, "[batch]");
  CheckShape("w_hh", w_hh, {2, 4 * H, H}, "[2, 4 * hidden, hidden]");
  CheckShape("y", y, {B, N, 2 * H}, "[batch, steps, 2 * hidden]");
  Arrays arrays{};
  arrays.gates = Data<float>("gates", gates);
  arrays.lengths = Data<int64_t>("lengths", lengths);
  arrays.w_hh = Data<float>("w_hh", w_hh);
  arrays.y = Data<float>("y", y);
  const Named inputs[] = {{"gates", gates}, {"lengths", lengths}, {"w_hh", w_hh}};
  for (const Named& input : inputs) CheckOverlap({"y", y}, input);
  CheckLengths(arrays.lengths, shape, "gates");

  // 2. Run.
  RunOnPool(shape, arrays);
}

}  // namespace bilstm
}  // namespace kokoro_tvm
