// The verdict of a state: what somebody finds who starts the machine again after the power cut.
//
//   1. check the image as it lies (what a tool would say before the next boot);
//   2. open it;
//   3. with full depth: read all of it, and hold each sector against the model;
//   4. close it, as nothing went wrong; and if opening or closing changed the file, check it again.
//
// Verdicts, the worst counts: clean; leak (space is lost, nothing else); recovered (opening mended it: the
// file changed and its check went from bad to good); corruption, by kind:
//
//   will-not-open    opening or closing failed
//   check-error      the check finds more than leaks, or cannot be carried out
//   lost             zeroes, or what the disk held at the start, in place of what had been promised to be
//   kept stale            an older content of the same place, which a durable one had replaced foreign what
//   was written to another place, or metadata torn             a mixture within a sector read-error       a
//   sector cannot be read wrong-size       the disk has a size it never had, or no longer may have
//
// Threading: a judge belongs to one thread, and is used again and again: it keeps its buffers and its
// reactor.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "crash/guest_model.h"
#include "crash/image_node.h"
#include "crash/subject.h"

namespace spindle::crash {

enum class Depth : uint8_t {
  Metadata,  ///< open and check
  Full,      ///< and read everything
};

enum class Corruption : uint8_t { WillNotOpen, CheckError, Lost, Stale, Foreign, Torn, ReadError, WrongSize };
inline constexpr std::size_t kCorruptions = 8;
std::string_view to_string(Corruption kind);
std::optional<Corruption> corruption_of(std::string_view name);

struct Finding {
  Corruption kind = Corruption::CheckError;
  uint64_t sector = 0;  ///< of the guest, where one is concerned
  std::string text;     ///< one line
};

struct Verdict {
  uint64_t leaks = 0;      ///< clusters
  bool recovered = false;  ///< opening mended something
  uint32_t kinds = 0;      ///< bit i: Corruption i was found
  /// One of each kind, if they were asked for.
  std::vector<Finding> findings;

  bool corrupt() const { return kinds != 0; }
  bool has(Corruption kind) const { return kinds >> static_cast<unsigned>(kind) & 1; }
};

class Judge {
 public:
  /// `image` shows the state to be judged, and does again when judge() has returned.
  Judge(Reactor& reactor, SectorImage& image, const Subject& subject, Depth depth);

  /// `model` null: nothing is known of the content, it only has to be readable. `describe`: findings are
  /// wanted in words, which takes time.
  Verdict judge(const GuestModel* model, bool describe);

 private:
  void note(Verdict& verdict, Corruption kind, uint64_t sector, std::string text) const;
  bool check(Verdict& verdict, uint64_t& leaks);
  void compare(Verdict& verdict, Node& node, const GuestModel* model);
  void compare_size(Verdict& verdict, uint64_t size, const GuestModel& model);
  void compare_run(Verdict& verdict, uint64_t first, uint64_t count, const std::byte* bytes,
                   const GuestModel& model, std::size_t& next_touched);
  void compare_sector(Verdict& verdict, uint64_t sector, const std::byte* bytes, const GuestModel& model);

  Reactor& reactor_;
  SectorImage& image_;
  const Subject& subject_;
  Depth depth_;
  std::shared_ptr<ImageNode> file_;
  std::vector<std::byte> buffer_;
  bool describe_ = false;
};

}  // namespace spindle::crash
