#include "block/record/record_node.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <new>

#include "block/protocols/bounce_pool.h"

namespace spindle {
namespace {

using record::Entry;
using record::EntryType;
using record::Operation;

constexpr uint64_t kBasePiece = 1 << 20;
constexpr std::align_val_t kAlignment{4096};  // what O_DIRECT asks for at most

// A copy of what is to be written. No memory for it is an error of the request.
class Copy {
 public:
  explicit Copy(uint64_t bytes)
      : bytes_(bytes), memory_(static_cast<std::byte*>(operator new(bytes, kAlignment, std::nothrow))) {}
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;
  ~Copy() { operator delete(memory_, kAlignment); }

  bool failed() const { return memory_ == nullptr; }
  std::byte* data() const { return memory_; }
  std::span<std::byte> bytes() const { return {memory_, bytes_}; }
  iovec part() const { return {memory_, bytes_}; }

 private:
  uint64_t bytes_;
  std::byte* memory_;
};

}  // namespace

RecordNode::RecordNode(std::shared_ptr<Node> child, std::unique_ptr<record::LogWriter> log)
    : Node(child->reactor()), child_(std::move(child)), log_(std::move(log)) {}

Task<Result<std::shared_ptr<Node>>> RecordNode::open(std::shared_ptr<Node> child, std::string path) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const record::Header header{
      .size = child->size(),
      .realtime = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count())};
  auto log = co_await record::LogWriter::create(child->reactor(), std::move(path), header);
  if (!log) co_return std::unexpected(std::move(log.error()));
  std::shared_ptr<RecordNode> node(new RecordNode(std::move(child), std::move(*log)));
  auto base = co_await node->log_base();
  if (base) co_return node;
  static_cast<void>(co_await node->log_->close());  // the first error is the one to tell
  co_return std::unexpected(std::move(base.error()));
}

Task<Result<>> RecordNode::log_base() {
  const Copy piece(kBasePiece);
  if (piece.failed()) co_return std::unexpected(Error::from_errno(ENOMEM, "record", facts().name));
  const uint64_t size = child_->size();
  for (uint64_t at = 0; at < size;) {
    auto extent = co_await child_->map(at, size - at);
    if (!extent) co_return std::unexpected(std::move(extent.error()));
    const uint64_t end = at + extent->length;
    if (extent->zero || !extent->data) {
      at = end;
      continue;
    }
    while (at < end) {
      const uint64_t length = std::min(kBasePiece, end - at);
      const iovec part{piece.data(), length};
      auto read = co_await child_->read(at, Buffers(std::span(&part, 1), length));
      if (!read) co_return read;
      auto logged = co_await log_->append({.type = EntryType::Base, .offset = at, .length = length},
                                          piece.bytes().first(length));
      if (!logged) co_return logged;
      at += length;
    }
  }
  co_return Result<>{};
}

template <typename Start>
Task<Result<>> RecordNode::logged(Entry entry, std::span<const std::byte> content, Start start) {
  auto submitted = co_await log_->append(entry, content);
  if (!submitted) co_return submitted;
  auto result = co_await start();
  int number = 0;
  if (!result) number = result.error()->number != 0 ? result.error()->number : EIO;
  log_->note({.type = EntryType::Complete, .operation = entry.operation, .id = entry.id, .error = number});
  co_return result;
}

Task<Result<>> RecordNode::write(uint64_t offset, Buffers buffers, WriteFlags flags) {
  SPINDLE_CO_TRY(check_range("write", offset, buffers.size));
  const Copy copy(buffers.size);
  if (copy.failed()) co_return std::unexpected(Error::from_errno(ENOMEM, "write", facts().name, offset));
  copy_from(buffers, 0, copy.data(), buffers.size);
  const iovec part = copy.part();
  const Entry entry{.type = EntryType::Submit,
                    .operation = Operation::Write,
                    .fua = flags.fua,
                    .id = ++last_id_,
                    .offset = offset,
                    .length = buffers.size};
  co_return co_await logged(entry, copy.bytes(), [&] {
    return child_->write(offset, Buffers(std::span(&part, 1), buffers.size), flags);
  });
}

Task<Result<>> RecordNode::write_zeroes(uint64_t offset, uint64_t length, ZeroFlags flags) {
  SPINDLE_CO_TRY(check_range("write_zeroes", offset, length));
  const Entry entry{.type = EntryType::Submit,
                    .operation = Operation::WriteZeroes,
                    .fua = flags.fua,
                    .unmap = flags.unmap,
                    .id = ++last_id_,
                    .offset = offset,
                    .length = length};
  co_return co_await logged(entry, {}, [&] { return child_->write_zeroes(offset, length, flags); });
}

Task<Result<>> RecordNode::discard(uint64_t offset, uint64_t length) {
  SPINDLE_CO_TRY(check_range("discard", offset, length));
  const Entry entry{.type = EntryType::Submit,
                    .operation = Operation::Discard,
                    .id = ++last_id_,
                    .offset = offset,
                    .length = length};
  co_return co_await logged(entry, {}, [&] { return child_->discard(offset, length); });
}

Task<Result<>> RecordNode::flush() {
  const Entry entry{.type = EntryType::Submit, .operation = Operation::Flush, .id = ++last_id_};
  return logged(entry, {}, [this] { return child_->flush(); });
}

Task<Result<>> RecordNode::resize(uint64_t size) {
  const Entry entry{.type = EntryType::Submit,
                    .operation = Operation::Resize,
                    .id = ++last_id_,
                    .offset = child_->size(),
                    .length = size};
  return logged(entry, {}, [this, size] { return child_->resize(size); });
}

Task<Result<>> RecordNode::close() {
  auto result = co_await log_->close();
  auto closed = co_await child_->close();
  if (!closed) co_return closed;
  co_return result;
}

}  // namespace spindle
