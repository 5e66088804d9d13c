/* Files as memory to read. */
#include "file_system.h"

dart_status file_map_open(const char *path, base_report *report, file_map *map)
{
    dart_status status = DART_OK;
    file_handle handle;
    bool regular = false;
    uint64_t bytes = 0;
    const void *data = NULL;
    *map = (file_map){NULL, 0};
    if (!file_open_to_read(&handle, path)) return file_failed(report, "open", path);
    if (!file_measure(handle, &regular, &bytes)) {
        status = file_failed(report, "read", path);
        goto fail;
    }
    if (!regular) FAIL(report, DART_IO, "cannot open %s: not a regular file", path);
    if (bytes > SIZE_MAX) FAIL(report, DART_IO, "cannot map %s: larger than the address space", path);
    if (bytes == 0) goto fail;
    data = file_view(handle, bytes);
    if (data == NULL) status = file_failed(report, "map", path);
    else *map = (file_map){data, bytes};
fail:
    (void)file_close(handle);
    return status;
}
