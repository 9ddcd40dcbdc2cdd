// virtio-blk driven in process, driver, device and medium on one thread: no VM, no exits, only what Spindle
// itself costs.
//
//   null/...   the whole way without a medium: 4 KiB requests in batches of 32, over one queue or four, split
//              or packed; one interrupt decision a batch and queue
//   file/...   depth 32 over a file, beside bare/...: the same reads or writes by a bare io_uring loop
//
//   traced/... as null/..., while a trace is recorded
//
// The files are made by scripts/bench, whose names they come under: SPINDLE_BENCH_CACHED and
// SPINDLE_BENCH_TMPFS.
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
#include "block/trace/tracer.h"
#include "devices/virtio/blk.h"
#include "devices/virtio/test_driver.h"
#include "formats/raw_node.h"

namespace spindle::bench {
namespace {

using namespace virtio::test;

constexpr uint32_t kBlock = 4096;
constexpr unsigned kDepth = 32;

struct Rings {
  unsigned queues = 1;
  bool packed = false;
};

/// A driver that keeps kDepth requests in flight on a device of its own.
class Driver {
 public:
  Driver(std::unique_ptr<Reactor> reactor, std::shared_ptr<Node> node, CacheMode cache, bool write,
         Rings rings = {})
      : reactor_(std::move(reactor)),
        disk_(std::move(node), {.id = "bench", .cache = cache}),
        type_(write ? virtio::kBlkTypeOut : virtio::kBlkTypeIn),
        offsets_(random_offsets(disk_.size(), kBlock)) {
    blk_ = std::move(*virtio::VirtioBlk::create(
        disk_, ram_.memory(), {.serial = "bench", .queues = rings.queues, .packed = rings.packed}));
    blk_->connect(transport_);
    blk_->acknowledge(blk_->features());
    reactor_->wait(blk_->negotiate());
    for (unsigned i = 0; i < rings.queues; ++i) {
      queues_.emplace_back(ram_, 256, true, rings.packed);
      if (!blk_->start_queue(i, queues_[i].queue.layout()).empty()) std::abort();
    }
    requests_.reserve(kDepth);
    for (unsigned i = 0; i < kDepth; ++i) {
      requests_.emplace_back(ram_, kBlock);
      segments_.push_back(requests_.back().segments(type_));
      queues_[i % rings.queues].free.push_back(i);
    }
  }
  ~Driver() {
    reactor_->run_until([this] { return blk_->in_flight() == 0; });
    reactor_->wait(blk_->reset());
    blk_.reset();
    (void)reactor_->wait(disk_.close());  // what it costs is measured, not whether a throw-away file is safe
  }
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  /// Adds what there is room for and shows it to the device in one go.
  void submit() {
    for (unsigned i = 0; i < queues_.size(); ++i) {
      auto& [queue, free, slot_of] = queues_[i];
      while (!free.empty()) {
        const unsigned slot = free.back();
        free.pop_back();
        requests_[slot].fill(type_, offsets_[next_++ % offsets_.size()] / 512);
        slot_of[*queue.add(segments_[slot])] = slot;
      }
      queue.want_interrupt();
      if (queue.publish()) blk_->notify(i);
    }
  }
  /// Waits until `least` are done, then takes all that are.
  unsigned reap(unsigned least) {
    reactor_->run_until([&] {
      unsigned waiting = 0;
      for (const Queue& each : queues_) waiting += each.queue.used_waiting();
      return waiting >= least;
    });
    unsigned reaped = 0;
    for (auto& [queue, free, slot_of] : queues_) {
      while (auto element = queue.take()) {
        const unsigned slot = slot_of[element->id];
        if (requests_[slot].status() != virtio::kBlkStatusOk) std::abort();
        free.push_back(slot);
        ++reaped;
      }
    }
    return reaped;
  }
  const TestTransport& transport() const { return transport_; }

 private:
  struct Queue {
    Queue(TestRam& ram, uint32_t size, bool event_idx, bool packed) : queue(ram, size, event_idx, packed) {}
    TestQueue queue;
    std::vector<unsigned> free;
    std::array<unsigned, 256> slot_of{};  // by what a used element names a request
  };

  std::unique_ptr<Reactor> reactor_;
  Disk disk_;
  uint32_t type_;
  std::vector<uint64_t> offsets_;
  TestRam ram_;
  std::vector<Queue> queues_;
  TestTransport transport_;
  std::unique_ptr<virtio::VirtioBlk> blk_;
  std::vector<TestRequest> requests_;
  std::vector<std::array<Segment, 3>> segments_;
  uint64_t next_ = 0;
};

std::shared_ptr<Node> file_node(Reactor& reactor, const char* path) {
  auto file = FileNode::open(reactor, {.path = path});
  if (!file) std::abort();
  return std::move(*RawNode::open(std::move(*file), {}));
}

/// `traced`: a trace is recorded, into the null device.
void over_null(benchmark::State& state, bool write, Rings rings, bool traced) {
  auto reactor = std::move(*Reactor::create());
  auto node = std::make_shared<NullNode>(*reactor, NullNode::Options{.read_zeroes = false});
  Driver driver(std::move(reactor), node, CacheMode::Writeback, write, rings);
  trace::Tracer tracer({});
  if (traced && !tracer.start("/dev/null")) std::abort();
  uint64_t batches = 0;
  for (auto _ : state) {
    driver.submit();
    driver.reap(kDepth);
    ++batches;
  }
  if (traced && !tracer.stop()) std::abort();
  state.SetItemsProcessed(static_cast<int64_t>(batches) * kDepth);
  state.counters["interrupts_per_batch"] =
      static_cast<double>(driver.transport().interrupts) / static_cast<double>(batches);
}

void over_file(benchmark::State& state, const char* path, bool write) {
  auto reactor = std::move(*Reactor::create());
  auto node = file_node(*reactor, path);
  Driver driver(std::move(reactor), node, CacheMode::Writeback, write);
  driver.submit();
  int64_t done = 0;
  for (auto _ : state) {
    for (unsigned group = 0; group < 1024;) {
      const unsigned reaped = driver.reap(1);
      driver.submit();
      group += reaped;
      done += reaped;
    }
  }
  state.SetItemsProcessed(done);
}

void bare(benchmark::State& state, const char* path, bool write, bool registered) {
  BareUring loop(path, kDepth, kBlock, write, registered);
  int64_t done = 0;
  for (auto _ : state) done += static_cast<int64_t>(loop.run(1024));
  state.SetItemsProcessed(done);
}

void register_for(const char* name, const char* path) {
  for (const bool write : {false, true}) {
    const std::string way = write ? "write" : "read";
    const std::string name_and_way = "/" + std::string(name) + "/" + way;
    const auto yardsticks = [&] {
      for (const bool registered : {false, true}) {
        benchmark::RegisterBenchmark(((registered ? "registered" : "bare") + name_and_way).c_str(),
                                     [=](benchmark::State& s) { bare(s, path, write, registered); });
      }
    };
    if (bare_first()) yardsticks();
    benchmark::RegisterBenchmark(("file" + name_and_way).c_str(),
                                 [=](benchmark::State& s) { over_file(s, path, write); });
    if (!bare_first()) yardsticks();
  }
}

}  // namespace
}  // namespace spindle::bench

int main(int argc, char** argv) {
  using namespace spindle::bench;
  for (const Rings rings : {Rings{1, false}, Rings{4, false}, Rings{1, true}, Rings{4, true}}) {
    for (const bool write : {false, true}) {
      const std::string name = std::string("null/") + (rings.packed ? "packed" : "split") + "/queues-" +
                               std::to_string(rings.queues) + (write ? "/write" : "/read");
      benchmark::RegisterBenchmark(name.c_str(),
                                   [=](benchmark::State& s) { over_null(s, write, rings, false); });
    }
  }
  for (const bool write : {false, true}) {
    benchmark::RegisterBenchmark(write ? "traced/write" : "traced/read",
                                 [=](benchmark::State& s) { over_null(s, write, Rings{}, true); });
  }
  if (const char* path = std::getenv("SPINDLE_BENCH_CACHED")) register_for("page-cache", path);
  if (const char* path = std::getenv("SPINDLE_BENCH_TMPFS")) register_for("tmpfs", path);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
