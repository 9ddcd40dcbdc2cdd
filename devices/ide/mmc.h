// The packet interface in numbers: names as in ATA/ATAPI-6 (PACKET), SPC-3 (sense data) and MMC-6 (the rest).
#pragma once

#include <cstdint>

namespace spindle::ide {

inline constexpr uint32_t kCdbBytes = 12;  // IDENTIFY PACKET DEVICE, word 0

/// A CD's block. Linux, El Torito and every file system on a CD count in them.
inline constexpr uint32_t kDiscBlockBytes = 2048;
inline constexpr uint32_t kDiscBlockShift = 11;
inline constexpr uint32_t kFramesPerSecond = 75;
/// 80 minutes: what is larger is presented as a DVD.
inline constexpr uint64_t kMostCdBlocks = 80 * 60 * kFramesPerSecond;

// The signature of a packet device in LBA Mid and High (ATA/ATAPI-6, 9.12).
inline constexpr uint8_t kPacketSignatureMid = 0x14;
inline constexpr uint8_t kPacketSignatureHigh = 0xeb;

// PACKET: Features, and the interrupt reason in Sector Count.
inline constexpr uint8_t kPacketDma = 1u << 0;
inline constexpr uint8_t kPacketOverlap = 1u << 1;
inline constexpr uint8_t kReasonCommand = 1u << 0;  // C/D: command or status, not data
inline constexpr uint8_t kReasonToHost = 1u << 1;   // I/O

// Operation codes.
inline constexpr uint8_t kTestUnitReady = 0x00;
inline constexpr uint8_t kRequestSense = 0x03;
inline constexpr uint8_t kInquiry = 0x12;
inline constexpr uint8_t kStartStopUnit = 0x1b;
inline constexpr uint8_t kPreventAllow = 0x1e;
inline constexpr uint8_t kReadCapacity = 0x25;
inline constexpr uint8_t kRead10 = 0x28;
inline constexpr uint8_t kSeek10 = 0x2b;
inline constexpr uint8_t kReadToc = 0x43;
inline constexpr uint8_t kGetConfiguration = 0x46;
inline constexpr uint8_t kGetEventStatus = 0x4a;
inline constexpr uint8_t kReadDiscInformation = 0x51;
inline constexpr uint8_t kModeSense10 = 0x5a;
inline constexpr uint8_t kRead12 = 0xa8;
inline constexpr uint8_t kSetCdSpeed = 0xbb;
inline constexpr uint8_t kMechanismStatus = 0xbd;
inline constexpr uint8_t kReadCd = 0xbe;

/// Why a command ended in CHECK CONDITION. Key 0: it did not.
struct Sense {
  uint8_t key = 0, code = 0, qualifier = 0;
  bool has_block = false;  ///< VALID: the Information field names a block
  uint32_t block = 0;

  bool operator==(const Sense&) const = default;
};

inline constexpr Sense kMediumNotPresentTrayClosed{0x02, 0x3a, 0x01};
inline constexpr Sense kMediumNotPresentTrayOpen{0x02, 0x3a, 0x02};
inline constexpr Sense kUnrecoveredReadError{0x03, 0x11, 0x00};
inline constexpr Sense kInvalidOperationCode{0x05, 0x20, 0x00};
inline constexpr Sense kBlockOutOfRange{0x05, 0x21, 0x00};
inline constexpr Sense kInvalidFieldInCdb{0x05, 0x24, 0x00};
inline constexpr Sense kSavingNotSupported{0x05, 0x39, 0x00};
inline constexpr Sense kMediumRemovalPrevented{0x05, 0x53, 0x02};
inline constexpr Sense kIllegalModeForTrack{0x05, 0x64, 0x00};
inline constexpr Sense kMediumMayHaveChanged{0x06, 0x28, 0x00};

}  // namespace spindle::ide
