#include <doctest/doctest.h>

#include <condition_variable>

#include "devices/legacy/acpi_pm.h"
#include "devices/legacy/i8042.h"
#include "devices/legacy/pvpanic.h"
#include "devices/legacy/reset_control.h"
#include "devices/legacy/rtc.h"

namespace spindle::legacy {
namespace {

struct Pin final : InterruptLine {
  void set_level(bool asserted) override {
    std::lock_guard lock(mutex);
    level = asserted;
    changed.notify_all();
  }
  bool get() {
    std::lock_guard lock(mutex);
    return level;
  }
  bool wait(bool wanted) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(30), [&] { return level == wanted; });
  }
  std::mutex mutex;
  std::condition_variable changed;
  bool level = false;
};

uint8_t in(IoHandler& chip, unsigned offset) {
  uint8_t byte;
  chip.read(offset, {&byte, 1});
  return byte;
}
void out(IoHandler& chip, unsigned offset, uint8_t value) {
  chip.write(offset, {&value, 1});
}

}  // namespace

TEST_CASE("i8042: self test, mode byte and interface tests answer") {
  unsigned resets = 0;
  I8042 chip([&] { ++resets; });
  IoHandler &data = chip.data_port(), &command = chip.command_port();
  CHECK((in(command, 0) & 0x03) == 0);
  out(command, 0, 0xaa);
  CHECK((in(command, 0) & 0x01) == 1);
  CHECK(in(data, 0) == 0x55);
  CHECK((in(command, 0) & 0x01) == 0);
  out(command, 0, 0xab);
  CHECK(in(data, 0) == 0);
  out(command, 0, 0x60);
  out(data, 0, 0x65);
  out(command, 0, 0x20);
  CHECK(in(data, 0) == 0x65);
  out(command, 0, 0xd3);  // the loop back by which drivers find an auxiliary port
  out(data, 0, 0x5a);
  CHECK((in(command, 0) & 0x21) == 0x21);
  CHECK(in(data, 0) == 0x5a);
  out(data, 0, 0xf4);  // to a keyboard that is not there
  CHECK((in(command, 0) & 0x01) == 0);
  CHECK(resets == 0);
}

TEST_CASE("i8042: FEh pulses reset, other pulses do not, and so does output port bit 0") {
  unsigned resets = 0;
  I8042 chip([&] { ++resets; });
  out(chip.command_port(), 0, 0xff);
  CHECK(resets == 0);
  out(chip.command_port(), 0, 0xfe);
  CHECK(resets == 1);
  out(chip.command_port(), 0, 0xd1);
  out(chip.data_port(), 0, 0x02);
  CHECK(resets == 2);
}

TEST_CASE("reset control: only the go bit resets, by byte at CF9h and bit 0 at 92h") {
  unsigned resets = 0;
  ResetControl control([&] { ++resets; });
  out(control, 0, 0x02);
  CHECK(resets == 0);
  CHECK(in(control, 0) == 0x02);
  out(control, 0, kResetControlHard);
  CHECK(resets == 1);
  FastReset fast([&] { ++resets; });
  out(fast, 0, in(fast, 0));
  CHECK(resets == 1);
  out(fast, 0, 0x03);
  CHECK(resets == 2);
}

TEST_CASE("pvpanic: panicked is told, a loaded crash kernel is not a panic") {
  unsigned panics = 0;
  Pvpanic chip([&] { ++panics; });
  CHECK((in(chip, 0) & 1) == 1);
  out(chip, 0, 2);
  CHECK(panics == 0);
  out(chip, 0, 1);
  CHECK(panics == 1);
}

TEST_CASE("acpi pm: S5 switches off, other sleep types and SLP_TYP alone do not") {
  unsigned offs = 0;
  Pin sci;
  AcpiPm pm(sci, [&] { ++offs; });
  CHECK((in(pm, 4) & 1) == 1);  // SCI_EN: always in ACPI mode
  out(pm, 4, 0);
  CHECK((in(pm, 4) & 1) == 1);
  const uint8_t without_enable[] = {0x01, 5 << 2};
  pm.write(4, without_enable);
  CHECK(offs == 0);
  const uint8_t other_type[] = {0x01, 1 << 2 | 1 << 5};
  pm.write(4, other_type);
  CHECK(offs == 0);
  const uint8_t soft_off[] = {0x01, 5 << 2 | 1 << 5};
  pm.write(4, soft_off);
  CHECK(offs == 1);
  CHECK((in(pm, 5) & 1 << 5) == 0);  // SLP_EN reads as zero
}

TEST_CASE("acpi pm: the power button raises the SCI while enabled, writing ones clears it") {
  Pin sci;
  AcpiPm pm(sci, [] {});
  pm.press_power_button();
  CHECK_FALSE(sci.get());
  out(pm, 3, 0x01);
  CHECK(sci.get());
  CHECK((in(pm, 1) & 1) == 1);
  out(pm, 1, 0x01);
  CHECK_FALSE(sci.get());
  CHECK((in(pm, 1) & 1) == 0);
}

TEST_CASE("acpi pm: the timer runs forward") {
  Pin sci;
  AcpiPm pm(sci, [] {});
  const auto read = [&] {
    uint8_t b[4];
    pm.read(8, b);
    return static_cast<uint32_t>(b[0] | b[1] << 8 | b[2] << 16) | static_cast<uint32_t>(b[3]) << 24;
  };
  const uint32_t first = read();
  uint32_t later = first;
  for (int i = 0; i < 1'000'000 && later == first; ++i) later = read();
  CHECK(later - first < 0x10000000u);
  CHECK(later != first);
}

TEST_CASE("rtc: time, date and century, BCD and binary, 12 and 24 hours") {
  using namespace std::chrono;
  Pin pin;
  auto now = sys_days(year(2026) / 12 / 31) + hours(23) + minutes(59) + seconds(58);  // a Thursday
  Rtc rtc(pin, [&]() -> Rtc::Clock::time_point { return now; });
  const auto reg = [&](uint8_t index) {
    out(rtc, 0, index | 0x80);  // the NMI bit has no effect
    return in(rtc, 1);
  };
  const auto set = [&](uint8_t index, uint8_t value) {
    out(rtc, 0, index);
    out(rtc, 1, value);
  };
  CHECK(reg(0) == 0x58);
  CHECK(reg(2) == 0x59);
  CHECK(reg(4) == 0x23);
  CHECK(reg(6) == 5);
  CHECK(reg(7) == 0x31);
  CHECK(reg(8) == 0x12);
  CHECK(reg(9) == 0x26);
  CHECK(reg(0x32) == 0x20);
  CHECK((reg(13) & 0x80) == 0x80);
  set(11, 0x06);
  CHECK(reg(0) == 58);
  set(11, 0x00);
  CHECK(reg(4) == 0x91);  // 11 PM
  now += seconds(3);
  CHECK(reg(4) == 0x12);  // midnight is 12 AM
  CHECK(reg(9) == 0x27);

  SUBCASE("setting the clock") {
    set(11, 0x82);
    set(0, 0x30);
    set(2, 0x15);
    set(4, 0x06);
    set(7, 0x29);
    set(8, 0x02);
    set(9, 0x28);
    set(0x32, 0x20);
    now += seconds(100);  // stands still meanwhile
    CHECK(reg(0) == 0x30);
    set(11, 0x02);
    CHECK(reg(0) == 0x30);
    now += seconds(31);
    CHECK(reg(0) == 0x01);
    CHECK(reg(2) == 0x16);
    CHECK(reg(7) == 0x29);
  }
  SUBCASE("years that do not fit nanoseconds") {
    set(11, 0x06);
    for (uint8_t century : {0, 16, 23, 99, 255}) {
      set(0x32, century);
      CHECK(reg(0x32) == century);
      CHECK(reg(9) == 27);
      now += seconds(1);
      CHECK((reg(12) & 0x10) != 0);  // the second turned
    }
  }
  SUBCASE("memory and alarm registers are kept") {
    set(0x40, 0xa5);
    set(1, 0x12);
    CHECK(reg(0x40) == 0xa5);
    CHECK(reg(1) == 0x12);
  }
  SUBCASE("nonsense dates do no harm") {
    set(11, 0x82);
    for (uint8_t i : {0, 2, 4, 7, 8, 9, 0x32}) set(i, 0xff);
    set(11, 0x02);
    for (uint8_t i : {0, 2, 4, 6, 7, 8, 9, 0x32}) reg(i);
  }
}

TEST_CASE("rtc: update and alarm interrupts come by themselves and are acknowledged by reading C") {
  Pin pin;
  Rtc rtc(pin);
  rtc.start([] {});
  const auto c = [&] {
    out(rtc, 0, 12);
    return in(rtc, 1);
  };
  c();
  out(rtc, 0, 11);
  out(rtc, 1, 0x12);  // update interrupt
  REQUIRE(pin.wait(true));
  CHECK((c() & 0x90) == 0x90);
  CHECK_FALSE(pin.get());
  REQUIRE(pin.wait(true));
  out(rtc, 0, 11);
  out(rtc, 1, 0x22);  // alarm, every second as at power-on
  c();
  REQUIRE(pin.wait(true));
  CHECK((c() & 0xa0) == 0xa0);
  rtc.reset();
  CHECK_FALSE(pin.get());
}

}  // namespace spindle::legacy
