/* Prefill: any number of tokens, in pieces that the workspace holds. */
#include "pieces.h"

#include "runtime/stream.h"

#include <string.h>

static const char CALL[] = "dart_prefill";

enum { HEAD_LAUNCHES = 4 }; /* of logits and of what is made of them, about */

/* ---- Checks ---- */

static dart_status check_ids(dart_state *state, const dart_prefill_args *a)
{
    const uint32_t V = state->model->config.V;
    const uint64_t row = a->ids_row != 0 ? a->ids_row : a->L;
    for (uint32_t b = 0; b < state->B; b++) {
        for (uint32_t t = 0; t < piece_count(a, b); t++) {
            const int32_t id = a->ids[b * row + t];
            REQUIRE(&state->report, id >= 0 && (uint32_t)id < V,
                    "%s: id %d of sequence %u, token %u, is not within 0 to %u", CALL, id, b, t, V - 1);
        }
    }
    return DART_OK;
}

static dart_status check(dart_state *state, const dart_prefill_args *a)
{
    base_report *report = &state->report;
    bool any = false;
    for (uint32_t b = 0; a->counts != NULL && b < state->B; b++)
        REQUIRE(report, a->counts[b] <= a->L, "%s: %u tokens of sequence %u exceed L %u", CALL, a->counts[b], b, a->L);
    for (uint32_t b = 0; b < state->B; b++) {
        const uint32_t count = piece_count(a, b);
        any = any || count > 0;
        REQUIRE(report, count <= (uint32_t)(INT32_MAX - state->positions[b]),
                "%s: sequence %u would grow beyond 2^31 - 1 tokens", CALL, b);
    }
    REQUIRE(report, !any || a->ids != NULL, "%s: ids are missing", CALL);
    REQUIRE(report, a->ids_row == 0 || a->ids_row >= a->L, "%s: rows of %u ids cannot lie %llu apart", CALL, a->L,
            (unsigned long long)a->ids_row);
    REQUIRE(report, (unsigned)a->want <= DART_LOGITS_ROWS, "%s: want %d is unknown", CALL, (int)a->want);
    const bool no_rows = a->want == DART_LOGITS_ROWS && a->rows_count == 0;
    REQUIRE(report, a->want == DART_LOGITS_NONE || a->logits != NULL || a->scores != NULL || no_rows, "%s: no place for the logits", CALL);
    REQUIRE(report, a->want != DART_LOGITS_NONE || a->scores == NULL, "%s: scores of no rows: `want` must name some", CALL);
    REQUIRE(report, a->want != DART_LOGITS_ROWS || a->rows != NULL || no_rows, "%s: rows are missing", CALL);
    for (size_t i = 0; a->want == DART_LOGITS_ROWS && i < a->rows_count; i++) {
        const uint64_t b = a->L > 0 ? a->rows[i] / a->L : state->B;
        REQUIRE(report, b < state->B && a->rows[i] % a->L < piece_count(a, (uint32_t)b),
                "%s: row %zu, %llu, is not a token of this call", CALL, i, (unsigned long long)a->rows[i]);
    }
    REQUIRE(report, a->next_ids == NULL || a->sampling != NULL, "%s: next_ids come with sampling", CALL);
    dart_status status = check_ids(state, a);
    if (status == DART_OK) status = model_check_scores(state, a->scores, a->want == DART_LOGITS_LAST && a->sampling != NULL, CALL);
    return status == DART_OK ? model_check_sampling(state, a->sampling, a->sampling_count, CALL) : status;
}

/* ---- Running ---- */

static dart_status upload(dart_state *state, const dart_prefill_args *a, const piece *p)
{
    const uint64_t row = a->ids_row != 0 ? a->ids_row : a->L;
    memset(state->host_ids, 0, (size_t)piece_rows(p) * sizeof *state->host_ids);
    for (uint32_t b = p->b; b < p->b + p->B; b++) {
        const uint32_t count = piece_part(a, p, b);
        state->host_cu[b - p->b + 1] = state->host_cu[b - p->b] + (int32_t)count; /* from host_cu[0], 0 */
        state->host_seq[2 * b] = state->positions[b];
        state->host_seq[2 * b + 1] = (int32_t)count;
        if (count > 0) memcpy(&state->host_ids[piece_row(state, p, b, p->t)], &a->ids[b * row + p->t], count * sizeof *a->ids);
        /* Where the sequence ends, if here: its row of the piece. A call that may be cancelled may end behind any piece. */
        const bool ends = count > 0 && (p->t + count == piece_count(a, b) || a->go_on != NULL);
        state->host_ends[b] = ends ? (int32_t)piece_row(state, p, b, p->t + count - 1) : -1;
    }
    state->seq_current = false;
    dart_status status = model_state_write(state, WORK_IDS, 0, state->host_ids, piece_rows(p), CALL);
    if (status == DART_OK && p->T > 0) status = model_state_write(state, WORK_CU, 0, state->host_cu, (uint64_t)p->B + 1, CALL);
    const int32_t *seq = &state->host_seq[2 * (size_t)p->b];
    if (status == DART_OK)
        status = model_state_write(state, WORK_SEQ, 2 * (uint64_t)p->b, seq, 2 * (uint64_t)p->B, CALL);
    return status == DART_OK ? model_state_write(state, WORK_ENDS, p->b, &state->host_ends[p->b], p->B, CALL) : status;
}

/* norm_f of the newest tokens of sequences that end in this piece, to their rows of WORK_LAST. */
static dart_status record_ends(dart_state *state, dart_stream *stream, const piece *p)
{
    dart_status status = DART_OK;
    for (uint32_t b = p->b; b < p->b + p->B && status == DART_OK; b++) {
        uint32_t n = 0;
        while (b + n < p->b + p->B && state->host_ends[b + n] >= 0) n++;
        if (n == 0) continue;
        dart_tensor rows = model_work_tensor(state, WORK_ENDS), y = model_work_tensor(state, WORK_LAST);
        rows.offset = b;
        y.offset = (uint64_t)b * state->model->config.W;
        status = model_record_norm(state, stream, n, &rows, &y);
        b += n;
    }
    return status;
}

/* ---- Slices of a piece: as many layers as a submission has time for ---- */

static void note_time(dart_state *state, const piece *p, uint32_t layers, uint64_t ns)
{
    state->layer_work_ns = (double)ns / (layers * model_piece_work(state, piece_rows(p), p->context));
    state->layer_context = p->context;
}

/* Whether times of such work were measured: those of another mix of work tell little. */
static bool is_known(const dart_state *state, const piece *p)
{
    return state->layer_work_ns > 0 && p->context <= 2 * state->layer_context + state->rows;
}

/* One slice runs while the next is recorded. The first ones are short so that the device starts early; recording a layer
 * takes a fifth of running it, or less (40 us to 200 us on an H200 with 2048 tokens). */
typedef struct slice {
    dart_stream *stream;
    uint32_t layers; /* under way; 0: none */
} slice;

static uint32_t slice_layers(const dart_state *state, const piece *p, uint32_t layer)
{
    const uint32_t layers = state->model->config.layers, left = layers - layer;
    const bool runs_aside = state->model->device->info.type != DART_DEVICE_CPU;
    uint32_t wanted = !runs_aside ? left : layer > 0 ? 3 * layer : layers / 12;
    if (state->slice_ns != UINT64_MAX && !is_known(state, p)) return 1;
    if (state->slice_ns != UINT64_MAX) {
        const double layer_ns = state->layer_work_ns * model_piece_work(state, piece_rows(p), p->context);
        const double most = DEVICE_SLICE_SHARE * (double)state->slice_ns / layer_ns;
        if (most < wanted) wanted = (uint32_t)most;
    }
    return wanted < 1 ? 1 : wanted > left ? left : wanted;
}

static dart_status end_slice(dart_state *state, const piece *p, slice *s)
{
    uint64_t ns = 0;
    if (s->layers == 0) return DART_OK;
    const dart_status status = model_state_wait(state, s->stream, &ns, CALL);
    if (status == DART_OK) note_time(state, p, s->layers, ns);
    s->layers = 0;
    return status;
}

/* Does the caller still want it? */
static dart_status ask(dart_state *state, const dart_prefill_args *a)
{
    if (a->go_on == NULL || a->go_on(a->user)) return DART_OK;
    return base_fail(&state->report, DART_CANCELLED, "%s: ended by go_on", CALL);
}

/* The same between the parts of a recording, up to the one that notes the tokens as seen. */
typedef struct part_asker {
    const dart_prefill_args *a;
    uint64_t last;
} part_asker;

static bool ask_between(void *user, uint64_t done, uint64_t of)
{
    const part_asker *asker = user;
    (void)of;
    return done > asker->last || asker->a->go_on(asker->a->user);
}

/* Runs a recording of layers, part by part where it has several: a layer then takes longer than a submission may. */
static dart_status run_layers(dart_state *state, const dart_prefill_args *a, dart_stream *stream, uint64_t last, uint64_t *ns)
{
    part_asker asker = {a, last};
    base_progress progress = {.go_on = a->go_on != NULL ? ask_between : NULL, .user = &asker};
    if (stream->parts.count == 1) return model_state_run(state, stream, 1, ns, CALL);
    return model_state_run_parts(state, stream, &progress, NULL, ns, NULL, CALL);
}

/* The logits wanted of a piece, gathered a workspace at a time. */
typedef struct gathering {
    dart_state *state;
    const dart_prefill_args *a;
    const piece *p;
    dart_stream *stream;
    uint32_t layers; /* of the piece's own recording, while it is open */
    uint32_t count;
    uint64_t seen; /* the part of it that notes the tokens as seen */
    bool open; /* the piece's own recording has not been submitted */
} gathering;

/* The launches that follow are those of the head for T rows. */
static void pace_head(const dart_state *state, dart_stream *stream, uint32_t T)
{
    const dart_model_config *c = &state->model->config;
    const double elements = (double)c->V * c->W, size = (double)dart_dtype_size(state->model->activations);
    stream_pace(stream, 2 * elements * T + model_bytes_work(state, elements * size), HEAD_LAUNCHES);
}

/* Computes what has been gathered, and the piece before it if that is still to do. */
static dart_status flush(gathering *g)
{
    dart_state *state = g->state;
    const uint32_t V = state->model->config.V;
    dart_status status = DART_OK;
    if (!g->open && g->count == 0) return DART_OK;
    if (g->count > 0) {
        const dart_tensor rows = model_work_tensor(state, WORK_ROWS), picked = model_work_tensor(state, WORK_PICKED);
        TRY(model_state_write(state, WORK_ROWS, 0, state->host_rows, g->count, CALL));
        if (!g->open) TRY(model_begin_layers(state, g->stream, is_known(state, g->p), CALL));
        pace_head(state, g->stream, g->count);
        model_record_norm(state, g->stream, g->count, &rows, &picked);
        status = model_record_head(state, g->stream, g->count, &picked);
        if (status == DART_OK && g->a->scores != NULL) status = model_record_scores(state, g->stream, g->a->scores, g->count, WORK_TARGETS);
        TRY(model_take_stream(state, g->stream, status, CALL));
        if (g->a->scores != NULL && g->a->scores->targets != NULL) {
            for (uint32_t i = 0; i < g->count; i++) state->host_rows[i] = g->a->scores->targets[state->host_places[i]];
            TRY(model_state_write(state, WORK_TARGETS, 0, state->host_rows, g->count, CALL));
        }
    }
    uint64_t ns = 0;
    if (g->open) TRY(run_layers(state, g->a, g->stream, g->seen, &ns));
    else TRY(model_state_run(state, g->stream, 1, NULL, CALL));
    if (g->open) note_time(state, g->p, g->layers, ns);
    g->open = false;
    for (uint32_t i = 0; i < g->count;) {
        uint32_t n = 1;
        while (i + n < g->count && state->host_places[i + n] == state->host_places[i] + n) n++;
        const uint64_t to = state->host_places[i];
        if (g->a->logits != NULL) TRY(model_state_read(state, WORK_LOGITS, (uint64_t)i * V, &g->a->logits[to * V], (uint64_t)n * V, CALL));
        if (g->a->scores != NULL) TRY(model_read_scores(state, g->a->scores, i, to, n, CALL));
        i += n;
    }
    g->count = 0;
    return DART_OK;
fail:
    return status;
}

static dart_status gather(gathering *g, uint32_t row, uint64_t place)
{
    g->state->host_rows[g->count] = (int32_t)row;
    g->state->host_places[g->count++] = place;
    return g->count == g->state->logits_rows ? flush(g) : DART_OK;
}

static dart_status gather_piece(gathering *g, const piece *p)
{
    const dart_prefill_args *a = g->a;
    dart_status status = DART_OK;
    if (a->want == DART_LOGITS_ALL)
        for (uint32_t i = 0; i < p->B; i++)
            for (uint32_t t = 0; t < piece_part(a, p, p->b + i); t++)
                TRY(gather(g, piece_row(g->state, p, p->b + i, p->t + t), (uint64_t)(p->b + i) * a->L + p->t + t));
    for (size_t i = 0; a->want == DART_LOGITS_ROWS && i < a->rows_count; i++) {
        const uint64_t b = a->rows[i] / a->L, t = a->rows[i] % a->L;
        if (b < p->b || b >= p->b + p->B || t < p->t || t >= (uint64_t)p->t + p->L) continue;
        TRY(gather(g, piece_row(g->state, p, (uint32_t)b, (uint32_t)t), i));
    }
    return flush(g);
fail:
    return status;
}

/* Logits of the newest tokens and the choice of the next ones. */
static dart_status record_choice(dart_state *state, dart_stream *stream, const dart_prefill_args *a)
{
    const dart_tensor last = model_work_tensor(state, WORK_LAST);
    pace_head(state, stream, state->B);
    const dart_status status = model_record_head(state, stream, state->B, &last);
    return status == DART_OK && a->sampling != NULL ? model_record_choice(state, stream, false) : status;
}

static bool has_choice(const dart_prefill_args *a) { return a->want == DART_LOGITS_LAST || a->sampling != NULL; }

/* Can the choice stand in the recording of this piece? The piece must be the last one and hold all sequences, whose seq
 * then says how long they are, and the logits must not be needed for other rows. */
static bool piece_chooses(const dart_state *state, const dart_prefill_args *a, const piece *p)
{
    const bool others = a->want == DART_LOGITS_ALL || a->want == DART_LOGITS_ROWS;
    return has_choice(a) && !others && p->B == state->B && p->last;
}

static dart_status record_slice(dart_state *state, const dart_prefill_args *a, const piece *p, const model_pass *pass,
                                dart_stream *stream, uint32_t layer, uint32_t end, uint64_t *seen)
{
    dart_status status = model_begin_layers(state, stream, is_known(state, p), CALL);
    if (status != DART_OK) return status;
    if (layer == 0) status = model_record_embedding(state, stream, pass, WORK_IDS);
    if (status == DART_OK) status = model_record_layers(state, stream, pass, layer, end);
    if (status == DART_OK && end == state->model->config.layers) {
        *seen = stream->parts.count - 1;
        status = model_record_seen(state, stream, pass); /* not before: a piece that is cancelled has not been seen */
        if (status == DART_OK) status = record_ends(state, stream, p);
        if (status == DART_OK && piece_chooses(state, a, p)) status = record_choice(state, stream, a);
    }
    return model_take_stream(state, stream, status, CALL);
}

/* Ends a call behind the last whole piece, and returns DART_CANCELLED. */
static dart_status back_out(dart_state *state, const piece *p, slice *slices)
{
    dart_status status = DART_OK;
    for (int i = 0; i < 2; i++) TRY(end_slice(state, p, &slices[i]));
    TRY(model_backup_return(state, CALL));
    state->chosen = false;
    state->broken = DART_OK;
    return DART_CANCELLED;
fail:
    return status;
}

static dart_status run_piece(dart_state *state, const dart_prefill_args *a, piece *p)
{
    for (uint32_t b = p->b; b < p->b + p->B; b++) p->context = base_larger(p->context, (uint64_t)state->positions[b] + piece_part(a, p, b));
    const uint32_t layers = state->model->config.layers;
    slice slices[2] = {{.stream = state->prefill}, {.stream = state->ahead}};
    slice *now = &slices[0], *before = &slices[1];
    dart_status status = DART_OK;
    if (a->go_on != NULL) TRY(model_backup_take(state, CALL));
    TRY(upload(state, a, p));
    const model_pass pass = {.b = p->b, .B = p->B, .L = p->L, .T = p->T, .context = p->context,
                             .span = model_span_of(state, p->b, p->B, state->host_seq, false)};
    for (uint32_t layer = 0, end; layer < layers; layer = end) {
        TRY(end_slice(state, p, now));
        end = layer + slice_layers(state, p, layer);
        if (state->broken != DART_OK) TRY(ask(state, a)); /* not before the first submission of the call */
        uint64_t seen = UINT64_MAX, ns = 0;
        TRY(record_slice(state, a, p, &pass, now->stream, layer, end, &seen));
        /* From here on sequences advance. */
        state->broken = DART_INTERNAL;
        if (end == layers) {
            gathering g = {.state = state, .a = a, .p = p, .stream = now->stream, .layers = end - layer, .seen = seen, .open = true};
            state->chosen = state->chosen && !(a->sampling != NULL && piece_chooses(state, a, p));
            TRY(gather_piece(&g, p));
        } else if (now->stream->parts.count > 1) {
            TRY(end_slice(state, p, before));
            TRY(run_layers(state, a, now->stream, seen, &ns));
            note_time(state, p, end - layer, ns);
        } else {
            TRY(model_take_stream(state, now->stream, dart_stream_submit(now->stream), CALL));
            now->layers = end - layer;
        }
        slice *const other = before;
        before = now;
        now = other;
    }
    TRY(end_slice(state, p, now));
    state->judged = false;
    for (uint32_t b = p->b; b < p->b + p->B; b++) {
        const uint32_t count = piece_part(a, p, b);
        state->positions[b] += (int32_t)count;
        if (count > 0) state->queries_at[b] = -1;
        if (count > 0) state->ended[b] = false;
    }
    return DART_OK;
fail:
    return status == DART_CANCELLED ? back_out(state, p, slices) : status;
}

/* ---- Pieces, one after another ---- */

/* Rows of one length: from the first sequence that has tokens, of those from b to before end, to the last one. */
static dart_status run_padded(dart_state *state, const dart_prefill_args *a, uint32_t b, uint32_t end, bool *chosen)
{
    uint32_t first = end, last = b, longest = 0;
    uint64_t position = 0;
    for (uint32_t i = b; i < end; i++) {
        const uint32_t count = piece_count(a, i);
        if (count == 0) continue;
        if (first == end) first = i;
        last = i;
        if (count > longest) longest = count;
        position = base_larger(position, (uint64_t)state->positions[i]);
    }
    if (longest == 0) return DART_OK;
    first -= first % state->step;
    piece p = {.b = first, .B = last - first + 1};
    for (; p.t < longest; p.t += p.L) {
        p.L = piece_length(state, p.B, longest - p.t, position + p.t);
        p.last = p.t + p.L == longest;
        const dart_status status = run_piece(state, a, &p);
        if (status != DART_OK) return status;
        *chosen = piece_chooses(state, a, &p);
    }
    return DART_OK;
}

/* Parts of the batch one after another. */
static dart_status run_pieces(dart_state *state, const dart_prefill_args *a, bool *chosen)
{
    const uint32_t size = a->L > 0 ? piece_sequences(state, a->L) : state->B;
    dart_status status = DART_OK;
    for (uint32_t b = 0, end; b < state->B && status == DART_OK; b = end) {
        piece p;
        if (piece_pack(state, a, b, &p)) {
            end = b + p.B;
            status = model_raw_reserve(state, p.T, p.B, CALL);
            if (status == DART_OK) status = run_piece(state, a, &p);
            *chosen = piece_chooses(state, a, &p);
        } else {
            end = state->B - b < size ? state->B : b + size;
            status = run_padded(state, a, b, end, chosen);
        }
    }
    return status;
}

/* The choice, where no piece has made it, and what the caller wants of it. */
static dart_status finish(dart_state *state, const dart_prefill_args *a, bool chosen)
{
    const uint64_t V = state->model->config.V;
    dart_stream *stream = state->prefill;
    dart_status status = DART_OK;
    if (!has_choice(a)) return DART_OK;
    if (!chosen) {
        for (uint32_t b = 0; b < state->B; b++) {
            state->host_seq[2 * b] = state->positions[b];
            state->host_seq[2 * b + 1] = 0;
        }
        state->seq_current = false;
        state->chosen = state->chosen && a->sampling == NULL;
        TRY(model_state_write(state, WORK_SEQ, 0, state->host_seq, 2 * (uint64_t)state->B, CALL));
        TRY(model_begin_layers(state, stream, state->layer_work_ns > 0, CALL));
        TRY(model_take_stream(state, stream, record_choice(state, stream, a), CALL));
        TRY(model_state_run(state, stream, 1, NULL, CALL));
    }
    if (a->want == DART_LOGITS_LAST && a->logits != NULL) TRY(model_state_read(state, WORK_LOGITS, 0, a->logits, state->B * V, CALL));
    if (a->want == DART_LOGITS_LAST && a->scores != NULL) {
        TRY(model_run_scores(state, a->scores, CALL));
        TRY(model_read_scores(state, a->scores, 0, 0, state->B, CALL));
    }
    if (a->next_ids != NULL) TRY(model_state_read(state, WORK_NEXT, 0, a->next_ids, state->B, CALL));
    state->chosen = state->chosen || a->sampling != NULL;
    if (a->sampling != NULL) {
        state->judged = false;
        TRY(model_judge(state, CALL));
    }
    return DART_OK;
fail:
    return status;
}

dart_status dart_prefill(dart_state *state, const dart_prefill_args *args)
{
    if (state == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&state->report, args != NULL, "%s: no arguments", CALL);
    dart_status status = model_state_usable(state, CALL);
    if (status == DART_OK) status = check(state, args);
    if (status != DART_OK) return status;
    uint64_t longest = 0;
    for (uint32_t b = 0; b < state->B; b++) longest = base_larger(longest, (uint64_t)state->positions[b] + piece_count(args, b));
    status = model_memories_reserve(state, state->sma ? longest / state->S : 0, CALL);
    if (status == DART_OK) status = model_cache_reserve(state, longest, CALL);
    if (status == DART_OK) status = model_windows_close(state, CALL);
    if (status == DART_OK && args->sampling != NULL) status = model_use_sampling(state, args->sampling, args->sampling_count, CALL);
    bool chosen = false;
    if (status == DART_OK) status = run_pieces(state, args, &chosen);
    if (status == DART_OK) status = finish(state, args, chosen);
    if (state->broken != DART_OK) state->broken = status;
    return status;
}
