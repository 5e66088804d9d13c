/* Files where there is POSIX. */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE /* madvise */
#define _DARWIN_C_SOURCE
#define _FILE_OFFSET_BITS 64
#include "file_system.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/vfs.h>
#if !defined(MADV_POPULATE_WRITE)
#define MADV_POPULATE_WRITE 23
#endif
#if !defined(MADV_COLLAPSE)
#define MADV_COLLAPSE 25
#endif
#endif
/* A file without a name in a folder, and one that is neither read nor written, which only Linux has; glibc gives the public
 * names to programs of GNU extensions only. */
#if defined(__linux__) && !defined(O_TMPFILE) && defined(__O_TMPFILE)
#define O_TMPFILE __O_TMPFILE
#endif
#if defined(__linux__) && !defined(O_PATH) && defined(__O_PATH)
#define O_PATH __O_PATH
#endif

#define FILE_PIECE ((uint64_t)1 << 30) /* a single write of 2 GiB and more is cut short or refused by systems */
#define FILE_PAGE 4096u               /* bytes of a page of memory */
#define FILE_HUGE ((uint64_t)2 << 20) /* and of a huge one */
#define FILE_LINKS_FOLLOWED 40u

dart_status file_failed(base_report *report, const char *verb, const char *path)
{
    char reason[128];
    if (strerror_r(errno, reason, sizeof reason) != 0) snprintf(reason, sizeof reason, "error %d", errno);
    return base_fail(report, DART_IO, "cannot %s %s: %s", verb, path, reason);
}

bool file_is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

bool file_exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && !S_ISDIR(info.st_mode);
}

/* EINVAL: a file system that flushes no folders. */
bool file_flush_folder(const char *path)
{
    const int handle = open(path[0] != '\0' ? path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (handle < 0) return errno == EACCES; /* one that may be written but not read */
    const bool flushed = fsync(handle) == 0 || errno == EINVAL;
    const int reason = errno;
    close(handle);
    errno = reason;
    return flushed;
}

dart_status file_make_folder(const char *path, base_report *report)
{
    if (mkdir(path, 0777) != 0) return file_is_folder(path) ? DART_OK : file_failed(report, "make", path);
    size_t length = strlen(path);
    char *parent = file_join("", path);
    if (parent == NULL) return base_fail(report, DART_OUT_OF_MEMORY, "no memory to make %s", path);
    while (length > 1 && file_is_separator(parent[length - 1])) length--;
    while (length > 0 && !file_is_separator(parent[length - 1])) length--;
    parent[length] = '\0';
    const bool flushed = file_flush_folder(parent);
    free(parent);
    return flushed ? DART_OK : file_failed(report, "make", path);
}

bool file_open_to_read(file_handle *handle, const char *path)
{
    *handle = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer must not hang us */
    return *handle >= 0;
}

bool file_measure(file_handle handle, bool *regular, uint64_t *bytes)
{
    struct stat info;
    if (fstat((int)handle, &info) != 0) return false;
    *regular = S_ISREG(info.st_mode);
    *bytes = (uint64_t)info.st_size;
    return true;
}

/* The file as memory; NULL: failed. Byte 0 lies at a multiple of a huge page, where there is one to have: at other places Linux maps the huge pages
 * of a file in pieces of 4 KiB, and it does not choose such a place by itself for a file in memory. */
static void *map_file(file_handle handle, uint64_t bytes, int protection, int kind)
{
    uint8_t *map = MAP_FAILED;
#if defined(__linux__)
    if (bytes >= FILE_HUGE && bytes <= SIZE_MAX - FILE_HUGE && sysconf(_SC_PAGESIZE) == (long)FILE_PAGE) {
        const size_t room = (size_t)(bytes + FILE_HUGE);
        uint8_t *around = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (around != MAP_FAILED) {
            const size_t before = (size_t)((FILE_HUGE - (uintptr_t)around % FILE_HUGE) % FILE_HUGE);
            map = mmap(around + before, (size_t)bytes, protection, kind | MAP_FIXED, (int)handle, 0);
            if (map == MAP_FAILED) munmap(around, room);
            else {
                const size_t after = before + (size_t)base_round_up(bytes, FILE_PAGE);
                if (before > 0) munmap(around, before);
                munmap(around + after, room - after);
            }
        }
    }
#endif
    if (map == MAP_FAILED) map = mmap(NULL, (size_t)bytes, protection, kind, (int)handle, 0);
    return map != MAP_FAILED ? map : NULL;
}

const void *file_view(file_handle handle, uint64_t bytes) { return map_file(handle, bytes, PROT_READ, MAP_PRIVATE); }

void file_map_close(file_map *map)
{
    if (map->data != NULL) munmap((void *)(uintptr_t)map->data, (size_t)map->bytes);
    *map = (file_map){NULL, 0};
}

void file_map_forget(const void *data, uint64_t bytes)
{
    const long size = sysconf(_SC_PAGESIZE);
    if (size <= 0 || bytes == 0) return;
    const uintptr_t page = (uintptr_t)size, begin = (uintptr_t)data / page * page, end = ((uintptr_t)data + (uintptr_t)bytes) / page * page;
    if (end > begin) madvise((void *)begin, end - begin, MADV_DONTNEED);
}

/* ---- Writing ---- */

int file_create(file_handle *handle, const char *path)
{
    *handle = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (*handle >= 0) return 1;
    return errno == EEXIST ? 0 : -1;
}

bool file_write(file_handle handle, const uint8_t *data, uint64_t bytes)
{
    while (bytes > 0) {
        ssize_t written = write((int)handle, data, (size_t)(bytes < FILE_PIECE ? bytes : FILE_PIECE));
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return false;
        data += written;
        bytes -= (uint64_t)written;
    }
    return true;
}

bool file_write_at(file_handle handle, uint64_t at, const uint8_t *data, uint64_t bytes)
{
    while (bytes > 0) {
        ssize_t written = pwrite((int)handle, data, (size_t)(bytes < FILE_PIECE ? bytes : FILE_PIECE), (off_t)at);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return false;
        data += written;
        at += (uint64_t)written;
        bytes -= (uint64_t)written;
    }
    return true;
}

bool file_flush(file_handle handle) { return fsync((int)handle) == 0; }
bool file_close(file_handle handle) { return close((int)handle) == 0; }
void file_remove(const char *path) { unlink(path); }
bool file_rename(const char *from, const char *to) { return rename(from, to) == 0; }

bool file_keep(file_handle *handle, const char *path, uint64_t bytes)
{
#if defined(__linux__) && defined(O_PATH)
    struct stat info;
    const int opened = open(path, O_PATH | O_CLOEXEC);
    if (opened < 0) return false;
    *handle = opened;
    if (fstat(opened, &info) == 0 && S_ISREG(info.st_mode) && (uint64_t)info.st_size >= bytes && info.st_nlink == 1) return true;
    close(opened);
#else
    (void)handle, (void)path, (void)bytes;
#endif
    return false;
}

/* By its mode, not by what the user may do: the superuser may write everything. */
file_target file_target_at(const char *path, unsigned *mode)
{
    struct stat info;
    *mode = 0;
    if (stat(path, &info) != 0) return errno == ENOENT ? TARGET_NONE : TARGET_UNKNOWN; /* e.g. links in a circle */
    *mode = (unsigned)info.st_mode & 07777;
    if (S_ISDIR(info.st_mode)) return TARGET_FOLDER;
    if (!S_ISREG(info.st_mode)) return TARGET_OTHER;
    return (info.st_mode & 0222) == 0 || access(path, W_OK) != 0 ? TARGET_READ_ONLY : TARGET_FILE;
}

/* The target of the link at path, for free(); NULL: there is none, or no memory. */
static char *link_target(const char *path)
{
    char text[4096];
    const ssize_t length = readlink(path, text, sizeof text - 1);
    if (length <= 0 || length == (ssize_t)sizeof text - 1) return NULL;
    text[length] = '\0';
    char *folder = text[0] == '/' ? NULL : file_folder(path);
    char *joined = file_join(folder != NULL ? folder : "", text);
    free(folder);
    return joined;
}

/* The path behind links, also where the last of them names nothing yet; for free(), NULL without memory. */
char *file_follow_links(const char *path)
{
    char *at = file_join("", path);
    for (uint32_t i = 0; i < FILE_LINKS_FOLLOWED && at != NULL; i++) {
        char *next = link_target(at);
        if (next == NULL) break;
        free(at);
        at = next;
    }
    return at;
}

bool file_open_through(file_handle *handle, const char *path)
{
    *handle = path != NULL ? open(path, O_WRONLY | O_CLOEXEC) : dup(STDOUT_FILENO);
    return *handle >= 0;
}

bool file_set_mode(file_handle handle, unsigned mode) { return fchmod((int)handle, (mode_t)mode) == 0; }

bool file_create_unnamed(file_handle *handle, const char *path)
{
#if defined(O_TMPFILE)
    char *folder = file_folder(path);
    const bool nameable = access("/proc/self/fd", X_OK) == 0; /* where file_name finds it again */
    *handle = folder != NULL && nameable ? open(folder[0] != '\0' ? folder : ".", O_RDWR | O_TMPFILE | O_CLOEXEC, 0666) : -1;
    free(folder);
    return *handle >= 0;
#else
    (void)handle, (void)path;
    return false;
#endif
}

/* Gives an unnamed file a name. 1: done, 0: the name is taken, -1: failed. */
int file_give_name(file_handle handle, const char *path)
{
    char open_file[40];
    snprintf(open_file, sizeof open_file, "/proc/self/fd/%d", (int)handle);
    if (linkat(AT_FDCWD, open_file, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0) return 1;
    return errno == EEXIST ? 0 : -1;
}

/* ---- Written as memory ---- */

bool file_shorten(file_handle handle, uint64_t bytes) { return ftruncate((int)handle, (off_t)bytes) == 0; }

#if defined(__linux__)

static bool find_small_pages(uint8_t *map, uint64_t at, uint64_t bytes)
{
    const uint64_t first = at / FILE_PAGE * FILE_PAGE;
    int result;
    do result = madvise(map + first, (size_t)(at + bytes - first), MADV_POPULATE_WRITE);
    while (result != 0 && (errno == EINTR || errno == EAGAIN));
    if (result != 0 && errno == EFAULT) errno = ENOSPC;
    return result == 0;
}

/* Huge pages first, from Linux 6.1 on, whatever the system's settings for files in memory are but `deny`: 512 small ones, which are found one
 * after another, take several times as long. Linux makes one of a range that has a small one at least. Those at both ends may belong to another
 * thread's bytes as well: what is written there stays. Where none is to be had, small ones are found. */
bool file_find_pages(uint8_t *map, uint64_t file_bytes, uint64_t at, uint64_t bytes)
{
    const uint64_t begin = at / FILE_HUGE * FILE_HUGE, end = base_smaller(base_ceil_div(at + bytes, FILE_HUGE), file_bytes / FILE_HUGE) * FILE_HUGE;
    for (uint64_t i = begin; i < end; i += FILE_HUGE)
        if (!find_small_pages(map, i, 1)) return false;
    if (begin < end) (void)madvise(map + begin, (size_t)(end - begin), MADV_COLLAPSE);
    return find_small_pages(map, at, bytes);
}

void file_unmap(uint8_t *map, uint64_t bytes)
{
    if (map != NULL) munmap(map, (size_t)bytes);
}

uint8_t *file_map_to_write(file_handle handle, uint64_t bytes)
{
    enum { TMPFS = 0x01021994 };
    struct statfs system;
    if (bytes == 0 || bytes > SIZE_MAX || fstatfs((int)handle, &system) != 0 || system.f_type != TMPFS ||
        sysconf(_SC_PAGESIZE) > (long)FILE_PAGE)
        return NULL;
    if (ftruncate((int)handle, (off_t)bytes) != 0) return NULL; /* writing will say why */
    uint8_t *map = map_file(handle, bytes, PROT_READ | PROT_WRITE, MAP_SHARED);
    if (map == NULL) return NULL;
    if (find_small_pages(map, 0, 1)) return map; /* not before Linux 5.14 */
    file_unmap(map, bytes);
    return NULL;
}

#else

uint8_t *file_map_to_write(file_handle handle, uint64_t bytes)
{
    (void)handle, (void)bytes;
    return NULL;
}

bool file_find_pages(uint8_t *map, uint64_t file_bytes, uint64_t at, uint64_t bytes)
{
    (void)map, (void)file_bytes, (void)at, (void)bytes;
    return false;
}

void file_unmap(uint8_t *map, uint64_t bytes) { (void)map, (void)bytes; }

#endif

/* ---- Locks ---- */

int file_take_lock(file_handle *handle, const char *path, long *holder)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET}, other = whole;
    const int opened = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (opened < 0) return -1;
    *handle = opened;
    if (fcntl(opened, F_SETLK, &whole) == 0) return 1;
    if (errno != EACCES && errno != EAGAIN) return 1; /* a file system without locks */
    *holder = fcntl(opened, F_GETLK, &other) == 0 && other.l_type != F_UNLCK ? (long)other.l_pid : 0;
    close(opened);
    return 0;
}

int file_copy_descriptor(int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, 0); }

void file_close_descriptor(int fd)
{
    if (fd >= 0) close(fd);
}
