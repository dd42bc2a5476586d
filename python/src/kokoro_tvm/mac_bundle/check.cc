/*!
 * \file check.cc
 * \brief Checks and times compiled components on the device they were compiled for: what runs on the Mac.
 *
 * Usage: kokoro-check FOLDER [RUNTIME_FOLDER]
 *
 * FOLDER holds one plan per component (check/NAME.txt, written by kokoro_tvm.mac_bundle) with its inputs and, for every kernel
 * call in order, what the CPU kernel made of the same inputs. Each call is compared, then its result is replaced by that
 * reference: an error is charged to the kernel that makes it, not to those behind it. The report goes to stdout; the exit
 * code is 0 only if every kernel of every component agreed.
 *
 * Lines of a plan, numbers in decimal, tensors as DTYPE OFFSET RANK DIMS...:
 *   library FILE | weights FILE | values FILE | device TYPE | seconds AUDIO
 *   weight TENSOR        in the weights file, in call order
 *   input TENSOR         in the values file, for the comparison
 *   kernel NAME TOLERANCE TENSOR
 *   timed TENSOR         inputs for timing
 */
#include <dlfcn.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

namespace ffi = tvm::ffi;
using Clock = std::chrono::steady_clock;

constexpr int kCpu = 1, kPooled = 2, kRepeats = 5;

struct Stored {
  std::string dtype;
  size_t offset;
  std::vector<int64_t> shape;

  size_t Count() const {
    size_t count = 1;
    for (int64_t d : shape) count *= static_cast<size_t>(d);
    return count;
  }
  size_t Bytes() const { return Count() * (dtype == "int64" ? 8 : dtype == "float16" ? 2 : 4); }
  DLDataType Type() const {
    if (dtype == "int64") return DLDataType{kDLInt, 64, 1};
    return DLDataType{kDLFloat, static_cast<uint8_t>(dtype == "float16" ? 16 : 32), 1};
  }
};

struct Expected {
  std::string kernel;
  double tolerance;
  Stored value;
};

struct Plan {
  std::string library, weights_file, values_file;
  int device = kCpu;
  double seconds = 0;
  std::vector<Stored> weights, inputs, timed;
  std::vector<Expected> kernels;
};

[[noreturn]] void Fail(const std::string& message) { throw std::runtime_error(message); }

Stored ReadTensor(std::istream& line) {
  Stored t;
  size_t rank = 0;
  line >> t.dtype >> t.offset >> rank;
  t.shape.resize(rank);
  for (int64_t& d : t.shape) line >> d;
  if (!line || (t.dtype != "float32" && t.dtype != "float16" && t.dtype != "int64")) Fail("a tensor of the plan cannot be read");
  return t;
}

Plan ReadPlan(const std::string& path) {
  std::ifstream file(path);
  if (!file) Fail("cannot read " + path);
  Plan plan;
  std::string text, word;
  while (std::getline(file, text)) {
    std::istringstream line(text);
    line >> word;
    if (word == "library") line >> plan.library;
    else if (word == "weights") line >> plan.weights_file;
    else if (word == "values") line >> plan.values_file;
    else if (word == "device") line >> plan.device;
    else if (word == "seconds") line >> plan.seconds;
    else if (word == "weight") plan.weights.push_back(ReadTensor(line));
    else if (word == "input") plan.inputs.push_back(ReadTensor(line));
    else if (word == "timed") plan.timed.push_back(ReadTensor(line));
    else if (word == "kernel") {
      Expected e;
      line >> e.kernel >> e.tolerance;
      e.value = ReadTensor(line);
      plan.kernels.push_back(e);
    } else {
      Fail(path + ": unknown line: " + text);
    }
    if (line.fail()) Fail(path + ": cannot read: " + text);
  }
  if (plan.kernels.empty()) Fail(path + " expects nothing: this would check nothing");
  return plan;
}

std::vector<char> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) Fail("cannot read " + path);
  std::vector<char> data(static_cast<size_t>(file.tellg()));
  file.seekg(0);
  if (!file.read(data.data(), static_cast<std::streamsize>(data.size()))) Fail("cannot read all of " + path);
  return data;
}

const char* At(const std::vector<char>& data, const Stored& t) {
  if (t.offset > data.size() || t.Bytes() > data.size() - t.offset) Fail("a tensor lies outside its file");
  return data.data() + t.offset;
}

ffi::Function Global(const char* name) { return ffi::Function::GetGlobalRequired(name); }

class Device {
 public:
  explicit Device(int type) : device_{static_cast<DLDeviceType>(type), 0} {}

  ffi::Tensor Put(const std::vector<char>& data, const Stored& t) {
    ffi::Any result = empty_(ffi::Shape(t.shape.begin(), t.shape.end()), t.Type(), device_, nullptr);
    ffi::Tensor tensor = result.cast<ffi::Tensor>();
    Fill(tensor, At(data, t), t.Bytes());
    return tensor;
  }
  void Fill(const ffi::Tensor& tensor, const char* from, size_t bytes) {
    fill_(tensor, static_cast<void*>(const_cast<char*>(from)), static_cast<int64_t>(bytes));
  }
  std::vector<char> Get(const ffi::Tensor& tensor, size_t bytes) {
    std::vector<char> data(bytes);
    read_(tensor, static_cast<void*>(data.data()), static_cast<int64_t>(bytes));
    return data;
  }

 private:
  DLDevice device_;
  ffi::Function empty_ = Global("runtime.TVMTensorAllocWithScope");
  ffi::Function fill_ = Global("runtime.TVMTensorCopyFromBytes");
  ffi::Function read_ = Global("runtime.TVMTensorCopyToBytes");
};

// Largest error relative to the largest reference; infinite where a value is not finite.
double Error(const char* actual, const char* expected, const Stored& t) {
  if (t.dtype == "int64") return std::memcmp(actual, expected, t.Bytes()) == 0 ? 0 : std::numeric_limits<double>::infinity();
  double largest = 0, error = 0;
  for (size_t i = 0; i < t.Count(); ++i) {
    float a, e;
    std::memcpy(&a, actual + 4 * i, 4);
    std::memcpy(&e, expected + 4 * i, 4);
    if (!std::isfinite(a) || !std::isfinite(e)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, std::fabs(static_cast<double>(e)));
    error = std::max(error, std::fabs(static_cast<double>(a) - e));
  }
  return largest > 0 ? error / largest : error;
}

double Seconds(Clock::time_point since) { return std::chrono::duration<double>(Clock::now() - since).count(); }

class Component {
 public:
  Component(const std::string& folder, const std::string& name)
      : name_(name), plan_(ReadPlan(folder + "/check/" + name + ".txt")), device_(plan_.device) {
    values_ = ReadFile(folder + "/" + plan_.values_file);
    const std::vector<char> weights = ReadFile(folder + "/" + plan_.weights_file);
    // By name, not through the C++ interface: an exception must not cross between two copies of the C++ runtime.
    ffi::Module library = Global("ffi.ModuleLoadFromFile")(ffi::String(folder + "/" + plan_.library)).cast<ffi::Module>();
    machine_ = Call(library, "vm_load_executable")().cast<ffi::Module>();
    if (plan_.device == kCpu) {
      Call(*machine_, "vm_initialization")(kCpu, 0, kPooled);
    } else {
      Call(*machine_, "vm_initialization")(plan_.device, 0, kPooled, kCpu, 0, kPooled);
    }
    for (const Stored& t : plan_.weights) weights_.push_back(device_.Put(weights, t));
  }

  // Returns whether every kernel agrees.
  bool Compare() {
    size_t next = 0, wrong = 0;
    double worst = 0;
    std::string worst_kernel = "none";
    auto instrument = [&](ffi::PackedArgs args, ffi::Any* result) {
      *result = 0;
      const std::string called = args[1].cast<ffi::String>();
      const bool before = args[2].cast<bool>();
      // Builtins, arithmetic on extents and the component itself are no kernels; a kernel's result is its last argument.
      if (before || called.rfind("vm.", 0) == 0 || called.rfind("shape_func", 0) == 0 || called == name_) return;
      if (args.size() < 5) return;
      std::optional<ffi::Tensor> output = args[args.size() - 1].try_cast<ffi::Tensor>();
      if (!output) return;
      if (next == plan_.kernels.size()) Fail(called + " was called, nothing was expected");
      const Expected& e = plan_.kernels[next++];
      if (called != e.kernel) Fail(called + " was called, " + e.kernel + " was expected");
      const char* reference = At(values_, e.value);
      const double error = Error(device_.Get(*output, e.value.Bytes()).data(), reference, e.value);
      if (!(error <= e.tolerance)) {
        ++wrong;
        std::printf("  WRONG  %s, call %zu: error %.3g, allowed %.3g\n", called.c_str(), next, error, e.tolerance);
      }
      if (error > worst) worst = error, worst_kernel = called;
      device_.Fill(*output, reference, e.value.Bytes());
    };
    Call(*machine_, "set_instrument")(ffi::Function::FromPacked(instrument));
    Run(plan_.inputs);
    Call(*machine_, "set_instrument")(ffi::Function::FromPacked([](ffi::PackedArgs, ffi::Any* result) { *result = 0; }));
    if (next != plan_.kernels.size()) Fail("only " + std::to_string(next) + " kernel calls, more were expected");
    std::printf("%-13s %4zu kernel calls, %zu wrong, worst error %.2e (%s)\n", name_.c_str(), next, wrong, worst,
                worst_kernel.c_str());
    return wrong == 0;
  }

  // A first call: the driver compiles the kernels.
  void Warm() {
    const auto start = Clock::now();
    Run(plan_.inputs);
    std::printf("%-13s first call %8.1f ms, kernels compiled\n", name_.c_str(), 1e3 * Seconds(start));
  }

  // First call with new shapes, and the best of several; adds the latter to *total.
  void Time(double* total, double* audio) {
    if (plan_.timed.empty()) return;
    const auto start = Clock::now();
    Run(plan_.timed);
    const double first = Seconds(start);
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kRepeats; ++i) {
      const auto again = Clock::now();
      Run(plan_.timed);
      best = std::min(best, Seconds(again));
    }
    std::printf("%-13s timed: first %8.2f ms, best of %d %8.2f ms\n", name_.c_str(), 1e3 * first, kRepeats, 1e3 * best);
    *total += best;
    *audio = std::max(*audio, plan_.seconds);
  }

 private:
  static ffi::Function Call(const ffi::Module& module, const char* name) {
    return Global("ffi.ModuleGetFunction")(module, ffi::String(name), false).cast<ffi::Function>();
  }

  void Run(const std::vector<Stored>& inputs) {
    std::vector<ffi::Tensor> tensors;
    for (const Stored& t : inputs) tensors.push_back(device_.Put(values_, t));
    std::vector<ffi::AnyView> arguments(tensors.begin(), tensors.end());
    arguments.insert(arguments.end(), weights_.begin(), weights_.end());
    ffi::Any result;
    Call(*machine_, name_.c_str()).CallPacked(arguments.data(), static_cast<int>(arguments.size()), &result);
    // Reading one value waits for the device.
    ffi::Tensor output = result.as<ffi::Tensor>() ? result.cast<ffi::Tensor>() : result.cast<ffi::Array<ffi::Tensor>>()[0];
    size_t bytes = 4;
    for (int64_t d : output.shape()) bytes *= static_cast<size_t>(d);
    device_.Get(output, bytes);
  }

  std::string name_;
  Plan plan_;
  Device device_;
  std::vector<char> values_;
  std::optional<ffi::Module> machine_;
  std::vector<ffi::Tensor> weights_;
};

void LoadRuntime(const std::string& folder) {
#if defined(__APPLE__)
  const char* libraries[] = {"libtvm_runtime.dylib", "libtvm_runtime_metal.dylib"};
#else
  const char* libraries[] = {"libtvm_runtime.so"};
#endif
  for (const char* library : libraries) {
    if (!dlopen((folder + "/" + library).c_str(), RTLD_NOW | RTLD_GLOBAL)) Fail(dlerror());
  }
}

int Main(const std::string& folder, const std::string& runtime) {
  LoadRuntime(runtime);
  std::ifstream list(folder + "/check/components.txt");
  std::string name;
  bool all = true;
  int checked = 0;
  double total = 0, audio = 0;
  while (list >> name) {
    Component component(folder, name);
    component.Warm();
    all = component.Compare() && all;
    component.Time(&total, &audio);
    ++checked;
  }
  if (checked == 0) Fail("no components in " + folder + "/check/components.txt");
  if (audio > 0) std::printf("sum of the best times %.1f ms for %.2f s of audio: RTF %.4f\n", 1e3 * total, audio, total / audio);
  std::printf("%s\n", all ? "EVERY KERNEL AGREES" : "SOME KERNELS ARE WRONG");
  return all ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: %s FOLDER [RUNTIME_FOLDER]\n", argv[0]);
    return 2;
  }
  try {
    return Main(argv[1], argc == 3 ? argv[2] : std::string(argv[1]) + "/lib");
  } catch (const std::exception& error) {
    std::printf("FAILED: %s\n", error.what());
    return 1;
  }
}
