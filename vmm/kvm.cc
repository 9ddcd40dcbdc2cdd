#include "vmm/kvm.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "vmm/layout.h"

namespace spindle::vmm {
namespace {

// The kernel's lists: a count, and for most of them a second word, then that many entries. Laid out here, and
// the request numbers (which hold the size of the fixed part) made from that, because the kernel's own
// declarations use an empty struct, whose size in C++ is not 0, so that their sizes and requests come out
// wrong.
struct CountAndPadding {
  uint32_t count = 0;
  uint32_t padding = 0;
};
struct Count {
  uint32_t count = 0;
};
constexpr unsigned long kGetMsrIndexList = _IOWR(KVMIO, 0x02, Count);
constexpr unsigned long kGetSupportedCpuid = _IOWR(KVMIO, 0x05, CountAndPadding);
constexpr unsigned long kSetGsiRouting = _IOW(KVMIO, 0x6a, CountAndPadding);
constexpr unsigned long kGetMsrs = _IOWR(KVMIO, 0x88, CountAndPadding);
constexpr unsigned long kSetMsrs = _IOW(KVMIO, 0x89, CountAndPadding);
constexpr unsigned long kSetCpuid2 = _IOW(KVMIO, 0x90, CountAndPadding);

constexpr uint32_t kLeaf1EcxXsave = 1u << 26;  // CPUID

template <typename Header, typename Entry>
class List {
 public:
  explicit List(size_t count) : bytes_(sizeof(Header) + count * sizeof(Entry)) {
    header()->count = static_cast<uint32_t>(count);
  }
  explicit List(const std::vector<Entry>& from) : List(from.size()) {
    if (!from.empty()) std::memcpy(bytes_.data() + sizeof(Header), from.data(), from.size() * sizeof(Entry));
  }
  Header* header() { return reinterpret_cast<Header*>(bytes_.data()); }
  Entry entry(size_t index) const {
    Entry result;
    std::memcpy(&result, bytes_.data() + sizeof(Header) + index * sizeof(Entry), sizeof result);
    return result;
  }
  /// As many as the kernel says there are.
  std::vector<Entry> entries() {
    std::vector<Entry> result(header()->count);
    if (!result.empty())
      std::memcpy(result.data(), bytes_.data() + sizeof(Header), result.size() * sizeof(Entry));
    return result;
  }

 private:
  std::vector<uint8_t> bytes_;
};
using CpuidList = List<CountAndPadding, kvm_cpuid_entry2>;
using MsrList = List<CountAndPadding, kvm_msr_entry>;
using RouteList = List<CountAndPadding, kvm_irq_routing_entry>;
using MsrIndexList = List<Count, uint32_t>;

template <typename Argument>
Result<int> call(int fd, unsigned long request, const char* name, Argument argument) {
  int value;
  do {
    value = ioctl(fd, request, argument);
  } while (value < 0 && errno == EINTR);
  if (value < 0) return std::unexpected(Error::from_errno(errno, name, "KVM"));
  return value;
}

Result<> call_void(int fd, unsigned long request, const char* name, const void* argument) {
  SPINDLE_TRY(call(fd, request, name, argument));
  return {};
}

template <typename T>
Result<T> get(int fd, unsigned long request, const char* name) {
  T value{};
  SPINDLE_TRY(call(fd, request, name, &value));
  return value;
}

Error open_error(const std::string& path, int number) {
  Error error = Error::from_errno(number, "open", path);
  switch (number) {
    case ENOENT:
      error.detail =
          "load kvm_intel or kvm_amd and switch virtualisation on in the firmware, or run the command under "
          "guest-tests/with-kvm";
      break;
    case EACCES:
    case EPERM:
      error.detail = "join the group kvm (usermod -aG kvm), or run as root";
      break;
    default:
      error.detail =
          "does this processor have virtualisation? guest-tests/with-kvm runs a command where KVM works";
  }
  return error;
}

// /dev/kvm is there and can be opened, and yet KVM makes no machine.
Error create_error(Error error) {
  switch (error.number) {
    case EBUSY:
      error.detail = "another hypervisor (VirtualBox, VMware) has the processor: end its machines first";
      break;
    case ENOMEM:
      error.detail = "the host has too little memory left";
      break;
    default:
      error.detail =
          "this host's KVM does not work; dmesg may say why, and guest-tests/with-kvm runs a command where "
          "it "
          "does";
  }
  return error;
}

struct Needed {
  unsigned capability;
  const char* name;
};
constexpr Needed kNeeded[] = {
    {KVM_CAP_IRQCHIP, "in-kernel interrupt controllers"},
    {KVM_CAP_PIT2, "in-kernel timer"},
    {KVM_CAP_USER_MEMORY, "user memory regions"},
    {KVM_CAP_EXT_CPUID, "CPUID tables"},
    {KVM_CAP_IRQFD, "irqfd"},
    {KVM_CAP_IOEVENTFD, "ioeventfd"},
    {KVM_CAP_IRQ_ROUTING, "interrupt routing"},
    {KVM_CAP_SIGNAL_MSI, "message interrupts"},
    {KVM_CAP_MP_STATE, "multiprocessor state"},
    {KVM_CAP_VCPU_EVENTS, "vCPU events"},
    {KVM_CAP_DEBUGREGS, "debug registers"},
    {KVM_CAP_IMMEDIATE_EXIT, "immediate exit"},
};

}  // namespace

Fd& Fd::operator=(Fd&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Fd::~Fd() {
  if (fd_ >= 0) close(fd_);
}

Result<Kvm> Kvm::open(const std::string& path) {
  Kvm kvm{Fd(::open(path.c_str(), O_RDWR | O_CLOEXEC))};
  if (!kvm.fd_) return std::unexpected(open_error(path, errno));
  const int version = ioctl(kvm.fd(), KVM_GET_API_VERSION, 0);
  if (version != KVM_API_VERSION) {
    return std::unexpected(Error::invalid(
        "use", path, fmt::format("it answers with API version {}, not {}", version, KVM_API_VERSION)));
  }
  for (const Needed& needed : kNeeded) {
    if (kvm.extension(needed.capability) > 0) continue;
    return std::unexpected(
        Error{.kind = ErrorKind::NotSupported,
              .operation = "use",
              .node = path,
              .detail = fmt::format("this kernel's KVM has no {}; Linux 4.13 or later has all that is needed",
                                    needed.name)});
  }
  return kvm;
}

int Kvm::extension(unsigned capability) const {
  const int value = ioctl(fd(), KVM_CHECK_EXTENSION, capability);
  return value < 0 ? 0 : value;
}

Result<std::vector<kvm_cpuid_entry2>> Kvm::supported_cpuid() const {
  // The kernel answers E2BIG until there is room for all.
  for (size_t room = 128; room <= 4096; room *= 2) {
    CpuidList list(room);
    auto done = call(fd(), kGetSupportedCpuid, "KVM_GET_SUPPORTED_CPUID", list.header());
    if (done) return list.entries();
    if (done.error()->number != E2BIG) return std::unexpected(done.error());
  }
  return std::unexpected(Error::from_errno(E2BIG, "KVM_GET_SUPPORTED_CPUID", "KVM"));
}

Result<std::vector<uint32_t>> Kvm::msr_indices() const {
  MsrIndexList probe(0);
  auto counted = call(fd(), kGetMsrIndexList, "KVM_GET_MSR_INDEX_LIST", probe.header());
  if (!counted && counted.error()->number != E2BIG) return std::unexpected(counted.error());
  MsrIndexList list(probe.header()->count);
  SPINDLE_TRY(call(fd(), kGetMsrIndexList, "KVM_GET_MSR_INDEX_LIST", list.header()));
  return list.entries();
}

Result<std::unique_ptr<Vm>> Vm::create(const Kvm& kvm) {
  auto made = call(kvm.fd(), KVM_CREATE_VM, "KVM_CREATE_VM", 0);
  if (!made) return std::unexpected(create_error(*made.error()));
  std::unique_ptr<Vm> vm(new Vm(kvm, Fd(*made)));
  // Intel processors without unrestricted guest need these pages before the first vCPU; others ignore them.
  const uint64_t identity = kKvmIdentityMapAddress;
  SPINDLE_TRY(call_void(vm->fd(), KVM_SET_IDENTITY_MAP_ADDR, "KVM_SET_IDENTITY_MAP_ADDR", &identity));
  SPINDLE_TRY(call(vm->fd(), KVM_SET_TSS_ADDR, "KVM_SET_TSS_ADDR", kKvmTssAddress));
  SPINDLE_TRY(call(vm->fd(), KVM_CREATE_IRQCHIP, "KVM_CREATE_IRQCHIP", 0));
  kvm_pit_config pit{};
  pit.flags = KVM_PIT_SPEAKER_DUMMY;  // port 61h, which Linux uses to calibrate against channel 2
  SPINDLE_TRY(call_void(vm->fd(), KVM_CREATE_PIT2, "KVM_CREATE_PIT2", &pit));
  std::lock_guard lock(vm->routes_mutex_);
  SPINDLE_TRY(vm->install_routes());
  return vm;
}

Result<> Vm::add_memory(uint32_t slot, uint64_t guest_address, uint64_t size, void* host) {
  kvm_userspace_memory_region region{};
  region.slot = slot;
  region.guest_phys_addr = guest_address;
  region.memory_size = size;
  region.userspace_addr = reinterpret_cast<uint64_t>(host);
  return call_void(fd(), KVM_SET_USER_MEMORY_REGION, "KVM_SET_USER_MEMORY_REGION", &region);
}

Result<> Vm::set_irq_line(unsigned gsi, bool level) {
  kvm_irq_level line{};
  line.irq = gsi;
  line.level = level;
  return call_void(fd(), KVM_IRQ_LINE, "KVM_IRQ_LINE", &line);
}

// The pins as on a PC (0-7 master PIC, 8-15 slave, all but the cascade also at the I/O APIC, IRQ 0 there at
// pin 2), then the messages.
Result<> Vm::install_routes() {
  std::vector<kvm_irq_routing_entry> entries;
  const auto add_pin = [&entries](unsigned gsi, unsigned chip, unsigned pin) {
    kvm_irq_routing_entry entry{};
    entry.gsi = gsi;
    entry.type = KVM_IRQ_ROUTING_IRQCHIP;
    entry.u.irqchip.irqchip = chip;
    entry.u.irqchip.pin = pin;
    entries.push_back(entry);
  };
  for (unsigned gsi = 0; gsi < kIoApicPins; ++gsi) {
    if (gsi == 2) continue;
    if (gsi < 16) add_pin(gsi, gsi < 8 ? KVM_IRQCHIP_PIC_MASTER : KVM_IRQCHIP_PIC_SLAVE, gsi % 8);
    add_pin(gsi, KVM_IRQCHIP_IOAPIC, gsi == 0 ? 2 : gsi);
  }
  for (const auto& [gsi, message] : messages_) {
    kvm_irq_routing_entry entry{};
    entry.gsi = gsi;
    entry.type = KVM_IRQ_ROUTING_MSI;
    entry.u.msi = message;
    entries.push_back(entry);
  }
  RouteList table(entries);
  return call_void(fd(), kSetGsiRouting, "KVM_SET_GSI_ROUTING", table.header());
}

Result<> Vm::route_message(unsigned gsi, uint64_t address, uint32_t data) {
  std::lock_guard lock(routes_mutex_);
  kvm_irq_routing_msi& message = messages_[gsi];
  message.address_lo = static_cast<uint32_t>(address);
  message.address_hi = static_cast<uint32_t>(address >> 32);
  message.data = data;
  return install_routes();
}

Result<> Vm::bind_irqfd(int event_fd, unsigned gsi) {
  kvm_irqfd request{};
  request.fd = static_cast<uint32_t>(event_fd);
  request.gsi = gsi;
  return call_void(fd(), KVM_IRQFD, "KVM_IRQFD", &request);
}

Result<> Vm::unbind_irqfd(int event_fd, unsigned gsi) {
  kvm_irqfd request{};
  request.fd = static_cast<uint32_t>(event_fd);
  request.gsi = gsi;
  request.flags = KVM_IRQFD_FLAG_DEASSIGN;
  return call_void(fd(), KVM_IRQFD, "KVM_IRQFD", &request);
}

Result<> Vm::bind_ioeventfd(uint64_t guest_address, unsigned width, int event_fd) {
  kvm_ioeventfd request{};
  request.addr = guest_address;
  request.len = width;
  request.fd = event_fd;
  return call_void(fd(), KVM_IOEVENTFD, "KVM_IOEVENTFD", &request);
}

Result<> Vm::unbind_ioeventfd(uint64_t guest_address, unsigned width, int event_fd) {
  kvm_ioeventfd request{};
  request.addr = guest_address;
  request.len = width;
  request.fd = event_fd;
  request.flags = KVM_IOEVENTFD_FLAG_DEASSIGN;
  return call_void(fd(), KVM_IOEVENTFD, "KVM_IOEVENTFD", &request);
}

Result<Vm::ChipState> Vm::chip_state() const {
  ChipState state;
  state.pic_master.chip_id = KVM_IRQCHIP_PIC_MASTER;
  state.pic_slave.chip_id = KVM_IRQCHIP_PIC_SLAVE;
  state.ioapic.chip_id = KVM_IRQCHIP_IOAPIC;
  for (kvm_irqchip* chip : {&state.pic_master, &state.pic_slave, &state.ioapic}) {
    SPINDLE_TRY(call(fd(), KVM_GET_IRQCHIP, "KVM_GET_IRQCHIP", chip));
  }
  SPINDLE_TRY(call(fd(), KVM_GET_PIT2, "KVM_GET_PIT2", &state.pit));
  return state;
}

Result<> Vm::set_chip_state(const ChipState& state) {
  for (const kvm_irqchip* chip : {&state.pic_master, &state.pic_slave, &state.ioapic}) {
    SPINDLE_TRY(call(fd(), KVM_SET_IRQCHIP, "KVM_SET_IRQCHIP", chip));
  }
  return call_void(fd(), KVM_SET_PIT2, "KVM_SET_PIT2", &state.pit);
}

Result<std::unique_ptr<KvmCpu>> KvmCpu::create(const Vm& vm, unsigned id) {
  auto made = call(vm.fd(), KVM_CREATE_VCPU, "KVM_CREATE_VCPU", id);
  if (!made) return std::unexpected(made.error());
  Fd fd(*made);
  auto size = call(vm.kvm().fd(), KVM_GET_VCPU_MMAP_SIZE, "KVM_GET_VCPU_MMAP_SIZE", 0);
  if (!size) return std::unexpected(size.error());
  const auto bytes = static_cast<size_t>(*size);
  void* page = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (page == MAP_FAILED) return std::unexpected(Error::from_errno(errno, "mmap of a vCPU", "KVM"));
  return std::unique_ptr<KvmCpu>(new KvmCpu(std::move(fd), id, static_cast<kvm_run*>(page), bytes));
}

KvmCpu::~KvmCpu() {
  munmap(run_, run_size_);
}

int KvmCpu::run() {
  return ioctl(fd_.get(), KVM_RUN, 0) < 0 ? errno : 0;
}

void KvmCpu::set_immediate_exit(bool on) {
  std::atomic_ref<uint8_t>(run_->immediate_exit).store(on, std::memory_order_seq_cst);
}

Result<> KvmCpu::set_cpuid(const std::vector<kvm_cpuid_entry2>& entries) {
  has_xsave_ = std::ranges::any_of(entries, [](const kvm_cpuid_entry2& entry) {
    return entry.function == 1 && (entry.ecx & kLeaf1EcxXsave);
  });
  CpuidList list(entries);
  return call_void(fd_.get(), kSetCpuid2, "KVM_SET_CPUID2", list.header());
}

Result<kvm_sregs> KvmCpu::sregs() const {
  return get<kvm_sregs>(fd_.get(), KVM_GET_SREGS, "KVM_GET_SREGS");
}
Result<> KvmCpu::set_sregs(const kvm_sregs& sregs) {
  return call_void(fd_.get(), KVM_SET_SREGS, "KVM_SET_SREGS", &sregs);
}
Result<kvm_regs> KvmCpu::regs() const {
  return get<kvm_regs>(fd_.get(), KVM_GET_REGS, "KVM_GET_REGS");
}
Result<> KvmCpu::set_regs(const kvm_regs& regs) {
  return call_void(fd_.get(), KVM_SET_REGS, "KVM_SET_REGS", &regs);
}

Result<KvmCpu::State> KvmCpu::state(const std::vector<uint32_t>& msr_indices) const {
  State state;
  const int fd = fd_.get();
  SPINDLE_TRY(call(fd, KVM_GET_REGS, "KVM_GET_REGS", &state.regs));
  SPINDLE_TRY(call(fd, KVM_GET_SREGS, "KVM_GET_SREGS", &state.sregs));
  SPINDLE_TRY(call(fd, KVM_GET_FPU, "KVM_GET_FPU", &state.fpu));
  SPINDLE_TRY(call(fd, KVM_GET_LAPIC, "KVM_GET_LAPIC", &state.lapic));
  SPINDLE_TRY(call(fd, KVM_GET_MP_STATE, "KVM_GET_MP_STATE", &state.mp_state));
  SPINDLE_TRY(call(fd, KVM_GET_VCPU_EVENTS, "KVM_GET_VCPU_EVENTS", &state.events));
  SPINDLE_TRY(call(fd, KVM_GET_DEBUGREGS, "KVM_GET_DEBUGREGS", &state.debug));
  if (has_xsave_) SPINDLE_TRY(call(fd, KVM_GET_XCRS, "KVM_GET_XCRS", &state.xcrs.emplace()));
  // One at a time: the list names registers that this vCPU's CPUID may hide, and reading stops at such a one.
  for (uint32_t index : msr_indices) {
    MsrList one(std::vector{kvm_msr_entry{.index = index, .reserved = 0, .data = 0}});
    auto read = call(fd, kGetMsrs, "KVM_GET_MSRS", one.header());
    if (read && *read == 1) state.msrs.push_back(one.entry(0));
  }
  return state;
}

Result<> KvmCpu::set_state(const State& state) {
  const int fd = fd_.get();
  SPINDLE_TRY(call(fd, KVM_SET_SREGS, "KVM_SET_SREGS", &state.sregs));
  SPINDLE_TRY(call(fd, KVM_SET_REGS, "KVM_SET_REGS", &state.regs));
  SPINDLE_TRY(call(fd, KVM_SET_FPU, "KVM_SET_FPU", &state.fpu));
  if (state.xcrs) SPINDLE_TRY(call(fd, KVM_SET_XCRS, "KVM_SET_XCRS", &*state.xcrs));
  for (const kvm_msr_entry& msr : state.msrs) {
    MsrList one(std::vector{msr});
    // Some can be read but not written; their value is not the guest's either.
    SPINDLE_TRY(call(fd, kSetMsrs, "KVM_SET_MSRS", one.header()));
  }
  SPINDLE_TRY(call(fd, KVM_SET_LAPIC, "KVM_SET_LAPIC", &state.lapic));
  SPINDLE_TRY(call(fd, KVM_SET_VCPU_EVENTS, "KVM_SET_VCPU_EVENTS", &state.events));
  SPINDLE_TRY(call(fd, KVM_SET_DEBUGREGS, "KVM_SET_DEBUGREGS", &state.debug));
  return call_void(fd, KVM_SET_MP_STATE, "KVM_SET_MP_STATE", &state.mp_state);
}

}  // namespace spindle::vmm
