#include "formats/qcow2/table_io.h"

#include <algorithm>

#include "block/big_endian.h"

namespace spindle::qcow2 {

using namespace big_endian;

Task<Result<>> read_padded(Node& file, uint64_t offset, std::span<std::byte> bytes) {
  const uint64_t size = file.size();
  const std::size_t there = offset < size ? std::min<uint64_t>(bytes.size(), size - offset) : 0;
  std::ranges::fill(bytes.subspan(there), std::byte{});
  if (there == 0) co_return Result<>{};
  const iovec part{bytes.data(), there};
  co_return co_await file.read(offset, Buffers(std::span(&part, 1)));
}

Task<Result<>> write_bytes(Node& file, uint64_t offset, std::span<const std::byte> bytes) {
  if (file.size() < offset + bytes.size()) SPINDLE_CO_TRY(co_await file.resize(offset + bytes.size()));
  const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  co_return co_await file.write(offset, Buffers(std::span(&part, 1)), {});
}

Task<Result<std::vector<uint64_t>>> read_words(Node& file, uint64_t offset, uint64_t count) {
  std::vector<uint64_t> words(count);
  SPINDLE_CO_TRY(co_await read_padded(file, offset, std::as_writable_bytes(std::span(words))));
  for (uint64_t& word : words) word = be64toh(word);
  co_return words;
}

Task<Result<>> write_words(Node& file, uint64_t offset, std::span<const uint64_t> words) {
  std::vector<std::byte> bytes(words.size() * sizeof(uint64_t));
  for (std::size_t i = 0; i < words.size(); ++i) put64(bytes.data() + i * sizeof(uint64_t), words[i]);
  co_return co_await write_bytes(file, offset, bytes);
}

}  // namespace spindle::qcow2
