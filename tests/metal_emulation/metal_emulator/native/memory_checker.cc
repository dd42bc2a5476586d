/*! \file memory_checker.cc \brief See memory_checker.h. */
#include "memory_checker.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace metal_emulator {
namespace {

constexpr size_t kFindings = 8;
constexpr uint32_t kSimdgroup = 32;

}  // namespace

/*! \brief The accesses to one granule that may still race with a later one; all zero is none. */
struct MemoryChecker::Cell {
  struct Access {
    uint32_t group_plus_one;
    uint32_t phase;
    uint16_t thread;
    uint16_t simdgroup_phase;
    bool Any() const { return group_plus_one != 0; }
  };
  Access write;
  Access reads[2];
};

void MemoryChecker::BeginLaunch(std::vector<Buffer*> buffers, char* threadgroup_begin, size_t threadgroup_bytes,
                                size_t granule) {
  buffers_ = std::move(buffers);
  granule_ = granule;
  last_region_ = 0;
  regions_.clear();
  kinds_.clear();
  findings_.clear();
  auto cells_of = [granule](size_t bytes) { return (bytes / granule + 2) * sizeof(Cell); };
  for (size_t i = 0; i < buffers_.size(); ++i) {
    Buffer* buffer = buffers_[i];
    if (buffer->accesses.size() < cells_of(buffer->size)) buffer->accesses = LazyPages(cells_of(buffer->size));
    buffer->accesses.Clear();
    regions_.push_back({reinterpret_cast<uintptr_t>(buffer->begin), buffer->size, buffer->written.begin(),
                        reinterpret_cast<Cell*>(buffer->accesses.begin()), /*device=*/true,
                        "buffer argument " + std::to_string(i)});
  }
  threadgroup_written_.assign(threadgroup_bytes, 0);
  threadgroup_cells_ = LazyPages(cells_of(threadgroup_bytes));
  regions_.push_back({reinterpret_cast<uintptr_t>(threadgroup_begin), threadgroup_bytes, threadgroup_written_.data(),
                      reinterpret_cast<Cell*>(threadgroup_cells_.begin()), /*device=*/false, "threadgroup memory"});
}

void MemoryChecker::BeginThreadgroup() { std::fill(threadgroup_written_.begin(), threadgroup_written_.end(), 0); }

bool MemoryChecker::Watches(uintptr_t address) const {
  return std::any_of(regions_.begin(), regions_.end(),
                     [address](const Region& r) { return address - r.begin < r.size; });
}

std::string MemoryChecker::Access(uintptr_t address, size_t bytes, bool writes, const Accessor& by) {
  if (regions_.empty()) return "";
  if (address - regions_[last_region_].begin >= regions_[last_region_].size) {
    const auto found = std::find_if(regions_.begin(), regions_.end(),
                                    [address](const Region& r) { return address - r.begin < r.size; });
    if (found == regions_.end()) {
      return std::string(writes ? "writes " : "reads ") + std::to_string(bytes) + " bytes out of bounds, " +
             DescribeAddress(address, buffers_);
    }
    last_region_ = found - regions_.begin();
  }
  Region& region = regions_[last_region_];
  const size_t offset = address - region.begin;
  if (bytes > region.size - offset) {
    return std::string(writes ? "writes " : "reads ") + std::to_string(bytes) + " bytes at byte " +
           std::to_string(offset) + " of " + region.name + ", which has " + std::to_string(region.size) + " bytes";
  }
  Check(&region, offset, bytes, writes, by);
  return "";
}

void MemoryChecker::Check(Region* region, size_t offset, size_t bytes, bool writes, const Accessor& by) {
  if (!writes && std::memchr(region->written + offset, 0, bytes) != nullptr) {
    Find(*region, "uninitialised memory read", offset, "by thread " + std::to_string(by.thread));
  }
  if (writes) std::memset(region->written + offset, 1, bytes);

  const uint32_t phase = region->device ? by.device_phase : by.group_phase;
  const Cell::Access now{by.group + 1, phase, static_cast<uint16_t>(by.thread),
                         static_cast<uint16_t>(by.simdgroup_phase)};
  auto ordered_before = [&now, region](const Cell::Access& earlier) {
    if (!earlier.Any()) return true;
    if (earlier.group_plus_one != now.group_plus_one) return !region->device;  // other groups have other memory
    if (earlier.thread == now.thread || earlier.phase != now.phase) return true;
    return earlier.thread / kSimdgroup == now.thread / kSimdgroup && earlier.simdgroup_phase != now.simdgroup_phase;
  };
  auto report = [&](const char* what, const Cell::Access& earlier, size_t place) {
    Find(*region, what, place * granule_,
         "thread " + std::to_string(earlier.thread) + " of threadgroup " + std::to_string(earlier.group_plus_one - 1) +
             " and thread " + std::to_string(by.thread) + " of threadgroup " + std::to_string(by.group));
  };
  for (size_t place = offset / granule_; place <= (offset + bytes - 1) / granule_; ++place) {
    Cell& cell = region->cells[place];
    if (!ordered_before(cell.write))
      report(writes ? "data race, write and write" : "data race, write and read", cell.write, place);
    if (writes) {
      for (Cell::Access& read : cell.reads) {
        if (!ordered_before(read)) report("data race, read and write", read, place);
        read = {};
      }
      cell.write = now;
    } else if (ordered_before(cell.reads[0])) {
      cell.reads[0] = now;
    } else {
      cell.reads[1] = now;
    }
  }
}

void MemoryChecker::Find(const Region& region, const char* what, size_t offset, const std::string& detail) {
  const std::string kind = what + (" of " + region.name);
  if (kinds_.size() >= kFindings || std::find(kinds_.begin(), kinds_.end(), kind) != kinds_.end()) return;
  kinds_.push_back(kind);
  findings_.push_back(kind + " at byte " + std::to_string(offset) + ": " + detail);
}

std::string MemoryChecker::EndLaunch() {
  for (Buffer* buffer : buffers_) buffer->accesses.Clear();
  std::string text;
  for (const std::string& finding : findings_) text += (text.empty() ? "" : "\n  ") + finding;
  regions_.clear();
  return text;
}

std::string DescribeAddress(uintptr_t address, const std::vector<Buffer*>& buffers) {
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (!buffers[i]->Surrounds(address)) continue;
    const uintptr_t begin = reinterpret_cast<uintptr_t>(buffers[i]->begin);
    const std::string argument =
        "buffer argument " + std::to_string(i) + " (" + std::to_string(buffers[i]->size) + " bytes)";
    if (address < begin) return std::to_string(begin - address) + " bytes before the start of " + argument;
    return std::to_string(address - begin - buffers[i]->size) + " bytes past the end of " + argument;
  }
  return "far from every buffer argument";
}

}  // namespace metal_emulator
