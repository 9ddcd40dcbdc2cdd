#include "image/bench.h"

#include <fmt/format.h>

namespace spindle::image {
namespace {

constexpr uint64_t kLargestRequest = 2147483136;  // QEMU's; also less than one system call transfers
constexpr uint64_t kMostDepth = 4096;
constexpr uint64_t kMostCount = 2147483647;

Error bench_error(std::string detail) {
  return Error::invalid("bench", "", std::move(detail));
}

}  // namespace

Result<> check_bench(const BenchOptions& options) {
  if (options.count > kMostCount)
    return std::unexpected(bench_error(fmt::format("at most {} requests are possible", kMostCount)));
  if (options.depth < 1 || options.depth > kMostDepth)
    return std::unexpected(bench_error(fmt::format("the queue depth must be 1 to {}", kMostDepth)));
  if (options.request < 1 || options.request > kLargestRequest)
    return std::unexpected(bench_error(fmt::format("a request has 1 to {} bytes", kLargestRequest)));
  if (options.flush_interval != 0 && !options.write)
    return std::unexpected(bench_error("--flush-interval is only available in write tests"));
  if (options.flush_interval != 0 && options.flush_interval < options.depth)
    return std::unexpected(bench_error("Flush interval can't be smaller than depth"));
  return {};
}

std::string bench_text(const BenchOptions& options) {
  std::string text = fmt::format(
      "Sending {} {} requests, {} bytes each, {} in parallel (starting at offset {}, step size {})\n",
      options.count, options.write ? "write" : "read", options.request, options.depth, options.offset,
      options.step == 0 ? options.request : options.step);
  if (options.flush_interval != 0) {
    text += fmt::format("Sending flush every {} requests\n", options.flush_interval);
  }
  return text;
}

}  // namespace spindle::image
