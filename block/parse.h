// Small parsers for what people type: sizes, numbers, switches. Shared by the option lists, the image tools
// and the fault rules, so that all of them accept the same and refuse the same.
//
// They return nullopt rather than an Error: only the caller knows which option the text stood in, and that is
// what the message must name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace spindle {

/// A decimal number (or hexadecimal with 0x) that fits, with nothing before or behind it.
std::optional<uint64_t> parse_number(std::string_view text);

/// A number of bytes with an optional suffix b, k, M, G, T, P or E (either case), k = 1024, as QEMU's tools
/// take them. A decimal fraction is accepted with a suffix ("1.5G") and rounded to the nearest byte.
/// nullopt for anything else and for what does not fit 63 bits, the largest file offset.
std::optional<uint64_t> parse_size(std::string_view text);

/// "on" and "off", as QEMU's options take them.
std::optional<bool> parse_on_off(std::string_view text);

/// "512 B", "64 KiB", "1.5 GiB": for messages.
std::string format_size(uint64_t bytes);

}  // namespace spindle
