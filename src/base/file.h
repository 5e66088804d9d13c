/* Files: read-only mappings, files that replace their predecessor only when they are complete, and locks.
 * Paths are UTF-8. */
#ifndef DART_FILE_H
#define DART_FILE_H

#include "base.h"

/* A whole file in memory. Another program that shortens the file while it is mapped breaks the promise of `bytes`:
 * reading past the new end is then a fault of the process (SIGBUS). Replace checkpoints by renaming. */
typedef struct file_map {
    const uint8_t *data; /* NULL when the file is empty */
    uint64_t bytes;
} file_map;

/* Regular files only. DART_IO with the system's reason; *map is zero on failure. */
dart_status file_map_open(const char *path, base_report *report, file_map *map);
/* Accepts a zero map. */
void file_map_close(file_map *map);
/* Part of a mapping that is done with: its pages need not stay in memory. They come back when they are read again. */
void file_map_forget(const void *data, uint64_t bytes);

bool file_is_folder(const char *path);
bool file_exists(const char *path); /* and is not a folder */
/* Makes a folder unless it is there; its parent must be. A new one is on stable storage. DART_IO with the system's reason. */
dart_status file_make_folder(const char *path, base_report *report);
/* "folder/name" for free(); NULL without memory. */
char *file_join(const char *folder, const char *name);
/* The part of path before its last name, with the separator, for free(); "" when there is none. */
char *file_folder(const char *path);

/* Writes a file that appears at `path` only when it is complete; until then what was there stays as it is. Links are followed and stay
 * links (not on Windows), an existing file keeps its mode, and one that its owner made read-only is refused. What is no regular file (a device,
 * a pipe) is written to as it stands, and "-" is standard output. Where the system has files without a name (Linux), a program that is killed
 * leaves nothing behind; elsewhere a file path.N.tmp. */
typedef struct file_writer file_writer;
dart_status file_writer_open(const char *path, base_report *report, file_writer **writer);
/* After a failure only file_writer_destroy makes sense. */
dart_status file_writer_append(file_writer *writer, const void *data, uint64_t bytes);
/* Whether the file has places: not where it is written through to a pipe or a device. */
bool file_writer_has_places(const file_writer *writer);
/* Bytes from place `at` on, from any thread. Without places, what was written so far must end at `at`. */
dart_status file_writer_put(file_writer *writer, uint64_t at, const void *data, uint64_t bytes);
/* Before file_writer_place: whether this file, of `bytes` in all, can be written as memory. May be called again with fewer bytes. So it is where
 * files lie in memory themselves (tmpfs on Linux from 5.14 on): a system call that writes holds the file, so that threads wait for one another, and
 * half of its time is for finding pages. Pages are huge ones where the system has some to give (from Linux 6.1 on). On other file systems a page
 * that finds no room would end the process. */
bool file_writer_maps(file_writer *writer, uint64_t bytes);
/* Finds pages for these bytes of the file, from any thread: they must not have been written yet, and are zeros. DART_IO where there is no room. */
dart_status file_writer_place(file_writer *writer, uint64_t at, uint64_t bytes, uint8_t **place);
/* On stable storage and in its place there, or failed; *writer is NULL either way. */
dart_status file_writer_close(file_writer **writer);
/* What the system takes a while to give back: of 330 MiB in memory, 50 ms for a file that was replaced and 30 for a mapping. A thread does so
 * while the caller goes on. Zero: nothing is left. */
typedef struct file_leftover {
    intptr_t handle;
    bool has_handle, started;
    void *map;
    uint64_t map_bytes;
    base_thread thread;
} file_leftover;
/* file_writer_close, and file_map_close, that leave what has 1 MiB and more to a thread. *left is zero, or has been waited for. */
dart_status file_writer_close_leaving(file_writer **writer, file_leftover *left);
void file_map_close_leaving(file_map *map, file_leftover *left);
/* Until it is given back. */
void file_leftover_wait(file_leftover *left);
/* Gives up what was written. Accepts NULL. */
void file_writer_destroy(file_writer **writer);

/* Another descriptor of what fd is of, for those who take theirs; -1 without one, and on Windows. */
int file_copy_descriptor(int fd);
/* Accepts -1. */
void file_close_descriptor(int fd);

/* A file that one program at a time has: made where it is missing, and never removed or written. The system releases it when the program ends,
 * however it ends. DART_IO with the number of the process that has it, where the system tells. On POSIX the program that has it must not open
 * the file elsewhere, and where a file system knows no locks every program gets it. */
typedef struct file_lock file_lock;
dart_status file_lock_open(const char *path, base_report *report, file_lock **lock);
/* Accepts NULL. */
void file_lock_close(file_lock **lock);

#endif
