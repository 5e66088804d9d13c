/* Files of Windows. Paths are UTF-8 up to here and UTF-16 for the system. */
#include "file_system.h"

#include <stdlib.h>
#include <string.h>

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#define FILE_PIECE ((uint64_t)1 << 30)

/* For free(); NULL where path is not UTF-8. */
static wchar_t *file_wide(const char *path)
{
    int length = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, NULL, 0);
    wchar_t *wide = length > 0 ? malloc((size_t)length * sizeof *wide) : NULL;
    if (wide != NULL) MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, wide, length);
    else if (length > 0) SetLastError(ERROR_NOT_ENOUGH_MEMORY);
    return wide;
}

/* free() without a change of what GetLastError tells. */
static void release(void *memory)
{
    const DWORD reason = GetLastError();
    free(memory);
    SetLastError(reason);
}

static HANDLE of(file_handle handle) { return (HANDLE)handle; }

dart_status file_failed(base_report *report, const char *verb, const char *path)
{
    const DWORD code = GetLastError(), flags = FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS | FORMAT_MESSAGE_MAX_WIDTH_MASK;
    wchar_t wide[160];
    char reason[3 * COUNT_OF(wide)];
    DWORD length = FormatMessageW(flags, NULL, code, 0, wide, COUNT_OF(wide), NULL);
    while (length > 0 && (wide[length - 1] == L' ' || wide[length - 1] == L'.')) length--;
    const int bytes = length > 0 ? WideCharToMultiByte(CP_UTF8, 0, wide, (int)length, reason, (int)sizeof reason - 1, NULL, NULL) : 0;
    if (bytes <= 0) return base_fail(report, DART_IO, "cannot %s %s: Windows error %lu", verb, path, (unsigned long)code);
    reason[bytes] = '\0';
    return base_fail(report, DART_IO, "cannot %s %s: %s", verb, path, reason);
}

static DWORD file_attributes(const char *path)
{
    wchar_t *wide = file_wide(path);
    DWORD attributes = wide != NULL ? GetFileAttributesW(wide) : INVALID_FILE_ATTRIBUTES;
    release(wide);
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
    const bool made = wide != NULL && CreateDirectoryW(wide, NULL) != 0;
    release(wide);
    return made || file_is_folder(path) ? DART_OK : file_failed(report, "make", path);
}

/* MOVEFILE_WRITE_THROUGH does what is needed here. */
bool file_flush_folder(const char *path)
{
    (void)path;
    return true;
}

bool file_open_to_read(file_handle *handle, const char *path)
{
    wchar_t *wide = file_wide(path);
    const HANDLE opened = wide != NULL ? CreateFileW(wide, GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_DELETE, NULL, OPEN_EXISTING,
                                                     FILE_ATTRIBUTE_NORMAL, NULL)
                                       : INVALID_HANDLE_VALUE;
    release(wide);
    *handle = (file_handle)opened;
    return opened != INVALID_HANDLE_VALUE;
}

bool file_measure(file_handle handle, bool *regular, uint64_t *bytes)
{
    LARGE_INTEGER size = {.QuadPart = 0};
    *regular = GetFileType(of(handle)) == FILE_TYPE_DISK;
    if (*regular && !GetFileSizeEx(of(handle), &size)) return false;
    *bytes = (uint64_t)size.QuadPart;
    return true;
}

const void *file_view(file_handle handle, uint64_t bytes)
{
    (void)bytes;
    const HANDLE mapping = CreateFileMappingW(of(handle), NULL, PAGE_READONLY, 0, 0, NULL);
    const void *data = mapping != NULL ? MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, 0) : NULL;
    const DWORD reason = GetLastError();
    if (mapping != NULL) CloseHandle(mapping);
    SetLastError(reason);
    return data;
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

/* ---- Writing ---- */

int file_create(file_handle *handle, const char *path)
{
    wchar_t *wide = file_wide(path);
    if (wide == NULL) return -1;
    const HANDLE made = CreateFileW(wide, GENERIC_WRITE, 0, NULL, CREATE_NEW, FILE_ATTRIBUTE_NORMAL, NULL);
    release(wide);
    *handle = (file_handle)made;
    if (made != INVALID_HANDLE_VALUE) return 1;
    return GetLastError() == ERROR_FILE_EXISTS ? 0 : -1;
}

bool file_write(file_handle handle, const uint8_t *data, uint64_t bytes)
{
    while (bytes > 0) {
        DWORD written = 0;
        if (!WriteFile(of(handle), data, (DWORD)(bytes < FILE_PIECE ? bytes : FILE_PIECE), &written, NULL)) return false;
        data += written;
        bytes -= written;
    }
    return true;
}

bool file_write_at(file_handle handle, uint64_t at, const uint8_t *data, uint64_t bytes)
{
    while (bytes > 0) {
        OVERLAPPED place = {.Offset = (DWORD)at, .OffsetHigh = (DWORD)(at >> 32)};
        DWORD written = 0;
        if (!WriteFile(of(handle), data, (DWORD)(bytes < FILE_PIECE ? bytes : FILE_PIECE), &written, &place)) return false;
        data += written;
        at += written;
        bytes -= written;
    }
    return true;
}

bool file_flush(file_handle handle) { return FlushFileBuffers(of(handle)) != 0; }
bool file_close(file_handle handle) { return CloseHandle(of(handle)) != 0; }

void file_remove(const char *path)
{
    wchar_t *wide = file_wide(path);
    if (wide != NULL) DeleteFileW(wide);
    release(wide);
}

bool file_rename(const char *from, const char *to)
{
    wchar_t *wide_from = file_wide(from), *wide_to = file_wide(to);
    bool renamed = wide_from != NULL && wide_to != NULL &&
                   MoveFileExW(wide_from, wide_to, MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH) != 0;
    release(wide_from);
    release(wide_to);
    return renamed;
}

/* INVALID_HANDLE_VALUE: nothing there, or not with that access. */
static HANDLE open_existing(const char *path, DWORD access)
{
    wchar_t *wide = file_wide(path);
    const DWORD shared = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
    const HANDLE opened = wide != NULL ? CreateFileW(wide, access, shared, NULL, OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS, NULL)
                                       : INVALID_HANDLE_VALUE;
    release(wide);
    return opened;
}

bool file_shorten(file_handle handle, uint64_t bytes)
{
    (void)handle, (void)bytes; /* no file is written as memory */
    return false;
}

/* A file is freed when it is replaced. */
bool file_keep(file_handle *handle, const char *path, uint64_t bytes)
{
    (void)handle, (void)path, (void)bytes;
    return false;
}

file_target file_target_at(const char *path, unsigned *mode)
{
    *mode = 0;
    const HANDLE opened = open_existing(path, 0);
    const DWORD type = opened != INVALID_HANDLE_VALUE ? GetFileType(opened) : FILE_TYPE_DISK;
    if (opened != INVALID_HANDLE_VALUE) CloseHandle(opened);
    if (type != FILE_TYPE_DISK) return TARGET_OTHER; /* NUL, a pipe, the console */
    const DWORD attributes = file_attributes(path);
    if (attributes == INVALID_FILE_ATTRIBUTES) return TARGET_NONE;
    if ((attributes & FILE_ATTRIBUTE_DIRECTORY) != 0) return TARGET_FOLDER;
    return (attributes & FILE_ATTRIBUTE_READONLY) != 0 ? TARGET_READ_ONLY : TARGET_FILE;
}

/* Where a link stands, the file that is written replaces the link. */
char *file_follow_links(const char *path)
{
    char *copy = malloc(strlen(path) + 1);
    return copy != NULL ? strcpy(copy, path) : NULL;
}

bool file_open_through(file_handle *handle, const char *path)
{
    const HANDLE self = GetCurrentProcess();
    HANDLE opened = INVALID_HANDLE_VALUE;
    if (path != NULL) opened = open_existing(path, GENERIC_WRITE);
    else if (!DuplicateHandle(self, GetStdHandle(STD_OUTPUT_HANDLE), self, &opened, 0, FALSE, DUPLICATE_SAME_ACCESS)) return false;
    *handle = (file_handle)opened;
    return opened != INVALID_HANDLE_VALUE;
}

bool file_set_mode(file_handle handle, unsigned mode)
{
    (void)handle, (void)mode;
    return true;
}

bool file_create_unnamed(file_handle *handle, const char *path)
{
    (void)handle, (void)path;
    return false;
}
int file_give_name(file_handle handle, const char *path)
{
    (void)handle, (void)path;
    return -1;
}

/* ---- Written as memory: not here ---- */

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

/* ---- Locks ---- */

/* Opened by one program at a time. */
int file_take_lock(file_handle *handle, const char *path, long *holder)
{
    wchar_t *wide = file_wide(path);
    const HANDLE opened = wide != NULL ? CreateFileW(wide, GENERIC_WRITE, 0, NULL, OPEN_ALWAYS, FILE_ATTRIBUTE_NORMAL, NULL)
                                       : INVALID_HANDLE_VALUE;
    release(wide);
    *handle = (file_handle)opened;
    *holder = 0;
    if (opened != INVALID_HANDLE_VALUE) return 1;
    return GetLastError() == ERROR_SHARING_VIOLATION ? 0 : -1;
}

int file_copy_descriptor(int fd)
{
    (void)fd;
    return -1;
}

void file_close_descriptor(int fd) { (void)fd; }
