// IDE bus-master DMA driven in process: registers, PRD table, medium and interrupt on one thread, as libata
// does a command. A channel has one command at a time, so the yardstick is a bare io_uring loop of depth 1.
#include <benchmark/benchmark.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "bench/bare_uring.h"
#include "block/disk.h"
#include "block/filters/null_node.h"
#include "block/protocols/file_node.h"
#include "devices/ide/piix_ide.h"
#include "devices/ide/test_driver.h"
#include "formats/raw_node.h"

namespace spindle::bench {
namespace {

using ide::test::HostDriver;
using ide::test::Registers;
using ide::test::TestLine;

constexpr uint32_t kBuffer = 0x10'0000;
constexpr int kCommandsPerIteration = 256;

class Controller {
 public:
  Controller(std::unique_ptr<Reactor> reactor, std::shared_ptr<Node> node, uint32_t block, bool write)
      : reactor_(std::move(reactor)),
        disk_(std::make_shared<Disk>(std::move(node), DiskOptions{.id = "bench"})),
        block_(block),
        write_(write),
        offsets_(random_offsets(disk_->size(), block)),
        ram_(4 << 20),
        memory_({{.guest_address = 0, .size = ram_.size(), .host = ram_.data()}}),
        ide_(memory_, *reactor_, {&lines_[0], &lines_[1]}) {
    if (!ide_.attach(0, 0, disk_)) std::abort();
    ide_.assign_bar(ide::kBusMasterBar, 0xc000);
    ide_.write_config(pci::kCommand, 2, pci::kCommandIo | pci::kCommandBusMaster);
    host_ = std::make_unique<HostDriver>(ide_, 0, lines_[0], ram_);
    std::vector<HostDriver::Region> regions;
    for (uint32_t at = 0; at < block_; at += 0x10000)
      regions.push_back({kBuffer + at, std::min(block_ - at, 0x10000u)});
    host_->put_table(HostDriver::kTableAddress, regions);
  }
  ~Controller() {
    reactor_->wait(ide_.drain());
    (void)reactor_->wait(disk_->close());  // what it costs is measured, not whether a throw-away file is safe
  }
  Controller(const Controller&) = delete;
  Controller& operator=(const Controller&) = delete;

  /// READ or WRITE DMA EXT of one block, from the registers to the interrupt's acknowledgement.
  void command() {
    const uint64_t offset = offsets_[next_++ % offsets_.size()];
    host_->start_dma({.opcode = static_cast<uint8_t>(write_ ? 0x35 : 0x25),
                      .count = static_cast<uint16_t>(block_ / 512),
                      .lba = offset / 512,
                      .ext = true},
                     !write_);
    reactor_->run_until([this] { return lines_[0].level(); });
    if (host_->finish_dma(false).opcode & 1) std::abort();
  }

 private:
  std::unique_ptr<Reactor> reactor_;
  std::shared_ptr<Disk> disk_;
  uint32_t block_;
  bool write_;
  std::vector<uint64_t> offsets_;
  std::vector<uint8_t> ram_;
  GuestMemory memory_;
  TestLine lines_[2];
  ide::PiixIde ide_;
  std::unique_ptr<HostDriver> host_;
  uint64_t next_ = 0;
};

void run(benchmark::State& state, Controller& controller) {
  for (auto _ : state) {
    for (int i = 0; i < kCommandsPerIteration; ++i) controller.command();
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) * kCommandsPerIteration);
}

void over_null(benchmark::State& state, uint32_t block, bool write) {
  auto reactor = std::move(*Reactor::create());
  auto node = std::make_shared<NullNode>(*reactor, NullNode::Options{.read_zeroes = false});
  Controller controller(std::move(reactor), node, block, write);
  run(state, controller);
}

void over_file(benchmark::State& state, const char* path, uint32_t block, bool write) {
  auto reactor = std::move(*Reactor::create());
  auto file = FileNode::open(*reactor, {.path = path});
  if (!file) std::abort();
  auto raw = std::move(*RawNode::open(std::move(*file), {}));
  Controller controller(std::move(reactor), raw, block, write);
  run(state, controller);
}

void bare(benchmark::State& state, const char* path, uint32_t block, bool write) {
  BareUring loop(path, 1, block, write);
  int64_t done = 0;
  for (auto _ : state) done += static_cast<int64_t>(loop.run(kCommandsPerIteration));
  state.SetItemsProcessed(done);
}

void register_for(const char* name, const char* path) {
  for (const uint32_t block : {4096u, 131072u}) {
    for (const bool write : {false, true}) {
      const std::string way =
          std::string(name) + (block == 4096 ? "/4k-" : "/128k-") + (write ? "write" : "read");
      for (const bool is_bare : bare_first() ? std::array{true, false} : std::array{false, true}) {
        benchmark::RegisterBenchmark(
            ((is_bare ? "ide-bare/" : "ide-file/") + way).c_str(), [=](benchmark::State& s) {
              is_bare ? bare(s, path, block, write) : over_file(s, path, block, write);
            });
      }
    }
  }
}

}  // namespace
}  // namespace spindle::bench

int main(int argc, char** argv) {
  using namespace spindle::bench;
  benchmark::RegisterBenchmark("ide-null/4k-read", [](benchmark::State& s) { over_null(s, 4096, false); });
  benchmark::RegisterBenchmark("ide-null/4k-write", [](benchmark::State& s) { over_null(s, 4096, true); });
  if (const char* path = std::getenv("SPINDLE_BENCH_CACHED")) register_for("page-cache", path);
  if (const char* path = std::getenv("SPINDLE_BENCH_TMPFS")) register_for("tmpfs", path);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
