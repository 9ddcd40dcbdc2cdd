#include "formats/vdi/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "block/parse.h"
#include "formats/vdi/compact.h"

namespace spindle::vdi {
namespace {

// More than this, and more than the file has, is not copied to settle who owns what: a damaged map must not
// fill the host.
constexpr uint64_t kCopiesAnyway = 1 << 30;

struct Findings {
  std::vector<uint32_t> beyond;   // blocks whose entry names no place of the file
  std::vector<uint32_t> doubles;  // blocks whose place an earlier block has
  bool cut_block = false;         // the file ends within a place that is used
  bool low_count = false;
  bool too_many = false;  // a place, or the count, is above the number of blocks
  uint64_t leaked = 0;

  uint64_t corruptions() const { return beyond.size() + doubles.size() + cut_block + low_count + too_many; }
};

class Checker {
 public:
  Checker(Image& image, CheckReport& report) : image_(image), report_(report) {}

  Findings find() {
    Findings found;
    // Blocks by place: those that share one come together, in order.
    std::vector<std::pair<uint32_t, uint32_t>> users;
    for (uint32_t block = 0; block < image_.map.blocks(); ++block) {
      if (is_place(image_.map[block])) users.emplace_back(image_.map[block], block);
    }
    report_.allocated_clusters = users.size();
    std::ranges::sort(users);
    const uint64_t begun = image_.places_begun();
    uint64_t distinct = 0, end = 0;
    for (std::size_t i = 0; i < users.size(); ++i) {
      const auto [place, block] = users[i];
      if (place >= begun) {
        found.beyond.push_back(block);
        tell(fmt::format("block {} is said to be at place {}, which the file does not have", block, place));
        continue;
      }
      if (i != 0 && users[i - 1].first == place) {
        found.doubles.push_back(block);
        tell(fmt::format("block {} has the place {}, which block {} has too", block, place,
                         first_user_[place]));
        continue;
      }
      if (i + 1 < users.size() && users[i + 1].first == place) first_user_[place] = block;
      ++distinct;
      end = uint64_t{place} + 1;
    }
    found.cut_block = end > image_.header.places_in(image_.file().size());
    if (found.cut_block) tell(fmt::format("the file ends within the block at place {}", end - 1));
    found.low_count = image_.header.allocated < end;
    if (found.low_count) {
      tell(fmt::format("the allocated count is {}, but place {} is used: another program would overwrite it",
                       image_.header.allocated, end - 1));
    }
    const uint64_t most = std::max<uint64_t>(image_.header.allocated, end);
    found.too_many = most > image_.map.blocks();
    if (found.too_many) {
      tell(fmt::format(
          "places up to {} are used or counted, more than the {} blocks of the disk: other programs refuse "
          "such an image",
          most - 1, image_.map.blocks()));
    }
    // A count below the used places is mended by raising it to them, which leaks nothing.
    found.leaked = std::max({uint64_t{image_.header.allocated}, begun, end}) - distinct;
    if (found.leaked != 0) tell(fmt::format("{} places of the file are used by no block", found.leaked));
    report_.total_clusters = image_.map.blocks();
    report_.image_end_offset = image_.header.data_offset + end * image_.header.block_size;
    report_.fragmented_clusters = fragmented();
    end_ = end;
    return found;
  }

  /// Steps 1 and 2.
  Task<Result<>> settle(const Findings& found, Mutation mutation) {
    uint64_t place = std::max(end_, image_.places_begun());
    const uint64_t copies = found.doubles.size() * uint64_t{image_.header.block_size};
    if (copies > std::max(image_.file().size(), kCopiesAnyway)) {
      co_return std::unexpected(
          Error{.kind = ErrorKind::Corrupt,
                .operation = "repair",
                .node = image_.file().facts().name,
                .detail = fmt::format(
                    "{} blocks have places that others have too, and copies for them would take {}: most of "
                    "the map is lost; what can be read can be converted into a new image",
                    found.doubles.size(), format_size(copies))});
    }
    const uint64_t needed = place + found.doubles.size();
    if (needed >= kZero) {
      co_return std::unexpected(
          Error{.kind = ErrorKind::NoSpace,
                .operation = "repair",
                .node = image_.file().facts().name,
                .detail = "there is no place left to copy blocks to that are used twice"});
    }
    if (image_.header.allocated < needed && mutation != Mutation::SplitWithoutCount) {
      image_.header.allocated = static_cast<uint32_t>(needed);
      auto step = co_await image_.write_header();
      if (!step) co_return step;
    }
    auto step = co_await image_.make_places(found.doubles.empty() ? end_ : needed);
    if (!step) co_return step;
    for (const uint32_t block : found.doubles) {
      step = co_await image_.copy_place(image_.map[block], static_cast<uint32_t>(place));
      if (!step) co_return step;
      image_.map.set(block, static_cast<uint32_t>(place++));
    }
    for (const uint32_t block : found.beyond) image_.map.set(block, kFree);
    if (mutation != Mutation::MoveWithoutBarrier) step = co_await image_.barrier();
    if (step) step = co_await image_.write_entries();
    if (step) step = co_await image_.barrier();
    co_return step;
  }

  // In front of all else, and neighbours in one line: this is what somebody has to restore from elsewhere.
  void tell_dropped(const Findings& found) {
    auto blocks = found.beyond;
    std::ranges::sort(blocks);
    const uint64_t size = image_.header.block_size, disk = image_.header.disk_size;
    std::vector<std::string> lines;
    for (std::size_t i = 0; i < blocks.size();) {
      const uint64_t begin = blocks[i] * size;
      uint64_t end = begin;
      for (; i < blocks.size() && blocks[i] * size == end; ++i) end += size;
      if (begin >= disk) continue;
      if (lines.size() == CheckReport::kMaxMessages) {
        lines.push_back("and other ranges behind these");
        break;
      }
      lines.push_back(
          fmt::format("bytes {} to {} of the disk had no place in the file and read as zeroes now", begin,
                      std::min(end, disk) - 1));
    }
    report_.messages.insert(report_.messages.begin(), lines.begin(), lines.end());
  }

 private:
  void tell(std::string line) {
    auto& lines = report_.messages;
    if (lines.size() < CheckReport::kMaxMessages) {
      lines.push_back(std::move(line));
    } else {
      lines.resize(CheckReport::kMaxMessages);
      lines.push_back(fmt::format("and {} more", ++untold_));
    }
  }

  uint64_t fragmented() const {
    uint64_t count = 0;
    std::optional<uint32_t> expected;
    for (const uint32_t entry : image_.map.entries()) {
      if (!is_place(entry)) continue;
      if (expected && entry != *expected) ++count;
      expected = entry + 1;
    }
    return count;
  }

  Image& image_;
  CheckReport& report_;
  std::map<uint32_t, uint32_t> first_user_;
  uint64_t end_ = 0;
  uint64_t untold_ = 0;
};

}  // namespace

Task<Result<CheckReport>> check(Node& file, Repair repair, Mutation mutation) {
  auto image = co_await Image::load(file);
  if (!image) co_return std::unexpected(std::move(image.error()));
  CheckReport report;
  Checker checker(*image, report);
  const Findings found = checker.find();
  report.corruptions = found.corruptions();
  report.leaks = found.leaked;
  const bool settles = repair == Repair::All && report.corruptions != 0;
  const bool reclaims =
      repair != Repair::None && (report.corruptions == 0 || settles) && (found.leaked != 0 || settles);
  if (!settles && !reclaims) co_return report;
  if (file.facts().read_only) {
    co_return std::unexpected(Error::from_errno(EROFS, "repair", file.facts().name));
  }
  Result<> step;
  if (settles) {
    step = co_await checker.settle(found, mutation);
    if (!step) co_return std::unexpected(std::move(step.error()));
    checker.tell_dropped(found);
    report.corruptions_fixed = std::exchange(report.corruptions, 0);
  }
  step = co_await fill_holes(*image, report, mutation);
  if (!step) co_return std::unexpected(std::move(step.error()));
  report.leaks = 0;
  report.leaks_fixed = found.leaked;
  report.image_end_offset =
      image->header.data_offset + image->map.used().places.size() * uint64_t{image->header.block_size};
  co_return report;
}

}  // namespace spindle::vdi
