/*! \file bilstm_reference.cc \brief See bilstm_reference.h. */
#include "bilstm_reference.h"

#include <cmath>
#include <vector>

namespace kokoro_tvm {
namespace bilstm {
namespace {

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

}  // namespace

void RunReference(const Shape& shape, const Arrays& arrays) {
  const int64_t B = shape.batch, N = shape.steps, I = shape.input, H = shape.hidden;
  for (int64_t d = 0; d < 2; ++d) {
    for (int64_t b = 0; b < B; ++b) {
      const int64_t length = arrays.lengths[b];
      const int64_t state = (d * B + b) * H;
      std::vector<double> h(H, 0.0), c(H, 0.0), gates(4 * H);
      for (int64_t u = 0; u < H; ++u) {
        if (arrays.h0) h[u] = arrays.h0[state + u];
        if (arrays.c0) c[u] = arrays.c0[state + u];
      }
      for (int64_t s = 0; s < length; ++s) {
        const int64_t t = d == 0 ? s : length - 1 - s;
        for (int64_t r = 0; r < 4 * H; ++r) {
          const int64_t row = d * 4 * H + r;
          double sum = arrays.gates ? static_cast<double>(arrays.gates[(b * N + t) * 8 * H + row])
                                    : static_cast<double>(arrays.b_ih[row]) + static_cast<double>(arrays.b_hh[row]);
          for (int64_t k = 0; k < I; ++k) {
            sum += static_cast<double>(arrays.w_ih[row * I + k]) * static_cast<double>(arrays.x[(b * N + t) * I + k]);
          }
          for (int64_t k = 0; k < H; ++k) sum += static_cast<double>(arrays.w_hh[row * H + k]) * h[k];
          gates[r] = sum;
        }
        for (int64_t u = 0; u < H; ++u) {
          c[u] = Sigmoid(gates[H + u]) * c[u] + Sigmoid(gates[u]) * std::tanh(gates[2 * H + u]);
          h[u] = Sigmoid(gates[3 * H + u]) * std::tanh(c[u]);
          arrays.y[((b * N + t) * 2 + d) * H + u] = static_cast<float>(h[u]);
        }
      }
      for (int64_t t = length; t < N; ++t) {
        for (int64_t u = 0; u < H; ++u) arrays.y[((b * N + t) * 2 + d) * H + u] = 0.0f;
      }
      for (int64_t u = 0; u < H; ++u) {
        if (arrays.h_n) arrays.h_n[state + u] = static_cast<float>(h[u]);
        if (arrays.c_n) arrays.c_n[state + u] = static_cast<float>(c[u]);
      }
    }
  }
}

}  // namespace bilstm
}  // namespace kokoro_tvm
