#include "formats/raw_create.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

namespace spindle {
namespace {

enum class Preallocation : uint8_t { Off, Falloc, Full };

Result<Preallocation> preallocation_of(const FormatOptions& options) {
  Preallocation chosen = Preallocation::Off;
  for (const auto& [key, value] : options) {
    if (key != "preallocation") {
      return std::unexpected(
          Error::invalid("create", "", fmt::format("a raw image has no option \"{}\"", key)));
    }
    if (value == "falloc") {
      chosen = Preallocation::Falloc;
    } else if (value == "full") {
      chosen = Preallocation::Full;
    } else if (value != "off") {
      return std::unexpected(bad_option(key, value, "off, falloc or full"));
    }
  }
  return chosen;
}

Task<Result<>> write_zeroes_out(Node& file, uint64_t size) {
  constexpr std::size_t kBytes = 64 << 10;
  constexpr std::size_t kParts = 16;
  alignas(4096) static constinit std::array<std::byte, kBytes> zeroes{};  // never written
  std::array<iovec, kParts> parts;
  for (uint64_t done = 0; done < size;) {
    const uint64_t length = std::min<uint64_t>(size - done, kBytes * kParts);
    std::size_t count = 0;
    for (uint64_t left = length; left > 0; ++count) {
      const auto part = static_cast<std::size_t>(std::min<uint64_t>(left, kBytes));
      parts[count] = {.iov_base = zeroes.data(), .iov_len = part};
      left -= part;
    }
    const Buffers buffers({parts.data(), count}, length);
    SPINDLE_CO_TRY(co_await file.write(done, buffers, {}));
    done += length;
  }
  co_return Result<>{};
}

}  // namespace

Task<Result<>> create_raw(std::shared_ptr<Node> file, CreateOptions options) {
  const auto preallocation = preallocation_of(options.options);
  if (!preallocation) co_return std::unexpected(preallocation.error());
  auto emptied = co_await file->resize(0);
  if (!emptied && emptied.error()->kind == ErrorKind::NotSupported) {  // a block device
    if (options.size > file->size()) {
      co_return std::unexpected(Error::invalid(
          "create", file->facts().name,
          fmt::format("the device has {} bytes, and {} are asked for", file->size(), options.size)));
    }
    if (*preallocation != Preallocation::Off) {
      co_return std::unexpected(Error::invalid(
          "create", file->facts().name, "a block device has its space already: leave preallocation out"));
    }
    co_return Result<>{};
  }
  if (!emptied) co_return emptied;
  SPINDLE_CO_TRY(co_await file->resize(options.size));
  if (*preallocation == Preallocation::Falloc && options.size > 0) {
    const ZeroFlags reserve{.unmap = false, .no_fallback = true};
    SPINDLE_CO_TRY(co_await file->write_zeroes(0, options.size, reserve));
  } else if (*preallocation == Preallocation::Full) {
    SPINDLE_CO_TRY(co_await write_zeroes_out(*file, options.size));
  }
  co_return co_await file->flush();
}

std::vector<CreateOptionHelp> raw_create_options() {
  return {{.key = "preallocation",
           .value = "<str>",
           .help = "Preallocation mode (allowed values: off, falloc, full)"}};
}

Result<Measure> measure_raw(const CreateOptions& options, const std::function<uint64_t(uint64_t)>&) {
  constexpr uint64_t kSector = 512;
  if (const auto known = preallocation_of(options.options); !known) return std::unexpected(known.error());
  if (options.size > std::numeric_limits<uint64_t>::max() - kSector)
    return std::unexpected(Error::invalid("measure", "", "a disk of that size has no whole sectors"));
  const uint64_t size = (options.size + kSector - 1) / kSector * kSector;
  return Measure{.required = size, .fully_allocated = size};
}

}  // namespace spindle
