/* Locks of files, which the system releases when a program ends, however it ends. */
#include "file_system.h"

#include <stdlib.h>

struct file_lock {
    file_handle handle;
};

dart_status file_lock_open(const char *path, base_report *report, file_lock **lock)
{
    file_lock *made = calloc(1, sizeof *made);
    if (made == NULL) return base_fail(report, DART_OUT_OF_MEMORY, "no memory to lock %s", path);
    long holder = 0;
    const int taken = file_take_lock(&made->handle, path, &holder);
    if (taken > 0) {
        *lock = made;
        return DART_OK;
    }
    const dart_status status = taken < 0    ? file_failed(report, "lock", path)
                               : holder > 0 ? base_fail(report, DART_IO, "cannot lock %s: process %ld has it", path, holder)
                                            : base_fail(report, DART_IO, "cannot lock %s: another program has it", path);
    free(made);
    return status;
}

void file_lock_close(file_lock **lock)
{
    if (lock == NULL || *lock == NULL) return;
    (void)file_close((*lock)->handle);
    free(*lock);
    *lock = NULL;
}
