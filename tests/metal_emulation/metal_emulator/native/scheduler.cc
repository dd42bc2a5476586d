/*! \file scheduler.cc \brief See scheduler.h. Also what metal_stdlib calls, and the hooks of watched kernels. */
#include "scheduler.h"

#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <xmmintrin.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>
#include <sstream>

#include "memory_checker.h"

#if !defined(__x86_64__)
#error "the emulator switches fibers by hand and knows only x86-64"
#endif

// Saves the callee-saved registers and the stack pointer of the running fiber, and takes up another one's.
extern "C" void metal_emulator_switch(void** from, void* to);
asm(R"(
.text
.globl metal_emulator_switch
.hidden metal_emulator_switch
.type metal_emulator_switch, @function
metal_emulator_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size metal_emulator_switch, . - metal_emulator_switch
)");

namespace metal_emulator {
namespace {

constexpr size_t kStackBytes = 128 * 1024;  // of a fiber, the guard page at its end included
constexpr size_t kStagger = 1088;  // between the tops of two stacks: at equal offsets all would share few cache lines
constexpr size_t kPage = 4096;
constexpr uint32_t kOrdersDevice = 1;  // mem_flags of metal_stdlib
constexpr uint32_t kOrdersThreadgroup = 2;

/*! \brief What a fiber waits for. */
enum class Wait { kNothing, kThreadgroupBarrier, kSimdgroupBarrier, kShuffle, kGather, kMultiply, kMatrix, kEnd };

const char* Name(Wait wait) {
  switch (wait) {
    case Wait::kNothing:
      return "nothing";
    case Wait::kThreadgroupBarrier:
      return "threadgroup_barrier";
    case Wait::kSimdgroupBarrier:
      return "simdgroup_barrier";
    case Wait::kShuffle:
      return "a shuffle";
    case Wait::kGather:
      return "a SIMD-group reduction";
    case Wait::kMultiply:
      return "simdgroup_multiply_accumulate";
    case Wait::kMatrix:
      return "simdgroup_load or simdgroup_store";
    case Wait::kEnd:
      return "the end";
  }
  return "";
}

struct Fiber {
  void* stack_pointer;
  Wait wait;
  const void* place;  // return address of the operation that it waits in: the same for threads that have not diverged
  uint32_t flags;     // of a barrier
  const void* value;  // of a shuffle or gather
  void* result;
  uint32_t bytes;
  uint32_t mode;  // of a shuffle: 0 from lane, 1 down, 2 up, 3 xor
  int operand;
  const void* factors[3];       // of a matrix product: a, b and c, this thread's elements; result is d
  const uint32_t* value_bytes;  // sizes of an element of d, a, b and c: 4 is float, 2 is half
};

class Execution {
 public:
  Execution(const Launch& launch, const Settings& settings)
      : launch_(launch),
        kernel_(*launch.kernel),
        settings_(settings),
        count_(launch.threads[0] * launch.threads[1] * launch.threads[2]),
        random_(settings.seed * 0x9E3779B97F4A7C15ull + 0xD1B54A32D192ED03ull) {
    for (size_t i = 0; i < launch.buffers.size(); ++i)
      addresses_[i] = reinterpret_cast<uint64_t>(launch.buffers[i]->begin);
  }

  void Run();
  void Enter();                                      // first function of a fiber
  void Yield(Wait wait, const void* place);          // called on a fiber
  [[noreturn]] void Fault(const std::string& text);  // called on a fiber
  void Access(uintptr_t address, size_t bytes, bool writes, uint32_t thread);
  Fiber& Current() { return fibers_[current_]; }
  uint32_t current() const { return current_; }
  uint32_t LanesOf(uint32_t thread) const {
    return std::min(kSimdgroupThreads, count_ - thread / kSimdgroupThreads * kSimdgroupThreads);
  }

  sigjmp_buf exit;
  std::string fault;

 private:
  void RunThreadgroup();
  void Start(uint32_t thread);
  void RunSimdgroup(uint32_t first);
  bool NextLane();
  bool ReleaseSimdgroup(uint32_t first);
  bool ReleaseThreadgroup();
  void Exchange(uint32_t first, uint32_t lanes);
  void Permute(std::vector<uint32_t>* order);
  void ThreadPosition(uint32_t thread, uint32_t* position) const {
    position[0] = thread % launch_.threads[0];
    position[1] = thread / launch_.threads[0] % launch_.threads[1];
    position[2] = thread / launch_.threads[0] / launch_.threads[1];
  }

  const Launch& launch_;
  const Kernel& kernel_;
  const Settings& settings_;
  const uint32_t count_;
  uint64_t random_;
  uint64_t addresses_[kMaxBuffers] = {};
  std::vector<uint32_t> group_order_;
  std::vector<uint32_t> order_;
  std::vector<uint32_t> lanes_;  // threads of the SIMD-group that runs, in order
  size_t next_lane_ = 0;         // of lanes_
  MemoryChecker checker_;
  Fiber fibers_[kMaxThreads];
  void* scheduler_stack_pointer_ = nullptr;
  bool in_thread_ = false;  // the kernel's code runs
  bool on_fiber_ = false;   // and can be left and taken up again
  uint32_t current_ = 0;
  uint32_t group_[3] = {0, 0, 0};
  uint32_t group_number_ = 0;
  uint32_t device_phase_ = 0;
  uint32_t group_phase_ = 0;
  uint32_t simdgroup_phases_[kMaxThreads / kSimdgroupThreads] = {};
};

Execution* running = nullptr;
pthread_t running_on;

char* Stacks() {
  static char* stacks = [] {
    void* pages = mmap(nullptr, kMaxThreads * kStackBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, /*offset=*/0);
    if (pages == MAP_FAILED) throw std::bad_alloc();
    for (uint32_t i = 0; i < kMaxThreads; ++i) mprotect(static_cast<char*>(pages) + i * kStackBytes, kPage, PROT_NONE);
    return static_cast<char*>(pages);
  }();
  return stacks;
}

bool OnStacks(uintptr_t address) { return address - reinterpret_cast<uintptr_t>(Stacks()) < kMaxThreads * kStackBytes; }

void FiberMain() { running->Enter(); }

void Execution::Start(uint32_t thread) {
  void** top = reinterpret_cast<void**>(Stacks() + (thread + 1) * kStackBytes - 64 - thread % kSimdgroupThreads * kStagger);
  *--top = nullptr;  // keeps the stack aligned as after a call
  *--top = reinterpret_cast<void*>(&FiberMain);
  top -= 6;
  std::fill(top, top + 6, nullptr);
  fibers_[thread] = {};
  fibers_[thread].stack_pointer = top;
}

/*! \brief Makes the next thread of the SIMD-group that does not wait the current one; false if all wait. */
bool Execution::NextLane() {
  while (next_lane_ < lanes_.size()) {
    current_ = lanes_[next_lane_++];
    if (fibers_[current_].wait == Wait::kNothing) return true;
  }
  return false;
}

/*! \brief Runs a SIMD-group until all its threads wait at a barrier of the threadgroup or have ended. */
void Execution::RunSimdgroup(uint32_t first) {
  lanes_.clear();
  std::copy_if(order_.begin(), order_.end(), std::back_inserter(lanes_),
               [first](uint32_t thread) { return thread - first < kSimdgroupThreads; });
  do {
    next_lane_ = 0;
    if (!NextLane()) return;
    in_thread_ = on_fiber_ = true;
    metal_emulator_switch(&scheduler_stack_pointer_, fibers_[current_].stack_pointer);
    in_thread_ = on_fiber_ = false;
  } while (ReleaseSimdgroup(first));
}

void Execution::Enter() {
  uint32_t position[3];
  ThreadPosition(current_, position);
  kernel_.run_thread(addresses_, launch_.scalars.data(), group_, position);
  Yield(Wait::kEnd, nullptr);
}

void Execution::Yield(Wait wait, const void* place) {
  if (!on_fiber_) Fault("synchronises, though no such call was seen in its source");
  Fiber& fiber = Current();
  fiber.wait = wait;
  fiber.place = place;
  metal_emulator_switch(&fiber.stack_pointer, NextLane() ? Current().stack_pointer : scheduler_stack_pointer_);
}

/*! \brief Ends the launch from wherever it is. The frames in between are dropped, with the few texts that they hold. */
void Execution::Fault(const std::string& text) {
  fault = text;
  if (in_thread_) {
    fault += ": thread " + std::to_string(current_) + " of threadgroup " + std::to_string(group_number_);
  }
  siglongjmp(exit, 1);
}

void Execution::Access(uintptr_t address, size_t bytes, bool writes, uint32_t thread) {
  if (!kernel_.watched || OnStacks(address)) return;
  const uintptr_t scalars = reinterpret_cast<uintptr_t>(launch_.scalars.data());
  if (!writes && address - scalars < launch_.scalars.size() * sizeof(uint64_t)) return;
  if (!writes && address - reinterpret_cast<uintptr_t>(this) < sizeof(*this)) return;  // positions, list of buffers
  if (address % bytes != 0)
    Fault("accesses " + std::to_string(bytes) + " bytes at an address that is no multiple of it");
  const std::string wrong = checker_.Access(
      address, bytes, writes,
      {group_number_, thread, device_phase_, group_phase_, simdgroup_phases_[thread / kSimdgroupThreads]});
  if (wrong.empty()) return;
  Dl_info object, code;
  if (!writes && dladdr(reinterpret_cast<void*>(address), &object) != 0 &&
      dladdr(reinterpret_cast<void*>(kernel_.run_thread), &code) != 0 && object.dli_fbase == code.dli_fbase) {
    return;  // a table of constants
  }
  Fault(wrong);
}

/*! \brief Elements of one factor of a matrix product, row by row: each lane has two. */
template <typename T>
void CollectMatrix(const Fiber* lanes, int factor, float* elements) {
  for (uint32_t lane = 0; lane < kSimdgroupThreads; ++lane) {
    const T* own = static_cast<const T*>(lanes[lane].factors[factor]);
    elements[2 * lane] = static_cast<float>(own[0]);
    elements[2 * lane + 1] = static_cast<float>(own[1]);
  }
}

void CollectMatrix(const Fiber* lanes, int factor, float* elements) {
  const bool is_float = lanes[0].value_bytes[factor + 1] == sizeof(float);
  is_float ? CollectMatrix<float>(lanes, factor, elements) : CollectMatrix<_Float16>(lanes, factor, elements);
}

template <typename T>
void DistributeMatrix(const float* elements, const Fiber* lanes) {
  for (uint32_t lane = 0; lane < kSimdgroupThreads; ++lane) {
    T* own = static_cast<T*>(lanes[lane].result);
    own[0] = static_cast<T>(elements[2 * lane]);
    own[1] = static_cast<T>(elements[2 * lane + 1]);
  }
}

void MultiplyAccumulate(const Fiber* lanes) {
  float a[64], b[64], d[64];
  CollectMatrix(lanes, 0, a);
  CollectMatrix(lanes, 1, b);
  CollectMatrix(lanes, 2, d);
  for (uint32_t row = 0; row < 8; ++row) {
    for (uint32_t k = 0; k < 8; ++k) {
      for (uint32_t column = 0; column < 8; ++column) d[row * 8 + column] += a[row * 8 + k] * b[k * 8 + column];
    }
  }
  const bool is_float = lanes[0].value_bytes[0] == sizeof(float);
  is_float ? DistributeMatrix<float>(d, lanes) : DistributeMatrix<_Float16>(d, lanes);
}

/*! \brief Gives the lanes of a SIMD-group what they asked for. All wait in the same operation. */
void Execution::Exchange(uint32_t first, uint32_t lanes) {
  const Wait operation = fibers_[first].wait;
  if ((operation == Wait::kMultiply || operation == Wait::kMatrix) && lanes != kSimdgroupThreads) {
    Fault("uses a SIMD-group matrix in a SIMD-group of " + std::to_string(lanes) + " threads");
  }
  if (operation == Wait::kMultiply) return MultiplyAccumulate(fibers_ + first);
  for (uint32_t lane = 0; lane < lanes; ++lane) {
    Fiber& fiber = fibers_[first + lane];
    char* result = static_cast<char*>(fiber.result);
    if (fiber.wait == Wait::kGather) {
      for (uint32_t other = 0; other < kSimdgroupThreads; ++other) {
        if (other < lanes) {
          std::memcpy(result + other * fiber.bytes, fibers_[first + other].value, fiber.bytes);
        } else {
          std::memset(result + other * fiber.bytes, 0xFF, fiber.bytes);
        }
      }
    } else if (fiber.wait == Wait::kShuffle) {
      int source = fiber.operand;
      if (fiber.mode == 1) source = static_cast<int>(lane) + fiber.operand;
      if (fiber.mode == 2) source = static_cast<int>(lane) - fiber.operand;
      if (fiber.mode == 3) source = static_cast<int>(lane) ^ fiber.operand;
      const bool inside = source >= 0 && source < static_cast<int>(kSimdgroupThreads);
      if (!inside && (fiber.mode == 1 || fiber.mode == 2)) source = static_cast<int>(lane);  // Metal: unchanged
      if (source >= 0 && source < static_cast<int>(lanes)) {
        std::memcpy(result, fibers_[first + source].value, fiber.bytes);
      } else {
        std::memset(result, 0xFF, fiber.bytes);  // no such thread: undefined in Metal, NaN here
      }
    }
  }
}

/*! \brief Lets a SIMD-group go on of which all threads wait in the same operation; false if none waits in one. */
bool Execution::ReleaseSimdgroup(uint32_t first) {
  const uint32_t lanes = LanesOf(first);
  auto in_operation = [](const Fiber& f) { return f.wait != Wait::kThreadgroupBarrier && f.wait != Wait::kEnd; };
  const Fiber* begin = fibers_ + first;
  const Fiber* active = std::find_if(begin, begin + lanes, in_operation);
  if (active == begin + lanes) return false;
  const Fiber* other = std::find_if(
      begin, begin + lanes, [active](const Fiber& f) { return f.wait != active->wait || f.place != active->place; });
  if (other != begin + lanes) {
    Fault("diverged in a SIMD-group operation: thread " + std::to_string(active - fibers_) + " is at " +
          Name(active->wait) + ", thread " + std::to_string(other - fibers_) + " at " + Name(other->wait) +
          (other->wait == active->wait ? " elsewhere in the kernel" : ""));
  }
  Exchange(first, lanes);
  if (active->wait == Wait::kSimdgroupBarrier && active->flags != 0) ++simdgroup_phases_[first / kSimdgroupThreads];
  for (uint32_t lane = 0; lane < lanes; ++lane) fibers_[first + lane].wait = Wait::kNothing;
  return true;
}

/*! \brief Lets the threadgroup go on if all its threads wait at the same barrier; false if all have ended. */
bool Execution::ReleaseThreadgroup() {
  const Fiber* end = fibers_ + count_;
  const Fiber* waiting = std::find_if(fibers_, const_cast<Fiber*>(end),
                                      [](const Fiber& f) { return f.wait == Wait::kThreadgroupBarrier; });
  if (waiting == end) return false;
  const Fiber* other = std::find_if(static_cast<const Fiber*>(fibers_), end, [waiting](const Fiber& f) {
    return f.wait != waiting->wait || f.place != waiting->place;
  });
  if (other != end) {
    Fault("diverged at a barrier: thread " + std::to_string(waiting - fibers_) + " is at threadgroup_barrier, thread " +
          std::to_string(other - fibers_) + " at " +
          (other->wait == Wait::kEnd ? "the end" : "another threadgroup_barrier"));
  }
  if (waiting->flags & kOrdersDevice) ++device_phase_;
  if (waiting->flags & kOrdersThreadgroup) ++group_phase_;
  for (uint32_t thread = 0; thread < count_; ++thread) fibers_[thread].wait = Wait::kNothing;
  return true;
}

void Execution::Permute(std::vector<uint32_t>* order) {
  for (size_t i = order->size(); i > 1; --i) {
    random_ = random_ * 6364136223846793005ull + 1442695040888963407ull;
    std::swap((*order)[i - 1], (*order)[(random_ >> 33) % i]);
  }
}

void Execution::RunThreadgroup() {
  std::fill_n(kernel_.threadgroup_begin, kernel_.threadgroup_bytes, '\xFF');
  if (kernel_.watched) checker_.BeginThreadgroup();
  if (!kernel_.synchronises && !kernel_.watched) {
    if (settings_.order == Order::kRandom) Permute(&order_);
    for (uint32_t thread : order_) {
      uint32_t position[3];
      ThreadPosition(thread, position);
      current_ = thread;
      in_thread_ = true;
      kernel_.run_thread(addresses_, launch_.scalars.data(), group_, position);
      in_thread_ = false;
    }
    return;
  }
  device_phase_ = group_phase_ = 0;
  std::fill(std::begin(simdgroup_phases_), std::end(simdgroup_phases_), 0);
  for (uint32_t thread = 0; thread < count_; ++thread) Start(thread);
  do {
    if (settings_.order == Order::kRandom) Permute(&order_);
    for (uint32_t thread : order_) {  // SIMD-groups in the order of their first threads
      if (fibers_[thread].wait == Wait::kNothing) RunSimdgroup(thread / kSimdgroupThreads * kSimdgroupThreads);
    }
  } while (ReleaseThreadgroup());
}

void Execution::Run() {
  const uint32_t groups = launch_.groups[0] * launch_.groups[1] * launch_.groups[2];
  group_order_.resize(groups);
  std::iota(group_order_.begin(), group_order_.end(), 0);
  order_.resize(count_);
  std::iota(order_.begin(), order_.end(), 0);
  if (settings_.order == Order::kReverse) {
    std::reverse(group_order_.begin(), group_order_.end());
    std::reverse(order_.begin(), order_.end());
  }
  if (settings_.order == Order::kRandom) Permute(&group_order_);
  if (kernel_.watched) {
    checker_.BeginLaunch(launch_.buffers, kernel_.threadgroup_begin, kernel_.threadgroup_bytes, kernel_.granule);
  }
  for (uint32_t number : group_order_) {
    group_number_ = number;
    group_[0] = number % launch_.groups[0];
    group_[1] = number / launch_.groups[0] % launch_.groups[1];
    group_[2] = number / launch_.groups[0] / launch_.groups[1];
    RunThreadgroup();
  }
  if (kernel_.watched) {
    fault = checker_.EndLaunch();
  } else {
    for (Buffer* buffer : launch_.buffers) buffer->MarkAllWritten();  // nobody saw what was
  }
}

// ------------------------------------------------------------------------------------------------------------- signals

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE};

const std::vector<Buffer*>* running_buffers = nullptr;

void HandleSignal(int number, siginfo_t* info, void*) {
  if (running == nullptr || !pthread_equal(pthread_self(), running_on)) {
    signal(number, SIG_DFL);  // not the kernel's: the instruction runs again and ends the process
    return;
  }
  if (number == SIGFPE) running->Fault("divides an integer by zero");
  // A vector that is not aligned, or an address that no memory can have: the processor does not say which.
  if (info->si_code == SI_KERNEL) running->Fault("accesses memory at an impossible or misaligned address");
  const uintptr_t address = reinterpret_cast<uintptr_t>(info->si_addr);
  running->Fault("accesses memory out of bounds, " + (OnStacks(address) ? std::string("in the thread's own memory")
                                                                        : DescribeAddress(address, *running_buffers)));
}

/*! \brief While it lives, faults of the kernel come to HandleSignal, on a stack of its own. */
class SignalGuard {
 public:
  SignalGuard() : stack_(new char[kStack]) {
    stack_t stack{};
    stack.ss_sp = stack_;
    stack.ss_size = kStack;
    sigaltstack(&stack, &old_stack_);
    struct sigaction action {};
    action.sa_sigaction = HandleSignal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &action, &old_actions_[i]);
  }
  ~SignalGuard() {
    for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &old_actions_[i], nullptr);
    sigaltstack(&old_stack_, nullptr);
    delete[] stack_;
  }
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;

 private:
  static constexpr size_t kStack = 64 * 1024;
  char* stack_;
  stack_t old_stack_{};
  struct sigaction old_actions_[std::size(kSignals)];
};

// -------------------------------------------------------------------------------------------------------------- limits

void CheckLimits(const Launch& launch) {
  const Kernel& kernel = *launch.kernel;
  std::ostringstream text;
  const size_t entries = launch.buffers.size() + (launch.scalars.empty() ? 0 : 1);
  const uint64_t threads = uint64_t{launch.threads[0]} * launch.threads[1] * launch.threads[2];
  const uint64_t groups = uint64_t{launch.groups[0]} * launch.groups[1] * launch.groups[2];
  if (threads > kMaxThreads) text << "; " << threads << " threads in a threadgroup, at most " << kMaxThreads;
  if (kernel.threadgroup_bytes > kMaxThreadgroupBytes) {
    text << "; " << kernel.threadgroup_bytes << " bytes of threadgroup memory, at most " << kMaxThreadgroupBytes;
  }
  if (entries > kMaxBuffers) text << "; " << entries << " buffers, at most " << kMaxBuffers;
  if (launch.scalars.size() * sizeof(uint64_t) > kMaxScalarBytes) {
    text << "; " << launch.scalars.size() << " scalars, at most " << kMaxScalarBytes / sizeof(uint64_t);
  }
  if (threads == 0 || groups == 0) text << "; an empty grid";
  if (groups > UINT32_MAX) text << "; " << groups << " threadgroups, more than the emulator counts";
  if (!text.str().empty()) throw KernelFault("exceeds the limits of a device: " + text.str().substr(2));
}

}  // namespace

void Run(const Launch& launch, const Settings& settings) {
  CheckLimits(launch);
  Execution execution(launch, settings);
  const uint32_t old_control = _mm_getcsr();
  {
    const SignalGuard guard;
    running_buffers = &launch.buffers;
    running_on = pthread_self();
    running = &execution;
    if (settings.flush_subnormals) _mm_setcsr(old_control | 0x8040);  // flush to zero, denormals are zero
    if (sigsetjmp(execution.exit, /*savemask=*/1) == 0) execution.Run();
    running = nullptr;
    _mm_setcsr(old_control);
  }
  if (!execution.fault.empty()) throw KernelFault(execution.fault);
}

}  // namespace metal_emulator

// ----------------------------------------------------------------------------------------------- called by object code

using metal_emulator::running;
using metal_emulator::Wait;

#define EMULATOR_EXPORT extern "C" __attribute__((visibility("default"), noinline))

EMULATOR_EXPORT void metal_emulator_threadgroup_barrier(uint32_t flags) {
  running->Current().flags = flags;
  running->Yield(Wait::kThreadgroupBarrier, __builtin_return_address(0));
}

EMULATOR_EXPORT void metal_emulator_simdgroup_barrier(uint32_t flags) {
  running->Current().flags = flags;
  running->Yield(Wait::kSimdgroupBarrier, __builtin_return_address(0));
}

EMULATOR_EXPORT uint32_t metal_emulator_lane() { return running->current() % metal_emulator::kSimdgroupThreads; }

EMULATOR_EXPORT uint32_t metal_emulator_lanes() { return running->LanesOf(running->current()); }

EMULATOR_EXPORT void metal_emulator_shuffle(const void* value, void* result, uint32_t bytes, uint32_t mode,
                                            int operand) {
  metal_emulator::Fiber& fiber = running->Current();
  fiber.value = value;
  fiber.result = result;
  fiber.bytes = bytes;
  fiber.mode = mode;
  fiber.operand = operand;
  running->Yield(Wait::kShuffle, __builtin_return_address(0));
}

EMULATOR_EXPORT void metal_emulator_gather(const void* value, void* all, uint32_t bytes) {
  metal_emulator::Fiber& fiber = running->Current();
  fiber.value = value;
  fiber.result = all;
  fiber.bytes = bytes;
  running->Yield(Wait::kGather, __builtin_return_address(0));
}

EMULATOR_EXPORT void metal_emulator_multiply_accumulate(void* d, const void* a, const void* b, const void* c,
                                                        const uint32_t* bytes) {
  metal_emulator::Fiber& fiber = running->Current();
  fiber.result = d;
  fiber.factors[0] = a;
  fiber.factors[1] = b;
  fiber.factors[2] = c;
  fiber.value_bytes = bytes;
  running->Yield(Wait::kMultiply, __builtin_return_address(0));
}

namespace {

/*! \brief Address of an element of a SIMD-group's matrix: number e of the calling thread's two. */
uint64_t MatrixElement(uint64_t address, uint64_t stride, uint32_t bytes, bool transposed, uint32_t e) {
  const uint32_t element = metal_emulator_lane() * 2 + e;
  const uint64_t row = transposed ? element % 8 : element / 8, column = transposed ? element / 8 : element % 8;
  return address + (row * stride + column) * bytes;
}

/*! \brief The thread in whose name the SIMD-group as a whole accesses memory: nothing orders its accesses among
 * themselves. */
uint32_t FirstLane() { return running->current() - metal_emulator_lane(); }

}  // namespace

EMULATOR_EXPORT void metal_emulator_load_matrix(void* elements, uint64_t address, uint64_t stride, uint32_t bytes,
                                                bool transposed) {
  for (uint32_t e = 0; e < 2; ++e) {
    const uint64_t source = MatrixElement(address, stride, bytes, transposed, e);
    running->Access(source, bytes, /*writes=*/false, FirstLane());
    std::memcpy(static_cast<char*>(elements) + e * bytes, reinterpret_cast<const void*>(source), bytes);
  }
  running->Yield(Wait::kMatrix, __builtin_return_address(0));
}

EMULATOR_EXPORT void metal_emulator_store_matrix(const void* elements, uint64_t address, uint64_t stride,
                                                 uint32_t bytes, bool transposed) {
  for (uint32_t e = 0; e < 2; ++e) {
    const uint64_t target = MatrixElement(address, stride, bytes, transposed, e);
    running->Access(target, bytes, /*writes=*/true, FirstLane());
    std::memcpy(reinterpret_cast<void*>(target), static_cast<const char*>(elements) + e * bytes, bytes);
  }
  running->Yield(Wait::kMatrix, __builtin_return_address(0));
}

// Called before each access of a kernel compiled with -fsanitize-coverage=trace-loads,trace-stores.
#define EMULATOR_WATCH(bytes)                                                                           \
  EMULATOR_EXPORT void __sanitizer_cov_load##bytes(const void* address) {                               \
    running->Access(reinterpret_cast<uintptr_t>(address), bytes, /*writes=*/false, running->current()); \
  }                                                                                                     \
  EMULATOR_EXPORT void __sanitizer_cov_store##bytes(void* address) {                                    \
    running->Access(reinterpret_cast<uintptr_t>(address), bytes, /*writes=*/true, running->current());  \
  }
EMULATOR_WATCH(1)
EMULATOR_WATCH(2)
EMULATOR_WATCH(4)
EMULATOR_WATCH(8)
EMULATOR_WATCH(16)
