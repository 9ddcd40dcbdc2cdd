#include "devices/ide/cdrom.h"

#include <algorithm>

namespace spindle::ide {

uint64_t Cdrom::blocks() const {
  if (!medium_ || tray_open_) return 0;
  const uint64_t size = medium_->size();
  const uint64_t whole = size >> kDiscBlockShift;
  const uint64_t partial = size % kDiscBlockBytes != 0 ? 1 : 0;
  return std::min<uint64_t>(whole + partial, UINT32_MAX);
}

Sense Cdrom::tell_medium_gone() {
  if (!ready()) return not_ready();
  attention = false;
  return kMediumMayHaveChanged;
}

Cdrom::MediaEvent Cdrom::event() const {
  return moved_ == MediaEvent::None && eject_wanted_ ? MediaEvent::EjectRequest : moved_;
}

void Cdrom::event_told() {
  if (moved_ == MediaEvent::None) eject_wanted_ = false;
  moved_ = MediaEvent::None;
}

void Cdrom::open_tray() {
  if (tray_open_) return;
  tray_open_ = true;
  attention = false;
  eject_wanted_ = false;
  moved_ = MediaEvent::MediaRemoval;
}

void Cdrom::close_tray() {
  if (!tray_open_) return;
  tray_open_ = false;
  if (!ready()) return;
  attention = true;
  moved_ = MediaEvent::NewMedia;
}

void Cdrom::power_on() {
  sense = {};
  moved_ = MediaEvent::None;
  eject_wanted_ = false;
  locked = false;
  attention = false;
}

std::expected<PacketData, Sense> prepare_packet(Cdrom& cdrom, Cdb cdb, std::span<uint8_t> block) {
  const PacketCommand* command = find_packet_command(cdb[0]);
  if (!command) return std::unexpected(kInvalidOperationCode);
  if (cdrom.attention && !command->despite_attention) {
    cdrom.attention = false;
    return std::unexpected(kMediumMayHaveChanged);
  }
  if (command->needs_medium && !cdrom.ready()) return std::unexpected(cdrom.not_ready());
  return command->prepare(cdrom, cdb, block);
}

}  // namespace spindle::ide
