// ReactorThread::call: how a thread that is no reactor (start-up, shutdown, a control connection) asks one
// for something.
#pragma once

#include <future>

#include "block/io/reactor.h"

namespace spindle {

template <typename Make>
auto ReactorThread::call(Make make) {
  using TaskType = decltype(make());
  using Value = decltype(std::declval<TaskType&>().await_resume());
  std::promise<Value> promise;
  auto future = promise.get_future();
  reactor_->post([&promise, &make] {
    if constexpr (std::is_void_v<Value>) {
      spawn(make(), [&promise] { promise.set_value(); });
    } else {
      spawn(make(), [&promise](Value value) { promise.set_value(std::move(value)); });
    }
  });
  return future.get();
}

}  // namespace spindle
