/*!
 * \file scheduler.h
 * \brief Runs a kernel: threadgroup after threadgroup, each thread of a group as a fiber.
 *
 * A fiber runs until it waits at a barrier or takes part in a SIMD-group operation; when all threads concerned are
 * there, they go on. Threads that wait at different places, or for one that has ended, have diverged, which is an
 * error. The order in which threads and threadgroups run is free in Metal, and therefore a setting.
 *
 * What this is not: parallel, or a model of time. Two threads never run at once, so that it takes the memory checker to
 * see a race that every order happens to survive.
 */
#ifndef METAL_EMULATOR_SCHEDULER_H_
#define METAL_EMULATOR_SCHEDULER_H_

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "device_memory.h"

namespace metal_emulator {

constexpr uint32_t kSimdgroupThreads = 32;
constexpr uint32_t kMaxThreads =
    256;  //!< of a threadgroup: what every pipeline can run, however many registers it uses
constexpr size_t kMaxThreadgroupBytes = 32768;
constexpr size_t kMaxBuffers = 31;        //!< entries of the argument table, the scalars' one included
constexpr size_t kMaxScalarBytes = 4096;  //!< of setBytes

/*! \brief One thread of the kernel, from its object code: arguments, then positions of the group and of the thread. */
using ThreadFunction = void (*)(const uint64_t* buffers, const void* scalars, const uint32_t* group,
                                const uint32_t* thread);

struct Kernel {
  std::string name;
  ThreadFunction run_thread;
  char* threadgroup_begin;
  size_t threadgroup_bytes;
  bool synchronises;  //!< uses barriers or SIMD-group operations
  bool watched;       //!< reports its loads and stores
  size_t granule;     //!< of the memory checker
};

struct Launch {
  const Kernel* kernel;
  std::vector<Buffer*> buffers;
  std::vector<uint64_t> scalars;
  uint32_t groups[3] = {1, 1, 1};
  uint32_t threads[3] = {1, 1, 1};
};

enum class Order { kForward = 0, kReverse = 1, kRandom = 2 };

struct Settings {
  Order order = Order::kForward;
  uint64_t seed = 0;
  bool flush_subnormals = false;
};

/*! \brief A kernel did what Metal forbids or leaves undefined. */
struct KernelFault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/*! \brief Runs the kernel to its end. Throws KernelFault; what a kernel has written by then stays. */
void Run(const Launch& launch, const Settings& settings);

}  // namespace metal_emulator

#endif  // METAL_EMULATOR_SCHEDULER_H_
