#include "devices/legacy/i8042.h"

#include <utility>

namespace spindle::legacy {
namespace {

// Status register.
constexpr uint8_t kOutputFull = 1u << 0, kSystemFlag = 1u << 2, kCommandLast = 1u << 3, kUnlocked = 1u << 4,
                  kAuxiliaryFull = 1u << 5;
// Mode byte: both clocks off, translation on, self test passed.
constexpr uint8_t kModePowerOn = 0x74;
// Output port: reset line high, A20 on.
constexpr uint8_t kOutputPortPowerOn = 0x03, kOutputPortNoReset = 0x01;

constexpr uint8_t kReadMode = 0x20, kWriteMode = 0x60, kDisableAuxiliary = 0xa7, kEnableAuxiliary = 0xa8,
                  kTestAuxiliary = 0xa9, kSelfTest = 0xaa, kTestKeyboard = 0xab, kDisableKeyboard = 0xad,
                  kEnableKeyboard = 0xae, kReadOutputPort = 0xd0, kWriteOutputPort = 0xd1,
                  kWriteKeyboardBuffer = 0xd2, kWriteAuxiliaryBuffer = 0xd3, kWriteAuxiliary = 0xd4,
                  kPulseFirst = 0xf0;
constexpr uint8_t kModeKeyboardOff = 1u << 4, kModeAuxiliaryOff = 1u << 5;
constexpr uint8_t kSelfTestPassed = 0x55, kTestPassed = 0x00;

}  // namespace

I8042::I8042(std::function<void()> reset)
    : request_reset_(std::move(reset)),
      data_(*this, false),
      command_(*this, true),
      mode_(kModePowerOn),
      output_port_(kOutputPortPowerOn) {}

uint8_t I8042::Port::read_byte(unsigned) {
  std::lock_guard lock(chip_.mutex_);
  return command_ ? chip_.status() : chip_.read_data();
}

void I8042::Port::write_byte(unsigned, uint8_t value) {
  std::lock_guard lock(chip_.mutex_);
  command_ ? chip_.write_command(value) : chip_.write_data(value);
}

uint8_t I8042::status() const {
  uint8_t status = kSystemFlag | kUnlocked;
  if (output_) status |= kOutputFull | (output_from_auxiliary_ ? kAuxiliaryFull : 0);
  if (last_was_command_) status |= kCommandLast;
  return status;
}

uint8_t I8042::read_data() {
  const uint8_t value = output_.value_or(0);
  output_.reset();
  output_from_auxiliary_ = false;
  return value;
}

void I8042::write_data(uint8_t value) {
  last_was_command_ = false;
  const uint8_t command = std::exchange(awaited_parameter_for_, 0);
  switch (command) {
    case kWriteMode:
      mode_ = value;
      break;
    case kWriteOutputPort:
      output_port_ = value;
      if (!(value & kOutputPortNoReset)) request_reset_();
      break;
    case kWriteKeyboardBuffer:
    case kWriteAuxiliaryBuffer:
      output_ = value;
      output_from_auxiliary_ = command == kWriteAuxiliaryBuffer;
      break;
    default:  // for a device that is not plugged in: no answer comes
      break;
  }
}

void I8042::write_command(uint8_t value) {
  last_was_command_ = true;
  awaited_parameter_for_ = 0;
  switch (value) {
    case kReadMode:
      output_ = mode_;
      break;
    case kDisableAuxiliary:
      mode_ |= kModeAuxiliaryOff;
      break;
    case kEnableAuxiliary:
      mode_ &= static_cast<uint8_t>(~kModeAuxiliaryOff);
      break;
    case kDisableKeyboard:
      mode_ |= kModeKeyboardOff;
      break;
    case kEnableKeyboard:
      mode_ &= static_cast<uint8_t>(~kModeKeyboardOff);
      break;
    case kSelfTest:
      output_ = kSelfTestPassed;
      break;
    case kTestAuxiliary:
    case kTestKeyboard:
      output_ = kTestPassed;
      break;
    case kReadOutputPort:
      output_ = output_port_;
      break;
    case kWriteMode:
    case kWriteOutputPort:
    case kWriteKeyboardBuffer:
    case kWriteAuxiliaryBuffer:
    case kWriteAuxiliary:
      awaited_parameter_for_ = value;
      break;
    default:
      // F0h-FFh pulse the output lines whose bit is 0; line 0 is the processor's reset.
      if (value >= kPulseFirst && !(value & kOutputPortNoReset)) request_reset_();
      break;
  }
}

void I8042::reset() {
  std::lock_guard lock(mutex_);
  output_.reset();
  output_from_auxiliary_ = last_was_command_ = false;
  awaited_parameter_for_ = 0;
  mode_ = kModePowerOn;
  output_port_ = kOutputPortPowerOn;
}

}  // namespace spindle::legacy
