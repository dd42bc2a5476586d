/*! \file kernels_neon.cc \brief The inner kernels for 64-bit Arm, whose baseline has NEON with fused multiply-add. */
#include <arm_neon.h>

#include "kernels_impl.h"

namespace kokoro_tvm {
namespace bilstm {
namespace {

struct Neon {
  using Reg = float32x4_t;
  static constexpr int64_t kLanes = 4;
  static constexpr int kMaxRows = 6;
  static constexpr int kVectors = 4, kCols = 4;
  static constexpr bool kSide = false;

  static Reg Zero() { return vdupq_n_f32(0.0f); }
  static Reg Set(float v) { return vdupq_n_f32(v); }
  static Reg Load(const float* p) { return vld1q_f32(p); }
  static void Store(float* p, Reg v) { vst1q_f32(p, v); }
  static Reg LoadPartial(const float* p, int64_t n) {
    float lanes[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
    return vld1q_f32(lanes);
  }
  static void StorePartial(float* p, Reg v, int64_t n) {
    float lanes[4];
    vst1q_f32(lanes, v);
    for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
  }
  static Reg Add(Reg a, Reg b) { return vaddq_f32(a, b); }
  static Reg Sub(Reg a, Reg b) { return vsubq_f32(a, b); }
  static Reg Mul(Reg a, Reg b) { return vmulq_f32(a, b); }
  static Reg Div(Reg a, Reg b) { return vdivq_f32(a, b); }
  static Reg MulAdd(Reg a, Reg b, Reg c) { return vfmaq_f32(c, a, b); }
  // These return NaN where either operand is NaN, which is more than is asked.
  static Reg Max(Reg a, Reg b) { return vmaxq_f32(a, b); }
  static Reg Min(Reg a, Reg b) { return vminq_f32(a, b); }
  static Reg Abs(Reg v) { return vabsq_f32(v); }
  static Reg CopySign(Reg magnitude, Reg sign) { return vbslq_f32(vdupq_n_u32(0x80000000u), sign, magnitude); }
  static Reg Round(Reg v) { return vrndnq_f32(v); }
  static Reg Pow2(Reg n) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23));
  }
  static void AddSums4(float* out, Reg a, Reg b, Reg c, Reg d) {
    vst1q_f32(out, vaddq_f32(vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)), vld1q_f32(out)));
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

const Kernels kNeonKernels = {LanesKernel<Neon>, ProjectKernel<Neon>, RecurKernel<Neon>, nullptr, CellKernel<Neon>};

}  // namespace bilstm
}  // namespace kokoro_tvm
