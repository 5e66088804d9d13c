#include "cli.h"
#include "system.h"

#include "base/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Messages ---- */

static bool progress_shown;

void cli_progress(const char *format, ...)
{
    if (!system_is_terminal(stderr)) return;
    va_list arguments;
    fputs("\r\033[K", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fflush(stderr);
    progress_shown = true;
}

void cli_progress_end(void)
{
    if (progress_shown) fputs("\r\033[K", stderr);
    progress_shown = false;
}

int cli_fail(const char *format, ...)
{
    va_list arguments;
    cli_progress_end();
    fputs("dartlm: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    return CLI_FAILED;
}

int cli_fail_memory(void) { return cli_fail("no memory on the host"); }

static int fail_with(const char *text, dart_status status)
{
    return text[0] != '\0' ? cli_fail("%s (%s)", text, dart_status_name(status))
                           : cli_fail("%s", dart_status_name(status));
}

enum { TEXT = 640 };

static int fail_context(const dart_context *context, dart_status status)
{
    char text[TEXT] = "";
    dart_context_error(context, text, sizeof text);
    return fail_with(text, status);
}

int cli_fail_file(const cli_session *session, dart_status status)
{
    char text[TEXT] = "";
    base_report_copy(&session->report, text, sizeof text);
    return fail_with(text, status);
}

int cli_fail_device(const cli_session *session, dart_status status)
{
    char text[TEXT] = "";
    dart_device_error(session->device, text, sizeof text);
    return fail_with(text, status);
}

int cli_fail_stream(const dart_stream *stream, dart_status status)
{
    char text[TEXT] = "";
    dart_stream_error(stream, text, sizeof text);
    return fail_with(text, status);
}

int cli_fail_model(const dart_model *model, dart_status status)
{
    char text[TEXT] = "";
    dart_model_error(model, text, sizeof text);
    return fail_with(text, status);
}

int cli_fail_state(const dart_state *state, dart_status status)
{
    char text[TEXT] = "";
    dart_state_error(state, text, sizeof text);
    return fail_with(text, status);
}

int cli_fail_trainer(const dart_trainer *trainer, dart_status status)
{
    char text[TEXT] = "";
    dart_trainer_error(trainer, text, sizeof text);
    return fail_with(text, status);
}

int cli_check_place(const char *path)
{
    if (path == NULL) return CLI_OK;
    if (file_is_folder(path)) return cli_fail("cannot write %s: it is a folder", path);
    char *folder = file_folder(path);
    if (folder == NULL) return cli_fail_memory();
    const bool found = folder[0] == '\0' || file_is_folder(folder);
    const int status = found ? CLI_OK : cli_fail("cannot write %s: there is no folder %s", path, folder);
    free(folder);
    return status;
}

/* ---- Sessions ---- */

/* Errors reach the user through the statuses of calls, so the log repeats them only when it is asked for. */
static void print_log(void *user, dart_log_level level, const char *text)
{
    static const char *const names[] = {"error", "warning", "info", "trace"};
    const cli_session *session = user;
    if (level == DART_LOG_ERROR && session->log_level < DART_LOG_INFO) return;
    cli_progress_end();
    fprintf(stderr, "dartlm: %s: %s\n", names[level], text);
}

/* only_for: see dart_context_options. */
static int open_context(cli_session *session, const cli_common *common, const char *only_for)
{
    *session = (cli_session){.context = NULL};
    session->log_level = common->verbosity == 0   ? DART_LOG_WARNING
                         : common->verbosity == 1 ? DART_LOG_INFO
                                                  : DART_LOG_TRACE;
    if (base_report_init(&session->report, NULL) != DART_OK) return cli_fail_memory();
    session->has_report = true;
    /* It records and runs nothing: sizes can be had of it, no results. */
    const bool null = common->device != NULL && strncmp(common->device, "null", 4) == 0;
    const dart_context_options options = {
        .log = common->log != NULL ? common->log : print_log, .log_user = common->log != NULL ? common->log_user : session,
        .log_level = common->log != NULL ? DART_LOG_TRACE : session->log_level, .with_null = null,
        .vulkan_validation = common->validation, .only_for = only_for};
    const dart_status status = dart_context_create(&options, &session->context);
    if (status == DART_UNSUPPORTED && common->validation) return cli_fail("the Khronos validation layer is not installed, or not for this loader");
    return status == DART_OK ? CLI_OK : cli_fail("no backend could be loaded: %s", dart_status_name(status));
}

int cli_open_context(cli_session *session, const cli_common *common) { return open_context(session, common, NULL); }

int cli_open_device(cli_session *session, const cli_common *common)
{
    if (open_context(session, common, common->device != NULL ? common->device : "") != CLI_OK) return CLI_FAILED;
    cli_cache_load(&session->cache, common, &session->report);
    const dart_device_options options = {
        .spec = common->device, .cache = session->cache.map.data, .cache_bytes = (size_t)session->cache.map.bytes, .threads = common->threads,
        .variant = common->variant, .without_capabilities = (common->no_matrix ? DART_CAP_MATRIX : 0) | (common->no_resident ? DART_CAP_RESIDENT : 0),
        .minimum_limits = common->minimum_limits, .low_priority = common->low_priority,
        .profile = common->profile != NULL ? cli_profile_note : NULL, .profile_user = common->profile};
    dart_status status = dart_device_open(session->context, &options, &session->device);
    cli_cache_release(&session->cache);
    if (status != DART_OK) {
        (void)fail_context(session->context, status);
        return status == DART_INVALID_ARGUMENT ? CLI_USAGE : CLI_FAILED; /* no such spec, whatever the machine has */
    }
    (void)dart_device_cache(session->device, NULL, &session->cache.had);
    status = dart_device_describe(session->device, &session->info);
    if (status != DART_OK) return cli_fail_device(session, status);
    if (session->info.backend == DART_BACKEND_NULL && !common->null_too)
        return cli_fail("the null device computes nothing: there would be no results");
    return CLI_OK;
}

void cli_note_null(const cli_session *session)
{
    if (session->info.backend == DART_BACKEND_NULL) fputs("dartlm: the null device computes nothing: these are times of the host alone\n", stderr);
}

void cli_close(cli_session *session)
{
    cli_progress_end();
    cli_cache_save(&session->cache, session->device);
    cli_cache_close(&session->cache);
    dart_device_destroy(&session->device);
    dart_context_destroy(&session->context);
    if (session->has_report) base_report_destroy(&session->report);
    session->has_report = false;
}

int cli_open_model(cli_session *session, const cli_common *common, const cli_model_options *options, dart_model **model)
{
    const int opened = cli_open_device(session, common);
    if (opened != CLI_OK) return opened;
    cli_progress("loading %s", options->folder);
    const dart_model_options storage = {.weights = (dart_storage)common->dtype,
                                        .activations = (dart_storage)options->activations,
                                        .memories = (dart_storage)options->memories};
    const dart_status status = dart_model_open(session->device, options->folder, &storage, model);
    cli_progress_end();
    return status == DART_OK ? CLI_OK : cli_fail_device(session, status);
}

const char *cli_device_spec(const dart_device_info *info, char text[32])
{
    if (info->backend == DART_BACKEND_CPU) snprintf(text, 32, "cpu");
    else snprintf(text, 32, "%s:%" PRIu32, dart_backend_name(info->backend), info->index);
    return text;
}
