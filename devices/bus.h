// What a device sees of the machine around it: where guest accesses come in, and how it interrupts.
//
// vmm/ implements the interrupts over KVM and routes port and MMIO exits to IoHandlers; tests implement both
// in process.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

namespace spindle {

/// An access that cannot finish yet: the vCPU that made it is parked until finish() (D3: only the one that
/// wrote `writeback`). Kickable: the vCPU leaves wait() when the machine wants it elsewhere, and comes back
/// later.
class ParkedAccess {
 public:
  /// From the device's thread, once.
  void finish() {
    {
      std::lock_guard lock(mutex_);
      finished_ = true;
    }
    changed_.notify_all();
  }
  bool finished() const {
    std::lock_guard lock(mutex_);
    return finished_;
  }
  /// From the vCPU's thread: returns true when finished, false when kicked.
  bool wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return finished_ || kicked_; });
    kicked_ = false;
    return finished_;
  }
  /// From any thread: makes wait() return, now or when it is next called.
  void kick() {
    {
      std::lock_guard lock(mutex_);
      kicked_ = true;
    }
    changed_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool finished_ = false;
  bool kicked_ = false;
};

/// Registers behind a range of ports or of guest-physical memory. Called by vCPU threads, several at once:
/// the implementation locks what it owns. `offset` is relative to the range; data.size() is 1, 2, 4 or 8 and
/// the access lies inside the range, but may be unaligned or straddle registers.
class IoHandler {
 public:
  virtual ~IoHandler() = default;
  virtual void read(uint64_t offset, std::span<uint8_t> data) = 0;
  /// Null if the write is done, else the vCPU waits for it.
  virtual std::shared_ptr<ParkedAccess> write(uint64_t offset, std::span<const uint8_t> data) = 0;
  /// `count` accesses of the same register (rep ins/outs), data.size() = count * width. Overridden where it
  /// pays.
  virtual void read_repeated(uint64_t offset, std::span<uint8_t> data, std::size_t width) {
    for (std::size_t at = 0; at < data.size(); at += width) read(offset, data.subspan(at, width));
  }
  virtual void write_repeated(uint64_t offset, std::span<const uint8_t> data, std::size_t width) {
    for (std::size_t at = 0; at < data.size(); at += width) write(offset, data.subspan(at, width));
  }
};

/// A level on an interrupt pin (an ISA IRQ, or a PCI function's INTx). Any thread; setting the same level is
/// harmless.
class InterruptLine {
 public:
  virtual ~InterruptLine() = default;
  virtual void set_level(bool asserted) = 0;
};

/// Makes a function's message interrupts real. Any thread (vCPUs program vectors).
class MessageRouter {
 public:
  virtual ~MessageRouter() = default;
  /// The vector now sends `data` to `address`; `vector` counts from 0 within the function.
  virtual void route(unsigned vector, uint64_t address, uint32_t data) = 0;
  /// Sends what `vector` was last routed to.
  virtual void signal(unsigned vector) = 0;
};

/// A device's doorbells: makes a guest write of any value to `offset` of a BAR signal `event_fd` without an
/// exit to user space. Where that is not possible (tests) the write arrives at the BAR's IoHandler as usual.
class DoorbellBinder {
 public:
  virtual ~DoorbellBinder() = default;
  /// False if the machine has none to give; the BAR's handler then gets the writes.
  virtual bool bind(uint64_t guest_address, unsigned width, int event_fd) = 0;
  virtual void unbind(uint64_t guest_address, unsigned width, int event_fd) = 0;
};

}  // namespace spindle
