// What people type: disk options with their fault rules, and lines of the control protocol. The whole input
// is the text, given to each parser in turn, so that a corpus is made of readable files.
//
// Besides what the sanitizers find: an accepted disk has what the devices rely on, a refusal says why, and
// the control protocol answers each line by one line of JSON that is either a return or an error.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "block/disk_spec.h"
#include "block/filters/fault_rule.h"
#include "block/parse.h"
#include "formats/register_formats.h"
#include "fuzz/machine.h"
#include "vmm/control/commands.h"

namespace spindle {
namespace {

using fuzz::stop;
using Json = nlohmann::ordered_json;

const FormatRegistry& formats() {
  static const FormatRegistry registry = [] {
    FormatRegistry made;
    register_formats(made);
    return made;
  }();
  return registry;
}

void check_message(const Error& error) {
  if (error.message().empty()) stop("a refusal without a word");
}

void parse_options(std::string_view text) {
  if (const auto spec = parse_disk_spec(text, formats())) {
    if (spec->file.empty() && !spec->cdrom) stop("a disk without a file");
    if (spec->queues < 1 || spec->queues > 64) stop("a number of queues that no disk can have");
    if (spec->serial.size() > 20) stop("a serial number that no drive can have");
    if (!check_throttle_limits(spec->throttling, ThrottleSpelling::DiskOption))
      stop("limits that are refused later");
    (void)disk_options(*spec);
  } else {
    check_message(*spec.error());
  }
  if (const auto rules = parse_fault_rules(text)) {
    if (rules->empty()) stop("no rule, and no word about it");
    for (const FaultRule& rule : *rules) {
      if (rule.from == 0) stop("operations are counted from 1");
      if (rule.range && rule.range->offset + rule.range->length < rule.range->offset)
        stop("a range wraps around");
    }
  } else {
    check_message(*rules.error());
  }
  if (const auto bytes = parse_size(text); bytes && *bytes > INT64_MAX) stop("a size that no file can have");
  (void)parse_number(text);
}

/// Does nothing, but knows one disk.
class Pretended final : public vmm::ControlTarget {
 public:
  Result<vmm::RunState> run_state() override { return vmm::RunState::Running; }
  Result<> stop() override { return {}; }
  Result<> cont() override { return {}; }
  Result<> system_reset() override { return {}; }
  Result<> quit() override { return {}; }
  Result<> system_powerdown() override { return {}; }
  Result<Json> disks() override { return Json::array(); }
  Result<> set_write_cache(const std::string& disk, bool) override { return known(disk); }
  Result<> set_throttle(const std::string& disk, const ThrottleLimits& limits) override {
    if (!check_throttle_limits(limits, ThrottleSpelling::Qmp))
      fuzz::stop("limits came through that are refused");
    return known(disk);
  }
  Result<> resize(const std::string& disk, uint64_t) override { return known(disk); }
  Result<> open_tray(const std::string& drive, bool) override { return known(drive); }
  Result<> close_tray(const std::string& drive) override { return known(drive); }
  Result<> eject(const std::string& drive, bool) override { return known(drive); }
  Result<> change_medium(const std::string& drive, const std::string& file, const std::string& format,
                         bool) override {
    if (const auto spec = with_medium(DiskSpec{.cdrom = true}, file, format, formats());
        spec && spec->file.empty())
      fuzz::stop("a medium without a file");
    return known(drive);
  }
  Result<> start_trace(const std::string&) override { return {}; }
  Result<> stop_trace() override { return {}; }
  Result<trace::Tracer::Status> trace_status() override { return trace::Tracer::Status{}; }

 private:
  static Result<> known(const std::string& disk) {
    if (disk == "d") return {};
    return std::unexpected(Error{.kind = ErrorKind::NotFound, .operation = "control", .node = disk});
  }
};

// The server cuts at line ends, so no line has one inside.
void answer(std::string_view text) {
  Pretended target;
  const std::string line = vmm::answer_request(text.substr(0, text.find('\n')), target);
  if (line.empty() || line.find('\n') != line.size() - 1) stop("an answer is not one line");
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.contains("return") == json.contains("error"))
    stop("neither a return nor an error");
}

}  // namespace
}  // namespace spindle

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  spindle::parse_options(text);
  spindle::answer(text);
  return 0;
}
