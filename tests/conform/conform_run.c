/* Cases on the targets that they concern: some cases at a time, whose runs threads take one by one, printed in the order of the table. */
#include "conform_suite.h"

#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 64 };

/* A case with a seed, and its runs, neighbours in the batch. */
typedef struct entry {
    conform_case c;
    char name[160];
    uint64_t seed;
    uint32_t first, count;
    uint32_t left; /* of its runs; under the batch's lock */
} entry;

typedef struct run {
    uint32_t entry, target;
    double work;
    conform_outcome outcome;
} run;

typedef struct batch {
    suite *s;
    tally *tallies;
    uint32_t jobs;
    entry entries[BATCH];
    uint32_t entries_count, printed;
    run *runs;
    uint32_t runs_count, room;
    run **order; /* the longest first */
    atomic_uint next;
    base_mutex lock; /* of what is printed and counted */
} batch;

/* ---- What came out ---- */

/* The device's own results against those of the first device: within the sum of both tolerances. */
static void compare_devices(conform_outcome *o, const conform_outcome *first)
{
    for (uint32_t i = 0; i < o->results_count && i < first->results_count; i++) {
        conform_result *r = &o->results[i];
        const conform_result *f = &first->results[i];
        if (r->values == NULL || f->values == NULL || r->values_count != f->values_count) continue;
        double error2 = 0;
        for (uint64_t k = 0; k < r->values_count; k++) {
            if (!isfinite(f->values[k]) || !isfinite(r->values[k])) continue;
            error2 += (r->values[k] - f->values[k]) * (r->values[k] - f->values[k]);
        }
        r->against_first = r->size > 0 ? sqrt(error2) / r->size : 0;
        if (r->against_first > r->tolerance + f->tolerance + 2 * r->slack / fmax(r->size, DBL_MIN)) {
            r->broken = true;
            snprintf(r->note, sizeof r->note, "%.2e from the first device", r->against_first);
            o->passed = false;
        }
    }
}

static void note(tally *t, const char *name, const conform_outcome *o)
{
    t->cases++;
    if (!o->ran) {
        t->not_run++;
        return;
    }
    t->failed += !o->passed;
    for (uint32_t i = 0; i < o->results_count; i++) {
        if (o->results[i].against_first > t->against_first) t->against_first = o->results[i].against_first;
        if (!(o->results[i].share > t->share)) continue;
        t->share = o->results[i].share;
        t->row = o->results[i].worst_row;
        snprintf(t->tensor, sizeof t->tensor, "%s", o->results[i].tensor);
        snprintf(t->worst, sizeof t->worst, "%s", name);
    }
}

/* The tensors of a case that failed. */
static void dump_case(suite *s, const target *t, const entry *e, conform_outcome *outcome)
{
    if (s->options->dump == NULL || outcome->passed || !outcome->ran || s->dumped == MOST_DUMPS) return;
    char *const path = outcome->dumped;
    const int begin = snprintf(path, sizeof outcome->dumped, "%s/", s->options->dump);
    snprintf(path + begin, sizeof outcome->dumped - (size_t)begin, "%03u %s %s %s.safetensors", ++s->dumped, dart_backend_name(t->info.backend),
             t->variant[0] != '\0' ? t->variant : "default", e->name);
    for (char *at = path + begin; *at != '\0'; at++)
        if (*at == ' ') *at = '_';
    if (!conform_dump_case(t, &e->c, e->seed + 1, path))
        snprintf(path, sizeof outcome->dumped, "no file: %.200s cannot be written to", s->options->dump);
}

/* Prints, counts and releases what the runs of a case gave. */
static void print_entry(batch *b, const entry *e)
{
    suite *s = b->s;
    const conform_outcome *first = NULL;
    s->seed = e->seed;
    for (uint32_t i = e->first; i < e->first + e->count; i++) {
        const target *t = &s->targets[b->runs[i].target];
        conform_outcome *outcome = &b->runs[i].outcome;
        if (first != NULL) compare_devices(outcome, first);
        else if (outcome->ran) first = outcome;
        note(&b->tallies[b->runs[i].target], e->name, outcome);
        conform_note_rows(s, t, outcome);
        dump_case(s, t, e, outcome);
        if (!outcome->ran) s->not_run++;
        else if (outcome->passed) s->passed++;
        else s->failed++;
        conform_print_outcome(s, t, e->name, outcome);
    }
    for (uint32_t i = e->first; i < e->first + e->count; i++) conform_release(&b->runs[i].outcome);
}

/* ---- Runs ---- */

static bool is_stopped(suite *s)
{
    s->stopped = s->stopped || (s->options->go_on != NULL && !s->options->go_on(s->options->go_on_user));
    return s->stopped;
}

/* A batch of several cases breaks off between two runs; cases that are not whole then are not printed. */
static run *take(batch *b)
{
    const uint32_t i = atomic_fetch_add(&b->next, 1);
    if (i >= b->runs_count) return NULL;
    base_lock(&b->lock);
    const bool breaks = b->entries_count > 1 && is_stopped(b->s);
    const conform_options *options = b->s->options;
    if (!breaks && options->progress != NULL) options->progress(options->progress_user, b->entries[b->order[i]->entry].name);
    base_unlock(&b->lock);
    return breaks ? NULL : b->order[i];
}

static void work(void *argument)
{
    batch *b = argument;
    for (run *r = take(b); r != NULL; r = take(b)) {
        entry *e = &b->entries[r->entry];
        conform_run_target(&b->s->targets[r->target], &e->c, e->seed + 1, &r->outcome);
        base_lock(&b->lock);
        e->left--;
        for (; b->printed < b->entries_count && b->entries[b->printed].left == 0; b->printed++) print_entry(b, &b->entries[b->printed]);
        base_unlock(&b->lock);
    }
}

static int longer_first(const void *a, const void *b)
{
    const run *x = *(run *const *)a, *y = *(run *const *)b;
    if (x->work != y->work) return x->work > y->work ? -1 : 1;
    return x < y ? -1 : x > y;
}

static void run_batch(batch *b)
{
    base_thread threads[MAX_JOBS];
    uint32_t started = 0;
    b->order = calloc(b->runs_count + 1, sizeof(run *));
    if (b->order == NULL) abort();
    for (uint32_t i = 0; i < b->runs_count; i++) b->order[i] = &b->runs[i];
    if (b->jobs > 1) qsort(b->order, b->runs_count, sizeof(run *), longer_first);
    atomic_init(&b->next, 0);
    b->printed = 0;
    while (started + 1 < b->jobs && base_thread_start(&threads[started], work, b) == DART_OK) started++;
    work(b);
    while (started > 0) base_thread_join(&threads[--started]);
    for (uint32_t i = b->printed; i < b->entries_count; i++)
        for (uint32_t k = 0; k < b->entries[i].count; k++) conform_release(&b->runs[b->entries[i].first + k].outcome);
    free(b->order);
    b->entries_count = b->runs_count = 0;
}

static void add_run(batch *b, uint32_t of, uint32_t on, double work_of_case)
{
    if (b->runs_count == b->room) {
        b->room = 2 * b->room + 64;
        b->runs = realloc(b->runs, b->room * sizeof *b->runs);
        if (b->runs == NULL) abort();
    }
    run *r = &b->runs[b->runs_count++];
    memset(r, 0, sizeof *r);
    r->entry = of;
    r->target = on;
    r->work = work_of_case;
}

static void add_entry(batch *b, const conform_case *c, uint32_t number, uint64_t seed)
{
    const suite *s = b->s;
    const uint32_t at = b->entries_count;
    entry *e = &b->entries[at];
    const double sizes[] = {c->B, c->L, c->H, c->N, c->P};
    double work = 1;
    for (size_t i = 0; i < COUNT_OF(sizes); i++) work *= sizes[i] > 0 ? sizes[i] : 1;
    *e = (entry){.c = *c, .seed = seed, .first = b->runs_count};
    conform_name(c, e->name, sizeof e->name);
    for (uint32_t i = 0; i < s->targets_count; i++)
        if (conform_concerns(&s->targets[i], c) && (s->drawn == NULL || s->drawn[number][i])) add_run(b, at, i, work);
    e->left = e->count = b->runs_count - e->first;
    b->entries_count += e->count > 0;
}

/* Processors that are devices themselves take all cores for one case. */
static uint32_t jobs_of(const suite *s)
{
    uint32_t jobs = s->options->jobs != 0 ? s->options->jobs : base_core_count();
    for (uint32_t i = 0; i < s->targets_count && s->options->jobs == 0; i++)
        if (s->targets[i].info.type == DART_DEVICE_CPU) jobs = 1;
    return jobs < MAX_JOBS ? jobs : MAX_JOBS;
}

void conform_run_cases(suite *s, tally *tallies)
{
    batch *b = calloc(1, sizeof *b);
    if (b == NULL || base_mutex_init(&b->lock) != DART_OK) abort();
    b->s = s;
    b->tallies = tallies;
    b->jobs = jobs_of(s);
    const uint32_t most = b->jobs > 1 ? BATCH : 1;
    for (uint32_t i = 0; i < conform_cases_count() && !s->stopped; i++) {
        conform_case c;
        if (!conform_case_of(s, i, &c)) continue;
        for (uint32_t k = 0; (k == 0 || k < s->options->seeds) && !is_stopped(s); k++) {
            add_entry(b, &c, i, s->options->seed + k);
            if (b->entries_count == most) run_batch(b);
        }
    }
    if (!s->stopped) run_batch(b);
    base_mutex_destroy(&b->lock);
    free(b->runs);
    free(b);
}
