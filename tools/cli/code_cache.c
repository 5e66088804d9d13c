/* Compiled code kept from run to run, in a file that the command line chooses; the library itself reads no environment. */
#include "cli.h"
#include "system.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The user's folder for such files, made where it is missing; NULL when there is none. */
static char *user_folder(void)
{
    char *parent = system_cache_folder(), *folder = NULL;
    if (parent == NULL) return NULL;
    system_make_private_folder(parent);
    folder = file_join(parent, "dartlm");
    free(parent);
    if (folder != NULL) system_make_private_folder(folder);
    return folder;
}

/* One file for each way to ask for a device; the driver knows its own bytes from another's. */
static char *default_path(const char *spec)
{
    char name[96] = "default";
    size_t used = 0;
    for (; spec != NULL && spec[used] != '\0' && used + 1 < sizeof name; used++)
        name[used] = isalnum((unsigned char)spec[used]) ? (char)tolower((unsigned char)spec[used]) : '-';
    if (used > 0) name[used] = '\0';
    char *folder = user_folder();
    char *path = folder != NULL ? file_join(folder, name) : NULL;
    free(folder);
    return path;
}

void cli_cache_load(cli_cache *cache, const cli_common *common, base_report *report)
{
    *cache = (cli_cache){.report = report};
    if (common->cache != NULL && strcmp(common->cache, "off") == 0) return;
    cache->path = common->cache != NULL ? file_join(common->cache, "") : default_path(common->device);
    if (common->cache != NULL && cache->path != NULL) strcpy(cache->path, common->cache);
    /* A file that is not there yet is the usual case, and one that cannot be read is worth no more. */
    if (cache->path != NULL && file_exists(cache->path)) (void)file_map_open(cache->path, report, &cache->map);
}

void cli_cache_save(cli_cache *cache, dart_device *device)
{
    size_t bytes = 0;
    char *data = NULL;
    file_writer *writer = NULL;
    if (cache->path == NULL || device == NULL) return;
    if (dart_device_cache(device, NULL, &bytes) != DART_OK || bytes == 0 || bytes == cache->had) return;
    data = malloc(bytes);
    /* Failing to keep it costs the next run some time and this one nothing. */
    if (data != NULL && dart_device_cache(device, data, &bytes) == DART_OK &&
        file_writer_open(cache->path, cache->report, &writer) == DART_OK) {
        if (file_writer_append(writer, data, bytes) == DART_OK) (void)file_writer_close(&writer);
        else file_writer_destroy(&writer);
    }
    free(data);
}

void cli_cache_release(cli_cache *cache)
{
    file_map_close(&cache->map);
    cache->map = (file_map){NULL, 0};
}

void cli_cache_close(cli_cache *cache)
{
    cli_cache_release(cache);
    free(cache->path);
    cache->path = NULL;
}
