// InFlight: tells when all requests have ended that may still use a place which was given up.
//
// Requests come and go in epochs; a new epoch begins whenever a place is given up. The place is nobody's once
// every request of its epoch and those before has ended.
//
// Threading: the node's reactor only.
#pragma once

#include <cstdint>
#include <deque>

namespace spindle::qcow2 {

class InFlight {
 public:
  /// A request, from its construction to its destruction.
  class Request {
   public:
    explicit Request(InFlight& all) : all_(all), epoch_(all.enter()) {}
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;
    ~Request() { all_.leave(epoch_); }

   private:
    InFlight& all_;
    uint64_t epoch_;
  };

  /// Ends the running epoch and gives its number.
  uint64_t end_epoch() {
    const uint64_t epoch = first_ + requests_.size() - 1;
    requests_.push_back(0);
    trim();
    return epoch;
  }
  /// No request of that epoch or of one before it is left.
  bool ended(uint64_t epoch) const { return first_ > epoch; }

 private:
  uint64_t enter() {
    ++requests_.back();
    return first_ + requests_.size() - 1;
  }
  void leave(uint64_t epoch) {
    --requests_[epoch - first_];
    trim();
  }
  void trim() {
    while (requests_.size() > 1 && requests_.front() == 0) {
      requests_.pop_front();
      ++first_;
    }
  }

  uint64_t first_ = 0;
  std::deque<uint32_t> requests_{0};
};

}  // namespace spindle::qcow2
