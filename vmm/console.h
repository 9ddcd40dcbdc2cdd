// Console: the other end of the guest's serial port: standard input and output, a file, or nothing.
//
// A thread of its own moves the bytes, so a vCPU never waits for a terminal or a pipe. Output is buffered up
// to kOutputLimit; when whoever should read it does not, the port's transmitter stays busy, and the guest's
// tty waits as it would for a slow line. When the reader is gone for good (EPIPE, a full file system), output
// is thrown away.
//
// Input is always read, or the keys below would stop working when the guest does not listen. Up to
// kInputLimit bytes wait for the guest; what comes on top of them is lost.
//
// The end never waits for output: a terminal is opened anew without blocking, pipes get no more than they
// have room for, and a write that blocks all the same is interrupted by the signal that interrupts vCPUs.
//
// Keys, as in QEMU and with a pipe as well as with a terminal: Ctrl-A x quits, Ctrl-A h helps, Ctrl-A Ctrl-A
// sends Ctrl-A. The end of standard input is no event: the guest just gets no more.
//
// Locks: the serial port calls transmit() and input_taken() under its lock, so ours is taken inside it and
// never held while the port is called.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "block/result.h"
#include "devices/legacy/serial.h"
#include "vmm/kvm.h"

namespace spindle::vmm {

struct ConsoleOptions {
  enum class Kind : uint8_t { Stdio, None, File };
  Kind kind = Kind::Stdio;
  std::string file;

  /// "stdio", "none" or "file:F". The error is for the user.
  static Result<ConsoleOptions> parse(const std::string& text);
};

/// Takes the console's own keys out of the input.
class ConsoleKeys {
 public:
  enum class Action : uint8_t { None, Quit, Help };
  /// Appends what is for the guest to `guest`. At most one action a byte.
  Action feed(uint8_t byte, std::vector<uint8_t>& guest);

 private:
  bool escaped_ = false;
};

class Console final : public legacy::SerialLine {
 public:
  static constexpr std::size_t kOutputLimit = 64 * 1024;
  static constexpr std::size_t kInputLimit = 64 * 1024;

  /// Opens what there is to open. Standard input, if a terminal, becomes raw at start().
  static Result<std::unique_ptr<Console>> create(const ConsoleOptions& options);
  ~Console() override;

  /// Starts moving bytes between `port`, which outlives the console's thread, and the world. `quit` is called
  /// by the console's thread for Ctrl-A x.
  void start(legacy::SerialPort& port, std::function<void()> quit);
  /// Writes out what the guest said, as long as somebody takes it (a second without progress is the end), and
  /// stops.
  void stop();

  bool transmit(uint8_t byte) override;
  void input_taken() override;

 private:
  Console(Fd wake, int input, int output, Fd file, bool stdio);
  void wake();
  void main();
  bool write_some();
  void read_some();
  void help();
  void deliver_input();

  Fd wake_;
  Fd file_;     // the file, or the terminal on standard output opened anew
  int input_;   // -1: none, or ended
  int output_;  // -1: none, or broken
  bool stdio_;
  legacy::SerialPort* port_ = nullptr;
  std::function<void()> quit_;
  ConsoleKeys keys_;
  std::vector<uint8_t> pending_input_;  // console's thread only
  std::atomic<bool> input_waits_{false};

  std::mutex mutex_;
  std::vector<uint8_t> output_bytes_;
  bool line_full_ = false;
  bool discard_ = false;
  bool stop_ = false;
  bool abandon_ = false;                            // stop at once
  bool finished_ = false;                           // the thread has
  std::chrono::steady_clock::time_point progress_;  // when stop() was called, or the last write since
  std::condition_variable changed_;                 // finished_
  std::thread thread_;
};

}  // namespace spindle::vmm
