/* Batches on the host, made ready while the device may be at work. */
#include "trainer.h"

#include "base/base.h"
#include "dartlm/ops_backward.h"

#include <stdlib.h>
#include <string.h>

void trainer_batch_free(trainer_batch *batch)
{
    free(batch->parts);
    *batch = (trainer_batch){0};
}

static dart_status make_room(dart_trainer *trainer, trainer_batch *to, uint32_t count, const char *call)
{
    if (count <= to->room) return DART_OK;
    trainer_batch_free(to);
    to->parts = device_calloc(trainer->device, (size_t)count * trainer_part_at(trainer, TRAINER_PART_END), sizeof *to->parts);
    if (to->parts == NULL)
        return base_fail(&trainer->report, trainer_failure(trainer->device, DART_OUT_OF_MEMORY), "%s: no host memory for %llu tokens", call,
                         (unsigned long long)count * trainer->T);
    to->room = count;
    return DART_OK;
}

enum { COUNTED = 1 << 16 }; /* tokens that are counted in 32 bits */

/* Whether all ids and targets are among those that are allowed. Loops without a branch, which compilers make vectors of. */
static bool are_allowed(const dart_train_batch *batch, uint64_t tokens, uint32_t V, uint64_t *labels)
{
    uint32_t wrong = 0;
    *labels = 0;
    for (uint64_t first = 0; first < tokens; first += COUNTED) {
        const uint32_t count = (uint32_t)base_smaller(tokens - first, COUNTED);
        const int32_t *ids = batch->ids + first, *targets = batch->targets + first;
        uint32_t found = 0;
        for (uint32_t i = 0; i < count; i++) wrong |= (uint32_t)ids[i] >= V;
        for (uint32_t i = 0; i < count; i++) {
            wrong |= (uint32_t)targets[i] + 1 > V;
            found += targets[i] >= 0;
        }
        *labels += found;
    }
    return wrong == 0;
}

static dart_status check(dart_trainer *trainer, const dart_train_batch *batch, uint64_t tokens, uint64_t *labels, const char *call)
{
    const int64_t V = trainer->config.V;
    const bool allowed = are_allowed(batch, tokens, trainer->config.V, labels);
    for (uint64_t i = 0; i < tokens && !allowed; i++) {
        REQUIRE(&trainer->report, batch->ids[i] >= 0 && batch->ids[i] < V, "%s: id %d of token %llu, allowed are 0 to %lld", call, batch->ids[i],
                (unsigned long long)i, (long long)V - 1);
        REQUIRE(&trainer->report, batch->targets[i] >= -1 && batch->targets[i] < V, "%s: target %d of token %llu, allowed are -1 to %lld", call,
                batch->targets[i], (unsigned long long)i, (long long)V - 1);
    }
    REQUIRE(&trainer->report, *labels > 0 && *labels <= INT32_MAX, "%s: %llu targets", call, (unsigned long long)*labels);
    return DART_OK;
}

static dart_status check_sequences(dart_trainer *trainer, const int32_t *cu, uint32_t count, const char *call)
{
    const dart_trainer_options *o = &trainer->options;
    REQUIRE(&trainer->report, (cu != NULL) == (o->documents > 0), "%s: cu comes with the option documents, and only then", call);
    for (uint32_t i = 0; cu != NULL && i < count; i++) {
        const int32_t *own = cu + (size_t)i * (o->documents + (size_t)1);
        REQUIRE(&trainer->report, dart_cu_check(own, o->documents, o->L, trainer->T) == DART_OK && (uint32_t)own[o->documents] == trainer->T,
                "%s: cu of part %u must go from 0 to %u without falling, in steps of at most %u", call, i, trainer->T, o->L);
    }
    return DART_OK;
}

/* Whether rows may lie in the order of chunks. */
static bool has_chunks(const dart_trainer *trainer) { return trainer->sma && trainer->options.documents == 0; }

static trainer_spread spread_of(const dart_trainer *trainer, const int32_t *targets, uint32_t parts)
{
    const uint32_t L = trainer->options.L, S = has_chunks(trainer) ? trainer->config.S : L;
    trainer_spread s = {.first = UINT32_MAX};
    for (uint32_t i = 0; i < parts; i++) {
        uint32_t count = 0;
        for (uint32_t first = 0; first < trainer->T; first += L) {
            for (uint32_t begin = 0; begin < L; begin += S) {
                const uint32_t length = L - begin < S ? L - begin : S;
                uint32_t own = 0;
                for (uint32_t t = 0; t < length; t++) own += targets[t] >= 0;
                for (uint32_t t = 0; t < length && own > 0 && begin + t < s.first; t++)
                    if (targets[t] >= 0) s.first = begin + t;
                targets += length;
                count += own;
                if (own > s.chunk) s.chunk = own;
            }
        }
        if (count > s.part) s.part = count;
    }
    return s;
}

/* Numbers of rows and of chunks are multiples of an eighth of what they may be, so that batches alike use the same recordings. */
enum { STEPS = 8 };

/* A chunk before which no token has a target. */
static uint32_t first_chunk(const dart_trainer *trainer, const trainer_spread *s)
{
    const uint32_t S = trainer->config.S, by = (uint32_t)base_ceil_div(base_ceil_div(trainer->options.L, S), STEPS);
    return s->first / S / by * by;
}

/* Rows in the order of chunks. count 0: they do not pay. */
static trainer_rows rows_of_chunks(const dart_trainer *trainer, const trainer_spread *s, uint32_t most)
{
    const dart_model_config *c = &trainer->config;
    const uint32_t chunks = (uint32_t)base_ceil_div(trainer->options.L, c->S), first = first_chunk(trainer, s);
    const uint32_t of_chunk = (uint32_t)base_round_up(s->chunk, base_ceil_div(c->S, STEPS));
    const uint64_t count = (uint64_t)trainer->options.B * (chunks - first) * of_chunk;
    /* Gradients of queries and c have the place of those of what the gated norm makes. */
    const bool fit = count * (model_config_sma_conv(c) + (uint64_t)c->G * c->N) <= (uint64_t)trainer->T * model_config_inner(c);
    if (!fit || count % 64 != 0 || 2 * count > trainer->T || 4 * count > 5 * (uint64_t)most) return (trainer_rows){0};
    return (trainer_rows){.count = (uint32_t)count, .of_chunk = of_chunk, .first_chunk = first};
}

/* In steps, so that batches with about as many targets use the same recordings. Of nothing but the batch: sums over rows have an order by their
 * number. */
static trainer_rows choose_rows(const dart_trainer *trainer, const trainer_spread *s)
{
    const uint32_t unit = (uint32_t)base_round_up(base_ceil_div(trainer->T, 16), 64);
    const uint32_t most = (uint32_t)base_smaller(base_round_up(s->part, unit), trainer->T);
    const bool scans = !trainer->config.transformer && trainer->options.documents == 0;
    trainer_rows rows = has_chunks(trainer) ? rows_of_chunks(trainer, s, most) : (trainer_rows){0};
    if (rows.count == 0) rows.count = most;
    if (scans && trainer_few_rows(trainer, &rows)) rows.quiet = first_chunk(trainer, s) * trainer->config.S;
    return rows;
}

/* Gives each token with a target its row, in their order. */
static void fill_rows(const dart_trainer *trainer, const trainer_rows *rows, const int32_t *targets, int32_t *part)
{
    const uint32_t L = trainer->options.L, S = has_chunks(trainer) ? trainer->config.S : L, B = trainer->options.B;
    const uint32_t own = rows->count / B; /* rows of a sequence, where they lie in the order of chunks */
    int32_t *tokens = part + trainer_part_at(trainer, TRAINER_PLACES), *row_of = part + trainer_part_at(trainer, TRAINER_ROW_OF);
    int32_t *chosen = part + trainer_part_at(trainer, TRAINER_TARGETS), *seq = part + trainer_part_at(trainer, TRAINER_SEQ);
    uint32_t row = 0;
    memset(tokens, 0xff, trainer->T * sizeof *tokens); /* -1 */
    memset(chosen, 0xff, trainer->T * sizeof *chosen);
    for (uint32_t first = 0, t = 0; first < trainer->T; first += L) {
        for (uint32_t begin = 0; begin < L; begin += S) {
            const uint32_t end = first + (L - begin < S ? L : begin + S);
            if (rows->of_chunk > 0) row = first / L * own + (begin / S - rows->first_chunk) * rows->of_chunk;
            for (; t < end; t++) {
                /* Which tokens have a target is often not to be foreseen: without a branch. */
                const bool labelled = targets[t] >= 0;
                int32_t none[2], *to = labelled ? tokens + row : none, *to_chosen = labelled ? chosen + row : none + 1;
                *to = (int32_t)t;
                *to_chosen = targets[t];
                row_of[t] = labelled ? (int32_t)row : -1;
                row += labelled;
            }
        }
    }
    for (uint32_t b = 0; b < B; b++) {
        seq[2 * b] = (int32_t)(rows->first_chunk * rows->of_chunk);
        seq[2 * b + 1] = (int32_t)own;
    }
}

dart_status trainer_share_rows(dart_trainer *trainer, trainer_batch *batch, const trainer_spread *of_all, const char *call)
{
    const trainer_rows rows = choose_rows(trainer, of_all);
    if (trainer_same_rows(&rows, &batch->rows)) return DART_OK;
    int32_t *targets = device_calloc(trainer->device, trainer->T, sizeof *targets);
    if (targets == NULL) return trainer_take(trainer, DART_OUT_OF_MEMORY, call);
    for (uint32_t i = 0; i < batch->count; i++) {
        int32_t *part = batch->parts + i * trainer_part_at(trainer, TRAINER_PART_END);
        const int32_t *row_of = part + trainer_part_at(trainer, TRAINER_ROW_OF), *chosen = part + trainer_part_at(trainer, TRAINER_TARGETS);
        for (uint32_t t = 0; t < trainer->T; t++) targets[t] = row_of[t] < 0 ? -1 : chosen[row_of[t]];
        fill_rows(trainer, &rows, targets, part);
    }
    free(targets);
    batch->rows = rows;
    batch->ahead = 0;
    return DART_OK;
}

dart_status trainer_prepare(dart_trainer *trainer, trainer_batch *to, const dart_train_batch *batch, bool planned, const char *call)
{
    if (trainer->broken != DART_OK) return trainer->broken;
    REQUIRE(&trainer->report, batch != NULL && batch->ids != NULL && batch->targets != NULL, "%s: needs ids and targets", call);
    const uint32_t count = batch->count > 0 ? batch->count : 1;
    const uint64_t tokens = (uint64_t)count * trainer->T;
    dart_status status = make_room(trainer, to, count, call);
    to->count = 0;
    to->ahead = 0;
    if (status == DART_OK) status = check(trainer, batch, tokens, &to->labels, call);
    if (status == DART_OK) status = check_sequences(trainer, batch->cu, count, call);
    if (status != DART_OK) return status;
    to->spread = spread_of(trainer, batch->targets, count);
    to->rows = choose_rows(trainer, &to->spread);
    const uint64_t elements = trainer_part_at(trainer, TRAINER_PART_END), borders = trainer->options.documents + (uint64_t)1;
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t first = (uint64_t)i * trainer->T;
        int32_t *part = to->parts + i * elements;
        memcpy(part + trainer_part_at(trainer, TRAINER_IDS), batch->ids + first, trainer->T * sizeof *part);
        if (batch->cu != NULL) memcpy(part + trainer_part_at(trainer, TRAINER_CU), batch->cu + i * borders, borders * sizeof *part);
        fill_rows(trainer, &to->rows, batch->targets + first, part);
        if (!planned) continue;
        status = dart_embed_plan(batch->ids + first, trainer->T, trainer->config.V, part + trainer_part_at(trainer, TRAINER_PLAN));
        if (status != DART_OK) return base_fail(&trainer->report, status, "%s: no host memory to sort the ids", call);
    }
    to->count = count;
    return DART_OK;
}
