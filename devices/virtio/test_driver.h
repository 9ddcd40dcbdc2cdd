// The guest's side of virtio-blk in process: RAM, queues, and a transport that counts. Used by tests
// and benchmarks; small, and quick enough that a benchmark measures the device and not this.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "devices/virtio/device.h"
#include "devices/virtio/test_queue.h"
#include "devices/virtio/test_ram.h"

namespace spindle::virtio::test {

/// A transport that only counts.
class TestTransport final : public Transport {
 public:
  void interrupt_queue(unsigned) override { ++interrupts; }
  void device_config_changed() override { ++config_changes; }
  void needs_reset(std::string_view why) override { reason = why; }

  uint64_t interrupts = 0;
  uint64_t config_changes = 0;
  std::string reason;  ///< empty while no reset was asked for
};

/// Memory of one block request: header and status in one object, as in Linux's virtblk_req, and the data, in
/// one piece, elsewhere.
class TestRequest {
 public:
  TestRequest(TestRam& ram, uint32_t data_bytes)
      : ram_(&ram),
        header_(ram.allocate(sizeof(BlkRequestHeader) + 1)),
        status_(header_ + sizeof(BlkRequestHeader)),
        data_(ram.allocate_data(data_bytes, data_bytes % 4096 == 0 ? 4096 : 512)),
        data_bytes_(data_bytes) {}

  void fill(uint32_t type, uint64_t sector) {
    *ram_->at<BlkRequestHeader>(header_) = {.type = type, .reserved = 0, .sector = sector};
    *ram_->at(status_) = 0xff;
  }
  /// Header, data (for the device to read or to write, as the type has it) and status.
  std::array<Segment, 3> segments(uint32_t type) const {
    const bool out = type == kBlkTypeOut || type == kBlkTypeDiscard || type == kBlkTypeWriteZeroes;
    return {{{header_, sizeof(BlkRequestHeader), false}, {data_, data_bytes_, !out}, {status_, 1, true}}};
  }
  /// The same without data, for FLUSH.
  std::array<Segment, 2> bare_segments() const {
    return {{{header_, sizeof(BlkRequestHeader), false}, {status_, 1, true}}};
  }
  std::span<uint8_t> data() { return {ram_->at(data_), data_bytes_}; }
  uint8_t status() { return *ram_->at(status_); }
  uint64_t header_address() const { return header_; }
  uint64_t data_address() const { return data_; }
  uint64_t status_address() const { return status_; }

 private:
  TestRam* ram_;
  uint64_t header_, status_, data_;
  uint32_t data_bytes_;
};

}  // namespace spindle::virtio::test
