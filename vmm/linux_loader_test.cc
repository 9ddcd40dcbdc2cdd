#include "vmm/linux_loader.h"

#include <doctest/doctest.h>
#include <elf.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "vmm/layout.h"

namespace spindle::vmm {
namespace {

using Bytes = std::vector<uint8_t>;

// A file with these bytes, gone with the object.
class TemporaryFile {
 public:
  explicit TemporaryFile(const Bytes& bytes) {
    char name[] = "/tmp/spindle-loader-XXXXXX";
    const int fd = mkstemp(name);
    REQUIRE(fd >= 0);
    path_ = name;
    REQUIRE(write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
    close(fd);
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  BootFile open() const {
    auto file = BootFile::open(path_, "kernel");
    REQUIRE(file);
    return std::move(*file);
  }

 private:
  std::string path_;
};

std::unique_ptr<GuestRam> make_ram(uint64_t size = 64 * kMiB) {
  auto ram = GuestRam::create(size);
  REQUIRE(ram);
  return std::move(*ram);
}

Result<LoadedKernel> load(const Bytes& bytes, const GuestRam& ram) {
  const TemporaryFile file(bytes);
  const BootFile kernel = file.open();
  return load_kernel(kernel, ram);
}

template <typename T>
void put(Bytes& bytes, size_t offset, const T& value) {
  if (bytes.size() < offset + sizeof value) bytes.resize(offset + sizeof value);
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

constexpr uint64_t kText = 0x1000;

struct ElfFile {
  Elf64_Ehdr header{};
  Elf64_Phdr segment{};
  ElfFile() {
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_ident[EI_DATA] = ELFDATA2LSB;
    header.e_type = ET_EXEC;
    header.e_machine = EM_X86_64;
    header.e_phentsize = sizeof segment;
    header.e_phnum = 1;
    header.e_phoff = sizeof header;
    header.e_entry = 0x1000040;
    segment.p_type = PT_LOAD;
    segment.p_offset = kText;
    segment.p_paddr = 0x1000000;
    segment.p_filesz = 0x100;
    segment.p_memsz = 0x2000;
  }
  Bytes bytes() const {
    Bytes result(kText + 0x100, 0xcc);
    put(result, 0, header);
    put(result, sizeof header, segment);
    return result;
  }
};

struct BzImage {
  setup_header header{};
  size_t payload = 0x4000;
  BzImage() {
    header.setup_sects = 3;
    header.boot_flag = 0xaa55;
    header.jump = 0x66eb;  // to 268h
    header.header = 0x53726448;
    header.version = 0x020f;
    header.loadflags = 1;
    header.kernel_alignment = 0x200000;
    header.relocatable_kernel = 1;
    header.xloadflags = 1;
    header.pref_address = 0x1000000;
    header.init_size = 0x800000;
    header.initrd_addr_max = 0x7fffffff;
    header.cmdline_size = 2047;
    header.syssize = 0x400;
  }
  Bytes bytes() const {
    Bytes result(4 * 512 + payload, 0xcc);
    put(result, 0x1f1, header);
    return result;
  }
};

}  // namespace

TEST_CASE("loader: an ELF kernel is loaded by its physical addresses, its bss cleared") {
  auto ram = make_ram();
  std::memset(ram->memory().at(0x1000000, 0x2000), 0x55, 0x2000);
  const auto kernel = load(ElfFile().bytes(), *ram);
  REQUIRE(kernel);
  CHECK(kernel->entry == 0x1000040);
  CHECK(kernel->start == 0x1000000);
  CHECK(kernel->end == 0x1002000);
  CHECK(*ram->memory().at(0x10000ff, 1) == 0xcc);
  CHECK(*ram->memory().at(0x1000100, 1) == 0);
  CHECK(*ram->memory().at(0x1001fff, 1) == 0);
}

TEST_CASE("loader: every header field of an ELF file that lies is refused") {
  auto ram = make_ram();
  const auto refused = [&](auto change) {
    ElfFile elf;
    change(elf);
    const auto kernel = load(elf.bytes(), *ram);
    REQUIRE_FALSE(kernel);
    CHECK(kernel.error()->kind == ErrorKind::Invalid);
  };
  refused([](ElfFile& e) { e.header.e_ident[EI_CLASS] = ELFCLASS32; });
  refused([](ElfFile& e) { e.header.e_machine = EM_AARCH64; });
  refused([](ElfFile& e) { e.header.e_type = ET_DYN; });
  refused([](ElfFile& e) { e.header.e_phnum = 0; });
  refused([](ElfFile& e) { e.header.e_phnum = 0xffff; });
  refused([](ElfFile& e) { e.header.e_phentsize = 1; });
  refused([](ElfFile& e) { e.header.e_phoff = UINT64_MAX; });
  refused([](ElfFile& e) { e.header.e_phoff = UINT64_MAX - 8; });
  refused([](ElfFile& e) { e.header.e_entry = 0; });
  refused([](ElfFile& e) { e.header.e_entry = e.segment.p_paddr + e.segment.p_memsz; });
  refused([](ElfFile& e) { e.segment.p_offset = UINT64_MAX; });
  refused([](ElfFile& e) { e.segment.p_offset = UINT64_MAX - 0x80; });
  refused([](ElfFile& e) { e.segment.p_filesz = e.segment.p_memsz + 1; });
  refused([](ElfFile& e) { e.segment.p_filesz = e.segment.p_memsz = UINT64_MAX; });
  refused([](ElfFile& e) { e.segment.p_memsz = UINT64_MAX; });
  refused([](ElfFile& e) { e.segment.p_memsz = 64 * kMiB; });
  refused([](ElfFile& e) { e.segment.p_paddr = 0; });
  refused([](ElfFile& e) { e.segment.p_paddr = UINT64_MAX - 0x100; });
  refused([](ElfFile& e) { e.segment.p_paddr = 64 * kMiB; });
  refused([](ElfFile& e) { e.segment.p_paddr = 64 * kMiB - 0x1000; });
  refused([](ElfFile& e) { e.segment.p_type = PT_NOTE; });
}

TEST_CASE("loader: a bzImage goes to its preferred address and is entered at 200h") {
  auto ram = make_ram();
  const auto kernel = load(BzImage().bytes(), *ram);
  REQUIRE(kernel);
  CHECK(kernel->entry == 0x1000200);
  CHECK(kernel->end == 0x1800000);
  CHECK(kernel->command_line_max == 2047);
  CHECK(*ram->memory().at(0x1000000, 1) == 0xcc);
}

TEST_CASE("loader: every header field of a bzImage that lies is refused") {
  auto ram = make_ram();
  const auto refused = [&](auto change) {
    BzImage image;
    change(image);
    const auto kernel = load(image.bytes(), *ram);
    REQUIRE_FALSE(kernel);
    CHECK(kernel.error()->kind == ErrorKind::Invalid);
  };
  refused([](BzImage& i) { i.header.boot_flag = 0; });
  refused([](BzImage& i) { i.header.header = 0; });
  refused([](BzImage& i) { i.header.version = 0x0206; });
  refused([](BzImage& i) { i.header.xloadflags = 0; });
  refused([](BzImage& i) { i.header.loadflags = 0; });
  refused([](BzImage& i) { i.header.setup_sects = 255; });
  refused([](BzImage& i) { i.header.syssize = UINT32_MAX; });
  refused([](BzImage& i) { i.header.syssize = 0x402; });
  refused([](BzImage& i) { i.header.kernel_alignment = 0; });
  refused([](BzImage& i) { i.header.kernel_alignment = 0x300000; });
  refused([](BzImage& i) { i.header.pref_address = 0x1000001; });
  refused([](BzImage& i) { i.header.pref_address = 0; });
  refused([](BzImage& i) { i.header.pref_address = 0x8000000000000000; });
  refused([](BzImage& i) { i.header.pref_address = UINT64_MAX & ~0x1fffffull; });
  refused([](BzImage& i) { i.header.init_size = UINT32_MAX; });
  refused([](BzImage& i) { i.payload = 0, i.header.syssize = 0; });
  refused([](BzImage& i) { i.payload = 0x1ff, i.header.syssize = 0; });
}

TEST_CASE("loader: files cut off anywhere are refused, whatever they are") {
  auto ram = make_ram();
  for (const Bytes& whole : {ElfFile().bytes(), BzImage().bytes()}) {
    // A bzImage counts paragraphs, so the last 15 bytes may be padding that is not there.
    for (size_t size = 1; size + 16 <= whole.size(); size += size < 0x300 ? 1 : 97) {
      CHECK_FALSE(load(Bytes(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size)), *ram));
    }
  }
}

TEST_CASE("loader: the initrd goes as high as it may, clear of the kernel") {
  auto ram = make_ram();
  const TemporaryFile file(Bytes(0x12345));
  const BootFile initrd = file.open();
  LoadedKernel kernel{.start = 0x1000000, .end = 0x1800000, .initrd_limit = UINT64_MAX};
  CHECK(place_initrd(kernel, *ram, initrd) == 64 * kMiB - 0x13000);
  kernel.initrd_limit = 0x2000001;
  CHECK(place_initrd(kernel, *ram, initrd) == 0x2000000 - 0x13000);
  kernel.initrd_limit = 0x1800000;  // no room above the kernel: below it
  CHECK(place_initrd(kernel, *ram, initrd) == 0x1000000 - 0x13000);
  kernel.initrd_limit = 0x10000;
  CHECK_FALSE(place_initrd(kernel, *ram, initrd));
  kernel = {.start = 0x100000, .end = 64 * kMiB - 0x1000, .initrd_limit = UINT64_MAX};
  CHECK_FALSE(place_initrd(kernel, *ram, initrd));
}

TEST_CASE("loader: boot_params name the memory map, the command line and the tables") {
  auto ram = make_ram();
  const TemporaryFile file(ElfFile().bytes()), initrd_file(Bytes(100, 0x77));
  const BootFile kernel = file.open(), initrd = initrd_file.open();
  BootImages images{.kernel = &kernel, .initrd = &initrd, .command_line = "quiet", .rsdp_address = 0xe0000};
  REQUIRE(load_linux(images, *ram) == 0x1000040);
  const auto params = *ram->memory().read_object<boot_params>(kBootParamsAddress);
  CHECK(params.hdr.boot_flag == 0xaa55);
  CHECK(params.acpi_rsdp_addr == 0xe0000);
  CHECK(std::strcmp(reinterpret_cast<char*>(ram->memory().at(params.hdr.cmd_line_ptr, 6)), "quiet") == 0);
  CHECK(params.hdr.ramdisk_size == 100);
  CHECK(*ram->memory().at(params.hdr.ramdisk_image + 99, 1) == 0x77);
  REQUIRE(params.e820_entries == 4);
  CHECK(params.e820_table[0].addr == 0);
  CHECK(params.e820_table[3].addr == 0x100000);
  CHECK(params.e820_table[3].size == 63 * kMiB);

  images.command_line = std::string(2047, 'x');
  CHECK(load_linux(images, *ram));
  images.command_line += 'x';
  const auto refused = load_linux(images, *ram);
  REQUIRE_FALSE(refused);
  CHECK(refused.error()->message().find("2047") != std::string::npos);
}

TEST_CASE("memory: sizes are checked, and what does not fit below the hole goes above 4 GiB") {
  CHECK_FALSE(GuestRam::check_size(0));
  CHECK_FALSE(GuestRam::check_size(64 * kMiB - 1));
  CHECK_FALSE(GuestRam::check_size(64 * kMiB + 1));
  CHECK_FALSE(GuestRam::check_size(UINT64_MAX));
  CHECK_FALSE(GuestRam::check_size(1024 * kGiB + kMiB));
  CHECK(GuestRam::check_size(64 * kMiB));
  auto ram = make_ram(5 * kGiB);
  CHECK(ram->low_size() == 3 * kGiB);
  CHECK(ram->memory().at(3 * kGiB - 1, 1) != nullptr);
  CHECK(ram->memory().at(3 * kGiB - 1, 2) == nullptr);
  CHECK(ram->memory().at(4 * kGiB - 1, 1) == nullptr);
  CHECK(ram->memory().at(4 * kGiB, 2 * kGiB) != nullptr);
  CHECK(ram->memory().at(4 * kGiB, 2 * kGiB + 1) == nullptr);
  const auto map = ram->memory_map();
  CHECK(map.back().address == 4 * kGiB);
  CHECK(map.back().size == 2 * kGiB);
  CHECK(ftruncate(ram->fd(), 0) < 0);  // sealed: nobody shrinks it under us
}

TEST_CASE("boot file: what is not a file with something in it is refused") {
  CHECK_FALSE(BootFile::open("/nonexistent", "kernel"));
  CHECK_FALSE(BootFile::open("/", "kernel"));
  CHECK_FALSE(BootFile::open("/dev/null", "kernel"));
  CHECK(BootFile::open("/proc/self/exe", "kernel"));
}

}  // namespace spindle::vmm
