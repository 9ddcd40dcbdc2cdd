#include "block/trace/tracer.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "block/trace/chrome_json.h"
#include "block/trace/ring.h"

namespace spindle::trace {
namespace {

constexpr auto kBetweenLooks = std::chrono::milliseconds(10);
constexpr std::size_t kPiece = 256 << 10;
constexpr std::string_view kFirstBytes = R"([
{"ph":"M","name":"process_name",)";          // of what ChromeJson writes
constexpr int kPatienceMilliseconds = 1000;  // for a FIFO's reader

std::atomic<bool> one_at_a_time{false};

Error error_of(int number, const char* operation, const std::string& file, std::string detail = {}) {
  Error error = Error::from_errno(number, operation, file);
  error.detail = std::move(detail);
  return error;
}

// Whether `file` may be replaced: there is none, or it is no regular file, or an empty one, or begins as a
// trace does.
Result<> check_replaceable(const std::string& file) {
  struct stat there {};
  const bool found = stat(file.c_str(), &there) == 0;
  if (found && S_ISBLK(there.st_mode))
    return std::unexpected(error_of(EEXIST, "trace to", file, "it is a block device; choose a file"));
  if (!found || !S_ISREG(there.st_mode) || there.st_size == 0) return {};
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return std::unexpected(error_of(errno, "trace to", file));
  std::array<char, kFirstBytes.size()> first{};
  const auto got = read(fd, first.data(), first.size());
  close(fd);
  if (got == static_cast<ssize_t>(first.size()) && std::ranges::equal(first, kFirstBytes)) return {};
  return std::unexpected(
      error_of(EEXIST, "trace to", file, "it holds something that is no trace; choose another name"));
}

Result<int> open_file(const std::string& file) {
  SPINDLE_TRY(check_replaceable(file));
  // O_NONBLOCK: a FIFO without a reader is an error instead of a wait.
  const int fd = open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666);
  if (fd >= 0) return fd;
  const char* hint = errno == ENOENT ? "its directory must exist" : errno == ENXIO ? "nobody reads it" : "";
  return std::unexpected(error_of(errno, "trace to", file, hint));
}

}  // namespace

struct Tracer::Session {
  Session(std::string name, int descriptor)
      : file(std::move(name)), fd(descriptor), json(now(), std::time(nullptr)) {}
  ~Session() { close(fd); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  Result<> write_out() {
    std::string& text = json.text();
    for (std::size_t done = 0; done < text.size();) {
      const auto written = write(fd, text.data() + done, text.size() - done);
      if (written >= 0) {
        done += static_cast<std::size_t>(written);
      } else if (errno == EAGAIN) {
        pollfd writable{fd, POLLOUT, 0};
        if (poll(&writable, 1, kPatienceMilliseconds) == 0)
          return std::unexpected(error_of(ETIMEDOUT, "trace to", file));
      } else if (errno != EINTR) {
        return std::unexpected(error_of(errno, "trace to", file));
      }
    }
    text.clear();
    return {};
  }

  const std::string file;
  const int fd;
  ChromeJson json;
  std::unordered_map<unsigned, uint64_t> lost_before;  // of each ring, as last seen
  uint64_t lost = 0;
};

Tracer::Tracer(Options options) : options_(std::move(options)) {
  thread_ = std::thread([this] {
    if (options_.at_start) options_.at_start();
    main();
  });
}

Tracer::~Tracer() {
  (void)stop();  // who wants to know how it ended has asked
  {
    const std::lock_guard lock(mutex_);
    state_ = State::Ending;
  }
  changed_.notify_all();
  thread_.join();
}

Result<> Tracer::start(const std::string& file) {
  if (one_at_a_time.exchange(true)) {
    return std::unexpected(error_of(EBUSY, "trace to", file, "a trace is being recorded; stop that first"));
  }
  auto fd = open_file(file);
  if (!fd) {
    one_at_a_time = false;
    return std::unexpected(std::move(fd.error()));
  }
  const std::lock_guard lock(mutex_);
  session_ = std::make_unique<Session>(file, *fd);
  // What a hook of the last trace was late to record is not of this one.
  each_ring([this](Ring& ring) {
    ring.drain([](const Record&) {});
    session_->lost_before[ring.number()] = ring.lost();
  });
  keep_track_names(true);
  status_ = {.recording = true, .file = file};
  ended_ = {};
  state_ = State::Recording;
  detail::recording = true;
  changed_.notify_all();
  return {};
}

Result<> Tracer::stop() {
  std::unique_lock lock(mutex_);
  if (state_ == State::Recording) {
    detail::recording = false;
    state_ = State::Stopping;
    changed_.notify_all();
    changed_.wait(lock, [this] { return state_ != State::Stopping; });
  } else if (state_ == State::Idle) {
    return std::unexpected(Error{.operation = "trace", .detail = "none is being recorded"});
  }
  state_ = State::Idle;
  return std::exchange(ended_, {});
}

Tracer::Status Tracer::status() {
  const std::lock_guard lock(mutex_);
  return status_;
}

bool Tracer::idle() {
  const std::lock_guard lock(mutex_);
  return state_ == State::Idle;
}

void Tracer::main() {
  std::unique_lock lock(mutex_);
  while (state_ != State::Ending) {
    if (state_ == State::Recording || state_ == State::Stopping) {
      record(lock);
    } else {
      changed_.wait(lock);
    }
  }
}

// From the start of a trace to its end.
void Tracer::record(std::unique_lock<std::mutex>& lock) {
  Result<> good;
  while (state_ == State::Recording && good) {
    changed_.wait_for(lock, kBetweenLooks, [this] { return state_ != State::Recording; });
    lock.unlock();
    good = look(*session_);
    lock.lock();
    status_.events = session_->json.events();
    status_.lost = session_->lost + session_->json.refused();
  }
  detail::recording = false;
  lock.unlock();
  if (good) good = look(*session_);
  if (good) {
    session_->json.finish(now());
    good = session_->write_out();
  }
  if (!good && options_.complain) {
    options_.complain(good.error()->message() + "; the trace ends here, the guest goes on");
  }
  lock.lock();
  status_.recording = false;
  status_.events = session_->json.events();
  status_.lost = session_->lost + session_->json.refused();
  session_.reset();
  keep_track_names(false);
  ended_ = std::move(good);
  state_ = state_ == State::Stopping ? State::Stopped : State::Failed;
  one_at_a_time = false;
  changed_.notify_all();
}

Result<> Tracer::look(Session& session) {
  Result<> good;
  each_ring([&](Ring& ring) {
    ring.drain([&](const Record& record) {
      session.json.add(ring, record);
      if (session.json.text().size() >= kPiece && good) good = session.write_out();
      if (!good) session.json.text().clear();
    });
    const uint64_t ever = ring.lost();
    const uint64_t lost = ever - std::exchange(session.lost_before[ring.number()], ever);
    if (lost == 0) return;
    session.lost += lost;
    session.json.add_lost(ring, now(), lost);
  });
  if (!good) return good;
  return session.write_out();
}

}  // namespace spindle::trace
