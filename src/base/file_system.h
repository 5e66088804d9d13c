/* Files as each system has them: file_posix.c and file_windows.c, one of which is built. For file*.c and path.c alone, which file.h tells about. */
#ifndef DART_FILE_SYSTEM_H
#define DART_FILE_SYSTEM_H

#include "file.h"

/* A descriptor or a HANDLE. */
typedef intptr_t file_handle;

/* What stands at a path. */
typedef enum file_target {
    TARGET_NONE,
    TARGET_FILE,
    TARGET_READ_ONLY,
    TARGET_FOLDER,
    TARGET_OTHER,  /* a device, a pipe */
    TARGET_UNKNOWN /* the system's error says why */
} file_target;

/* DART_IO with the system's reason for what just failed, in the system's words. */
dart_status file_failed(base_report *report, const char *verb, const char *path);
static inline bool file_is_separator(char c)
{
#if defined(_WIN32)
    return c == '/' || c == '\\' || c == ':';
#else
    return c == '/';
#endif
}

/* The kind of what stands there, links followed, and its mode where systems have one. */
file_target file_target_at(const char *path, unsigned *mode);
/* The path behind links, also where the last of them names nothing yet; for free(), NULL without memory. */
char *file_follow_links(const char *path);

bool file_open_to_read(file_handle *handle, const char *path);
/* Whether it is a regular file, and how long. */
bool file_measure(file_handle handle, bool *regular, uint64_t *bytes);
/* The file as memory to read, which outlives the handle; bytes > 0. NULL: failed. */
const void *file_view(file_handle handle, uint64_t bytes);

/* Makes a file. 1: made, 0: the name is taken, -1: failed. */
int file_create(file_handle *handle, const char *path);
/* A file without a name in the path's folder: false where there are none. */
bool file_create_unnamed(file_handle *handle, const char *path);
/* Gives it the name. 1: done, 0: the name is taken, -1: failed. */
int file_give_name(file_handle handle, const char *path);
/* What is there, for writing; NULL: standard output. */
bool file_open_through(file_handle *handle, const char *path);
bool file_set_mode(file_handle handle, unsigned mode);

bool file_write(file_handle handle, const uint8_t *data, uint64_t bytes);
bool file_write_at(file_handle handle, uint64_t at, const uint8_t *data, uint64_t bytes);
bool file_flush(file_handle handle);
/* Puts the names in a folder on stable storage; "" is the current one. */
bool file_flush_folder(const char *path);
bool file_close(file_handle handle);
void file_remove(const char *path);
/* Keeps a file of so many bytes and more from being freed while it is replaced, without reading it; false where there is none, or no way to. */
bool file_keep(file_handle *handle, const char *path, uint64_t bytes);
/* In one step, in the place of what is there. */
bool file_rename(const char *from, const char *to);

/* The file as memory of so many bytes, all zeros; NULL where file_writer_maps says that it is not to be. */
uint8_t *file_map_to_write(file_handle handle, uint64_t bytes);
/* Makes it shorter; the rest of the memory is not to be touched any more. */
bool file_shorten(file_handle handle, uint64_t bytes);
/* Finds pages for these bytes of a file of `file_bytes`, or says why not: a page for which there is no room would end the process when it is
 * touched. */
bool file_find_pages(uint8_t *map, uint64_t file_bytes, uint64_t at, uint64_t bytes);
void file_unmap(uint8_t *map, uint64_t bytes);

/* Takes a file, made where it is missing, for this program alone. 1: taken, 0: another program has it, whose number is *holder where the system
 * tells and 0 elsewhere, -1: failed. */
int file_take_lock(file_handle *handle, const char *path, long *holder);

#endif
