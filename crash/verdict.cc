#include "crash/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "crash/run.h"

namespace spindle::crash {
namespace {

constexpr std::array<std::string_view, kCorruptions> kNames = {
    "will-not-open", "check-error", "lost", "stale", "foreign", "torn", "read-error", "wrong-size"};
constexpr uint64_t kReadBytes = 1 << 20;

std::string in_words(const Origin& origin) {
  switch (origin.kind) {
    case Origin::Kind::Zero:
      return "zeroes";
    case Origin::Kind::Pattern:
      return fmt::format("what write {} put into sector {}", origin.write, origin.sector);
    case Origin::Kind::Torn:
      return fmt::format("a part of what write {} put into sector {}, and something else", origin.write,
                         origin.sector);
    case Origin::Kind::Unknown:
      break;
  }
  return "bytes that no write of the guest put anywhere";
}

}  // namespace

std::string_view to_string(Corruption kind) {
  return kNames[static_cast<std::size_t>(kind)];
}

std::optional<Corruption> corruption_of(std::string_view name) {
  const auto* const found = std::ranges::find(kNames, name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<Corruption>(found - kNames.begin());
}

Judge::Judge(Reactor& reactor, SectorImage& image, const Subject& subject, Depth depth)
    : reactor_(reactor),
      image_(image),
      subject_(subject),
      depth_(depth),
      file_(std::make_shared<ImageNode>(reactor, image)) {}

void Judge::note(Verdict& verdict, Corruption kind, uint64_t sector, std::string text) const {
  if (!verdict.has(kind) && describe_)
    verdict.findings.push_back({.kind = kind, .sector = sector, .text = std::move(text)});
  verdict.kinds |= 1u << static_cast<unsigned>(kind);
}

Verdict Judge::judge(const GuestModel* model, bool describe) {
  describe_ = describe;
  Verdict verdict;
  const auto mark = image_.mark();
  // What the check says before opening counts for nothing if opening mends it.
  Verdict before;
  const bool checks = static_cast<bool>(subject_.check);
  if (checks) check(before, before.leaks);
  auto opened = run_now(reactor_, subject_.open(file_));
  if (!opened) {
    note(verdict, Corruption::WillNotOpen, 0, opened.error()->message());
  } else {
    const bool changed_by_opening = image_.changed_since(mark);
    if (depth_ == Depth::Full) compare(verdict, **opened, model);
    if (auto closed = run_now(reactor_, (*opened)->close()); !closed)
      note(verdict, Corruption::WillNotOpen, 0, "close: " + closed.error()->message());
    opened->reset();
    if (checks && image_.changed_since(mark)) {
      Verdict after;
      check(after, after.leaks);
      verdict.recovered =
          changed_by_opening && (before.corrupt() || before.leaks > after.leaks) && !after.corrupt();
      if (!changed_by_opening && before.corrupt()) after.kinds |= before.kinds;
      before = std::move(after);
    }
  }
  verdict.leaks = before.leaks;
  verdict.kinds |= before.kinds;
  for (Finding& finding : before.findings) verdict.findings.push_back(std::move(finding));
  image_.undo(mark);
  return verdict;
}

bool Judge::check(Verdict& verdict, uint64_t& leaks) {
  auto report = run_now(reactor_, subject_.check(file_, Repair::None));
  if (!report) {
    note(verdict, Corruption::CheckError, 0, report.error()->message());
    return false;
  }
  leaks = report->leaks;
  if (report->corruptions != 0) {
    note(verdict, Corruption::CheckError, 0,
         describe_ && !report->messages.empty() ? report->messages.front()
                                                : fmt::format("{} errors", report->corruptions));
  }
  return true;
}

void Judge::compare_size(Verdict& verdict, uint64_t size, const GuestModel& model) {
  const auto sizes = model.legal_sizes();
  if (std::ranges::find(sizes, size) != sizes.end()) return;
  if (subject_.sized_by_file && !sizes.empty() && size > std::ranges::min(sizes) &&
      size < std::ranges::max(sizes))
    return;
  note(verdict, Corruption::WrongSize, 0, fmt::format("the disk has {} bytes", size));
}

void Judge::compare(Verdict& verdict, Node& node, const GuestModel* model) {
  const uint64_t size = node.size() / kSector * kSector;
  if (model) compare_size(verdict, node.size(), *model);
  std::size_t next_touched = 0;
  for (uint64_t at = 0; at < size;) {
    auto extent = run_now(reactor_, node.map(at, size - at));
    if (!extent || extent->length == 0 || extent->length > size - at) {
      note(verdict, Corruption::ReadError, at / kSector,
           extent ? "map answers with no such range" : extent.error()->message());
      return;
    }
    // Runs may end inside a sector; what is compared is whole ones.
    const uint64_t run_end = extent->zero
                                 ? (at + extent->length) / kSector * kSector
                                 : std::min(size, (at + extent->length + kSector - 1) / kSector * kSector);
    if (extent->zero && run_end > at) {
      if (model) compare_run(verdict, at / kSector, (run_end - at) / kSector, nullptr, *model, next_touched);
      at = run_end;
      continue;
    }
    const uint64_t end = std::max(run_end, at + kSector);
    while (at < end) {
      const uint64_t length = std::min(kReadBytes, end - at);
      if (buffer_.size() < length) buffer_.resize(length);
      const iovec part{buffer_.data(), length};
      auto result = run_now(reactor_, node.read(at, Buffers(std::span(&part, 1), length)));
      if (!result) {
        note(verdict, Corruption::ReadError, at / kSector, result.error()->message());
      } else if (model) {
        compare_run(verdict, at / kSector, length / kSector, buffer_.data(), *model, next_touched);
      }
      at += length;
    }
  }
}

// `bytes` null: all of the run reads as zeroes. Sectors that were never touched must be zero.
void Judge::compare_run(Verdict& verdict, uint64_t first, uint64_t count, const std::byte* bytes,
                        const GuestModel& model, std::size_t& next_touched) {
  const auto& touched = model.touched();
  while (next_touched < touched.size() && touched[next_touched] < first) ++next_touched;
  if (!bytes) {
    static const Sector kZeroes{};
    for (; next_touched < touched.size() && touched[next_touched] < first + count; ++next_touched) {
      compare_sector(verdict, touched[next_touched], kZeroes.data(), model);
    }
    return;
  }
  for (uint64_t sector = first; sector < first + count; ++sector, bytes += kSector) {
    if (next_touched < touched.size() && touched[next_touched] == sector) {
      ++next_touched;
      compare_sector(verdict, sector, bytes, model);
    } else if (!is_zero(bytes)) {
      compare_sector(verdict, sector, bytes, model);
    }
  }
}

void Judge::compare_sector(Verdict& verdict, uint64_t sector, const std::byte* bytes,
                           const GuestModel& model) {
  const auto legal = model.legal(sector);
  for (const ContentId id : legal) {
    if (std::memcmp(model.contents().bytes(id), bytes, kSector) == 0) return;
  }
  const Origin origin = origin_of(bytes);
  Corruption kind = Corruption::Foreign;
  if (origin.kind == Origin::Kind::Zero) kind = Corruption::Lost;
  if (origin.kind == Origin::Kind::Torn) kind = Corruption::Torn;
  if (origin.kind == Origin::Kind::Pattern && origin.sector == sector)
    kind = origin.write == 0 ? Corruption::Lost : Corruption::Stale;
  if (!describe_) return note(verdict, kind, sector, {});
  std::string may;
  for (const ContentId id : legal) {
    if (!may.empty()) may += ", or ";
    may += in_words(origin_of(model.contents().bytes(id)));
  }
  note(verdict, kind, sector,
       fmt::format("guest sector {} holds {}; it may hold {}", sector, in_words(origin), may));
}

}  // namespace spindle::crash
