/*!
 * \file device_memory.h
 * \brief Buffers of the emulated GPU, in host memory.
 *
 * A buffer lies between inaccessible pages: it lies at the end of its mapping, but for what Metal's alignment
 * of 16 bytes leaves, so that a kernel that runs past its end stops there. It is filled with bytes 0xFF, which is NaN
 * as float and half and an index far outside as an integer. The bytes that have been written are marked, for the check
 * of reads.
 */
#ifndef METAL_EMULATOR_DEVICE_MEMORY_H_
#define METAL_EMULATOR_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace metal_emulator {

/*! \brief Pages of zeros that take memory only where they are touched, and none again after Clear. */
class LazyPages {
 public:
  LazyPages() = default;
  explicit LazyPages(size_t size);
  ~LazyPages();
  LazyPages(LazyPages&& other) noexcept;
  LazyPages& operator=(LazyPages&& other) noexcept;
  void Clear();
  char* begin() const { return begin_; }
  size_t size() const { return size_; }

 private:
  char* begin_ = nullptr;
  size_t size_ = 0;
};

struct Buffer {
  char* begin = nullptr;    //!< what kernels get
  size_t size = 0;          //!< in bytes, as asked for
  char* mapping = nullptr;  //!< guard pages, slack, contents, guard pages
  size_t mapping_size = 0;
  LazyPages written;         //!< one byte for each of the contents: 1 if it has been written
  bool all_written = false;  //!< `written` is all 1
  LazyPages accesses;        //!< the memory checker's record of the running launch

  bool Contains(uintptr_t address) const { return address - reinterpret_cast<uintptr_t>(begin) < size; }
  bool Surrounds(uintptr_t address) const { return address - reinterpret_cast<uintptr_t>(mapping) < mapping_size; }
  void MarkWritten(size_t offset, size_t bytes);
  void MarkAllWritten();
};

/*! \brief A new buffer of so many bytes. Throws std::bad_alloc. */
Buffer* Allocate(size_t size);

/*! \brief Takes a buffer's address back; false if there is no buffer of that address. */
bool Free(void* begin);

/*! \brief The buffer that starts at the address, or null: Metal binds buffers, not places inside them. */
Buffer* FindBuffer(const void* begin);

/*! \brief The buffer that has this address inside, or null. */
Buffer* FindBufferAround(const void* address);

}  // namespace metal_emulator

#endif  // METAL_EMULATOR_DEVICE_MEMORY_H_
