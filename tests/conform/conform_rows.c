/* Rows of the kernel table: which of them cases have run, and which cases are drawn to run those whose turn it is. */
#include "conform_suite.h"

#include "runtime/device.h"

#include <stdlib.h>
#include <string.h>

static void name_of(const kernel_row *row, char name[80]) { snprintf(name, 80, "%s[%s]", kernel_table[row->id].name, row->variant); }

bool conform_lists(const char *rows, const char *name)
{
    for (const char *at = strstr(rows, name); at != NULL; at = strstr(at + 1, name))
        if (at == rows || at[-1] == ' ') return true;
    return false;
}

void conform_note_rows(suite *s, const target *t, const conform_outcome *o)
{
    for (const char *word = o->variants; *word != '\0' && t->number < MAX_DEVICES; word += strspn(word, " ")) {
        const size_t length = strcspn(word, " "), kernel = strcspn(word, "[");
        const bool all = kernel + 2 <= length && word[length - 1] == ']'; /* not cut off at the end of the text */
        for (uint32_t i = 0; i < kernel_rows_count && i < MAX_ROWS && all; i++) {
            const kernel_row *row = &kernel_rows[i];
            const char *name = kernel_table[row->id].name;
            if (row->backend != t->info.backend || strncmp(word, name, kernel) != 0 || name[kernel] != '\0') continue;
            if (strncmp(word + kernel + 1, row->variant, length - kernel - 2) != 0 || row->variant[length - kernel - 2] != '\0') continue;
            s->reached[t->number][i] = true;
        }
        word += length;
    }
}

void conform_list_unreached(suite *s)
{
    if (s->options->filter != NULL || s->options->only != NULL || s->options->random > 0 || s->drawn != NULL) return;
    for (uint32_t t = 0; t < s->targets_count; t++) {
        const target *device = &s->targets[t];
        if (device->variant[0] != '\0' || device->number >= MAX_DEVICES) continue;
        for (uint32_t i = 0; i < kernel_rows_count && i < MAX_ROWS; i++) {
            const kernel_row *row = &kernel_rows[i];
            const bool able = conform_can_run(row, &device->info);
            /* The probes ran when the device was opened; unit_wide runs the check of wide kernels. */
            const bool other = kernel_op_of(row->id) == KERNEL_OP_PROBE;
            if (!able || other || s->reached[device->number][i]) continue;
            s->not_run++;
            if (!s->options->json)
                fprintf(s->out, "NOT RUN  %s[%s] on %s: no case reaches this row\n", kernel_table[row->id].name, row->variant, device->info.name);
        }
    }
}

/* ---- The draw ---- */

typedef struct draw {
    suite *s;
    uint64_t seed;
    uint32_t *cases, count;          /* numbers of those that the options leave, shuffled */
    bool covered[MAX_ROWS];          /* of the device at hand, by a run that was drawn */
} draw;

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static void list_cases(draw *d)
{
    uint64_t state = d->seed;
    for (const char *at = d->s->options->filter; at != NULL && *at != '\0'; at++) state = 31 * state + (unsigned char)*at;
    for (uint32_t i = 0; i < d->s->cases_count; i++) {
        const uint32_t at = (uint32_t)(next_random(&state) % (d->count + 1));
        d->cases[d->count++] = d->cases[at];
        d->cases[at] = i;
    }
}

/* A case on all targets of a device that it concerns. */
typedef struct planning {
    suite *s;
    const conform_case *c;
    char **plans; /* by target */
    uint32_t at, end;
    bool begun; /* the one at hand */
    conform_outcome outcome;
} planning;

static bool take_plan(void *user, conform_run *run)
{
    planning *p = user;
    if (p->begun) {
        char **plan = &p->plans[p->at++];
        *plan = malloc(sizeof p->outcome.variants);
        if (*plan == NULL) abort();
        memcpy(*plan, p->outcome.variants, sizeof p->outcome.variants);
    }
    while (p->at < p->end && !conform_concerns(&p->s->targets[p->at], p->c)) p->at++;
    p->begun = p->at < p->end;
    if (p->begun) *run = (conform_run){.choice = &p->s->targets[p->at].choice, .outcome = &p->outcome};
    return p->begun;
}

static const char *plan_of(draw *d, uint32_t i, uint32_t on)
{
    suite *s = d->s;
    if (s->plans[i][on] == NULL) {
        const conform_case *c = &s->cases[i];
        planning p = {.s = s, .c = c, .plans = s->plans[i], .at = on};
        while (p.at > 0 && s->targets[p.at - 1].number == s->targets[on].number) p.at--;
        for (p.end = on; p.end < s->targets_count && s->targets[p.end].number == s->targets[on].number;) p.end++;
        conform_run_all((conform_data){.device = s->targets[on].device, .c = c, .seed = s->options->seed + 1, .plan = true}, take_plan, &p);
    }
    return s->plans[i][on];
}

static void take(draw *d, uint32_t i, uint32_t on)
{
    const char *plan = plan_of(d, i, on);
    for (uint32_t k = 0; k < kernel_rows_count && k < MAX_ROWS; k++) {
        char name[80];
        name_of(&kernel_rows[k], name);
        if (kernel_rows[k].backend != d->s->targets[on].info.backend || !conform_lists(plan, name)) continue;
        d->s->share.rows += !d->covered[k];
        d->covered[k] = true;
    }
    d->s->share.runs += !d->s->drawn[i][on];
    d->s->drawn[i][on] = true;
}

/* The first of the shuffled cases that makes the device run the row, on the target of the row's name or as the device chooses. */
static void take_for(draw *d, const kernel_row *row, uint32_t own)
{
    suite *s = d->s;
    char name[80];
    uint32_t named = own;
    name_of(row, name);
    for (uint32_t t = own; t < s->targets_count && s->targets[t].number == s->targets[own].number; t++)
        if (strcmp(s->targets[t].variant, row->variant) == 0) named = t;
    for (uint32_t k = 0; k < d->count; k++) {
        for (uint32_t way = 0; way < (named == own ? 1u : 2u); way++) {
            const uint32_t t = way == 0 ? named : own;
            if (!conform_concerns(&s->targets[t], &s->cases[d->cases[k]]) || !conform_lists(plan_of(d, d->cases[k], t), name)) continue;
            take(d, d->cases[k], t);
            return;
        }
    }
}

/* One case as the device chooses. */
static void take_any(draw *d, uint32_t own)
{
    for (uint32_t k = 0; k < d->count; k++) {
        if (!conform_concerns(&d->s->targets[own], &d->s->cases[d->cases[k]])) continue;
        take(d, d->cases[k], own);
        return;
    }
}

/* What makes the device run the rows whose turn it is: of those that the cases may make it run, every draw_turns-th has it. A case as the
 * device chooses comes first where all rows have their turn, and otherwise only where none of them is reached: its rows have turns, too. */
static void draw_for(draw *d, uint32_t own)
{
    suite *s = d->s;
    const uint32_t turns = s->options->draw_turns > 0 ? s->options->draw_turns : 1, before = s->share.runs;
    uint32_t turn = (uint32_t)(d->seed % turns);
    memset(d->covered, 0, sizeof d->covered);
    if (turns == 1) take_any(d, own);
    for (uint32_t i = 0; i < kernel_rows_count && i < MAX_ROWS; i++) {
        if (!conform_may_reach(s, &s->targets[own], &kernel_rows[i])) continue;
        if (turn++ % turns == 0 && !d->covered[i]) take_for(d, &kernel_rows[i], own);
    }
    if (s->share.runs == before) take_any(d, own);
}

void conform_draw(suite *s, uint64_t seed)
{
    const uint32_t count = s->cases_count, most_rows = s->share.rows;
    draw *d = calloc(1, sizeof *d);
    if (s->drawn == NULL) s->drawn = calloc(count, sizeof *s->drawn);
    if (s->plans == NULL) s->plans = calloc(count, sizeof *s->plans);
    if (d == NULL || s->drawn == NULL || s->plans == NULL) abort();
    *d = (draw){.s = s, .seed = seed, .cases = calloc(count, sizeof *d->cases)};
    if (d->cases == NULL) abort();
    memset(s->drawn, 0, count * sizeof *s->drawn);
    s->share.rows = 0;
    list_cases(d);
    for (uint32_t t = 0; t < s->targets_count; t++)
        if (s->targets[t].variant[0] == '\0') draw_for(d, t);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t t = 0; t < s->targets_count; t++) s->share.runs_of += conform_concerns(&s->targets[t], &s->cases[i]);
    if (s->share.rows < most_rows) s->share.rows = most_rows;
    free(d->cases);
    free(d);
}

void conform_forget_draws(suite *s)
{
    for (uint32_t i = 0; s->plans != NULL && i < s->cases_count; i++)
        for (uint32_t t = 0; t < s->targets_count; t++) free(s->plans[i][t]);
    free(s->plans);
    free(s->drawn);
}
