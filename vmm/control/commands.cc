#include "vmm/control/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <expected>
#include <nlohmann/json.hpp>
#include <span>

namespace spindle::vmm {
namespace {

using Json = nlohmann::ordered_json;

/// A request that cannot be carried out, as QMP says it.
struct Refusal {
  std::string_view error_class = "GenericError";
  std::string description;
};
using Answer = std::expected<Json, Refusal>;

std::unexpected<Refusal> refuse(std::string description) {
  return std::unexpected(Refusal{.description = std::move(description)});
}

Answer nothing(const Result<>& result) {
  if (result) return Json::object();
  // A file that is not there has an errno.
  if (result.error()->kind == ErrorKind::NotFound && result.error()->number == 0) {
    return std::unexpected(
        Refusal{.error_class = "DeviceNotFound", .description = result.error()->message()});
  }
  return refuse(result.error()->message());
}

enum class Type : uint8_t { String, Boolean, Size };

struct Parameter {
  std::string_view name;
  Type type;
  bool required = true;
};

struct Command {
  std::string_view name;
  std::span<const Parameter> parameters;
  Answer (*run)(ControlTarget& target, const Json& arguments);
};

Answer query_status(ControlTarget& target, const Json&) {
  const auto state = target.run_state();
  if (!state) return refuse(state.error()->message());
  return Json{{"status", to_string(*state)}, {"running", *state == RunState::Running}};
}

Json inserted(const Json& disk) {
  const auto cache = disk.at("cache").get<std::string>();
  Json shown{
      {"file", disk.at("file")},
      {"ro", disk.at("read_only")},
      {"drv", disk.at("format")},
      {"cache",
       {{"writeback", disk.at("write_cache")},
        {"direct", cache == "none" || cache == "directsync"},
        {"no-flush", cache == "unsafe"}}},
      {"image",
       {{"filename", disk.at("file")}, {"format", disk.at("format")}, {"virtual-size", disk.at("size")}}}};
  shown.update(disk.at("throttling"));
  return shown;
}

// QMP's query-block, from our statistics.
Answer query_block(ControlTarget& target, const Json&) {
  const auto disks = target.disks();
  if (!disks) return refuse(disks.error()->message());
  Json list = Json::array();
  for (const Json& disk : *disks) {
    const auto tray = disk.find("tray");
    const bool removable = tray != disk.end();
    Json shown{{"device", disk.at("id")},
               {"type", removable ? "cdrom" : "hd"},
               {"removable", removable},
               {"locked", removable && tray->at("locked")}};
    if (removable) shown["tray_open"] = tray->at("open");
    shown["bus"] = disk.at("bus");
    shown["io-status"] = disk.at("io_status");
    if (disk.contains("file")) shown["inserted"] = inserted(disk);
    list.push_back(std::move(shown));
  }
  return list;
}

// QMP's names for what QMP counts, and our own exact counters beside them.
Answer query_blockstats(ControlTarget& target, const Json&) {
  const auto disks = target.disks();
  if (!disks) return refuse(disks.error()->message());
  Json list = Json::array();
  for (const Json& disk : *disks) {
    const Json& counters = disk.at("counters");
    list.push_back({{"device", disk.at("id")},
                    {"stats",
                     {{"rd_bytes", counters.at("read_bytes")},
                      {"wr_bytes", counters.at("write_bytes")},
                      {"rd_operations", counters.at("read_ops")},
                      {"wr_operations", counters.at("write_ops")},
                      {"flush_operations", counters.at("flush_requests")},
                      {"unmap_operations", counters.at("discard_ops")}}},
                    {"counters", counters},
                    {"protocol", disk.at("protocol")}});
  }
  return list;
}

Answer stop(ControlTarget& target, const Json&) {
  return nothing(target.stop());
}
Answer cont(ControlTarget& target, const Json&) {
  return nothing(target.cont());
}
Answer quit(ControlTarget& target, const Json&) {
  return nothing(target.quit());
}
Answer system_reset(ControlTarget& target, const Json&) {
  return nothing(target.system_reset());
}
Answer system_powerdown(ControlTarget& target, const Json&) {
  return nothing(target.system_powerdown());
}
Answer block_set_write_cache(ControlTarget& target, const Json& arguments) {
  return nothing(target.set_write_cache(arguments.at("device").get<std::string>(),
                                        arguments.at("writeback").get<bool>()));
}
Answer block_resize(ControlTarget& target, const Json& arguments) {
  return nothing(
      target.resize(arguments.at("device").get<std::string>(), arguments.at("size").get<uint64_t>()));
}
// Unlike the others it may leave most of its arguments out; what is left out is unset, as QMP has it.
Answer block_set_io_throttle(ControlTarget& target, const Json& arguments) {
  ThrottleLimits limits;
  for (const ThrottleField& field : throttle_fields(limits, ThrottleSpelling::Qmp)) {
    if (arguments.contains(field.name)) *field.value = arguments.at(field.name).get<uint64_t>();
  }
  if (const auto good = check_throttle_limits(limits, ThrottleSpelling::Qmp); !good) return nothing(good);
  return nothing(target.set_throttle(arguments.at("device").get<std::string>(), limits));
}
Answer trace_start(ControlTarget& target, const Json& arguments) {
  return nothing(target.start_trace(arguments.at("file").get<std::string>()));
}
Answer trace_stop(ControlTarget& target, const Json&) {
  return nothing(target.stop_trace());
}
Answer query_trace(ControlTarget& target, const Json&) {
  const auto status = target.trace_status();
  if (!status) return refuse(status.error()->message());
  return Json{{"recording", status->recording},
              {"file", status->file},
              {"events", status->events},
              {"lost", status->lost}};
}
// `device` and `id` are the same to us; QMP has both, of which one is given.
std::expected<std::string, Refusal> drive_of(const Json& arguments) {
  if (arguments.contains("device") == arguments.contains("id"))
    return refuse("Need exactly one of 'device' and 'id'");
  return arguments.at(arguments.contains("id") ? "id" : "device").get<std::string>();
}
bool forced(const Json& arguments) {
  return arguments.contains("force") && arguments.at("force").get<bool>();
}
Answer eject(ControlTarget& target, const Json& arguments) {
  const auto drive = drive_of(arguments);
  if (!drive) return std::unexpected(drive.error());
  return nothing(target.eject(*drive, forced(arguments)));
}
Answer open_tray(ControlTarget& target, const Json& arguments) {
  const auto drive = drive_of(arguments);
  if (!drive) return std::unexpected(drive.error());
  return nothing(target.open_tray(*drive, forced(arguments)));
}
Answer close_tray(ControlTarget& target, const Json& arguments) {
  const auto drive = drive_of(arguments);
  if (!drive) return std::unexpected(drive.error());
  return nothing(target.close_tray(*drive));
}
Answer change_medium(ControlTarget& target, const Json& arguments) {
  const auto drive = drive_of(arguments);
  if (!drive) return std::unexpected(drive.error());
  const auto text = [&arguments](const char* name, const char* otherwise) {
    return arguments.contains(name) ? arguments.at(name).get<std::string>() : std::string(otherwise);
  };
  const std::string mode = text("read-only-mode", "retain");
  if (mode == "read-write")
    return refuse("read-only-mode read-write: nobody writes to a CD-ROM; leave it out");
  if (mode != "retain" && mode != "read-only")
    return refuse(fmt::format("read-only-mode {} is not possible: it must be retain or read-only", mode));
  return nothing(
      target.change_medium(*drive, text("filename", ""), text("format", "raw"), forced(arguments)));
}
Answer query_version(ControlTarget&, const Json&) {
  return Json{{"package", "spindle"}};
}
// QMP's handshake. Nothing has to be agreed on, so it may also be left out.
Answer capabilities(ControlTarget&, const Json&) {
  return Json::object();
}
Answer query_commands(ControlTarget&, const Json&);

constexpr bool kOptional = false;
constexpr Parameter kTrayParameters[] = {{"device", Type::String, kOptional},
                                         {"id", Type::String, kOptional},
                                         {"force", Type::Boolean, kOptional}};
constexpr Parameter kCloseTrayParameters[] = {{"device", Type::String, kOptional},
                                              {"id", Type::String, kOptional}};
constexpr Parameter kMediumParameters[] = {
    {"device", Type::String, kOptional}, {"id", Type::String, kOptional},
    {"filename", Type::String},          {"format", Type::String, kOptional},
    {"force", Type::Boolean, kOptional}, {"read-only-mode", Type::String, kOptional}};
constexpr Parameter kResizeParameters[] = {{"device", Type::String}, {"size", Type::Size}};
constexpr Parameter kThrottleParameters[] = {{"device", Type::String},
                                             {"bps", Type::Size},
                                             {"bps_rd", Type::Size},
                                             {"bps_wr", Type::Size},
                                             {"iops", Type::Size},
                                             {"iops_rd", Type::Size},
                                             {"iops_wr", Type::Size},
                                             {"bps_max", Type::Size, kOptional},
                                             {"bps_rd_max", Type::Size, kOptional},
                                             {"bps_wr_max", Type::Size, kOptional},
                                             {"iops_max", Type::Size, kOptional},
                                             {"iops_rd_max", Type::Size, kOptional},
                                             {"iops_wr_max", Type::Size, kOptional},
                                             {"bps_max_length", Type::Size, kOptional},
                                             {"bps_rd_max_length", Type::Size, kOptional},
                                             {"bps_wr_max_length", Type::Size, kOptional},
                                             {"iops_max_length", Type::Size, kOptional},
                                             {"iops_rd_max_length", Type::Size, kOptional},
                                             {"iops_wr_max_length", Type::Size, kOptional},
                                             {"iops_size", Type::Size, kOptional}};
constexpr Parameter kTraceParameters[] = {{"file", Type::String}};
constexpr Parameter kWriteCacheParameters[] = {{"device", Type::String}, {"writeback", Type::Boolean}};

constexpr std::array kCommands = {
    Command{"block_resize", kResizeParameters, block_resize},
    Command{"block_set_io_throttle", kThrottleParameters, block_set_io_throttle},
    Command{"block_set_write_cache", kWriteCacheParameters, block_set_write_cache},
    Command{"blockdev-change-medium", kMediumParameters, change_medium},
    Command{"blockdev-close-tray", kCloseTrayParameters, close_tray},
    Command{"blockdev-open-tray", kTrayParameters, open_tray},
    Command{"cont", {}, cont},
    Command{"eject", kTrayParameters, eject},
    Command{"qmp_capabilities", {}, capabilities},
    Command{"query-block", {}, query_block},
    Command{"query-blockstats", {}, query_blockstats},
    Command{"query-commands", {}, query_commands},
    Command{"query-status", {}, query_status},
    Command{"query-trace", {}, query_trace},
    Command{"query-version", {}, query_version},
    Command{"quit", {}, quit},
    Command{"stop", {}, stop},
    Command{"system_powerdown", {}, system_powerdown},
    Command{"system_reset", {}, system_reset},
    Command{"trace-start", kTraceParameters, trace_start},
    Command{"trace-stop", {}, trace_stop},
};

Answer query_commands(ControlTarget&, const Json&) {
  Json list = Json::array();
  for (const Command& command : kCommands) list.push_back({{"name", command.name}});
  return list;
}

bool fits(Type type, const Json& value) {
  switch (type) {
    case Type::String:
      return value.is_string();
    case Type::Boolean:
      return value.is_boolean();
    case Type::Size:
      return value.is_number_unsigned();
  }
  return false;
}

std::string_view to_string(Type type) {
  switch (type) {
    case Type::String:
      return "string";
    case Type::Boolean:
      return "boolean";
    case Type::Size:
      return "integer, 0 or more";
  }
  return "";
}

std::expected<void, Refusal> check_arguments(const Command& command, const Json& arguments) {
  for (const auto& [name, value] : arguments.items()) {
    const auto known = std::ranges::find(command.parameters, std::string_view(name), &Parameter::name);
    if (known == command.parameters.end()) return refuse(fmt::format("Parameter '{}' is unexpected", name));
    if (!fits(known->type, value)) {
      return refuse(
          fmt::format("Invalid parameter type for '{}', expected: {}", name, to_string(known->type)));
    }
  }
  for (const Parameter& parameter : command.parameters) {
    if (parameter.required && !arguments.contains(parameter.name))
      return refuse(fmt::format("Parameter '{}' is missing", parameter.name));
  }
  return {};
}

Answer carry_out(const Json& request, ControlTarget& target) {
  if (!request.is_object()) return refuse("a request is a JSON object on one line");
  for (const auto& [name, value] : request.items()) {
    if (name != "execute" && name != "arguments" && name != "id")
      return refuse(fmt::format("QMP input member '{}' is unexpected", name));
  }
  if (!request.contains("execute")) return refuse("QMP input lacks member 'execute'");
  if (!request.at("execute").is_string()) return refuse("QMP input member 'execute' must be a string");
  const Json arguments = request.contains("arguments") ? request.at("arguments") : Json::object();
  if (!arguments.is_object()) return refuse("QMP input member 'arguments' must be an object");
  const auto name = request.at("execute").get<std::string>();
  const auto command = std::ranges::find(kCommands, std::string_view(name), &Command::name);
  if (command == kCommands.end()) {
    return std::unexpected(Refusal{.error_class = "CommandNotFound",
                                   .description = fmt::format("The command {} has not been found", name)});
  }
  if (auto good = check_arguments(*command, arguments); !good)
    return std::unexpected(std::move(good.error()));
  return command->run(target, arguments);
}

// Copying JSON and writing it out recurse, so how deep it may be is bounded: as in QEMU.
constexpr int kMaxNesting = 1024;

std::string to_line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string control_greeting() {
  return to_line({{"QMP", {{"version", {{"package", "spindle"}}}, {"capabilities", Json::array()}}}});
}

std::string answer_request(std::string_view line, ControlTarget& target) {
  bool too_deep = false;
  const auto keep = [&too_deep](int depth, Json::parse_event_t, const Json&) {
    too_deep |= depth > kMaxNesting;
    return !too_deep;
  };
  const Json request = Json::parse(line, keep, /*allow_exceptions=*/false);
  Answer answer = too_deep ? Answer(refuse(fmt::format("JSON nested deeper than {} levels", kMaxNesting)))
                  : request.is_discarded() ? Answer(refuse("JSON parse error"))
                                           : carry_out(request, target);
  Json json;
  if (answer) {
    json["return"] = std::move(*answer);
  } else {
    json["error"] = {{"class", answer.error().error_class}, {"desc", answer.error().description}};
  }
  if (request.is_object() && request.contains("id")) json["id"] = request.at("id");
  return to_line(json);
}

}  // namespace spindle::vmm
