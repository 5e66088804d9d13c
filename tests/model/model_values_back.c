/* Sequences that go back, stop early, and do anything in any order: one of the files of model_values. */
#include "value_cases.h"

/* Which ids a sequence has consumed, which repetition_penalty asks for, goes back with it. */
void forgets_what_was_taken_back(void **unused)
{
    (void)unused;
    enum { PROMPT = 21, N = 12 };
    const dart_sampling penalty = {.repetition_penalty = 3};
    dart_model *model = model_of_kind(&kinds[0]);
    int32_t *ids = ids_of(1, model->config.V), plain[N], first[N], again[N], after[N];
    const dart_prefill_args prompt = {.ids = ids, .L = PROMPT, .sampling = &penalty};
    dart_state *state = state_of_kind(model, &kinds[0], 1);
    must(dart_prefill(state, &(dart_prefill_args){.ids = ids, .L = PROMPT, .sampling = &(dart_sampling){0}}), "dart_prefill");
    must(dart_generate(state, &(dart_generate_args){.n = N, .ids = plain}), "dart_generate");
    must(dart_state_reset(state, -1), "dart_state_reset");
    must(dart_prefill(state, &prompt), "dart_prefill");
    must(dart_state_mark(state, 0), "dart_state_mark");
    must(dart_generate(state, &(dart_generate_args){.n = N, .sampling = &penalty, .ids = first}), "dart_generate");
    assert_memory_not_equal(first, plain, sizeof first);
    must(dart_state_truncate(state, 0, PROMPT, NULL), "dart_state_truncate");
    must(dart_prefill(state, &(dart_prefill_args){.sampling = &penalty}), "dart_prefill");
    must(dart_generate(state, &(dart_generate_args){.n = N, .sampling = &penalty, .ids = again}), "dart_generate");
    assert_memory_equal(again, first, sizeof first);
    /* Without the mark, all tokens again. */
    must(dart_state_truncate(state, 0, PROMPT - 3, ids), "dart_state_truncate");
    must(dart_prefill(state, &(dart_prefill_args){.ids = ids + PROMPT - 3, .L = 3, .sampling = &penalty}), "dart_prefill");
    must(dart_generate(state, &(dart_generate_args){.n = N, .sampling = &penalty, .ids = after}), "dart_generate");
    assert_memory_equal(after, first, sizeof first);
    dart_state_destroy(&state);
    free(ids);
    dart_model_destroy(&model);
}

void returns_to_marks(void **unused)
{
    (void)unused;
    enum { B = 3 };
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        const kind *k = &kinds[i];
        dart_model *model = model_of_kind(k);
        const uint32_t V = model->config.V;
        const bool transformer = model->config.transformer;
        int32_t *ids = ids_of(MOST_B, V);
        float at_mark[B * 97], got[B * 97];
        run r = {.state = state_of_kind(model, k, B), .ids = ids};
        feed_counts(&r, (const uint32_t[]){16, 3, 0});
        must(dart_state_mark(r.state, 0), "dart_state_mark"); /* a chunk's border */
        last_logits(r.state, at_mark);
        steps(&r, 7, NULL);
        must(dart_state_mark(r.state, 0), "dart_state_mark"); /* none: 23, with windows open */
        steps(&r, 12, NULL);
        /* To a token between two marks: the last ids. */
        must(dart_state_truncate(r.state, 0, 21, ids), "dart_state_truncate");
        r.at[0] = 21;
        for (uint32_t b = 0; b < B; b++) check_sequence(&r, k, b, &ids[b * L], r.at[b]);
        steps(&r, 4, NULL);
        for (uint32_t b = 0; b < B; b++) check_sequence(&r, k, b, &ids[b * L], r.at[b]);
        /* To the mark itself: the same bits. */
        must(dart_state_truncate(r.state, 0, 16, transformer ? ids : NULL), "dart_state_truncate");
        r.at[0] = 16;
        last_logits(r.state, got);
        if (!transformer) assert_memory_equal(got, at_mark, V * sizeof *got);
        for (uint32_t b = 0; b < B; b++) check_sequence(&r, k, b, &ids[b * L], r.at[b]);
        quiet = true;
        assert_int_equal(dart_decode(r.state, &(dart_decode_args){.ids = NULL}), DART_INVALID_ARGUMENT);
        if (!transformer) assert_int_equal(dart_state_truncate(r.state, 0, 15, NULL), DART_INVALID_ARGUMENT);
        const int32_t bad[2] = {0, -1};
        assert_int_equal(dart_state_truncate(r.state, 1, 2, bad), DART_INVALID_ARGUMENT);
        quiet = false;
        /* Without a mark, from the beginning; and to nothing. */
        must(dart_state_truncate(r.state, 1, 11, ids + L), "dart_state_truncate");
        r.at[1] = 11;
        must(dart_state_truncate(r.state, 2, 0, NULL), "dart_state_truncate");
        r.at[2] = 0;
        for (uint32_t b = 0; b < B; b++) check_sequence(&r, k, b, &ids[b * L], r.at[b]);
        steps(&r, 9, NULL);
        for (uint32_t b = 0; b < B; b++) check_sequence(&r, k, b, &ids[b * L], r.at[b]);
        assert_true(transformer || dart_state_bytes(r.state, DART_STATE_MARKS) > 0);
        dart_state_destroy(&r.state);
        free(ids);
        dart_model_destroy(&model);
    }
}

typedef struct counted {
    uint32_t calls, most;
} counted;

static bool count_down(void *user, uint64_t done, uint64_t of)
{
    counted *c = user;
    assert_true(done <= of);
    return c->calls++ != c->most;
}

/* Going back, with all tokens again in submissions of a layer, ended after some of them: the sequence stands at a token between, and goes on. */
void stops_going_back(void **unused)
{
    (void)unused;
    enum { B = 2, TO = 27 };
    const kind *const some[] = {&kinds[0], &kinds[3], &kinds[7]};
    for (size_t i = 0; i < COUNT_OF(some); i++) {
        const kind *k = some[i];
        dart_model *model = model_of_kind(k);
        int32_t *ids = ids_of(MOST_B, model->config.V);
        bool done = false, stood_between = false;
        for (uint32_t most = 0; !done; most += 1 + most / 2) {
            run r = {.state = state_of_kind(model, k, B), .ids = ids};
            counted c = {.most = most};
            feed_counts(&r, (const uint32_t[]){30, 9});
            steps(&r, 2, NULL);
            r.state->slice_ns = 1;
            r.state->rows = 8; /* pieces of 8 tokens */
            quiet = true;
            const dart_status status = dart_state_truncate_while(r.state, 0, TO, ids, count_down, &c);
            quiet = false;
            done = status == DART_OK;
            if (!done) assert_int_equal(status, DART_CANCELLED);
            r.at[0] = (uint32_t)dart_state_position(r.state, 0);
            if (done) assert_int_equal(r.at[0], TO);
            stood_between = stood_between || (r.at[0] > 0 && r.at[0] < TO);
            for (uint32_t b = 0; b < B; b++) check_sequence(&r, k, b, &ids[b * L], r.at[b]);
            steps(&r, 3, NULL);
            for (uint32_t b = 0; b < B; b++) check_sequence(&r, k, b, &ids[b * L], r.at[b]);
            dart_state_destroy(&r.state);
        }
        assert_true(stood_between);
        free(ids);
        dart_model_destroy(&model);
    }
}

/* Copies in submissions of a part of a layer, ended after some of them: the sequence that was to come is empty, the others go on. */
void stops_copying(void **unused)
{
    (void)unused;
    enum { B = 3 };
    const kind *const some[] = {&kinds[0], &kinds[7], &kinds[11]};
    for (size_t i = 0; i < COUNT_OF(some); i++) {
        const kind *k = some[i];
        dart_model *model = model_of_kind(k);
        int32_t *ids = ids_of(MOST_B, model->config.V), *moved = ids_of(MOST_B, model->config.V);
        bool done = false, emptied = false;
        for (uint32_t most = 0; !done; most += 1 + most / 2) {
            run s = {.state = state_of_kind(model, k, B), .ids = ids}, t = {.state = state_of_kind(model, k, B), .ids = moved};
            counted c = {.most = most};
            begin(&s);
            begin(&t);
            t.state->slice_ns = 1;
            quiet = true;
            const dart_status status = dart_state_copy_while(t.state, (const uint32_t[]){1, 2}, s.state, (const uint32_t[]){0, 1}, 2, count_down, &c);
            quiet = false;
            done = status == DART_OK;
            if (!done) assert_int_equal(status, DART_CANCELLED);
            if (!done && most > 0) {
                emptied = true;
                t.at[1] = t.at[2] = 0;
            }
            if (done) {
                memcpy(&moved[1 * L], ids, 2 * L * sizeof *moved);
                t.at[1] = s.at[0];
                t.at[2] = s.at[1];
            }
            for (uint32_t b = 0; b < B; b++) check_sequence(&t, k, b, &moved[b * L], t.at[b]);
            for (uint32_t b = 0; b < B; b++) check_sequence(&s, k, b, &ids[b * L], s.at[b]);
            steps(&t, 5, NULL);
            for (uint32_t b = 0; b < B; b++) check_sequence(&t, k, b, &moved[b * L], t.at[b]);
            dart_state_destroy(&s.state);
            dart_state_destroy(&t.state);
        }
        assert_true(emptied);
        free(moved);
        free(ids);
        dart_model_destroy(&model);
    }
}

/* A clock for submissions that the test sets: how recordings are cut follows what earlier ones took, and so not what else the machine does. */
enum { SUBMISSION_NS = 100000 };
static dart_status take_as_long(void *of, void *stream, uint64_t *ns)
{
    (void)of, (void)stream;
    *ns = SUBMISSION_NS;
    return DART_OK;
}

/* A prefill's questions whether to go on, with where both sequences stand at each, added. The answer to question `most`, from 0, is no. */
enum { MOST_QUESTIONS = 1 << 15 };
typedef struct questions {
    const dart_state *state;
    uint32_t asked, most;
    int32_t stood[MOST_QUESTIONS], stands; /* stands: after the call */
} questions;

static bool answer(void *user)
{
    questions *q = user;
    assert_true(q->asked < MOST_QUESTIONS);
    q->stood[q->asked] = q->state->positions[0] + q->state->positions[1];
    return q->asked++ != q->most;
}

/* A stop can go wrong where a piece begins, of which what was whole before must stay, and where it ends, when most has to go back: of the questions
 * of each piece the first two, the middle one and the last. No question follows the part that notes a piece's tokens as seen. */
static bool is_stop(const questions *whole, uint32_t n)
{
    uint32_t first = n, end = n + 1;
    while (first > 0 && whole->stood[first - 1] == whole->stood[n]) first--;
    while (end < whole->asked && whole->stood[end] == whole->stood[n]) end++;
    return n <= first + 1 || n == first + (end - first) / 2 || n == end - 1;
}

/* 14 tokens, two pieces, for two sequences of 5 and 2, until the answer is no; then every sequence yields what its tokens so far do, and goes on. */
static dart_status prefill_until(dart_model *model, const kind *k, const int32_t *ids, questions *q)
{
    enum { B = 2, MORE = 14 };
    run r = {.state = state_of_kind(model, k, B), .ids = ids};
    int32_t rows[B * MORE];
    r.state->slice_ns = 3 * SUBMISSION_NS; /* some submissions a layer, as a processor is assumed to compute */
    feed_counts(&r, (const uint32_t[]){3, 0});
    steps(&r, 2, NULL);
    for (uint32_t b = 0; b < B; b++) memcpy(&rows[b * MORE], &ids[b * L + r.at[b]], MORE * sizeof *rows);
    q->state = r.state;
    q->asked = 0;
    quiet = true;
    const dart_status status =
        dart_prefill(r.state, &(dart_prefill_args){.ids = rows, .L = MORE, .go_on = answer, .user = q, .sampling = &(dart_sampling){0}});
    quiet = false;
    for (uint32_t b = 0; b < B; b++) {
        r.at[b] = (uint32_t)dart_state_position(r.state, b);
        check_sequence(&r, k, b, &ids[b * L], r.at[b]);
    }
    q->stands = (int32_t)(r.at[0] + r.at[1]);
    const uint32_t longest = r.at[0] > r.at[1] ? r.at[0] : r.at[1], room = L - longest;
    steps(&r, room < 3 ? room : 3, NULL);
    for (uint32_t b = 0; b < B; b++) check_sequence(&r, k, b, &ids[b * L], r.at[b]);
    dart_state_destroy(&r.state);
    return status;
}

/* Stopped between submissions, some a layer: every sequence stands behind a whole piece, and goes on. */
void stops_behind_a_piece(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        const kind *k = &kinds[i];
        dart_model *model = model_of_kind(k);
        const backend *const real = model->device->backend;
        backend clocked = *real;
        clocked.stream_elapsed = take_as_long;
        model->device->backend = &clocked;
        int32_t *ids = ids_of(MOST_B, model->config.V);
        static questions whole, q;
        whole.most = UINT32_MAX;
        must(prefill_until(model, k, ids, &whole), "dart_prefill");
        assert_true(whole.stood[whole.asked - 1] > whole.stood[0]); /* two pieces */
        for (uint32_t n = 0; n < whole.asked; n++) {
            if (!is_stop(&whole, n)) continue;
            q.most = n;
            assert_int_equal(prefill_until(model, k, ids, &q), DART_CANCELLED);
            assert_int_equal(q.asked, n + 1);
            assert_int_equal(q.stands, whole.stood[n]);
            assert_memory_equal(q.stood, whole.stood, q.asked * sizeof *q.stood);
        }
        model->device->backend = real;
        free(ids);
        dart_model_destroy(&model);
    }
}

/* A broken state of one sequence is mended by resetting sequence 0. */
void resetting_the_only_sequence_mends(void **unused)
{
    (void)unused;
    dart_model *model = model_of(&small, NULL);
    int32_t *ids = ids_of(1, small.V);
    run r = {.state = state_of(model, NULL), .ids = ids};
    feed_counts(&r, (const uint32_t[]){20});
    r.state->broken = DART_TIMEOUT;
    quiet = true;
    assert_int_equal(dart_state_save(r.state, -1, path), DART_TIMEOUT);
    assert_int_equal(dart_state_load(r.state, -1, path), DART_TIMEOUT);
    assert_int_equal(dart_state_truncate(r.state, 0, 0, NULL), DART_TIMEOUT);
    quiet = false;
    must(dart_state_reset(r.state, 0), "dart_state_reset");
    r.at[0] = 0;
    feed_counts(&r, (const uint32_t[]){12});
    check_sequence(&r, &kinds[0], 0, ids, 12);
    dart_state_destroy(&r.state);
    free(ids);
    dart_model_destroy(&model);
}

/* ---- Anything, in any order ---- */

static uint32_t random_state;
static uint32_t below(uint32_t limit)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % limit;
}

typedef struct history {
    int32_t ids[MOST_B][L];
    uint32_t count[MOST_B];
} history;

/* Two states and a file; every sequence is what its own history says. */
void keeps_histories(void **unused)
{
    (void)unused;
    enum { ROUNDS = 24, ACTIONS = 14 };
    for (uint32_t round = 0; round < ROUNDS; round++) {
        random_state = 977 + round;
        const kind *k = &kinds[below(COUNT_OF(kinds))];
        dart_model *model = model_of_kind(k);
        const uint32_t V = model->config.V;
        run r[2];
        history h[2], saved;
        bool has_file = false;
        uint32_t saved_B = 0;
        memset(h, 0, sizeof h);
        for (int i = 0; i < 2; i++) r[i] = (run){.state = state_of_kind(model, k, 1 + below(MOST_B))};
        for (uint32_t action = 0; action < ACTIONS; action++) {
            const uint32_t i = below(2), b = below(r[i].state->B), B = r[i].state->B;
            run *now = &r[i];
            history *own = &h[i];
            switch (below(8)) {
            case 0:
            case 1: { /* tokens at once */
                int32_t rows[MOST_B * L] = {0};
                uint32_t counts[MOST_B];
                for (uint32_t s = 0; s < B; s++) {
                    counts[s] = below(L - own->count[s] + 1);
                    if (below(2)) counts[s] /= 2;
                    for (uint32_t t = 0; t < counts[s]; t++) rows[s * L + t] = own->ids[s][own->count[s]++] = (int32_t)below(V);
                }
                must(dart_prefill(now->state, &(dart_prefill_args){.ids = rows, .L = L, .counts = counts}), "dart_prefill");
                break;
            }
            case 2: { /* steps */
                bool room = true;
                for (uint32_t s = 0; s < B; s++) room = room && own->count[s] + 5 < L;
                for (uint32_t t = 0; t < 5 && room; t++) {
                    int32_t ids[MOST_B];
                    for (uint32_t s = 0; s < B; s++) ids[s] = own->ids[s][own->count[s]++] = (int32_t)below(V);
                    must(dart_decode(now->state, &(dart_decode_args){.ids = ids}), "dart_decode");
                }
                break;
            }
            case 3: { /* a copy */
                const uint32_t from = below(2), from_b = below(r[from].state->B);
                must(dart_state_copy(now->state, b, r[from].state, from_b), "dart_state_copy");
                memmove(own->ids[b], h[from].ids[from_b], sizeof own->ids[b]);
                own->count[b] = h[from].count[from_b];
                break;
            }
            case 4: { /* out */
                const bool all = below(2) == 0;
                must(dart_state_save(now->state, all ? -1 : (int32_t)b, path), "dart_state_save");
                has_file = true;
                saved = *own;
                saved_B = all ? B : 1;
                if (!all) {
                    memcpy(saved.ids[0], own->ids[b], sizeof saved.ids[0]);
                    saved.count[0] = own->count[b];
                }
                break;
            }
            case 5: /* in */
                if (has_file && saved_B == B) {
                    must(dart_state_load(now->state, -1, path), "dart_state_load");
                    *own = saved;
                } else if (has_file && saved_B == 1) {
                    must(dart_state_load(now->state, (int32_t)b, path), "dart_state_load");
                    memcpy(own->ids[b], saved.ids[0], sizeof saved.ids[0]);
                    own->count[b] = saved.count[0];
                }
                break;
            case 6: must(dart_state_mark(now->state, b), "dart_state_mark"); break;
            default:
                own->count[b] = below(own->count[b] + 1);
                must(dart_state_truncate(now->state, b, own->count[b], own->ids[b]), "dart_state_truncate");
                break;
            }
        }
        for (int i = 0; i < 2; i++) {
            for (uint32_t b = 0; b < r[i].state->B; b++) check_sequence(&r[i], k, b, h[i].ids[b], h[i].count[b]);
            dart_state_destroy(&r[i].state);
        }
        dart_model_destroy(&model);
    }
    remove(path);
}
