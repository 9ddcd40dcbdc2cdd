// I8042: the keyboard controller, with no keyboard and no mouse plugged in. It answers its own commands, so
// that a driver that probes it comes to an end, and it pulses the reset line, the oldest way to reboot a PC.
//
// Two handlers, because its two ports (60h data, 64h command and status) have others between them.
#pragma once

#include <functional>
#include <optional>

#include "devices/legacy/byte_registers.h"

namespace spindle::legacy {

class I8042 {
 public:
  /// `reset` asks for a machine reset; called by a vCPU thread, must not wait for that thread.
  explicit I8042(std::function<void()> reset);

  IoHandler& data_port() { return data_; }
  IoHandler& command_port() { return command_; }
  void reset();

 private:
  class Port final : public ByteRegisters {
   public:
    Port(I8042& chip, bool command) : chip_(chip), command_(command) {}

   private:
    uint8_t read_byte(unsigned) override;
    void write_byte(unsigned, uint8_t value) override;
    I8042& chip_;
    bool command_;
  };

  uint8_t read_data();
  uint8_t status() const;
  void write_data(uint8_t value);
  void write_command(uint8_t value);

  std::function<void()> request_reset_;
  Port data_;
  Port command_;
  mutable std::mutex mutex_;
  std::optional<uint8_t> output_;  // what the guest will read from the data port
  bool output_from_auxiliary_ = false;
  bool last_was_command_ = false;
  uint8_t awaited_parameter_for_ = 0;  // the command whose parameter comes next; 0 none
  uint8_t mode_ = 0;
  uint8_t output_port_ = 0;
};

}  // namespace spindle::legacy
