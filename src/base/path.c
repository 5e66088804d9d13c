/* Paths as text. */
#include "file_system.h"

#include <stdlib.h>
#include <string.h>

char *file_join(const char *folder, const char *name)
{
    size_t head = strlen(folder), tail = strlen(name);
    if (head > SIZE_MAX / 4 || tail > SIZE_MAX / 4) return NULL;
    char *path = malloc(head + tail + 2);
    if (path == NULL) return NULL;
    memcpy(path, folder, head);
    if (head > 0 && !file_is_separator(folder[head - 1])) path[head++] = '/';
    memcpy(path + head, name, tail + 1);
    return path;
}

char *file_folder(const char *path)
{
    size_t length = strlen(path);
    while (length > 0 && !file_is_separator(path[length - 1])) length--;
    char *folder = malloc(length + 1);
    if (folder == NULL) return NULL;
    memcpy(folder, path, length);
    folder[length] = '\0';
    return folder;
}
