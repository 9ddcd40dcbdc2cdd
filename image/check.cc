#include "image/check.h"

#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>

namespace spindle::image {
namespace {

// The options of the list that belong to the graph above the file have no meaning here.
Result<const Format*> format_of(const Workshop& shop, const DiskSpec& spec) {
  const Format* format = shop.formats.find(spec.format);
  if (!format) return std::unexpected(Error::invalid("open", spec.file, "there is no format " + spec.format));
  return format;
}

Error unsupported(const char* what) {
  return {.kind = ErrorKind::NotSupported, .detail = what};
}

}  // namespace

Task<Result<CheckOutcome>> check_image(const Workshop& shop, ImageName name, OpenMode mode, Repair repair) {
  mode.write = repair != Repair::None;
  auto spec = describe_image(shop, name, mode);
  if (!spec) co_return std::unexpected(std::move(spec.error()));
  const auto format = format_of(shop, *spec);
  if (!format) co_return std::unexpected(format.error());
  auto file = open_file(shop, *spec);
  if (!file) co_return std::unexpected(std::move(file.error()));
  CheckOutcome outcome{.file = spec->file, .format = spec->format, .report = {}};
  Result<> result;
  if (!(*format)->check) {
    result = std::unexpected(unsupported("This image format does not support checks"));
  } else {
    auto checking = (*format)->check(*file, repair);
    auto report = co_await checking;
    if (report && (report->corruptions_fixed != 0 || report->leaks_fixed != 0)) {
      // What the repair says of itself is not taken on trust: a second look tells what is left.
      outcome.mended = std::move(report->messages);
      auto again = (*format)->check(*file, Repair::None);
      auto left = co_await again;
      if (left) {
        left->corruptions_fixed = report->corruptions_fixed;
        left->leaks_fixed = report->leaks_fixed;
      }
      report = std::move(left);
    }
    if (report) {
      outcome.report = std::move(*report);
    } else {
      result = std::unexpected(std::move(report.error()));
      // An image of a kind that the format does not know here: not a format without checks.
      if (result.error()->kind == ErrorKind::NotSupported) result.error()->kind = ErrorKind::Invalid;
    }
  }
  auto closed = co_await (*file)->close();
  if (!result) co_return std::unexpected(std::move(result.error()));
  if (!closed) co_return std::unexpected(std::move(closed.error()));
  co_return outcome;
}

Task<Result<CheckOutcome>> compact_image(const Workshop& shop, ImageName name, OpenMode mode) {
  mode.write = true;
  auto spec = describe_image(shop, name, mode);
  if (!spec) co_return std::unexpected(std::move(spec.error()));
  const auto format = format_of(shop, *spec);
  if (!format) co_return std::unexpected(format.error());
  if (!(*format)->compact) {
    co_return std::unexpected(unsupported("This image format cannot be compacted"));
  }
  auto file = open_file(shop, *spec);
  if (!file) co_return std::unexpected(std::move(file.error()));
  auto compacting = (*format)->compact(*file);
  auto report = co_await compacting;
  auto closed = co_await (*file)->close();
  if (!report) co_return std::unexpected(std::move(report.error()));
  if (!closed) co_return std::unexpected(std::move(closed.error()));
  co_return CheckOutcome{.file = spec->file, .format = spec->format, .report = std::move(*report)};
}

std::string check_text(const CheckOutcome& outcome) {
  const CheckReport& report = outcome.report;
  std::string text;
  for (const std::string& line : outcome.mended) text += line + "\n";
  if (report.corruptions_fixed != 0 || report.leaks_fixed != 0) {
    text += fmt::format(
        "The following inconsistencies were found and repaired:\n\n    {} leaked clusters\n    {} "
        "corruptions\n\n"
        "Double checking the fixed image now...\n",
        report.leaks_fixed, report.corruptions_fixed);
  }
  for (const std::string& line : report.messages) text += line + "\n";
  if (report.corruptions == 0 && report.leaks == 0) text += "No errors were found on the image.\n";
  if (report.corruptions != 0) {
    text += fmt::format(
        "\n{} errors were found on the image.\nData may be corrupted, or further writes to the image may "
        "corrupt "
        "it.\n",
        report.corruptions);
  }
  if (report.leaks != 0) {
    text += fmt::format(
        "\n{} leaked clusters were found on the image.\nThis means waste of disk space, but no harm to "
        "data.\n",
        report.leaks);
  }
  if (report.total_clusters != 0 && report.allocated_clusters != 0) {
    const auto percent = [](uint64_t part, uint64_t whole) {
      return 100.0 * static_cast<double>(part) / static_cast<double>(whole);
    };
    text += fmt::format("{}/{} = {:.2f}% allocated, {:.2f}% fragmented, 0.00% compressed clusters\n",
                        report.allocated_clusters, report.total_clusters,
                        percent(report.allocated_clusters, report.total_clusters),
                        percent(report.fragmented_clusters, report.allocated_clusters));
  }
  if (report.image_end_offset != 0) text += fmt::format("Image end offset: {}\n", report.image_end_offset);
  return text;
}

std::string check_json(const CheckOutcome& outcome) {
  const CheckReport& report = outcome.report;
  nlohmann::ordered_json json;
  const auto add = [&json](const char* key, uint64_t value) {
    if (value != 0) json[key] = value;
  };
  add("image-end-offset", report.image_end_offset);
  add("total-clusters", report.total_clusters);
  json["check-errors"] = 0;
  add("corruptions", report.corruptions);
  add("corruptions-fixed", report.corruptions_fixed);
  add("leaks", report.leaks);
  add("leaks-fixed", report.leaks_fixed);
  add("allocated-clusters", report.allocated_clusters);
  add("fragmented-clusters", report.fragmented_clusters);
  json["filename"] = outcome.file;
  json["format"] = outcome.format;
  return json.dump(4, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

int check_status(const CheckReport& report) {
  if (report.corruptions != 0) return kCheckCorrupt;
  return report.leaks != 0 ? kCheckLeaks : kCheckClean;
}

int check_status(const Error& error) {
  return error.kind == ErrorKind::NotSupported ? kCheckUnsupported : kCheckFailed;
}

}  // namespace spindle::image
