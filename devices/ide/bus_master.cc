#include "devices/ide/bus_master.h"

#include <algorithm>

namespace spindle::ide {
namespace {

// A physical region descriptor, little endian: where, how many bytes (0: 64 KiB), and whether it is the last.
struct Prd {
  uint32_t address;
  uint16_t bytes;
  uint16_t flags;
};
static_assert(sizeof(Prd) == 8);
constexpr uint16_t kEndOfTable = 1u << 15;

// The table lies within one 64 KiB page, so it has an end even if no entry says so.
constexpr uint64_t kTablePage = 0x10000;

}  // namespace

uint8_t BusMaster::read(unsigned offset) const {
  switch (offset) {
    case kBmCommand:
      return command_;
    case kBmStatus:
      return status_;
    case kBmTable:
    case kBmTable + 1:
    case kBmTable + 2:
    case kBmTable + 3:
      return static_cast<uint8_t>(table_ >> (8 * (offset - kBmTable)));
  }
  return 0;
}

void BusMaster::write(unsigned offset, uint8_t value) {
  if (offset == kBmStatus) {
    // Interrupt and Error are cleared by writing 1; the "drive can do DMA" bits are the host's notes.
    const uint8_t kept = status_ & ~(value & (kBmInterrupt | kBmError)) & ~kBmDriveCapable;
    status_ = static_cast<uint8_t>(kept | (value & kBmDriveCapable));
  } else if (offset >= kBmTable && offset < kBmTable + 4) {
    const unsigned shift = 8 * (offset - kBmTable);
    table_ = (table_ & ~(0xffu << shift)) | static_cast<uint32_t>(value) << shift;
    table_ &= ~3u;
  }
}

void BusMaster::write_command(uint8_t value) {
  const bool start = value & kBmStart;
  const bool was_started = started();
  command_ = value & (kBmStart | kBmToMemory);
  if (start == was_started) return;
  if (start) {
    status_ |= kBmActive;
    next_entry_ = table_;
    table_end_ = (next_entry_ & ~(kTablePage - 1)) + kTablePage;
    remaining_ = 0;
    last_ = false;
  } else {
    status_ &= ~kBmActive;
  }
}

BusMaster::Gathered BusMaster::bus_error() {
  status_ = static_cast<uint8_t>((status_ & ~kBmActive) | kBmError);
  return Gathered::BusError;
}

// False: the table is not in RAM, or runs out of its page, be it within an entry.
bool BusMaster::fetch_entry() {
  if (next_entry_ + sizeof(Prd) > table_end_) return false;
  const auto entry = memory_.read_object<Prd>(next_entry_);
  if (!entry) return false;
  next_entry_ += sizeof(Prd);
  address_ = entry->address & ~1u;  // regions are made of words
  remaining_ = entry->bytes & ~1u;
  if (remaining_ == 0) remaining_ = 0x10000;
  last_ = entry->flags & kEndOfTable;
  return true;
}

BusMaster::Gathered BusMaster::gather(uint64_t bytes, std::vector<iovec>& parts) {
  parts.clear();
  while (bytes > 0) {
    if (remaining_ == 0) {
      if (last_) {
        status_ &= ~kBmActive;
        return Gathered::TooShort;
      }
      if (!fetch_entry()) return bus_error();
    }
    const uint64_t take = std::min<uint64_t>(remaining_, bytes);
    // The controller has 32 address bits: a region does not go on beyond them.
    if (address_ + take > uint64_t{1} << 32) return bus_error();
    uint8_t* host = memory_.at(address_, take);
    if (!host) return bus_error();
    if (!parts.empty() && static_cast<uint8_t*>(parts.back().iov_base) + parts.back().iov_len == host) {
      parts.back().iov_len += take;
    } else {
      parts.push_back({host, static_cast<std::size_t>(take)});
    }
    address_ += take;
    remaining_ -= static_cast<uint32_t>(take);
    bytes -= take;
  }
  if (remaining_ & 1) {
    ++address_;
    --remaining_;
  }
  return Gathered::All;
}

void BusMaster::transfer_ended() {
  if (last_ && remaining_ == 0) status_ &= ~kBmActive;
}

void BusMaster::reset() {
  command_ = 0;
  status_ = kBmDriveCapable;
  table_ = 0;
  remaining_ = 0;
  last_ = false;
}

}  // namespace spindle::ide
