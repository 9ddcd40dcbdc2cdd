// A host of a packet device, for tests: it issues PACKET as libata does, by PIO and by DMA.
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "devices/ide/mmc.h"
#include "devices/ide/test_driver.h"

namespace spindle::ide::test {

using CdbBytes = std::array<uint8_t, kCdbBytes>;

/// How a packet command ended, and what it brought.
struct PacketAnswer {
  uint8_t status = 0, error = 0, reason = 0;
  std::vector<uint8_t> data;
  std::vector<uint32_t> blocks;  ///< PIO: the bytes of each DRQ block

  bool good() const { return status == kReady && error == 0 && reason == (kReasonCommand | kReasonToHost); }
  uint8_t key() const { return error >> 4; }
  uint32_t be16(std::size_t at) const { return static_cast<uint32_t>(data.at(at) << 8 | data.at(at + 1)); }
  uint32_t be32(std::size_t at) const { return be16(at) << 16 | be16(at + 2); }
};

/// A drive with a medium full of data, and whatever else is asked for; `content` is that of the last disc.
struct DiscRig : Rig {
  explicit DiscRig(RigOptions options = {.places = {}, .discs = {0}}) : Rig(std::move(options)) {
    content = pattern_bytes(5, node(nodes.size() - 1).size());
    nodes.back()->put(0, content);
  }
  std::vector<uint8_t> part(uint64_t block, uint64_t count) const {
    const auto begin = content.begin() + static_cast<std::ptrdiff_t>(block * kDiscBlockBytes);
    return {begin, begin + static_cast<std::ptrdiff_t>(count * kDiscBlockBytes)};
  }
  std::vector<uint8_t> content;
};

class PacketHost {
 public:
  PacketHost(Rig& rig, unsigned place) : rig_(rig), host(rig.driver(place / 2)), unit_(place % 2) {}

  /// Up to the command block, which the device waits for. False: it aborted.
  bool start(uint32_t limit, uint8_t features = 0) {
    host.issue({.opcode = 0xa0,
                .features = features,
                .lba = static_cast<uint64_t>(limit) << 8,
                .device = static_cast<uint8_t>(unit_ ? kDeviceDev : 0)});
    return host.wait_not_busy() & kDrq;
  }
  void send(const CdbBytes& cdb, unsigned width = 2) {
    host.ide_.command_block(host.channel_).write_repeated(kData, cdb, width);
  }
  /// The data phases and the status.
  PacketAnswer finish() {
    PacketAnswer answer;
    for (;;) {
      host.line.wait_asserted();
      answer.status = host.in(kStatus);
      answer.error = host.in(kError);
      answer.reason = host.in(kSectorCount);
      if (!(answer.status & kDrq)) return answer;
      const uint32_t bytes = host.in(kLbaMid) | host.in(kLbaHigh) << 8;
      answer.blocks.push_back(bytes);
      std::vector<uint8_t> block((bytes + 1) & ~1u);
      host.ide_.command_block(host.channel_).read_repeated(kData, block, 2);
      answer.data.insert(answer.data.end(), block.begin(), block.begin() + bytes);
    }
  }
  PacketAnswer pio(const CdbBytes& cdb, uint32_t limit = 0xfffe) {
    if (!start(limit)) throw std::runtime_error("PACKET aborted");
    send(cdb);
    return finish();
  }
  /// A DMA command into these regions, up to the start of the bus master.
  void start_dma(const CdbBytes& cdb, std::span<const HostDriver::Region> regions) {
    host.put_table(HostDriver::kTableAddress, regions);
    host.bm_out(kBmStatus, kBmInterrupt | kBmError | kBmDriveCapable);
    host.bm_table(HostDriver::kTableAddress);
    if (!start(0, kPacketDma)) throw std::runtime_error("PACKET aborted");
    send(cdb);
    host.bm_out(kBmCommand, kBmToMemory | kBmStart);
  }
  /// `bytes` of room at `address`.
  PacketAnswer dma(const CdbBytes& cdb, uint32_t bytes, uint32_t address = 0x20000) {
    std::vector<HostDriver::Region> regions;
    for (uint32_t at = 0; at < bytes; at += 0x10000)
      regions.push_back({address + at, std::min(bytes - at, 0x10000u)});
    start_dma(cdb, regions);
    const Registers after = host.finish_dma(false);
    return {.status = after.opcode,
            .error = static_cast<uint8_t>(after.features),
            .reason = static_cast<uint8_t>(after.count),
            .data = rig_.ram_bytes(address, bytes),
            .blocks = {}};
  }
  Sense sense() {
    const PacketAnswer answer = pio({kRequestSense, 0, 0, 0, 18});
    if (!answer.good() || answer.data.size() != 18) throw std::runtime_error("REQUEST SENSE failed");
    return {.key = answer.data[2],
            .code = answer.data[12],
            .qualifier = answer.data[13],
            .has_block = (answer.data[0] & 0x80) != 0,
            .block = answer.be32(3)};
  }
  /// Why the command cannot be done: what its status and REQUEST SENSE agree on.
  Sense refusal(const CdbBytes& cdb) {
    const PacketAnswer answer = pio(cdb);
    const Sense found = sense();
    const bool told = answer.status == (kReady | kErr) && answer.key() == found.key && answer.data.empty();
    return told ? found : Sense{};
  }

  static CdbBytes read10(uint32_t block, uint32_t count) {
    return {kRead10,        0, byte(block, 3), byte(block, 2), byte(block, 1),
            byte(block, 0), 0, byte(count, 1), byte(count, 0)};
  }
  static CdbBytes read12(uint32_t block, uint32_t count) {
    return {kRead12,        0,
            byte(block, 3), byte(block, 2),
            byte(block, 1), byte(block, 0),
            byte(count, 3), byte(count, 2),
            byte(count, 1), byte(count, 0)};
  }

  static uint8_t byte(uint32_t value, unsigned index) { return static_cast<uint8_t>(value >> (8 * index)); }

 private:
  Rig& rig_;

 public:
  HostDriver host;

 private:
  unsigned unit_;
};

}  // namespace spindle::ide::test
