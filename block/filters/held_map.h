// HeldMap: what the volatile node holds in memory: pieces of data or zeroes, by offset, never overlapping.
//
// Each piece has the order number of the write it came from. A new piece takes its range from whatever lay
// there; what remains of an older piece keeps its order and gets memory of its own size, so that bytes() is
// what is really held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace spindle {

class HeldMap {
 public:
  using Data = std::shared_ptr<const std::vector<std::byte>>;

  struct Piece {
    uint64_t offset = 0;
    uint64_t length = 0;
    uint64_t order = 0;
    Data data = nullptr;  ///< null: zeroes
    uint64_t skip = 0;    ///< where in `data` it begins; 0 for a piece that is held
    bool unmap = false;   ///< of zeroes: the space may be given back
    uint64_t end() const { return offset + length; }
    const std::byte* bytes() const { return data->data() + skip; }
  };

  /// Charged for a piece besides its bytes.
  static constexpr uint64_t kPieceCost = 128;

  void put(Piece piece);
  /// Forgets what lies in [begin, end) and is of `order` or older.
  void cut(uint64_t begin, uint64_t end, uint64_t order);
  /// Forgets all that is of `order` or older.
  void drop_up_to(uint64_t order);
  void clear();

  /// What lies in [begin, end), clipped to it, in order of offset. The data stays alive with the answer.
  std::vector<Piece> overlapping(uint64_t begin, uint64_t end) const;
  /// The first piece that ends after `offset`, or null.
  const Piece* at_or_after(uint64_t offset) const;
  std::vector<Piece> all() const;
  uint64_t bytes() const { return bytes_; }
  bool empty() const { return pieces_.empty(); }

 private:
  using Pieces = std::map<uint64_t, Piece>;
  Pieces::iterator erase(Pieces::iterator piece);
  void insert(Piece piece);
  Pieces::const_iterator first_ending_after(uint64_t offset) const;

  Pieces pieces_;
  uint64_t bytes_ = 0;
};

}  // namespace spindle
