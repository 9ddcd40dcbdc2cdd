#include "devices/legacy/rtc.h"

#include <algorithm>

namespace spindle::legacy {
namespace {

using std::chrono::days;
using std::chrono::floor;
using std::chrono::seconds;
using std::chrono::sys_days;
using std::chrono::sys_seconds;

constexpr unsigned kSecond = 0, kSecondAlarm = 1, kMinute = 2, kMinuteAlarm = 3, kHour = 4, kHourAlarm = 5,
                   kWeekday = 6, kDay = 7, kMonth = 8, kYear = 9, kA = 10, kB = 11, kC = 12, kD = 13,
                   kCentury = 0x32;
constexpr uint8_t kAUpdateInProgress = 1u << 7, kAPowerOn = 0x26;  // 32768 Hz crystal
constexpr uint8_t kBSet = 1u << 7, kBPeriodic = 1u << 6, kBAlarm = 1u << 5, kBUpdate = 1u << 4,
                  kBSquare = 1u << 3, kBBinary = 1u << 2, kB24Hours = 1u << 1;
constexpr uint8_t kCInterrupt = 1u << 7, kCAlarm = 1u << 5, kCUpdate = 1u << 4;
constexpr uint8_t kDValid = 1u << 7;
constexpr uint8_t kAnyAlarm = 0xc0;  // an alarm byte from C0h up matches everything
constexpr uint8_t kAfternoon = 1u << 7;
constexpr auto kUpdateTime = std::chrono::microseconds(244);  // UIP shows that long before the second turns

bool is_time(unsigned index) {
  return index == kSecond || index == kMinute || index == kHour || (index >= kWeekday && index <= kYear) ||
         index == kCentury;
}

}  // namespace

Rtc::Rtc(InterruptLine& interrupt, std::function<Clock::time_point()> now)
    : interrupt_(interrupt), now_(std::move(now)), seen_(floor<seconds>(now_())) {
  memory_[kA] = kAPowerOn;
  memory_[kB] = kB24Hours;
  memory_[kSecondAlarm] = memory_[kMinuteAlarm] = memory_[kHourAlarm] = kAnyAlarm;
}

sys_seconds Rtc::guest_now() const {
  return floor<seconds>(now_()) + offset_;
}

Rtc::Fields Rtc::fields_of(sys_seconds time) {
  const auto day = floor<days>(time);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss clock(time - day);
  return {.second = static_cast<unsigned>(clock.seconds().count()),
          .minute = static_cast<unsigned>(clock.minutes().count()),
          .hour = static_cast<unsigned>(clock.hours().count()),
          .weekday = std::chrono::weekday(day).c_encoding() + 1,
          .day = static_cast<unsigned>(date.day()),
          .month = static_cast<unsigned>(date.month()),
          .year = static_cast<unsigned>(static_cast<int>(date.year()))};
}

uint8_t Rtc::encode(unsigned value) const {
  return static_cast<uint8_t>(memory_[kB] & kBBinary ? value : value / 10 * 16 + value % 10);
}

unsigned Rtc::decode(uint8_t value) const {
  return memory_[kB] & kBBinary ? value : value / 16u * 10 + value % 16u;
}

uint8_t Rtc::encode_hour(unsigned hour) const {
  if (memory_[kB] & kB24Hours) return encode(hour);
  return encode(hour % 12 == 0 ? 12 : hour % 12) | (hour >= 12 ? kAfternoon : 0);
}

unsigned Rtc::decode_hour(uint8_t value) const {
  if (memory_[kB] & kB24Hours) return decode(value);
  return decode(value & static_cast<uint8_t>(~kAfternoon)) % 12 + (value & kAfternoon ? 12 : 0);
}

uint8_t Rtc::time_register(unsigned index) const {
  if (memory_[kB] & kBSet) return memory_[index];
  const Fields fields = fields_of(guest_now());
  switch (index) {
    case kSecond:
      return encode(fields.second);
    case kMinute:
      return encode(fields.minute);
    case kHour:
      return encode_hour(fields.hour);
    case kWeekday:
      return encode(fields.weekday);
    case kDay:
      return encode(fields.day);
    case kMonth:
      return encode(fields.month);
    case kYear:
      return encode(fields.year % 100);
    default:
      return encode(fields.year / 100);
  }
}

// While SET is on, the guest writes the registers one by one; the clock goes on from them when SET goes off.
// A write to a running clock sets that one register.
void Rtc::set_time_register(unsigned index, uint8_t value) {
  if (memory_[kB] & kBSet) {
    memory_[index] = value;
    return;
  }
  for (unsigned i = 0; i <= kCentury; ++i) {
    if (is_time(i)) memory_[i] = time_register(i);
  }
  memory_[index] = value;
  take_over_time();
}

// Nonsense (the 40th of June) is normalised by counting on, a month of nonsense is taken as January.
void Rtc::take_over_time() {
  const unsigned month = decode(memory_[kMonth]);
  const std::chrono::year_month_day first(
      std::chrono::year(static_cast<int>(decode(memory_[kCentury]) * 100 + decode(memory_[kYear]))),
      std::chrono::month(month >= 1 && month <= 12 ? month : 1), std::chrono::day(1));
  const auto time = sys_days(first) + days(static_cast<int>(decode(memory_[kDay])) - 1) +
                    std::chrono::hours(decode_hour(memory_[kHour])) +
                    std::chrono::minutes(decode(memory_[kMinute])) + seconds(decode(memory_[kSecond]));
  offset_ = time - floor<seconds>(now_());
  seen_ = time;
}

bool Rtc::alarm_matches(const Fields& fields) const {
  const auto matches = [](uint8_t alarm, uint8_t value) { return alarm >= kAnyAlarm || alarm == value; };
  return matches(memory_[kSecondAlarm], encode(fields.second)) &&
         matches(memory_[kMinuteAlarm], encode(fields.minute)) &&
         matches(memory_[kHourAlarm], encode_hour(fields.hour));
}

// Sets the flags for every second that turned since we looked; alarms repeat daily, so a day of them is
// enough.
void Rtc::catch_up() {
  const auto now = guest_now();
  if (memory_[kB] & kBSet) {
    seen_ = now;  // no updates while the clock is being set
    return;
  }
  if (now <= seen_) return;
  memory_[kC] |= kCUpdate;
  for (auto turned = std::max(seen_ + seconds(1), now - days(1)); turned <= now; turned += seconds(1)) {
    if (!alarm_matches(fields_of(turned))) continue;
    memory_[kC] |= kCAlarm;
    break;
  }
  seen_ = now;
}

void Rtc::update_interrupt() {
  const bool raised = memory_[kC] & memory_[kB] & (kCAlarm | kCUpdate);
  memory_[kC] = static_cast<uint8_t>(raised ? memory_[kC] | kCInterrupt : memory_[kC] & ~kCInterrupt);
  interrupt_.set_level(raised);
}

void Rtc::start(const std::function<void()>& begin) {
  ticker_ = std::jthread([this, begin](std::stop_token stop) {
    begin();
    ticker(stop);
  });
}

void Rtc::ticker(std::stop_token stop) {
  const auto ticking = [this] { return (memory_[kB] & (kBAlarm | kBUpdate)) && !(memory_[kB] & kBSet); };
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, ticking)) {
    catch_up();
    update_interrupt();
    const auto next = floor<seconds>(now_()) + seconds(1);
    changed_.wait_until(lock, stop, std::chrono::time_point_cast<Clock::duration>(next),
                        [&] { return !ticking(); });
    if (stop.stop_requested()) return;
  }
}

uint8_t Rtc::read_register(unsigned index) {
  if (is_time(index)) return time_register(index);
  switch (index) {
    case kA: {
      const auto now = now_();
      const bool updating = !(memory_[kB] & kBSet) && now - floor<seconds>(now) >= seconds(1) - kUpdateTime;
      return memory_[kA] | (updating ? kAUpdateInProgress : 0);
    }
    case kC: {
      catch_up();
      update_interrupt();
      const uint8_t value = memory_[kC];
      memory_[kC] = 0;  // reading acknowledges
      update_interrupt();
      return value;
    }
    case kD:
      return kDValid;
    default:
      return memory_[index];
  }
}

void Rtc::write_register(unsigned index, uint8_t value) {
  if (is_time(index)) {
    set_time_register(index, value);
    return;
  }
  switch (index) {
    case kA:
      memory_[kA] = value & static_cast<uint8_t>(~kAUpdateInProgress);
      break;
    case kB: {
      if (value & kBSet) value &= static_cast<uint8_t>(~kBUpdate);  // as the chip does
      value &= static_cast<uint8_t>(~(kBPeriodic | kBSquare));
      const uint8_t before = memory_[kB];
      catch_up();
      if (!(before & kBSet) && (value & kBSet)) {
        for (unsigned i = 0; i <= kCentury; ++i) {
          if (is_time(i)) memory_[i] = time_register(i);
        }
      }
      memory_[kB] = value;
      if ((before & kBSet) && !(value & kBSet)) take_over_time();
      update_interrupt();
      changed_.notify_all();
      break;
    }
    case kC:
    case kD:
      break;  // read-only
    default:
      memory_[index] = value;
      break;
  }
}

uint8_t Rtc::read_byte(unsigned offset) {
  return offset == 0 ? 0xff : read_register(index_);  // the index cannot be read back
}

void Rtc::write_byte(unsigned offset, uint8_t value) {
  if (offset == 0) {
    index_ = value & 0x7f;
  } else {
    write_register(index_, value);
  }
}

void Rtc::reset() {
  std::lock_guard lock(mutex_);
  memory_[kB] &= static_cast<uint8_t>(~(kBAlarm | kBUpdate | kBSet));
  memory_[kC] = 0;
  index_ = 0;
  update_interrupt();
  changed_.notify_all();
}

}  // namespace spindle::legacy
