#include "image/convert_copy.h"

#include <fcntl.h>

#include <algorithm>
#include <coroutine>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "image/aligned_buffer.h"
#include "image/zero_scan.h"

namespace spindle::image {
namespace {

constexpr uint64_t kPiece = 2 << 20;      // bytes of data read at once
constexpr uint64_t kWriteOut = 16 << 20;  // bytes written between two hints to the kernel
constexpr uint64_t kZeroPiece = 1 << 30;  // bytes of zeroes written at once
constexpr uint64_t kSector = 512;         // what is lost together if it cannot be read

struct Piece {
  uint64_t offset = 0;
  uint64_t length = 0;
  bool zero = false;
  uint64_t number = 0;  // in the order of the image
};

class Copier {
 public:
  Copier(Disk& source, Disk& target, CopyOptions options, JobProgress& job)
      : source_(source),
        target_(target),
        options_(std::move(options)),
        job_(job),
        size_(std::min(options_.end.value_or(source.size()), source.size())),
        position_(std::min(options_.begin, size_)),
        extent_end_(position_) {}

  Task<Result<>> run() {
    for (unsigned i = 0; i < options_.coroutines; ++i) {
      ++working_;
      spawn(work(), [this] {
        if (--working_ == 0 && ended_) ended_.resume();
      });
    }
    struct AllEnded {
      Copier& copier;
      bool await_ready() const noexcept { return copier.working_ == 0; }
      void await_suspend(std::coroutine_handle<> handle) { copier.ended_ = handle; }
      void await_resume() noexcept {}
    };
    AllEnded all_ended{*this};
    co_await all_ended;
    if (failure_) co_return std::unexpected(std::move(*failure_));
    co_return Result<>{};
  }

 private:
  // Whoever asks for the next piece: one after the other, since to find it may take time.
  struct Turn {
    Copier& copier;
    bool await_ready() const noexcept { return !copier.finding_; }
    void await_suspend(std::coroutine_handle<> handle) { copier.askers_.push_back(handle); }
    void await_resume() noexcept { copier.finding_ = true; }
  };
  void end_turn() {
    finding_ = false;
    if (askers_.empty()) return;
    finding_ = true;  // it passes to the next without becoming free between
    target_.reactor().schedule(askers_.front());
    askers_.pop_front();
  }

  Task<void> work() {
    auto buffer = AlignedBuffer::allocate(kPiece);
    if (!buffer) {
      fail(std::move(buffer.error()));
      co_return;
    }
    std::vector<Run> runs;
    while (true) {
      auto piece = co_await next_piece();
      if (!piece) co_return;
      auto done = co_await copy(*piece, *buffer, runs);
      if (!done) fail(std::move(done.error()));
      pass_on(piece->number);
      if (failure_) co_return;
      job_.add(piece->length);
      if (!piece->zero) co_await write_out(piece->length);
    }
  }

  // Nothing if all have been handed out, or something failed.
  Task<std::optional<Piece>> next_piece() {
    Turn turn{*this};
    co_await turn;
    std::optional<Piece> piece;
    if (!failure_ && position_ < size_) {
      auto found = co_await find_piece();
      if (found) {
        piece = *found;
        piece->number = handed_out_++;
        position_ += piece->length;
      } else {
        fail(std::move(found.error()));
      }
    }
    end_turn();
    co_return piece;
  }

  Task<Result<Piece>> find_piece() {
    Piece piece{.offset = position_, .length = std::min(kPiece - position_ % kPiece, size_ - position_)};
    if (options_.sparse == 0) co_return piece;
    if (position_ >= extent_end_) {
      auto extent = co_await source_.node().map(position_, size_ - position_);
      if (!extent) co_return std::unexpected(std::move(extent.error()));
      if (extent->length == 0 || extent->length > size_ - position_) {
        co_return std::unexpected(Error{.operation = "map",
                                        .node = source_.id(),
                                        .offset = position_,
                                        .detail = "the answer makes no sense"});
      }
      extent_end_ = position_ + extent->length;
      extent_zero_ = extent->zero;
    }
    piece.zero = extent_zero_;
    const uint64_t left = extent_end_ - position_;
    piece.length = piece.zero ? std::min(left, kZeroPiece) : std::min(left, piece.length);
    co_return piece;
  }

  Task<Result<>> copy(Piece piece, const AlignedBuffer& buffer, std::vector<Run>& runs) {
    if (piece.zero) {
      co_await write_turn(piece.number);
      if (failure_) co_return Result<>{};
      pass_on(piece.number);
      co_return co_await write_zeroes(piece.offset, piece.length);
    }
    const iovec memory = buffer.part(0, piece.length);
    const Buffers whole(std::span(&memory, 1), piece.length);
    auto read = co_await source_.read(piece.offset, whole);
    if (!read && options_.salvage) read = co_await read_sectors(piece, buffer);
    if (!read) co_return read;
    if (options_.sparse == 0) {
      runs.assign(1, {.offset = 0, .length = piece.length, .zero = false});
    } else {
      scan_zeroes(buffer.bytes().first(piece.length), piece.offset, options_.sparse, runs);
    }
    co_await write_turn(piece.number);
    for (std::size_t i = 0; i < runs.size(); ++i) {
      if (failure_) co_return Result<>{};
      if (i + 1 == runs.size()) pass_on(piece.number);
      const Run& run = runs[i];
      if (run.zero) {
        SPINDLE_CO_TRY(co_await write_zeroes(piece.offset + run.offset, run.length));
        continue;
      }
      const iovec part = buffer.part(run.offset, run.length);
      const Buffers data(std::span(&part, 1), run.length);
      SPINDLE_CO_TRY(co_await target_.write(in_target(piece.offset + run.offset), data));
    }
    co_return Result<>{};
  }

  // What of a piece can be read; the rest is zeroes.
  Task<Result<>> read_sectors(Piece piece, const AlignedBuffer& buffer) {
    for (uint64_t done = 0; done < piece.length && !failure_;) {
      const uint64_t length = std::min(kSector, piece.length - done);
      const iovec part = buffer.part(done, length);
      const Buffers sector(std::span(&part, 1), length);
      const auto read = co_await source_.read(piece.offset + done, sector);
      if (!read) {
        std::memset(part.iov_base, 0, length);
        Error lost = *read.error();
        lost.offset = piece.offset + done;
        options_.salvage(lost);
      }
      done += length;
    }
    co_return Result<>{};
  }

  Task<void> write_out(uint64_t length) {
    to_write_out_ += length;
    if (options_.write_out < 0 || to_write_out_ < kWriteOut) co_return;
    to_write_out_ = 0;
    static_cast<void>(co_await target_.reactor().submit([fd = options_.write_out](io_uring_sqe* sqe) {
      io_uring_prep_sync_file_range(sqe, fd, 0, 0, SYNC_FILE_RANGE_WRITE);  // length 0: all
    }));
  }

  Task<Result<>> write_zeroes(uint64_t offset, uint64_t length) {
    if (options_.target_is_zero) return finished(Result<>{});
    return target_.write_zeroes(in_target(offset), length, {.unmap = true});
  }

  uint64_t in_target(uint64_t offset) const { return offset - options_.begin + options_.target_offset; }

  // Waits until the writes of all pieces before this one have begun.
  struct WriteTurn {
    Copier& copier;
    uint64_t number;
    bool await_ready() const noexcept {
      return copier.options_.out_of_order || copier.begun_ == number || copier.failure_.has_value();
    }
    void await_suspend(std::coroutine_handle<> handle) { copier.writers_.push_back({number, handle}); }
    void await_resume() noexcept {}
  };
  WriteTurn write_turn(uint64_t number) { return {*this, number}; }

  // The last write of piece `number` is about to begin, or will not: the next piece may go. It is resumed in
  // a later turn of the loop, when that write has begun. Called again for the same piece it does nothing.
  void pass_on(uint64_t number) {
    if (begun_ != number) return;
    ++begun_;
    wake(begun_);
  }

  void wake(uint64_t number) {
    const auto waiting =
        std::ranges::find(writers_, number, [](const Waiting& waiter) { return waiter.number; });
    if (waiting == writers_.end()) return;
    target_.reactor().schedule(waiting->handle);
    writers_.erase(waiting);
  }

  void fail(BoxedError error) {
    if (failure_) return;
    failure_ = std::move(error);
    for (const Waiting& waiter : writers_) target_.reactor().schedule(waiter.handle);
    writers_.clear();
  }

  struct Waiting {
    uint64_t number;
    std::coroutine_handle<> handle;
  };

  Disk& source_;
  Disk& target_;
  CopyOptions options_;
  JobProgress& job_;
  uint64_t size_;      // the end of what is copied
  uint64_t position_;  // of the next piece
  uint64_t extent_end_;
  bool extent_zero_ = false;
  bool finding_ = false;
  std::deque<std::coroutine_handle<>> askers_;
  uint64_t handed_out_ = 0;
  uint64_t begun_ = 0;  // pieces whose writes have begun
  std::vector<Waiting> writers_;
  uint64_t to_write_out_ = 0;  // since the last hint
  unsigned working_ = 0;
  std::coroutine_handle<> ended_ = nullptr;
  std::optional<BoxedError> failure_;
};

}  // namespace

Task<Result<>> copy_disk(Disk& source, Disk& target, CopyOptions options, JobProgress& job) {
  Copier copier(source, target, std::move(options), job);
  auto running = copier.run();
  co_return co_await running;
}

Task<Result<bool>> reads_as_zeroes(Disk& disk) {
  for (uint64_t position = 0; position < disk.size();) {
    auto extent = co_await disk.node().map(position, disk.size() - position);
    if (!extent) co_return std::unexpected(std::move(extent.error()));
    if (!extent->zero || extent->length == 0) co_return false;
    position += extent->length;
  }
  co_return true;
}

}  // namespace spindle::image
