#include "formats/vdi/vdi_node.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "block/protocols/bounce_pool.h"
#include "formats/vdi/resize.h"

namespace spindle {

using vdi::Mutation;

namespace {

constexpr uint64_t kMappedBlocks = 64;

}  // namespace

VdiNode::VdiNode(std::shared_ptr<Node> child, Options options)
    : Node(child->reactor()), child_(std::move(child)), options_(options), facts_(child_->facts()) {
  Commit::Owner& owner = *this;
  commit_ = std::make_unique<Commit>(*child_, owner, options_.commit);
}

Task<Result<std::shared_ptr<VdiNode>>> VdiNode::open(std::shared_ptr<Node> child, Options options) {
  std::shared_ptr<VdiNode> node(new VdiNode(std::move(child), options));
  auto loaded = co_await node->load();
  if (!loaded) co_return std::unexpected(std::move(loaded.error()));
  co_return node;
}

Task<Result<>> VdiNode::load() {
  auto header = co_await vdi::read_header(*child_);
  if (!header) co_return std::unexpected(std::move(header.error()));
  header_ = *header;
  shift_ = static_cast<unsigned>(std::countr_zero(header_.block_size));
  auto map = co_await vdi::BlockMap::read(*child_, header_);
  if (!map) co_return std::unexpected(std::move(map.error()));
  map_.emplace(std::move(*map));

  facts_ = child_->facts();
  facts_.cluster_size = header_.block_size;
  facts_.supports_fua = false;
  if (header_.data_offset % facts_.request_alignment != 0) facts_.request_alignment = 1;
  if (facts_.discard_granularity != 0 && header_.data_offset % facts_.discard_granularity != 0)
    facts_.discard_granularity = static_cast<uint32_t>(vdi::kSector);
  const auto used = map_->used();
  if (facts_.read_only) {
    cut_ = !used.places.empty() &&
           header_.place_offset(used.places.back()) + header_.block_size > child_->size();
    co_return Result<>{};
  }
  const uint64_t most = header_.places_begun_in(child_->size());
  std::string wrong;
  if (used.twice) wrong = fmt::format("two blocks have the place {}", *used.twice);
  if (!used.places.empty() && used.places.back() >= most) {
    wrong = fmt::format("a block has the place {}, and the file has only {}", used.places.back(), most);
  }
  if (!wrong.empty()) {
    co_return std::unexpected(
        Error{.kind = ErrorKind::Corrupt,
              .operation = "open",
              .node = facts_.name,
              .detail = wrong + "; `spindle img check -r all` mends this, readonly=on opens it as it is"});
  }
  space_.emplace(*child_, header_, used.places,
                 vdi::Space::Options{.step = options_.prealloc_ahead,
                                     .ahead = commit_->policy() == CommitPolicy::Ordered,
                                     .mutation = options_.mutation},
                 [this] { return commit_->flush(); });
  // A file that ends within its last block: the rest of that reads as zeroes.
  const uint64_t end = header_.place_offset(static_cast<uint32_t>(space_->next()));
  if (space_->next() != 0 && child_->size() < end) co_return co_await child_->resize(end);
  co_return Result<>{};
}

Result<> VdiNode::check_modification(const char* operation, uint64_t offset, uint64_t length) const {
  SPINDLE_TRY(check_range(operation, offset, length));
  if (facts_.read_only) return std::unexpected(Error::from_errno(EROFS, operation, facts_.name, offset));
  if (!commit_->abandoned() && !broken_) [[likely]]
    return {};
  Error error = Error::from_errno(EIO, operation, facts_.name, offset);
  error.kind = ErrorKind::FlushFailed;
  error.detail = broken_ ? "a change of its size failed half way; open the image again"
                         : "an earlier flush failed; open the image again";
  return std::unexpected(std::move(error));
}

VdiNode::Run VdiNode::run_at(uint64_t offset, uint64_t length) const {
  const uint64_t block_size = header_.block_size;
  uint32_t block = block_of(offset);
  const uint32_t entry = (*map_)[block];
  Run run{.length = std::min(length, block_size - (offset & (block_size - 1))), .file_offset = std::nullopt};
  if (vdi::is_place(entry)) run.file_offset = offset_in_file(offset);
  for (uint64_t next = uint64_t{entry} + 1; run.length < length; ++next) {
    const uint32_t other = (*map_)[++block];
    if (run.file_offset ? other != next || !vdi::is_place(other) : vdi::is_place(other)) break;
    run.length = std::min(length, run.length + block_size);
  }
  if (cut_ && run.file_offset) [[unlikely]] {
    const uint64_t end = child_->size();
    if (*run.file_offset >= end) {
      run = {.length = std::min(length, block_size - (offset & (block_size - 1))),
             .file_offset = std::nullopt};
    } else {
      run.length = std::min(run.length, end - *run.file_offset);
    }
  }
  return run;
}

Task<Result<>> VdiNode::read(uint64_t offset, Buffers buffers) {
  if (auto inside = check_range("read", offset, buffers.size); !inside) return finished(std::move(inside));
  if (!one_block(offset, buffers.size) || cut_) return read_runs(offset, buffers);
  if (vdi::is_place((*map_)[block_of(offset)])) return child_->read(offset_in_file(offset), buffers);
  zero_in(buffers, 0, buffers.size);
  return finished(Result<>{});
}

Task<Result<>> VdiNode::read_runs(uint64_t offset, Buffers buffers) {
  std::vector<iovec> parts;
  for (uint64_t done = 0; done < buffers.size;) {
    const Run run = run_at(offset + done, buffers.size - done);
    if (!run.file_offset) {
      zero_in(buffers, done, run.length);
    } else if (run.length == buffers.size) {
      co_return co_await child_->read(*run.file_offset, buffers);
    } else {
      const uint64_t length = slice(buffers, done, run.length, buffers.parts.size(), parts);
      auto result = co_await child_->read(*run.file_offset, Buffers(parts, length));
      if (!result) co_return result;
    }
    done += run.length;
  }
  co_return Result<>{};
}

Task<Result<>> VdiNode::write(uint64_t offset, Buffers buffers, WriteFlags flags) {
  auto allowed = check_modification("write", offset, buffers.size);
  if (allowed && flags.fua)
    allowed = std::unexpected(Error::from_errno(EOPNOTSUPP, "write", facts_.name, offset));
  if (!allowed || buffers.size == 0) return finished(std::move(allowed));
  const uint32_t block = block_of(offset);
  if (one_block(offset, buffers.size) && vdi::is_place((*map_)[block]) && !map_->assigned(block))
    return child_->write(offset_in_file(offset), buffers, {});
  return write_blocks(offset, buffers);
}

Task<Result<>> VdiNode::place_blocks(uint32_t first, uint32_t last) {
  for (uint32_t block = first; block <= last; ++block) {
    while (!vdi::is_place((*map_)[block])) {
      if (const auto place = space_->take()) {
        map_->assign(block, *place);
        break;
      }
      auto room = co_await space_->make_room();
      if (!room) co_return room;
    }
  }
  // Early, while there is some left. Whether that works is known when it is needed.
  if (space_->low()) static_cast<void>(co_await space_->make_room());
  co_return Result<>{};
}

Task<Result<>> VdiNode::write_blocks(uint64_t offset, Buffers buffers) {
  const uint32_t first = block_of(offset), last = block_of(offset + buffers.size - 1);
  auto placed = co_await place_blocks(first, last);
  if (!placed) co_return placed;
  std::vector<iovec> parts;
  for (uint64_t done = 0; done < buffers.size;) {
    const Run run = run_at(offset + done, buffers.size - done);
    Buffers piece = buffers;
    if (run.length != buffers.size) {
      slice(buffers, done, run.length, buffers.parts.size(), parts);
      piece = Buffers(parts, run.length);
    }
    auto result = co_await child_->write(*run.file_offset, piece, {});
    if (!result) co_return result;
    done += run.length;
  }
  bool changed = false;
  for (uint32_t block = first; block <= last; ++block) changed |= map_->assigned(block) && mark(block);
  if (!changed) co_return Result<>{};
  co_return co_await commit_->changed();
}

bool VdiNode::mark(uint32_t block) {
  map_->mark(block);
  if (!space_->ready((*map_)[block])) points_to_unready_ = true;
  return true;
}

template <typename Operation>
Task<Result<>> VdiNode::for_each_run(uint64_t offset, uint64_t length, Operation operation) {
  for (uint64_t done = 0; done < length;) {
    const Run run = run_at(offset + done, length - done);
    if (run.file_offset) {
      auto result = co_await operation(*run.file_offset, run.length);
      if (!result) co_return result;
    }
    done += run.length;
  }
  co_return Result<>{};
}

Task<Result<>> VdiNode::write_zeroes(uint64_t offset, uint64_t length, ZeroFlags flags) {
  auto allowed = check_modification("write_zeroes", offset, length);
  if (allowed && flags.fua)
    allowed = std::unexpected(Error::from_errno(EOPNOTSUPP, "write_zeroes", facts_.name, offset));
  if (!allowed) return finished(std::move(allowed));
  return for_each_run(offset, length, [this, flags](uint64_t at, uint64_t bytes) {
    return child_->write_zeroes(at, bytes, flags);
  });
}

Task<Result<>> VdiNode::discard(uint64_t offset, uint64_t length) {
  if (auto allowed = check_modification("discard", offset, length); !allowed)
    return finished(std::move(allowed));
  return for_each_run(offset, length,
                      [this](uint64_t at, uint64_t bytes) { return child_->discard(at, bytes); });
}

Task<Result<>> VdiNode::flush() {
  if (facts_.read_only) return child_->flush();
  if (broken_) return finished(check_modification("flush", 0, 0));
  return commit_->flush();
}

Task<Result<Extent>> VdiNode::map(uint64_t offset, uint64_t length) {
  SPINDLE_CO_TRY(check_range("map", offset, length));
  if (length == 0) co_return Extent{.offset = offset, .zero = true};
  // The file's own runs may be shorter than ours: ours is not worked out again and again for each of them.
  if (vdi::is_place((*map_)[block_of(offset)]))
    length = std::min<uint64_t>(length, kMappedBlocks * uint64_t{header_.block_size});
  const Run run = run_at(offset, length);
  if (!run.file_offset) co_return Extent{.offset = offset, .length = run.length, .zero = true};
  auto extent = co_await child_->map(*run.file_offset, run.length);
  if (extent) extent->offset = offset;
  co_return extent;
}

Commit::Batch VdiNode::freeze() {
  Commit::Batch batch;
  frozen_count_ = header_.allocated;
  // Only ever raised: somebody may have pointed at what lies below it.
  if (const uint32_t count = space_->count();
      count > header_.allocated && options_.mutation != Mutation::CountNotRaised) {
    header_.allocated = count;
    vdi::encode_header(header_);
    Commit::Write header{.offset = 0, .bytes = {header_.bytes.begin(), header_.bytes.end()}};
    auto& stage = options_.mutation == Mutation::CountWithPointers ? batch.pointers : batch.before;
    stage.push_back(std::move(header));
  }
  auto entries = map_->take_changed();
  std::ranges::move(entries, std::back_inserter(batch.pointers));
  batch.barrier = points_to_unready_;
  if (options_.mutation == Mutation::CountWithPointers) batch.barrier = false;
  frozen_points_to_unready_ = std::exchange(points_to_unready_, false);
  space_->freeze();
  return batch;
}

void VdiNode::published() {
  map_->taken_is_written();
  space_->published();
  frozen_points_to_unready_ = false;
}

void VdiNode::restore() {
  header_.allocated = frozen_count_;
  map_->restore_taken();
  space_->restore();
  points_to_unready_ |= std::exchange(frozen_points_to_unready_, false);
}

Task<Result<>> VdiNode::resize(uint64_t size) {
  SPINDLE_CO_TRY(check_modification("resize", 0, 0));
  auto flushed = co_await commit_->flush();
  if (!flushed) co_return flushed;
  const Result<> possible = vdi::can_resize(header_, size, facts_.name);
  if (!possible) co_return possible;
  auto resized = co_await vdi::resize(*child_, size, options_.mutation);
  if (!resized && resized.error()->kind == ErrorKind::FlushFailed) {
    commit_->abandon();
    broken_ = true;
    co_return resized;
  }
  // Whatever came of it, the file says what the image is now: each step leaves one that is sound.
  auto loaded = co_await load();
  broken_ = !loaded;
  if (loaded) space_->touch();
  if (!resized) co_return resized;
  co_return loaded;
}

void VdiNode::abandon() {
  commit_->abandon();
  child_->abandon();
}

// The allocated count and the file's length ran ahead; at the end they are what they would be in an image of
// anybody's. Neither can hurt in any order: what was ever pointed to is below both.
Task<Result<>> VdiNode::tidy() {
  if (!space_->touched()) co_return Result<>{};
  uint64_t count = space_->next(), end = count;
  if (options_.mutation == Mutation::CloseCountTooLow && count != 0) --count;
  if (options_.mutation == Mutation::CloseCutsTooMuch && end != 0) --end;
  if (header_.allocated != count) {
    header_.allocated = static_cast<uint32_t>(count);
    vdi::encode_header(header_);
    const iovec part{header_.bytes.data(), header_.bytes.size()};
    auto written = co_await child_->write(0, Buffers(std::span(&part, 1)), {});
    if (!written) co_return written;
  }
  const uint64_t bytes = header_.place_offset(static_cast<uint32_t>(end));
  if (child_->size() <= bytes) co_return Result<>{};
  co_return co_await child_->resize(bytes);
}

Task<Result<>> VdiNode::close() {
  co_await commit_->close();
  Result<> result;
  if (!facts_.read_only && !broken_ && !commit_->abandoned()) {
    if (map_->changed()) result = co_await commit_->flush();
    if (result) result = co_await tidy();
  }
  auto closed = co_await child_->close();
  if (!result) co_return result;
  co_return closed;
}

}  // namespace spindle
