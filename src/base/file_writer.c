/* Writing files: complete or not at all. */
#include "file_system.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_NAMES_TRIED 100u
#define FILE_LEFT ((uint64_t)1 << 20) /* bytes that take longer to give back than a thread takes to start */

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
    uint8_t *map; /* NULL: written by system calls */
    uint64_t map_bytes, file_bytes; /* file_bytes: no more than the map has */
};

/* Makes a file under a name of its own beside the path, or names an unnamed one so. */
static dart_status take_name(file_writer *writer, bool unnamed)
{
    const size_t size = strlen(writer->path) + sizeof ".4294967295.tmp";
    int made = 0;
    for (uint32_t i = 0; i < FILE_NAMES_TRIED && made == 0; i++) {
        snprintf(writer->temporary, size, "%s.%u.tmp", writer->path, (unsigned)i);
        made = unnamed ? file_give_name(writer->handle, writer->temporary) : file_create(&writer->handle, writer->temporary);
    }
    if (made < 0) return file_failed(writer->report, "create", writer->temporary);
    if (made == 0)
        return base_fail(writer->report, DART_IO, "cannot write %s: remove the files %s.*.tmp", writer->path, writer->path);
    return DART_OK;
}

static dart_status open_replacement(file_writer *writer, unsigned mode)
{
    writer->kind = file_create_unnamed(&writer->handle, writer->path) ? WRITER_UNNAMED : WRITER_NAMED;
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
    const file_target found = standard ? TARGET_OTHER : file_target_at(path, &mode);
    if (found == TARGET_UNKNOWN) {
        status = file_failed(report, "write", path);
        goto fail;
    }
    /* A link to what is no file may name no path: /dev/stdout leads to "pipe:[1234]". The system opens it all the same. */
    made->path = found == TARGET_OTHER ? file_join("", path) : file_follow_links(path);
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
        if (!file_open_through(&made->handle, standard ? NULL : made->path)) {
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
    if (!file_write_at(writer->handle, at, data, bytes)) return file_failed(writer->report, "write", writer->path);
    return DART_OK;
}

/* ---- Written as memory ---- */

bool file_writer_maps(file_writer *writer, uint64_t bytes)
{
    writer->file_bytes = bytes;
    if (writer->map != NULL && bytes <= writer->map_bytes) return file_shorten(writer->handle, bytes);
    writer->map = writer->kind != WRITER_THROUGH ? file_map_to_write(writer->handle, bytes) : NULL;
    writer->map_bytes = bytes;
    return writer->map != NULL;
}

dart_status file_writer_place(file_writer *writer, uint64_t at, uint64_t bytes, uint8_t **place)
{
    if (writer->map == NULL) return base_fail(writer->report, DART_INTERNAL, "%s is not written as memory", writer->path);
    *place = writer->map + at;
    return file_find_pages(writer->map, writer->file_bytes, at, bytes) ? DART_OK : file_failed(writer->report, "write", writer->path);
}

static void unmap(file_writer *w)
{
    file_unmap(w->map, w->map_bytes);
    w->map = NULL;
}

/* What a rename or a link has changed is the folder. */
static dart_status flush_name(const file_writer *writer)
{
    char *folder = file_folder(writer->path);
    if (folder == NULL) return base_fail(writer->report, DART_OUT_OF_MEMORY, "no memory to write %s", writer->path);
    const bool flushed = file_flush_folder(folder);
    free(folder);
    return flushed ? DART_OK : file_failed(writer->report, "write", writer->path);
}

/* ---- Given back by a thread ---- */

static void give_back(void *argument)
{
    const file_leftover *left = argument;
    if (left->map != NULL) file_map_close(&(file_map){left->map, left->map_bytes});
    if (left->has_handle) (void)file_close(left->handle);
}

static void start_giving_back(file_leftover *left)
{
    if (left->map == NULL && !left->has_handle) return;
    left->started = base_thread_start(&left->thread, give_back, left) == DART_OK;
    if (left->started) return;
    give_back(left);
    *left = (file_leftover){.started = false};
}

void file_leftover_wait(file_leftover *left)
{
    if (left->started) base_thread_join(&left->thread);
    *left = (file_leftover){.started = false};
}

void file_map_close_leaving(file_map *map, file_leftover *left)
{
    if (map->bytes < FILE_LEFT) {
        file_map_close(map);
        return;
    }
    left->map = (void *)(uintptr_t)map->data;
    left->map_bytes = map->bytes;
    *map = (file_map){NULL, 0};
    start_giving_back(left);
}

/* ---- Done ---- */

dart_status file_writer_close(file_writer **writer) { return file_writer_close_leaving(writer, NULL); }

dart_status file_writer_close_leaving(file_writer **writer, file_leftover *left)
{
    file_writer *w = *writer;
    dart_status status = DART_OK;
    if (left != NULL && w->kind != WRITER_THROUGH) left->has_handle = file_keep(&left->handle, w->path, FILE_LEFT);
    if (left != NULL && w->map != NULL) {
        left->map = w->map;
        left->map_bytes = w->map_bytes;
        w->map = NULL;
    }
    bool named = w->kind == WRITER_NAMED;
    unmap(w);
    if (w->kind != WRITER_THROUGH && !file_flush(w->handle)) status = file_failed(w->report, "write", w->path);
    if (w->kind == WRITER_UNNAMED && status == DART_OK && file_give_name(w->handle, w->path) != 1) {
        status = take_name(w, true);
        named = status == DART_OK;
    }
    w->is_open = false;
    if (!file_close(w->handle) && status == DART_OK) status = file_failed(w->report, "write", w->path);
    if (named && status == DART_OK && !file_rename(w->temporary, w->path)) status = file_failed(w->report, "replace", w->path);
    if (named && status != DART_OK) file_remove(w->temporary);
    if (w->kind != WRITER_THROUGH && status == DART_OK) status = flush_name(w);
    if (left != NULL) start_giving_back(left);
    file_writer_destroy(writer);
    return status;
}

void file_writer_destroy(file_writer **writer)
{
    if (writer == NULL || *writer == NULL) return;
    unmap(*writer);
    if ((*writer)->is_open) {
        file_close((*writer)->handle);
        if ((*writer)->kind == WRITER_NAMED) file_remove((*writer)->temporary);
    }
    free((*writer)->path);
    free((*writer)->temporary);
    free(*writer);
    *writer = NULL;
}
