// SPDX-License-Identifier: Apache-2.0
// Device memory of other ranks that is open in this process, kept from one operation to the next:
// to open and to close it takes longer than most operations do.
#pragma once

#include <map>
#include <optional>

#include "device/driver.h"

namespace tw::collective {

// What has not been used for so many operations in place is given up. All ranks count the same.
inline constexpr uint64_t kKeptOperations = 128;

// What this rank has exported of its own: it is described and exported once, and the others hear
// when it was freed.
class ExportedAllocations {
 public:
  ExportedAllocations(device::Driver& driver, int device) : driver_(driver), device_(device) {}

  // Changes whenever something was freed that others may have open, and is never one of another
  // object of this process, which a rank may have had before. Asks the driver whether all that is
  // known is there still: first thing in each operation.
  uint64_t generation(uint64_t operation);

  struct Place {
    device::IpcHandle handle;  // of the allocation
    uint64_t offset;           // in it
  };
  // Where the array lies, for other processes. Nothing: they cannot map it. Asks the driver if the
  // array is in an allocation that is not known.
  std::optional<Place> place_of(const std::byte* array, uint64_t operation);

 private:
  struct Known {
    uint64_t id;
    size_t size;
    device::IpcHandle handle;
    uint64_t last;
  };
  static uint64_t next_generation();

  device::Driver& driver_;
  const int device_;
  std::map<const std::byte*, Known> known_;  // by where they begin
  uint64_t generation_ = next_generation();
};

class PeerAllocations {
 public:
  PeerAllocations(device::Driver& driver, int device) : driver_(driver), device_(device) {}

  struct Opened {
    const std::byte* base;
    size_t size;
  };
  // The rank says this generation: what is open of another one of its is closed.
  void hear(int rank, uint64_t generation);
  Result<Opened> open(int rank, const device::IpcHandle& handle, uint64_t operation);
  // After an operation, when nothing uses any of it.
  void trim(uint64_t operation);
  // For all of it: nothing is read where it lies any more.
  void close() { ranks_.clear(); }
  // All of it stays open: a device that does not get on may still use it.
  void abandon();

 private:
  struct Kept {
    device::ImportedMemory memory;
    size_t size;
    uint64_t last;
  };
  struct OfRank {
    uint64_t generation = 0;
    std::map<device::IpcHandle, Kept> kept;
  };
  device::Driver& driver_;
  const int device_;
  std::map<int, OfRank> ranks_;
};

}  // namespace tw::collective
