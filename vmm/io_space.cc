#include "vmm/io_space.h"

#include <algorithm>
#include <mutex>

namespace spindle::vmm {

void IoSpace::add(uint64_t address, uint64_t size, IoHandler& handler) {
  std::unique_lock lock(mutex_);
  const auto first_window = std::ranges::find_if(ranges_, [](const Range& range) { return range.owner; });
  ranges_.insert(first_window, Range{{address, size, &handler}, nullptr});
}

void IoSpace::set_windows(const void* owner, std::span<const Window> windows) {
  std::unique_lock lock(mutex_);
  std::erase_if(ranges_, [owner](const Range& range) { return range.owner == owner; });
  for (const Window& window : windows) ranges_.push_back({window, owner});
}

std::optional<IoSpace::Window> IoSpace::find(uint64_t address, std::size_t width) const {
  std::shared_lock lock(mutex_);
  for (const Range& range : ranges_) {
    const uint64_t offset =
        address - range.window.address;  // wraps for an address below: then larger than size
    if (offset < range.window.size && width <= range.window.size - offset) return range.window;
  }
  return std::nullopt;
}

void IoSpace::read(uint64_t address, std::span<uint8_t> data, std::size_t width) const {
  const auto window = find(address, width);
  if (!window) {
    std::ranges::fill(data, uint8_t{0xff});
  } else if (data.size() == width) {
    window->handler->read(address - window->address, data);
  } else {
    window->handler->read_repeated(address - window->address, data, width);
  }
}

std::shared_ptr<ParkedAccess> IoSpace::write(uint64_t address, std::span<const uint8_t> data,
                                             std::size_t width) const {
  const auto window = find(address, width);
  if (!window) return nullptr;
  if (data.size() == width) return window->handler->write(address - window->address, data);
  window->handler->write_repeated(address - window->address, data, width);
  return nullptr;
}

}  // namespace spindle::vmm
