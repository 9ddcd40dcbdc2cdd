// PCI configuration against a guest that writes what it likes: the bus with its configuration mechanism 1,
// the bridges, the IDE controller and two virtio disks, in the port and memory spaces that vCPUs have.
//
// An input is a list of steps: the address port, the data port and configuration registers in any width, BARs
// put anywhere, accesses at the BARs, at the MSI-X table, and at any address, in any width, resets.
//
// Besides what the sanitizers find: identities and the list of capabilities stay what they are, BARs are
// aligned and do not wrap around, doorbells are bound where the BAR is and nowhere else, an access that
// nobody takes reads all ones, and a write that waits ends.
#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "block/disk.h"
#include "devices/ide/piix_ide.h"
#include "devices/virtio/blk.h"
#include "devices/virtio/pci_transport.h"
#include "fuzz/machine.h"
#include "vmm/interrupts.h"
#include "vmm/io_space.h"
#include "vmm/layout.h"
#include "vmm/pci_bus.h"

namespace spindle::vmm {
namespace {

using fuzz::Ram;
using fuzz::reactor;
using fuzz::settle;
using fuzz::stop;

constexpr unsigned kSteps = 300;
constexpr unsigned kQueues = 2;

class Messages final : public MessageRouter {
 public:
  void route(unsigned vector, uint64_t, uint32_t) override {
    if (vector > kQueues) stop("a vector that does not exist is routed");
    routed_[vector] = true;
  }
  void signal(unsigned vector) override {
    if (vector > kQueues || !routed_[vector]) stop("a vector is signalled that was not routed");
  }

 private:
  std::array<bool, kQueues + 1> routed_{};
};

class Doorbells final : public DoorbellBinder {
 public:
  bool bind(uint64_t address, unsigned width, int fd) override {
    if (width != 2 || !bound_.emplace(address, fd).second) stop("a doorbell is bound over another");
    return true;
  }
  void unbind(uint64_t address, unsigned, int fd) override {
    const auto at = bound_.find(address);
    if (at == bound_.end() || at->second != fd) stop("a doorbell is unbound that was not bound");
    bound_.erase(at);
  }
  const std::map<uint64_t, int>& bound() const { return bound_; }

 private:
  std::map<uint64_t, int> bound_;
};

class NoLine final : public InterruptLine {
 public:
  void set_level(bool) override {}
};

struct VirtioDisk {
  VirtioDisk(const GuestMemory& memory, InterruptLine& line)
      : disk(std::make_shared<test::MemoryNode>(reactor(), 64 << 10), DiskOptions{.id = "fuzz"}),
        device(
            *virtio::VirtioBlk::create(disk, memory, {.serial = "fuzz", .queues = kQueues, .packed = true})),
        function(*virtio::PciTransport::create(*device, reactor(), {messages, line, doorbells}, 1, 0)) {}
  ~VirtioDisk() {
    reactor().wait(function->stop());
    function.reset();
    if (!doorbells.bound().empty()) stop("doorbells outlive their device");
    device.reset();
    (void)reactor().wait(disk.close());
  }
  Disk disk;
  Messages messages;
  Doorbells doorbells;
  std::unique_ptr<virtio::VirtioBlk> device;
  std::unique_ptr<virtio::PciTransport> function;
};

class Guest {
 public:
  explicit Guest(FuzzedDataProvider& input) : input_(input) {
    plug({0, 0}, bridge_);
    plug({1, 0}, isa_);
    plug({1, 1}, ide_);
    plug({2, 0}, *disks_[0].function);
    plug({3, 0}, *disks_[1].function);
    if (!bus_.assign_resources()) stop("five functions find no room");
    for (auto& [function, identity] : functions_) identity = shape(*function);
  }
  Guest(const Guest&) = delete;
  Guest& operator=(const Guest&) = delete;
  ~Guest() { check(); }

  void step() {
    switch (input_.ConsumeIntegralInRange(0, 8)) {
      case 0:
        return access(ports_, kPortPciAddress + input_.ConsumeIntegralInRange(0u, 7u), 4);
      case 1:
      case 2:
        return configure();
      case 3:
        return access(ports_, input_.ConsumeIntegral<uint16_t>(), 4);
      case 4:
        return access(memory_, input_.ConsumeIntegral<uint64_t>(), 8);
      case 5:
      case 6:
        return at_bar();
      case 7:
        if (input_.ConsumeBool()) return settle();
        return settle_functions();
      case 8:
        return reset();
    }
  }
  void check() {
    settle_functions();
    for (const auto& parked : parked_) {
      if (!parked->finished()) stop("a write waits for ever");
    }
    parked_.clear();
    for (const auto& [function, identity] : functions_) {
      if (shape(*function) != identity) stop("a function has changed its identity");
      for (const pci::BarMapping& mapping : function->mappings()) {
        if (mapping.address % mapping.size != 0) stop("a BAR is not aligned");
        if (mapping.address + (mapping.size - 1) < mapping.address) stop("a BAR wraps around");
        if (mapping.io && mapping.address + mapping.size > 0x10000) stop("a BAR of ports lies beyond them");
      }
    }
    for (const auto& disk : disks_) {
      const auto mappings = disk.function->mappings();
      for (const auto& [address, fd] : disk.doorbells.bound()) {
        if (mappings.empty() || address - mappings[0].address >= mappings[0].size)
          stop("a doorbell is astray");
      }
    }
  }

 private:
  /// Vendor, device, class, header type, and the chain of capabilities.
  using Shape = std::vector<uint32_t>;
  static Shape shape(pci::PciFunction& function) {
    Shape result{function.read_config(pci::kVendorId, 4), function.read_config(pci::kRevisionId, 4),
                 function.read_config(pci::kHeaderType, 1), function.read_config(pci::kInterruptPin, 1)};
    for (uint32_t at = function.read_config(pci::kCapabilitiesPointer, 1); at != 0;
         at = function.read_config(at + 1, 1)) {
      if (result.size() > 64) stop("the list of capabilities loops");
      result.push_back(at << 8 | function.read_config(at, 1));
    }
    return result;
  }

  void plug(PciSlot slot, pci::PciFunction& function) {
    if (!bus_.add(slot, function)) stop("a slot is taken");
    functions_.emplace_back(&function, Shape{});
  }
  void access(IoSpace& space, uint64_t address, unsigned widest) {
    unsigned width = 1u << input_.ConsumeIntegralInRange(0, 3);
    if (width > widest) width = widest;
    std::array<uint8_t, 8> bytes{};
    if (input_.ConsumeBool()) return space.read(address, std::span(bytes).first(width), width);
    for (unsigned i = 0; i < width; ++i) bytes[i] = input_.ConsumeIntegral<uint8_t>();
    if (auto parked = space.write(address, std::span(bytes).first(width), width)) parked_.push_back(parked);
  }
  // Through the ports, as a guest does it: a function that is there, most of the time.
  void configure() {
    uint32_t where = input_.ConsumeIntegral<uint32_t>();
    if (input_.ConsumeIntegralInRange(0, 7) != 0) {
      constexpr uint32_t kThere[] = {0x0000, 0x0800, 0x0900, 0x1000, 0x1800};
      where = 0x80000000u | input_.PickValueInArray(kThere) | (where & 0xfc);
    }
    std::array<uint8_t, 4> bytes;
    std::memcpy(bytes.data(), &where, sizeof where);
    ports_.write(kPortPciAddress, bytes, bytes.size());
    access(ports_, kPortPciData + input_.ConsumeIntegralInRange(0u, 3u), 4);
  }
  void at_bar() {
    const auto& function = *functions_[input_.ConsumeIntegral<uint8_t>() % functions_.size()].first;
    const auto mappings = function.mappings();
    if (mappings.empty()) return;
    const pci::BarMapping& mapping = mappings[input_.ConsumeIntegral<uint8_t>() % mappings.size()];
    const uint64_t offset = input_.ConsumeIntegral<uint16_t>() % (mapping.size + 8);
    // Rounded to where virtio's structures and the table begin, most of the time.
    const bool near = input_.ConsumeIntegralInRange(0, 3) != 0 && !mapping.io;
    access(mapping.io ? ports_ : memory_,
           mapping.address + (near ? (offset & 0x3800) + (offset & 0x3f) : offset), mapping.io ? 4 : 8);
  }
  void settle_functions() {
    for (const auto& disk : disks_) reactor().wait(disk.function->settle());
  }
  void reset() {
    check();
    bus_.reset();
    settle_functions();
    if (!bus_.assign_resources()) stop("after a reset the functions find no room");
  }

  FuzzedDataProvider& input_;
  IoSpace ports_, memory_;
  std::array<SharedPin, 4> pins_{SharedPin([](bool) {}), SharedPin([](bool) {}), SharedPin([](bool) {}),
                                 SharedPin([](bool) {})};
  Ram ram_;
  NoLine lines_[ide::kChannels];
  HostBridge bridge_;
  IsaBridge isa_;
  ide::PiixIde ide_{ram_.memory(), reactor(), {&lines_[0], &lines_[1]}};
  VirtioDisk disks_[2] = {{ram_.memory(), pins_[2].add_input()}, {ram_.memory(), pins_[3].add_input()}};
  PciBus bus_{ports_, memory_, {&pins_[0], &pins_[1], &pins_[2], &pins_[3]}};
  std::vector<std::pair<pci::PciFunction*, Shape>> functions_;
  std::vector<std::shared_ptr<ParkedAccess>> parked_;
};

}  // namespace
}  // namespace spindle::vmm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return spindle::fuzz::live<spindle::vmm::Guest>(data, size, spindle::vmm::kSteps);
}
