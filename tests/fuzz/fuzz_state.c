/* State files from anywhere. For clang's libFuzzer, compile with -DDART_LIBFUZZER -fsanitize=fuzzer. Otherwise a program:
 * a loop of mutations of valid files, or files that are named (mutate.h). */
#include "base/checksum.h"
#include "infer/state_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition) abort();
}

enum { B = 2, L = 11, V = 13 };
static const dart_model_config configs[] = {
    {.sma = true, .V = V, .W = 8, .layers = 2, .H = 2, .P = 8, .G = 1, .N = 4, .K = 4, .S = 4, .eps = 1e-5f, .sma_eps = 1e-5f},
    {.transformer = true, .V = V, .W = 8, .layers = 1, .H = 2, .P = 4, .G = 1, .F = 8, .base = 100, .eps = 1e-5f},
};
static const int32_t ids[B * L] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9};

static dart_context *context;
static dart_device *device;
static dart_model *models[2];
static dart_state *states[2];

static void open_states(void)
{
    if (device != NULL) return;
    require(dart_context_create(&(dart_context_options){.without_vulkan = true, .without_cuda = true}, &context) == DART_OK);
    require(dart_device_open(context, &(dart_device_options){.spec = "cpu", .threads = 1}, &device) == DART_OK);
    for (int i = 0; i < 2; i++) {
        require(dart_model_random(device, &configs[i], 3, NULL, &models[i]) == DART_OK);
        require(dart_state_create(models[i], &(dart_state_options){.B = B, .max_piece = 16}, &states[i]) == DART_OK);
    }
}

static void close_states(void)
{
    for (int i = 0; i < 2; i++) {
        dart_state_destroy(&states[i]);
        dart_model_destroy(&models[i]);
    }
    dart_device_destroy(&device);
    dart_context_destroy(&context);
}

/* What must hold: accepted, or refused with a text and nothing changed. */
static dart_status load(int i, const uint8_t *data, size_t size)
{
    dart_state *state = states[i];
    char said[512];
    int32_t before[B];
    memcpy(before, state->positions, sizeof before);
    const dart_status status = model_state_load_memory(state, -1, data, size, "input");
    require(state->broken == DART_OK);
    if (status == DART_OK) {
        for (uint32_t b = 0; b < B; b++) require(state->positions[b] >= 0);
        require(dart_state_reset(state, -1) == DART_OK);
        return status;
    }
    dart_state_error(state, said, sizeof said);
    require(status == DART_BAD_DATA || status == DART_INVALID_ARGUMENT || status == DART_OUT_OF_MEMORY || status == DART_UNSUPPORTED);
    require(said[0] != '\0' && memcmp(before, state->positions, sizeof before) == 0);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    open_states();
    for (int i = 0; i < 2; i++) load(i, data, size);
    return 0;
}

#ifndef DART_LIBFUZZER

#define ROUNDS 40000u
#define CAPACITY 32768u
#include "mutate.h"

static uint8_t files[2][CAPACITY];
static size_t sizes[2];

/* In memory of its own, so that a sanitizer sees every byte read past the end. */
static dart_status load_copy(int i, const uint8_t *file, size_t size)
{
    uint8_t *copy = malloc(size > 0 ? size : 1);
    require(copy != NULL);
    memcpy(copy, file, size);
    random_watch(copy, size);
    const dart_status status = load(i, copy, size);
    free(copy);
    return status;
}

static size_t read_path(const char *path, uint8_t *data, size_t capacity)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) return 0;
    const size_t size = fread(data, 1, capacity, file);
    fclose(file);
    return size;
}

static void make_files(void)
{
    static const uint32_t counts[B] = {L, 5};
    static const char path[] = "fuzz_state.state";
    for (int i = 0; i < 2; i++) {
        require(dart_prefill(states[i], &(dart_prefill_args){.ids = ids, .L = L, .counts = counts, .sampling = &(dart_sampling){0}}) == DART_OK);
        require(dart_state_save(states[i], -1, path) == DART_OK);
        sizes[i] = read_path(path, files[i], CAPACITY);
        require(sizes[i] > 0 && sizes[i] < CAPACITY);
        require(dart_state_reset(states[i], -1) == DART_OK);
    }
    remove(path);
}

/* Numbers that a reader may stumble over. */
static uint32_t number(void)
{
    static const uint32_t numbers[] = {0, 1, 2, 3, 4, 5, 7, 8, 12, 255, 256, 65536, INT32_MAX, UINT32_MAX, UINT32_MAX - 1, 1u << 30};
    return random_below(4) != 0 ? numbers[random_below(COUNT_OF(numbers))] : random_below(1u << 16);
}

/* Of the header as it stands, and of the sections where it says that they are. */
static void mend_checksums(int i, uint8_t *file, size_t size)
{
    state_file_header h;
    if (size < sizeof h) return;
    memcpy(&h, file, sizeof h);
    h.bytes = size;
    memcpy(file, &h, sizeof h);
    const uint64_t head = state_file_head_bytes(&h);
    if (head > size) return;
    h.checksum = state_file_head_checksum(file, head);
    memcpy(file, &h, sizeof h);
    /* The sections of the valid file, whose sizes the mutation may have left alone. */
    state_file parsed;
    if (state_file_parse(&parsed, states[i], h.sequences, file, size, "input") != DART_OK) return;
    uint64_t at = parsed.head_bytes;
    for (uint32_t section = 0; section <= configs[i].layers; section++) {
        const uint64_t bytes = section > 0 ? parsed.layer_bytes : parsed.last_bytes;
        const uint64_t sum = base_checksum(state_file_seed(&parsed, section), file + at, bytes - 8);
        memcpy(file + at + bytes - 8, &sum, 8);
        at += bytes;
    }
    free(parsed.runs);
}

static size_t mutate(uint8_t *file, size_t size)
{
    uint8_t piece[32] = {0};
    const uint32_t value = number();
    const size_t head = 256 < size ? 256 : size, at = random_below(2) != 0 ? random_below(head + 1) : random_below(size + 1);
    switch (random_below(5)) {
    case 0:
        if (at < size) file[at] ^= (uint8_t)(1u << random_below(8));
        return size;
    case 1:
    case 2: /* a number of the header or its tables */
        if (head >= 8) memcpy(file + random_below(head / 4) * 4, &value, 4);
        return size;
    case 3: return replace(file, size, at, random_below(300), "", 0);
    default: return replace(file, size, at, 0, piece, random_below(sizeof piece));
    }
}

static int run_file(const char *path)
{
    static uint8_t data[CAPACITY];
    const size_t size = read_path(path, data, sizeof data);
    for (int i = 0; i < 2; i++) load_copy(i, data, size);
    return 0;
}

int main(int argc, char **argv)
{
    argc = random_begin(argc, argv);
    static uint8_t file[CAPACITY];
    uint32_t accepted = 0, round = 0;
    open_states();
    for (int i = 1; i < argc; i++) run_file(argv[i]);
    if (argc == 1) {
        make_files();
        for (int i = 0; i < 2; i++) {
            require(load_copy(i, files[i], sizes[i]) == DART_OK);
            require(load_copy(1 - i, files[i], sizes[i]) == DART_INVALID_ARGUMENT);
            for (size_t length = 0; length < sizes[i]; length++) require(load_copy(i, files[i], length) == DART_BAD_DATA);
        }
        for (; random_goes_on(round, ROUNDS); round++) {
            const int i = (int)random_below(2);
            size_t size = sizes[i];
            memcpy(file, files[i], size);
            for (uint32_t steps = 1 + random_below(3); steps > 0; steps--) size = mutate(file, size);
            if (random_below(8) != 0) mend_checksums(i, file, size);
            accepted += load_copy(i, file, size) == DART_OK;
        }
        printf("%u accepted\n", accepted);
        require(accepted > 0 && accepted < round);
    }
    close_states();
    return 0;
}

#endif
