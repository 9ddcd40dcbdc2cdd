// The virtqueue engine and virtio-blk against a guest that writes what it likes, where it likes, in either
// kind of ring.
//
// An input says which features are acknowledged and where the rings lie, good or not, and goes on as a list
// of steps: bytes into guest memory, descriptors, request headers, entries of the available ring,
// notifications, resets, and a disk that holds or fails requests. Rings, tables and buffers may lie over each
// other.
//
// Besides what the sanitizers find: whatever the guest did, a reset ends with nothing in flight, and nothing
// but the fuzzer's writes touches guest memory after it.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "block/disk.h"
#include "devices/virtio/blk.h"
#include "fuzz/machine.h"

namespace spindle::virtio {
namespace {

using fuzz::Ram;
using fuzz::reactor;
using fuzz::settle;
using fuzz::stop;
using spindle::test::MemoryNode;

constexpr uint64_t kDiskBytes = 64 << 10;
constexpr unsigned kSteps = 200;

class CountingTransport final : public Transport {
 public:
  void interrupt_queue(unsigned) override { ++calls; }
  void device_config_changed() override { ++calls; }
  void needs_reset(std::string_view why) override {
    if (why.empty()) stop("a reset was asked for without a reason");
    ++calls;
  }
  uint64_t calls = 0;
};

class Guest {
 public:
  explicit Guest(FuzzedDataProvider& input)
      : input_(input),
        packed_(input.ConsumeBool()),
        disk_(node_, DiskOptions{.id = "fuzz",
                                 .read_only = input.ConsumeIntegral<uint8_t>() == 0,
                                 .discard = input.ConsumeBool()}),
        device_(*VirtioBlk::create(disk_, ram_.memory(),
                                   BlkOptions{.serial = "fuzz", .queue_size = 64, .packed = packed_})) {
    device_->connect(transport_);
    start();
  }
  Guest(const Guest&) = delete;
  Guest& operator=(const Guest&) = delete;
  ~Guest() {
    reset();
    device_.reset();
    (void)reactor().wait(disk_.close());
  }

  void step() {
    switch (input_.ConsumeIntegralInRange(0, 9)) {
      case 0: {
        const auto bytes = input_.ConsumeBytes<uint8_t>(input_.ConsumeIntegralInRange<std::size_t>(1, 64));
        ram_.write(address(), bytes.data(), bytes.size());
        break;
      }
      case 1:
      case 2:
        return descriptor();
      case 3:
        return header();
      case 4:
        return offer();
      case 5:
      case 6:
        device_->notify(input_.ConsumeIntegralInRange(0u, 1u));
        return settle();
      case 7:
        fuzz::release_all(*node_);
        reactor().wait(device_->reset_queue(0));
        return start_queue();
      case 8:
        reset();
        return start();
      case 9:
        return fuzz::disturb(input_, *node_);
    }
  }

 private:
  uint64_t address() { return Ram::address(input_); }
  void start() {
    const uint64_t wanted = input_.ConsumeIntegral<uint64_t>();
    uint64_t features = kFeatureVersion1 | (wanted & device_->features());
    if (packed_) features |= kFeatureRingPacked;
    if (!device_->acknowledge(features)) stop("what was offered is refused");
    reactor().wait(device_->negotiate());
    start_queue();
  }
  void start_queue() {
    layout_ = {.size = input_.ConsumeIntegralInRange<uint32_t>(0, 66),
               .descriptors = address(),
               .driver_area = address(),
               .device_area = address()};
    if (!packed_ && input_.ConsumeBool()) layout_.size = 1u << layout_.size % 7;
    if (device_->start_queue(0, layout_) != device_->check_queue(layout_)) stop("two answers about a layout");
    settle();
  }
  void descriptor() {
    const auto index = input_.ConsumeIntegralInRange<uint32_t>(0, 66);
    const uint64_t table = input_.ConsumeBool() ? layout_.descriptors : address();
    const uint64_t at = address();
    const auto length = input_.ConsumeIntegralInRange<uint32_t>(0, 2048);
    const auto link = input_.ConsumeIntegralInRange<uint16_t>(0, 66);  // next, or buffer id
    const auto flags = input_.ConsumeIntegral<uint16_t>();
    if (packed_) {
      const PackedDescriptor entry{at, length, link, flags};
      ram_.write(table + sizeof entry * index, &entry, sizeof entry);
    } else {
      const Descriptor entry{at, length, flags, link};
      ram_.write(table + sizeof entry * index, &entry, sizeof entry);
    }
  }
  void header() {
    const BlkRequestHeader request{.type = input_.ConsumeIntegralInRange<uint32_t>(0, 16),
                                   .sector = input_.ConsumeIntegralInRange<uint64_t>(0, 130)};
    ram_.write(address(), &request, sizeof request);
  }
  /// Split rings alone need it: a head, and the index after it.
  void offer() {
    const auto head = input_.ConsumeIntegralInRange<uint16_t>(0, 66);
    if (packed_ || layout_.size == 0) return;
    ram_.write(layout_.driver_area + 4 + 2 * (available_ % layout_.size), &head, sizeof head);
    available_ += input_.ConsumeIntegralInRange<uint16_t>(0, 3);
    ram_.write(layout_.driver_area + 2, &available_, sizeof available_);
  }
  // Requests that the disk holds end while the reset waits for them.
  void reset() {
    fuzz::release_all(*node_);
    reactor().wait(device_->reset());
    available_ = 0;
    if (device_->in_flight() != 0) stop("a reset left requests in flight");
    const std::string before = ram_.contents();
    const uint64_t calls = transport_.calls;
    device_->notify(0);
    settle();
    if (ram_.contents() != before) stop("guest memory was touched after a reset");
    if (transport_.calls != calls) stop("the transport was called after a reset");
  }

  FuzzedDataProvider& input_;
  bool packed_;
  Ram ram_;
  std::shared_ptr<MemoryNode> node_ = std::make_shared<MemoryNode>(reactor(), kDiskBytes);
  Disk disk_;
  CountingTransport transport_;
  std::unique_ptr<VirtioBlk> device_;
  QueueLayout layout_;
  uint16_t available_ = 0;
};

}  // namespace
}  // namespace spindle::virtio

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return spindle::fuzz::live<spindle::virtio::Guest>(data, size, spindle::virtio::kSteps);
}
