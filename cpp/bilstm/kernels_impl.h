/*!
 * \file kernels_impl.h
 * \brief The inner kernels, written once over a vector type V; each kernels_<isa>.cc defines V and instantiates them.
 *
 * Each of those files has its own compiler flags. Everything here is therefore in an anonymous namespace and no inline
 * function of the standard library is used: the linker would keep one copy for all files, perhaps one that this CPU
 * cannot run.
 *
 * V provides: Reg, kLanes, kMaxRows (rows of a tile: they fit the register file beside 4 rows of w), Zero, Set, Load,
 * Store, LoadPartial (zeros in the rest) and StorePartial of the first n lanes, Add, Sub, Mul, Div,
 * MulAdd(a, b, c) = a b + c, Max(a, b) and Min(a, b) that return b where b is NaN, Abs, CopySign(magnitude, sign), Round
 * (to nearest), Pow2 of an integral value in [-126, 127], and AddSums4(out, a, b, c, d): out[i] += sum of the lanes of
 * the i-th register, and with 16 lanes AddSums4x4(out, ld, s), to the same bits: out[m ld + n] += sum of the lanes of
 * s[4 n + m]; StoreColumns4(out, ld, n, a, b, c, d): the i-th of the first n lanes of the four side by side at
 * out + i ld. For the projection: kVectors of rows by kCols columns (a multiple of 4) that fit the register file beside
 * kVectors of x; kSide, whether the recurrence fits in beside them.
 */
#ifndef KOKORO_TVM_BILSTM_KERNELS_IMPL_H_
#define KOKORO_TVM_BILSTM_KERNELS_IMPL_H_

#include "kernels.h"

namespace kokoro_tvm {
namespace bilstm {
namespace {

// Rows of w that stay in the L1 cache while all rows of a pass by: 8 rows of 640 floats are 20 KB.
constexpr int64_t kBlockCols = 8;

// A cache line.
constexpr int64_t kLine = 16;

// Vectors whose products a lane adds up from zero before they join its total: shorter sums round less, and each costs
// about 3 % of the time of a projection.
constexpr int64_t kBlock = 40;

// Everything inlined, so that the sums live in registers. Sanitizers make the same code take minutes to compile.
#if defined(__SANITIZE_ADDRESS__)
#define KOKORO_TVM_FLATTEN
#else
#define KOKORO_TVM_FLATTEN __attribute__((flatten))
#endif

/*! \brief f(0) ... f(n - 1), written out: GCC keeps an array in registers only if no loop indexes it. */
template <int n, class F>
inline __attribute__((always_inline)) void Unroll(const F& f) {
  if constexpr (n > 0) {
    Unroll<n - 1>(f);
    f(n - 1);
  }
}

/*! \brief Hides how an address came about: GCC would derive the rows from one another anew at every step. */
inline const float* Opaque(const float* p) {
  __asm__("" : "+r"(p));
  return p;
}

/*!
 * \brief c[kRows, kCols] += a w^T. Meanwhile kPrefetch rows of w, from `next` on, are brought into the cache.
 *
 * For 3 x 4, the sums, x and wn are exactly the 16 registers of AVX2.
 */
template <class V, int kRows, int kCols, int kPrefetch>
KOKORO_TVM_FLATTEN void Tile(const float* a, int64_t lda, const float* w, int64_t depth, const float* next,
                             float* c, int64_t ldc) {
  using Reg = typename V::Reg;
  constexpr int kSums = kRows * kCols;
  constexpr int64_t kStep = kBlock * V::kLanes;
  // The rows to prefetch follow one another: so many lines per vector, or the same one for several vectors.
  constexpr int kLines = (kPrefetch * V::kLanes + kLine - 1) / kLine;
  const float* a_row[kRows];
  const float* w_row[kCols];
  Unroll<kRows>([&](int m) { a_row[m] = Opaque(a + m * lda); });
  Unroll<kCols>([&](int n) { w_row[n] = Opaque(w + n * depth); });
  Reg sum[kSums], total[kSums];
  Unroll<kSums>([&](int i) { sum[i] = total[i] = V::Zero(); });
  const auto add = [&](const auto& load) {
    Reg x[kRows];
    Unroll<kRows>([&](int m) { x[m] = load(a_row[m]); });
    Unroll<kCols>([&](int n) {
      const Reg wn = load(w_row[n]);
      Unroll<kRows>([&](int m) { sum[n * kRows + m] = V::MulAdd(x[m], wn, sum[n * kRows + m]); });
    });
  };
  const auto add_vectors = [&](int64_t begin, int64_t end) {
#pragma GCC unroll 2
    for (int64_t k = begin; k < end; k += V::kLanes) {
      Unroll<kLines>([&](int n) { __builtin_prefetch(next + kPrefetch * k + n * kLine); });
      add([=](const float* row) { return V::Load(row + k); });
    }
  };
  const int64_t vectors = depth / V::kLanes * V::kLanes;
  int64_t k = 0;
  for (; k + kStep < vectors; k += kStep) {
    add_vectors(k, k + kStep);
    Unroll<kSums>([&](int i) { total[i] = V::Add(total[i], sum[i]), sum[i] = V::Zero(); });
  }
  add_vectors(k, vectors);
  if (vectors < depth) add([=](const float* row) { return V::LoadPartial(row + vectors, depth - vectors); });
  if (k > 0) Unroll<kSums>([&](int i) { sum[i] = V::Add(total[i], sum[i]); });
  if constexpr (kSums == V::kLanes && kRows == 4) {
    V::AddSums4x4(c, ldc, sum);
  } else {
    Unroll<kRows>([&](int m) {
      Unroll<kCols / 4>([&](int q) {
        const Reg* s = sum + 4 * q * kRows + m;
        V::AddSums4(c + m * ldc + 4 * q, s[0], s[kRows], s[2 * kRows], s[3 * kRows]);
      });
    });
  }
}

/*! \brief Some columns of `rows` <= kRows rows of c. Each tile prefetches kPrefetch rows of w, from next_col on. */
template <class V, int kRows, int kPrefetch>
inline void TileRow(int64_t rows, const Recurrence& g, int64_t row, int64_t col, int64_t cols, int64_t next_col) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return TileRow<V, kRows - 1, kPrefetch>(rows, g, row, col, cols, next_col);
  }
  const float* h = g.h + row * g.ldh;
  float* c = g.gates + row * g.ld_gates;
  for (int64_t end = col + cols; col < end; col += 4, next_col += kPrefetch) {
    const int64_t next = next_col + kPrefetch <= g.cols ? next_col : 0;  // the last block may be narrower
    Tile<V, kRows, 4, kPrefetch>(h, g.ldh, g.w + col * g.depth, g.depth, g.w + next * g.depth, c + col, g.ld_gates);
  }
}

/*!
 * \brief RecurKernel for one row, from the first-th block of 8 columns on. It waits for w and not for the arithmetic: 8
 * columns, which is enough sums to hide the latency of an addition, while the next 8 are fetched.
 */
template <class V>
void RecurOne(const Recurrence& g, int64_t first) {
  const int64_t blocks = (g.cols + 7) / 8;
  for (int64_t i = first; i < blocks; ++i) {
    const int64_t col = 8 * (g.descending ? blocks - 1 - i : i);
    const int64_t next_col = g.descending ? col - 8 : col + 8;
    const float* w = g.w + col * g.depth;
    const float* next = g.w + (next_col >= 0 && next_col + 8 <= g.cols ? next_col * g.depth : 0);
    if (col + 8 <= g.cols) {
      Tile<V, 1, 8, 8>(g.h, 0, w, g.depth, next, g.gates + col, 0);
    } else {
      Tile<V, 1, 4, 0>(g.h, 0, w, g.depth, next, g.gates + col, 0);
    }
  }
}

template <class V>
void RecurKernel(const Recurrence& g) {
  if (g.rows == 1) return RecurOne<V>(g, 0);
  const int64_t blocks = (g.cols + kBlockCols - 1) / kBlockCols;
  const int64_t tiles = (g.rows + V::kMaxRows - 1) / V::kMaxRows;
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t col = (g.descending ? blocks - 1 - i : i) * kBlockCols;
    const int64_t cols = g.cols - col < kBlockCols ? g.cols - col : kBlockCols;
    // The next block is prefetched by this one's tiles, as thinly spread as their number allows: memory and arithmetic
    // should work side by side.
    int64_t next_col = i + 1 == blocks ? col : g.descending ? col - kBlockCols : col + kBlockCols;
    const int64_t next_end = next_col + kBlockCols;
    const int64_t spread = tiles == 1 ? 4 : tiles <= 3 ? 2 : 1;
    // Rows are spread evenly: 4 rows as 2 + 2, not as 3 + 1.
    for (int64_t t = 0, row = 0; t < tiles; ++t) {
      const int64_t rows = (g.rows - row) / (tiles - t);
      const int64_t prefetch = next_col < next_end ? spread : 0;
      if (prefetch == 4) {
        TileRow<V, V::kMaxRows, 4>(rows, g, row, col, cols, next_col);
      } else if (prefetch == 2) {
        TileRow<V, V::kMaxRows, 2>(rows, g, row, col, cols, next_col);
      } else if (prefetch == 1) {
        TileRow<V, V::kMaxRows, 1>(rows, g, row, col, cols, next_col);
      } else {
        TileRow<V, V::kMaxRows, 0>(rows, g, row, col, cols, next_col);
      }
      next_col += prefetch * (kBlockCols / 4);
      row += rows;
    }
  }
}

// Terms of a projection that are added up from zero before they join a total. With two totals that take turns, the
// rounding of 640 terms is that of a tree of 8 lanes.
constexpr int kTerms = 32;

// A recurrence of this depth, the model's, can run beside a projection: its rows' addresses are then constants.
constexpr int kSideDepth = 256;

/*! \brief The recurrence that runs beside a projection, in blocks of 8 columns. */
struct Side {
  const float* h;
  const float* w;  // of the next block
  float* gates;    // of the next block
  int64_t step;    // from one block to the next: 8 or -8 columns
  int64_t blocks;  // still to do
  int64_t stop;    // so many must remain for later
};

/*! \brief One block, 8 columns, of the recurrence; beside(i) runs beside the i-th vector. */
template <class V, class F>
inline void SideBlock(Side* side, const F& beside) {
  using Reg = typename V::Reg;
  Reg sum[8];
  Unroll<8>([&](int n) { sum[n] = V::Zero(); });
  const float* w = side->w;
  Unroll<kSideDepth / V::kLanes>([&](int i) {
    beside(i);
    const Reg h = V::Load(side->h + i * V::kLanes);
    Unroll<8>([&](int n) { sum[n] = V::MulAdd(h, V::Load(w + n * kSideDepth + i * V::kLanes), sum[n]); });
  });
  Unroll<2>([&](int q) {
    V::AddSums4(side->gates + 4 * q, sum[4 * q], sum[4 * q + 1], sum[4 * q + 2], sum[4 * q + 3]);
  });
  side->w += side->step * kSideDepth;
  side->gates += side->step;
  --side->blocks;
}

template <class V>
void LanesKernel(const float* const* rows, int64_t count, int64_t depth, float* to) {
  constexpr int64_t kAhead = 4 * kLine;  // so many rows at a time are more than the hardware foresees
  for (int64_t k = 0; k < depth; k += V::kLanes) {
    const int64_t n = depth - k < V::kLanes ? depth - k : V::kLanes;
    const auto load = [&](int64_t i) {
      return i >= count ? V::Zero() : n == V::kLanes ? V::Load(rows[i] + k) : V::LoadPartial(rows[i] + k, n);
    };
    for (int64_t i = 0; i < count && k + kAhead < depth; ++i) __builtin_prefetch(rows[i] + k + kAhead);
    for (int64_t i = 0; i < kGroupRows; i += 4) {
      V::StoreColumns4(to + k * kGroupRows + i, kGroupRows, n, load(i), load(i + 1), load(i + 2), load(i + 3));
    }
  }
}

/*!
 * \brief gates[rows, kCols] = x w^T + bias for kVectors vectors of rows, and as many blocks of `side` as fit in.
 *
 * Meanwhile 4 rows of w, from `next` on, are brought into the cache.
 */
template <class V, int kVectors, int kCols>
KOKORO_TVM_FLATTEN void Panel(const float* x, const float* w, int64_t depth, const float* next, const float* bias,
                              float* gates, int64_t ld_gates, int64_t rows, Side* side) {
  using Reg = typename V::Reg;
  constexpr int kSums = kVectors * kCols;
  constexpr int kSideBlocks = kTerms * V::kLanes / kSideDepth;  // in the time of kTerms terms
  const float* w_row[kCols];
  Unroll<kCols>([&](int n) { w_row[n] = Opaque(w + n * depth); });
  Reg sum[kSums], totals[2][kSums];
  Unroll<kSums>([&](int i) { sum[i] = totals[0][i] = totals[1][i] = V::Zero(); });
  const auto add = [&](int64_t k) {
    Reg xm[kVectors];
    Unroll<kVectors>([&](int m) { xm[m] = V::Load(x + k * kGroupRows + m * V::kLanes); });
    Unroll<kCols>([&](int n) {
      const Reg wn = V::Set(w_row[n][k]);
      Unroll<kVectors>([&](int m) { sum[n * kVectors + m] = V::MulAdd(xm[m], wn, sum[n * kVectors + m]); });
    });
  };
  int64_t k = 0;
  for (Reg* total = totals[0]; k + kTerms <= depth; k += kTerms, total = totals[total == totals[0]]) {
    // The columns join their totals one after the other, each after its own kTerms: stores in a burst would block.
    const auto add_term = [&](int i) {
      constexpr int kPeriod = kTerms / kCols;
      add(k + i);
      if (i % kPeriod == kPeriod - 1) {
        Unroll<kVectors>([&](int m) {
          const int j = i / kPeriod * kVectors + m;
          total[j] = V::Add(total[j], sum[j]);
          sum[j] = V::Zero();
        });
      }
    };
    if constexpr (V::kSide) {
      if (side && side->blocks >= side->stop + kSideBlocks) {
        Unroll<kSideBlocks>([&](int b) { SideBlock<V>(side, [&](int i) { add_term(b * kTerms / kSideBlocks + i); }); });
        continue;
      }
    }
    Unroll<kTerms>([&](int i) {
      if (i % (kLine / 4) == 0) __builtin_prefetch(next + 4 * (k + i));
      add_term(i);
    });
  }
  for (; k < depth; ++k) add(k);
  Reg out[kSums];
  Unroll<kSums>([&](int i) {
    out[i] = V::Add(V::Add(V::Add(totals[0][i], totals[1][i]), sum[i]), V::Set(bias[i / kVectors]));
  });
  Unroll<kVectors>([&](int m) {
    const int64_t left = rows - m * V::kLanes;
    Unroll<kCols / 4>([&](int q) {
      const Reg* columns = out + 4 * q * kVectors + m;
      V::StoreColumns4(gates + m * V::kLanes * ld_gates + 4 * q, ld_gates, left < V::kLanes ? left : V::kLanes,
                       columns[0], columns[kVectors], columns[2 * kVectors], columns[3 * kVectors]);
    });
  });
}

/*! \brief kCols columns of all rows. The first two tiles of rows fetch the first and the last 4 of the next columns. */
template <class V, int kCols>
inline void PanelColumn(const Projection& p, int64_t col, Side* side) {
  constexpr int64_t kStep = V::kVectors * V::kLanes;
  const float* w = p.w + col * p.depth;
  for (int64_t row = 0; row < p.rows; row += kStep) {
    const float* x = p.x + row / kGroupRows * kGroupRows * p.depth + row % kGroupRows;
    float* gates = p.gates + row * p.ld_gates + col;
    const int64_t rows = p.rows - row;
    const int64_t ahead = col + kCols + (row < kStep ? 0 : kCols - 4);
    const float* next = side || ahead + 4 > p.cols ? w : p.w + ahead * p.depth;
    if (2 * rows <= kStep) {
      Panel<V, V::kVectors / 2, kCols>(x, w, p.depth, next, p.bias + col, gates, p.ld_gates, rows, side);
    } else {
      Panel<V, V::kVectors, kCols>(x, w, p.depth, next, p.bias + col, gates, p.ld_gates, rows < kStep ? rows : kStep,
                                   side);
    }
  }
}

/*! \brief The part-th of `parts` shares of the columns, with the blocks of `side`, if there is one, spread evenly. */
template <class V>
void ProjectColumns(const Projection& p, int64_t part, int64_t parts, Side* side) {
  const int64_t panels = (p.cols + V::kCols - 1) / V::kCols;
  const int64_t end = panels * (part + 1) / parts;
  for (int64_t i = panels * part / parts; i < end; ++i) {
    const int64_t col = i * V::kCols;
    if (side) side->stop = side->blocks - side->blocks / (end - i);
    if (col + V::kCols <= p.cols) {
      PanelColumn<V, V::kCols>(p, col, side);
    } else {
      PanelColumn<V, 4>(p, col, side);
    }
  }
}

template <class V>
void ProjectKernel(const Projection& p, int64_t part, int64_t parts) {
  ProjectColumns<V>(p, part, parts, nullptr);
}

template <class V>
void RecurAndProjectKernel(const Recurrence& g, const Projection& p, int64_t part, int64_t parts) {
  const int64_t blocks = g.cols / 8;
  if (g.depth != kSideDepth) {
    RecurOne<V>(g, 0);
    return ProjectColumns<V>(p, part, parts, nullptr);
  }
  const int64_t col = g.descending ? g.cols - 8 : 0;
  Side side = {g.h, g.w + col * g.depth, g.gates + col, g.descending ? -8 : 8, blocks, 0};
  ProjectColumns<V>(p, part, parts, &side);
  RecurOne<V>(g, blocks - side.blocks);
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

// exp(-x), so that sigmoid(x) = 1 / (1 + ExpMinus(x)); at most 1.7e38, so that twice it is still finite.
template <class V>
inline typename V::Reg ExpMinus(typename V::Reg x) {
  const auto y = V::Max(V::Set(-87.0f), V::Min(V::Set(88.0f), V::Sub(V::Zero(), x)));
  const ExpParts<V> e = SplitExp<V>(y);
  return V::MulAdd(e.scale, e.p, e.scale);
}

// sigmoid(x) tanh(z) with a single division. With m = exp(-2 |z|) - 1: tanh |z| = -m / (m + 2), without cancellation
// near 0 and without overflow.
template <class V>
inline typename V::Reg SigmoidTanh(typename V::Reg x, typename V::Reg z) {
  const auto y = V::Max(V::Set(-40.0f), V::Mul(V::Set(-2.0f), V::Abs(z)));
  const ExpParts<V> e = SplitExp<V>(y);
  const auto m = V::MulAdd(e.scale, e.p, V::Sub(e.scale, V::Set(1.0f)));
  const auto m2 = V::Add(m, V::Set(2.0f));
  return V::CopySign(V::Div(m, V::MulAdd(ExpMinus<V>(x), m2, m2)), z);
}

template <class V>
inline void CellLanes(typename V::Reg i, typename V::Reg f, typename V::Reg g, typename V::Reg o, typename V::Reg* c,
                      typename V::Reg* h) {
  *c = V::Add(V::Div(*c, V::Add(V::Set(1.0f), ExpMinus<V>(f))), SigmoidTanh<V>(i, g));
  *h = SigmoidTanh<V>(o, *c);
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
