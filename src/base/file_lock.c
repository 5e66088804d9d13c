/* Locks of files, which the system releases when a program ends, however it ends. */
#if !defined(_WIN32)
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#endif

#include "file.h"

#include <stdlib.h>

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
typedef HANDLE file_handle;
#else
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>
typedef int file_handle;
#endif

struct file_lock {
    file_handle handle;
};

#if defined(_WIN32)

/* Opened by one program at a time. */
static dart_status take_lock(const char *path, base_report *report, file_handle *handle)
{
    wchar_t *wide = file_wide(path);
    if (wide == NULL) return base_fail(report, DART_IO, "cannot lock %s: not a usable path", path);
    *handle = CreateFileW(wide, GENERIC_WRITE, 0, NULL, OPEN_ALWAYS, FILE_ATTRIBUTE_NORMAL, NULL);
    free(wide);
    if (*handle != INVALID_HANDLE_VALUE) return DART_OK;
    if (GetLastError() == ERROR_SHARING_VIOLATION) return base_fail(report, DART_IO, "cannot lock %s: another program has it", path);
    return file_failed(report, "lock", path);
}

static void release(file_handle handle) { CloseHandle(handle); }

#else

static dart_status take_lock(const char *path, base_report *report, file_handle *handle)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET}, holder = whole;
    *handle = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*handle < 0) return file_failed(report, "lock", path);
    if (fcntl(*handle, F_SETLK, &whole) == 0) return DART_OK;
    if (errno != EACCES && errno != EAGAIN) return DART_OK; /* a file system without locks */
    const bool known = fcntl(*handle, F_GETLK, &holder) == 0 && holder.l_type != F_UNLCK && holder.l_pid > 0;
    close(*handle);
    if (known) return base_fail(report, DART_IO, "cannot lock %s: process %ld has it", path, (long)holder.l_pid);
    return base_fail(report, DART_IO, "cannot lock %s: another program has it", path);
}

static void release(file_handle handle) { close(handle); }

#endif

dart_status file_lock_open(const char *path, base_report *report, file_lock **lock)
{
    file_lock *made = calloc(1, sizeof *made);
    if (made == NULL) return base_fail(report, DART_OUT_OF_MEMORY, "no memory to lock %s", path);
    const dart_status status = take_lock(path, report, &made->handle);
    if (status == DART_OK) *lock = made;
    else free(made);
    return status;
}

void file_lock_close(file_lock **lock)
{
    if (lock == NULL || *lock == NULL) return;
    release((*lock)->handle);
    free(*lock);
    *lock = NULL;
}
