/* A run of all cases: what it holds, and how it reports. */
#ifndef DARTLM_CONFORM_SUITE_H
#define DARTLM_CONFORM_SUITE_H

#include "conform_data.h"
#include "base/platform.h"
#include "runtime/kernel.h"
#include "runtime/stream.h"

/* A device as it chooses, or as it is made to choose by the name of a variant. Those of one device share it, and what it compiles. */
typedef struct target {
    dart_device *device;
    stream_choice choice;
    dart_device_info info;
    char spec[300];
    char variant[32]; /* "" for the device's own choice */
    uint32_t claimed; /* capabilities of DART_CAP_SPEED that the device lacks and rows of that name need */
    uint32_t number;  /* of the device among those tested */
    uint32_t opened_with; /* of a device's first target: the capabilities that its other targets claim */
    bool shares;      /* the device of the first target of that number */
} target;

/* What was drawn, of how much. */
typedef struct draw_share {
    uint32_t rows; /* of the kernel table, that what was drawn launches; of several draws the most */
    uint32_t runs, runs_of; /* a case on a target; how many there are */
} draw_share;

enum { MAX_TARGETS = 256, MAX_DEVICES = 16, MAX_ROWS = 1024, MAX_JOBS = 64, MAX_OPS = 64, MOST_DUMPS = 100 };

typedef struct suite {
    dart_context *context;
    const conform_options *options;
    FILE *out;
    FILE *json; /* where JSON goes: out, the report, or NULL */
    target targets[MAX_TARGETS];
    uint64_t seed; /* of the inputs of what is printed */
    uint32_t targets_count, devices_count;
    conform_case *cases; /* those that the options leave */
    uint32_t cases_count;
    int passed, failed, not_run;
    bool first_json;
    bool stopped; /* by go_on */
    uint32_t dumped; /* files of tensors */
    bool reached[MAX_DEVICES][MAX_ROWS]; /* rows of the kernel table that some case ran on a device */
    bool (*drawn)[MAX_TARGETS];          /* by the number of the case: runs on the target; NULL: all that it concerns */
    char *(*plans)[MAX_TARGETS];         /* what a case launches on a target; NULL until a draw asks */
    draw_share share;                    /* of all draws together */
    dart_device *apart[MAX_JOBS][MAX_DEVICES]; /* of threads that have some of their own */
    uint32_t owners[MAX_OPS];                  /* 1 + the number of the thread that took an op first, 0: none */
} suite;

/* Makes s->cases, each dtype on its own. */
void conform_list_cases(suite *s);
/* Case `number` of those that a seed draws for an op: sizes at and around those that kernels treat apart, types, and flags, so that the op takes
 * the call and its runner knows what comes out. op must outlive the case. */
void conform_draw_case(const char *op, uint64_t seed, uint64_t number, conform_case *c);
/* Opens a device for cases to run on, which is to count as having the capabilities, too. */
dart_status conform_open(const suite *s, const char *spec, uint32_t claimed, dart_device **device);
/* The number of its op, below MAX_OPS. */
uint32_t conform_op_of(const conform_case *c);
/* Does the case run on the target, where everything runs? */
bool conform_concerns(const target *t, const conform_case *c);
/* Does the device get right results from the row, and is it to run it? */
bool conform_can_run(const kernel_row *row, const dart_device_info *info);
/* May some case of those that the options leave make the target run the row? */
bool conform_may_reach(const suite *s, const target *t, const kernel_row *row);
/* All runs that `take` gives, each twice, compared; the second time must give the same bits. With d.plan they leave in outcome->variants what they
 * would launch; nothing is compiled or runs. d: device, c, seed, and what else is not 0. */
void conform_run_all(conform_data d, conform_take *take, void *user);
/* Again, with the tensors written to a file (conform_dump.h); false where it cannot be written. */
bool conform_dump_case(const target *t, const conform_case *c, uint64_t seed, const char *path);
/* Is "kernel[variant]" among the words of an outcome's `variants`? norm[base] is not, where layer_norm[base] is. */
bool conform_lists(const char *rows, const char *name);
/* Notes in s->reached what ran. */
void conform_note_rows(suite *s, const target *t, const conform_outcome *o);
/* Rows that a device could run and no case made it run: a hole in the cases, listed like what was not run. */
void conform_list_unreached(suite *s);
/* Makes s->drawn anew as options->draw says, and adds what it is to s->share. */
void conform_draw(suite *s, uint64_t seed);
void conform_forget_draws(suite *s);

/* What was found of a target. */
typedef struct tally {
    int cases, failed, not_run;
    double share;
    char worst[200];
    char tensor[24];
    uint64_t row;
    double against_first;
} tally;

/* Runs the cases that the options leave on all targets that they concern, and prints and counts what comes out. */
void conform_run_cases(suite *s, tally *tallies);

/* What is tested: version, devices, seed. */
void conform_print_header(const suite *s);
/* The result of a case, as JSON and as text. */
void conform_print_outcome(suite *s, const target *t, const char *name, const conform_outcome *o);
/* The sums, and as text a line a target, of tallies[targets_count]. */
void conform_print_end(const suite *s, const tally *tallies);

#endif
