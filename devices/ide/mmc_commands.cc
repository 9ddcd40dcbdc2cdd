// The MMC commands of the CD-ROM drive. Each prepares its answer from the drive's state and the CDB; the few
// that change something do so afterwards, in accept.
#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "devices/ide/cdrom.h"

namespace spindle::ide {
namespace {

using Prepared = std::expected<PacketData, Sense>;

std::unexpected<Sense> invalid_field() {
  return std::unexpected(kInvalidFieldInCdb);
}

uint32_t be16(Cdb cdb, std::size_t at) {
  return static_cast<uint32_t>(cdb[at] << 8 | cdb[at + 1]);
}
uint32_t be24(Cdb cdb, std::size_t at) {
  return be16(cdb, at) << 8 | cdb[at + 2];
}
uint32_t be32(Cdb cdb, std::size_t at) {
  return be16(cdb, at) << 16 | be16(cdb, at + 2);
}

// An answer that grows at its end; numbers are big endian.
class Response {
 public:
  explicit Response(std::span<uint8_t> block) : block_(block) {}

  Response& byte(unsigned value) { return number(value, 1); }
  Response& word(uint64_t value) { return number(value, 2); }
  Response& dword(uint64_t value) { return number(value, 4); }
  Response& zeroes(std::size_t count) {
    for (; count > 0; --count) byte(0);
    return *this;
  }
  /// Padded with blanks.
  Response& text(std::string_view text, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; ++i) byte(i < text.size() ? static_cast<uint8_t>(text[i]) : ' ');
    return *this;
  }
  std::size_t size() const { return size_; }
  /// Sets what was left for later, a length mostly.
  void put(std::size_t at, uint64_t value, std::size_t bytes) {
    for (; bytes > 0; --bytes) block_[at++] = static_cast<uint8_t>(value >> (8 * (bytes - 1)));
  }
  /// No more than the host has room for.
  PacketData within(uint32_t allocation) const { return {.bytes = std::min<uint64_t>(size_, allocation)}; }

 private:
  Response& number(uint64_t value, std::size_t bytes) {
    put(size_, value, bytes);
    size_ += bytes;
    return *this;
  }
  std::span<uint8_t> block_;
  std::size_t size_ = 0;
};

// ---- status ----

Prepared prepare_nothing(const Cdrom&, Cdb, std::span<uint8_t>) {
  return PacketData{};
}

// What waits as a unit attention is told here too, as by any other command.
Prepared prepare_request_sense(const Cdrom& cdrom, Cdb cdb, std::span<uint8_t> block) {
  const Sense sense = cdrom.sense.key == 0 && cdrom.attention ? kMediumMayHaveChanged : cdrom.sense;
  constexpr unsigned kCurrentFixed = 0x70, kValid = 0x80;
  constexpr unsigned kFurtherBytes = 10;
  Response response(block);
  response.byte(kCurrentFixed | (sense.has_block ? kValid : 0)).byte(0).byte(sense.key).dword(sense.block);
  response.byte(kFurtherBytes).dword(0).byte(sense.code).byte(sense.qualifier).zeroes(4);
  return response.within(cdb[4]);
}
void accept_request_sense(Cdrom& cdrom, Cdb) {
  if (cdrom.sense.key == 0) cdrom.attention = false;
  cdrom.sense = {};
}

Prepared prepare_inquiry(const Cdrom&, Cdb cdb, std::span<uint8_t> block) {
  constexpr uint8_t kVitalProductData = 1u << 0, kCommandData = 1u << 1;
  if (cdb[1] & (kVitalProductData | kCommandData) || cdb[2] != 0) return invalid_field();
  constexpr unsigned kMultimediaDevice = 0x05, kRemovable = 0x80;
  constexpr unsigned kAtapiFormat =
      0x21;  // the format of ATAPI devices of before SPC, which claim no version
  Response response(block);
  response.byte(kMultimediaDevice).byte(kRemovable).byte(0).byte(kAtapiFormat).byte(31).zeroes(3);
  response.text("SPINDLE", 8).text("DVD-ROM", 16).text("1.0", 4);
  return response.within(be16(cdb, 3));
}

// ---- the tray ----

constexpr uint8_t kStart = 1u << 0, kLoadEject = 1u << 1;

// Power conditions (bits 7-4) are accepted and change nothing; with one, the other bits mean nothing.
bool opens_tray(Cdb cdb) {
  return (cdb[4] & (0xf0 | kLoadEject | kStart)) == kLoadEject;
}
bool closes_tray(Cdb cdb) {
  return (cdb[4] & (0xf0 | kLoadEject | kStart)) == (kLoadEject | kStart);
}
Prepared prepare_start_stop(const Cdrom& cdrom, Cdb cdb, std::span<uint8_t>) {
  if (opens_tray(cdb) && cdrom.locked) return std::unexpected(kMediumRemovalPrevented);
  return PacketData{};
}
void accept_start_stop(Cdrom& cdrom, Cdb cdb) {
  if (opens_tray(cdb)) cdrom.open_tray();
  if (closes_tray(cdb)) cdrom.close_tray();
}

void accept_prevent_allow(Cdrom& cdrom, Cdb cdb) {
  cdrom.locked = cdb[4] & 1;
}

constexpr uint8_t kMediaClass = 4;

Prepared prepare_event_status(const Cdrom& cdrom, Cdb cdb, std::span<uint8_t> block) {
  constexpr uint8_t kPolled = 1u << 0;
  if (!(cdb[1] & kPolled)) return invalid_field();  // there are no notifications that come by themselves
  constexpr unsigned kNoEventAvailable = 0x80;
  Response response(block);
  if (cdb[4] & 1u << kMediaClass) {
    const unsigned status = (cdrom.tray_open() ? 1u << 0 : 0) | (cdrom.ready() ? 1u << 1 : 0);
    response.word(6).byte(kMediaClass).byte(1u << kMediaClass);
    response.byte(static_cast<unsigned>(cdrom.event())).byte(status).word(0);
  } else {
    response.word(2).byte(kNoEventAvailable).byte(1u << kMediaClass);
  }
  return response.within(be16(cdb, 7));
}
void accept_event_status(Cdrom& cdrom, Cdb cdb) {
  constexpr uint32_t kHeaderBytes = 4;
  if (cdb[4] & 1u << kMediaClass && be16(cdb, 7) > kHeaderBytes) cdrom.event_told();
}

Prepared prepare_mechanism_status(const Cdrom& cdrom, Cdb cdb, std::span<uint8_t> block) {
  constexpr unsigned kDoorOpen = 1u << 4;
  Response response(block);
  response.byte(0).byte(cdrom.tray_open() ? kDoorOpen : 0).zeroes(3).byte(1).word(0);
  return response.within(be16(cdb, 8));
}

// ---- what the drive can do ----

constexpr uint16_t kProfileCdRom = 0x0008, kProfileDvdRom = 0x0010;

uint16_t profile(const Cdrom& cdrom) {
  if (!cdrom.ready()) return 0;
  return cdrom.blocks() > kMostCdBlocks ? kProfileDvdRom : kProfileCdRom;
}

// One feature descriptor after the other: code, version and whether it is current, length, data.
class Features {
 public:
  Features(Response& response, unsigned which, uint32_t first)
      : response_(response), which_(which), first_(first) {}
  /// True: the data is to follow.
  bool begin(uint32_t code, unsigned version, bool persistent, bool current, unsigned bytes) {
    constexpr unsigned kCurrentOnly = 1, kThisOne = 2;
    const bool wanted = which_ == kThisOne       ? code == first_
                        : which_ == kCurrentOnly ? code >= first_ && current
                                                 : code >= first_;
    if (wanted)
      response_.word(code).byte(version << 2 | (persistent ? 2u : 0) | (current ? 1u : 0)).byte(bytes);
    return wanted;
  }

 private:
  Response& response_;
  unsigned which_;
  uint32_t first_;
};

Prepared prepare_get_configuration(const Cdrom& cdrom, Cdb cdb, std::span<uint8_t> block) {
  constexpr unsigned kReservedChoice = 3;
  const unsigned which = cdb[1] & 3;
  if (which == kReservedChoice) return invalid_field();
  const uint16_t current = profile(cdrom);
  Response response(block);
  response.dword(0).word(0).word(current);
  Features features(response, which, be16(cdb, 2));
  if (features.begin(0x0000, 0, true, true, 8)) {  // the profiles
    for (const uint16_t each : {kProfileDvdRom, kProfileCdRom})
      response.word(each).byte(each == current ? 1 : 0).byte(0);
  }
  if (features.begin(0x0001, 2, true, true, 8)) {  // Core: over ATAPI, with device busy events
    response.dword(2).byte(1).zeroes(3);
  }
  if (features.begin(0x0002, 1, true, true, 4)) response.dword(0);  // Morphing
  if (features.begin(0x0003, 0, true, true, 4)) {                   // Removable Medium: tray, eject, lock
    response.byte(1u << 5 | 1u << 3 | 1u << 0).zeroes(3);
  }
  if (features.begin(0x0010, 0, false, current != 0, 8)) {  // Random Readable
    response.dword(kDiscBlockBytes).word(1).word(0);
  }
  features.begin(0x001e, 0, false, current == kProfileCdRom, 0);  // CD Read
  response.put(0, response.size() - 4, 4);
  return response.within(be16(cdb, 7));
}

// Mode pages: code, length, and what follows. The values that can be changed are none.
constexpr uint8_t kPageErrorRecovery = 0x01, kPageCapabilities = 0x2a, kPageAll = 0x3f;

void add_page(Response& response, const Cdrom& cdrom, uint8_t page, bool changeable) {
  Response& r = response;
  if (page == kPageErrorRecovery) {
    r.byte(page).byte(6);
    if (changeable) {
      r.zeroes(6);
    } else {
      r.byte(0).byte(5).zeroes(4);  // five tries
    }
    return;
  }
  r.byte(page).byte(18);
  if (changeable) {
    r.zeroes(18);
    return;
  }
  constexpr unsigned kReads = 1u << 0 | 1u << 1 | 1u << 3;  // CD-R, CD-RW, DVD-ROM
  constexpr unsigned kCanLock = 1u << 0, kIsLocked = 1u << 1, kCanEject = 1u << 3, kTray = 1u << 5;
  constexpr unsigned kSpeed = 5540;  // kilobytes a second: four times a DVD's
  r.byte(kReads).byte(0).byte(0).byte(0);
  r.byte(kCanLock | (cdrom.locked ? kIsLocked : 0) | kCanEject | kTray).byte(0);
  r.word(kSpeed).word(0).word(512).word(kSpeed).zeroes(4);
}

Prepared prepare_mode_sense(const Cdrom& cdrom, Cdb cdb, std::span<uint8_t> block) {
  constexpr unsigned kChangeable = 1, kSaved = 3;
  const unsigned control = cdb[2] >> 6;
  const uint8_t page = cdb[2] & 0x3f;
  if (control == kSaved) return std::unexpected(kSavingNotSupported);
  if (page != kPageErrorRecovery && page != kPageCapabilities && page != kPageAll) return invalid_field();
  constexpr unsigned kDataDisc = 0x01, kNoDisc = 0x70, kDoorOpen = 0x71;
  Response response(block);
  response.word(0).byte(cdrom.tray_open() ? kDoorOpen : cdrom.ready() ? kDataDisc : kNoDisc).zeroes(5);
  for (const uint8_t each : {kPageErrorRecovery, kPageCapabilities}) {
    if (page == each || page == kPageAll) add_page(response, cdrom, each, control == kChangeable);
  }
  response.put(0, response.size() - 2, 2);
  return response.within(be16(cdb, 7));
}

// ---- the medium ----

Prepared prepare_read_capacity(const Cdrom& cdrom, Cdb, std::span<uint8_t> block) {
  Response response(block);
  response.dword(cdrom.blocks() - 1).dword(kDiscBlockBytes);
  return response.within(8);
}

Prepared from_medium(const Cdrom& cdrom, uint64_t first, uint64_t count) {
  if (count == 0) return PacketData{};
  if (first >= cdrom.blocks() || count > cdrom.blocks() - first) return std::unexpected(kBlockOutOfRange);
  return PacketData{.bytes = count << kDiscBlockShift, .from_medium = true, .first_block = first};
}
Prepared prepare_read10(const Cdrom& cdrom, Cdb cdb, std::span<uint8_t>) {
  return from_medium(cdrom, be32(cdb, 2), be16(cdb, 7));
}
Prepared prepare_read12(const Cdrom& cdrom, Cdb cdb, std::span<uint8_t>) {
  return from_medium(cdrom, be32(cdb, 2), be32(cdb, 6));
}
// All there is to a block of a Mode 1 track is its user data: nobody made sync patterns or parity.
Prepared prepare_read_cd(const Cdrom& cdrom, Cdb cdb, std::span<uint8_t>) {
  constexpr unsigned kAnyType = 0, kMode1 = 2;
  constexpr uint8_t kUserData = 0x10;
  const unsigned type = cdb[1] >> 2 & 7;
  if (type != kAnyType && type != kMode1) return std::unexpected(kIllegalModeForTrack);
  const uint8_t parts = cdb[9] & 0xfe;
  if (cdb[10] & 7) return invalid_field();  // subchannels
  if (parts == 0) return PacketData{};
  if (parts != kUserData) return invalid_field();
  return from_medium(cdrom, be32(cdb, 2), be24(cdb, 6));
}
Prepared prepare_seek(const Cdrom& cdrom, Cdb cdb, std::span<uint8_t>) {
  if (be32(cdb, 2) >= cdrom.blocks()) return std::unexpected(kBlockOutOfRange);
  return PacketData{};
}

// Where a block is, as minute, second and frame from the start of the lead-in, or as a number. The former
// has an end, at which larger media stay.
void add_address(Response& response, uint64_t block, bool msf) {
  if (!msf) {
    response.dword(block);
    return;
  }
  constexpr uint64_t kLeadIn = 2 * kFramesPerSecond, kLast = 256 * 60 * kFramesPerSecond - 1;
  const uint64_t frames = std::min(block + kLeadIn, kLast);
  response.byte(0).byte(static_cast<unsigned>(frames / kFramesPerSecond / 60));
  response.byte(static_cast<unsigned>(frames / kFramesPerSecond % 60));
  response.byte(static_cast<unsigned>(frames % kFramesPerSecond));
}

constexpr unsigned kDataTrack = 0x14;  // ADR 1, and a data track whose copying is not allowed
constexpr uint8_t kLeadOut = 0xaa;

// One session with one track that is all of the medium.
Prepared prepare_read_toc(const Cdrom& cdrom, Cdb cdb, std::span<uint8_t> block) {
  const bool msf = cdb[1] & 2;
  unsigned format = cdb[2] & 0x0f;
  if (format == 0) format = cdb[9] >> 6;  // where it was in SFF-8020
  Response response(block);
  response.word(0).byte(1).byte(1);  // the first and the last track, or session
  switch (format) {
    case 0: {
      const uint8_t track = cdb[6];
      if (track > 1 && track != kLeadOut) return invalid_field();
      if (track <= 1) {
        response.byte(0).byte(kDataTrack).byte(1).byte(0);
        add_address(response, 0, msf);
      }
      response.byte(0).byte(kDataTrack).byte(kLeadOut).byte(0);
      add_address(response, cdrom.blocks(), msf);
      break;
    }
    case 1:
      response.byte(0).byte(kDataTrack).byte(1).byte(0);
      add_address(response, 0, msf);
      break;
    case 2: {
      // Points A0h, A1h: the first and last track; A2h: the lead-out; 1: the track.
      const auto point = [&](unsigned name) -> Response& {
        return response.byte(1).byte(kDataTrack).byte(0).byte(name).zeroes(3);
      };
      point(0xa0).byte(0).byte(1).word(0);
      point(0xa1).byte(0).byte(1).word(0);
      point(0xa2);
      add_address(response, cdrom.blocks(), true);
      point(1);
      add_address(response, 0, true);
      break;
    }
    default:
      return invalid_field();
  }
  response.put(0, response.size() - 2, 2);
  return response.within(be16(cdb, 7));
}

Prepared prepare_disc_information(const Cdrom&, Cdb cdb, std::span<uint8_t> block) {
  if (cdb[1] & 7) return invalid_field();  // only the standard information
  constexpr unsigned kFinalized = 0x0e, kUnrestricted = 0x20;
  Response response(block);
  response.word(32).byte(kFinalized).byte(1).byte(1).byte(1).byte(1).byte(kUnrestricted).zeroes(26);
  return response.within(be16(cdb, 7));
}

constexpr PacketCommand kCommands[] = {
    {kTestUnitReady, "TEST UNIT READY", prepare_nothing, nullptr, false, true},
    {kRequestSense, "REQUEST SENSE", prepare_request_sense, accept_request_sense, true, false},
    {kInquiry, "INQUIRY", prepare_inquiry, nullptr, true, false},
    {kStartStopUnit, "START STOP UNIT", prepare_start_stop, accept_start_stop, false, false},
    {kPreventAllow, "PREVENT ALLOW MEDIUM REMOVAL", prepare_nothing, accept_prevent_allow, false, false},
    {kReadCapacity, "READ CAPACITY", prepare_read_capacity, nullptr, false, true},
    {kRead10, "READ (10)", prepare_read10, nullptr, false, true},
    {kSeek10, "SEEK (10)", prepare_seek, nullptr, false, true},
    {kReadToc, "READ TOC/PMA/ATIP", prepare_read_toc, nullptr, false, true},
    {kGetConfiguration, "GET CONFIGURATION", prepare_get_configuration, nullptr, true, false},
    {kGetEventStatus, "GET EVENT STATUS NOTIFICATION", prepare_event_status, accept_event_status, true,
     false},
    {kReadDiscInformation, "READ DISC INFORMATION", prepare_disc_information, nullptr, false, true},
    {kModeSense10, "MODE SENSE (10)", prepare_mode_sense, nullptr, false, false},
    {kRead12, "READ (12)", prepare_read12, nullptr, false, true},
    {kSetCdSpeed, "SET CD SPEED", prepare_nothing, nullptr, false, false},
    {kMechanismStatus, "MECHANISM STATUS", prepare_mechanism_status, nullptr, false, false},
    {kReadCd, "READ CD", prepare_read_cd, nullptr, false, true},
};

}  // namespace

const PacketCommand* find_packet_command(uint8_t opcode) {
  const auto* found = std::ranges::find(kCommands, opcode, &PacketCommand::opcode);
  return found == std::end(kCommands) ? nullptr : found;
}

}  // namespace spindle::ide
