/*! \file kernels_portable.cc \brief The inner kernels in plain C++, for any CPU; the compiler may vectorise them. */
#include <cmath>
#include <cstring>

#include "kernels_impl.h"

namespace kokoro_tvm {
namespace bilstm {
namespace {

struct Portable {
  static constexpr int64_t kLanes = 4;
  static constexpr int kMaxRows = 3;
  static constexpr int kVectors = 2, kCols = 4;
  static constexpr bool kSide = false;
  struct Reg {
    float v[kLanes];
  };

  template <class F>
  static Reg Each(F f) {
    Reg r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = f(i);
    return r;
  }
  static Reg Zero() { return Set(0.0f); }
  static Reg Set(float v) {
    return Each([&](int) { return v; });
  }
  static Reg Load(const float* p) {
    return Each([&](int i) { return p[i]; });
  }
  static void Store(float* p, Reg v) {
    for (int i = 0; i < kLanes; ++i) p[i] = v.v[i];
  }
  static Reg LoadPartial(const float* p, int64_t n) {
    return Each([&](int i) { return i < n ? p[i] : 0.0f; });
  }
  static void StorePartial(float* p, Reg v, int64_t n) {
    for (int i = 0; i < n; ++i) p[i] = v.v[i];
  }
  static Reg Add(Reg a, Reg b) {
    return Each([&](int i) { return a.v[i] + b.v[i]; });
  }
  static Reg Sub(Reg a, Reg b) {
    return Each([&](int i) { return a.v[i] - b.v[i]; });
  }
  static Reg Mul(Reg a, Reg b) {
    return Each([&](int i) { return a.v[i] * b.v[i]; });
  }
  static Reg Div(Reg a, Reg b) {
    return Each([&](int i) { return a.v[i] / b.v[i]; });
  }
  // Not fused: without the instruction, std::fma is a slow library call.
  static Reg MulAdd(Reg a, Reg b, Reg c) {
    return Each([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
  }
  static Reg Max(Reg a, Reg b) {
    return Each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  static Reg Min(Reg a, Reg b) {
    return Each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
  }
  static Reg Abs(Reg v) {
    return Each([&](int i) { return ::fabsf(v.v[i]); });
  }
  static Reg CopySign(Reg magnitude, Reg sign) {
    return Each([&](int i) { return ::copysignf(magnitude.v[i], sign.v[i]); });
  }
  // Adding and subtracting 1.5 * 2^23 rounds any value of the range in use, which is below 2^7.
  static Reg Round(Reg v) {
    return Each([&](int i) { return (v.v[i] + 12582912.0f) - 12582912.0f; });
  }
  static Reg Pow2(Reg n) {
    return Each([&](int i) {
      // NaN has no integer value; any scale will do, as the other factor is NaN too.
      const int32_t exponent = n.v[i] == n.v[i] ? static_cast<int32_t>(n.v[i]) : 0;
      const uint32_t bits = static_cast<uint32_t>(exponent + 127) << 23;
      float scale;
      memcpy(&scale, &bits, sizeof(scale));
      return scale;
    });
  }
  static float Sum(Reg a) { return (a.v[0] + a.v[1]) + (a.v[2] + a.v[3]); }
  static void AddSums4(float* out, Reg a, Reg b, Reg c, Reg d) {
    const float sums[4] = {Sum(a), Sum(b), Sum(c), Sum(d)};
    for (int i = 0; i < 4; ++i) out[i] += sums[i];
  }
  static void StoreColumns4(float* out, int64_t ld, int64_t n, Reg a, Reg b, Reg c, Reg d) {
    float lanes[16];
    Store(lanes, a), Store(lanes + 4, b), Store(lanes + 8, c), Store(lanes + 12, d);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < 4; ++j) out[i * ld + j] = lanes[4 * j + i];
    }
  }
};

}  // namespace

const Kernels kPortableKernels = {LanesKernel<Portable>, ProjectKernel<Portable>, RecurKernel<Portable>, nullptr, CellKernel<Portable>};

}  // namespace bilstm
}  // namespace kokoro_tvm
