// The file of a BadState: JSON, contents in base64. Reading checks all that is used.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "crash/bad_state.h"

namespace spindle::crash {
namespace {

using nlohmann::json;

constexpr const char* kMagic = "spindle crash state";
constexpr unsigned kVersion = 1;
constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::array<std::string_view, 5> kOperations = {"write", "zero", "discard", "flush", "resize"};

std::string encode(const std::byte* sector) {
  std::string text;
  for (std::size_t at = 0; at < kSector; at += 3) {
    uint32_t bits = 0;
    for (std::size_t i = 0; i < 3; ++i)
      bits = bits << 8 | (at + i < kSector ? std::to_integer<uint32_t>(sector[at + i]) : 0);
    for (int shift = 18; shift >= 0; shift -= 6) text += kDigits[bits >> shift & 63];
  }
  // 512 bytes leave two for the last group.
  text.back() = '=';
  return text;
}

bool decode(std::string_view text, Sector& sector) {
  if (text.size() != (kSector + 2) / 3 * 4) return false;
  std::size_t at = 0;
  for (std::size_t i = 0; i < text.size(); i += 4) {
    uint32_t bits = 0;
    for (std::size_t j = 0; j < 4; ++j) {
      const std::size_t digit =
          text[i + j] == '=' && i + j + 1 == text.size() ? 0 : kDigits.find(text[i + j]);
      if (digit == std::string_view::npos) return false;
      bits = bits << 6 | static_cast<uint32_t>(digit);
    }
    for (int shift = 16; shift >= 0 && at < kSector; shift -= 8)
      sector[at++] = static_cast<std::byte>(bits >> shift & 255);
  }
  return true;
}

Error damaged(const std::string& path, std::string detail) {
  return Error::invalid("crash replay", path, std::move(detail));
}

// Thrown inside this file, for what nlohmann's own exceptions do not say.
struct Wrong {
  std::string what;
};

uint64_t bounded(const json& value, uint64_t most, const char* what) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > most)
    throw Wrong{fmt::format("{} is not a number up to {}", what, most)};
  return value.get<uint64_t>();
}

ContentId content_of(const json& value, const ContentStore& contents) {
  return static_cast<ContentId>(bounded(value, contents.count() - 1, "a content"));
}

json pieces_of(const Operation& operation) {
  json pieces = json::array();
  for (const auto& piece : operation.pieces)
    pieces.push_back({piece.sector, piece.content, piece.from, piece.to});
  return pieces;
}

Operation operation_of(const json& value, const ContentStore& contents) {
  Operation operation;
  const auto kind = std::ranges::find(kOperations, value.at("kind").get<std::string>());
  if (kind == kOperations.end()) throw Wrong{"there is an operation of no known kind"};
  operation.kind = static_cast<Operation::Kind>(kind - kOperations.begin());
  operation.fua = value.at("fua").get<bool>();
  operation.unmap = value.at("unmap").get<bool>();
  operation.offset = bounded(value.at("offset"), kLargestImage, "an offset");
  operation.length = bounded(value.at("length"), kLargestImage, "a length");
  for (const json& piece : value.at("pieces")) {
    const uint64_t from = bounded(piece.at(2), kSector, "a piece"),
                   to = bounded(piece.at(3), kSector, "a piece");
    if (from >= to) throw Wrong{"there is an empty piece"};
    operation.pieces.push_back({bounded(piece.at(0), kLargestImage / kSector - 1, "a sector"),
                                content_of(piece.at(1), contents), static_cast<uint16_t>(from),
                                static_cast<uint16_t>(to)});
  }
  if (!std::ranges::is_sorted(operation.pieces, {}, &Operation::Piece::sector))
    throw Wrong{"the pieces of an operation are out of order"};
  return operation;
}

BadState state_of(const json& file) {
  if (file.at("type") != kMagic || file.at("version") != kVersion)
    throw Wrong{fmt::format("it is no crash state of version {}", kVersion)};
  BadState state;
  state.format = file.at("format").get<std::string>();
  state.options = file.at("options").get<FormatOptions>();
  state.cache = file.at("cache").get<std::string>();
  state.workload = file.at("workload").get<std::string>();
  state.seed = file.at("seed").get<uint64_t>();
  state.point = file.at("point").get<uint64_t>();
  state.depth = file.at("depth") == "metadata" ? Depth::Metadata : Depth::Full;
  const auto kind = corruption_of(file.at("kind").get<std::string>());
  if (!kind) throw Wrong{"it is of no known kind"};
  state.kind = *kind;
  state.finding = file.at("finding").get<std::string>();
  state.settled_last = file.at("settled_last").get<std::vector<std::string>>();
  for (const json& text : file.at("contents")) {
    Sector sector;
    if (!decode(text.get<std::string>(), sector)) throw Wrong{"a content is no base64 of a sector"};
    // The numbers in the file are those of a store that was filled in the same order.
    state.contents->push(sector.data());
  }
  for (const json& place : file.at("settled")) {
    state.settled.set(bounded(place.at(0), kLargestImage / kSector - 1, "a sector"),
                      content_of(place.at(1), *state.contents));
  }
  state.settled.resize(bounded(file.at("settled_size"), kLargestImage, "the size"));
  state.settled.forget_past();
  for (const json& doubt : file.at("doubts")) {
    BadState::Happened happened{operation_of(doubt, *state.contents), {}};
    for (const json& part : doubt.at("reached")) {
      const bool resize = happened.operation.kind == Operation::Kind::Resize;
      const ByteSpan span{bounded(part.at(0), kLargestImage, "a part"),
                          resize ? kNever : bounded(part.at(1), 2 * kLargestImage, "a part")};
      if (span.from > span.to) throw Wrong{"a part ends before it begins"};
      happened.parts.push_back(span);
    }
    state.doubts.push_back(std::move(happened));
  }
  if (file.contains("expected")) {
    GuestModel::Expectation expected;
    for (const json& sector : file.at("expected").at("sectors")) {
      std::vector<ContentId> legal;
      for (const json& id : sector.at(1)) legal.push_back(content_of(id, *state.contents));
      if (legal.empty()) throw Wrong{"a sector may hold nothing"};
      expected.sectors.emplace_back(sector.at(0).get<uint64_t>(), std::move(legal));
    }
    if (!std::ranges::is_sorted(expected.sectors)) throw Wrong{"the sectors are out of order"};
    expected.sizes = file.at("expected").at("sizes").get<std::vector<uint64_t>>();
    state.expected = std::move(expected);
  }
  return state;
}

}  // namespace

Result<> save(const BadState& state, const std::string& path) {
  json file = {{"type", kMagic},
               {"version", kVersion},
               {"format", state.format},
               {"options", state.options},
               {"cache", state.cache},
               {"workload", state.workload},
               {"seed", state.seed},
               {"point", state.point},
               {"depth", state.depth == Depth::Full ? "full" : "metadata"},
               {"kind", to_string(state.kind)},
               {"finding", state.finding},
               {"settled_last", state.settled_last},
               {"settled_size", state.settled.size()}};
  json contents = json::array();
  for (ContentId id = 1; id < state.contents->count(); ++id)
    contents.push_back(encode(state.contents->bytes(id)));
  file["contents"] = std::move(contents);
  json settled = json::array();
  const uint64_t sectors = (state.settled.size() + kSector - 1) / kSector;
  for (uint64_t sector = state.settled.next_data(0, sectors); sector < sectors;
       sector = state.settled.next_data(sector + 1, sectors)) {
    settled.push_back({sector, state.settled.at(sector)});
  }
  file["settled"] = std::move(settled);
  json doubts = json::array();
  for (const auto& [operation, parts] : state.doubts) {
    json reached = json::array();
    for (const ByteSpan& part : parts)
      reached.push_back({part.from, operation.kind == Operation::Kind::Resize ? operation.length : part.to});
    doubts.push_back({{"kind", kOperations[static_cast<std::size_t>(operation.kind)]},
                      {"fua", operation.fua},
                      {"unmap", operation.unmap},
                      {"offset", operation.offset},
                      {"length", operation.length},
                      {"pieces", pieces_of(operation)},
                      {"reached", std::move(reached)}});
  }
  file["doubts"] = std::move(doubts);
  if (state.expected) {
    file["expected"] = {{"sectors", state.expected->sectors}, {"sizes", state.expected->sizes}};
  }
  std::ofstream out(path, std::ios::trunc);
  out << file.dump() << '\n';
  out.close();
  if (!out) return std::unexpected(Error::from_errno(errno ? errno : EIO, "write", path));
  return {};
}

Result<BadState> load_bad_state(const std::string& path) {
  // Devices may have no end, and a directory can be opened but not read.
  std::error_code failed;
  const auto kind = std::filesystem::status(path, failed).type();
  using enum std::filesystem::file_type;
  if (kind == directory || kind == character || kind == block)
    return std::unexpected(damaged(path, "it is a directory or a device, not a file"));
  std::ifstream in(path);
  if (!in) return std::unexpected(Error::from_errno(errno ? errno : EIO, "open", path));
  std::ostringstream text;
  text << in.rdbuf();
  const json file = json::parse(text.str(), nullptr, false);
  if (file.is_discarded()) return std::unexpected(damaged(path, "it is not JSON"));
  try {
    return state_of(file);
  } catch (const json::exception& error) {
    return std::unexpected(damaged(path, fmt::format("it is no crash state: {}", error.what())));
  } catch (const Wrong& wrong) {
    return std::unexpected(damaged(path, wrong.what));
  }
}

}  // namespace spindle::crash
