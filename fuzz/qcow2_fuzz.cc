// qcow2 images that anybody may have made: a sound image with backing file, snapshot, bitmap, compressed and
// plain clusters, of which the input changes what it aims at (header fields, extensions, entries of each
// table), cuts or lengthens the file, and then looks at it, checks it and repairs it.
//
// Besides what the sanitizers find: what a check without repair sees stays as it is; a repair that says it
// left nothing leaves nothing for the next look; and a repaired image is described like any.
//
// The format of an input: pairs of a target and a value (see patch()), which the mutator keeps whole.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "block/big_endian.h"
#include "crash/image_node.h"
#include "crash/run.h"
#include "formats/qcow2/bitmap_directory.h"
#include "formats/qcow2/check.h"
#include "formats/qcow2/create.h"
#include "formats/qcow2/describe.h"
#include "formats/qcow2/register.h"
#include "formats/qcow2/snapshot_table.h"
#include "formats/qcow2/table_io.h"
#include "fuzz/machine.h"

namespace spindle {
namespace {

using namespace qcow2;
using crash::run_now;
using fuzz::stop;

constexpr std::size_t kRecord = 12;  // bytes: what (1), where (2), how (1), value (8)
constexpr uint64_t kLargest = 1 << 22;
constexpr uint64_t kDisk = 256 << 10;
constexpr uint64_t kCluster = 512;

Reactor& reactor() {
  static const std::unique_ptr<Reactor> made = std::move(*Reactor::create(8));
  return *made;
}

template <typename T>
T must(Result<T> result) {
  if (!result) stop("the image to begin with cannot be made");
  return std::move(*result);
}

// Where the parts of the image to begin with lie.
struct Parts {
  Header header;
  std::array<uint64_t, 8>
      tables{};  // refcount table, block, L1, L2, snapshot table, its L1, directory, table
};

// A version 3 image with full tables, on which snapshot and bitmap stand that share nothing with others.
Parts make(Node& file) {
  CreateOptions options{.size = kDisk};
  options.options.emplace("cluster_size", "512");
  options.options.emplace("preallocation", "metadata");
  if (!run_now(reactor(), create(file, std::move(options)))) stop("no image can be made");
  Parts parts{.header = must(run_now(reactor(), read_header(file)))};
  Header& header = parts.header;
  const uint64_t end = file.size();
  // Snapshot table, snapshot's L1, its L2, directory, bitmap's table, bitmap: a cluster each.
  const auto at = [end](unsigned part) { return end + part * kCluster; };
  Snapshot snapshot{.l1_offset = at(1), .l1_entries = 8, .id = "1", .name = "one"};
  snapshot.disk_size = kDisk;
  BitmapEntry bitmap{.table_offset = at(4), .table_entries = 1, .flags = kBitmapAuto, .name = "b"};
  const auto table = must(encode_snapshots(std::span(&snapshot, 1), kDisk, "image"));
  const auto directory = must(encode_bitmap_directory(std::span(&bitmap, 1), "image"));
  const uint64_t l2 = at(2) | kCopied, bits = at(5);
  const uint64_t packed = *header.layout.compressed_entry(at(6), 100);
  if (!run_now(reactor(), file.resize(at(7))) || !run_now(reactor(), write_bytes(file, at(0), table)) ||
      !run_now(reactor(), write_words(file, at(1), std::span(&l2, 1))) ||
      !run_now(reactor(), write_words(file, at(2), std::span(&packed, 1))) ||
      !run_now(reactor(), write_bytes(file, at(3), directory)) ||
      !run_now(reactor(), write_words(file, at(4), std::span(&bits, 1))))
    stop("the image to begin with cannot be written");
  header.snapshots = 1;
  header.snapshots_offset = at(0);
  set_bitmaps(header,
              BitmapsExtension{.bitmaps = 1, .directory_bytes = directory.size(), .directory_offset = at(3)});
  // The names of features leave no room in a cluster of 512 bytes.
  header.set(ExtensionType::FeatureNames, std::nullopt);
  if (!run_now(reactor(), write_header(file, header))) stop("no header can be written");
  const auto counted = run_now(reactor(), check(file, Repair::All));
  if (!counted || counted->corruptions != 0 || counted->leaks != 0) stop("what was made cannot be mended");
  header = must(run_now(reactor(), read_header(file)));
  const auto word = [&file](uint64_t offset) {
    return must(run_now(reactor(), read_words(file, offset, 1))).front() & kOffsetMask;
  };
  parts.tables = {header.refcount_table_offset,
                  word(header.refcount_table_offset),
                  header.l1_offset,
                  word(header.l1_offset),
                  at(0),
                  at(1),
                  at(3),
                  at(4)};
  return parts;
}

struct Start {
  crash::ContentStore contents;
  crash::SectorImage image{contents};
  std::shared_ptr<crash::ImageNode> file = std::make_shared<crash::ImageNode>(reactor(), image);
  Parts parts = make(*file);
};

void patch(Start& start, const uint8_t* record) {
  const auto* bytes = reinterpret_cast<const std::byte*>(record);
  const unsigned what = record[0] % 16, how = record[3];
  const uint64_t where = big_endian::get16(bytes + 1), value = big_endian::get64(bytes + 4);
  Node& file = *start.file;
  if (what == 15) {
    static_cast<void>(run_now(reactor(), file.resize(value % kLargest)));
    return;
  }
  uint64_t base = 0, span = 256;  // the header and its extensions
  if (what < 8) {
    base = start.parts.tables[what];
    span = kCluster;
  } else if (what == 14) {
    span = kLargest;
  }
  const unsigned width = 1u << how % 4;
  const uint64_t at = base + where * width % span;
  if (at + width > kLargest) return;
  // Small numbers, places in the image and their neighbours say more than random ones.
  uint64_t word = value;
  if ((how >> 2) % 4 == 1) word = value % 32;
  if ((how >> 2) % 4 == 2) word = value % (start.image.size() / kCluster + 2) * kCluster;
  if ((how >> 2) % 4 == 3) word = start.parts.tables[value % start.parts.tables.size()];
  if ((how & 0x40) != 0) word |= kCopied;
  if ((how & 0x80) != 0) word |= kCompressed;
  std::array<std::byte, 8> text;
  big_endian::put64(text.data(), width == 8 ? word : word << (64 - 8 * width));
  static_cast<void>(run_now(reactor(), write_bytes(file, at, std::span(text).first(width))));
}

void test_one(const uint8_t* data, std::size_t size) {
  static Start start;
  if (size == 0) return;
  const auto mark = start.image.mark();
  const uint8_t mode = data[0];
  for (std::size_t at = 1; at + kRecord <= size; at += kRecord) patch(start, data + at);
  const uint64_t before = start.image.hash();
  const auto description = run_now(reactor(), describe(*start.file));
  if (!description && description.error()->message().empty()) stop("a refusal without a word");
  const auto found = run_now(reactor(), check(*start.file, Repair::None));
  if (start.image.hash() != before) stop("looking at an image changed it");
  if (found && mode % 4 != 0) {
    const Repair repair = mode % 4 == 1 ? Repair::Leaks : Repair::All;
    const auto mended = run_now(reactor(), check(*start.file, repair));
    const auto again = run_now(reactor(), check(*start.file, Repair::None));
    if (mended && !again) stop("what was repaired cannot be checked");
    if (mended && (again->corruptions != mended->corruptions || again->leaks != mended->leaks))
      stop("a repair counts what it left otherwise than the next look");
    if (repair == Repair::Leaks && mended && again->corruptions > found->corruptions)
      stop("giving back leaks damaged something");
    if (repair == Repair::All && mended && mended->corruptions == 0) {
      if (again->leaks != 0) stop("a repair left leaks");
      if (description && !run_now(reactor(), describe(*start.file))) stop("a repair made it worse");
    }
  }
  start.image.undo(mark);
}

}  // namespace
}  // namespace spindle

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  spindle::test_one(data, size);
  return 0;
}

extern "C" std::size_t LLVMFuzzerMutate(uint8_t* data, std::size_t size, std::size_t most);

// Changes, adds or takes out whole records, so that the others keep their meaning.
extern "C" std::size_t LLVMFuzzerCustomMutator(uint8_t* data, std::size_t size, std::size_t most,
                                               unsigned seed) {
  constexpr std::size_t kRecord = spindle::kRecord;
  std::minstd_rand random(seed);
  if (most < 1 + kRecord) return LLVMFuzzerMutate(data, size, most);
  if (size == 0) data[0] = 2;
  std::size_t records = size < 1 ? 0 : (size - 1) / kRecord;
  const unsigned action = random() % 8;
  if (action == 0) {
    data[0] = static_cast<uint8_t>(random());
  } else if (records == 0 || (action < 3 && 1 + (records + 1) * kRecord <= most)) {
    uint8_t* record = data + 1 + records++ * kRecord;
    for (std::size_t i = 0; i < kRecord; ++i) record[i] = static_cast<uint8_t>(random() >> 4);
    if (random() % 2 == 0) record[1] = 0;  // the first entries are those in use
  } else if (action == 3 && records > 1) {
    uint8_t* record = data + 1 + random() % records * kRecord;
    std::memmove(record, record + kRecord,
                 static_cast<std::size_t>(data + 1 + records * kRecord - (record + kRecord)));
    --records;
  } else {
    uint8_t* record = data + 1 + random() % records * kRecord;
    LLVMFuzzerMutate(record, kRecord, kRecord);
  }
  return 1 + records * kRecord;
}
