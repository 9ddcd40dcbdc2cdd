// Making images: the file, what its format puts into it, and the promise that it is there after a crash.
//
// Order: the file is made if it is missing, and locked before anything it holds is lost; then the format
// writes; then the directory that names a new file is synced, without which a power failure could take the
// whole image. What fails leaves no new file behind; a file that was there before is left in pieces, and the
// error is all that tells.
//
// Threading: the reactor's thread; making and syncing a file blocks.
#pragma once

#include <memory>
#include <string>

#include "block/format_registry.h"
#include "image/open_image.h"

namespace spindle::image {

/// A file that goes away again with this object unless it is kept, if it was made here.
class NewFile {
 public:
  /// Makes the file `name` (as tools take names) if there is none. Errors are those of open().
  static Result<NewFile> make(const std::string& name);
  NewFile(NewFile&& other) noexcept;
  NewFile& operator=(NewFile&&) = delete;
  ~NewFile();

  bool made() const { return made_; }
  /// It stays. With `durable` its directory is synced first, if it was made here.
  Result<> keep(bool durable);

 private:
  explicit NewFile(std::string path) : path_(std::move(path)) {}

  std::string path_;
  bool made_ = false;
};

/// Whether both names are of one file, so that one cannot be made from the other.
bool same_file(const std::string& one, const std::string& other);

/// "-o" as it was typed, possibly several times: k=v,k=v. `help` is true if it asks for help instead.
/// `size` is taken out of the list. Invalid for a key that the format does not have.
struct CreateList {
  FormatOptions options = {};
  std::optional<uint64_t> size = std::nullopt;
  bool help = false;
};
Result<CreateList> parse_create_options(const Format& format, const std::vector<std::string>& lists);

/// What `-o help` prints.
std::string create_help(const Format& format);

/// "Formatting 'a.vdi', fmt=vdi size=1048576 static=off"
std::string formatting_line(const std::string& file, const Format& format, const CreateOptions& options);

/// The format of this name, if it can make images. Invalid says what there is.
Result<const Format*> format_to_create(const FormatRegistry& formats, const std::string& name);

/// Whole sectors, which a disk has. No overflow up to 63 bits.
constexpr uint64_t to_sectors(uint64_t size) {
  return (size + 511) / 512 * 512;
}

/// A size as the command line takes it: "10M", "1.5G". Invalid in the words of qemu-img.
Result<uint64_t> parse_image_size(const std::string& text);

/// Opens the file `name`, which exists, and locks it as `format` needs. Nothing it holds is lost yet.
Result<std::shared_ptr<Node>> open_to_format(const Workshop& shop, const Format& format,
                                             const std::string& name, CacheMode cache);
/// Lets `format` make an image in `file`, whose content is lost, and closes it.
Task<Result<>> format_file(const Format& format, std::shared_ptr<Node> file, CreateOptions options);

/// All of it: the file, the image, the directory. Durable when it returns, unless `cache` is unsafe.
Task<Result<>> create_image(const Workshop& shop, const Format& format, std::string name,
                            CreateOptions options, CacheMode cache);

}  // namespace spindle::image
