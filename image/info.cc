#include "image/info.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "block/protocols/file_name.h"
#include "image/size_text.h"

namespace spindle::image {
namespace {

constexpr uint64_t kStatBlock = 512;  // what st_blocks counts in, whatever the file system's blocks are

std::optional<uint64_t> disk_size_of(const std::string& file) {
  const auto name = parse_file_name(file);
  struct stat status {};
  if (!name || name->protocol != Protocol::File || ::stat(name->path.c_str(), &status) != 0)
    return std::nullopt;
  return static_cast<uint64_t>(status.st_blocks) * kStatBlock;
}

}  // namespace

Task<Result<ImageInfo>> image_info(const Workshop& shop, ImageName name, OpenMode mode) {
  auto spec = describe_image(shop, name, mode);
  if (!spec) co_return std::unexpected(std::move(spec.error()));
  ImageInfo info{.name = spec->file, .format = spec->format, .disk_size = disk_size_of(spec->file)};
  auto opening = open_disk(shop, std::move(*spec));
  auto disk = co_await opening;
  if (!disk) co_return std::unexpected(std::move(disk.error()));
  info.virtual_size = (*disk)->size();
  info.cluster_size = (*disk)->node().facts().cluster_size;
  SPINDLE_CO_TRY(co_await (*disk)->close());
  co_return info;
}

std::string info_text(const ImageInfo& info) {
  std::string text = fmt::format("image: {}\nfile format: {}\nvirtual size: {} ({} bytes)\n", info.name,
                                 info.format, size_text(info.virtual_size), info.virtual_size);
  text += "disk size: " + (info.disk_size ? size_text(*info.disk_size) : "unavailable") + "\n";
  if (info.cluster_size != 0) text += fmt::format("cluster_size: {}\n", info.cluster_size);
  return text;
}

std::string info_json(const ImageInfo& info, bool chain) {
  nlohmann::ordered_json json;
  json["virtual-size"] = info.virtual_size;
  json["filename"] = info.name;
  if (info.cluster_size != 0) json["cluster-size"] = info.cluster_size;
  json["format"] = info.format;
  if (info.disk_size) json["actual-size"] = *info.disk_size;
  json["dirty-flag"] = false;
  if (chain) json = nlohmann::ordered_json::array({json});
  return json.dump(4, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace spindle::image
