/*!
 * \file kernels_impl.h
 * \brief The inner kernels, written once over a vector type V; each kernels_<isa>.cc defines V and instantiates them.
 *
 * Each of those files has its own compiler flags. Everything here is therefore in an anonymous namespace and no inline
 * function of the standard library is used: the linker would keep one copy for all files, perhaps one that this CPU
 * cannot run.
 *
 * V provides: Reg, kLanes, kMaxRows (rows of a that fit the register file beside 4 rows of w), Zero, Set, Load, Store,
 * LoadPartial (zeros in the rest) and StorePartial of the first n lanes, Add, Sub, Mul, Div, MulAdd(a, b, c) = a b + c,
 * Max(a, b) and Min(a, b) that return b where b is NaN, Abs, CopySign(magnitude, sign), Round (to nearest),
 * Pow2 of an integral value in [-126, 127], and StoreSums4(out, addend, a, b, c, d): out[i] = addend[i] + sum of the
 * lanes of the i-th register.
 */
#ifndef KOKORO_TVM_BILSTM_KERNELS_IMPL_H_
#define KOKORO_TVM_BILSTM_KERNELS_IMPL_H_

#include "kernels.h"

namespace kokoro_tvm {
namespace bilstm {
namespace {

// Rows of w that stay in the L1 cache while all rows of a pass by: 8 rows of 640 floats are 20 KB.
constexpr int64_t kBlockCols = 8;

template <class V, int kRows, int kCols>
inline void Tile(const float* a, int64_t lda, const float* w, int64_t depth, const float* addend, int64_t ld_addend,
                 float* c, int64_t ldc) {
  using Reg = typename V::Reg;
  Reg acc[kRows][kCols];
  for (int m = 0; m < kRows; ++m) {
    for (int n = 0; n < kCols; ++n) acc[m][n] = V::Zero();
  }
  // All of x and one register of w at a time: for 3 x 4 accumulators these are exactly the 16 registers of AVX2.
  Reg x[kRows];
  int64_t k = 0;
  for (; k + V::kLanes <= depth; k += V::kLanes) {
    for (int m = 0; m < kRows; ++m) x[m] = V::Load(a + m * lda + k);
    for (int n = 0; n < kCols; ++n) {
      const Reg wn = V::Load(w + n * depth + k);
      for (int m = 0; m < kRows; ++m) acc[m][n] = V::MulAdd(x[m], wn, acc[m][n]);
    }
  }
  if (k < depth) {
    const int64_t rest = depth - k;
    for (int m = 0; m < kRows; ++m) x[m] = V::LoadPartial(a + m * lda + k, rest);
    for (int n = 0; n < kCols; ++n) {
      const Reg wn = V::LoadPartial(w + n * depth + k, rest);
      for (int m = 0; m < kRows; ++m) acc[m][n] = V::MulAdd(x[m], wn, acc[m][n]);
    }
  }
  for (int m = 0; m < kRows; ++m) {
    for (int n = 0; n < kCols; n += 4) {
      V::StoreSums4(c + m * ldc + n, addend + m * ld_addend + n, acc[m][n], acc[m][n + 1], acc[m][n + 2],
                    acc[m][n + 3]);
    }
  }
}

template <class V, int kRows>
inline void TileRow(int64_t rows, const Matmul& g, int64_t row, int64_t col, int64_t cols) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return TileRow<V, kRows - 1>(rows, g, row, col, cols);
  }
  const float* a = g.a + row * g.lda;
  float* c = g.c + row * g.cols;
  const float* addend = g.bias ? g.bias : c;
  const int64_t ld_addend = g.bias ? 0 : g.cols;
  const int64_t end = col + cols;
  // A single row has too few accumulators to hide the latency of the addition unless it takes 8 columns at once.
  constexpr int kWide = kRows == 1 ? 8 : 4;
  for (; col + kWide <= end; col += kWide) {
    Tile<V, kRows, kWide>(a, g.lda, g.w + col * g.depth, g.depth, addend + col, ld_addend, c + col, g.cols);
  }
  for (; col < end; col += 4) {
    Tile<V, kRows, 4>(a, g.lda, g.w + col * g.depth, g.depth, addend + col, ld_addend, c + col, g.cols);
  }
}

template <class V>
void MatmulKernel(const Matmul& g) {
  const int64_t blocks = (g.cols + kBlockCols - 1) / kBlockCols;
  const int64_t tiles = (g.rows + V::kMaxRows - 1) / V::kMaxRows;
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t col = (g.descending ? blocks - 1 - i : i) * kBlockCols;
    const int64_t cols = g.cols - col < kBlockCols ? g.cols - col : kBlockCols;
    // Rows are spread evenly: 4 rows as 2 + 2, not as 3 + 1.
    for (int64_t t = 0, row = 0; t < tiles; ++t) {
      const int64_t rows = (g.rows - row) / (tiles - t);
      TileRow<V, V::kMaxRows>(rows, g, row, col, cols);
      row += rows;
    }
  }
}

// exp(x) = scale + scale * p with scale = 2^n, n = round(x / ln 2), and p = exp(x - n ln 2) - 1, accurate relative to
// itself. x must be in [-87, 88].
template <class V>
struct ExpParts {
  typename V::Reg scale;
  typename V::Reg p;
};

template <class V>
inline ExpParts<V> SplitExp(typename V::Reg x) {
  // ln 2 in two parts: the upper has so few bits that n * upper is exact without a fused multiply-add.
  constexpr float kInvLn2 = 1.44269504f, kMinusLn2Upper = -0.693359375f, kMinusLn2Lower = 2.12194440e-4f;
  // (exp(r) - 1 - r) / r^2 on |r| <= ln 2 / 2, fitted (Remez) for the relative error of exp(r) - 1, which is 3e-10
  // before rounding.
  constexpr float kCoefficients[] = {1.98458816e-4f, 1.39406684e-3f, 8.33338965e-3f,
                                     4.16663587e-2f, 1.66666657e-1f, 0.5f};
  const auto n = V::Round(V::Mul(x, V::Set(kInvLn2)));
  const auto r = V::MulAdd(n, V::Set(kMinusLn2Lower), V::MulAdd(n, V::Set(kMinusLn2Upper), x));
  auto q = V::Set(kCoefficients[0]);
  for (int i = 1; i < 6; ++i) q = V::MulAdd(q, r, V::Set(kCoefficients[i]));
  return {V::Pow2(n), V::MulAdd(V::Mul(r, r), q, r)};
}

template <class V>
inline typename V::Reg Sigmoid(typename V::Reg x) {
  const auto one = V::Set(1.0f);
  const auto y = V::Max(V::Set(-87.0f), V::Min(V::Set(88.0f), V::Sub(V::Zero(), x)));
  const ExpParts<V> e = SplitExp<V>(y);
  return V::Div(one, V::Add(one, V::MulAdd(e.scale, e.p, e.scale)));
}

// With m = exp(-2 |x|) - 1: tanh |x| = -m / (m + 2), without cancellation near 0 and without overflow.
template <class V>
inline typename V::Reg Tanh(typename V::Reg x) {
  const auto y = V::Max(V::Set(-40.0f), V::Mul(V::Set(-2.0f), V::Abs(x)));
  const ExpParts<V> e = SplitExp<V>(y);
  const auto m = V::MulAdd(e.scale, e.p, V::Sub(e.scale, V::Set(1.0f)));
  return V::CopySign(V::Div(m, V::Add(m, V::Set(2.0f))), x);
}

template <class V>
inline void CellLanes(typename V::Reg i, typename V::Reg f, typename V::Reg g, typename V::Reg o, typename V::Reg* c,
                      typename V::Reg* h) {
  *c = V::MulAdd(Sigmoid<V>(f), *c, V::Mul(Sigmoid<V>(i), Tanh<V>(g)));
  *h = V::Mul(Sigmoid<V>(o), Tanh<V>(*c));
}

template <class V>
void CellKernel(int64_t hidden, const float* gates, float* c, float* h, float* y) {
  using Reg = typename V::Reg;
  Reg ci, hi;
  int64_t u = 0;
  for (; u + V::kLanes <= hidden; u += V::kLanes) {
    const float* g = gates + u;
    ci = V::Load(c + u);
    CellLanes<V>(V::Load(g), V::Load(g + hidden), V::Load(g + 2 * hidden), V::Load(g + 3 * hidden), &ci, &hi);
    V::Store(c + u, ci);
    V::Store(h + u, hi);
    V::Store(y + u, hi);
  }
  if (u < hidden) {
    const int64_t n = hidden - u;
    const float* g = gates + u;
    ci = V::LoadPartial(c + u, n);
    CellLanes<V>(V::LoadPartial(g, n), V::LoadPartial(g + hidden, n), V::LoadPartial(g + 2 * hidden, n),
                 V::LoadPartial(g + 3 * hidden, n), &ci, &hi);
    V::StorePartial(c + u, ci, n);
    V::StorePartial(h + u, hi, n);
    V::StorePartial(y + u, hi, n);
  }
}

}  // namespace
}  // namespace bilstm
}  // namespace kokoro_tvm

#endif  // KOKORO_TVM_BILSTM_KERNELS_IMPL_H_
