/* What this machine has for dartlm, in words: backends, why one has no devices and what would help, what a device can do, and which
 * variants of the kernels a model takes there. */
#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct remedy {
    dart_backend_kind kind;
    const char *part, *advice; /* for reasons that contain `part` */
} remedies[] = {
    {DART_BACKEND_VULKAN, "loader was not found",
     "Install the Vulkan loader (Debian and Ubuntu: libvulkan1, Fedora: vulkan-loader) and your GPU's driver."},
    {DART_BACKEND_VULKAN, "found no driver",
     "Install your GPU's driver. Mesa's serve AMD, Intel and others, and the processor as well (Debian and Ubuntu:\n"
     "  mesa-vulkan-drivers, Fedora: mesa-vulkan-drivers, Arch: vulkan-radeon, vulkan-intel); NVIDIA's own is its Vulkan driver, too."},
    {DART_BACKEND_VULKAN, "list none", "The driver is there and sees no GPU that it serves: update it, or look for one that names your GPU."},
    {DART_BACKEND_VULKAN, "refuses the GPU",
     "It does not support this GPU, or not yet. Mesa's drivers refuse Mali before the G310 (G31, G52, G57), whose Vulkan is older than the 1.2\n"
     "  that dartlm needs."},
    {DART_BACKEND_VULKAN, "older than", "Update the Vulkan loader and the driver: dartlm needs Vulkan 1.2."},
    {DART_BACKEND_CUDA, "was not found", "Only an NVIDIA GPU has use for it; its driver brings it along."},
    {DART_BACKEND_CUDA, "the driver says", "NVIDIA's driver is there but does not work: reinstall it, or start the computer anew after an update."},
    {DART_BACKEND_CUDA, "no such backend", "Building with nvcc in the path, or with -DDARTLM_CUDA=ON, adds it."},
    {DART_BACKEND_VULKAN, "no such backend", "Building with -DDARTLM_VULKAN=ON adds it."},
};

static const struct gift {
    dart_backend_kind kind;
    uint32_t bit;
    const char *with, *without;
} gifts[] = {
    {DART_BACKEND_CPU, DART_CAP_AVX2, "AVX2, FMA and F16C are used", "no AVX2, FMA and F16C: plain loops, several times slower"},
    {DART_BACKEND_VULKAN, DART_CAP_MATRIX_F16, "matrix hardware for f16 is used", "no matrix hardware for f16 that Vulkan shows"},
    {DART_BACKEND_VULKAN, DART_CAP_MATRIX_BF16, "matrix hardware for bf16 is used",
     "no matrix hardware for bf16 that Vulkan shows: f16 is the faster type where there is one for f16"},
    {DART_BACKEND_VULKAN, DART_CAP_SUBGROUP, "lanes of a subgroup add up together", "no subgroup arithmetic: sums go through shared memory"},
    {DART_BACKEND_VULKAN, DART_CAP_STORE16, "16-bit elements are read directly", "no 16-bit storage: 16-bit elements are cut out of 32-bit words"},
    {DART_BACKEND_CUDA, DART_CAP_SM90, "warpgroup matrix instructions are used", "no compute capability 9.0: matrix instructions of one warp"},
    {DART_BACKEND_CUDA, DART_CAP_CUBLASLT, "cuBLASLt multiplies large matrices",
     "cuBLASLt was not found: dartlm's own products, slower for large matrices (CUDA's toolkit has it, libcublasLt.so.13)"},
};

static const char *const backend_titles[] = {"CPU", "Vulkan", "CUDA"};

static void tell_device(const dart_device_info *info)
{
    char spec[32], memory[CLI_NUMBER], binding[CLI_NUMBER];
    const bool names_itself = strncmp(info->driver, "driver ", 7) == 0; /* "driver version 0x...", of drivers that tell no more */
    printf("  %s: %s, %s%s\n", cli_device_spec(info, spec), info->name, names_itself ? "" : "driver ", info->driver);
    if (!info->usable) {
        printf("    cannot be used: %s\n", info->why_not);
        return;
    }
    printf("    %s of memory; a tensor may have %s\n", cli_bytes(info->memory_bytes, memory), cli_bytes(info->max_binding_bytes, binding));
    for (size_t i = 0; i < COUNT_OF(gifts); i++)
        if (gifts[i].kind == info->backend) printf("    %s\n", (info->capabilities & gifts[i].bit) != 0 ? gifts[i].with : gifts[i].without);
    if (info->backend == DART_BACKEND_VULKAN)
        printf("    its work goes to a queue %s\n", info->separate_queue ? "for compute alone, beside frames" : "that frames use, too");
}

static void tell_backend(const dart_context *context, dart_backend_kind kind)
{
    char why[256];
    printf("%s\n", backend_titles[kind]);
    for (uint32_t i = 0; i < dart_context_device_count(context); i++) {
        dart_device_info info;
        if (dart_context_device_info(context, i, &info) == DART_OK && info.backend == kind) tell_device(&info);
    }
    if (dart_context_why_none(context, kind, why, sizeof why) == 0) return;
    const char *colon = strstr(why, ": "); /* after the backend's name */
    printf("  %s\n", colon != NULL ? colon + 2 : why);
    for (size_t i = 0; i < COUNT_OF(remedies); i++)
        if (remedies[i].kind == kind && strstr(why, remedies[i].part) != NULL) printf("  %s\n", remedies[i].advice);
}

/* The variants of the kernels that were named in the log, each once. */
typedef struct variants {
    char lines[256][64];
    uint32_t count;
} variants;

static void note_variant(void *user, dart_log_level level, const char *text)
{
    static const char mark[] = "needs ";
    variants *seen = user;
    if (level == DART_LOG_WARNING) fprintf(stderr, "dartlm: %s\n", text);
    if (level != DART_LOG_TRACE || strncmp(text, mark, sizeof mark - 1) != 0 || seen->count == COUNT_OF(seen->lines)) return;
    text += sizeof mark - 1;
    for (uint32_t i = 0; i < seen->count; i++)
        if (strcmp(seen->lines[i], text) == 0) return;
    snprintf(seen->lines[seen->count++], sizeof seen->lines[0], "%s", text);
}

static int by_text(const void *a, const void *b) { return strcmp(a, b); }

static void tell_variants(variants *seen)
{
    qsort(seen->lines, seen->count, sizeof seen->lines[0], by_text);
    for (uint32_t i = 0; i < seen->count;) { /* linear[base] and linear[wide] are one line */
        const size_t length = strcspn(seen->lines[i], "[");
        uint32_t end = i;
        printf("  %-16.*s", (int)length, seen->lines[i]);
        while (end < seen->count && strncmp(seen->lines[end], seen->lines[i], length + 1) == 0) {
            const char *name = seen->lines[end++] + length;
            printf(" %.*s", name[0] == '[' ? (int)strcspn(name + 1, "]") : 0, name + 1);
        }
        printf("\n");
        i = end;
    }
}

/* Compiles what prefill and decoding of the model need on the device, and tells of it. */
static int tell_model(const char *folder, const char *preset, const cli_common *common)
{
    variants seen = {.count = 0};
    cli_common listening = *common;
    listening.log = note_variant;
    listening.log_user = &seen;
    cli_session session = {.context = NULL};
    dart_model *model = NULL;
    dart_state *state = NULL;
    int result = cli_open_device(&session, &listening);
    const dart_model_options storage = {.weights = (dart_storage)common->dtype};
    dart_model_config config;
    dart_status status = DART_OK;
    if (result == CLI_OK && preset != NULL) {
        status = dart_config_preset(preset, &config);
        config.layers = 1; /* the others need the same kernels */
        if (status == DART_OK) status = dart_model_random(session.device, &config, 1, &storage, &model);
    } else if (result == CLI_OK) {
        status = dart_model_open(session.device, folder, &storage, &model);
    }
    if (result == CLI_OK && status != DART_OK) result = cli_fail_device(&session, status);
    if (result == CLI_OK) {
        status = dart_state_create(model, NULL, &state);
        if (status != DART_OK) result = cli_fail_model(model, status);
    }
    if (result == CLI_OK) {
        status = dart_state_warm(state);
        if (status != DART_OK) result = cli_fail_state(state, status);
    }
    if (result == CLI_OK) {
        char spec[32];
        printf("\nKernels and their variants for one sequence of %s on %s\n", preset != NULL ? preset : folder, cli_device_spec(&session.info, spec));
        tell_variants(&seen);
    }
    dart_state_destroy(&state);
    dart_model_destroy(&model);
    cli_close(&session);
    return result;
}

static int tell(const cli_common *common)
{
    cli_session session;
    if (cli_open_context(&session, common) != CLI_OK) return CLI_FAILED;
    printf("dartlm %s\n\n", dart_version());
    tell_backend(session.context, DART_BACKEND_VULKAN);
    tell_backend(session.context, DART_BACKEND_CUDA);
    tell_backend(session.context, DART_BACKEND_CPU);
    cli_close(&session);
    const int status = cli_open_device(&session, common);
    if (status == CLI_OK) {
        char spec[32];
        printf("\nCommands take %s%s.\n", cli_device_spec(&session.info, spec), common->device == NULL ? " unless --device says otherwise" : "");
    }
    cli_close(&session);
    return status;
}

int cmd_doctor(int argc, char **argv)
{
    cli_common common = {.device = NULL};
    const char *preset = NULL;
    const args_option options[] = {
        {"preset", 0, ARGS_TEXT, "NAME", &preset, "the kernels of {dart,mamba2}-{130m,370m,780m}", 0, 0, false},
        CLI_DEVICE(common),
        {"dtype", 0, ARGS_CHOICE, CLI_STORAGES, &common.dtype, "storage of the model's matrices", 0, 0, false},
        {"verbose", 'v', ARGS_MORE, NULL, &common.verbosity, "show the library's log; twice: all of it", 0, 0, false},
    };
    const args_syntax syntax = {
        .command = "dartlm doctor",
        .operands = "[FOLDER]",
        .options = options,
        .options_count = COUNT_OF(options),
        .about = "Tells in words what this machine has for dartlm, what is missing and what to install; with the FOLDER of a model or\n"
                 "a preset also which variant of each kernel it takes, which compiles them (seconds, on some drivers a minute)."};
    args_operands operands;
    dart_model_config config;
    int status = args_parse(&syntax, argc, argv, &operands);
    if (status != ARGS_GO_ON) return status;
    if (operands.count > 0 && preset != NULL) return args_mistake(&syntax, "give a folder or --preset NAME, not both");
    if (preset != NULL && dart_config_preset(preset, &config) != DART_OK)
        return args_mistake(&syntax, "no preset is called %s; there are {dart,mamba2}-{130m,370m,780m}", preset);
    common.null_too = true;
    status = tell(&common);
    if (status == CLI_OK && (operands.count > 0 || preset != NULL)) status = tell_model(operands.texts[0], preset, &common);
    return status;
}
