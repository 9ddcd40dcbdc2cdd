// The second part of Channel: how commands start, move their data and end, and how resets pass over them.
// What is special to packet commands is in channel_packet.cc.
#include <algorithm>
#include <cstring>
#include <utility>

#include "devices/ide/channel.h"

namespace spindle::ide {
namespace {

constexpr const char* kQueued = "queued";

}  // namespace

// ---- commands: under the lock ----

void Channel::start_command(uint8_t opcode) {
  noticed_ = trace::on() ? trace::now() : 0;
  if (opcode == kExecuteDeviceDiagnostic && !empty()) {
    run_diagnostic();
    return;
  }
  Drive* drive = selected();
  if (!drive) return;
  drive->smart.note_command(control_, drive->registers, opcode);
  drive->interrupt_pending = false;
  drive->status = kReady;
  drive->error = 0;
  update_line();

  const Command* command = drive->find(opcode);
  // ATA/ATAPI-6, 6.13: only a reset ends Sleep.
  if (!command || drive->power == Drive::Power::Sleep) {
    complete(*drive, Outcome::failed(kAbrt));
    return;
  }
  auto parsed = command->parse(*drive, *command, drive->registers);
  if (!parsed) {
    const Request refused{.command = command, .registers = drive->registers};
    if (parsed.error().lba) drive->show_address(refused, *parsed.error().lba);
    complete(*drive, parsed.error());
    return;
  }
  current_ = *parsed;
  done_ = 0;
  ends_in_error_ = false;
  Outcome accepted;
  if (current_.accept) accepted = current_.accept(*drive, current_, data_);
  if (!accepted.ok()) {
    complete(*drive, accepted);
    return;
  }
  switch (current_.command->protocol) {  // of the row that parsing may have chosen
    case Protocol::NonData:
      if (current_.work) {
        start_job(selected_, current_, Buffers{}, false);
      } else {
        complete(*drive, accepted);
      }
      break;
    case Protocol::PioIn:
    case Protocol::PioOut:
      start_pio_block();
      break;
    case Protocol::DmaIn:
    case Protocol::DmaOut:
      phase_ = Phase::AwaitDma;
      try_dma();
      break;
    case Protocol::Packet:
      await_cdb(*drive);
      break;
    case Protocol::Diagnostic:
      break;  // handled above: it addresses both drives
  }
}

// EXECUTE DEVICE DIAGNOSTIC (ATA/ATAPI-6, 8.11): whichever device is selected, both take it; device 0
// answers.
void Channel::run_diagnostic() {
  for (auto& drive : drives_) {
    if (!drive) continue;
    if (drive->power == Drive::Power::Sleep) drive->power = Drive::Power::Standby;
    drive->show_signature();
  }
  selected_ = 0;
  phase_ = Phase::Idle;
  if (Drive* drive = selected()) {
    raise_interrupt(*drive);
  } else {
    update_line();
  }
}

// Begins the next DRQ block of the current PIO command. The first block of data from the host is asked for
// without an interrupt (ATA/ATAPI-6, 9.6).
void Channel::start_pio_block() {
  block_ = static_cast<uint32_t>(std::min<uint64_t>(current_.bytes - done_, current_.block_bytes));
  cursor_ = 0;
  if (current_.command->protocol == Protocol::PioOut) {
    phase_ = Phase::DataOut;
    return;
  }
  if (!current_.work) {  // accept() has filled the block
    phase_ = Phase::DataIn;
    raise_interrupt(*selected());
    return;
  }
  block_part_ = {data_.data(), block_};
  const Buffers block_buffers(std::span(&block_part_, 1), block_part_.iov_len);
  start_job(selected_, current_.part(done_, block_), block_buffers, false);
}

// The host has moved the whole block.
void Channel::end_pio_block(Drive& drive) {
  if (current_.command->protocol == Protocol::Packet) {
    packet_block_moved(drive);
    return;
  }
  if (phase_ == Phase::DataOut) {
    block_part_ = {data_.data(), block_};
    const Buffers block_buffers(std::span(&block_part_, 1), block_part_.iov_len);
    start_job(drive.unit(), current_.part(done_, block_), block_buffers, false);
    return;
  }
  done_ += block_;
  if (done_ >= current_.bytes || ends_in_error_) {
    phase_ = Phase::Idle;  // no interrupt: the one for the last block was it
    return;
  }
  start_pio_block();
}

void Channel::try_dma() {
  if (phase_ != Phase::AwaitDma || !bus_master_.active() || !may_master_) return;
  if (bus_master_.gather(current_.bytes, parts_) != BusMaster::Gathered::All) return;
  if (current_.command->protocol == Protocol::Packet && !current_.work) {
    packet_dma(*selected());
  } else {
    start_job(selected_, current_, Buffers(parts_, current_.bytes), true);
  }
}

void Channel::complete(Drive& drive, const Outcome& outcome) {
  phase_ = Phase::Idle;
  drive.error = outcome.error;
  drive.status = outcome.ok() ? kReady : kReady | kErr;
  if (outcome.count) drive.registers.count.current = *outcome.count;
  raise_interrupt(drive);
}

// ---- jobs ----

void Channel::start_job(unsigned unit, const Request& request, Buffers data, bool dma) {
  phase_ = Phase::Working;
  if (noticed_ == 0 && trace::on()) [[unlikely]]
    noticed_ = trace::now();
  job_ = Job{.unit = unit,
             .request = request,
             .data = data,
             .generation = generation_,
             .dma = dma,
             .noticed = std::exchange(noticed_, 0)};
  post_job();
}

void Channel::post_job() {
  job_running_ = true;
  reactor_.post([this] { run_job(); });
}

Detached Channel::run_job() {
  Job job;
  {
    std::lock_guard lock(mutex_);
    job = job_;
  }
  Outcome outcome;
  if (job.request.command) {
    Drive& drive = *drives_[job.unit];  // drives_ is fixed once the machine runs
    const trace::Id traced = job.noticed != 0 ? disk_of(job).track().new_request() : 0;
    const char* const name = job.request.command->name;
    trace::begin_at(job.noticed, traced, name, {job.request.lba << kSectorShift, job.data.size});
    trace::begin_at(job.noticed, traced, kQueued);
    trace::end(traced, kQueued, "ok");
    trace::hand_down(traced);
    outcome = co_await job.request.work(drive, job.request, job.data);
    finish_job(job, outcome);
    trace::end(traced, name, outcome.ok() ? "ok" : "ERR");
    co_return;
  } else {
    for (unsigned unit = 0; unit < 2; ++unit) {
      if (!job.revert[unit]) continue;
      // A flush that fails here leaves the disk write-through (D3) and every later write and flush fails
      // (D6): the host will hear of it where it can be told. A reset has no way to say so.
      auto reverted = co_await drives_[unit]->disk().revert_write_cache();
      static_cast<void>(reverted);
    }
  }
  finish_job(job, outcome);
}

void Channel::finish_job(const Job& job, const Outcome& outcome) {
  reset_drain_.reset();
  std::lock_guard lock(mutex_);
  job_running_ = false;
  // A drive that fails stops asking for data, so the engine waits for more: Active stays set (PIIX4, BMISX).
  if (job.dma && outcome.ok() && outcome.sense.key == 0) bus_master_.transfer_ended();
  if (job.request.command && job.generation == generation_) {
    Drive& drive = *drives_[job.unit];
    const Protocol protocol = job.request.command->protocol;
    if (protocol == Protocol::Packet) {
      packet_job_ended(drive, job, outcome);
    } else if (!outcome.ok()) {
      const uint32_t good = static_cast<uint32_t>(done_ >> kSectorShift) + outcome.good_sectors;
      if (outcome.lba) {
        drive.show_address(job.request, *outcome.lba);
        const uint32_t remaining = current_.sectors() - good;
        drive.registers.count = {.current = static_cast<uint8_t>(remaining),
                                 .previous = static_cast<uint8_t>(remaining >> 8)};
      }
      complete(drive, outcome);
      if (outcome.fault != Fault::None)
        drive.smart.note_fault(outcome.fault, drive.registers, drive.error, drive.status);
      if (protocol == Protocol::PioIn && outcome.good_sectors > 0) {
        // The host is told of a bad sector within the block, and trusts those before it: so it gets the
        // block, as READ MULTIPLE has it (ATA/ATAPI-6, 8.28). What could not be read is zeroes.
        const std::size_t good_bytes = std::size_t{outcome.good_sectors} * kSectorBytes;
        std::memset(data_.data() + good_bytes, 0, block_ - good_bytes);
        ends_in_error_ = true;
        phase_ = Phase::DataIn;
      }
    } else if (protocol == Protocol::PioIn) {
      phase_ = Phase::DataIn;
      raise_interrupt(drive);
    } else if (protocol == Protocol::PioOut && done_ + block_ < current_.bytes) {
      done_ += block_;
      start_pio_block();
      raise_interrupt(drive);
    } else {
      complete(drive, outcome);
    }
  }
  advance_reset();
  for (auto waiter : drainers_) reactor_.schedule(waiter);
  drainers_.clear();
}

Disk& Channel::disk_of(const Job& job) const {
  return job.request.medium ? *job.request.medium : drives_[job.unit]->disk();
}

bool Channel::has_job() {
  std::lock_guard lock(mutex_);
  return job_running_;
}

// The end of the next job, if one runs that is waited for.
class Channel::JobEnd {
 public:
  JobEnd(Channel& channel, const Disk* medium) : channel_(channel), medium_(medium) {}
  bool await_ready() const noexcept { return false; }
  bool await_suspend(std::coroutine_handle<> handle) {
    std::lock_guard lock(channel_.mutex_);
    if (!channel_.job_runs(medium_)) return false;
    channel_.drainers_.push_back(handle);
    return true;
  }
  void await_resume() const noexcept {}

 private:
  Channel& channel_;
  const Disk* medium_;
};

// Other jobs may begin as soon as one has ended.
Task<void> Channel::no_job(const Disk* medium) {
  const auto runs = [&] {
    std::lock_guard lock(mutex_);
    return job_runs(medium);
  };
  while (runs()) {
    JobEnd end(*this, medium);
    co_await end;
  }
}

Task<void> Channel::drain() {
  return no_job(nullptr);
}

Task<void> Channel::let_go(const Disk& medium) {
  return no_job(&medium);
}

// ---- resets ----

// The command under way, if any, is no longer what the registers are about. A job that runs goes on.
void Channel::begin_reset() {
  ++generation_;
  reset_pending_ = true;
  resetting_ = {true, true};
  phase_ = Phase::Idle;
  selected_ = 0;
  for (auto& drive : drives_) {
    if (drive) drive->interrupt_pending = false;
  }
  for (const auto& drive : drives_) {
    if (!drive) continue;
    const Disk* disk = drive->is_packet() ? drive->cdrom().medium().get() : &drive->disk();
    if (disk) trace::mark(disk->track().id(), "channel reset");
  }
  if (job_running_) reactor_.post([this] { let_job_go(); });
}

// The host waits for the end of the reset, which waits for the job: no filter shall hold that back meanwhile.
void Channel::let_job_go() {
  std::lock_guard lock(mutex_);
  if (!job_running_ || job_.generation == generation_ || reset_drain_) return;
  if (job_.request.command) reset_drain_.emplace(disk_of(job_).node());
}

// DEVICE RESET (ATA/ATAPI-6, 8.10): as a soft reset of one device, which stays selected, whatever it is
// doing; what the host has chosen stays. There is no interrupt.
void Channel::device_reset(Drive& drive) {
  if (reset_pending_) return;  // this one has begun
  ++generation_;
  reset_pending_ = true;
  resetting_[drive.unit()] = true;
  phase_ = Phase::Idle;
  drive.interrupt_pending = false;
  if (drive.power == Drive::Power::Sleep) drive.power = Drive::Power::Standby;
  if (job_running_) reactor_.post([this] { let_job_go(); });
  advance_reset();
  update_line();
}

// Takes the next step of a reset, if it can be taken now.
void Channel::advance_reset() {
  if (!reset_pending_ || job_running_) return;
  if (revert_[0] || revert_[1]) {
    job_ = Job{.generation = generation_, .revert = revert_};
    revert_ = {};
    post_job();
    return;
  }
  if (control_ & kControlSrst) return;
  reset_pending_ = false;
  for (unsigned unit = 0; unit < 2; ++unit) {
    if (drives_[unit] && resetting_[unit]) drives_[unit]->show_signature();
  }
  resetting_ = {};
  update_line();
}

void Channel::reset() {
  std::lock_guard lock(mutex_);
  control_ = 0;
  bus_master_.reset();
  if (!empty()) {
    for (unsigned unit = 0; unit < 2; ++unit) {
      if (!drives_[unit]) continue;
      drives_[unit]->power_on();
      revert_[unit] = !drives_[unit]->is_packet();
    }
    begin_reset();
  }
  advance_reset();
  update_line();
}

}  // namespace spindle::ide
