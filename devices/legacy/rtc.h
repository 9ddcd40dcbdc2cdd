// Rtc: the MC146818 real-time clock with its CMOS memory, at ports 70h (index; bit 7, the NMI mask, is
// accepted and has no effect) and 71h (data).
//
// Time is the host's UTC plus what the guest has added by setting the clock. Alarm and update-ended
// interrupts work: a thread turns the seconds while one of them is enabled. The periodic interrupt does not
// exist; Linux makes its own from a high resolution timer.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <thread>

#include "devices/legacy/byte_registers.h"

namespace spindle::legacy {

class Rtc final : public ByteRegisters {
 public:
  using Clock = std::chrono::system_clock;
  static constexpr unsigned kPorts = 2;

  explicit Rtc(InterruptLine& interrupt, std::function<Clock::time_point()> now = Clock::now);

  /// Starts the thread without which no interrupt comes; `begin` is what it does first. Once, before a guest
  /// runs.
  void start(const std::function<void()>& begin);

  /// Interrupts off, as the reset pin does; time and memory stay.
  void reset();

 private:
  uint8_t read_byte(unsigned offset) override;
  void write_byte(unsigned offset, uint8_t value) override;
  uint8_t read_register(unsigned index);
  void write_register(unsigned index, uint8_t value);

  struct Fields {
    unsigned second, minute, hour, weekday, day, month, year;  // weekday 1-7 (Sunday 1), month 1-12
  };
  /// Whole seconds only: a guest may set years that do not fit the clock's own, finer unit.
  std::chrono::sys_seconds guest_now() const;
  static Fields fields_of(std::chrono::sys_seconds time);
  uint8_t encode(unsigned value) const;
  unsigned decode(uint8_t value) const;
  uint8_t encode_hour(unsigned hour) const;
  unsigned decode_hour(uint8_t value) const;
  uint8_t time_register(unsigned index) const;
  void set_time_register(unsigned index, uint8_t value);
  void take_over_time();
  bool alarm_matches(const Fields& fields) const;
  void catch_up();
  void update_interrupt();
  void ticker(std::stop_token stop);

  InterruptLine& interrupt_;
  std::function<Clock::time_point()> now_;
  std::chrono::seconds offset_{0};     // the guest's clock minus the host's
  std::array<uint8_t, 128> memory_{};  // time registers hold a value only while the clock is being set
  uint8_t index_ = 0;
  std::chrono::sys_seconds seen_;  // up to here flags in register C are up to date
  std::condition_variable_any changed_;
  std::jthread ticker_;  // destroyed first
};

}  // namespace spindle::legacy
