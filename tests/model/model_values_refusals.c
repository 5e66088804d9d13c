/* Files that are refused, and calls that fail half-way: one of the files of model_values. */
#if !defined(_WIN32)
#define _POSIX_C_SOURCE 200809L
#endif
#include "value_cases.h"

#include "infer/state_file.h"

#if !defined(_WIN32)
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>
#endif

static uint8_t *read_file_at(const char *name, size_t *bytes)
{
    FILE *file = fopen(name, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    const long end = ftell(file);
    assert_true(end > 0);
    rewind(file);
    uint8_t *data = malloc((size_t)end);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, (size_t)end, file), (size_t)end);
    fclose(file);
    *bytes = (size_t)end;
    return data;
}
/* Says no once all is done. */
static bool ask_unless_done(void *user, uint64_t done, uint64_t of) { return ask(user, done, of) && done < of; }

static uint8_t *read_file(size_t *bytes) { return read_file_at(path, bytes); }

static void refuses_load(dart_state *state, int32_t b, dart_status wanted, const char *says)
{
    char text[512];
    quiet = true;
    const dart_status status = dart_state_load(state, b, path);
    quiet = false;
    dart_state_error(state, text, sizeof text);
    if (status != wanted || strstr(text, says) == NULL)
        fail_msg("%s, '%s' instead of %s, '%s'", dart_status_name(status), text, dart_status_name(wanted), says);
    assert_int_equal(state->broken, DART_OK);
}

void refuses_other_models(void **unused)
{
    (void)unused;
    enum { B = 2 };
    dart_model *model = model_of(&small, NULL), *other = NULL;
    int32_t *ids = ids_of(B, small.V);
    dart_state *state = state_of(model, &(dart_state_options){.B = B});
    must(dart_prefill(state, &(dart_prefill_args){.ids = ids, .ids_row = L, .L = 20}), "dart_prefill");
    must(dart_state_save(state, -1, path), "dart_state_save");
    refuses_load(state, 0, DART_INVALID_ARGUMENT, "2 sequences, 1 are to be loaded");
    struct { dart_model_config config; uint64_t seed; dart_state_options options; const char *says; } cases[] = {
        {small, 8, {.B = B}, "the weights differ"},
        {small, 7, {.B = B, .S = 4}, "chunks of 8 tokens, this state of 4"},
        {small, 7, {.B = B, .no_sma = true}, "with state-memory attention"},
        {small, 7, {.B = 1}, "2 sequences, 1 are to be loaded"},
        {small, 7, {.B = B}, "its layers is 3, of this one 2"},
        {small, 7, {.B = B}, "its eps is"},
        {small, 7, {.B = B}, "its tied is 0, of this one 1"},
    };
    cases[4].config.layers = 2;
    cases[5].config.eps = 2e-5f;
    cases[6].config.tied = true;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        must(dart_model_random(device, &cases[i].config, cases[i].seed, NULL, &other), "dart_model_random");
        dart_state *s = state_of(other, &cases[i].options);
        refuses_load(s, -1, DART_INVALID_ARGUMENT, cases[i].says);
        dart_state_destroy(&s);
        dart_model_destroy(&other);
    }
    /* The default S of a configuration is no part of a state. */
    dart_model_config coarse = small;
    coarse.S = 16;
    must(dart_model_random(device, &coarse, 7, NULL, &other), "dart_model_random");
    dart_state *s = state_of(other, &(dart_state_options){.B = B, .S = 8});
    must(dart_state_load(s, -1, path), "dart_state_load");
    assert_int_equal(dart_state_position(s, 1), 20);
    quiet = true;
    assert_int_equal(dart_state_copy(state, 0, s, 0), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_state_copy(state, 2, state, 0), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_state_copy(state, 0, state, 2), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_state_save(state, 2, path), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_state_load(state, 2, path), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_state_mark(state, 2), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_state_truncate(state, 2, 0, NULL), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_state_truncate(state, 0, 21, ids), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_state_truncate(state, 0, 5, NULL), DART_INVALID_ARGUMENT);
    remove(path);
    assert_int_equal(dart_state_load(state, -1, path), DART_IO);
    assert_int_equal(dart_state_load(state, -1, "."), DART_IO);
    quiet = false;
    dart_state_destroy(&s);
    dart_model_destroy(&other);
    dart_state_destroy(&state);
    free(ids);
    dart_model_destroy(&model);
}

static dart_status load_bytes(dart_state *state, const uint8_t *data, size_t bytes)
{
    uint8_t *copy = malloc(bytes > 0 ? bytes : 1); /* so that a sanitizer sees every byte read past the end */
    assert_non_null(copy);
    memcpy(copy, data, bytes);
    const dart_status status = model_state_load_memory(state, -1, copy, bytes, "input");
    free(copy);
    return status;
}

/* Every prefix, and a flipped bit in every byte: refused, and the state goes on as one that never saw the file. */
void refuses_damage(void **unused)
{
    (void)unused;
    dart_model_config tiny = small;
    tiny.W = 16;
    tiny.layers = 1;
    tiny.H = 2;
    tiny.N = 4;
    dart_model *model = model_of(&tiny, NULL);
    const uint32_t V = tiny.V;
    int32_t *ids = ids_of(1, V);
    float expected[97], got[97];
    dart_state *state = state_of(model, NULL), *other = state_of(model, NULL);
    must(dart_prefill(other, &(dart_prefill_args){.ids = ids, .L = 26}), "dart_prefill");
    must(dart_state_save(other, -1, path), "dart_state_save");
    size_t bytes;
    uint8_t *data = read_file(&bytes);
    must(dart_prefill(state, &(dart_prefill_args){.ids = ids, .L = 13, .want = DART_LOGITS_LAST, .logits = expected}), "dart_prefill");
    quiet = true;
    for (size_t length = 0; length < bytes; length += length < 600 || length + 600 > bytes ? 1 : 7)
        assert_int_equal(load_bytes(state, data, length), DART_BAD_DATA);
    for (size_t i = 0; i < bytes; i++) {
        data[i] ^= (uint8_t)(1u << i % 8);
        const dart_status status = load_bytes(state, data, bytes);
        if (status != DART_BAD_DATA) fail_msg("byte %zu of %zu changed: %s", i, bytes, dart_status_name(status));
        data[i] ^= (uint8_t)(1u << i % 8);
    }
    quiet = false;
    assert_int_equal(dart_state_position(state, 0), 13);
    last_logits(state, got);
    assert_memory_equal(got, expected, V * sizeof *got);
    assert_int_equal(load_bytes(state, data, bytes), DART_OK);
    assert_int_equal(dart_state_position(state, 0), 26);
    dart_state_destroy(&state);
    dart_state_destroy(&other);
    free(data);
    free(ids);
    dart_model_destroy(&model);
    remove(path);
}

/* The n-th call of the backend or allocation fails: nothing is lost, or the state says that it is broken. */
void survives_failures(void **unused)
{
    (void)unused;
    enum { B = 2 };
    const kind *k = &kinds[7]; /* windows */
    dart_model *model = model_of_kind(k);
    int32_t *ids = ids_of(MOST_B, model->config.V);
    uint32_t failures = 0, broken = 0;
    for (int call = 0; call < 5; call++) {
        bool done = false;
        for (uint32_t n = 1; !done; n++) {
            run s = {.state = state_of_kind(model, k, B), .ids = ids}, t = {.state = state_of_kind(model, k, B), .ids = ids};
            begin(&s);
            must(dart_state_save(s.state, -1, path), "dart_state_save");
            feed_counts(&t, (const uint32_t[]){5, 9});
            dart_status status = DART_OK;
            dart_state *changed = call == 0 || call > 2 ? s.state : t.state;
            const uint64_t before = dart_state_position(changed, 0);
            quiet = true;
            atomic_store(&device->fail_in, n);
            switch (call) {
            case 0: status = dart_state_save(s.state, -1, path); break;
            case 1: status = dart_state_load(t.state, -1, path); break;
            case 2: status = dart_state_copy(t.state, 0, s.state, 1); break;
            case 3: status = dart_state_mark(s.state, 0); break;
            default: status = dart_state_truncate(s.state, 0, 17, ids); break;
            }
            done = atomic_load(&device->fail_in) != 0;
            atomic_store(&device->fail_in, 0);
            quiet = false;
            assert_int_equal(status, done ? DART_OK : DART_OUT_OF_MEMORY);
            failures += !done;
            broken += changed->broken != DART_OK;
            /* The file is the old one or the new one. */
            run fresh = {.state = state_of_kind(model, k, B), .ids = ids};
            must(dart_state_load(fresh.state, -1, path), "dart_state_load");
            dart_state_destroy(&fresh.state);
            if (changed->broken != DART_OK) {
                must(dart_state_reset(changed, -1), "dart_state_reset");
            } else if (!done && call < 4) {
                assert_int_equal(dart_state_position(changed, 0), before);
                run *r = changed == s.state ? &s : &t;
                for (uint32_t b = 0; b < B; b++) check_sequence(r, k, b, &ids[b * L], r->at[b]);
            } else if (!done) {
                s.at[0] = (uint32_t)dart_state_position(s.state, 0);
                for (uint32_t b = 0; b < B; b++) check_sequence(&s, k, b, &ids[b * L], s.at[b]);
            }
            dart_state_destroy(&s.state);
            dart_state_destroy(&t.state);
        }
    }
    print_message("  %u failures, %u of them left a broken state\n", failures, broken);
    free(ids);
    dart_model_destroy(&model);
    remove(path);
}

/* The disk takes some bytes and no more: the old file stays, and the state goes on. */
void keeps_the_old_file(void **unused)
{
    (void)unused;
#if defined(_WIN32)
    print_message("NOT RUN: this system has no limit on files\n");
    skip();
#else
    dart_model *model = model_of(&small, NULL);
    int32_t *ids = ids_of(MOST_B, small.V);
    run s = {.state = state_of_kind(model, &kinds[0], 3), .ids = ids};
    struct rlimit before;
    size_t bytes, again;
    begin(&s);
    must(dart_state_save(s.state, -1, path), "dart_state_save");
    uint8_t *data = read_file(&bytes);
    steps(&s, 1, NULL);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_IGN);
    quiet = true;
    for (size_t i = 0; i < 12; i++) { /* in every section */
        const struct rlimit little = {.rlim_cur = i < 11 ? bytes * i / 11 : bytes - 1, .rlim_max = before.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
        const dart_status status = dart_state_save(s.state, -1, path);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        assert_int_equal(status, DART_IO);
        uint8_t *kept = read_file(&again);
        assert_int_equal(again, bytes);
        assert_memory_equal(kept, data, bytes);
        free(kept);
    }
    quiet = false;
    signal(SIGXFSZ, SIG_DFL);
    for (uint32_t b = 0; b < 3; b++) check_sequence(&s, &kinds[0], b, &ids[b * L], s.at[b]);
    free(data);
    dart_state_destroy(&s.state);
    free(ids);
    dart_model_destroy(&model);
    remove(path);
#endif
}

#if defined(__linux__)
/* Descriptors and mappings of this process of files with this in their name. */
static uint32_t held(const char *name)
{
    char line[600], link[300];
    uint32_t count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps) != NULL) count += strstr(line, name) != NULL;
    fclose(maps);
    for (int i = 0; i < 256; i++) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", i);
        const ssize_t length = readlink(link, line, sizeof line - 1);
        line[length > 0 ? length : 0] = '\0';
        count += strstr(line, name) != NULL;
    }
    return count;
}
#endif

static void to_huge(dart_model_config *c)
{
    to_large(c);
    c->N = 256;
}

/* A file in memory is written as memory: the same bytes as through system calls, and where the file may not grow, the old one stays. */
void writes_as_memory(void **unused)
{
    (void)unused;
#if !defined(__linux__)
    print_message("NOT RUN: this system has no files in memory\n");
    skip();
#else
    static const kind huge = {.name = "huge sections", .change = to_huge};
    char in_memory[160];
    struct rlimit before;
    size_t bytes, again;
    snprintf(in_memory, sizeof in_memory, "/dev/shm/%s", path);
    FILE *probe = fopen(in_memory, "wb");
    if (probe == NULL) {
        print_message("NOT RUN: no files can be made in /dev/shm\n");
        skip();
    }
    fclose(probe);
    dart_model *model = model_of_kind(&huge);
    int32_t *ids = ids_of(MOST_B, small.V);
    run s = {.state = state_of_kind(model, &huge, MOST_B), .ids = ids}, l = {.state = state_of_kind(model, &huge, MOST_B), .ids = ids};
    begin(&s);
    must(dart_state_save(s.state, -1, path), "dart_state_save");
    uint8_t *data = read_file(&bytes);
    assert_true(bytes > 17 << 20); /* room is found in several steps */
    must(dart_state_save(s.state, -1, in_memory), "dart_state_save");
    must(dart_state_load(l.state, -1, in_memory), "dart_state_load");
    uint8_t *mapped = read_file_at(in_memory, &again);
    assert_int_equal(again, bytes);
    assert_memory_equal(mapped, data, bytes);
    free(mapped);

    /* With room found ahead, for as many tokens, for more and for fewer. */
    for (uint64_t tokens = 0; tokens < 2 * L; tokens += 2 * L - 1) {
        must(dart_state_prepare_save(s.state, tokens > 0 ? -1 : 1, in_memory, tokens), "dart_state_prepare_save");
        mapped = read_file_at(in_memory, &again); /* the file is as it was */
        assert_int_equal(again, bytes);
        free(mapped);
        must(dart_state_save(s.state, -1, in_memory), "dart_state_save");
        mapped = read_file_at(in_memory, &again);
        assert_int_equal(again, bytes);
        assert_memory_equal(mapped, data, bytes);
        free(mapped);
    }
    /* Ended at once and once all is found: nothing stays prepared, and the file is as it was. */
    asker whole = {.most = UINT32_MAX};
    must(dart_state_prepare_save_while(s.state, -1, in_memory, 0, ask, &whole), "dart_state_prepare_save_while");
    assert_non_null(s.state->prepared);
    assert_int_equal(whole.of, s.state->model->config.layers + 1);
    assert_int_equal(whole.done, whole.of);
    /* It asks between layers, too, unless other threads have found all of the room before the call's own begins. */
    for (int tries = 0; tries < 20 && whole.calls < 2; tries++) {
        whole = (asker){.most = UINT32_MAX};
        must(dart_state_prepare_save_while(s.state, -1, in_memory, 0, ask, &whole), "dart_state_prepare_save_while");
    }
    assert_true(whole.calls >= 2);
    quiet = true;
    for (int end = 0; end <= 1; end++) {
        asker a = {.most = end ? UINT32_MAX : 0};
        const dart_status ended = dart_state_prepare_save_while(s.state, -1, in_memory, 0, end ? ask_unless_done : ask, &a);
        assert_int_equal(ended, DART_CANCELLED);
        assert_null(s.state->prepared);
        mapped = read_file_at(in_memory, &again);
        assert_int_equal(again, bytes);
        assert_memory_equal(mapped, data, bytes);
        free(mapped);
    }
    quiet = false;
    /* The header names the blocks of memories, and they grow in number. */
    dart_state *grows = state_of(model, &(dart_state_options){.memory_block = 1, .S = 2});
    must(dart_state_prepare_save(grows, -1, in_memory, 400), "dart_state_prepare_save");
    assert_non_null(grows->prepared);
    const uint64_t room = grows->prepared_bytes;
    must(model_memories_reserve(grows, 200, "test"), "model_memories_reserve");
    grows->positions[0] = 400;
    must(dart_state_save(grows, -1, in_memory), "dart_state_save");
    free(read_file_at(in_memory, &again));
    assert_true(again > 1 << 20 && again <= room && room - again < 2048);
    dart_state_destroy(&grows);
    must(dart_state_save(s.state, -1, in_memory), "dart_state_save");
    /* A file that is too small to be written as memory does not keep the length of what was found. */
    dart_model *other = model_of(&small, NULL);
    dart_state *few = state_of(other, NULL);
    must(dart_decode(few, &(dart_decode_args){.ids = ids}), "dart_decode");
    must(dart_state_save(few, -1, path), "dart_state_save");
    size_t little_bytes;
    uint8_t *little_data = read_file(&little_bytes);
    assert_true(little_bytes < 1 << 20);
    must(dart_state_prepare_save(few, -1, in_memory, 1 << 14), "dart_state_prepare_save");
    must(dart_state_save(few, -1, in_memory), "dart_state_save");
    mapped = read_file_at(in_memory, &again);
    assert_int_equal(again, little_bytes);
    assert_memory_equal(mapped, little_data, little_bytes);
    free(mapped);
    free(little_data);
    dart_state_destroy(&few);
    dart_model_destroy(&other);
    must(dart_state_save(s.state, -1, path), "dart_state_save");
    must(dart_state_save(s.state, -1, in_memory), "dart_state_save");
    asker once = {.most = UINT32_MAX};
    must(dart_state_prepare_save_while(s.state, -1, path, 0, ask, &once), "on a disk it finds nothing, and loses what was found");
    assert_true(once.calls >= 1);
    must(dart_state_prepare_save(l.state, -1, in_memory, 0), "dart_state_prepare_save"); /* not used: gone with the state */
    must(dart_state_save(s.state, 1, in_memory), "dart_state_save"); /* one sequence: another file */
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_IGN);
    quiet = true;
    for (size_t i = 0; i < 6; i++) {
        const struct rlimit little = {.rlim_cur = i < 5 ? bytes * i / 5 : bytes - 1, .rlim_max = before.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
        const dart_status status = dart_state_save(s.state, -1, in_memory);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        assert_int_equal(status, DART_IO);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
        const dart_status prepared = dart_state_prepare_save(s.state, -1, in_memory, 0);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        assert_int_equal(prepared, DART_OK); /* the file cannot be as long: not written as memory then */
        must(dart_state_load(l.state, 1, in_memory), "the old file");
    }
    quiet = false;
    signal(SIGXFSZ, SIG_DFL);
    for (uint32_t b = 0; b < MOST_B; b++) check_sequence(&l, &huge, b, &ids[b * L], s.at[b]);
    /* Who has the old file open keeps it; it and the mappings are given back by the time the states are gone. */
    must(dart_state_save(s.state, -1, in_memory), "dart_state_save");
    FILE *reader = fopen(in_memory, "rb");
    assert_non_null(reader);
    steps(&s, 1, NULL);
    must(dart_state_save(s.state, -1, in_memory), "dart_state_save");
    must(dart_state_load(l.state, -1, in_memory), "dart_state_load");
    uint8_t *old = malloc(bytes);
    assert_non_null(old);
    assert_int_equal(fread(old, 1, bytes, reader), bytes);
    assert_memory_equal(old, data, bytes);
    fclose(reader);
    free(old);
    free(data);
    dart_state_destroy(&s.state);
    dart_state_destroy(&l.state);
    assert_int_equal(held(path), 0);
    free(ids);
    dart_model_destroy(&model);
    remove(path);
    remove(in_memory);
#endif
}
