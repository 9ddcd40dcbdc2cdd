/* blkload: an exact, small load on a bare block device, for counting what the host makes of it.
 *
 * ext4 makes flush counts fuzzy and dd cannot fsync every K writes. This helper issues precisely the system
 * calls it is asked for (O_DIRECT pwrite, pread, fsync; one after the other) and fills every 512-byte sector
 * with a pattern that names its place and the sequence number of its write, so that a lost, misplaced, torn
 * or stale sector is told apart. Built static, it runs in the guest's initramfs and on the host.
 *
 * Results are lines "@@ COMMAND key=value ..." on stdout, each written by one write(2).
 * Exit status: 0 all as it should be, 1 an I/O error or wrong data, 2 wrong usage.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <scsi/sg.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SECTOR = 512, WORDS = SECTOR / 8 };
static const uint64_t MAGIC = 0x31444c4c444e5053; /* "SPNDLLD1" */

static const char USAGE[] =
    "blkload write DEV [--count N] [--size BYTES] [--offset O] [--seq S] [--fsync-every K] [--fsync] [--dsync|--fua]\n"
    "blkload verify DEV [--count N] [--size BYTES] [--offset O] [--seq S]      what that write left\n"
    "blkload ack DEV [--count N] [--size BYTES] [--offset O] [--fsync-every K]  records 1..N; prints ACK n, SYNC n\n"
    "blkload records FILE [--count N] [--size BYTES] [--offset O]               which of them are whole (on the host)\n"
    "blkload stress DEV [--seconds S] [--size BYTES] [--offset O] [--area BYTES] [--jobs J] [--fsync-every K]\n"
    "blkload state DEV                                     what the guest believes about the write cache\n"
    "blkload wait-state DEV on|off [--seconds S]           until all its sources agree on that\n"
    "blkload setwce-sysfs DEV on|off [--seconds S]         write cache_type, then wait-state\n"
    "DEV is a path or a name like sda. Defaults: count 1, size 4096, offset 0, seq 1, seconds 10, area 16 MiB, jobs 1.\n"
    "--fua sends WRITE DMA FUA EXT past the block layer (ATA disks).\n";

struct options {
    uint64_t count, size, offset, seq, fsync_every, seconds, area, jobs;
    int fsync, dsync, fua;
    const char *mode; /* on, off */
};

static void die(int status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("blkload: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    exit(status);
}

static void result(const char *format, ...) {
    char line[512];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line, sizeof line - 1, format, args);
    line[length++] = '\n';
    if (write(1, line, length) != length) exit(1);
}

static uint64_t microseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000ull + now.tv_nsec / 1000;
}

static void *buffer(uint64_t size) {
    void *memory = NULL;
    if (posix_memalign(&memory, 4096, size)) die(1, "no memory for %llu bytes", (unsigned long long)size);
    return memory;
}

static uint64_t mix(uint64_t x) { /* splitmix64 */
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

/* --- the pattern: magic, byte offset, sequence number, then words derived from both ---------------------- */

static void fill(void *memory, uint64_t size, uint64_t offset, uint64_t seq) {
    for (uint64_t *word = memory; size; size -= SECTOR, offset += SECTOR, word += WORDS) {
        uint64_t key = mix(offset ^ mix(seq));
        word[0] = MAGIC;
        word[1] = offset;
        word[2] = seq;
        for (int i = 3; i < WORDS; i++) word[i] = key * (2 * i + 1);
    }
}

/* The offset of the first sector that is not as written, or UINT64_MAX; what is wrong with it in *why. */
static uint64_t first_bad(const void *memory, uint64_t size, uint64_t offset, uint64_t seq, const char **why) {
    for (const uint64_t *word = memory; size; size -= SECTOR, offset += SECTOR, word += WORDS) {
        uint64_t key = mix(offset ^ mix(seq));
        *why = word[0] != MAGIC ? "never-written" : word[1] != offset ? "misplaced" : word[2] != seq ? "stale" : NULL;
        for (int i = 3; !*why && i < WORDS; i++)
            if (word[i] != key * (2 * i + 1)) *why = "torn";
        if (*why) return offset;
    }
    return UINT64_MAX;
}

static const char *base_name(const char *device) {
    const char *slash = strrchr(device, '/');
    return slash ? slash + 1 : device;
}

static int open_device(const char *device, int flags) {
    char path[256];
    snprintf(path, sizeof path, "%s%s", strchr(device, '/') ? "" : "/dev/", device);
    int fd = open(path, flags | O_CLOEXEC);
    if (fd < 0) die(1, "cannot open %s: %s", path, strerror(errno));
    return fd;
}

static int full(ssize_t got, uint64_t size) { return got >= 0 && (uint64_t)got == size; }

/* --- write, verify, ack, records ---------------------------------------------------------------------------- */

/* WRITE DMA FUA EXT by ATA PASS-THROUGH (16). Linux itself sends it only to disks with NCQ, which no IDE disk has. */
static int write_fua(int fd, void *data, uint64_t size, uint64_t offset) {
    uint64_t lba = offset / SECTOR, sectors = size / SECTOR;
    uint8_t cdb[16] = {0x85, 6 << 1 | 1, 0x06, 0, 0, sectors >> 8, sectors, lba >> 24, lba, lba >> 32, lba >> 8, lba >> 40, lba >> 16,
                       0x40, 0x3d}, sense[32];
    struct sg_io_hdr io = {.interface_id = 'S', .dxfer_direction = SG_DXFER_TO_DEV, .cmd_len = sizeof cdb, .mx_sb_len = sizeof sense,
                           .dxfer_len = size, .dxferp = data, .cmdp = cdb, .sbp = sense, .timeout = 30000};
    return ioctl(fd, SG_IO, &io) || io.status || io.host_status || io.driver_status;
}

static int do_write(const char *device, const struct options *o, int acknowledge) {
    int fd = open_device(device, O_RDWR | O_DIRECT | (o->dsync ? O_DSYNC : 0));
    void *data = buffer(o->size);
    uint64_t fsyncs = 0, errors = 0, synced = 0, start = microseconds();
    for (uint64_t n = 1; n <= o->count; n++) {
        uint64_t offset = o->offset + (n - 1) * o->size, seq = acknowledge ? n : o->seq;
        fill(data, o->size, offset, seq);
        if (o->fua ? write_fua(fd, data, o->size, offset) : !full(pwrite(fd, data, o->size, offset), o->size)) {
            errors++;
            if (acknowledge) die(1, "record %llu: %s", (unsigned long long)n, strerror(errno));
        } else if (acknowledge) {
            result("ACK %llu", (unsigned long long)n);
        }
        if ((o->fsync_every && n % o->fsync_every == 0) || (o->fsync && n == o->count)) {
            fsyncs++;
            synced = n;
            if (fsync(fd)) errors++;
            else if (acknowledge) result("SYNC %llu", (unsigned long long)synced);
        }
    }
    uint64_t took = microseconds() - start;
    close(fd);
    result("@@ %s dev=%s writes=%llu bytes=%llu fsyncs=%llu errors=%llu us=%llu", acknowledge ? "ack" : "write",
           base_name(device), (unsigned long long)o->count, (unsigned long long)(o->count * o->size),
           (unsigned long long)fsyncs, (unsigned long long)errors, (unsigned long long)took);
    return errors != 0;
}

static int do_verify(const char *device, const struct options *o) {
    int fd = open_device(device, O_RDONLY | O_DIRECT);
    void *data = buffer(o->size);
    uint64_t bad = 0, errors = 0, first = 0;
    const char *why = "", *first_why = "none";
    for (uint64_t n = 0; n < o->count; n++) {
        uint64_t offset = o->offset + n * o->size, where = offset;
        if (!full(pread(fd, data, o->size, offset), o->size)) {
            errors++;
            why = "read-error";
        } else if ((where = first_bad(data, o->size, offset, o->seq, &why)) == UINT64_MAX) {
            continue;
        } else {
            bad++;
        }
        if (bad + errors == 1) first = where, first_why = why;
    }
    close(fd);
    result("@@ verify dev=%s reads=%llu bad=%llu errors=%llu first=%llu why=%s", base_name(device),
           (unsigned long long)o->count, (unsigned long long)bad, (unsigned long long)errors, (unsigned long long)first, first_why);
    return bad || errors;
}

/* A record is there when all its sectors are; "ranges" is what is there, "holes" counts what is missing below the last. */
static int do_records(const char *file, const struct options *o) {
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0) die(1, "cannot open %s: %s", file, strerror(errno));
    void *data = buffer(o->size);
    uint64_t whole = 0, torn = 0, last = 0, run = 0;
    const char *why;
    char *ranges = buffer(o->count * 24 + 24), *end = ranges;
    for (uint64_t n = 1; n <= o->count + 1; n++) {
        uint64_t offset = o->offset + (n - 1) * o->size;
        int there = n <= o->count && full(pread(fd, data, o->size, offset), o->size);
        if (there && first_bad(data, o->size, offset, n, &why) != UINT64_MAX) {
            for (uint64_t at = 0; at < o->size; at += SECTOR)
                if (first_bad((char *)data + at, SECTOR, offset + at, n, &why) == UINT64_MAX) { torn++; break; }
            there = 0;
        }
        if (there && !run) run = n;
        if (there) whole++, last = n;
        if (!there && run) {
            end += sprintf(end, end == ranges ? "%llu-%llu" : ",%llu-%llu", (unsigned long long)run, (unsigned long long)(n - 1));
            run = 0;
        }
    }
    close(fd);
    printf("@@ records whole=%llu torn=%llu last=%llu holes=%llu ranges=%s\n", (unsigned long long)whole, (unsigned long long)torn,
           (unsigned long long)last, (unsigned long long)(last - whole), end == ranges ? "none" : ranges);
    return 0;
}

/* --- stress ------------------------------------------------------------------------------------------------- */

struct tally { uint64_t writes, reads, fsyncs, bad, errors, slowest; };

static void stress_job(const char *device, const struct options *o, uint64_t job, struct tally *t) {
    uint64_t blocks = o->area / o->jobs / o->size, base = o->offset + job * blocks * o->size;
    uint64_t *written = calloc(blocks, sizeof *written), random = mix(o->seq + job), seq = o->seq << 40;
    uint64_t end = microseconds() + o->seconds * 1000000;
    void *data = buffer(o->size);
    int fd = open_device(device, O_RDWR | O_DIRECT);
    const char *why;
    for (uint64_t start; (start = microseconds()) < end;) {
        random = mix(random);
        uint64_t block = (random >> 8) % blocks, offset = base + block * o->size;
        if (!written[block] || random & 1) {
            fill(data, o->size, offset, ++seq);
            t->writes++;
            written[block] = full(pwrite(fd, data, o->size, offset), o->size) ? seq : (t->errors++, 0);
        } else {
            t->reads++;
            if (!full(pread(fd, data, o->size, offset), o->size)) {
                t->errors++;
            } else if ((offset = first_bad(data, o->size, offset, written[block], &why)) != UINT64_MAX && !t->bad++) {
                result("@@ stress-bad dev=%s offset=%llu why=%s", base_name(device), (unsigned long long)offset, why);
            }
        }
        if (o->fsync_every && (t->writes + t->reads) % o->fsync_every == 0) {
            t->fsyncs++;
            if (fsync(fd)) t->errors++;
        }
        uint64_t took = microseconds() - start;
        if (took > t->slowest) t->slowest = took;
    }
    if (fsync(fd)) t->errors++;
    for (uint64_t block = 0; block < blocks; block++) { /* at last, everything once more */
        uint64_t offset = base + block * o->size;
        if (!written[block]) continue;
        t->reads++;
        if (!full(pread(fd, data, o->size, offset), o->size)) t->errors++;
        else if (first_bad(data, o->size, offset, written[block], &why) != UINT64_MAX) t->bad++;
    }
    close(fd);
}

static int do_stress(const char *device, const struct options *o) {
    if (o->area / o->jobs < o->size) die(2, "--area is too small for --jobs times --size");
    struct tally *tallies = mmap(NULL, o->jobs * sizeof *tallies, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct tally sum = {0};
    if (tallies == MAP_FAILED) die(1, "no memory");
    for (uint64_t job = 0; job < o->jobs; job++) {
        pid_t pid = fork();
        if (pid < 0) die(1, "cannot fork: %s", strerror(errno));
        if (pid == 0) {
            stress_job(device, o, job, &tallies[job]);
            _exit(0);
        }
    }
    for (int status; wait(&status) > 0;)
        if (!WIFEXITED(status) || WEXITSTATUS(status)) sum.errors++;
    for (uint64_t job = 0; job < o->jobs; job++) {
        sum.writes += tallies[job].writes, sum.reads += tallies[job].reads, sum.fsyncs += tallies[job].fsyncs + 1;
        sum.bad += tallies[job].bad, sum.errors += tallies[job].errors;
        if (tallies[job].slowest > sum.slowest) sum.slowest = tallies[job].slowest;
    }
    result("@@ stress dev=%s writes=%llu reads=%llu fsyncs=%llu bad=%llu errors=%llu slowest_us=%llu", base_name(device),
           (unsigned long long)sum.writes, (unsigned long long)sum.reads, (unsigned long long)sum.fsyncs,
           (unsigned long long)sum.bad, (unsigned long long)sum.errors, (unsigned long long)sum.slowest);
    return sum.bad || sum.errors;
}

/* --- the write cache as the guest sees it ------------------------------------------------------------------- */

/* First line of a sysfs file with blanks made underscores, "-" if there is none. */
static const char *sysfs(const char *path, char *line, int size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC), got = fd < 0 ? -1 : read(fd, line, size - 1);
    if (fd >= 0) close(fd);
    if (got <= 0) return strcpy(line, "-");
    line[got] = 0;
    line[strcspn(line, "\n")] = 0;
    for (char *c = line; *c; c++)
        if (*c == ' ') *c = '_';
    return line;
}

static int is_virtio(const char *name) { return name[0] == 'v'; }

static void cache_type_path(const char *name, char *path, int size) {
    snprintf(path, size, "/sys/block/%s/%s", name, is_virtio(name) ? "cache_type" : "device/scsi_disk");
    DIR *directory = is_virtio(name) ? NULL : opendir(path);
    for (struct dirent *entry; directory && (entry = readdir(directory));)
        if (entry->d_name[0] != '.') snprintf(path, size, "/sys/block/%s/device/scsi_disk/%s/cache_type", name, entry->d_name);
    if (directory) closedir(directory);
}

/* A fresh IDENTIFY DEVICE: word 85 bit 5, or -1 if this is no ATA disk or it does not answer. */
static int identify_wce(const char *name) {
    uint8_t cdb[16] = {0x85, 4 << 1, 0x0e, 0, 0, 0, 1, [14] = 0xec}, sense[32];
    uint16_t *words = buffer(SECTOR);
    struct sg_io_hdr io = {.interface_id = 'S', .dxfer_direction = SG_DXFER_FROM_DEV, .cmd_len = sizeof cdb, .mx_sb_len = sizeof sense,
                           .dxfer_len = SECTOR, .dxferp = words, .cmdp = cdb, .sbp = sense, .timeout = 10000};
    if (is_virtio(name)) return -1;
    int fd = open_device(name, O_RDONLY | O_NONBLOCK);
    int failed = ioctl(fd, SG_IO, &io) || io.status || io.host_status;
    int wce = words[85] >> 5 & 1;
    close(fd);
    free(words);
    return failed ? -1 : wce;
}

struct state { int identify; char type[64], queue[64]; };

static struct state state_of(const char *name) {
    struct state s = {.identify = identify_wce(name)};
    char path[300];
    cache_type_path(name, path, sizeof path);
    sysfs(path, s.type, sizeof s.type);
    snprintf(path, sizeof path, "/sys/block/%s/queue/write_cache", name);
    sysfs(path, s.queue, sizeof s.queue);
    return s;
}

static void print_state(const char *command, const char *name, const struct state *s, const char *more) {
    const char *identify = s->identify < 0 ? "-" : s->identify ? "1" : "0";
    result("@@ %s dev=%s identify=%s cache_type=%s queue=%s%s", command, name, identify, s->type, s->queue, more);
}

/* sysfs follows a toggle late (libata revalidates and sd rescans from work queues) and sends no event: look again and again. */
static int wait_state(const char *command, const char *name, const struct options *o) {
    int on = !strcmp(o->mode, "on");
    const char *wanted = on ? "write_back" : "write_through";
    uint64_t start = microseconds(), waited;
    for (;;) {
        struct state s = state_of(name);
        int agreed = !strcmp(s.queue, wanted) && !strncmp(s.type, wanted, strlen(wanted)) && (s.identify < 0 || s.identify == on);
        waited = microseconds() - start;
        if (agreed || waited > o->seconds * 1000000) {
            char more[64];
            snprintf(more, sizeof more, " agreed=%d us=%llu", agreed, (unsigned long long)waited);
            print_state(command, name, &s, more);
            return !agreed;
        }
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
}

static int set_wce(const char *name, const struct options *o) {
    const char *text = !strcmp(o->mode, "on") ? "write back" : "write through";
    char path[300];
    cache_type_path(name, path, sizeof path);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0) {
        result("@@ setwce-sysfs dev=%s error=%s", name, strerrorname_np(errno));
        return 1;
    }
    close(fd);
    return wait_state("setwce-sysfs", name, o);
}

/* --- command line ------------------------------------------------------------------------------------------- */

static struct options parse(int argc, char **argv) {
    struct options o = {.count = 1, .size = 4096, .seq = 1, .seconds = 10, .area = 16 << 20, .jobs = 1, .mode = ""};
    struct { const char *name; uint64_t *value; int *flag; } known[] = {
        {"--count", &o.count, 0}, {"--size", &o.size, 0}, {"--offset", &o.offset, 0}, {"--seq", &o.seq, 0},
        {"--fsync-every", &o.fsync_every, 0}, {"--seconds", &o.seconds, 0}, {"--area", &o.area, 0}, {"--jobs", &o.jobs, 0},
        {"--fsync", 0, &o.fsync}, {"--dsync", 0, &o.dsync}, {"--fua", 0, &o.fua}};
    for (int i = 0; i < argc; i++) {
        unsigned k = 0, all = sizeof known / sizeof *known;
        if (!strcmp(argv[i], "on") || !strcmp(argv[i], "off")) {
            o.mode = argv[i];
            continue;
        }
        while (k < all && strcmp(argv[i], known[k].name)) k++;
        if (k == all) die(2, "unknown option %s", argv[i]);
        if (known[k].flag) {
            *known[k].flag = 1;
            continue;
        }
        char *end = "?";
        if (i + 1 < argc) *known[k].value = strtoull(argv[++i], &end, 0);
        if (*end) die(2, "%s wants a number", known[k].name);
    }
    if (!o.size || o.size % SECTOR || o.offset % SECTOR || !o.jobs) die(2, "size and offset are in bytes, multiples of 512; jobs at least 1");
    if (o.fua && o.size / SECTOR > 0xffff) die(2, "--fua writes at most 65535 sectors at once");
    return o;
}

int main(int argc, char **argv) {
    if (argc < 3) die(2, "usage:\n%s", USAGE);
    const char *command = argv[1], *device = argv[2], *name = base_name(device);
    struct options o = parse(argc - 3, argv + 3);
    if (!strcmp(command, "write")) return do_write(device, &o, 0);
    if (!strcmp(command, "verify")) return do_verify(device, &o);
    if (!strcmp(command, "ack")) return do_write(device, &o, 1);
    if (!strcmp(command, "records")) return do_records(device, &o);
    if (!strcmp(command, "stress")) return do_stress(device, &o);
    if (!strcmp(command, "state")) {
        struct state s = state_of(name);
        print_state("state", name, &s, "");
        return 0;
    }
    if (!strcmp(command, "wait-state") || !strcmp(command, "setwce-sysfs")) {
        if (!*o.mode) die(2, "%s %s: on or off?", command, device);
        return command[0] == 'w' ? wait_state(command, name, &o) : set_wce(name, &o);
    }
    die(2, "unknown command %s\n%s", command, USAGE);
}
