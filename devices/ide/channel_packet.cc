// The third part of Channel: PACKET commands (ATA/ATAPI-6, 9.8).
//
// PACKET asks for a command block (Phase::Packet, without an interrupt: DRQ follows within 50 us, word 0),
// which says what is to be done. Data comes by PIO in DRQ blocks of at most as many bytes as the host has put
// into LBA Mid and High, each with its size there and an interrupt, or by DMA, by bit 0 of Features. A last
// interrupt brings the status. The Count register says which of these it is.
//
// By PIO, data from the medium comes in stages of what data_ holds, each handed out in one DRQ block or
// several. So the host's limit may be anything but what moves no word.
//
// The medium may go at any moment (the host's user takes it out). The command forgets it under the lock, so
// nothing new is read from it; a job under way is waited for by who closes it.
#include <algorithm>
#include <array>
#include <cstring>

#include "devices/ide/channel.h"
#include "devices/ide/media.h"

namespace spindle::ide {
namespace {

bool by_dma(const Request& request) {
  return request.registers.features.current & kPacketDma;
}
uint32_t byte_count_limit(const Request& request) {
  return static_cast<uint32_t>(request.registers.lba_high.current << 8 | request.registers.lba_mid.current);
}

}  // namespace

void Channel::await_cdb(Drive& drive) {
  drive.registers.count.current = kReasonCommand;
  block_ = kCdbBytes;
  cursor_ = 0;
  phase_ = Phase::Packet;
}

// The command block is there.
void Channel::start_packet(Drive& drive) {
  std::array<uint8_t, kCdbBytes> cdb;
  std::copy_n(data_.begin(), kCdbBytes, cdb.begin());
  Cdrom& cdrom = drive.cdrom();
  const auto data = prepare_packet(cdrom, cdb, data_);
  if (!data) {
    complete_packet(drive, data.error());
    return;
  }
  // Blocks of no words would never come to an end. That is an error of PACKET's, not of what it carries.
  if (data->bytes > 0 && !by_dma(current_) && byte_count_limit(current_) < 2) {
    complete(drive, Outcome::failed(kAbrt));
    return;
  }
  const PacketCommand& command = *find_packet_command(cdb[0]);
  if (command.opcode != kRequestSense) cdrom.sense = {};
  if (command.accept) command.accept(cdrom, cdb);
  current_.bytes = data->bytes;
  if (data->from_medium) {
    current_.lba = data->first_block << (kDiscBlockShift - kSectorShift);
    current_.work = read_disc;
    current_.medium = cdrom.medium().get();
  }
  if (current_.bytes == 0) {
    complete_packet(drive, Sense{});
  } else if (by_dma(current_)) {
    phase_ = Phase::AwaitDma;
    try_dma();
  } else {
    start_packet_data(drive);
  }
}

// True, and the command has ended, if what it reads from was taken away.
bool Channel::medium_is_gone(Drive& drive) {
  if (!current_.work || current_.medium) return false;
  complete_packet(drive, drive.cdrom().tell_medium_gone());
  return true;
}

// An answer that is in data_ already.
void Channel::packet_dma(Drive& drive) {
  std::size_t at = 0;
  for (const iovec& part : parts_) {
    std::memcpy(part.iov_base, data_.data() + at, part.iov_len);
    at += part.iov_len;
  }
  bus_master_.transfer_ended();
  complete_packet(drive, Sense{});
}

// The next stage of PIO data.
void Channel::start_packet_data(Drive& drive) {
  staged_ = static_cast<uint32_t>(std::min<uint64_t>(current_.bytes - done_, data_.size()));
  cursor_ = 0;
  if (!current_.work) {
    next_packet_block(drive);
    return;
  }
  if (medium_is_gone(drive)) return;
  block_part_ = {data_.data(), staged_};
  const Buffers stage(std::span(&block_part_, 1), block_part_.iov_len);
  start_job(drive.unit(), current_.part(done_, staged_), stage, false);
}

// Only the last block of a command may be odd.
void Channel::next_packet_block(Drive& drive) {
  const uint32_t left = staged_ - cursor_;
  uint32_t bytes = std::min(left, byte_count_limit(current_));
  if (bytes < left) bytes &= ~1u;
  block_ = cursor_ + bytes;
  drive.registers.count.current = kReasonToHost;
  drive.registers.lba_mid.current = static_cast<uint8_t>(bytes);
  drive.registers.lba_high.current = static_cast<uint8_t>(bytes >> 8);
  phase_ = Phase::DataIn;
  raise_interrupt(drive);
}

void Channel::packet_block_moved(Drive& drive) {
  if (phase_ == Phase::Packet) {
    start_packet(drive);
    return;
  }
  if (cursor_ < staged_) {
    next_packet_block(drive);
    return;
  }
  done_ += staged_;
  if (done_ < current_.bytes) {
    start_packet_data(drive);
  } else {
    complete_packet(drive, Sense{});
  }
}

void Channel::packet_job_ended(Drive& drive, const Job& job, const Outcome& outcome) {
  if (medium_is_gone(drive)) return;
  Sense sense = outcome.sense;
  // Hosts trust what lies before the block that is named. By PIO no block of this stage reaches them.
  if (sense.has_block && !job.dma)
    sense.block = static_cast<uint32_t>(job.request.lba >> (kDiscBlockShift - kSectorShift));
  if (sense.key != 0 || job.dma) {
    complete_packet(drive, sense);
  } else {
    next_packet_block(drive);
  }
}

void Channel::complete_packet(Drive& drive, const Sense& sense) {
  if (sense.key != 0) drive.cdrom().sense = sense;
  drive.registers.count.current = kReasonCommand | kReasonToHost;
  complete(drive, Outcome{.error = static_cast<uint8_t>(sense.key << 4)});
}

// ---- the host's user ----

Channel::Tray Channel::tray(unsigned unit) {
  std::lock_guard lock(mutex_);
  const Cdrom& cdrom = drives_[unit]->cdrom();
  return {.open = cdrom.tray_open(), .locked = cdrom.locked};
}

bool Channel::take_tray_out(Drive& drive, bool force) {
  Cdrom& cdrom = drive.cdrom();
  if (cdrom.tray_open()) return true;
  if (cdrom.locked && !force) {
    cdrom.ask_to_eject();
    return false;
  }
  cdrom.locked = false;
  cdrom.open_tray();
  if (current_.medium == cdrom.medium().get()) current_.medium = nullptr;
  return true;
}

// A read whose DMA has not begun would wait for nothing.
void Channel::end_waiting_read() {
  if (phase_ == Phase::AwaitDma && current_.command->protocol == Protocol::Packet)
    medium_is_gone(*selected());
}

bool Channel::open_tray(unsigned unit, bool force) {
  std::lock_guard lock(mutex_);
  const bool open = take_tray_out(*drives_[unit], force);
  end_waiting_read();
  return open;
}

void Channel::close_tray(unsigned unit) {
  std::lock_guard lock(mutex_);
  drives_[unit]->cdrom().close_tray();
}

bool Channel::change_medium(unsigned unit, std::shared_ptr<Disk>& medium, bool force) {
  std::lock_guard lock(mutex_);
  Drive& drive = *drives_[unit];
  if (!take_tray_out(drive, force)) return false;
  drive.cdrom().exchange(medium);
  if (drive.cdrom().medium()) drive.cdrom().close_tray();
  end_waiting_read();
  return true;
}

}  // namespace spindle::ide
