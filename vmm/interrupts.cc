#include "vmm/interrupts.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

namespace spindle::vmm {

InterruptLine& SharedPin::add_input() {
  std::lock_guard lock(mutex_);
  inputs_.push_back(std::make_unique<Input>(*this));
  return *inputs_.back();
}

void SharedPin::set(Input& input, bool asserted) {
  std::lock_guard lock(mutex_);
  if (input.asserted_ == asserted) return;
  input.asserted_ = asserted;
  asserted ? ++asserted_ : --asserted_;
  if (asserted_ == (asserted ? 1u : 0u)) drive_(asserted);
}

void SharedPin::refresh() {
  std::lock_guard lock(mutex_);
  drive_(asserted_ != 0);
}

VmMessages::~VmMessages() {
  for (auto& [number, vector] : vectors_) {
    if (vector.event) (void)vm_.unbind_irqfd(vector.event.get(), vector.gsi);
  }
}

void VmMessages::route(unsigned number, uint64_t address, uint32_t data) {
  if (auto routed = set_route(number, address, data); !routed) fault_(*routed.error());
}

Result<> VmMessages::set_route(unsigned number, uint64_t address, uint32_t data) {
  std::lock_guard lock(mutex_);
  Vector& vector = vectors_[number];
  if (vector.event && vector.address == address && vector.data == data) return {};
  const bool first = !vector.event;
  if (first) {
    vector.event = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!vector.event) return std::unexpected(Error::from_errno(errno, "eventfd", "a message interrupt"));
    vector.gsi = next_gsi_++;
  }
  vector.address = address;
  vector.data = data;
  SPINDLE_TRY(vm_.route_message(vector.gsi, address, data));
  return first ? vm_.bind_irqfd(vector.event.get(), vector.gsi) : Result<>{};
}

void VmMessages::signal(unsigned number) {
  std::lock_guard lock(mutex_);
  const auto found = vectors_.find(number);
  if (found == vectors_.end() || !found->second.event) return;  // never routed: it has nowhere to go
  const uint64_t one = 1;
  if (write(found->second.event.get(), &one, sizeof one) < 0 && errno != EAGAIN) {
    fault_(Error::from_errno(errno, "write", "an irqfd"));
  }
}

}  // namespace spindle::vmm
