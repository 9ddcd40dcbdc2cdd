#include "devices/legacy/serial.h"

namespace spindle::legacy {
namespace {

// Registers (PC16550D, table II). 0 and 1 are the divisor while DLAB is set.
constexpr unsigned kData = 0, kInterruptEnable = 1, kInterruptId = 2, kFifoControl = 2, kLineControl = 3,
                   kModemControl = 4, kLineStatus = 5, kModemStatus = 6, kScratch = 7;

constexpr uint8_t kIerReceived = 1u << 0, kIerTransmitterEmpty = 1u << 1, kIerMask = 0x0f;
constexpr uint8_t kIirNone = 0x01, kIirTransmitterEmpty = 0x02, kIirReceived = 0x04, kIirTimeout = 0x0c,
                  kIirFifos = 0xc0;
constexpr uint8_t kFcrEnable = 1u << 0, kFcrClearReceiver = 1u << 1, kFcrClearTransmitter = 1u << 2;
constexpr uint8_t kLcrDivisorAccess = 1u << 7;
constexpr uint8_t kMcrDtr = 1u << 0, kMcrRts = 1u << 1, kMcrOut1 = 1u << 2, kMcrOut2 = 1u << 3,
                  kMcrLoop = 1u << 4, kMcrMask = 0x1f;
constexpr uint8_t kLsrDataReady = 1u << 0, kLsrHoldingEmpty = 1u << 5, kLsrTransmitterEmpty = 1u << 6;
constexpr uint8_t kMsrCts = 1u << 4, kMsrDsr = 1u << 5, kMsrRing = 1u << 6, kMsrCarrier = 1u << 7;
constexpr unsigned kTriggerLevels[] = {1, 4, 8, 14};

}  // namespace

bool SerialPort::fifo_enabled() const {
  return fifo_control_ & kFcrEnable;
}

uint8_t SerialPort::line_status() const {
  uint8_t status = 0;
  if (!received_.empty()) status |= kLsrDataReady;
  if (to_send_.empty()) status |= kLsrHoldingEmpty | kLsrTransmitterEmpty;
  return status;
}

uint8_t SerialPort::modem_status() const {
  if (!(modem_control_ & kMcrLoop)) return kMsrCts | kMsrDsr | kMsrCarrier;  // somebody is always there
  uint8_t status = 0;
  if (modem_control_ & kMcrRts) status |= kMsrCts;
  if (modem_control_ & kMcrDtr) status |= kMsrDsr;
  if (modem_control_ & kMcrOut1) status |= kMsrRing;
  if (modem_control_ & kMcrOut2) status |= kMsrCarrier;
  return status;
}

// The highest of what is pending and enabled. Below the trigger level the chip waits four character times for
// more before it reports a timeout; without a speed that time is over at once.
uint8_t SerialPort::interrupt_id() const {
  if ((interrupt_enable_ & kIerReceived) && !received_.empty()) {
    const bool enough = !fifo_enabled() || received_.size() >= kTriggerLevels[fifo_control_ >> 6];
    return enough ? kIirReceived : kIirTimeout;
  }
  if ((interrupt_enable_ & kIerTransmitterEmpty) && transmitter_empty_event_) return kIirTransmitterEmpty;
  return kIirNone;
}

void SerialPort::update_interrupt() {
  interrupt_.set_level(interrupt_id() != kIirNone);
}

uint8_t SerialPort::read_byte(unsigned offset) {
  const bool divisor = line_control_ & kLcrDivisorAccess;
  switch (offset) {
    case kData: {
      if (divisor) return static_cast<uint8_t>(divisor_);
      if (received_.empty()) return 0;
      const uint8_t byte = received_.front();
      received_.pop_front();
      update_interrupt();
      if (received_.empty()) line_.input_taken();
      return byte;
    }
    case kInterruptEnable:
      return divisor ? static_cast<uint8_t>(divisor_ >> 8) : interrupt_enable_;
    case kInterruptId: {
      const uint8_t id = interrupt_id();
      if (id == kIirTransmitterEmpty) {
        transmitter_empty_event_ = false;
        update_interrupt();
      }
      return id | (fifo_enabled() ? kIirFifos : 0);
    }
    case kLineControl:
      return line_control_;
    case kModemControl:
      return modem_control_;
    case kLineStatus:
      return line_status();
    case kModemStatus:
      return modem_status();
    case kScratch:
      return scratch_;
    default:
      return 0xff;
  }
}

void SerialPort::write_byte(unsigned offset, uint8_t value) {
  const bool divisor = line_control_ & kLcrDivisorAccess;
  switch (offset) {
    case kData:
      if (divisor) {
        divisor_ = static_cast<uint16_t>((divisor_ & 0xff00) | value);
      } else {
        transmit(value);
      }
      break;
    case kInterruptEnable:
      if (divisor) {
        divisor_ = static_cast<uint16_t>((divisor_ & 0x00ff) | value << 8);
        break;
      }
      // Enabling the interrupt while the transmitter is empty raises it; drivers rely on that to get going.
      if (!(interrupt_enable_ & kIerTransmitterEmpty) && (value & kIerTransmitterEmpty) && to_send_.empty()) {
        transmitter_empty_event_ = true;
      }
      interrupt_enable_ = value & kIerMask;
      update_interrupt();
      break;
    case kFifoControl: {
      const bool toggled = (value ^ fifo_control_) & kFcrEnable;
      fifo_control_ = value & (kFcrEnable | 0xc0);
      if (toggled || (value & kFcrClearReceiver)) {
        received_.clear();
        line_.input_taken();
      }
      if (toggled || (value & kFcrClearTransmitter)) {
        if (!to_send_.empty()) transmitter_empty_event_ = true;
        to_send_.clear();
      }
      update_interrupt();
      break;
    }
    case kLineControl:
      line_control_ = value;
      break;
    case kModemControl:
      modem_control_ = value & kMcrMask;
      break;
    case kScratch:
      scratch_ = value;
      break;
    default:  // the status registers are read-only
      break;
  }
}

void SerialPort::transmit(uint8_t byte) {
  transmitter_empty_event_ = false;
  if (modem_control_ & kMcrLoop) {
    if (received_.size() < capacity()) received_.push_back(byte);
    transmitter_empty_event_ = true;
  } else if (!to_send_.empty() || !line_.transmit(byte)) {
    // A driver that writes to a full FIFO without looking loses the byte, as on the chip.
    if (to_send_.size() < capacity()) to_send_.push_back(byte);
  } else {
    transmitter_empty_event_ = true;
  }
  update_interrupt();
}

void SerialPort::send_pending() {
  while (!to_send_.empty() && line_.transmit(to_send_.front())) {
    to_send_.pop_front();
    if (to_send_.empty()) transmitter_empty_event_ = true;
  }
}

void SerialPort::line_ready() {
  std::lock_guard lock(mutex_);
  send_pending();
  update_interrupt();
}

std::size_t SerialPort::receive(std::span<const uint8_t> bytes) {
  std::lock_guard lock(mutex_);
  std::size_t taken = 0;
  while (taken < bytes.size() && received_.size() < capacity()) received_.push_back(bytes[taken++]);
  update_interrupt();
  return taken;
}

void SerialPort::reset() {
  std::lock_guard lock(mutex_);
  interrupt_enable_ = fifo_control_ = line_control_ = modem_control_ = scratch_ = 0;
  divisor_ = 12;
  received_.clear();
  send_pending();  // what the guest had sent still goes out if it can
  to_send_.clear();
  transmitter_empty_event_ = false;
  update_interrupt();
  line_.input_taken();
}

}  // namespace spindle::legacy
