/* Makes every compute pipeline that a call may take on the one Vulkan device that is there, without running any:
 * compile_all [--list] [--ranges] [--cache FILE] [--without BITS] [--model PRESET TYPE] [DEVICE_SPEC [NAME...]]. "device NAME, DRIVER" goes to
 * stderr, then "pipeline NAME BYTES" before each, for tools/compilers/table.py: KERNEL.VARIANT.TYPES, and the shared memory that the row may have by
 * its capabilities. NAMEs say which are made: KERNEL, KERNEL.VARIANT or KERNEL.VARIANT.TYPES. The code of ranges, for launches that are cut
 * (slice_ms), is that of whole launches but for where it begins: TYPES-range is made of one row of each kernel with one mix of types; with --ranges
 * of all, and no code of whole launches. With --list none is made. With --without the device counts
 * as lacking those capabilities (a number, bits of dart_capability), which shows the rows below the ones it takes. With --cache the compiled code
 * is taken from that file where it exists, and kept there; the last line then tells what making all took. With --model those are made that
 * dart_state_warm makes for a layer of that model (dart-130m ...) with matrices of that type (f32, f16, bf16), and no others; on a device that is
 * not there, with the layer of tools/with-vulkan.sh --statistics, which answers for its clock. */
#include "runtime/device.h"

#include <dartlm/model.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Storage types that a call may mix: all alike, and 16-bit weights or memories beside f32 activations. Bindings that are
 * f32 or i32 whatever the tensors are stay so. */
static const struct { const char *kernel, *binding; dart_dtype dtype; } fixed[] = {
    {"*", "ids", DART_I32}, {"*", "seq", DART_I32}, {"norm", "rows", DART_I32}, {"*", "cum", DART_F32}, {"*", "decay", DART_F32},
    {"*", "cb", DART_F32}, {"*", "hin", DART_F32}, {"*", "memory", DART_F32}, {"*", "h", DART_F32}, {"*", "open", DART_F32},
    {"*", "open_decay", DART_F32}, {"*", "qn", DART_F32}, {"*", "en", DART_F32}, {"*", "factor", DART_F32}, {"*", "rho", DART_F32},
    {"*", "lse", DART_F32}, {"*", "partial", DART_F32}, {"*", "scale", DART_F32}, {"*", "part", DART_F32}, {"*", "log", DART_I32},
    /* Backward passes and training */
    {"norm_backward", "rows", DART_I32}, {"*", "plan", DART_I32}, {"*", "targets", DART_I32}, {"*", "correct", DART_I32},
    {"*", "grad_weight", DART_F32}, {"*", "of_weight", DART_F32}, {"*", "of_bias", DART_F32}, {"*", "of_a_log", DART_F32},
    {"*", "of_d", DART_F32}, {"column_sum", "x", DART_F32}, {"*", "dot", DART_F32},
    {"*", "grad_cb", DART_F32}, {"ssd_backward_read", "read", DART_F32}, {"ssd_backward_state", "read", DART_F32},
    {"*", "lambda", DART_F32}, {"*", "carry", DART_F32}, {"*", "gain_scale", DART_F32}, {"*", "sums", DART_F32},
    {"*", "token", DART_F32}, {"*", "up_dh", DART_F32}, {"*", "grad_h", DART_F32}, {"ssd_backward_state", "up_h", DART_F32},
    {"*", "hin_scale", DART_F32}, {"cross_entropy", "logits", DART_F32}, {"*", "share", DART_F32},
    {"*", "parts", DART_F32}, {"*", "loss", DART_F32}, {"*", "places", DART_I32}, {"*", "posts", DART_I32}, {"*", "stuck", DART_I32},
    {"square_sum", "x", DART_F32}, {"adamw", "w", DART_F32}, {"adamw", "m", DART_F32}, {"adamw", "v", DART_F32},
    {"adamw", "grad", DART_F32}, {"*", "hyper", DART_F32}, {"*", "g", DART_F32}, {"*", "slope", DART_F32}, {"*", "of_q", DART_F32},
    {"*", "of_e", DART_F32}, {"*", "grad_dh", DART_F32}, {"sma_backward_memories", "x", DART_F32}, {"sma_backward_dh", "x", DART_F32},
};
static const char *const weights[] = {"weight", "dh", "to"};

static uint32_t dtypes_of(const kernel_info *kernel, dart_dtype activations, dart_dtype stored)
{
    uint32_t dtypes = 0;
    for (uint32_t b = 0; b < kernel->bindings_count; b++) {
        const char *name = kernel->bindings[b].name;
        dart_dtype dtype = activations;
        for (size_t i = 0; i < COUNT_OF(weights); i++)
            if (strcmp(weights[i], name) == 0) dtype = stored;
        for (size_t i = 0; i < COUNT_OF(fixed); i++)
            if (strcmp(fixed[i].binding, name) == 0 && (fixed[i].kernel[0] == '*' || strcmp(fixed[i].kernel, kernel->name) == 0))
                dtype = fixed[i].dtype;
        dtypes |= (uint32_t)dtype << (2 * b);
    }
    return dtypes;
}

/* Is the pipeline one of those asked for, or were none? */
static bool wanted(const char *name, int argc, char **argv)
{
    for (int i = 2; i < argc; i++) {
        const size_t length = strlen(argv[i]);
        if (strncmp(argv[i], name, length) == 0 && (name[length] == '\0' || name[length] == '.')) return true;
    }
    return argc <= 2;
}

/* Bytes of shared memory that every device with those capabilities has. */
static unsigned shared_of(uint32_t capabilities)
{
    return (capabilities & DART_CAP_SHARED48) != 0 ? 49152 : (capabilities & DART_CAP_LARGE) != 0 ? 32768 : 16384;
}

/* What FITS_16BIT speaks of where a row has it: all of them have 16 bits. */
static const struct { const char *kernel, *bindings[3]; } types_16bit[] = {
    {"attention_step", {"k", "v"}}, {"sma_query", {"q", "e", "c"}}, {"sma", {"c", "dh"}}, {"mixer_attend", {"dh"}}, {"sma_step", {"dh"}},
    {"sma_rho", {"dh"}}};

static bool is_16bit(const kernel_info *kernel, uint32_t dtypes)
{
    for (size_t i = 0; i < COUNT_OF(types_16bit); i++) {
        if (strcmp(types_16bit[i].kernel, kernel->name) != 0) continue;
        for (uint32_t b = 0; b < kernel->bindings_count; b++)
            for (size_t k = 0; k < COUNT_OF(types_16bit[i].bindings) && types_16bit[i].bindings[k] != NULL; k++)
                if (strcmp(kernel->bindings[b].name, types_16bit[i].bindings[k]) == 0 && (dtypes >> (2 * b) & 3) == DART_F32) return false;
        return true;
    }
    return false;
}

/* May the row be taken for these types? */
static bool fits(const kernel_row *row, dart_dtype activations, dart_dtype stored)
{
    const kernel_info *kernel = &kernel_table[row->id];
    const uint32_t type = row->fits & (FITS_F16 | FITS_BF16);
    if ((row->fits & FITS_16BIT) != 0 && !is_16bit(kernel, dtypes_of(kernel, activations, stored))) return false;
    return type == 0 || (activations == stored && activations == (type == FITS_F16 ? DART_F16 : DART_BF16));
}

/* Every call that has these traits has these as well. Those of one op imply none that rows above their own name. */
static uint32_t with_implied(uint32_t traits)
{
    if ((traits & (FITS_F16 | FITS_BF16)) != 0) traits |= FITS_16BIT;
    if ((traits & (FITS_N128_P64 | FITS_N64_P64 | FITS_N32_P64)) != 0) traits |= FITS_P64;
    return traits;
}

/* Has the device a row above this one that takes every call which this one fits? */
static bool is_hidden(const kernel_row *row, const dart_device_info *info)
{
    const uint32_t traits = with_implied(row->fits);
    for (const kernel_row *above = kernel_rows; above < row; above++) {
        const bool rows = above->max_rows == 0 || (row->max_rows != 0 && row->max_rows <= above->max_rows);
        if (above->id == row->id && kernel_runs_on(above, info) && (above->fits & ~traits) == 0 && rows) return true;
    }
    return false;
}

/* The whole file; NULL if there is none. */
static void *read_cache(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    void *data = NULL;
    long length = 0;
    if (file != NULL && fseek(file, 0, SEEK_END) == 0 && (length = ftell(file)) > 0 && (data = malloc((size_t)length)) != NULL) {
        rewind(file);
        *bytes = fread(data, 1, (size_t)length, file);
    }
    if (file != NULL) fclose(file);
    return data;
}

/* Returns how many bytes it wrote. */
static size_t write_cache(const char *path, dart_device *device)
{
    size_t bytes = 0, written = 0;
    void *data = NULL;
    FILE *file = NULL;
    if (dart_device_cache(device, NULL, &bytes) == DART_OK && (data = malloc(bytes + 1)) != NULL &&
        dart_device_cache(device, data, &bytes) == DART_OK && (file = fopen(path, "wb")) != NULL)
        written = fwrite(data, 1, bytes, file);
    if (file != NULL) fclose(file);
    free(data);
    return written;
}

static int fail(const char *text)
{
    fprintf(stderr, "compile_all: %s\n", text);
    return 1;
}

/* Every layer needs the same kernels. Returns 1 if they could not be made. */
static unsigned warm_model(dart_device *device, const char *preset, const char *type)
{
    static const struct { const char *name; dart_storage storage; } types[] = {
        {"f32", DART_STORAGE_F32}, {"f16", DART_STORAGE_F16}, {"bf16", DART_STORAGE_BF16}};
    dart_model_config config;
    dart_model_options options = {.weights = DART_STORAGE_F32};
    dart_model *model = NULL;
    dart_state *state = NULL;
    char text[512];
    for (size_t i = 0; i < COUNT_OF(types); i++)
        if (strcmp(types[i].name, type) == 0) options.weights = types[i].storage;
    dart_status status = dart_config_preset(preset, &config);
    if (status != DART_OK) return (unsigned)fail("no such model");
    config.layers = 1;
    status = dart_model_random(device, &config, 1, &options, &model);
    if (status == DART_OK) status = dart_state_create(model, NULL, &state);
    const uint64_t start = base_now_ns();
    if (status == DART_OK) status = dart_state_warm(state);
    if (status == DART_OK) printf("%s %s: code ready in %.2f s\n", preset, type, (double)(base_now_ns() - start) / 1e9);
    dart_device_error(device, text, sizeof text);
    dart_state_destroy(&state);
    dart_model_destroy(&model);
    return status == DART_OK ? 0 : (unsigned)fail(text);
}

typedef struct maker {
    dart_device *device;
    int argc; /* names from argv[2] on */
    char **argv;
    bool list;
    unsigned count, failures;
} maker;

static void make(maker *m, const kernel_row *row, uint32_t dtypes, const char *types, bool range)
{
    const backend_code code = {row, dtypes, row->T0 != 0 ? row->T0 : 3, row->T1 != 0 ? row->T1 : 3, range};
    char text[512];
    snprintf(text, sizeof text, "%s.%s.%s%s", kernel_table[row->id].name, row->variant, types, range ? "-range" : "");
    if (!wanted(text, m->argc, m->argv)) return;
    fprintf(stderr, "pipeline %s %u\n", text, shared_of(row->needs));
    m->count++;
    if (m->list || m->device->backend->warm(m->device->handle, &code) == DART_OK) return;
    m->failures++;
    dart_device_error(m->device, text, sizeof text);
    fail(text);
}

/* Every pipeline that a call may take, and the code of ranges of one of a kernel's; or that of all, and no other. */
static void make_all(maker *m, bool ranges)
{
    static const struct { const char *name; dart_dtype activations, stored; } mixes[] = {
        {"f32", DART_F32, DART_F32}, {"f16", DART_F16, DART_F16}, {"bf16", DART_BF16, DART_BF16}, {"f32-f16", DART_F32, DART_F16},
        {"f32-bf16", DART_F32, DART_BF16}};
    bool has_range[KERNEL_COUNT] = {false};
    for (uint32_t i = 0; i < kernel_rows_count; i++) {
        const kernel_row *row = &kernel_rows[i];
        uint32_t made[COUNT_OF(mixes)];
        if (!kernel_runs_on(row, &m->device->info) || is_hidden(row, &m->device->info) || row->id == KERNEL_wide_check) continue; /* of tests only */
        for (size_t x = 0; x < COUNT_OF(mixes); x++) {
            made[x] = UINT32_MAX;
            if (!fits(row, mixes[x].activations, mixes[x].stored)) continue;
            made[x] = dtypes_of(&kernel_table[row->id], mixes[x].activations, mixes[x].stored);
            bool known = false;
            for (size_t k = 0; k < x; k++) known = known || made[k] == made[x];
            if (known) continue;
            if (!ranges) make(m, row, made[x], mixes[x].name, false);
            if (!kernel_has_ranges(row) || (has_range[row->id] && !ranges)) continue;
            has_range[row->id] = true;
            make(m, row, made[x], mixes[x].name, true);
        }
    }
}

int main(int argc, char **argv)
{
    dart_context *context = NULL;
    dart_device *device = NULL;
    char text[512];
    maker m = {.list = false};
    bool ranges = false;
    const char *cache = NULL, *preset = NULL, *type = NULL;
    void *kept = NULL;
    dart_device_options options = {.spec = "vulkan", .unchecked = true};
    if (argc > 1 && strcmp(argv[1], "--list") == 0) {
        m.list = true;
        argc--;
        argv++;
    }
    if (argc > 1 && strcmp(argv[1], "--ranges") == 0) {
        ranges = true;
        argc--;
        argv++;
    }
    if (argc > 2 && strcmp(argv[1], "--cache") == 0) {
        cache = argv[2];
        options.cache = kept = read_cache(cache, &options.cache_bytes);
        argc -= 2;
        argv += 2;
    }
    if (argc > 2 && strcmp(argv[1], "--without") == 0) {
        options.without_capabilities = (uint32_t)strtoul(argv[2], NULL, 0);
        argc -= 2;
        argv += 2;
    }
    if (argc > 3 && strcmp(argv[1], "--model") == 0) {
        preset = argv[2];
        type = argv[3];
        argc -= 3;
        argv += 3;
    }
    if (argc > 1) options.spec = argv[1];
    setvbuf(stderr, NULL, _IONBF, 0);
    if (dart_context_create(NULL, &context) != DART_OK) return fail("no context");
    if (dart_device_open(context, &options, &device) != DART_OK) {
        dart_context_error(context, text, sizeof text);
        return fail(text);
    }
    fprintf(stderr, "device %s, %s\n", device->info.name, device->info.driver);
    const uint64_t start = base_now_ns();
    m.device = device;
    m.argc = argc;
    m.argv = argv;
    if (preset != NULL) {
        m.failures = warm_model(device, preset, type);
        m.count = 1;
    } else {
        make_all(&m, ranges);
        printf("%u pipelines on %s, %u failed\n", m.count, device->info.name, m.failures);
    }
    if (cache != NULL) {
        const double seconds = (double)(base_now_ns() - start) / 1e9;
        printf("%.2f s with %zu bytes kept before, %zu now\n", seconds, options.cache_bytes, write_cache(cache, device));
    }
    dart_device_destroy(&device);
    dart_context_destroy(&context);
    free(kept);
    return m.failures == 0 && m.count > 0 ? 0 : 1;
}
