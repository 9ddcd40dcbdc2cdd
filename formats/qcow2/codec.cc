#include "formats/qcow2/codec.h"

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>

namespace spindle::qcow2 {
namespace {

constexpr std::size_t kLargestCluster = std::size_t{1} << kLargestClusterBits;
// Twice what the largest entry can name (sectors of one cluster and one more), so that no caller meets it.
constexpr std::size_t kLargestStream = 2 * kLargestCluster + 1024;

// Of deflate: negative for a stream without zlib's own header.
constexpr int kWindowWritten = -12;
constexpr int kWindowRead = -15;
constexpr int kMemoryLevel = 9;

constexpr const char *kCompressing = "compress", *kDecompressing = "decompress";

std::unexpected<BoxedError> out_of_memory(const char* operation) {
  Error error = Error::from_errno(ENOMEM, operation, "");
  return std::unexpected(BoxedError(std::move(error)));
}

std::unexpected<BoxedError> corrupt(std::string detail) {
  return std::unexpected(BoxedError(
      Error{.kind = ErrorKind::Corrupt, .operation = kDecompressing, .detail = std::move(detail)}));
}

// zlib never writes through its input, though its interface says it might.
Bytef* zlib_bytes(std::span<const std::byte> bytes) {
  return const_cast<Bytef*>(reinterpret_cast<const Bytef*>(bytes.data()));
}

class Deflating {
 public:
  Deflating()
      : ok_(deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kWindowWritten, kMemoryLevel,
                         Z_DEFAULT_STRATEGY) == Z_OK) {}
  Deflating(const Deflating&) = delete;
  Deflating& operator=(const Deflating&) = delete;
  ~Deflating() {
    if (ok_) deflateEnd(&stream);
  }
  bool ok() const { return ok_; }
  z_stream stream{};

 private:
  bool ok_;
};

class Inflating {
 public:
  Inflating() : ok_(inflateInit2(&stream, kWindowRead) == Z_OK) {}
  Inflating(const Inflating&) = delete;
  Inflating& operator=(const Inflating&) = delete;
  ~Inflating() {
    if (ok_) inflateEnd(&stream);
  }
  bool ok() const { return ok_; }
  z_stream stream{};

 private:
  bool ok_;
};

Result<std::optional<std::size_t>> deflate_cluster(std::span<const std::byte> cluster,
                                                   std::span<std::byte> room) {
  Deflating deflating;
  if (!deflating.ok()) return out_of_memory(kCompressing);
  z_stream& stream = deflating.stream;
  stream.next_in = zlib_bytes(cluster);
  stream.avail_in = static_cast<uInt>(cluster.size());
  stream.next_out = reinterpret_cast<Bytef*>(room.data());
  stream.avail_out = static_cast<uInt>(room.size());
  if (deflate(&stream, Z_FINISH) != Z_STREAM_END) return std::nullopt;
  return room.size() - stream.avail_out;
}

Result<> inflate_cluster(std::span<const std::byte> input, std::span<std::byte> cluster) {
  Inflating inflating;
  if (!inflating.ok()) return out_of_memory(kDecompressing);
  z_stream& stream = inflating.stream;
  stream.next_in = zlib_bytes(input);
  stream.avail_in = static_cast<uInt>(input.size());
  stream.next_out = reinterpret_cast<Bytef*>(cluster.data());
  stream.avail_out = static_cast<uInt>(cluster.size());
  const int result = inflate(&stream, Z_FINISH);
  // A full cluster is all that is asked for, be it that the stream would go on. QEMU sees it so, too.
  if (stream.avail_out == 0 && (result == Z_STREAM_END || result == Z_BUF_ERROR || result == Z_OK)) return {};
  if (result == Z_MEM_ERROR) return out_of_memory(kDecompressing);
  if (result == Z_DATA_ERROR || result == Z_NEED_DICT)
    return corrupt(fmt::format("a compressed cluster is no deflate stream: {}",
                               stream.msg != nullptr ? stream.msg : "it asks for a dictionary"));
  return corrupt(fmt::format("a compressed cluster {} after {} of its {} bytes",
                             result == Z_STREAM_END ? "ends" : "is cut off",
                             cluster.size() - stream.avail_out, cluster.size()));
}

struct FreeContext {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

ZSTD_CCtx* compression_context() {
  thread_local std::unique_ptr<ZSTD_CCtx, FreeContext> context;
  if (!context) context.reset(ZSTD_createCCtx());
  return context.get();
}

ZSTD_DCtx* decompression_context() {
  thread_local std::unique_ptr<ZSTD_DCtx, FreeContext> context;
  if (!context) context.reset(ZSTD_createDCtx());
  return context.get();
}

Result<std::optional<std::size_t>> zstd_compress(std::span<const std::byte> cluster,
                                                 std::span<std::byte> room) {
  ZSTD_CCtx* context = compression_context();
  if (!context) return out_of_memory(kCompressing);
  const std::size_t used = ZSTD_compress2(context, room.data(), room.size(), cluster.data(), cluster.size());
  if (!ZSTD_isError(used)) return used;
  if (ZSTD_getErrorCode(used) == ZSTD_error_dstSize_tooSmall) return std::nullopt;
  if (ZSTD_getErrorCode(used) == ZSTD_error_memory_allocation) return out_of_memory(kCompressing);
  return std::unexpected(Error{.kind = ErrorKind::Io,
                               .operation = kCompressing,
                               .detail = std::string("zstd says: ") + ZSTD_getErrorName(used)});
}

// Frame by frame, each in one go: so zstd needs no window of its own, whatever the frame asks for.
Result<> zstd_decompress(std::span<const std::byte> stream, std::span<std::byte> cluster) {
  ZSTD_DCtx* context = decompression_context();
  if (!context) return out_of_memory(kDecompressing);
  const std::size_t wanted = cluster.size();
  while (!cluster.empty()) {
    if (stream.empty()) {
      return corrupt(
          fmt::format("a compressed cluster ends after {} of its {} bytes", wanted - cluster.size(), wanted));
    }
    const std::size_t frame = ZSTD_findFrameCompressedSize(stream.data(), stream.size());
    std::size_t made = frame;
    if (!ZSTD_isError(frame))
      made = ZSTD_decompressDCtx(context, cluster.data(), cluster.size(), stream.data(), frame);
    if (ZSTD_isError(made)) {
      if (ZSTD_getErrorCode(made) == ZSTD_error_memory_allocation) return out_of_memory(kDecompressing);
      return corrupt(fmt::format("a compressed cluster is no zstd stream, after {} of its {} bytes: {}",
                                 wanted - cluster.size(), wanted, ZSTD_getErrorName(made)));
    }
    stream = stream.subspan(frame);
    cluster = cluster.subspan(made);
  }
  return {};
}

}  // namespace

Result<std::optional<std::size_t>> compress(Compression type, std::span<const std::byte> cluster,
                                            std::span<std::byte> room) {
  if (cluster.size() > kLargestCluster)
    return std::unexpected(Error::invalid(kCompressing, "", "more than the largest cluster, 2 MiB"));
  room = room.first(std::min(room.size(), kLargestStream));
  return type == Compression::Zstd ? zstd_compress(cluster, room) : deflate_cluster(cluster, room);
}

Result<> decompress(Compression type, std::span<const std::byte> stream, std::span<std::byte> cluster) {
  if (cluster.size() > kLargestCluster)
    return std::unexpected(Error::invalid(kDecompressing, "", "more than the largest cluster, 2 MiB"));
  stream = stream.first(std::min(stream.size(), kLargestStream));
  return type == Compression::Zstd ? zstd_decompress(stream, cluster) : inflate_cluster(stream, cluster);
}

}  // namespace spindle::qcow2
