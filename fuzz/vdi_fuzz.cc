// VDI images that anybody may have made: a sound image, of which the input changes header and map, cuts or
// lengthens the file, and then uses it as a guest and as tools do.
//
// Besides what the sanitizers find: what opens for writing gives back what was written and closes into an
// image that checks without corruptions; a repair that succeeds leaves none, and an image that opens; and
// nothing that is refused was touched.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "block/little_endian.h"
#include "crash/image_node.h"
#include "crash/run.h"
#include "formats/vdi/check.h"
#include "formats/vdi/create.h"
#include "formats/vdi/register.h"
#include "fuzz/machine.h"

namespace spindle {
namespace {

using crash::run_now;
using fuzz::stop;

constexpr uint64_t kDisk = 64 * 512;
constexpr uint64_t kPatched = 10'240;  // header, map, and some data behind them
constexpr uint64_t kLargest = 1 << 22;

class Input {
 public:
  Input(const uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  uint32_t number(std::size_t bytes) {
    uint32_t value = 0;
    for (; bytes != 0 && size_ != 0; --bytes, --size_) value = value << 8 | *data_++;
    return value;
  }

 private:
  const uint8_t* data_;
  std::size_t size_;
};

Reactor& reactor() {
  static const std::unique_ptr<Reactor> made = std::move(*Reactor::create(8));
  return *made;
}

Task<Result<>> write_text(Node& node, uint64_t offset, const std::string& text) {
  const iovec part{const_cast<char*>(text.data()), text.size()};
  co_return co_await node.write(offset, Buffers(std::span(&part, 1)), {});
}

std::string read_text(Node& node, uint64_t offset, std::size_t length) {
  std::string text(length, '?');
  const iovec part{text.data(), text.size()};
  if (!run_now(reactor(), node.read(offset, Buffers(std::span(&part, 1)))))
    stop("what was opened cannot be read");
  return text;
}

void make(const std::shared_ptr<crash::ImageNode>& file) {
  CreateOptions options{.size = kDisk};
  options.options.emplace("block_size", "512");
  if (!run_now(reactor(), vdi::create(*file, std::move(options)))) stop("no image can be made");
  auto node = run_now(reactor(), vdi::format().open(file, {}));
  if (!node) stop("a new image does not open");
  for (uint64_t block = 0; block < 64; block += 3)
    static_cast<void>(run_now(reactor(), write_text(**node, block * 512, std::string(512, 'a'))));
  static_cast<void>(run_now(reactor(), (*node)->close()));
}

// A handful of operations; false once the disk said no, as it may.
void use(Node& node, Input& input) {
  for (int i = 0; i < 12 && !input.empty(); ++i) {
    const uint32_t what = input.number(1);
    const uint64_t sectors = node.size() / 512;
    if (sectors == 0) return;
    const uint64_t offset = input.number(2) % sectors * 512;
    const uint64_t length = std::min<uint64_t>((1 + input.number(1) % 16) * 512, node.size() - offset);
    switch (what % 6) {
      case 0:
      case 1: {
        const std::string text(length, static_cast<char>(what));
        if (run_now(reactor(), write_text(node, offset, text)) && read_text(node, offset, length) != text)
          stop("what was written does not come back");
        break;
      }
      case 2:
        if (run_now(reactor(), node.write_zeroes(offset, length, {.unmap = (what & 8) != 0})) &&
            read_text(node, offset, length) != std::string(length, '\0'))
          stop("what was zeroed is not zero");
        break;
      case 3:
        static_cast<void>(run_now(reactor(), node.discard(offset, length)));
        break;
      case 4:
        static_cast<void>(run_now(reactor(), node.flush()));
        break;
      default:
        static_cast<void>(run_now(reactor(), node.resize(input.number(2) % 2048 * 512)));
    }
  }
  for (uint64_t at = 0; at < std::min<uint64_t>(node.size(), kLargest);) {
    const auto extent = run_now(reactor(), node.map(at, node.size() - at));
    if (!extent || extent->length == 0 || extent->length > node.size() - at) stop("map goes nowhere");
    at += extent->length;
  }
}

void test_one(Input input) {
  crash::ContentStore contents;
  crash::SectorImage image(contents);
  auto file = std::make_shared<crash::ImageNode>(reactor(), image);
  make(file);
  for (uint32_t patches = input.number(1) % 24; patches != 0 && !input.empty(); --patches) {
    const uint32_t where = input.number(2);
    // Entries and header fields are where it matters, so half the patches are aligned to them.
    const uint64_t at = where & 1 ? where % kPatched : where % kPatched / 4 * 4;
    std::string bytes(4, '\0');
    put32(reinterpret_cast<std::byte*>(bytes.data()),
          input.number(1) & 1 ? input.number(4) : input.number(1));
    static_cast<void>(run_now(reactor(), write_text(*file, at, bytes)));
  }
  if (input.number(1) % 4 == 0)
    static_cast<void>(run_now(reactor(), file->resize(input.number(3) % kLargest)));
  const uint32_t what = input.number(1);
  const uint64_t before = image.hash();
  if (what % 4 == 0) {
    const auto repaired = run_now(reactor(), vdi::check(*file, what & 16 ? Repair::Leaks : Repair::All, {}));
    if (repaired && !(what & 16)) {
      if (repaired->corruptions != 0) stop("a repair that says it mended all did not");
      const auto again = run_now(reactor(), vdi::check(*file, Repair::None, {}));
      if (!again || again->corruptions != 0 || again->leaks != 0) stop("something is wrong after a repair");
    }
  }
  auto node = run_now(reactor(), vdi::format().open(file, {}));
  if (!node) {
    if (node.error()->message().empty()) stop("a refusal without a word");
    if (what % 4 != 0 && image.hash() != before) stop("an image that is refused was changed");
    return;
  }
  use(**node, input);
  if (!run_now(reactor(), (*node)->close())) return;
  node->reset();
  const auto after = run_now(reactor(), vdi::check(*file, Repair::None, {}));
  if (!after) stop("what was closed cannot be checked");
}

}  // namespace
}  // namespace spindle

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  spindle::test_one({data, size});
  return 0;
}
