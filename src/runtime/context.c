/* Contexts: what devices there are, the choice among them by text, and opening one. */
#include "probe.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Order of preference of the listing. */
static const backend *const backends[] = {
#ifdef DARTLM_VULKAN
    &vulkan_backend,
#endif
#ifdef DARTLM_CUDA
    &cuda_backend,
#endif
    &cpu_backend,
    &null_backend,
};

struct dart_context {
    base_log log;
    base_report report;
    void *instances[COUNT_OF(backends)];
    uint32_t counts[COUNT_OF(backends)];
    char why_none[COUNT_OF(backends)][256]; /* empty with devices, and for backends that were not asked for */
};

uint32_t dart_context_device_count(const dart_context *context)
{
    uint32_t count = 0;
    if (context != NULL)
        for (size_t i = 0; i < COUNT_OF(backends); i++) count += context->counts[i];
    return count;
}

/* Device `index` of the listing: its backend, or -1, and the index there. */
static int locate(const dart_context *context, uint32_t index, uint32_t *within)
{
    for (size_t i = 0; i < COUNT_OF(backends); i++) {
        if (index < context->counts[i]) {
            *within = index;
            return (int)i;
        }
        index -= context->counts[i];
    }
    return -1;
}

dart_status dart_context_device_info(const dart_context *context, uint32_t index, dart_device_info *info)
{
    if (context == NULL || info == NULL) return DART_INVALID_ARGUMENT;
    uint32_t within = 0;
    const int b = locate(context, index, &within);
    if (b < 0) return DART_INVALID_ARGUMENT;
    memset(info, 0, sizeof *info);
    backends[b]->device_info(context->instances[b], within, info);
    info->backend = backends[b]->kind;
    info->index = within;
    return DART_OK;
}

/* ---- Choosing by text ---- */

static bool contains(const char *text, const char *part)
{
    const size_t n = strlen(part);
    for (; *text != '\0'; text++) {
        size_t i = 0;
        while (i < n && text[i] != '\0' && tolower((unsigned char)text[i]) == tolower((unsigned char)part[i])) i++;
        if (i == n) return true;
    }
    return n == 0;
}

static bool parse_uuid(const char *text, uint8_t uuid[16])
{
    unsigned digits = 0;
    for (; *text != '\0'; text++) {
        if (*text == '-') continue;
        if (!isxdigit((unsigned char)*text) || digits == 32) return false;
        const int c = tolower((unsigned char)*text);
        const uint8_t value = (uint8_t)(c <= '9' ? c - '0' : c - 'a' + 10);
        uuid[digits / 2] = (uint8_t)(digits % 2 == 0 ? value << 4 : uuid[digits / 2] | value);
        digits++;
    }
    return digits == 32;
}

static bool parse_index(const char *text, uint32_t *index)
{
    uint32_t value = 0;
    if (*text == '\0') return false;
    for (; *text != '\0'; text++) {
        if (!isdigit((unsigned char)*text) || value > 100000) return false;
        value = value * 10 + (uint32_t)(*text - '0');
    }
    *index = value;
    return true;
}

static bool matches(const dart_device_info *info, const char *which)
{
    uint32_t index = 0;
    uint8_t uuid[16];
    if (parse_index(which, &index)) return info->index == index;
    if (parse_uuid(which, uuid)) return memcmp(uuid, info->uuid, sizeof uuid) == 0;
    return contains(info->name, which);
}

static bool is_gpu(const dart_device_info *info)
{
    return (info->backend == DART_BACKEND_VULKAN || info->backend == DART_BACKEND_CUDA) && info->type != DART_DEVICE_CPU;
}

/* The backend that a spec begins with; -1: it begins with none. */
static int kind_of(const char *spec)
{
    const char *end = strchr(spec, ':');
    const size_t length = end != NULL ? (size_t)(end - spec) : strlen(spec);
    for (int k = DART_BACKEND_CPU; k <= DART_BACKEND_NULL; k++) {
        const char *name = dart_backend_name((dart_backend_kind)k);
        if (strlen(name) == length && strncmp(name, spec, length) == 0) return k;
    }
    return -1;
}

/* The listing's index of the first usable device that spec means; where there is none DART_UNSUPPORTED, and the last one that cannot be used in
 * `refused`. */
static dart_status find(const dart_context *context, const char *spec, uint32_t *chosen, dart_device_info *refused)
{
    const char *which = strchr(spec, ':');
    const int kind = kind_of(spec);
    const uint32_t count = dart_context_device_count(context);
    which = which != NULL ? which + 1 : "";
    for (uint32_t i = 0; i < count; i++) {
        dart_device_info info;
        if (dart_context_device_info(context, i, &info) != DART_OK) continue;
        if (kind >= 0 ? info.backend != (dart_backend_kind)kind : !is_gpu(&info) && info.backend != DART_BACKEND_CPU) continue;
        if (which[0] != '\0' && !matches(&info, which)) continue;
        if (info.usable) {
            *chosen = i;
            return DART_OK;
        }
        *refused = info;
    }
    return DART_UNSUPPORTED;
}

/* ---- Creating ---- */

static bool wanted(const backend *b, const dart_context_options *options)
{
    const int only = options->only_for != NULL ? kind_of(options->only_for) : -1;
    if (only >= 0 && (int)b->kind != only) return false;
    switch (b->kind) {
    case DART_BACKEND_VULKAN: return !options->without_vulkan;
    case DART_BACKEND_CUDA: return !options->without_cuda;
    case DART_BACKEND_NULL: return options->with_null;
    case DART_BACKEND_CPU: break;
    }
    return true;
}

dart_status dart_context_create(const dart_context_options *options, dart_context **context)
{
    if (context == NULL) return DART_INVALID_ARGUMENT;
    const dart_context_options defaults = {0};
    if (options == NULL) options = &defaults;
    dart_context *made = calloc(1, sizeof *made);
    if (made == NULL) return DART_OUT_OF_MEMORY;
    made->log.function = options->log;
    made->log.user = options->log_user;
    made->log.level = options->log_level;
    dart_status status = base_mutex_init(&made->log.mutex);
    if (status != DART_OK) {
        free(made);
        return status;
    }
    status = base_report_init(&made->report, &made->log);
    if (status != DART_OK) {
        base_mutex_destroy(&made->log.mutex);
        free(made);
        return status;
    }
    for (size_t i = 0; i < COUNT_OF(backends); i++) {
        if (!wanted(backends[i], options)) continue;
        TRY(backends[i]->instance_create(options, &made->report, &made->instances[i]));
        if (made->instances[i] != NULL) made->counts[i] = backends[i]->device_count(made->instances[i]);
        if (made->counts[i] == 0) base_report_copy(&made->report, made->why_none[i], sizeof made->why_none[i]);
        made->report.text[0] = '\0';
        uint32_t chosen = 0;
        if (options->only_for != NULL && find(made, options->only_for, &chosen, &(dart_device_info){.name = ""}) == DART_OK) break;
    }
    *context = made;
    return DART_OK;
fail:
    dart_context_destroy(&made);
    return status;
}

void dart_context_destroy(dart_context **context)
{
    if (context == NULL || *context == NULL) return;
    dart_context *c = *context;
    for (size_t i = 0; i < COUNT_OF(backends); i++)
        if (c->instances[i] != NULL) backends[i]->instance_destroy(c->instances[i]);
    base_report_destroy(&c->report);
    base_mutex_destroy(&c->log.mutex);
    free(c);
    *context = NULL;
}

size_t dart_context_error(const dart_context *context, char *text, size_t size)
{
    return context != NULL ? base_report_copy(&context->report, text, size) : 0;
}

size_t dart_context_why_none(const dart_context *context, dart_backend_kind kind, char *text, size_t size)
{
    const char *why = "";
    char left_out[64] = "";
    if (context != NULL && kind >= DART_BACKEND_CPU && kind <= DART_BACKEND_NULL) {
        snprintf(left_out, sizeof left_out, "%s: this build of dartlm has no such backend", dart_backend_name(kind));
        why = left_out;
        for (size_t i = 0; i < COUNT_OF(backends); i++)
            if (backends[i]->kind == kind) why = context->why_none[i];
    }
    if (size > 0 && text != NULL) snprintf(text, size, "%s", why);
    return strlen(why);
}

/* The listing's index of the device that spec means. */
static dart_status choose(dart_context *context, const char *spec, uint32_t *chosen)
{
    const int kind = kind_of(spec);
    REQUIRE(&context->report, kind >= 0 || spec[0] == '\0',
            "device '%s': expected cpu, vulkan, cuda or null, then nothing, :INDEX, :NAME or :UUID", spec);
    dart_device_info refused = {.name = ""};
    if (find(context, spec, chosen, &refused) == DART_OK) return DART_OK;
    if (refused.name[0] != '\0')
        return base_fail(&context->report, DART_UNSUPPORTED, "device '%s': %s cannot be used: %s", spec, refused.name,
                         refused.why_not);
    char why[256] = "";
    if (kind >= 0) dart_context_why_none(context, (dart_backend_kind)kind, why, sizeof why);
    if (why[0] != '\0') return base_fail(&context->report, DART_UNSUPPORTED, "device '%s': %s", spec, why);
    return base_fail(&context->report, DART_UNSUPPORTED, "device '%s': none found among %u listed", spec,
                     dart_context_device_count(context));
}

/* ---- Opening ---- */

dart_status dart_device_open(dart_context *context, const dart_device_options *options, dart_device **device)
{
    if (context == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&context->report, device != NULL, "dart_device_open: no place for the device");
    uint32_t index = 0, within = 0;
    const dart_status status = choose(context, options != NULL && options->spec != NULL ? options->spec : "", &index);
    if (status != DART_OK) return status;
    const int b = locate(context, index, &within);
    if (b < 0) return DART_INTERNAL; /* it was chosen from the listing */
    return context_open_device(context, backends[b], context->instances[b], within, false, options, device);
}

base_report *context_report(dart_context *context) { return &context->report; }

static dart_status check_options(dart_context *context, const dart_device_options *options)
{
    REQUIRE(&context->report, options->variant == NULL || strlen(options->variant) < 32, "dart_device_open: variant name too long");
    REQUIRE(&context->report, options->backwards <= 2, "dart_device_open: backwards %u, must be at most 2", options->backwards);
    REQUIRE(&context->report, options->margin % BACKEND_ALIGN == 0, "dart_device_open: a margin of %u bytes, must be a multiple of %u",
            options->margin, BACKEND_ALIGN);
    REQUIRE(&context->report, (options->with_capabilities & ~(uint32_t)DART_CAP_SPEED) == 0,
            "dart_device_open: capabilities 0x%x cannot be claimed for a device", options->with_capabilities & ~(uint32_t)DART_CAP_SPEED);
    return DART_OK;
}

dart_status context_open_device(dart_context *context, const backend *b, void *instance, uint32_t within, bool own,
                                const dart_device_options *options, dart_device **device)
{
    dart_device_options given = {0};
    if (options != NULL) given = *options;
    options = &given;
    device_unwrap_cache(&given, &context->log);
    dart_status status = check_options(context, options);
    dart_device *made = status == DART_OK ? calloc(1, sizeof *made) : NULL;
    if (status == DART_OK && made == NULL) status = base_fail(&context->report, DART_OUT_OF_MEMORY, "dart_device_open: no host memory");
    if (status == DART_OK) status = base_report_init(&made->report, &context->log);
    if (status != DART_OK) {
        free(made);
        if (own) b->instance_destroy(instance);
        return status;
    }
    made->backend = b;
    made->instance = own ? instance : NULL;
    made->poison = options->poison;
    made->lose = options->lose;
    made->cut = options->cut;
    made->margin = options->margin;
    made->backwards = options->backwards;
    made->profile = options->profile;
    made->profile_user = options->profile_user;
    atomic_init(&made->fail_in, options->fail_at);
    atomic_init(&made->strays, 0);
    atomic_init(&made->lost, false);
    atomic_init(&made->bytes, 0);
    b->device_info(instance, within, &made->info);
    made->info.backend = b->kind;
    made->info.index = within;
    made->info.capabilities |= options->with_capabilities;
    made->info.capabilities &= ~options->without_capabilities;
    device_limit(&made->info, options, made->backend->rows);
    if (made->info.max_bindings != 0 && made->info.max_bindings < kernel_needed_buffers(made->backend->rows))
        FAIL(&made->report, DART_UNSUPPORTED, "%s: kernels see %u buffers, %u are needed", made->info.name, made->info.max_bindings,
             kernel_needed_buffers(made->backend->rows));
    if (options->multiprocessors != 0) made->info.multiprocessors = options->multiprocessors;
    if (options->variant != NULL) strcpy(made->variant, options->variant);
    if (options->low_priority && b->kind != DART_BACKEND_VULKAN)
        FAIL(&made->report, DART_UNSUPPORTED, "%s: low_priority: the %s backend has no queues of low priority", made->info.name,
             dart_backend_name(b->kind));
    if (options->separate_queue && b->kind != DART_BACKEND_VULKAN)
        FAIL(&made->report, DART_UNSUPPORTED, "%s: separate_queue: the %s backend has no queues for frames", made->info.name,
             dart_backend_name(b->kind));
    if (made->profile != NULL && made->backend->stream_times == NULL)
        FAIL(&made->report, DART_UNSUPPORTED, "%s: the %s backend does not time launches", made->info.name,
             dart_backend_name(made->backend->kind));
    TRY(device_fault(made));
    TRY(b->device_create(instance, within, options, made->info.capabilities, &made->report, &made->handle));
    made->info.separate_queue = made->info.separate_queue || options->separate_queue;
    if (!options->unchecked) TRY(device_probe(made, options->wrong_probes));
    *device = made;
    return DART_OK;
fail:;
    char text[sizeof made->report.text];
    base_report_copy(&made->report, text, sizeof text);
    dart_device_destroy(&made);
    base_lock(&context->report.mutex);
    memcpy(context->report.text, text, sizeof text);
    base_unlock(&context->report.mutex);
    return status;
}
