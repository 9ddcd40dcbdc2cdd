// What the control socket asks of disks, without a guest.
#include "vmm/disk_set.h"

#include <doctest/doctest.h>

#include <array>

#include "formats/register_formats.h"

namespace spindle::vmm {

TEST_CASE("D6: after a failed flush no write cache is said to have been turned on") {
  FormatRegistry registry;
  register_formats(registry);
  const auto spec = parse_disk_spec(
      "file=null-co://,format=raw,cache=writethrough,id=disk0,fault=flush:EIO:always", registry);
  REQUIRE(spec.has_value());
  std::vector<std::string> warnings;
  auto disks = DiskSet::open(std::array{*spec}, registry, warnings);
  REQUIRE(disks.has_value());
  CHECK((*disks)->set_write_cache("disk0", true).has_value());
  CHECK_FALSE((*disks)->set_write_cache("disk0", false).has_value());
  const auto refused = (*disks)->set_write_cache("disk0", true);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error()->message().find("write-through") != std::string::npos);
  (void)(*disks)->close();
}

}  // namespace spindle::vmm
