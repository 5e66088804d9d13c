/* Cases of `bench op`: "ssd L=2048 H=24 P=64 N=128 S=256 bf16 seq", the "=" may be left out. */
#ifndef DARTLM_BENCH_CASE_H
#define DARTLM_BENCH_CASE_H

#include "cli/operation.h"

typedef struct bench_case {
    operation o;
    dart_dtype dtype;
    uint32_t repeat;
    uint64_t seed;
    const char *check;
    uint32_t times; /* the op in one submission, so that it runs long enough for the clock */
    char name[512];
} bench_case;

/* All cases of a call, after sizes such as L=2048..8192 became one case each. */
typedef struct bench_cases {
    char (*texts)[256];
    uint32_t count;
} bench_cases;

/* The cases that the operands of a call stand for. A word that names an op begins a case. */
int bench_cases_list(bench_cases *list, const args_syntax *syntax, const args_operands *operands);
/* What the text says: the op, and what of sizes, dtype and optional tensors is named. */
int bench_case_parse(bench_case *p, const args_syntax *syntax, const char *text);
/* Gives what was not named its default. */
void bench_case_complete(bench_case *p);
/* Makes the name: the case with nothing left out. */
void bench_case_name(bench_case *p);

#endif
