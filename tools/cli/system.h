/* A program's arguments, streams, terminal and folders, as each system has them: system_posix.c and system_windows.c, one of which is built.
 * Texts and names are UTF-8. */
#ifndef DARTLM_SYSTEM_H
#define DARTLM_SYSTEM_H

#include <stdbool.h>
#include <stdio.h>

/* First of all: makes the standard streams carry bytes as they are, a terminal show UTF-8, and arguments be UTF-8; these stay until the program
 * ends. False without memory. */
bool system_start(int *argc, char ***argv);
/* fopen. */
FILE *system_open(const char *path, const char *mode);
bool system_is_terminal(FILE *file);
/* The system with its version, and the processor: "Linux 6.18.44 x86_64". */
void system_describe(char *text, size_t size);
/* Where the user's programs keep what can be made again, for free(); NULL where there is no such place. */
char *system_cache_folder(void);
/* For the user alone, where the system has a mode for it; its parent must be there. It may be there itself. */
void system_make_private_folder(const char *path);

#endif
