/*! \file kernels_avx2.cc \brief The inner kernels for AVX2 with FMA. Compiled with -mavx2 -mfma. */
#include <immintrin.h>

#include "kernels_impl.h"

namespace kokoro_tvm {
namespace bilstm {
namespace {

struct Avx2 {
  using Reg = __m256;
  static constexpr int64_t kLanes = 8;
  static constexpr int kMaxRows = 3;
  static constexpr int kVectors = 2, kCols = 4;
  static constexpr bool kSide = false;

  static Reg Zero() { return _mm256_setzero_ps(); }
  static Reg Set(float v) { return _mm256_set1_ps(v); }
  static Reg Load(const float* p) { return _mm256_loadu_ps(p); }
  static void Store(float* p, Reg v) { _mm256_storeu_ps(p, v); }
  static __m256i Mask(int64_t n) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane);
  }
  static Reg LoadPartial(const float* p, int64_t n) { return _mm256_maskload_ps(p, Mask(n)); }
  static void StorePartial(float* p, Reg v, int64_t n) { _mm256_maskstore_ps(p, Mask(n), v); }
  static Reg Add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  static Reg Sub(Reg a, Reg b) { return _mm256_sub_ps(a, b); }
  static Reg Mul(Reg a, Reg b) { return _mm256_mul_ps(a, b); }
  static Reg Div(Reg a, Reg b) { return _mm256_div_ps(a, b); }
  static Reg MulAdd(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }
  static Reg Max(Reg a, Reg b) { return _mm256_max_ps(a, b); }
  static Reg Min(Reg a, Reg b) { return _mm256_min_ps(a, b); }
  static Reg Abs(Reg v) { return _mm256_andnot_ps(Set(-0.0f), v); }
  static Reg CopySign(Reg magnitude, Reg sign) { return _mm256_or_ps(Abs(magnitude), _mm256_and_ps(Set(-0.0f), sign)); }
  static Reg Round(Reg v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static Reg Pow2(Reg n) {
    const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
  }
  static void AddSums4(float* out, Reg a, Reg b, Reg c, Reg d) {
    // Half of a transposition, then sums: fewer micro-operations than horizontal additions.
    const __m256d ab = _mm256_castps_pd(_mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b)));
    const __m256d cd = _mm256_castps_pd(_mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d)));
    const Reg pairs =
        _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(ab, cd)), _mm256_castpd_ps(_mm256_unpackhi_pd(ab, cd)));
    const __m128 sums = _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
    _mm_storeu_ps(out, _mm_add_ps(sums, _mm_loadu_ps(out)));
  }
  static void StoreColumns4(float* out, int64_t ld, int64_t n, Reg a, Reg b, Reg c, Reg d) {
    // 4 x 4 transpositions in each 128-bit part.
    const auto low = [](Reg p, Reg q) { return _mm256_castps_pd(_mm256_unpacklo_ps(p, q)); };
    const auto high = [](Reg p, Reg q) { return _mm256_castps_pd(_mm256_unpackhi_ps(p, q)); };
    const Reg rows[4] = {_mm256_castpd_ps(_mm256_unpacklo_pd(low(a, b), low(c, d))),
                         _mm256_castpd_ps(_mm256_unpackhi_pd(low(a, b), low(c, d))),
                         _mm256_castpd_ps(_mm256_unpacklo_pd(high(a, b), high(c, d))),
                         _mm256_castpd_ps(_mm256_unpackhi_pd(high(a, b), high(c, d)))};
    Unroll<4>([&](int i) {
      if (i < n) _mm_storeu_ps(out + i * ld, _mm256_castps256_ps128(rows[i]));
      if (i + 4 < n) _mm_storeu_ps(out + (i + 4) * ld, _mm256_extractf128_ps(rows[i], 1));
    });
  }
};

}  // namespace

const Kernels kAvx2Kernels = {LanesKernel<Avx2>, ProjectKernel<Avx2>, RecurKernel<Avx2>, nullptr, CellKernel<Avx2>};

}  // namespace bilstm
}  // namespace kokoro_tvm
