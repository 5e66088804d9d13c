/* Cases on the targets that they concern: runs that threads take one by one, printed in the order of the table. */
#include "conform_suite.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Cases in a row whose runs threads take the longest first: with more, what is printed waits longer for the first of them. */
enum { MIXED = 64, SEEDS = 16 }; /* SEEDS: whose cases are listed together */

/* A case with a seed, and its runs, neighbours among all. */
typedef struct entry {
    conform_case c;
    uint64_t seed;
    uint32_t first, count;
    uint32_t left; /* of its runs; under the lock */
} entry;

typedef struct run {
    uint32_t entry, target;
    double work;
    conform_outcome *outcome; /* from the time that a thread takes it until it is printed */
} run;

typedef struct line {
    suite *s;
    tally *tallies;
    uint32_t jobs;
    entry *entries;
    run *runs;
    uint32_t entries_count, runs_count, room;
    uint32_t *order;
    uint32_t next, printed; /* of `order`; of the entries */
    base_mutex lock;        /* of these, and of what is printed and counted */
} line;

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
static void dump_case(suite *s, const target *t, const entry *e, const char *name, conform_outcome *outcome)
{
    if (s->options->dump == NULL || outcome->passed || !outcome->ran || s->dumped == MOST_DUMPS) return;
    char *const path = outcome->dumped;
    const int begin = snprintf(path, sizeof outcome->dumped, "%s/", s->options->dump);
    snprintf(path + begin, sizeof outcome->dumped - (size_t)begin, "%03u %s %s %s.safetensors", ++s->dumped, dart_backend_name(t->info.backend),
             t->variant[0] != '\0' ? t->variant : "default", name);
    for (char *at = path + begin; *at != '\0'; at++)
        if (*at == ' ') *at = '_';
    if (!conform_dump_case(t, &e->c, e->seed + 1, path))
        snprintf(path, sizeof outcome->dumped, "no file: %.200s cannot be written to", s->options->dump);
}

/* Prints and counts what the runs of a case gave, as far as they ran. */
static void print_entry(const line *l, const entry *e)
{
    suite *s = l->s;
    const conform_outcome *first = NULL;
    char name[160];
    conform_name(&e->c, name, sizeof name);
    s->seed = e->seed;
    for (uint32_t i = e->first; i < e->first + e->count; i++) {
        const target *t = &s->targets[l->runs[i].target];
        conform_outcome *outcome = l->runs[i].outcome;
        if (outcome == NULL) continue; /* stopped before it */
        if (first != NULL) compare_devices(outcome, first);
        else if (outcome->ran) first = outcome;
        note(&l->tallies[l->runs[i].target], name, outcome);
        conform_note_rows(s, t, outcome);
        dump_case(s, t, e, name, outcome);
        if (!outcome->ran) s->not_run++;
        else if (outcome->passed) s->passed++;
        else s->failed++;
        conform_print_outcome(s, t, name, outcome);
    }
}

static void release(run *r)
{
    if (r->outcome != NULL) conform_release(r->outcome);
    free(r->outcome);
    r->outcome = NULL;
}

/* ---- Runs ---- */

/* The next run, NULL where none is left or the caller wants to end. One thread ends a case that it has begun; of several, each its run. */
static run *take(line *l)
{
    suite *s = l->s;
    run *r = NULL;
    base_lock(&l->lock);
    if (l->next < l->runs_count) {
        r = &l->runs[l->order[l->next]];
        const entry *e = &l->entries[r->entry];
        if (l->jobs > 1 || e->left == e->count) s->stopped = s->stopped || (s->options->go_on != NULL && !s->options->go_on(s->options->go_on_user));
        if (s->stopped) r = NULL;
    }
    if (r != NULL) {
        char name[160];
        l->next++;
        r->outcome = calloc(1, sizeof *r->outcome);
        if (r->outcome == NULL) abort();
        conform_name(&l->entries[r->entry].c, name, sizeof name);
        if (s->options->progress != NULL) s->options->progress(s->options->progress_user, name);
    }
    base_unlock(&l->lock);
    return r;
}

static void work(void *argument)
{
    line *l = argument;
    for (run *r = take(l); r != NULL; r = take(l)) {
        entry *e = &l->entries[r->entry];
        conform_run_target(&l->s->targets[r->target], &e->c, e->seed + 1, r->outcome);
        base_lock(&l->lock);
        e->left--;
        for (; l->printed < l->entries_count && l->entries[l->printed].left == 0; l->printed++) {
            const entry *whole = &l->entries[l->printed];
            print_entry(l, whole);
            for (uint32_t i = 0; i < whole->count; i++) release(&l->runs[whole->first + i]);
        }
        base_unlock(&l->lock);
    }
}

static void add_entry(line *l, const conform_case *c, uint32_t number, uint64_t seed)
{
    const suite *s = l->s;
    const double sizes[] = {c->B, c->L, c->H, c->N, c->P};
    double all = 1;
    for (size_t i = 0; i < COUNT_OF(sizes); i++) all *= sizes[i] > 0 ? sizes[i] : 1;
    entry *e = &l->entries[l->entries_count];
    *e = (entry){.c = *c, .seed = seed, .first = l->runs_count};
    for (uint32_t i = 0; i < s->targets_count; i++) {
        if (!conform_concerns(&s->targets[i], c) || (s->drawn != NULL && !s->drawn[number][i])) continue;
        if (l->runs_count == l->room) {
            l->room = 2 * l->room + 1024;
            l->runs = realloc(l->runs, l->room * sizeof *l->runs);
            if (l->runs == NULL) abort();
        }
        l->runs[l->runs_count++] = (run){.entry = l->entries_count, .target = i, .work = all};
    }
    e->left = e->count = l->runs_count - e->first;
    l->entries_count += e->count > 0;
}

static const run *sorted; /* by longer_first, as qsort passes nothing on */
static int longer_first(const void *a, const void *b)
{
    const uint32_t i = *(const uint32_t *)a, k = *(const uint32_t *)b;
    if (sorted[i].work != sorted[k].work) return sorted[i].work > sorted[k].work ? -1 : 1;
    return i < k ? -1 : i > k;
}

static void put_in_order(line *l)
{
    l->order = calloc(l->runs_count + (size_t)1, sizeof *l->order);
    if (l->order == NULL) abort();
    for (uint32_t i = 0; i < l->runs_count; i++) l->order[i] = i;
    sorted = l->runs;
    for (uint32_t i = 0; i < l->entries_count && l->jobs > 1; i += MIXED) {
        const uint32_t last = i + MIXED < l->entries_count ? i + MIXED - 1 : l->entries_count - 1, first = l->entries[i].first;
        qsort(&l->order[first], l->entries[last].first + l->entries[last].count - first, sizeof *l->order, longer_first);
    }
}

/* Processors that are devices themselves take all cores for one case. */
static uint32_t jobs_of(const suite *s)
{
    uint32_t jobs = s->options->jobs != 0 ? s->options->jobs : base_core_count();
    for (uint32_t i = 0; i < s->targets_count && s->options->jobs == 0; i++)
        if (s->targets[i].info.type == DART_DEVICE_CPU) jobs = 1;
    return jobs < MAX_JOBS ? jobs : MAX_JOBS;
}

/* All cases with `count` seeds from `seed` on, one seed after the other. */
static void run_seeds(suite *s, tally *tallies, uint64_t seed, uint32_t count)
{
    line l = {.s = s, .tallies = tallies, .jobs = jobs_of(s), .entries = calloc((size_t)conform_cases_count() * count, sizeof *l.entries)};
    if (l.entries == NULL || base_mutex_init(&l.lock) != DART_OK) abort();
    for (uint32_t i = 0; i < count * conform_cases_count(); i++) {
        const uint32_t number = i % conform_cases_count();
        conform_case c;
        if (conform_case_of(s, number, &c)) add_entry(&l, &c, number, seed + i / conform_cases_count());
    }
    put_in_order(&l);
    base_thread threads[MAX_JOBS];
    uint32_t started = 0;
    while (started + 1 < l.jobs && base_thread_start(&threads[started], work, &l) == DART_OK) started++;
    work(&l);
    while (started > 0) base_thread_join(&threads[--started]);
    /* Where it was stopped, what ended behind a run that did not begin. */
    for (; l.printed < l.entries_count; l.printed++) print_entry(&l, &l.entries[l.printed]);
    for (uint32_t i = 0; i < l.runs_count; i++) release(&l.runs[i]);
    base_mutex_destroy(&l.lock);
    free(l.order);
    free(l.runs);
    free(l.entries);
}

void conform_run_cases(suite *s, tally *tallies)
{
    const uint32_t seeds = s->options->seeds > 0 ? s->options->seeds : 1;
    const uint32_t together = s->options->draw ? 1 : SEEDS; /* each seed has a draw of its own */
    for (uint32_t k = 0; k < seeds && !s->stopped; k += together) {
        if (s->options->draw) conform_draw(s, s->options->draw_seed + k);
        run_seeds(s, tallies, s->options->seed + k, seeds - k < together ? seeds - k : together);
    }
}
