// Channel: one ATA channel with its two drives: the register file, the protocol state, the bus master engine
// and the interrupt line. The one owner of all of it.
//
// Threading. vCPU threads read and write registers, the reactor completes commands; one mutex per channel
// guards everything but the two things that are lent out while a job runs: `data_` (the PIO block) and
// `parts_` (the DMA scatter list). They belong to the job from start_job() to finish_job(); meanwhile the
// channel is busy and no register access can reach them. No vCPU ever waits for a disk: it leaves the job and
// goes.
//
// Phases:
//   Idle         no command
//   AwaitDma     a DMA command is parsed and waits for the bus master              BSY
//   Working      a job is with the reactor                                         BSY
//   DataIn       the host reads a block from the data register                     DRQ
//   DataOut      the host writes a block to the data register                      DRQ
//   Packet       the host writes the command block of PACKET                       DRQ
// Over them lies the reset: from SRST or machine reset until no job runs, settings are reverted (D4) and SRST
// is 0 again, both drives show BSY.
//
// Jobs. At most one runs at a time, because while one does, or DRQ is set, writes to the command block are
// ignored; a reset ends the command in the registers at once, but keeps BSY up until the job has ended. Each
// job carries a Request, a value with its own address, and the generation it belongs to. A reset begins a new
// generation: what an older job transferred is where it was aimed, its outcome is dropped.
//
// Interrupts. INTRQ is a function of state: the selected drive's pending interrupt, unless nIEN. The line is
// set under the lock whenever that value changes, so a level is never lost and never stale.
//
// Registers. Both drives take every write to the command block (ATA/ATAPI-6, 9.16), the selected one answers.
// An absent device 1 beside device 0: Status reads 0, the rest is device 0's. An absent device 0, and an
// empty channel: nobody drives the bus, and the pull-down on DD7 makes every register read 7Fh, so that hosts
// see BSY clear and lose no time.
#pragma once

#include <array>
#include <atomic>
#include <coroutine>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "block/io/reactor.h"
#include "devices/bus.h"
#include "devices/guest_memory.h"
#include "devices/ide/bus_master.h"
#include "devices/ide/drive.h"

namespace spindle::ide {

class Channel {
 public:
  Channel(const GuestMemory& memory, Reactor& reactor, InterruptLine& line);
  ~Channel() = default;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  /// Before the machine runs. Fails if the unit (0 or 1) is taken or the options do not fit.
  Result<> attach(unsigned unit, std::shared_ptr<Disk> disk, DriveOptions options);
  /// The same with a CD-ROM drive; `name` is for the error. No medium: an empty one.
  Result<> attach_cdrom(unsigned unit, std::shared_ptr<Disk> medium, DriveOptions options,
                        const std::string& name);

  // ---- any thread ----

  /// Accesses to the command block, offset 0-7. Wide accesses of the data register move words, of other
  /// registers bytes of adjoining ones.
  void read_command_block(unsigned offset, std::span<uint8_t> data);
  void write_command_block(unsigned offset, std::span<const uint8_t> data);
  /// rep ins/outs of the data register.
  void read_data(std::span<uint8_t> data, std::size_t width);
  void write_data(std::span<const uint8_t> data, std::size_t width);
  /// Alternate Status and Device Control.
  uint8_t read_control();
  void write_control(uint8_t value);
  /// The channel's 8 bus master registers; offset + data.size() <= 8.
  void read_bus_master(unsigned offset, std::span<uint8_t> data);
  void write_bus_master(unsigned offset, std::span<const uint8_t> data);

  /// What the PCI function says: whether the channel's ports are decoded, and whether it may master the bus.
  void set_controller(bool decoded, bool bus_master);
  /// Machine reset: registers, settings and write cache (D4) as after power-on. Returns at once; BSY until
  /// done.
  void reset();

  // What the host's user does to a unit's CD-ROM drive (attach_cdrom). A command that reads from a medium
  // which goes ends in CHECK CONDITION; by PIO the host still gets what lies ready for it.

  struct Tray {
    bool open = false;
    bool locked = false;
  };
  Tray tray(unsigned unit);
  /// False: the guest has locked it, and is told by an event that somebody would have it open. With `force`
  /// it opens all the same. The medium stays in it.
  bool open_tray(unsigned unit, bool force);
  void close_tray(unsigned unit);
  /// The tray opens, as by open_tray(), and what lies in it is swapped for `medium`. With a new medium it
  /// closes again, in one step as the guest sees it; null leaves it open. What was taken out may still be
  /// read from, until let_go().
  bool change_medium(unsigned unit, std::shared_ptr<Disk>& medium, bool force);

  // ---- the reactor ----

  /// Returns when no job runs. The caller has stopped the vCPUs.
  Task<void> drain();
  /// Returns when no job reads from a medium that was taken out.
  Task<void> let_go(const Disk& medium);
  bool has_job();

 private:
  enum class Phase : uint8_t { Idle, AwaitDma, Working, DataIn, DataOut, Packet };

  /// What the reactor is given.
  struct Job {
    unsigned unit = 0;
    Request request;          ///< of PIO: the block, not the command
    Buffers data;             ///< names data_ or parts_
    uint64_t generation = 0;  ///< of the registers it answers to
    bool dma = false;
    uint64_t noticed = 0;  ///< when the command register was written, or the block was complete; for traces
    std::array<bool, 2>
        revert{};  ///< instead of a request: bring the write caches back to their configured mode
  };

  Drive* selected() const { return drives_[selected_].get(); }
  bool empty() const { return !drives_[0] && !drives_[1]; }
  bool busy() const { return reset_pending_ || phase_ == Phase::AwaitDma || phase_ == Phase::Working; }
  bool transferring() const {
    return phase_ == Phase::DataIn || phase_ == Phase::DataOut || phase_ == Phase::Packet;
  }

  // Registers.
  uint8_t status() const;
  uint8_t read_register(unsigned offset);
  void write_register(unsigned offset, uint8_t value);
  std::size_t take_data(std::span<uint8_t> data);
  std::size_t give_data(std::span<const uint8_t> data);

  Result<> add(unsigned unit, std::unique_ptr<Drive> drive, const std::string& name);

  // Commands.
  void start_command(uint8_t opcode);
  void run_diagnostic();
  void start_pio_block();
  void end_pio_block(Drive& drive);
  void try_dma();
  void complete(Drive& drive, const Outcome& outcome);

  // Packet commands (channel_packet.cc).
  void await_cdb(Drive& drive);
  void start_packet(Drive& drive);
  void start_packet_data(Drive& drive);
  bool medium_is_gone(Drive& drive);
  bool take_tray_out(Drive& drive, bool force);
  void end_waiting_read();
  void packet_dma(Drive& drive);
  void next_packet_block(Drive& drive);
  void packet_block_moved(Drive& drive);
  void packet_job_ended(Drive& drive, const Job& job, const Outcome& outcome);
  void complete_packet(Drive& drive, const Sense& sense);

  void raise_interrupt(Drive& drive);
  void update_line();

  // Jobs and resets.
  void start_job(unsigned unit, const Request& request, Buffers data, bool dma);
  void post_job();
  Detached run_job();
  /// Of a job that has a request.
  Disk& disk_of(const Job& job) const;
  void finish_job(const Job& job, const Outcome& outcome);
  class JobEnd;
  Task<void> no_job(const Disk* medium);
  bool job_runs(const Disk* medium) const {
    return job_running_ && (!medium || job_.request.medium == medium);
  }
  void begin_reset();
  void device_reset(Drive& drive);
  void let_job_go();
  void advance_reset();

  const GuestMemory& memory_;
  Reactor& reactor_;
  InterruptLine& line_;

  std::mutex mutex_;
  std::array<std::unique_ptr<Drive>, 2> drives_;
  unsigned selected_ = 0;
  uint8_t control_ = 0;
  bool decoded_ = true;
  bool may_master_ = false;
  bool line_level_ = false;
  BusMaster bus_master_;

  Phase phase_ = Phase::Idle;
  Request current_;             // the command under way
  uint64_t noticed_ = 0;        // when it came, while a trace is recorded and no job has begun
  uint64_t done_ = 0;           // its bytes that are finished
  uint32_t block_ = 0;          // where the present DRQ block ends in data_
  uint32_t cursor_ = 0;         // and how far the host has come
  uint32_t staged_ = 0;         // packet commands: bytes in data_, for one block or several
  bool ends_in_error_ = false;  // the block is the last: an error follows it

  uint64_t generation_ = 0;
  bool reset_pending_ = false;
  std::array<bool, 2> resetting_{};  // which drives it is about
  std::array<bool, 2> revert_{};     // write caches that the reset must bring back
  bool job_running_ = false;
  Job job_;
  std::optional<DrainSection> reset_drain_;  // only used on the reactor
  std::vector<std::coroutine_handle<>> drainers_;

  std::vector<iovec> parts_;
  iovec block_part_{};
  alignas(4096) std::array<uint8_t, kMaxMultiple * kSectorBytes> data_{};
};

}  // namespace spindle::ide
