// The log that `record` writes: every operation that changes a disk's file, when it was submitted and when it
// completed, with its data. docs/recording.md describes the file for other programs.
//
// A header of 64 bytes, then entries: 48 bytes, and what they carry, padded with zeroes to 8 bytes. All
// numbers are little endian. The order of the entries is the order of events: an operation that was submitted
// after another had completed stands after that one's completion. So what a flush covered can be read off:
// the operations whose completion stands before the flush's submission (D1).
//
// An entry is logged before its operation goes on, and a completion before anybody hears of it. Where the two
// differ, an operation seems to be in flight for longer than it was, and a flush to cover less: a log may
// show too little as durable, never too much.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace spindle::record {

inline constexpr std::size_t kHeaderBytes = 64;
inline constexpr std::size_t kEntryBytes = 48;
inline constexpr uint64_t kPadding = 8;
inline constexpr uint32_t kVersion = 1;
inline constexpr std::array<char, 8> kMagic = {'S', 'P', 'N', 'D', 'L', 'L', 'O', 'G'};

enum class EntryType : uint8_t {
  Base = 1,      ///< what the file held when the recording began; what no Base says was zeroes
  Submit = 2,    ///< an operation goes to the host
  Complete = 3,  ///< and has ended
  Mark = 4,      ///< a label
  Close = 5,     ///< the recording ended in order; nothing follows
};

enum class Operation : uint8_t { None = 0, Write = 1, WriteZeroes = 2, Discard = 3, Flush = 4, Resize = 5 };

struct Entry {
  EntryType type = EntryType::Mark;
  Operation operation = Operation::None;  ///< Submit and Complete
  bool fua = false;                       ///< durable once complete
  bool unmap = false;                     ///< WriteZeroes: the space may be given back
  uint64_t id = 0;                        ///< the operation, which its completion has too; never 0 for these
  uint64_t offset = 0;                    ///< bytes; Resize: the size before
  uint64_t length = 0;                    ///< bytes; Resize: the size asked for; Mark: of the label
  uint64_t time = 0;                      ///< nanoseconds since the recording began
  int32_t error = 0;                      ///< Complete: 0, or the errno it failed with

  /// Bytes of content that follow: of Base, of a Write's Submit, of a Mark.
  uint64_t content() const {
    const bool has = type == EntryType::Base || type == EntryType::Mark ||
                     (type == EntryType::Submit && operation == Operation::Write);
    return has ? length : 0;
  }
};

struct Header {
  uint64_t size = 0;      ///< of the file when the recording began, bytes
  uint64_t realtime = 0;  ///< when that was, in nanoseconds since 1970
};

using HeaderBytes = std::array<std::byte, kHeaderBytes>;
using EntryBytes = std::array<std::byte, kEntryBytes>;

HeaderBytes encode(const Header& header);
/// Nullopt: not such a log, or of a version this program does not know.
std::optional<Header> decode_header(std::span<const std::byte, kHeaderBytes> bytes);

/// Without its check; seal() puts that in.
EntryBytes encode(const Entry& entry);
/// CRC-32 (zlib's) over the entry, with its check as zero, and the content so far.
uint32_t check_of(const EntryBytes& entry);
uint32_t check_of(uint32_t so_far, std::span<const std::byte> content);
void seal(EntryBytes& entry, uint32_t check);

struct Decoded {
  Entry entry;
  uint32_t check = 0;
};
/// Nullopt: no entry that this version writes. Its check is the caller's, with the content.
std::optional<Decoded> decode_entry(const EntryBytes& bytes);

}  // namespace spindle::record
