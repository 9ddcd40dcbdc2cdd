#include "devices/ide/identify.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <string_view>

#include "devices/ide/trim.h"

namespace spindle::ide {
namespace {

// Words that are "valid" when bit 15 is 0 and bit 14 is 1 (83, 84, 87, 106, ...).
constexpr uint16_t kValid = 1u << 14;

// Command set bits, shared by "supported" and "enabled" words.
constexpr uint16_t kSet82Nop = 1u << 14;
constexpr uint16_t kSet82DeviceReset = 1u << 9;
constexpr uint16_t kSet82LookAhead = 1u << 6;
constexpr uint16_t kSet82WriteCache = 1u << 5;
constexpr uint16_t kSet82Packet = 1u << 4;
constexpr uint16_t kSet82PowerManagement = 1u << 3;
constexpr uint16_t kSet82Smart = 1u << 0;
constexpr uint16_t kSet83FlushExt = 1u << 13;
constexpr uint16_t kSet83Flush = 1u << 12;
constexpr uint16_t kSet83Lba48 = 1u << 10;
constexpr uint16_t kSet84Fua = 1u << 6;
constexpr uint16_t kSet84SmartErrorLog = 1u << 0;

class Words {
 public:
  void set(unsigned index, uint64_t value) { words_[index] = static_cast<uint16_t>(value); }
  void set_wide(unsigned index, uint64_t value, unsigned count) {
    for (unsigned i = 0; i < count; ++i) set(index + i, value >> (16 * i));
  }
  // ATA strings: padded with spaces, the first character in the upper byte of each word.
  void set_string(unsigned index, unsigned count, std::string_view text) {
    for (unsigned i = 0; i < count; ++i) {
      const auto at = [&](std::size_t position) {
        return position < text.size() ? static_cast<uint8_t>(text[position]) : uint8_t{' '};
      };
      set(index + i, at(2 * i) << 8 | at(2 * i + 1));
    }
  }
  void store(std::span<uint8_t> block) {
    for (unsigned i = 0; i < words_.size(); ++i) {
      block[2 * i] = static_cast<uint8_t>(words_[i]);
      block[2 * i + 1] = static_cast<uint8_t>(words_[i] >> 8);
    }
  }

 private:
  std::array<uint16_t, 256> words_{};
};

void set_geometry(Words& words, const Drive& drive) {
  const Geometry native = drive.default_geometry();
  words.set(1, native.cylinders);
  words.set(3, native.heads);
  words.set(6, native.sectors);
  const Geometry now = drive.geometry();
  words.set(54, now.cylinders);
  words.set(55, now.heads);
  words.set(56, now.sectors);
  words.set_wide(57, now.capacity(), 2);
  words.set_wide(60, std::min(drive.sectors(), kMaxLba28Sectors), 2);
  words.set_wide(100, drive.sectors(), 4);
}

// The lower byte says what is supported, the upper which one is selected. Selecting a PIO mode deselects DMA.
void set_transfer_modes(Words& words, const Drive& drive) {
  words.set(49, 1u << 11 | 1u << 10 | 1u << 9 | 1u << 8);  // IORDY, may be disabled, LBA, DMA
  words.set(51, 2u << 8);                                  // PIO mode 2 before words 64-68 are looked at
  words.set(53, 7);                                        // words 54-58, 64-70 and 88 are valid
  words.set(64, 3);                                        // PIO 3 and 4
  for (unsigned word : {65u, 66u, 67u, 68u}) words.set(word, 120);  // nanoseconds a cycle

  uint16_t multiword = (1u << (kHighestMultiwordDma + 1)) - 1;
  uint16_t ultra = (1u << (kHighestUltraDma + 1)) - 1;
  const uint8_t mode = drive.transfer_mode;
  if (mode & kModeUltraDma) {
    ultra |= 1u << (8 + (mode & 7));
  } else if (mode & kModeMultiwordDma) {
    multiword |= 1u << (8 + (mode & 7));
  }
  words.set(63, multiword);
  words.set(88, ultra);
}

void set_features(Words& words, const Drive& drive) {
  constexpr uint16_t kAlways = kSet82Nop | kSet82PowerManagement;
  words.set(82, kAlways | kSet82LookAhead | kSet82WriteCache | kSet82Smart);
  words.set(83, kValid | kSet83FlushExt | kSet83Flush | kSet83Lba48);
  words.set(84, kValid | kSet84Fua | kSet84SmartErrorLog);
  words.set(85, kAlways | (drive.settings.look_ahead ? kSet82LookAhead : 0) |
                    (drive.disk().write_cache() ? kSet82WriteCache : 0) |
                    (drive.smart.enabled ? kSet82Smart : 0));
  words.set(86, kSet83FlushExt | kSet83Flush | kSet83Lba48);
  words.set(87, kValid | kSet84Fua | kSet84SmartErrorLog);
}

// What TRIM takes and leaves. Where discards do not reach the host all of it is zero.
void set_trim(Words& words, const Drive& drive) {
  if (!offers_trim(drive)) return;
  const TrimPromise promise = trim_promise(drive);
  constexpr uint16_t kDeterministic = 1u << 14;
  constexpr uint16_t kZeroes = 1u << 5;
  words.set(69, (promise.deterministic ? kDeterministic : 0) | (promise.zeroes ? kZeroes : 0));
  words.set(105, kMaxTrimBlocks);
  words.set(169, 1u << 0);
}

// Word 93: the cable has 80 conductors (without which no host goes beyond UDMA/33), and how the drive found
// out which one it is.
uint16_t hardware_reset_result(const Drive& drive) {
  constexpr uint16_t kCable80 = 1u << 13;
  constexpr uint16_t kByJumper = 1u << 1;
  uint16_t device0 = 1u << 0 | kByJumper | 1u << 3;  // passed its diagnostics
  if (drive.alone) device0 |= 1u << 6;               // answers for device 1
  const uint16_t device1 = (1u << 0 | kByJumper | 1u << 3) << 8;
  return kValid | kCable80 | (drive.unit() == 0 ? device0 : device1);
}

// Word 106: how many logical sectors make a physical one, where writing less costs a read first.
uint16_t sector_size(const Drive& drive) {
  const uint32_t physical = drive.disk().node().facts().request_alignment;
  if (physical <= kSectorBytes || !std::has_single_bit(physical)) return kValid;
  constexpr uint16_t kSeveralPerPhysical = 1u << 13;
  return static_cast<uint16_t>(kValid | kSeveralPerPhysical | (std::countr_zero(physical) - kSectorShift));
}

void set_strings(Words& words, const Drive& drive) {
  words.set_string(10, 10, drive.options().serial);
  words.set_string(23, 4, drive.options().firmware);
  words.set_string(27, 20, drive.options().model);
}

// Word 255: signature A5h, and the byte that makes all 512 sum to zero.
void store_with_checksum(Words& words, std::span<uint8_t> block) {
  words.set(255, 0xa5);
  words.store(block);
  const unsigned sum = std::accumulate(block.begin(), block.begin() + kSectorBytes, 0u);
  block[511] = static_cast<uint8_t>(0x100 - (sum & 0xff));
}

}  // namespace

void identify_device(const Drive& drive, std::span<uint8_t> block) {
  Words words;
  words.set(0, 1u << 6);  // an ATA device, not removable
  set_strings(words, drive);
  words.set(47, 0x80 << 8 | kMaxMultiple);
  words.set(50, kValid);
  if (drive.settings.multiple != 0) words.set(59, 1u << 8 | drive.settings.multiple);
  set_geometry(words, drive);
  set_transfer_modes(words, drive);
  words.set(80, 0x01f0);  // ATA/ATAPI-4 to ATA8-ACS
  set_features(words, drive);
  words.set(93, hardware_reset_result(drive));
  set_trim(words, drive);
  words.set(106, sector_size(drive));
  words.set(209, kValid);  // logical sector 0 starts a physical one
  // Word 217: 1 for media that do not rotate, else the nominal rate, where the host knows nothing better.
  constexpr uint16_t kNonRotating = 1;
  constexpr uint16_t kNominalRate = 7200;
  words.set(217, drive.disk().node().facts().rotational ? kNominalRate : kNonRotating);
  store_with_checksum(words, block);
}

void identify_packet_device(const Drive& drive, std::span<uint8_t> block) {
  constexpr uint16_t kPacketDevice = 2u << 14, kCdRom = 5u << 8, kRemovable = 1u << 7;
  constexpr uint16_t kDrqWithin50us = 2u << 5, kTwelveByteCdb = 0;
  Words words;
  set_strings(words, drive);
  set_transfer_modes(words, drive);
  words.set(0, kPacketDevice | kCdRom | kRemovable | kDrqWithin50us | kTwelveByteCdb);
  words.set(49, 1u << 11 | 1u << 9 | 1u << 8);  // IORDY, LBA, DMA
  words.set(53, 6);                             // words 64-70 and 88 are valid
  words.set(80, 0x01f0);                        // ATA/ATAPI-4 to ATA8-ACS
  constexpr uint16_t kAlways = kSet82Nop | kSet82DeviceReset | kSet82Packet | kSet82PowerManagement;
  words.set(82, kAlways);
  words.set(83, kValid);
  words.set(84, kValid);
  words.set(85, kAlways);
  words.set(87, kValid);
  words.set(93, hardware_reset_result(drive));
  store_with_checksum(words, block);
}

}  // namespace spindle::ide
