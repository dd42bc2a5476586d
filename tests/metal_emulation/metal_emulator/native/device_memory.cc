/*! \file device_memory.cc \brief See device_memory.h. */
#include "device_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <utility>

namespace metal_emulator {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kGuard =
    size_t{64} << 20;              // at each end: costs addresses, no memory; a wrong index rarely jumps over it
constexpr size_t kAlignment = 16;  // Metal's, and that of its widest vector

size_t RoundUp(size_t size, size_t multiple) { return (size + multiple - 1) / multiple * multiple; }

char* Map(size_t size) {
  void* pages =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, /*offset=*/0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  return static_cast<char*>(pages);
}

/*! \brief By address. One thread at a time uses the device: the virtual machine's. */
std::map<uintptr_t, std::unique_ptr<Buffer>>& Buffers() {
  static auto* buffers = new std::map<uintptr_t, std::unique_ptr<Buffer>>();
  return *buffers;
}

}  // namespace

LazyPages::LazyPages(size_t size) : begin_(Map(std::max<size_t>(size, 1))), size_(std::max<size_t>(size, 1)) {}

LazyPages::~LazyPages() {
  if (begin_ != nullptr) munmap(begin_, size_);
}

LazyPages::LazyPages(LazyPages&& other) noexcept { *this = std::move(other); }

LazyPages& LazyPages::operator=(LazyPages&& other) noexcept {
  std::swap(begin_, other.begin_);
  std::swap(size_, other.size_);
  return *this;
}

void LazyPages::Clear() {
  if (begin_ != nullptr) madvise(begin_, size_, MADV_DONTNEED);
}

void Buffer::MarkWritten(size_t offset, size_t bytes) { std::memset(written.begin() + offset, 1, bytes); }

void Buffer::MarkAllWritten() {
  if (!all_written) MarkWritten(0, size);
  all_written = true;
}

Buffer* Allocate(size_t size) {
  auto buffer = std::make_unique<Buffer>();
  const size_t body = RoundUp(std::max<size_t>(size, 1), kAlignment);
  const size_t pages = RoundUp(body, kPage);
  buffer->size = size;
  buffer->written = LazyPages(body);
  buffer->mapping_size = pages + 2 * kGuard;
  buffer->mapping = Map(buffer->mapping_size);
  buffer->begin = buffer->mapping + kGuard + pages - body;
  mprotect(buffer->mapping, kGuard, PROT_NONE);
  mprotect(buffer->mapping + kGuard + pages, kGuard, PROT_NONE);
  std::memset(buffer->mapping + kGuard, 0xFF, pages);
  Buffer* result = buffer.get();
  Buffers()[reinterpret_cast<uintptr_t>(result->begin)] = std::move(buffer);
  return result;
}

bool Free(void* begin) {
  const auto entry = Buffers().find(reinterpret_cast<uintptr_t>(begin));
  if (entry == Buffers().end()) return false;
  munmap(entry->second->mapping, entry->second->mapping_size);
  Buffers().erase(entry);
  return true;
}

Buffer* FindBuffer(const void* begin) {
  const auto entry = Buffers().find(reinterpret_cast<uintptr_t>(begin));
  return entry == Buffers().end() ? nullptr : entry->second.get();
}

Buffer* FindBufferAround(const void* address) {
  const auto after = Buffers().upper_bound(reinterpret_cast<uintptr_t>(address));
  if (after == Buffers().begin()) return nullptr;
  Buffer* buffer = std::prev(after)->second.get();
  return buffer->Contains(reinterpret_cast<uintptr_t>(address)) ? buffer : nullptr;
}

}  // namespace metal_emulator
