#include "devices/legacy/serial.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace spindle::legacy {
namespace {

struct Line final : SerialLine {
  bool transmit(uint8_t byte) override {
    if (sent.size() == room) return false;
    sent.push_back(static_cast<char>(byte));
    return true;
  }
  void input_taken() override { ++taken; }
  std::string sent;
  std::size_t room = 1000;
  unsigned taken = 0;
};

struct Pin final : InterruptLine {
  void set_level(bool asserted) override { level = asserted; }
  bool level = false;
};

struct Fixture {
  Line line;
  Pin pin;
  SerialPort port{pin, line};
  uint8_t in(unsigned offset) {
    uint8_t byte;
    port.read(offset, {&byte, 1});
    return byte;
  }
  void out(unsigned offset, uint8_t value) { port.write(offset, {&value, 1}); }
  std::size_t type(const std::string& text) {
    return port.receive({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  }
};

constexpr uint8_t kNone = 0x01, kTransmitterEmpty = 0x02, kReceived = 0x04, kTimeout = 0x0c, kFifos = 0xc0;

}  // namespace

TEST_CASE_FIXTURE(Fixture, "serial: output goes to the line and the transmitter stays ready") {
  for (char c : std::string("hello")) {
    CHECK((in(5) & 0x60) == 0x60);
    out(0, static_cast<uint8_t>(c));
  }
  CHECK(line.sent == "hello");
  CHECK_FALSE(pin.level);
}

TEST_CASE_FIXTURE(Fixture,
                  "serial: the transmitter interrupt comes when it is enabled, and goes when it was read") {
  out(1, 0x02);
  CHECK(pin.level);
  CHECK(in(2) == kTransmitterEmpty);
  CHECK_FALSE(pin.level);
  CHECK(in(2) == kNone);
  out(1, 0x00);
  out(1, 0x02);  // drivers probe for chips that do not raise it again
  CHECK(in(2) == kTransmitterEmpty);
  out(0, 'x');
  CHECK(pin.level);  // sent at once, so it is empty again
  CHECK(in(2) == kTransmitterEmpty);
}

TEST_CASE_FIXTURE(Fixture, "serial: a full line holds bytes back and loses none that fit the FIFO") {
  line.room = 2;
  out(2, 0x01);
  out(1, 0x02);
  in(2);
  for (char c : std::string("abcdef")) out(0, static_cast<uint8_t>(c));
  CHECK(line.sent == "ab");
  CHECK((in(5) & 0x60) == 0);
  CHECK_FALSE(pin.level);
  line.room = 4;
  port.line_ready();
  CHECK(line.sent == "abcd");
  CHECK_FALSE(pin.level);
  line.room = 100;
  port.line_ready();
  CHECK(line.sent == "abcdef");
  CHECK((in(5) & 0x60) == 0x60);
  CHECK(in(2) == (kTransmitterEmpty | kFifos));
}

TEST_CASE_FIXTURE(Fixture, "serial: input interrupts by level, a rest below the trigger as timeout") {
  out(2, 0x41);  // FIFO on, trigger at 4
  out(1, 0x01);
  CHECK(type("abc") == 3);
  CHECK(pin.level);
  CHECK(in(2) == (kTimeout | kFifos));
  CHECK(type("d") == 1);
  CHECK(in(2) == (kReceived | kFifos));
  CHECK((in(5) & 1) == 1);
  CHECK(in(0) == 'a');
  CHECK(in(2) == (kTimeout | kFifos));
  CHECK(in(0) == 'b');
  CHECK(in(0) == 'c');
  CHECK(line.taken == 1);  // the FIFO that was switched on had been emptied
  CHECK(in(0) == 'd');
  CHECK(line.taken == 2);
  CHECK_FALSE(pin.level);
  CHECK((in(5) & 1) == 0);
  CHECK(in(0) == 0);
}

TEST_CASE_FIXTURE(Fixture, "serial: input that does not fit is not taken") {
  CHECK(type("ab") == 1);  // no FIFO: one byte
  out(2, 0x01);
  CHECK((in(5) & 1) == 0);  // switching the FIFO empties it
  CHECK(type(std::string(20, 'z')) == SerialPort::kFifoSize);
  CHECK(type("q") == 0);
}

TEST_CASE_FIXTURE(Fixture, "serial: received data goes before transmitter empty") {
  out(1, 0x03);
  type("a");
  CHECK(in(2) == kReceived);
  CHECK(in(2) == kReceived);  // reading it does not clear it, reading the data does
  in(0);
  CHECK(in(2) == kTransmitterEmpty);
}

TEST_CASE_FIXTURE(Fixture, "serial: divisor latch, scratch and loopback, as a driver probes them") {
  out(3, 0x80);
  out(0, 0x01);
  out(1, 0x02);
  CHECK(in(0) == 0x01);
  CHECK(in(1) == 0x02);
  out(3, 0x03);
  CHECK(in(1) == 0);
  out(7, 0xae);
  CHECK(in(7) == 0xae);
  CHECK(in(6) == 0xb0);
  out(4, 0x1a);  // loop, RTS, OUT2
  CHECK((in(6) & 0xf0) == 0x90);
  out(0, 'L');
  CHECK(line.sent.empty());
  CHECK(in(0) == 'L');
}

TEST_CASE_FIXTURE(Fixture, "serial: a wide access is bytes, a repeated one stays at its register") {
  const uint8_t text[] = {'x', 'y', 'z'};
  port.write_repeated(0, text, 1);
  CHECK(line.sent == "xyz");
  uint8_t both[2];
  port.read(5, both);
  CHECK(both[0] == 0x60);
  CHECK(both[1] == 0xb0);
}

TEST_CASE_FIXTURE(Fixture, "serial: reset lowers the interrupt and forgets input") {
  out(1, 0x03);
  type("a");
  port.reset();
  CHECK_FALSE(pin.level);
  CHECK(in(1) == 0);
  CHECK((in(5) & 1) == 0);
}

}  // namespace spindle::legacy
