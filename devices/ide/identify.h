// IDENTIFY DEVICE and IDENTIFY PACKET DEVICE data (ATA8-ACS, 7.16 and 7.17): what the drive is and, at every
// moment, what mode it is in.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "devices/ide/drive.h"

namespace spindle::ide {

/// Fills `block` (512 bytes, little endian words) from the drive's state now. Under
/// the channel's lock.
void identify_device(const Drive& drive, std::span<uint8_t> block);
/// The same of a packet device.
void identify_packet_device(const Drive& drive, std::span<uint8_t> block);

}  // namespace spindle::ide
