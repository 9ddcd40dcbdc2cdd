// PiixIde: the IDE function of Intel's PIIX3 and PIIX4 south bridges: two channels in compatibility mode,
// each with two drives and a bus master engine (PIIX4 datasheet, chapter "IDE controller").
//
// The machine connects it:
//   ports 1F0h-1F7h, 3F6h, IRQ 14   command_block(0), control_block(0), lines[0]
//   ports 170h-177h, 376h, IRQ 15   command_block(1), control_block(1), lines[1]
//   BAR 4, 16 I/O ports             the bus master registers, through PciFunction::mappings()
//
// Power-on leaves both channels decoded (IDETIM bit 15), as firmware would: there is none here, and Linux's
// ata_piix ignores a channel that is not.
//
// Life: attach() the disks, run, stop the vCPUs, drain() on the reactor, close the disks, destroy. Drives'
// Disks must live on `reactor`.
//
// Threading: register accesses and reset() from any thread; drain() on the reactor.
#pragma once

#include <array>
#include <memory>
#include <mutex>

#include "devices/bus.h"
#include "devices/guest_memory.h"
#include "devices/ide/channel.h"
#include "devices/pci/pci_function.h"

namespace spindle::ide {

enum class PiixModel : uint8_t {
  Piix3,  ///< 8086:7010; Linux drives it with multiword DMA at most
  Piix4,  ///< 8086:7111; Linux uses up to UDMA/33
};

inline constexpr unsigned kChannels = 2;
inline constexpr unsigned kBusMasterBar = 4;

class PiixIde final : public pci::PciFunction {
 public:
  /// `memory`, `reactor` and the lines outlive this.
  PiixIde(const GuestMemory& memory, Reactor& reactor, std::array<InterruptLine*, kChannels> lines,
          PiixModel model = PiixModel::Piix4);

  /// Puts a drive on a channel, before the machine runs. Fails if the place does not exist or is taken, or if
  /// the options' strings do not fit.
  Result<> attach(unsigned channel, unsigned unit, std::shared_ptr<Disk> disk, DriveOptions options = {});
  /// The same with a CD-ROM drive; without a medium it is empty. `name` is what errors call it.
  Result<> attach_cdrom(unsigned channel, unsigned unit, std::shared_ptr<Disk> medium,
                        const std::string& name, DriveOptions options = {});

  /// Eight ports; the first is the 16-bit data register.
  IoHandler& command_block(unsigned channel) { return command_blocks_[channel]; }
  /// One port: Alternate Status and Device Control.
  IoHandler& control_block(unsigned channel) { return control_blocks_[channel]; }

  /// For what the host's user does to CD-ROM drives.
  Channel& channel(unsigned channel) { return channels_[channel]; }

  /// Machine reset. Returns at once; the channels show BSY until requests in flight have ended and the write
  /// caches are in their configured mode (D4).
  void reset() override;
  /// Returns when no request of any drive is with the reactor.
  Task<void> drain();
  /// How many requests are with the reactor: one a channel at most.
  unsigned jobs();

 protected:
  void config_changed() override;

 private:
  class CommandBlock final : public IoHandler {
   public:
    explicit CommandBlock(Channel& channel) : channel_(channel) {}
    void read(uint64_t offset, std::span<uint8_t> data) override;
    std::shared_ptr<ParkedAccess> write(uint64_t offset, std::span<const uint8_t> data) override;
    void read_repeated(uint64_t offset, std::span<uint8_t> data, std::size_t width) override;
    void write_repeated(uint64_t offset, std::span<const uint8_t> data, std::size_t width) override;

   private:
    Channel& channel_;
  };
  class ControlBlock final : public IoHandler {
   public:
    explicit ControlBlock(Channel& channel) : channel_(channel) {}
    void read(uint64_t offset, std::span<uint8_t> data) override;
    std::shared_ptr<ParkedAccess> write(uint64_t offset, std::span<const uint8_t> data) override;

   private:
    Channel& channel_;
  };
  class BusMasterPorts final : public IoHandler {
   public:
    explicit BusMasterPorts(std::array<Channel, kChannels>& channels) : channels_(channels) {}
    void read(uint64_t offset, std::span<uint8_t> data) override;
    std::shared_ptr<ParkedAccess> write(uint64_t offset, std::span<const uint8_t> data) override;

   private:
    std::array<Channel, kChannels>& channels_;
  };

  std::array<Channel, kChannels> channels_;
  std::array<CommandBlock, kChannels> command_blocks_;
  std::array<ControlBlock, kChannels> control_blocks_;
  BusMasterPorts bus_master_ports_;
  std::mutex controller_mutex_;  // orders the pushes to the channels: the last one carries the latest state
};

}  // namespace spindle::ide
