// Runs a task whose parts complete at once, as all over an ImageNode do, without a turn of the reactor's
// loop: a state's verdict takes microseconds, and one system call would be most of it. A task that does wait
// (a format that yields) gets its turns.
#pragma once

#include <optional>
#include <utility>

#include "block/io/reactor.h"
#include "block/io/task.h"

namespace spindle::crash {

template <typename T>
T run_now(Reactor& reactor, Task<T> task) {
  std::optional<T> value;
  spawn(std::move(task), [&value](T result) { value.emplace(std::move(result)); });
  if (!value) reactor.run_until([&value] { return value.has_value(); });
  return std::move(*value);
}

}  // namespace spindle::crash
