/* The first block of memories grows with the sequences: model_memories DEVICE_SPEC DATA_DIR. */
#include "model_cases.h"

enum { B = 2, FIRST_TOKENS = 1024, TOKENS = 1200, MANY = 200 };

/* The sum of a step over at most 8 memories that there may be is not cut, or into single memories; over more it is cut by how many there may be
 * (split_size of mixer.c, step_size of sma.c): a first block of 8 gives the same bits whether it has grown or not, one of 128 the same results. */
static const struct storage {
    const char *name;
    uint32_t S;
    dart_model_options of;
    bool windowed;
    uint32_t slice_ms; /* of the state that grows, 0: none. A processor is assumed to copy three memories in 1 ms */
    double tolerance; /* 0: the same bits as with one block from the beginning */
} storages[] = {
    {.name = "f32", .S = 128},
    {.name = "f32, windows", .S = 128, .windowed = true},
    {.name = "f16 memories", .S = 128, .of = {.memories = DART_STORAGE_F16}},
    {.name = "f32, chunks of 8", .S = 8, .tolerance = TOLERANCE},
    {.name = "f32, chunks of 8, windows", .S = 8, .windowed = true, .tolerance = TOLERANCE},
    {.name = "f32, chunks of 8, slices", .S = 8, .slice_ms = 1, .tolerance = TOLERANCE},
};

/* A size that windows take, too. */
static const dart_model_config narrow = {.sma = true, .V = 97, .W = 32, .layers = 2, .H = 4, .P = 16, .G = 2, .N = 16, .K = 4, .S = 8,
                                         .eps = 1e-5f, .sma_eps = 1e-5f};

static int32_t *many_ids(void)
{
    int32_t *ids = calloc((size_t)(B + 1) * TOKENS, sizeof *ids);
    assert_non_null(ids);
    for (size_t i = 0; i < (size_t)(B + 1) * TOKENS; i++) ids[i] = (int32_t)(base_mix(7 + i) % narrow.V);
    return ids;
}

static dart_state *make_state(dart_model *model, const struct storage *storage, uint32_t block)
{
    const dart_state_options options = {.B = B, .S = storage->S, .memory_block = block, .max_piece = 64,
                                        .slice_ms = storage->slice_ms > 0 && block == 0 ? storage->slice_ms : UINT32_MAX};
    dart_state *state = state_of(model, &options);
    if (storage->windowed) {
        state->fused = false;
        state->windowed = true;
    }
    return state;
}

/* The next `count` tokens of the first sequence, and half of them of the second, in a piece or, where it is one token, in a step; then the logits. */
static void go_on_by(dart_state *state, const int32_t *ids, uint32_t count, float *logits)
{
    int32_t *piece = calloc((size_t)B * count, sizeof *piece);
    uint32_t counts[B] = {count, count / 2};
    for (uint32_t b = 0; b < B; b++) memcpy(&piece[b * count], &ids[b * TOKENS + dart_state_position(state, b)], count * sizeof *piece);
    if (count > 1)
        must(dart_prefill(state, &(dart_prefill_args){.ids = piece, .ids_row = count, .L = count, .counts = counts, .want = DART_LOGITS_LAST,
                                                      .logits = logits}), "dart_prefill");
    else must(dart_decode(state, &(dart_decode_args){.ids = piece, .logits = logits}), "dart_decode");
    free(piece);
}

static void assert_alike(const char *what, const struct storage *storage, double tolerance, const float *a, const float *b)
{
    if (tolerance > 0) assert_close(what, distance(b, a, (size_t)B * narrow.V), tolerance);
    else if (memcmp(a, b, (size_t)B * narrow.V * sizeof *a) != 0) fail_msg("%s, %s: other logits", storage->name, what);
}

/* Memories that a sequence has room for. Asks for what the headers promise: at most twice those of the longest sequence. */
static uint64_t check_room(const dart_state *state)
{
    const uint64_t a = dart_state_position(state, 0), b = dart_state_position(state, 1), closed = base_larger(a, b) / state->S;
    const uint64_t rows = (uint64_t)narrow.H * narrow.N, one = rows * (narrow.P * dart_dtype_size(state->model->memories) + 4) * narrow.layers;
    const uint64_t room = dart_state_bytes(state, DART_STATE_MEMORIES) / (B * one);
    assert_int_equal(room * B * one, dart_state_bytes(state, DART_STATE_MEMORIES));
    assert_true(room >= closed);
    if (closed < FIRST_TOKENS / state->S) assert_true(room <= 2 * closed);
    return room;
}

/* ---- As if all of it had been there from the beginning ---- */

static void grows_as_if_it_had_been_there(void **unused)
{
    (void)unused;
    static const uint32_t parts[][6] = {{6, 1, 115, 1, 190, 1}, {126, 1, 124, 1, 300, 500}, {900, 1, 1, 113, 1, 1}};
    int32_t *ids = many_ids();
    float a[B * 97], b[B * 97];
    for (size_t i = 0; i < COUNT_OF(storages); i++) {
        dart_model *model = model_of(&narrow, &storages[i].of);
        for (size_t p = 0; p < COUNT_OF(parts); p++) {
            dart_state *grown = make_state(model, &storages[i], 0), *whole = make_state(model, &storages[i], FIRST_TOKENS / storages[i].S);
            uint64_t first = 0, last = 0;
            for (size_t k = 0; k < COUNT_OF(parts[p]); k++)
                for (uint32_t n = 0; n < (parts[p][k] == 1 ? 5 : 1); n++) {
                    go_on_by(grown, ids, parts[p][k], a);
                    go_on_by(whole, ids, parts[p][k], b);
                    assert_alike("grown", &storages[i], storages[i].tolerance, a, b);
                    last = check_room(grown);
                    if (k == 0 && n == 0) first = last;
                }
            assert_true(last > first);
            dart_state_destroy(&grown);
            dart_state_destroy(&whole);
        }
        dart_model_destroy(&model);
    }
    free(ids);
}

/* ---- One sequence, whose steps count the memories that it may see and no more (forward.c) ---- */

/* Logits after `count` tokens in a piece, and the likeliest token behind them. */
static int32_t after_piece(dart_model *model, const dart_state_options *options, const int32_t *tokens, uint32_t count, float *logits)
{
    int32_t next = -1;
    dart_state *state = state_of(model, options);
    must(dart_prefill(state, &(dart_prefill_args){.ids = tokens, .L = count, .want = DART_LOGITS_LAST, .logits = logits,
                                                  .sampling = &(dart_sampling){.temperature = 0}, .next_ids = &next}), "dart_prefill");
    dart_state_destroy(&state);
    return next;
}

static void one_sequence_sees_all_of_them(void **unused)
{
    (void)unused;
    /* Of a block for 24 memories a recording counts eight until there is a ninth. */
    enum { PROMPT = 2296, CHECKED = 2302, LAST = 2310 };
    const dart_state_options options = {.B = 1, .S = 256, .memory_block = 24};
    const dart_sampling likeliest = {.temperature = 0};
    dart_model *model = model_of(&narrow, NULL);
    int32_t *ids = many_ids(), generated[LAST];
    float got[97], whole[97];
    for (int plain = 0; plain < 2; plain++) { /* through the op of the mixer's step, and without it */
        dart_state *state = state_of(model, &options);
        if (plain) state->fused = false;
        must(dart_prefill(state, &(dart_prefill_args){.ids = ids, .L = PROMPT, .want = DART_LOGITS_NONE}), "dart_prefill");
        for (uint32_t t = PROMPT; t < LAST; t++) {
            must(dart_decode(state, &(dart_decode_args){.ids = &ids[t], .logits = got}), "dart_decode");
            if (t < CHECKED) continue;
            after_piece(model, &options, ids, t + 1, whole);
            assert_close("one sequence", distance(whole, got, narrow.V), TOLERANCE);
        }
        must(dart_state_reset(state, -1), "dart_state_reset");
        memcpy(generated, ids, PROMPT * sizeof *ids);
        must(dart_prefill(state, &(dart_prefill_args){.ids = ids, .L = PROMPT, .want = DART_LOGITS_NONE, .sampling = &likeliest,
                                                      .next_ids = &generated[PROMPT]}), "dart_prefill");
        const dart_generate_args rest = {.n = LAST - PROMPT - 1, .sampling = &likeliest, .ids = &generated[PROMPT + 1]};
        must(dart_generate(state, &rest), "dart_generate");
        for (uint32_t t = CHECKED; t < LAST; t += 3) assert_int_equal(generated[t], after_piece(model, &options, generated, t, whole));
        dart_state_destroy(&state);
    }
    free(ids);
    dart_model_destroy(&model);
}

/* ---- States of several histories ---- */

/* A state that was reset, one that was loaded and one that was copied go on as a new one does, and hold no more than twice what they need. */
static void grows_again(void **unused)
{
    (void)unused;
    static const uint32_t parts[] = {3, 124, 1, 1, 126, 1, 1, 130, 1};
    const char *path = "model_memories.state";
    int32_t *ids = many_ids();
    float a[B * 97], b[B * 97];
    for (size_t i = 0; i < COUNT_OF(storages); i++) {
        dart_model *model = model_of(&narrow, &storages[i].of);
        for (uint32_t stop = 2; stop < COUNT_OF(parts); stop += 3) {
            dart_state *plain = make_state(model, &storages[i], 0), *again = make_state(model, &storages[i], 0);
            go_on_by(again, ids, 150 * stop, a); /* keeps its blocks for later */
            must(dart_state_reset(again, -1), "dart_state_reset");
            for (uint32_t k = 0; k < stop; k++) {
                go_on_by(plain, ids, parts[k], a);
                go_on_by(again, ids, parts[k], b);
                assert_alike("reset", &storages[i], 0, a, b);
            }
            dart_state *loaded = make_state(model, &storages[i], 0), *copied = make_state(model, &storages[i], 0);
            must(dart_state_save(plain, -1, path), "dart_state_save");
            must(dart_state_load(loaded, -1, path), "dart_state_load");
            for (uint32_t s = 0; s < B; s++) must(dart_state_copy(copied, s, again, s), "dart_state_copy");
            check_room(loaded);
            check_room(copied);
            for (uint32_t k = stop; k < COUNT_OF(parts); k++) {
                go_on_by(plain, ids, parts[k], a);
                go_on_by(loaded, ids, parts[k], b);
                assert_alike("loaded", &storages[i], 0, a, b);
                check_room(loaded);
                go_on_by(again, ids, parts[k], a);
                go_on_by(copied, ids, parts[k], b);
                assert_alike("copied", &storages[i], TOLERANCE, a, b);
                check_room(copied);
            }
            dart_state_destroy(&plain);
            dart_state_destroy(&again);
            dart_state_destroy(&loaded);
            dart_state_destroy(&copied);
        }
        dart_model_destroy(&model);
    }
    remove(path);
    free(ids);
}

/* Every allocation and call of the backend fails once in the step that makes the block grow. Before the step runs nothing is lost. */
static void growing_survives_failures(void **unused)
{
    (void)unused;
    const struct storage *storage = &storages[0];
    dart_model *model = model_of(&narrow, NULL);
    int32_t *ids = many_ids(), *next = calloc(B, sizeof *next);
    float expected[B * 97], got[B * 97];
    uint32_t whole = 0, broken = 0;
    bool done = false;
    for (uint32_t n = 0; !done; n++) {
        dart_state *state = make_state(model, storage, 0);
        go_on_by(state, ids, 3 * storage->S - 1, got); /* the next token closes the third chunk */
        assert_int_equal(model_memories_room(state), 2);
        for (uint32_t b = 0; b < B; b++) next[b] = ids[b * TOKENS + dart_state_position(state, b)];
        quiet = true;
        atomic_store(&device->fail_in, n);
        const dart_status status = dart_decode(state, &(dart_decode_args){.ids = next, .logits = got});
        done = n > 0 && atomic_load(&device->fail_in) != 0;
        atomic_store(&device->fail_in, 0);
        quiet = false;
        assert_int_equal(status, n == 0 || done ? DART_OK : DART_OUT_OF_MEMORY);
        if (status != DART_OK && state->broken == DART_OK) {
            must(dart_decode(state, &(dart_decode_args){.ids = next, .logits = got}), "dart_decode");
            whole++;
        }
        broken += state->broken != DART_OK;
        if (n == 0) memcpy(expected, got, sizeof got);
        else if (state->broken == DART_OK) assert_memory_equal(got, expected, sizeof got);
        if (state->broken == DART_OK) assert_int_equal(model_memories_room(state), 4);
        dart_state_destroy(&state);
    }
    print_message("  %u failures before the step, %u that left a broken state\n", whole, broken);
    assert_true(whole > 2 * narrow.layers); /* the blocks, the recording, its submission */
    free(next);
    free(ids);
    dart_model_destroy(&model);
}

static bool never(void *user)
{
    (void)user;
    return false;
}

/* A prefill that is ended has let the block grow beneath a step that was recorded for the one before: steps after it write to the new one. */
static void steps_follow_the_block(void **unused)
{
    (void)unused;
    const struct storage *storage = &storages[3];
    dart_model *model = model_of(&narrow, NULL);
    int32_t *ids = many_ids();
    float a[B * 97], b[B * 97];
    dart_state *ended = make_state(model, storage, 0), *plain = make_state(model, storage, 0);
    dart_state *const both[] = {ended, plain};
    for (int i = 0; i < 2; i++) {
        go_on_by(both[i], ids, 17, a);
        for (uint32_t n = 0; n < storage->S; n++) go_on_by(both[i], ids, 1, a); /* the last ones find room for a memory more */
    }
    const uint64_t room = model_memories_room(ended);
    const uint32_t at = (uint32_t)dart_state_position(ended, 1);
    int32_t *piece = calloc((size_t)B * MANY, sizeof *piece);
    uint32_t counts[B] = {0, MANY};
    memcpy(&piece[MANY], &ids[TOKENS + at], MANY * sizeof *piece);
    quiet = true;
    assert_int_equal(dart_prefill(ended, &(dart_prefill_args){.ids = piece, .ids_row = MANY, .L = MANY, .counts = counts, .go_on = never}),
                     DART_CANCELLED);
    quiet = false;
    assert_true(model_memories_room(ended) > room);
    counts[1] = (uint32_t)dart_state_position(ended, 1) - at; /* of whole pieces */
    assert_true(counts[1] < MANY);
    must(dart_prefill(plain, &(dart_prefill_args){.ids = piece, .ids_row = MANY, .L = counts[1], .counts = counts}), "dart_prefill");
    for (int i = 0; i < 2; i++) {
        for (uint32_t n = 0; n < storage->S; n++) go_on_by(both[i], ids, 1, i == 0 ? a : b); /* a chunk closes */
        go_on_by(both[i], ids, 20, i == 0 ? a : b);
    }
    assert_alike("after a prefill that was ended", storage, TOLERANCE, a, b);

    /* The same with a block without memories, which gives way to a larger one for a copy that is ended. */
    dart_state *far = make_state(model, storage, 0);
    go_on_by(far, ids, 1100, a);
    for (int i = 0; i < 2; i++) {
        for (int32_t s = 0; s < B; s++) must(dart_state_reset(both[i], s), "dart_state_reset");
        go_on_by(both[i], ids, 1, a);
    }
    const uint64_t before = model_memories_room(ended);
    asker none = {.most = 0};
    quiet = true;
    assert_int_equal(dart_state_copy_while(ended, &(uint32_t){1}, far, &(uint32_t){0}, 1, ask, &none), DART_CANCELLED);
    quiet = false;
    assert_int_equal(dart_state_position(ended, 1), 1);
    assert_true(model_memories_room(ended) > before);
    for (int i = 0; i < 2; i++) {
        for (uint32_t n = 0; n < storage->S; n++) go_on_by(both[i], ids, 1, i == 0 ? a : b);
        go_on_by(both[i], ids, 20, i == 0 ? a : b);
    }
    assert_alike("after a copy that was ended", storage, TOLERANCE, a, b);
    dart_state_destroy(&far);
    free(piece);
    free(ids);
    dart_state_destroy(&ended);
    dart_state_destroy(&plain);
    dart_model_destroy(&model);
}

/* Code for many memories is made without keeping room for them. */
static void warming_keeps_little(void **unused)
{
    (void)unused;
    dart_model *model = model_of(&narrow, NULL);
    dart_state *state = make_state(model, &storages[0], 0);
    must(dart_state_warm(state), "dart_state_warm");
    check_room(state);
    dart_state_destroy(&state);
    dart_model_destroy(&model);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grows_as_if_it_had_been_there),
        cmocka_unit_test(one_sequence_sees_all_of_them),
        cmocka_unit_test(grows_again),
        cmocka_unit_test(growing_survives_failures),
        cmocka_unit_test(steps_follow_the_block),
        cmocka_unit_test(warming_keeps_little),
    };
    return run_on_device(argc, argv, tests, COUNT_OF(tests));
}
