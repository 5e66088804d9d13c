/* Cases on the targets that they concern: threads take one case after another with all its runs, and at the end of the list runs of cases that others
 * have begun. What comes out is printed in the order of the table. */
#include "conform_suite.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Cases in a row of which threads take the longest first: with more, what is printed waits longer for the first of them. */
enum { MIXED = 64, SEEDS = 8 }; /* SEEDS: whose cases are listed together */

/* A case with a seed, and its runs, neighbours among all. */
typedef struct entry {
    conform_case c;
    uint64_t seed;
    double work; /* of all runs */
    uint32_t first, count;
    /* Under the lock. */
    uint32_t begun, left; /* of its runs */
    uint32_t threads;     /* that have it */
    bool whole;           /* all runs have ended, and the devices have been compared */
} entry;

typedef struct run {
    uint32_t target;
    conform_outcome *outcome; /* from the time that a thread takes it until it is printed */
} run;

typedef struct line {
    suite *s;
    tally *tallies;
    uint32_t jobs;
    bool apart; /* threads have devices of their own */
    uint64_t seed;
    conform_numbers *numbers[SEEDS]; /* of the seeds from that one on */
    entry *entries;
    run *runs;
    uint32_t entries_count, runs_count, room;
    uint32_t *order;        /* of the entries */
    uint32_t next, printed; /* the first of `order` that has runs to begin; of the entries */
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

/* Each device's results against those of the first one that has any. */
static void compare_entry(const line *l, const entry *e)
{
    const conform_outcome *first = NULL;
    for (uint32_t i = e->first; i < e->first + e->count; i++) {
        conform_outcome *outcome = l->runs[i].outcome;
        if (outcome == NULL) continue; /* stopped before it */
        if (first != NULL) compare_devices(outcome, first);
        else if (outcome->ran) first = outcome;
    }
}

/* Prints and counts what the runs of a case gave, as far as they ran. */
static void print_entry(const line *l, const entry *e)
{
    suite *s = l->s;
    char name[160];
    conform_name(&e->c, name, sizeof name);
    s->seed = e->seed;
    for (uint32_t i = e->first; i < e->first + e->count; i++) {
        const target *t = &s->targets[l->runs[i].target];
        conform_outcome *outcome = l->runs[i].outcome;
        if (outcome == NULL) continue;
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

/* What a thread is at. */
typedef struct worker {
    line *l;
    uint32_t number; /* among threads, from 0 on */
    entry *e;
    uint32_t device; /* by number: whose runs it takes */
    run *at;         /* which has begun */
} worker;

/* The first run of the case that has not begun, NULL where all have. device: of that one only; MAX_DEVICES: of any. */
static run *waiting(const line *l, const entry *e, uint32_t device)
{
    for (uint32_t i = e->first; i < e->first + e->count && e->begun < e->count; i++) {
        run *r = &l->runs[i];
        if (r->outcome == NULL && (device == MAX_DEVICES || l->s->targets[r->target].number == device)) return r;
    }
    return NULL;
}

/* Prints what has become whole, in the order of the table. */
static void print_whole(line *l)
{
    for (; l->printed < l->entries_count && l->entries[l->printed].whole; l->printed++) {
        const entry *whole = &l->entries[l->printed];
        print_entry(l, whole);
        for (uint32_t i = 0; i < whole->count; i++) release(&l->runs[whole->first + i]);
    }
}

/* The next run of the worker's case and device. One thread ends a case that it has begun; of several, each its run. */
static bool take_run(void *user, conform_run *out)
{
    worker *w = user;
    line *l = w->l;
    suite *s = l->s;
    entry *e = w->e;
    base_lock(&l->lock);
    if (w->at != NULL && --e->left == 0) {
        base_unlock(&l->lock);
        compare_entry(l, e);
        base_lock(&l->lock);
        e->whole = true;
        print_whole(l);
    }
    run *r = waiting(l, e, w->device);
    if (r != NULL && (l->jobs > 1 || e->begun == 0))
        s->stopped = s->stopped || (s->options->go_on != NULL && !s->options->go_on(s->options->go_on_user));
    if (s->stopped && (l->jobs > 1 || e->begun == 0)) r = NULL;
    w->at = r;
    if (r != NULL) {
        char name[160];
        e->begun++;
        r->outcome = calloc(1, sizeof *r->outcome);
        if (r->outcome == NULL) abort();
        *out = (conform_run){.choice = &s->targets[r->target].choice, .outcome = r->outcome};
        conform_name(&e->c, name, sizeof name);
        if (s->options->progress != NULL) s->options->progress(s->options->progress_user, name);
    }
    base_unlock(&l->lock);
    return r != NULL;
}

/* Is it for this thread? Where devices are apart, an op is for the thread that took it first. */
static bool is_for(const worker *w, const entry *e)
{
    const uint32_t owner = w->l->apart ? w->l->s->owners[conform_op_of(&e->c)] : 0;
    return owner == 0 || owner == w->number + 1;
}

/* The next case that nobody has; where there is none, the one with most left to begin. */
static bool pick(worker *w)
{
    line *l = w->l;
    entry *most = NULL;
    base_lock(&l->lock);
    if (w->e != NULL) w->e->threads--;
    w->e = NULL;
    for (uint32_t i = l->next; i < l->entries_count && w->e == NULL && !l->s->stopped; i++) {
        entry *e = &l->entries[l->order[i]];
        const uint32_t left = e->count - e->begun;
        if (left == 0 && i == l->next) l->next++;
        if (left == 0 || !is_for(w, e)) continue;
        if (e->threads == 0) w->e = e;
        else if (most == NULL || e->work / e->count * left > most->work / most->count * (most->count - most->begun)) most = e;
    }
    if (w->e == NULL) w->e = most;
    if (w->e != NULL) {
        w->e->threads++;
        l->s->owners[conform_op_of(&w->e->c)] = w->number + 1;
        w->device = l->s->targets[waiting(l, w->e, MAX_DEVICES)->target].number;
    }
    base_unlock(&l->lock);
    return w->e != NULL;
}

/* Drivers on a processor compile code in one thread for each device, as they launch it first. */
static bool is_apart(const target *t) { return t->info.type == DART_DEVICE_CPU && t->info.backend == DART_BACKEND_VULKAN; }

/* The device that the worker runs its cases on: the suite's, or one of its own. */
static dart_device *device_of(const worker *w)
{
    suite *s = w->l->s;
    const target *first = s->targets;
    while (first->number != w->device) first++;
    if (w->number == 0 || !is_apart(first)) return first->device;
    dart_device **own = &s->apart[w->number][w->device];
    if (*own == NULL && conform_open(s, first->spec, first->opened_with, own) != DART_OK) *own = NULL;
    return *own != NULL ? *own : first->device;
}

static void work(void *argument)
{
    worker *w = argument;
    while (pick(w)) {
        const entry *e = w->e;
        const conform_data d = {.device = device_of(w), .c = &e->c, .seed = e->seed + 1, .numbers = w->l->numbers[e->seed - w->l->seed]};
        conform_run_all(d, take_run, w);
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
        l->runs[l->runs_count++] = (run){.target = i};
    }
    e->left = e->count = l->runs_count - e->first;
    e->work = all * e->count;
    l->entries_count += e->count > 0;
}

static const entry *sorted; /* by longer_first, as qsort passes nothing on */
static int longer_first(const void *a, const void *b)
{
    const uint32_t i = *(const uint32_t *)a, k = *(const uint32_t *)b;
    if (sorted[i].work != sorted[k].work) return sorted[i].work > sorted[k].work ? -1 : 1;
    return i < k ? -1 : i > k;
}

static void put_in_order(line *l)
{
    l->order = calloc(l->entries_count + (size_t)1, sizeof *l->order);
    if (l->order == NULL) abort();
    for (uint32_t i = 0; i < l->entries_count; i++) l->order[i] = i;
    sorted = l->entries;
    for (uint32_t i = 0; i < l->entries_count && l->jobs > 1; i += MIXED)
        qsort(&l->order[i], l->entries_count - i < MIXED ? l->entries_count - i : MIXED, sizeof *l->order, longer_first);
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
    line l = {.s = s, .tallies = tallies, .jobs = jobs_of(s), .seed = seed};
    l.entries = calloc((size_t)s->cases_count * count + 1, sizeof *l.entries);
    if (l.entries == NULL || base_mutex_init(&l.lock) != DART_OK) abort();
    for (uint32_t i = 0; i < count * s->cases_count; i++)
        add_entry(&l, &s->cases[i % s->cases_count], i % s->cases_count, seed + i / s->cases_count);
    put_in_order(&l);
    for (uint32_t i = 0; i < count; i++) l.numbers[i] = conform_numbers_create(seed + i + 1);
    for (uint32_t i = 0; i < s->targets_count && l.jobs > 1; i++) l.apart = l.apart || is_apart(&s->targets[i]);
    base_thread threads[MAX_JOBS];
    worker workers[MAX_JOBS];
    uint32_t started = 0;
    for (uint32_t i = 0; i < MAX_JOBS; i++) workers[i] = (worker){.l = &l, .number = i};
    while (started + 1 < l.jobs && base_thread_start(&threads[started], work, &workers[started + 1]) == DART_OK) started++;
    work(&workers[0]);
    while (started > 0) base_thread_join(&threads[--started]);
    /* Where it was stopped, what ended behind a run that did not begin. */
    for (; l.printed < l.entries_count; l.printed++) {
        if (!l.entries[l.printed].whole) compare_entry(&l, &l.entries[l.printed]);
        print_entry(&l, &l.entries[l.printed]);
    }
    for (uint32_t i = 0; i < l.runs_count; i++) release(&l.runs[i]);
    for (uint32_t i = 0; i < count; i++) conform_numbers_destroy(&l.numbers[i]);
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
