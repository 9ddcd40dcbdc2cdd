// The numbers of the virtio 1.2 standard that the device side needs, under the standard's names. Only what is
// on the wire; what the values mean is told where they are used.
#pragma once

#include <bit>
#include <cstdint>

namespace spindle::virtio {

static_assert(std::endian::native == std::endian::little, "virtio structures are little endian");

// Device status (2.1).
inline constexpr uint8_t kStatusAcknowledge = 1;
inline constexpr uint8_t kStatusDriver = 2;
inline constexpr uint8_t kStatusDriverOk = 4;
inline constexpr uint8_t kStatusFeaturesOk = 8;
inline constexpr uint8_t kStatusNeedsReset = 64;
inline constexpr uint8_t kStatusFailed = 128;

// Feature bits that belong to no device type (6).
inline constexpr uint64_t kFeatureRingIndirectDesc = 1ull << 28;
inline constexpr uint64_t kFeatureRingEventIdx = 1ull << 29;
inline constexpr uint64_t kFeatureVersion1 = 1ull << 32;
inline constexpr uint64_t kFeatureRingPacked = 1ull << 34;
inline constexpr uint64_t kFeatureRingReset = 1ull << 40;

// Split virtqueues (2.7).
struct Descriptor {
  uint64_t address;
  uint32_t length;
  uint16_t flags;
  uint16_t next;
};
static_assert(sizeof(Descriptor) == 16);

inline constexpr uint16_t kDescNext = 1;
inline constexpr uint16_t kDescWrite = 2;
inline constexpr uint16_t kDescIndirect = 4;

inline constexpr uint16_t kAvailNoInterrupt = 1;
inline constexpr uint16_t kUsedNoNotify = 1;

struct UsedElement {
  uint32_t id;
  uint32_t length;
};
static_assert(sizeof(UsedElement) == 8);

/// 2.7: the largest queue of any device.
inline constexpr uint32_t kLargestQueue = 32768;

/// Bytes of the three areas of a split queue (2.7), the event fields at their ends included.
constexpr uint64_t descriptor_table_bytes(uint32_t size) {
  return 16ull * size;
}
constexpr uint64_t available_ring_bytes(uint32_t size) {
  return 6 + 2ull * size;
}
constexpr uint64_t used_ring_bytes(uint32_t size) {
  return 6 + 8ull * size;
}

// Packed virtqueues (2.8). NEXT, WRITE and INDIRECT are those of split ones.
struct PackedDescriptor {
  uint64_t address;
  uint32_t length;
  uint16_t id;
  uint16_t flags;
};
static_assert(sizeof(PackedDescriptor) == 16);

inline constexpr uint16_t kPackedDescAvail = 1 << 7;
inline constexpr uint16_t kPackedDescUsed = 1 << 15;

/// The event suppression structure (2.8.10), of 4 bytes: a position of the ring with the wrap counter, then
/// flags.
inline constexpr unsigned kPackedWrapBit = 15;
inline constexpr uint16_t kPackedEventEnable = 0;
inline constexpr uint16_t kPackedEventDisable = 1;
inline constexpr uint16_t kPackedEventDesc = 2;
inline constexpr uint64_t kEventSuppressionBytes = 4;

// Block device (5.2).
inline constexpr uint64_t kBlkSegMax = 1ull << 2;
inline constexpr uint64_t kBlkReadOnly = 1ull << 5;
inline constexpr uint64_t kBlkBlkSize = 1ull << 6;
inline constexpr uint64_t kBlkFlush = 1ull << 9;
inline constexpr uint64_t kBlkTopology = 1ull << 10;
inline constexpr uint64_t kBlkConfigWce = 1ull << 11;
inline constexpr uint64_t kBlkMq = 1ull << 12;
inline constexpr uint64_t kBlkDiscard = 1ull << 13;
inline constexpr uint64_t kBlkWriteZeroes = 1ull << 14;

inline constexpr uint32_t kBlkTypeIn = 0;
inline constexpr uint32_t kBlkTypeOut = 1;
inline constexpr uint32_t kBlkTypeFlush = 4;
inline constexpr uint32_t kBlkTypeGetId = 8;
inline constexpr uint32_t kBlkTypeDiscard = 11;
inline constexpr uint32_t kBlkTypeWriteZeroes = 13;

inline constexpr uint8_t kBlkStatusOk = 0;
inline constexpr uint8_t kBlkStatusIoError = 1;
inline constexpr uint8_t kBlkStatusUnsupported = 2;

inline constexpr uint64_t kBlkSector = 512;
inline constexpr uint32_t kBlkIdBytes = 20;

struct BlkRequestHeader {
  uint32_t type;
  uint32_t reserved;
  uint64_t sector;
};
static_assert(sizeof(BlkRequestHeader) == 16);

/// One segment of a DISCARD or WRITE_ZEROES.
struct BlkDiscardWriteZeroes {
  uint64_t sector;
  uint32_t num_sectors;
  uint32_t flags;
};
static_assert(sizeof(BlkDiscardWriteZeroes) == 16);
inline constexpr uint32_t kBlkWriteZeroesUnmap = 1;  // flags

/// The configuration space up to the fields of DISCARD and WRITE_ZEROES.
struct BlkConfig {
  uint64_t capacity;
  uint32_t size_max;
  uint32_t seg_max;
  uint16_t cylinders;
  uint8_t heads;
  uint8_t sectors;
  uint32_t blk_size;
  uint8_t physical_block_exp;
  uint8_t alignment_offset;
  uint16_t min_io_size;
  uint32_t opt_io_size;
  uint8_t writeback;
  uint8_t unused0;
  uint16_t num_queues;
  uint32_t max_discard_sectors;
  uint32_t max_discard_seg;
  uint32_t discard_sector_alignment;
  uint32_t max_write_zeroes_sectors;
  uint32_t max_write_zeroes_seg;
  uint8_t write_zeroes_may_unmap;
  uint8_t unused1[7];
};
static_assert(sizeof(BlkConfig) == 64);
inline constexpr uint32_t kBlkConfigWriteback = 32;

// PCI transport (4.1).
inline constexpr uint16_t kPciVendor = 0x1af4;
inline constexpr uint16_t kPciDeviceBase = 0x1040;
inline constexpr uint16_t kNoVector = 0xffff;

inline constexpr uint8_t kPciCapVendor = 0x09;
inline constexpr uint8_t kPciCapCommon = 1;
inline constexpr uint8_t kPciCapNotify = 2;
inline constexpr uint8_t kPciCapIsr = 3;
inline constexpr uint8_t kPciCapDevice = 4;
inline constexpr uint8_t kPciCapPci = 5;

inline constexpr uint8_t kIsrQueue = 1;
inline constexpr uint8_t kIsrConfig = 2;

/// Offsets in the common configuration structure (4.1.4.3).
namespace common {
inline constexpr unsigned kDeviceFeatureSelect = 0;
inline constexpr unsigned kDeviceFeature = 4;
inline constexpr unsigned kDriverFeatureSelect = 8;
inline constexpr unsigned kDriverFeature = 12;
inline constexpr unsigned kConfigMsixVector = 16;
inline constexpr unsigned kNumQueues = 18;
inline constexpr unsigned kDeviceStatus = 20;
inline constexpr unsigned kConfigGeneration = 21;
inline constexpr unsigned kQueueSelect = 22;
inline constexpr unsigned kQueueSize = 24;
inline constexpr unsigned kQueueMsixVector = 26;
inline constexpr unsigned kQueueEnable = 28;
inline constexpr unsigned kQueueNotifyOff = 30;
inline constexpr unsigned kQueueDesc = 32;
inline constexpr unsigned kQueueDriver = 40;
inline constexpr unsigned kQueueDevice = 48;
inline constexpr unsigned kQueueNotifyData = 56;
inline constexpr unsigned kQueueReset = 58;
inline constexpr unsigned kBytes = 60;
}  // namespace common

}  // namespace spindle::virtio
