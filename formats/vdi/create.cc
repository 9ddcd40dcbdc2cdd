#include "formats/vdi/create.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "block/little_endian.h"
#include "block/parse.h"

namespace spindle::vdi {
namespace {

constexpr std::size_t kPiece = 1 << 20;

struct Wanted {
  ImageType type = ImageType::Dynamic;
  uint32_t block_size = kDefaultBlock;
};

Result<Wanted> parse(const FormatOptions& options) {
  Wanted wanted;
  for (const auto& [key, value] : options) {
    if (key == "static") {
      if (value != "on" && value != "off") return std::unexpected(bad_option(key, value, "on or off"));
      if (value == "on") wanted.type = ImageType::Static;
    } else if (key == "block_size") {
      const auto bytes = parse_size(value);
      if (!bytes || !std::has_single_bit(*bytes) || *bytes < kSmallestBlock || *bytes > kLargestBlock)
        return std::unexpected(bad_option(key, value, "a power of two from 512 to 256M"));
      wanted.block_size = static_cast<uint32_t>(*bytes);
    } else {
      return std::unexpected(bad_option(key, value, "no option: vdi has static and block_size"));
    }
  }
  return wanted;
}

Task<Result<>> write_map(Node& file, const Header& header) {
  std::vector<std::byte> piece(std::min<uint64_t>(kPiece, header.map_bytes()), std::byte{0xff});
  for (uint64_t at = 0; at < header.map_bytes(); at += piece.size()) {
    const std::size_t length = std::min<uint64_t>(piece.size(), header.map_bytes() - at);
    if (header.type == ImageType::Static) {
      for (std::size_t i = 0; i < length; i += sizeof(uint32_t))
        put32(piece.data() + i, static_cast<uint32_t>((at + i) / sizeof(uint32_t)));
    }
    const iovec part{piece.data(), length};
    auto written = co_await file.write(header.map_offset + at, Buffers(std::span(&part, 1)), {});
    if (!written) co_return written;
  }
  co_return Result<>{};
}

}  // namespace

std::vector<CreateOptionHelp> create_option_help() {
  return {{"block_size", "<size>", "VDI block size (default 1M; not all programs read others)"},
          {"static", "<bool (on/off)>", "VDI static (pre-allocated) image"}};
}

Result<Measure> measure(const CreateOptions& options,
                        const std::function<uint64_t(uint64_t)>& data_clusters) {
  const auto wanted = parse(options.options);
  if (!wanted) return std::unexpected(wanted.error());
  const auto header = make_header(options.size, wanted->block_size, wanted->type, "");
  if (!header) return std::unexpected(header.error());
  const uint64_t all = uint64_t{header->blocks} * wanted->block_size;
  const uint64_t now =
      wanted->type == ImageType::Static ? all : data_clusters(wanted->block_size) * wanted->block_size;
  return Measure{.required = header->data_offset + now, .fully_allocated = header->data_offset + all};
}

Task<Result<>> create(Node& file, CreateOptions options) {
  const auto wanted = parse(options.options);
  if (!wanted) co_return std::unexpected(wanted.error());
  auto header = make_header(options.size, wanted->block_size, wanted->type, file.facts().name);
  if (!header) co_return std::unexpected(std::move(header.error()));
  auto step = co_await file.resize(0);
  if (step) step = co_await file.resize(header->place_offset(header->allocated));
  if (step) step = co_await write_map(file, *header);
  if (step) step = co_await file.flush();
  if (!step) co_return step;
  const iovec part{header->bytes.data(), header->bytes.size()};
  step = co_await file.write(0, Buffers(std::span(&part, 1)), {});
  if (step) step = co_await file.flush();
  co_return step;
}

}  // namespace spindle::vdi
