#include "crash/command_judge.h"

#include <fmt/format.h>

#include <algorithm>

#include "crash/image_node.h"
#include "crash/other_reader.h"
#include "crash/program.h"
#include "crash/run.h"
#include "crash/sample.h"

namespace spindle::crash {
namespace {

constexpr uint64_t kPiece = 1 << 20;

// What the disk in `image` holds, into `guest`. The image is as before afterwards.
Result<> read_guest(Reactor& reactor, const Subject& subject, SectorImage& image, SectorImage& guest) {
  const auto mark = image.mark();
  auto node = run_now(reactor, subject.open(std::make_shared<ImageNode>(reactor, image)));
  if (!node) return std::unexpected(std::move(node.error()));
  guest.resize((*node)->size());
  std::vector<std::byte> bytes(kPiece);
  for (uint64_t at = 0; at < guest.size();) {
    const auto extent = run_now(reactor, (*node)->map(at, guest.size() - at));
    if (!extent) return std::unexpected(extent.error());
    const uint64_t end = at + extent->length;
    for (; !extent->zero && at < end; at += std::min(kPiece, end - at)) {
      const iovec part{bytes.data(), std::min(kPiece, end - at)};
      SPINDLE_TRY(run_now(reactor, (*node)->read(at, Buffers(std::span(&part, 1), part.iov_len))));
      guest.write(at, bytes.data(), part.iov_len);
    }
    at = end;
  }
  SPINDLE_TRY(run_now(reactor, (*node)->close()));
  node->reset();
  image.undo(mark);
  return {};
}

}  // namespace

Result<CommandCounts> ask_command(Reactor& reactor, const History& history, const Subject& subject,
                                  Tearing tearing, uint64_t seed, uint64_t states,
                                  const std::string& command) {
  auto directory = WorkDirectory::create();
  if (!directory) return std::unexpected(std::move(directory.error()));
  const std::string path = directory->file("disk");
  Laboratory laboratory(reactor, history, subject, tearing, Depth::Metadata);
  CommandCounts counts;
  auto told = for_sample(laboratory, seed, states, [&](Position point) -> Result<> {
    ContentStore contents;
    SectorImage guest(contents);
    SPINDLE_TRY(read_guest(reactor, subject, laboratory.image(), guest));
    SPINDLE_TRY(write_out(guest, path));
    auto run = run_program({"sh", "-c", command + " \"$0\"", path});
    if (!run) return std::unexpected(std::move(run.error()));
    ++counts.states;
    if (run->status != 0 && counts.failed++ == 0)
      counts.first =
          fmt::format("before event {}: exit status {}: {}", point, run->status, first_line(run->output));
    return {};
  });
  if (!told) return std::unexpected(std::move(told.error()));
  return counts;
}

}  // namespace spindle::crash
