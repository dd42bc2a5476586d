/*!
 * \file memory_checker.h
 * \brief Watches every load and store of a kernel: data races, reads of memory that nobody wrote, accesses out of
 * bounds.
 *
 * A race is two accesses to the same memory by different threads, at least one of them a write, that nothing orders.
 * What orders accesses: a threadgroup_barrier between two threads of a threadgroup, for the memory that its flags name
 * (one for threadgroup memory does not order device memory); a simdgroup_barrier between threads of a SIMD-group;
 * nothing between threads of different threadgroups. So a race is found whatever the order in which the emulator ran
 * the threads, apart from those that the record forgets: it keeps the last write and two reads of a place.
 *
 * Bounds are those of allocations. A tensor that shares a buffer with an earlier, larger one has more room than its
 * shape says, and what the earlier one left there counts as written.
 *
 * What this is not: it does not follow values, so that a read of unwritten memory counts even if the value is
 * discarded.
 */
#ifndef METAL_EMULATOR_MEMORY_CHECKER_H_
#define METAL_EMULATOR_MEMORY_CHECKER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "device_memory.h"

namespace metal_emulator {

/*! \brief Who accesses memory, and after how many barriers. */
struct Accessor {
  uint32_t group;            //!< number of the threadgroup in the grid
  uint32_t thread;           //!< number of the thread in the threadgroup
  uint32_t device_phase;     //!< barriers so far that order device memory
  uint32_t group_phase;      //!< barriers so far that order threadgroup memory
  uint32_t simdgroup_phase;  //!< barriers so far of the thread's SIMD-group
};

class MemoryChecker {
 public:
  /*!
   * \brief Start of a launch.
   * \param buffers The kernel's buffer arguments, in their order.
   * \param threadgroup_begin Start of the threadgroup memory.
   * \param granule Bytes that are watched as one: the size of the kernel's smallest element, 1, 2 or 4.
   */
  void BeginLaunch(std::vector<Buffer*> buffers, char* threadgroup_begin, size_t threadgroup_bytes, size_t granule);

  /*! \brief Start of a threadgroup: nothing of its memory is written. */
  void BeginThreadgroup();

  /*! \brief An access. Returns what is wrong with its address, or an empty text; other findings are kept. */
  std::string Access(uintptr_t address, size_t bytes, bool writes, const Accessor& by);

  /*! \brief Whether the address is in memory that the checker watches. */
  bool Watches(uintptr_t address) const;

  /*! \brief End of a launch; returns the findings, one per line and kind, or an empty text. */
  std::string EndLaunch();

 private:
  struct Region;
  struct Cell;
  void Check(Region* region, size_t offset, size_t bytes, bool writes, const Accessor& by);
  void Find(const Region& region, const char* what, size_t offset, const std::string& detail);

  /*! \brief One buffer argument, or the threadgroup memory. */
  struct Region {
    uintptr_t begin;
    size_t size;
    char* written;
    Cell* cells;
    bool device;
    std::string name;
  };
  std::vector<Region> regions_;
  std::vector<Buffer*> buffers_;
  size_t granule_ = 4;
  size_t last_region_ = 0;
  std::vector<char> threadgroup_written_;
  LazyPages threadgroup_cells_;
  std::vector<std::string> kinds_;
  std::vector<std::string> findings_;
};

/*! \brief Says where an address lies relative to the buffer arguments, e.g. "8 bytes past the end of buffer argument 1
 * (400 bytes)". */
std::string DescribeAddress(uintptr_t address, const std::vector<Buffer*>& buffers);

}  // namespace metal_emulator

#endif  // METAL_EMULATOR_MEMORY_CHECKER_H_
