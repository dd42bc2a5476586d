/*! \file kernels_avx512.cc \brief The inner kernels for AVX-512. Compiled with -mavx512f -mavx2 -mfma. */
#include <immintrin.h>

#include "kernels_impl.h"

namespace kokoro_tvm {
namespace bilstm {
namespace {

struct Avx512 {
  using Reg = __m512;
  static constexpr int64_t kLanes = 16;
  static constexpr int kMaxRows = 4;
  static constexpr int kVectors = 2, kCols = 8;
  static constexpr bool kSide = true;

  static Reg Zero() { return _mm512_setzero_ps(); }
  static Reg Set(float v) { return _mm512_set1_ps(v); }
  static Reg Load(const float* p) { return _mm512_loadu_ps(p); }
  static void Store(float* p, Reg v) { _mm512_storeu_ps(p, v); }
  static __mmask16 Mask(int64_t n) { return static_cast<__mmask16>((1u << n) - 1u); }
  static Reg LoadPartial(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(Mask(n), p); }
  static void StorePartial(float* p, Reg v, int64_t n) { _mm512_mask_storeu_ps(p, Mask(n), v); }
  static Reg Add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static Reg Sub(Reg a, Reg b) { return _mm512_sub_ps(a, b); }
  static Reg Mul(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
  static Reg Div(Reg a, Reg b) { return _mm512_div_ps(a, b); }
  static Reg MulAdd(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
  static Reg Max(Reg a, Reg b) { return _mm512_max_ps(a, b); }
  static Reg Min(Reg a, Reg b) { return _mm512_min_ps(a, b); }
  static Reg Abs(Reg v) { return _mm512_abs_ps(v); }
  static Reg CopySign(Reg magnitude, Reg sign) {
    // Bits: sign where the mask is set, magnitude elsewhere (truth table of "mask ? a : b").
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(_mm512_set1_epi32(static_cast<int>(0x80000000u)),
                                                         _mm512_castps_si512(sign), _mm512_castps_si512(magnitude),
                                                         0xCA));
  }
  static Reg Round(Reg v) { return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static Reg Pow2(Reg n) {
    const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(biased, 23));
  }
  static __m256 Halve(Reg v) {
    const __m256 upper = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1));
    return _mm256_add_ps(_mm512_castps512_ps256(v), upper);
  }
  // Both add lanes i and i + 8 first, then i and i + 4, i + 2, i + 1: the same bits. Two registers meet in an addition:
  // a blend takes half of the lanes of each, a shuffle brings the other halves to the same places.
  static void AddSums4(float* out, Reg a, Reg b, Reg c, Reg d) {
    const auto fold4 = [](__m256 p, __m256 q) {
      return _mm256_add_ps(_mm256_blend_ps(p, q, 0xF0), _mm256_permute2f128_ps(p, q, 0x21));
    };
    const __m256 ac = fold4(Halve(a), Halve(c)), bd = fold4(Halve(b), Halve(d));
    const __m256 pairs = _mm256_add_ps(_mm256_blend_ps(ac, bd, 0xCC), _mm256_shuffle_ps(ac, bd, 0x4E));
    const __m128 ab = _mm256_castps256_ps128(pairs), cd = _mm256_extractf128_ps(pairs, 1);
    const __m128 sums = _mm_add_ps(_mm_shuffle_ps(ab, cd, 0x88), _mm_shuffle_ps(ab, cd, 0xDD));
    _mm_storeu_ps(out, _mm_add_ps(sums, _mm_loadu_ps(out)));
  }
  static void AddSums4x4(float* out, int64_t ld, const Reg* sums) {
    const __m512i swap4 = _mm512_setr_epi32(4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26, 27);
    const auto fold8 = [](Reg p, Reg q) {
      return _mm512_add_ps(_mm512_mask_blend_ps(0xFF00, p, q), _mm512_shuffle_f32x4(p, q, 0x4E));
    };
    const auto fold4 = [&](Reg p, Reg q) {
      return _mm512_add_ps(_mm512_mask_blend_ps(0xF0F0, p, q), _mm512_permutex2var_ps(p, swap4, q));
    };
    const auto fold2 = [](Reg p, Reg q) {
      return _mm512_add_ps(_mm512_mask_blend_ps(0xCCCC, p, q), _mm512_shuffle_ps(p, q, 0x4E));
    };
    const auto fold1 = [](Reg p, Reg q) {
      return _mm512_add_ps(_mm512_mask_blend_ps(0xAAAA, p, q),
                           _mm512_permute_ps(_mm512_mask_blend_ps(0xAAAA, q, p), 0xB1));
    };
    // A column's four rows end in lanes 0, 4, 8 and 12; columns 1 to 3 come beside them.
    const auto column = [&](const Reg* s) { return fold4(fold8(s[0], s[2]), fold8(s[1], s[3])); };
    const Reg all = fold1(fold2(column(sums), column(sums + 8)), fold2(column(sums + 4), column(sums + 12)));
    const auto add = [&](int row, __m128 v) {
      _mm_storeu_ps(out + row * ld, _mm_add_ps(v, _mm_loadu_ps(out + row * ld)));
    };
    add(0, _mm512_castps512_ps128(all));
    add(1, _mm512_extractf32x4_ps(all, 1));
    add(2, _mm512_extractf32x4_ps(all, 2));
    add(3, _mm512_extractf32x4_ps(all, 3));
  }
  static void StoreColumns4(float* out, int64_t ld, int64_t n, Reg a, Reg b, Reg c, Reg d) {
    // 4 x 4 transpositions in each 128-bit part.
    const auto low = [](Reg p, Reg q) { return _mm512_castps_pd(_mm512_unpacklo_ps(p, q)); };
    const auto high = [](Reg p, Reg q) { return _mm512_castps_pd(_mm512_unpackhi_ps(p, q)); };
    const Reg rows[4] = {_mm512_castpd_ps(_mm512_unpacklo_pd(low(a, b), low(c, d))),
                         _mm512_castpd_ps(_mm512_unpackhi_pd(low(a, b), low(c, d))),
                         _mm512_castpd_ps(_mm512_unpacklo_pd(high(a, b), high(c, d))),
                         _mm512_castpd_ps(_mm512_unpackhi_pd(high(a, b), high(c, d)))};
    Unroll<4>([&](int i) {
      if (i < n) _mm_storeu_ps(out + i * ld, _mm512_castps512_ps128(rows[i]));
      if (i + 4 < n) _mm_storeu_ps(out + (i + 4) * ld, _mm512_extractf32x4_ps(rows[i], 1));
      if (i + 8 < n) _mm_storeu_ps(out + (i + 8) * ld, _mm512_extractf32x4_ps(rows[i], 2));
      if (i + 12 < n) _mm_storeu_ps(out + (i + 12) * ld, _mm512_extractf32x4_ps(rows[i], 3));
    });
  }
};

}  // namespace

const Kernels kAvx512Kernels = {LanesKernel<Avx512>, ProjectKernel<Avx512>, RecurKernel<Avx512>,
                                RecurAndProjectKernel<Avx512>, CellKernel<Avx512>};

}  // namespace bilstm
}  // namespace kokoro_tvm
