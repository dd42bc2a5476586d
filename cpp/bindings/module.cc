/*!
 * \file module.cc
 * \brief _native: the kernels for NumPy callers, tests and notebooks. Needs neither TVM nor tvm-ffi.
 *
 * The compiled model does not come through here: it calls the functions of registry.cc.
 */
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "../bilstm/bilstm.h"
#include "../bilstm/thread_parallel_for.h"

namespace py = pybind11;

namespace {

namespace bilstm = kokoro_tvm::bilstm;

template <class Sizes>
std::string ShapeText(const Sizes* sizes, size_t rank) {
  std::ostringstream text;
  text << "(";
  for (size_t i = 0; i < rank; ++i) text << sizes[i] << (i + 1 < rank ? ", " : rank == 1 ? "," : "");
  text << ")";
  return text.str();
}

// Another dtype or layout is an error, never a silent copy.
template <class T>
const T* Dense(const char* name, const py::array& array) {
  if (!py::isinstance<py::array_t<T>>(array)) {
    throw py::type_error("bilstm: " + std::string(name) + " has dtype " + std::string(py::str(array.dtype())) +
                         ", expected " + std::string(py::str(py::dtype::of<T>())));
  }
  if (!py::isinstance<py::array_t<T, py::array::c_style>>(array)) {
    throw py::value_error("bilstm: " + std::string(name) + " is not C-contiguous");
  }
  return static_cast<const T*>(array.data());
}

void CheckShape(const char* name, const py::array& array, const std::vector<int64_t>& want) {
  const size_t rank = static_cast<size_t>(array.ndim());
  if (!std::equal(want.begin(), want.end(), array.shape(), array.shape() + rank)) {
    throw py::value_error("bilstm: " + std::string(name) + " has shape " + ShapeText(array.shape(), rank) +
                          ", expected " + ShapeText(want.data(), want.size()));
  }
}

py::tuple BiLstm(const py::array& x, const py::array& lengths, const py::array& w_ih, const py::array& w_hh,
                 const py::array& b_ih, const py::array& b_hh, const std::optional<py::array>& h0,
                 const std::optional<py::array>& c0, int64_t num_threads) {
  bilstm::Arrays arrays{};
  arrays.x = Dense<float>("x", x);
  arrays.lengths = Dense<int64_t>("lengths", lengths);
  arrays.w_ih = Dense<float>("w_ih", w_ih);
  arrays.w_hh = Dense<float>("w_hh", w_hh);
  arrays.b_ih = Dense<float>("b_ih", b_ih);
  arrays.b_hh = Dense<float>("b_hh", b_hh);
  if (h0) arrays.h0 = Dense<float>("h0", *h0);
  if (c0) arrays.c0 = Dense<float>("c0", *c0);
  if (x.ndim() != 3 || x.size() == 0) {
    throw py::value_error("bilstm: x has shape " + ShapeText(x.shape(), static_cast<size_t>(x.ndim())) +
                          ", expected (batch, steps, input), none of them 0");
  }
  if (w_hh.ndim() != 3 || w_hh.shape(2) == 0) {
    throw py::value_error("bilstm: w_hh has shape " + ShapeText(w_hh.shape(), static_cast<size_t>(w_hh.ndim())) +
                          ", expected (2, 4 * hidden, hidden)");
  }
  const bilstm::Shape shape{x.shape(0), x.shape(1), x.shape(2), w_hh.shape(2)};
  const int64_t B = shape.batch, N = shape.steps, I = shape.input, H = shape.hidden;
  CheckShape("lengths", lengths, {B});
  CheckShape("w_ih", w_ih, {2, 4 * H, I});
  CheckShape("w_hh", w_hh, {2, 4 * H, H});
  CheckShape("b_ih", b_ih, {2, 4 * H});
  CheckShape("b_hh", b_hh, {2, 4 * H});
  if (h0) CheckShape("h0", *h0, {2, B, H});
  if (c0) CheckShape("c0", *c0, {2, B, H});
  for (int64_t b = 0; b < B; ++b) {
    if (arrays.lengths[b] < 1 || arrays.lengths[b] > N) {
      throw py::value_error("bilstm: lengths[" + std::to_string(b) + "] is " + std::to_string(arrays.lengths[b]) +
                            ", expected 1 to " + std::to_string(N));
    }
  }
  if (num_threads < 0) {
    throw py::value_error("bilstm: num_threads is " + std::to_string(num_threads) + ", expected 0 (all) or more");
  }
  if (num_threads == 0) num_threads = std::max<int64_t>(1, std::thread::hardware_concurrency());

  py::array_t<float> y({B, N, 2 * H}), h_n({int64_t{2}, B, H}), c_n({int64_t{2}, B, H});
  arrays.y = y.mutable_data();
  arrays.h_n = h_n.mutable_data();
  arrays.c_n = c_n.mutable_data();
  {
    py::gil_scoped_release release;
    std::vector<char> scratch(bilstm::ScratchBytes(shape, num_threads));
    bilstm::Run(shape, arrays, bilstm::ThreadExecutor(num_threads), scratch.data());
  }
  return py::make_tuple(y, h_n, c_n);
}

}  // namespace

PYBIND11_MODULE(_native, m) {
  m.doc() = "kokoro-tvm's C++ kernels for NumPy arrays.";
  m.def("bilstm", &BiLstm, py::arg("x"), py::arg("lengths"), py::arg("w_ih"), py::arg("w_hh"), py::arg("b_ih"),
        py::arg("b_hh"), py::arg("h0") = py::none(), py::arg("c0") = py::none(), py::arg("num_threads") = 0,
        R"(A length-aware bidirectional LSTM, one layer, with PyTorch's weights and gate order (i, f, g, o).

Args:
    x: float32 [batch, steps, input]; steps past a sample's length are not read.
    lengths: int64 [batch], each 1 to steps, in any order.
    w_ih: float32 [2, 4 * hidden, input]; index 0 is the forward direction.
    w_hh: float32 [2, 4 * hidden, hidden].
    b_ih: float32 [2, 4 * hidden].
    b_hh: float32 [2, 4 * hidden].
    h0: float32 [2, batch, hidden] or None for zeros.
    c0: float32 [2, batch, hidden] or None for zeros.
    num_threads: 0 for all of the machine's. The result has the same bits for any number.

Returns:
    y float32 [batch, steps, 2 * hidden], zero past the lengths; h_n and c_n float32 [2, batch, hidden].

Raises:
    TypeError: An array of another dtype.
    ValueError: An array that is not C-contiguous, or a shape, a length or num_threads that does not fit.)");
  m.def(
      "isa", [] { return bilstm::IsaName(bilstm::BestIsa()); },
      "The code path chosen for this CPU: avx512, avx2, neon or portable.");
}
