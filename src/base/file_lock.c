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
    const dart_status status = file_take_lock(path, report, &made->handle);
    if (status == DART_OK) *lock = made;
    else free(made);
    return status;
}

void file_lock_close(file_lock **lock)
{
    if (lock == NULL || *lock == NULL) return;
    (void)file_close((*lock)->handle);
    free(*lock);
    *lock = NULL;
}
