#include "crash/log_history.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "block/record/log_reader.h"

namespace spindle::crash {
namespace {

using record::Entry;
using record::EntryType;

constexpr uint64_t kPiece = 1 << 20;
static_assert(kPiece % kSector == 0);

class Loader {
 public:
  explicit Loader(record::LogReader& log) : log_(log) {}

  Result<History> load() {
    if (log_.header().size > kLargestImage) return wrong("the image's file is too large to be explored");
    history_.base.resize(log_.header().size);
    Entry entry;
    for (;;) {
      auto more = log_.next(entry);
      if (!more) return std::unexpected(std::move(more.error()));
      if (!*more) break;
      SPINDLE_TRY(take(entry));
    }
    history_.base.forget_past();
    history_.finish();
    return std::move(history_);
  }

 private:
  std::unexpected<BoxedError> wrong(std::string detail) const {
    return std::unexpected(BoxedError(Error::invalid("crash", log_.path(), std::move(detail))));
  }

  Result<> take(const Entry& entry) {
    if (entry.type == EntryType::Complete) return complete(entry);
    const bool ranges = entry.type == EntryType::Base || entry.type == EntryType::Submit;
    if (ranges && (entry.offset > kLargestImage || entry.length > kLargestImage - entry.offset))
      return wrong(fmt::format("an operation at {} is beyond what can be explored", entry.offset));
    if (entry.type == EntryType::Base) {
      std::vector<std::byte> bytes(std::min(kPiece, entry.length));
      for (uint64_t done = 0; done < entry.length;) {
        const std::span part = std::span(bytes).first(std::min(kPiece, entry.length - done));
        SPINDLE_TRY(log_.read(log_.content_at() + done, part));
        history_.base.write(entry.offset + done, part.data(), part.size());
        done += part.size();
      }
      return {};
    }
    if (entry.type == EntryType::Submit) return submit(entry);
    return {};
  }

  Result<> submit(const Entry& entry) {
    static constexpr Operation::Kind kKinds[] = {Operation::Kind::Flush, Operation::Kind::Write,
                                                 Operation::Kind::Zero,  Operation::Kind::Discard,
                                                 Operation::Kind::Flush, Operation::Kind::Resize};
    Operation operation{.kind = kKinds[static_cast<std::size_t>(entry.operation)],
                        .fua = entry.fua,
                        .unmap = entry.unmap,
                        .offset = entry.offset,
                        .length = entry.length,
                        .submitted = history_.end++,
                        .pieces = {}};
    if (operation.kind == Operation::Kind::Flush) operation.offset = operation.length = 0;
    if (operation.kind == Operation::Kind::Write) SPINDLE_TRY(take_data(entry, operation));
    if (!in_flight_.try_emplace(entry.id, history_.operations.size()).second)
      return wrong(fmt::format("operation {} is submitted while it is in flight", entry.id));
    history_.operations.push_back(std::move(operation));
    return {};
  }

  Result<> take_data(const Entry& entry, Operation& operation) {
    std::vector<std::byte> bytes(entry.length);
    SPINDLE_TRY(log_.read(log_.content_at(), bytes));
    for (uint64_t done = 0; done < entry.length;) {
      const uint64_t at = entry.offset + done;
      const uint64_t from = at % kSector;
      const uint64_t part = std::min(entry.length - done, kSector - from);
      Sector sector{};
      std::copy_n(bytes.data() + done, part, sector.data() + from);
      operation.pieces.push_back({at / kSector, history_.contents->intern(sector.data()),
                                  static_cast<uint16_t>(from), static_cast<uint16_t>(from + part)});
      done += part;
    }
    return {};
  }

  Result<> complete(const Entry& entry) {
    const auto found = in_flight_.find(entry.id);
    if (found == in_flight_.end())
      return wrong(fmt::format("operation {} completes without having been submitted", entry.id));
    Operation& operation = history_.operations[found->second];
    operation.completed = history_.end++;
    operation.failed = entry.error != 0;
    in_flight_.erase(found);
    return {};
  }

  record::LogReader& log_;
  History history_;
  std::unordered_map<uint64_t, std::size_t> in_flight_;
};

}  // namespace

Result<History> history_of_log(const std::string& path) {
  auto log = record::LogReader::open(path);
  if (!log) return std::unexpected(std::move(log.error()));
  return Loader(**log).load();
}

}  // namespace spindle::crash
