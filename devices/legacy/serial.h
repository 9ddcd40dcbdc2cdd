// SerialPort: a 16550A UART (National PC16550D), 8 ports, one interrupt.
//
// Speed is not modelled: a byte the guest writes is on the line at once as long as the line takes it, and
// input is there as soon as it came. When the line is full the transmitter stays busy (THRE off) and the
// guest waits as it would for slow hardware; nothing is lost and no vCPU blocks. Input that does not fit into
// the FIFO stays with whoever brought it, so there are no overruns.
//
// Threading: registers are accessed by vCPU threads, receive() and line_ready() are called by the thread that
// serves the line. The port's lock is held while it calls the line and the interrupt.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <span>

#include "devices/legacy/byte_registers.h"

namespace spindle::legacy {

/// What is plugged into the port. Called under the port's lock: do not call the port from here.
class SerialLine {
 public:
  virtual ~SerialLine() = default;
  /// False if there is no room; the line calls line_ready() when there is again.
  virtual bool transmit(uint8_t byte) = 0;
  /// The guest has read its input: receive() will take more.
  virtual void input_taken() = 0;
};

class SerialPort final : public ByteRegisters {
 public:
  static constexpr unsigned kPorts = 8;
  static constexpr unsigned kFifoSize = 16;

  SerialPort(InterruptLine& interrupt, SerialLine& line) : interrupt_(interrupt), line_(line) {}

  /// Takes as much as there is room for and returns how much that was.
  std::size_t receive(std::span<const uint8_t> bytes);
  /// The line has room again.
  void line_ready();
  void reset();

 private:
  uint8_t read_byte(unsigned offset) override;
  void write_byte(unsigned offset, uint8_t value) override;
  unsigned capacity() const { return fifo_enabled() ? kFifoSize : 1; }
  bool fifo_enabled() const;
  uint8_t line_status() const;
  uint8_t modem_status() const;
  uint8_t interrupt_id() const;
  void transmit(uint8_t byte);
  void send_pending();
  void update_interrupt();

  InterruptLine& interrupt_;
  SerialLine& line_;
  uint8_t interrupt_enable_ = 0;
  uint8_t fifo_control_ = 0;
  uint8_t line_control_ = 0;
  uint8_t modem_control_ = 0;
  uint8_t scratch_ = 0;
  uint16_t divisor_ = 12;  // 9600 baud, remembered and of no effect
  std::deque<uint8_t> received_;
  std::deque<uint8_t> to_send_;           // only while the line is full
  bool transmitter_empty_event_ = false;  // the THRE interrupt, cleared by reading it or by writing a byte
};

}  // namespace spindle::legacy
