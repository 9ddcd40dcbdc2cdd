#include "devices/legacy/acpi_pm.h"

namespace spindle::legacy {
namespace {

constexpr uint16_t kTimerStatus = 1u << 0, kPowerButton = 1u << 8;
constexpr uint16_t kStatusBits = kTimerStatus | 1u << 5 | kPowerButton | 1u << 9 | 1u << 10 | 1u << 15;
constexpr uint16_t kSciEnabled = 1u << 0, kSleepEnable = 1u << 13;
constexpr unsigned kSleepTypeShift = 10, kSleepTypeMask = 7;
constexpr uint64_t kTimerHertz = 3579545;
constexpr uint32_t kTimerCarry = 1u << 31;

uint16_t with_byte(uint16_t old, bool high, uint8_t value) {
  return static_cast<uint16_t>(high ? (old & 0x00ff) | value << 8 : (old & 0xff00) | value);
}

}  // namespace

AcpiPm::AcpiPm(InterruptLine& sci, std::function<void()> power_off)
    : sci_(sci), power_off_(std::move(power_off)), control_(kSciEnabled) {}

uint32_t AcpiPm::timer() const {
  const auto elapsed = std::chrono::steady_clock::now() - start_;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(elapsed);
  const auto rest = std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed - seconds);
  return static_cast<uint32_t>(static_cast<uint64_t>(seconds.count()) * kTimerHertz +
                               static_cast<uint64_t>(rest.count()) * kTimerHertz / 1'000'000'000);
}

void AcpiPm::note_carry() {
  const uint32_t carry = timer() & kTimerCarry;
  if (carry != carry_seen_) status_ |= kTimerStatus;
  carry_seen_ = carry;
}

uint8_t AcpiPm::read_byte(unsigned offset) {
  switch (offset) {
    case 0:
      note_carry();
      return static_cast<uint8_t>(status_);
    case 1:
      return static_cast<uint8_t>(status_ >> 8);
    case 2:
      return static_cast<uint8_t>(enable_);
    case 3:
      return static_cast<uint8_t>(enable_ >> 8);
    case 4:
      return static_cast<uint8_t>(control_);
    case 5:
      return static_cast<uint8_t>(control_ >> 8);
    case 8:
      timer_latch_ = timer();
      return static_cast<uint8_t>(timer_latch_);
    case 9:
    case 10:
    case 11:
      return static_cast<uint8_t>(timer_latch_ >> (8 * (offset - 8)));
    default:
      return 0;
  }
}

void AcpiPm::write_byte(unsigned offset, uint8_t value) {
  switch (offset) {
    case 0:
    case 1: {  // status bits are cleared by writing ones
      const uint16_t cleared = with_byte(0, offset == 1, value);
      status_ &= static_cast<uint16_t>(~(cleared & kStatusBits));
      break;
    }
    case 2:
    case 3:
      enable_ = with_byte(enable_, offset == 3, value);
      break;
    case 4:
      control_ = with_byte(control_, false, value | kSciEnabled);  // there is no legacy mode to go back to
      break;
    case 5: {
      const uint16_t written = with_byte(control_, true, value);
      control_ = written & static_cast<uint16_t>(~kSleepEnable);
      const unsigned type = (written >> kSleepTypeShift) & kSleepTypeMask;
      if ((written & kSleepEnable) && type == kSleepTypeSoftOff) power_off_();
      break;
    }
    default:
      break;
  }
  update_interrupt();
}

void AcpiPm::press_power_button() {
  std::lock_guard lock(mutex_);
  status_ |= kPowerButton;
  update_interrupt();
}

void AcpiPm::reset() {
  std::lock_guard lock(mutex_);
  status_ = enable_ = 0;
  control_ = kSciEnabled;
  update_interrupt();
}

}  // namespace spindle::legacy
