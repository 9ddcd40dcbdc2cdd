#include "block/record/record_log.h"

#include <zlib.h>

#include <cstring>

#include "block/little_endian.h"

namespace spindle::record {
namespace {

// Of the header.
constexpr std::size_t kVersionAt = 8, kHeaderBytesAt = 12, kSizeAt = 16, kRealtimeAt = 24;
// Of an entry.
constexpr std::size_t kTypeAt = 0, kOperationAt = 1, kFlagsAt = 2, kCheckAt = 4, kIdAt = 8, kOffsetAt = 16,
                      kLengthAt = 24, kTimeAt = 32, kErrorAt = 40;
constexpr uint8_t kFua = 1, kUnmap = 2;

bool is_operation(Operation operation) {
  return operation >= Operation::Write && operation <= Operation::Resize;
}

bool makes_sense(const Entry& entry) {
  switch (entry.type) {
    case EntryType::Base:
      return entry.length <= UINT64_MAX - entry.offset;
    case EntryType::Submit:
      return is_operation(entry.operation) && entry.id != 0 &&
             (entry.operation == Operation::Resize || entry.length <= UINT64_MAX - entry.offset);
    case EntryType::Complete:
      return is_operation(entry.operation) && entry.id != 0 && entry.error >= 0;
    case EntryType::Mark:
    case EntryType::Close:
      return true;
  }
  return false;
}

}  // namespace

HeaderBytes encode(const Header& header) {
  HeaderBytes bytes{};
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  put32(&bytes[kVersionAt], kVersion);
  put32(&bytes[kHeaderBytesAt], kHeaderBytes);
  put64(&bytes[kSizeAt], header.size);
  put64(&bytes[kRealtimeAt], header.realtime);
  return bytes;
}

std::optional<Header> decode_header(std::span<const std::byte, kHeaderBytes> bytes) {
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) return std::nullopt;
  if (get32(&bytes[kVersionAt]) != kVersion || get32(&bytes[kHeaderBytesAt]) != kHeaderBytes)
    return std::nullopt;
  return Header{.size = get64(&bytes[kSizeAt]), .realtime = get64(&bytes[kRealtimeAt])};
}

EntryBytes encode(const Entry& entry) {
  EntryBytes bytes{};
  bytes[kTypeAt] = std::byte{static_cast<uint8_t>(entry.type)};
  bytes[kOperationAt] = std::byte{static_cast<uint8_t>(entry.operation)};
  bytes[kFlagsAt] = std::byte{static_cast<uint8_t>((entry.fua ? kFua : 0) | (entry.unmap ? kUnmap : 0))};
  put64(&bytes[kIdAt], entry.id);
  put64(&bytes[kOffsetAt], entry.offset);
  put64(&bytes[kLengthAt], entry.length);
  put64(&bytes[kTimeAt], entry.time);
  put32(&bytes[kErrorAt], static_cast<uint32_t>(entry.error));
  return bytes;
}

uint32_t check_of(const EntryBytes& entry) {
  return check_of(static_cast<uint32_t>(crc32_z(0, nullptr, 0)), entry);
}
uint32_t check_of(uint32_t so_far, std::span<const std::byte> content) {
  if (content.empty()) return so_far;  // zlib takes a null pointer for a question
  return static_cast<uint32_t>(
      crc32_z(so_far, reinterpret_cast<const Bytef*>(content.data()), content.size()));
}
void seal(EntryBytes& entry, uint32_t check) {
  put32(&entry[kCheckAt], check);
}

std::optional<Decoded> decode_entry(const EntryBytes& bytes) {
  const uint8_t flags = std::to_integer<uint8_t>(bytes[kFlagsAt]);
  const Entry entry{.type = static_cast<EntryType>(bytes[kTypeAt]),
                    .operation = static_cast<Operation>(bytes[kOperationAt]),
                    .fua = (flags & kFua) != 0,
                    .unmap = (flags & kUnmap) != 0,
                    .id = get64(&bytes[kIdAt]),
                    .offset = get64(&bytes[kOffsetAt]),
                    .length = get64(&bytes[kLengthAt]),
                    .time = get64(&bytes[kTimeAt]),
                    .error = static_cast<int32_t>(get32(&bytes[kErrorAt]))};
  if (!makes_sense(entry)) return std::nullopt;
  return Decoded{.entry = entry, .check = get32(&bytes[kCheckAt])};
}

}  // namespace spindle::record
