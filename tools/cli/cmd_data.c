/* dartlm data: files to train or test with. */
#include "cli.h"
#include "mqar.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct recall_data {
    int32_t *ids, *targets, *places, *answers; /* targets: of one sequence */
    uint8_t *used;
} recall_data;

static int make(const mqar_task *task, uint32_t sequences, recall_data *d)
{
    const size_t tokens = (size_t)sequences * task->L, queries = (size_t)sequences * task->R;
    d->ids = malloc(tokens * sizeof *d->ids);
    d->targets = malloc(task->L * sizeof *d->targets);
    d->places = malloc(queries * sizeof *d->places);
    d->answers = malloc(queries * sizeof *d->answers);
    d->used = calloc(task->V, 1);
    if (d->ids == NULL || d->targets == NULL || d->places == NULL || d->answers == NULL || d->used == NULL) return cli_fail_memory();
    size_t query = 0;
    for (uint32_t i = 0; i < sequences; i++) {
        mqar_example(task, i, d->ids + (size_t)i * task->L, d->targets, d->used);
        for (uint32_t t = 0; t < task->L; t++) {
            if (d->targets[t] < 0) continue;
            d->places[query] = (int32_t)t;
            d->answers[query++] = d->targets[t];
        }
    }
    return CLI_OK;
}

static int write(const char *path, const mqar_task *task, uint32_t sequences, const recall_data *d)
{
    const safetensors_tensor entries[] = {
        {.name = "input_ids", .data = d->ids, .dtype = SAFETENSORS_I32, .rank = 2, .shape = {sequences, task->L}},
        {.name = "query_pos", .data = d->places, .dtype = SAFETENSORS_I32, .rank = 2, .shape = {sequences, task->R}},
        {.name = "target", .data = d->answers, .dtype = SAFETENSORS_I32, .rank = 2, .shape = {sequences, task->R}}};
    cli_session session = {.context = NULL};
    if (base_report_init(&session.report, NULL) != DART_OK) return cli_fail_memory();
    const dart_status status = safetensors_write(path, entries, COUNT_OF(entries), &session.report);
    const int result = status == DART_OK ? CLI_OK : cli_fail_file(&session, status);
    base_report_destroy(&session.report);
    return result;
}

static int data_mqar(int argc, char **argv)
{
    mqar_task task = {.L = 256, .R = 0, .V = 8192, .seed = 1};
    uint32_t sequences = 1024;
    const args_option options[] = {
        {"length", 0, ARGS_U32, "L", &task.L, "tokens of a sequence, by default 256", 4, 65536, false},
        {"pairs", 0, ARGS_U32, "R", &task.R, "of keys and values, by default a quarter of the length", 1, MQAR_PAIRS, false},
        {"vocabulary", 0, ARGS_U32, "V", &task.V, "by default 8192: tokens 1 to V/2 - 1 are keys, the upper half values", 4, 1 << 24, false},
        {"sequences", 0, ARGS_U32, "N", &sequences, "by default 1024", 1, 1 << 20, false},
        {"seed", 0, ARGS_U64, "N", &task.seed, "by default 1", 0, 0, false},
    };
    const args_syntax syntax = {
        .command = "dartlm data mqar",
        .operands = "OUT",
        .options = options,
        .options_count = COUNT_OF(options),
        .about =
            "Writes a test of multi-query associative recall for dartlm eval mqar: input_ids (sequences x L), query_pos and target\n"
            "(sequences x R). The same seed gives the same test on every machine; - is standard output."};
    args_operands operands;
    recall_data d = {NULL, NULL, NULL, NULL, NULL};
    int status = args_parse(&syntax, argc, argv, &operands);
    if (status != ARGS_GO_ON) return status;
    if (task.R == 0) task.R = task.L / 4;
    const char *complaint = mqar_complaint(&task);
    if (complaint != NULL) return args_mistake(&syntax, "%s", complaint);
    status = make(&task, sequences, &d);
    if (status == CLI_OK) status = write(operands.texts[0], &task, sequences, &d);
    free(d.ids);
    free(d.targets);
    free(d.places);
    free(d.answers);
    free(d.used);
    return status;
}

int cmd_data(int argc, char **argv)
{
    static const char help[] = "usage: dartlm data mqar [options] OUT\n\ndartlm data mqar --help tells more.\n";
    if (argc >= 2 && strcmp(argv[1], "mqar") == 0) return data_mqar(argc - 1, argv + 1);
    return args_no_task("dartlm data", help, argc, argv);
}
