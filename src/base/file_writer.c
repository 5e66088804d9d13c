/* Writing files: complete or not at all. */
#if !defined(_WIN32)
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE /* madvise */
#define _FILE_OFFSET_BITS 64
#endif

#include "file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
typedef HANDLE file_handle;
#else
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/mman.h>
#include <sys/vfs.h>
#if !defined(MADV_POPULATE_WRITE)
#define MADV_POPULATE_WRITE 23
#endif
#define FILE_MAPS
#endif
typedef int file_handle;
/* A file without a name in a folder, which only Linux has; glibc gives the public name to programs of GNU extensions only. */
#if defined(__linux__) && !defined(O_TMPFILE) && defined(__O_TMPFILE)
#define O_TMPFILE __O_TMPFILE
#endif
#endif

#define FILE_PIECE ((uint64_t)1 << 30) /* a single write of 2 GiB and more is cut short or refused by systems */
#define FILE_PAGE 4096u               /* bytes of a page of memory */
#define FILE_NAMES_TRIED 100u
#define FILE_LINKS_FOLLOWED 40u

typedef enum writer_kind {
    WRITER_NAMED,   /* under a temporary name beside the path */
    WRITER_UNNAMED, /* without a name until it is complete */
    WRITER_THROUGH  /* straight to what is there: a device, a pipe, standard output */
} writer_kind;

struct file_writer {
    base_report *report;
    char *path, *temporary; /* path: links followed */
    file_handle handle;
    writer_kind kind;
    bool is_open;
#if defined(FILE_MAPS)
    uint8_t *map; /* NULL: written by system calls */
    uint64_t map_bytes;
#endif
};

/* What stands at a path. */
typedef enum target {
    TARGET_NONE,
    TARGET_FILE,
    TARGET_READ_ONLY,
    TARGET_FOLDER,
    TARGET_OTHER,  /* a device, a pipe */
    TARGET_UNKNOWN /* the system's error says why */
} target;

#if defined(_WIN32)

/* 1: made, 0: the name is taken, -1: failed. */
static int file_create(file_handle *handle, const char *path)
{
    wchar_t *wide = file_wide(path);
    if (wide == NULL) return -1;
    *handle = CreateFileW(wide, GENERIC_WRITE, 0, NULL, CREATE_NEW, FILE_ATTRIBUTE_NORMAL, NULL);
    free(wide);
    if (*handle != INVALID_HANDLE_VALUE) return 1;
    return GetLastError() == ERROR_FILE_EXISTS ? 0 : -1;
}

static bool file_write(file_handle handle, const uint8_t *data, uint64_t bytes)
{
    while (bytes > 0) {
        DWORD written = 0;
        if (!WriteFile(handle, data, (DWORD)(bytes < FILE_PIECE ? bytes : FILE_PIECE), &written, NULL)) return false;
        data += written;
        bytes -= written;
    }
    return true;
}

static bool file_put(file_handle handle, uint64_t at, const uint8_t *data, uint64_t bytes)
{
    while (bytes > 0) {
        OVERLAPPED place = {.Offset = (DWORD)at, .OffsetHigh = (DWORD)(at >> 32)};
        DWORD written = 0;
        if (!WriteFile(handle, data, (DWORD)(bytes < FILE_PIECE ? bytes : FILE_PIECE), &written, &place)) return false;
        data += written;
        at += written;
        bytes -= written;
    }
    return true;
}

static bool file_flush(file_handle handle) { return FlushFileBuffers(handle) != 0; }
static bool file_close(file_handle handle) { return CloseHandle(handle) != 0; }

static void file_remove(const char *path)
{
    wchar_t *wide = file_wide(path);
    if (wide != NULL) DeleteFileW(wide);
    free(wide);
}

static bool file_rename(const char *from, const char *to)
{
    wchar_t *wide_from = file_wide(from), *wide_to = file_wide(to);
    bool renamed = wide_from != NULL && wide_to != NULL &&
                   MoveFileExW(wide_from, wide_to, MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH) != 0;
    free(wide_from);
    free(wide_to);
    return renamed;
}

static target file_target(const char *path, unsigned *mode)
{
    wchar_t *wide = file_wide(path);
    const DWORD attributes = wide != NULL ? GetFileAttributesW(wide) : INVALID_FILE_ATTRIBUTES;
    free(wide);
    *mode = 0;
    if (attributes == INVALID_FILE_ATTRIBUTES) return TARGET_NONE;
    if ((attributes & FILE_ATTRIBUTE_DIRECTORY) != 0) return TARGET_FOLDER;
    return (attributes & FILE_ATTRIBUTE_READONLY) != 0 ? TARGET_READ_ONLY : TARGET_FILE;
}

static char *follow_links(const char *path)
{
    char *copy = malloc(strlen(path) + 1);
    return copy != NULL ? strcpy(copy, path) : NULL;
}

static bool open_through(file_handle *handle, const char *path)
{
    (void)path; /* only standard output: nothing else is TARGET_OTHER here */
    HANDLE output = GetStdHandle(STD_OUTPUT_HANDLE);
    return DuplicateHandle(GetCurrentProcess(), output, GetCurrentProcess(), handle, 0, FALSE, DUPLICATE_SAME_ACCESS) != 0;
}

static bool file_set_mode(file_handle handle, unsigned mode)
{
    (void)handle, (void)mode;
    return true;
}

static bool open_unnamed(file_handle *handle, const char *path)
{
    (void)handle, (void)path;
    return false;
}
static int file_name(file_handle handle, const char *path)
{
    (void)handle, (void)path;
    return -1;
}

#else

/* 1: made, 0: the name is taken, -1: failed. */
static int file_create(file_handle *handle, const char *path)
{
    *handle = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (*handle >= 0) return 1;
    return errno == EEXIST ? 0 : -1;
}

static bool file_write(file_handle handle, const uint8_t *data, uint64_t bytes)
{
    while (bytes > 0) {
        ssize_t written = write(handle, data, (size_t)(bytes < FILE_PIECE ? bytes : FILE_PIECE));
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return false;
        data += written;
        bytes -= (uint64_t)written;
    }
    return true;
}

static bool file_put(file_handle handle, uint64_t at, const uint8_t *data, uint64_t bytes)
{
    while (bytes > 0) {
        ssize_t written = pwrite(handle, data, (size_t)(bytes < FILE_PIECE ? bytes : FILE_PIECE), (off_t)at);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return false;
        data += written;
        at += (uint64_t)written;
        bytes -= (uint64_t)written;
    }
    return true;
}

static bool file_flush(file_handle handle) { return fsync(handle) == 0; }
static bool file_close(file_handle handle) { return close(handle) == 0; }
static void file_remove(const char *path) { unlink(path); }
static bool file_rename(const char *from, const char *to) { return rename(from, to) == 0; }

/* By its mode, not by what the user may do: the superuser may write everything. */
static target file_target(const char *path, unsigned *mode)
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
static char *follow_links(const char *path)
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

static bool open_through(file_handle *handle, const char *path)
{
    *handle = path != NULL ? open(path, O_WRONLY | O_CLOEXEC) : dup(STDOUT_FILENO);
    return *handle >= 0;
}

static bool file_set_mode(file_handle handle, unsigned mode) { return fchmod(handle, (mode_t)mode) == 0; }

static bool open_unnamed(file_handle *handle, const char *path)
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
static int file_name(file_handle handle, const char *path)
{
    char open_file[40];
    snprintf(open_file, sizeof open_file, "/proc/self/fd/%d", handle);
    if (linkat(AT_FDCWD, open_file, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0) return 1;
    return errno == EEXIST ? 0 : -1;
}

#endif

/* Makes a file under a name of its own beside the path, or names an unnamed one so. */
static dart_status take_name(file_writer *writer, bool unnamed)
{
    const size_t size = strlen(writer->path) + sizeof ".4294967295.tmp";
    int made = 0;
    for (uint32_t i = 0; i < FILE_NAMES_TRIED && made == 0; i++) {
        snprintf(writer->temporary, size, "%s.%u.tmp", writer->path, (unsigned)i);
        made = unnamed ? file_name(writer->handle, writer->temporary) : file_create(&writer->handle, writer->temporary);
    }
    if (made < 0) return file_failed(writer->report, "create", writer->temporary);
    if (made == 0)
        return base_fail(writer->report, DART_IO, "cannot write %s: remove the files %s.*.tmp", writer->path, writer->path);
    return DART_OK;
}

static dart_status open_replacement(file_writer *writer, unsigned mode)
{
    writer->kind = open_unnamed(&writer->handle, writer->path) ? WRITER_UNNAMED : WRITER_NAMED;
    if (writer->kind == WRITER_NAMED) {
        const dart_status status = take_name(writer, false);
        if (status != DART_OK) return status;
    }
    writer->is_open = true;
    if (mode != 0 && !file_set_mode(writer->handle, mode)) return file_failed(writer->report, "set the mode of", writer->path);
    return DART_OK;
}

dart_status file_writer_open(const char *path, base_report *report, file_writer **writer)
{
    dart_status status = DART_OK;
    const bool standard = strcmp(path, "-") == 0;
    unsigned mode = 0;
    file_writer *made = calloc(1, sizeof *made);
    if (made == NULL) return base_fail(report, DART_OUT_OF_MEMORY, "no memory to write %s", path);
    made->report = report;
    const target found = standard ? TARGET_OTHER : file_target(path, &mode);
    if (found == TARGET_UNKNOWN) {
        status = file_failed(report, "write", path);
        goto fail;
    }
    /* A link to what is no file may name no path: /dev/stdout leads to "pipe:[1234]". The system opens it all the same. */
    made->path = found == TARGET_OTHER ? file_join("", path) : follow_links(path);
    made->temporary = made->path != NULL ? malloc(strlen(made->path) + sizeof ".4294967295.tmp") : NULL;
    if (made->temporary == NULL) FAIL(report, DART_OUT_OF_MEMORY, "no memory to write %s", path);
    switch (found) {
    case TARGET_UNKNOWN:
    case TARGET_NONE:
    case TARGET_FILE: TRY(open_replacement(made, mode)); break;
    case TARGET_READ_ONLY: FAIL(report, DART_IO, "cannot write %s: it is read-only", path);
    case TARGET_FOLDER: FAIL(report, DART_IO, "cannot write %s: it is a folder", path);
    case TARGET_OTHER:
        made->kind = WRITER_THROUGH;
        if (!open_through(&made->handle, standard ? NULL : made->path)) {
            status = file_failed(report, "open", path);
            goto fail;
        }
        made->is_open = true;
        break;
    }
    *writer = made;
    return DART_OK;
fail:
    file_writer_destroy(&made);
    return status;
}

dart_status file_writer_append(file_writer *writer, const void *data, uint64_t bytes)
{
    if (!file_write(writer->handle, data, bytes)) return file_failed(writer->report, "write", writer->path);
    return DART_OK;
}

bool file_writer_has_places(const file_writer *writer) { return writer->kind != WRITER_THROUGH; }

dart_status file_writer_put(file_writer *writer, uint64_t at, const void *data, uint64_t bytes)
{
    if (!file_writer_has_places(writer)) return file_writer_append(writer, data, bytes);
    if (!file_put(writer->handle, at, data, bytes)) return file_failed(writer->report, "write", writer->path);
    return DART_OK;
}

/* ---- Written as memory ---- */

#if defined(FILE_MAPS)

static void unmap_file(file_writer *w)
{
    if (w->map != NULL) munmap(w->map, (size_t)w->map_bytes);
    w->map = NULL;
}

/* Pages for the bytes, or errno: a page for which there is no room would end the process when it is touched. */
static bool find_pages(const file_writer *w, uint64_t at, uint64_t bytes)
{
    const uint64_t first = at / FILE_PAGE * FILE_PAGE;
    int result;
    do result = madvise(w->map + first, (size_t)(at + bytes - first), MADV_POPULATE_WRITE);
    while (result != 0 && (errno == EINTR || errno == EAGAIN));
    if (result != 0 && errno == EFAULT) errno = ENOSPC;
    return result == 0;
}

bool file_writer_maps(file_writer *writer, uint64_t bytes)
{
    enum { TMPFS = 0x01021994 };
    struct statfs system;
    if (writer->kind == WRITER_THROUGH || bytes == 0 || bytes > SIZE_MAX || fstatfs(writer->handle, &system) != 0 || system.f_type != TMPFS ||
        sysconf(_SC_PAGESIZE) > (long)FILE_PAGE)
        return false;
    if (ftruncate(writer->handle, (off_t)bytes) != 0) return false; /* writing will say why */
    void *map = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, writer->handle, 0);
    if (map == MAP_FAILED) return false;
    writer->map = map;
    writer->map_bytes = bytes;
    if (find_pages(writer, 0, 1)) return true; /* not before Linux 5.14 */
    unmap_file(writer);
    return false;
}

dart_status file_writer_place(file_writer *writer, uint64_t at, uint64_t bytes, uint8_t **place)
{
    *place = writer->map + at;
    return find_pages(writer, at, bytes) ? DART_OK : file_failed(writer->report, "write", writer->path);
}

#else

bool file_writer_maps(file_writer *writer, uint64_t bytes)
{
    (void)writer, (void)bytes;
    return false;
}

dart_status file_writer_place(file_writer *writer, uint64_t at, uint64_t bytes, uint8_t **place)
{
    (void)at, (void)bytes, (void)place;
    return base_fail(writer->report, DART_INTERNAL, "%s is not written as memory", writer->path);
}

static void unmap_file(file_writer *w) { (void)w; }

#endif

/* What a rename or a link has changed is the folder. */
static dart_status flush_name(const file_writer *writer)
{
    char *folder = file_folder(writer->path);
    if (folder == NULL) return base_fail(writer->report, DART_OUT_OF_MEMORY, "no memory to write %s", writer->path);
    const bool flushed = file_flush_folder(folder);
    free(folder);
    return flushed ? DART_OK : file_failed(writer->report, "write", writer->path);
}

dart_status file_writer_close(file_writer **writer)
{
    file_writer *w = *writer;
    dart_status status = DART_OK;
    bool named = w->kind == WRITER_NAMED;
    unmap_file(w);
    if (w->kind != WRITER_THROUGH && !file_flush(w->handle)) status = file_failed(w->report, "write", w->path);
    if (w->kind == WRITER_UNNAMED && status == DART_OK && file_name(w->handle, w->path) != 1) {
        status = take_name(w, true);
        named = status == DART_OK;
    }
    w->is_open = false;
    if (!file_close(w->handle) && status == DART_OK) status = file_failed(w->report, "write", w->path);
    if (named && status == DART_OK && !file_rename(w->temporary, w->path)) status = file_failed(w->report, "replace", w->path);
    if (named && status != DART_OK) file_remove(w->temporary);
    if (w->kind != WRITER_THROUGH && status == DART_OK) status = flush_name(w);
    file_writer_destroy(writer);
    return status;
}

void file_writer_destroy(file_writer **writer)
{
    if (writer == NULL || *writer == NULL) return;
    unmap_file(*writer);
    if ((*writer)->is_open) {
        file_close((*writer)->handle);
        if ((*writer)->kind == WRITER_NAMED) file_remove((*writer)->temporary);
    }
    free((*writer)->path);
    free((*writer)->temporary);
    free(*writer);
    *writer = NULL;
}
