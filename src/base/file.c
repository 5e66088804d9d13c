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
#else
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

static bool is_separator(char c)
{
#if defined(_WIN32)
    return c == '/' || c == '\\' || c == ':';
#else
    return c == '/';
#endif
}

char *file_join(const char *folder, const char *name)
{
    size_t head = strlen(folder), tail = strlen(name);
    if (head > SIZE_MAX / 4 || tail > SIZE_MAX / 4) return NULL;
    char *path = malloc(head + tail + 2);
    if (path == NULL) return NULL;
    memcpy(path, folder, head);
    if (head > 0 && !is_separator(folder[head - 1])) path[head++] = '/';
    memcpy(path + head, name, tail + 1);
    return path;
}

char *file_folder(const char *path)
{
    size_t length = strlen(path);
    while (length > 0 && !is_separator(path[length - 1])) length--;
    char *folder = malloc(length + 1);
    if (folder == NULL) return NULL;
    memcpy(folder, path, length);
    folder[length] = '\0';
    return folder;
}

#if defined(_WIN32)

wchar_t *file_wide(const char *path)
{
    int length = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, NULL, 0);
    wchar_t *wide = length > 0 ? malloc((size_t)length * sizeof *wide) : NULL;
    if (wide != NULL) MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, wide, length);
    return wide;
}

dart_status file_failed(base_report *report, const char *verb, const char *path)
{
    unsigned long code = GetLastError();
    return base_fail(report, DART_IO, "cannot %s %s: Windows error %lu", verb, path, code);
}

static DWORD file_attributes(const char *path)
{
    wchar_t *wide = file_wide(path);
    DWORD attributes = wide != NULL ? GetFileAttributesW(wide) : INVALID_FILE_ATTRIBUTES;
    free(wide);
    return attributes;
}

bool file_is_folder(const char *path)
{
    DWORD attributes = file_attributes(path);
    return attributes != INVALID_FILE_ATTRIBUTES && (attributes & FILE_ATTRIBUTE_DIRECTORY) != 0;
}

bool file_exists(const char *path)
{
    DWORD attributes = file_attributes(path);
    return attributes != INVALID_FILE_ATTRIBUTES && (attributes & FILE_ATTRIBUTE_DIRECTORY) == 0;
}

dart_status file_make_folder(const char *path, base_report *report)
{
    wchar_t *wide = file_wide(path);
    if (wide == NULL) return base_fail(report, DART_IO, "cannot make %s: not a usable path", path);
    const bool made = CreateDirectoryW(wide, NULL) != 0;
    free(wide);
    return made || file_is_folder(path) ? DART_OK : file_failed(report, "make", path);
}

/* MOVEFILE_WRITE_THROUGH does what is needed here. */
bool file_flush_folder(const char *path)
{
    (void)path;
    return true;
}

dart_status file_map_open(const char *path, base_report *report, file_map *map)
{
    *map = (file_map){NULL, 0};
    dart_status status = DART_OK;
    HANDLE handle = INVALID_HANDLE_VALUE, mapping = NULL;
    LARGE_INTEGER size;
    wchar_t *wide = file_wide(path);
    if (wide == NULL) return base_fail(report, DART_IO, "cannot open %s: not a usable path", path);
    handle = CreateFileW(wide, GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_DELETE, NULL, OPEN_EXISTING,
                         FILE_ATTRIBUTE_NORMAL, NULL);
    free(wide);
    if (handle == INVALID_HANDLE_VALUE) return file_failed(report, "open", path);
    if (GetFileType(handle) != FILE_TYPE_DISK) FAIL(report, DART_IO, "cannot open %s: not a regular file", path);
    if (!GetFileSizeEx(handle, &size)) {
        status = file_failed(report, "read", path);
        goto fail;
    }
    if ((uint64_t)size.QuadPart > SIZE_MAX) FAIL(report, DART_IO, "cannot map %s: larger than the address space", path);
    if (size.QuadPart == 0) goto fail;
    mapping = CreateFileMappingW(handle, NULL, PAGE_READONLY, 0, 0, NULL);
    const void *data = mapping != NULL ? MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, 0) : NULL;
    if (data == NULL) {
        status = file_failed(report, "map", path);
        goto fail;
    }
    *map = (file_map){data, (uint64_t)size.QuadPart};
fail: /* the view keeps the file: its handles close on success, too */
    if (mapping != NULL) CloseHandle(mapping);
    CloseHandle(handle);
    return status;
}

void file_map_close(file_map *map)
{
    if (map->data != NULL) UnmapViewOfFile(map->data);
    *map = (file_map){NULL, 0};
}

/* Unlocking pages that are not locked takes them out of the working set. */
void file_map_forget(const void *data, uint64_t bytes)
{
    if (bytes > 0) VirtualUnlock((void *)(uintptr_t)data, (SIZE_T)bytes);
}

#else

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
    while (length > 1 && is_separator(parent[length - 1])) length--;
    while (length > 0 && !is_separator(parent[length - 1])) length--;
    parent[length] = '\0';
    const bool flushed = file_flush_folder(parent);
    free(parent);
    return flushed ? DART_OK : file_failed(report, "make", path);
}

dart_status file_map_open(const char *path, base_report *report, file_map *map)
{
    *map = (file_map){NULL, 0};
    dart_status status = DART_OK;
    struct stat info;
    int handle = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer must not hang us */
    if (handle < 0) return file_failed(report, "open", path);
    if (fstat(handle, &info) != 0) {
        status = file_failed(report, "read", path);
        goto fail;
    }
    if (!S_ISREG(info.st_mode)) FAIL(report, DART_IO, "cannot open %s: not a regular file", path);
    if ((uint64_t)info.st_size > SIZE_MAX) FAIL(report, DART_IO, "cannot map %s: larger than the address space", path);
    if (info.st_size == 0) goto fail;
    void *data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, handle, 0);
    if (data == MAP_FAILED) {
        status = file_failed(report, "map", path);
        goto fail;
    }
    *map = (file_map){data, (uint64_t)info.st_size};
fail: /* the mapping keeps the file: the handle closes on success, too */
    close(handle);
    return status;
}

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

#endif
