#include "block/record/record_node.h"

#include <algorithm>
#include <cerrno>
#include <chrono>

namespace spindle {
namespace {

using record::Entry;
using record::EntryType;
using record::Operation;

Error no_memory(const char* operation, const Node& child, uint64_t offset) {
  return Error::from_errno(ENOMEM, operation, child.facts().name, offset);
}

}  // namespace

RecordNode::RecordNode(std::shared_ptr<Node> child, std::unique_ptr<record::LogWriter> log)
    : Node(child->reactor()), child_(std::move(child)), log_(std::move(log)), copies_(reactor()) {}

record::Header RecordNode::header_of(const Node& child) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return {
      .size = child.size(),
      .realtime = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count())};
}

Task<Result<std::shared_ptr<Node>>> RecordNode::open(std::shared_ptr<Node> child, std::string path) {
  auto log = co_await record::LogWriter::create(child->reactor(), std::move(path), header_of(*child));
  if (!log) co_return std::unexpected(std::move(log.error()));
  auto opening = open(std::move(child), std::move(*log));
  co_return co_await opening;
}

Task<Result<std::shared_ptr<Node>>> RecordNode::open(std::shared_ptr<Node> child,
                                                     std::unique_ptr<record::LogWriter> log) {
  std::shared_ptr<RecordNode> node(new RecordNode(std::move(child), std::move(log)));
  auto base = co_await node->log_base();
  if (base) co_return node;
  static_cast<void>(co_await node->log_->close(false));  // the first error is the one to tell
  co_return std::unexpected(std::move(base.error()));
}

Task<Result<>> RecordNode::log_base() {
  BouncePool::Buffer piece(copies_);
  co_await piece;
  if (!piece.data()) co_return std::unexpected(no_memory("record", *child_, 0));
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
      const std::size_t length = std::min<uint64_t>(BouncePool::kBufferBytes, end - at);
      const iovec part{piece.data(), length};
      auto read = co_await child_->read(at, Buffers(std::span(&part, 1), length));
      if (!read) co_return read;
      auto logged = co_await log_->append({.type = EntryType::Base, .offset = at, .length = length},
                                          {piece.data(), length});
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
  auto ended = co_await log_->append(
      {.type = EntryType::Complete, .operation = entry.operation, .id = entry.id, .error = number});
  if (result && !ended) co_return ended;
  co_return result;
}

Task<Result<>> RecordNode::write(uint64_t offset, Buffers buffers, WriteFlags flags) {
  SPINDLE_CO_TRY(check_range("write", offset, buffers.size));
  for (uint64_t done = 0; done < buffers.size;) {
    BouncePool::Buffer copy(copies_);
    co_await copy;
    if (!copy.data()) co_return std::unexpected(no_memory("write", *child_, offset + done));
    const std::size_t length = std::min<uint64_t>(BouncePool::kBufferBytes, buffers.size - done);
    copy_from(buffers, done, copy.data(), length);
    const iovec part{copy.data(), length};
    const Entry entry{.type = EntryType::Submit,
                      .operation = Operation::Write,
                      .fua = flags.fua,
                      .id = ++last_id_,
                      .offset = offset + done,
                      .length = length};
    auto written = co_await logged(entry, {copy.data(), length}, [&] {
      return child_->write(entry.offset, Buffers(std::span(&part, 1), length), flags);
    });
    if (!written) co_return written;
    done += length;
  }
  co_return Result<>{};
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
