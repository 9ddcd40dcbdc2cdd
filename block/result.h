// What an operation gives back: a value, or an Error that says what failed, where and why.
//
// No exception crosses the I/O path and no error is swallowed. `kind` is small and stable: callers decide by
// it. `number` keeps the errno for the human and for mapping to a device status; it is 0 when no system call
// was involved.
#pragma once

#include <cstdint>
#include <expected>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace spindle {

enum class ErrorKind : uint8_t {
  Io,            ///< the medium or the host failed the operation (EIO and all that is not named below)
  NoSpace,       ///< ENOSPC, EDQUOT, EFBIG: an ordinary request error, nothing is inconsistent
  NotSupported,  ///< the operation does not exist here; the caller may fall back
  Invalid,       ///< bad argument: range, alignment, size, syntax
  ReadOnly,      ///< a write to something opened read-only
  InUse,         ///< locked by another process
  NotFound,      ///< ENOENT
  Permission,    ///< EACCES, EPERM
  Corrupt,       ///< the image contradicts itself
  FlushFailed,   ///< D6: an earlier flush failed, nothing can be promised until the image is reopened
};

/// Maps an errno (positive) to the kind that callers decide by.
ErrorKind kind_of_errno(int number);
std::string_view to_string(ErrorKind kind);

struct Error {
  ErrorKind kind = ErrorKind::Io;
  int number = 0;              ///< errno, positive, or 0
  std::string operation = {};  ///< what was tried: "read", "fdatasync", "open"
  std::string node = {};       ///< on what: a node's or file's name
  uint64_t offset = 0;         ///< byte offset where it happened, where one makes sense
  /// Of a flush: nothing was lost, and the next one may succeed. Any other error of a flush counts as a
  /// failed one (D6).
  bool can_flush_again = false;
  std::string detail = {};  ///< a sentence for the user that says what to do, where there is something to say

  /// One line: "write of disk.img at offset 4096: No space left on device".
  std::string message() const;

  static Error from_errno(int number, std::string operation, std::string node, uint64_t offset = 0);
  static Error invalid(std::string operation, std::string node, std::string detail);
};

/// An Error on the heap, as a Result carries it. A Result lives in every coroutine frame a request passes,
/// several times in some; with the Error itself inside, three layers' frames held 1,840 bytes a request, and
/// at depth 32 no longer fitted a first-level cache. So success is small, and only failure allocates.
class BoxedError {
 public:
  BoxedError(Error error) : error_(std::make_unique<Error>(std::move(error))) {}
  BoxedError(BoxedError&&) noexcept = default;
  BoxedError& operator=(BoxedError&&) noexcept = default;
  BoxedError(const BoxedError& other) : BoxedError(*other.error_) {}
  BoxedError& operator=(const BoxedError& other) { return *this = BoxedError(other); }
  ~BoxedError() = default;

  Error* operator->() { return error_.get(); }
  const Error* operator->() const { return error_.get(); }
  Error& operator*() { return *error_; }
  const Error& operator*() const { return *error_; }

 private:
  std::unique_ptr<Error> error_;  // null only after a move
};

template <typename T = void>
using Result = std::expected<T, BoxedError>;
static_assert(sizeof(Result<>) == 16);

}  // namespace spindle

/// Returns the error of `expression` to the caller, else goes on. For functions.
#define SPINDLE_TRY(expression)                                      \
  do {                                                               \
    if (auto spindle_try_result = (expression); !spindle_try_result) \
      return std::unexpected(std::move(spindle_try_result.error())); \
  } while (false)

/// The same in a coroutine. `expression` usually holds a co_await.
#define SPINDLE_CO_TRY(expression)                                      \
  do {                                                                  \
    if (auto spindle_try_result = (expression); !spindle_try_result)    \
      co_return std::unexpected(std::move(spindle_try_result.error())); \
  } while (false)
