#include "training.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

typedef struct run {
    const training_options *o;
    const training_task *task;
    const char *folder;
    json_t *settings;
    cli_session session;
    dart_trainer *trainer;
    uint32_t count;      /* parts of a batch, of o->rows sequences each */
    uint32_t first, end; /* steps to take */
    int32_t *ids, *targets;
    uint64_t start;
} run;

/* ---- Signals ---- */

static volatile sig_atomic_t stopped; /* the signal, or 0 */

/* The next one ends the program at once. */
static void stop(int number)
{
    stopped = number;
    signal(number, SIG_DFL);
}

static void listen_to_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM};
    for (size_t i = 0; i < COUNT_OF(numbers); i++)
        if (signal(numbers[i], stop) == SIG_IGN) signal(numbers[i], SIG_IGN); /* nohup and background jobs stay as they are */
}

/* ---- Saves ---- */

static bool has_run(const char *folder)
{
    char *path = file_join(folder, "training.safetensors");
    const bool there = path != NULL && file_exists(path);
    free(path);
    return there;
}

/* The model of the last save lies beside it, for inference. */
static int save(run *r, uint32_t step)
{
    json_t *note = json_pack("{s:s, s:I, s:O}", "task", r->task->name, "step", (json_int_t)step, "settings", r->settings);
    char *text = note != NULL ? json_dumps(note, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    json_decref(note);
    if (text == NULL) return cli_fail_memory();
    dart_status status = dart_trainer_save(r->trainer, r->folder, text);
    free(text);
    if (status == DART_OK) status = dart_trainer_export(r->trainer, r->folder);
    return status == DART_OK ? CLI_OK : cli_fail_trainer(r->trainer, status);
}

static int differs(const run *r, const char *key, const json_t *here, const json_t *there)
{
    char *ours = json_dumps(here, JSON_ENCODE_ANY), *theirs = there != NULL ? json_dumps(there, JSON_ENCODE_ANY) : NULL;
    const int status = cli_fail("--resume: %s is %s, but %s in the run in %s", key, ours != NULL ? ours : "?", theirs != NULL ? theirs : "unknown",
                                r->folder);
    free(ours);
    free(theirs);
    return status;
}

/* Where the run in the folder stands; its settings must be ours. */
static int take_note(run *r)
{
    json_t *note = json_loads(dart_trainer_note(r->trainer), 0, NULL), *there = json_object_get(note, "settings"), *value;
    const char *task = json_string_value(json_object_get(note, "task")), *key;
    const json_int_t step = json_integer_value(json_object_get(note, "step"));
    int status = CLI_OK;
    if (!json_is_object(there) || task == NULL || step < 0 || step > UINT32_MAX)
        status = cli_fail("--resume: the run in %s is none of dartlm train", r->folder);
    else if (strcmp(task, r->task->name) != 0)
        status = cli_fail("--resume: the run in %s is one of dartlm train %s", r->folder, task);
    json_object_foreach (r->settings, key, value)
        if (status == CLI_OK && !json_equal(value, json_object_get(there, key))) status = differs(r, key, value, json_object_get(there, key));
    r->first = (uint32_t)step;
    json_decref(note);
    return status;
}

/* ---- Steps ---- */

static double rate(const run *r, uint32_t step)
{
    const training_options *o = r->o;
    const uint32_t steps = r->task->steps;
    if (step < o->warmup) return (double)o->lr * (step + 1) / o->warmup;
    const double done = steps > o->warmup ? (double)(step - o->warmup) / (steps - o->warmup) : 0;
    const double left = o->schedule == 2 ? 0.5 * (1 + cos(3.141592653589793 * done)) : 1 - done;
    return (double)o->lr * ((double)o->least + (1 - (double)o->least) * left);
}

static json_t *number_or_null(double value) { return isfinite(value) ? json_real(value) : json_null(); }

static int validate(run *r, uint32_t step)
{
    const uint32_t rows = r->task->batch / r->count;
    uint64_t right = 0, labels = 0;
    double loss = 0;
    for (uint32_t first = 0; first < r->task->sequences; first += rows) {
        dart_train_result result;
        r->task->fill_validation(r->task->user, first, rows, r->ids, r->targets);
        const dart_status status = dart_trainer_evaluate(r->trainer, &(dart_train_batch){.ids = r->ids, .targets = r->targets}, &result);
        if (status != DART_OK) return cli_fail_trainer(r->trainer, status);
        right += result.correct;
        labels += result.labels;
        loss += result.loss * (double)result.labels;
    }
    const double accuracy = (double)right / (double)labels, seconds = (double)(base_now_ns() - r->start) / 1e9;
    loss /= (double)labels;
    cli_progress_end();
    if (r->o->common.json)
        return cli_print_line(json_pack("{s:I, s:o, s:f, s:I, s:f}", "step", (json_int_t)step, "validation_loss", number_or_null(loss),
                                        "validation_accuracy", accuracy, "targets", (json_int_t)labels, "seconds", seconds));
    printf("after step %6" PRIu32 "  validation: loss %8.4f  accuracy %6.2f %%\n", step, loss, 100 * accuracy);
    return CLI_OK;
}

static int report(const run *r, uint32_t step, const dart_train_result *result, double speed)
{
    const double accuracy = (double)result->correct / (double)result->labels, left = (double)(r->end - step - 1) * r->task->batch * r->task->L;
    char rate_text[CLI_NUMBER], time[CLI_NUMBER];
    const bool shown = step % r->o->every == 0 || step + 1 == r->end;
    if (r->o->common.json && shown)
        return cli_print_line(json_pack("{s:I, s:o, s:f, s:f, s:o, s:f, s:b}", "step", (json_int_t)step, "loss", number_or_null(result->loss),
                                        "accuracy", accuracy, "lr", rate(r, step), "norm", number_or_null(result->norm), "tokens_per_second", speed,
                                        "skipped", result->skipped));
    if (!r->o->common.json && shown) {
        cli_progress_end();
        printf("step %6" PRIu32 " of %" PRIu32 "  loss %8.4f  accuracy %6.2f %%  lr %.2e  norm %8.3f  %s tokens/s%s\n", step, r->task->steps,
               result->loss, 100 * accuracy, rate(r, step), result->norm, cli_rate(speed, rate_text), result->skipped ? "  skipped" : "");
        fflush(stdout);
    }
    cli_progress("step %" PRIu32 " of %" PRIu32 ", %s left", step + 1, r->end, cli_time(left / speed, time));
    return CLI_OK;
}

static int take_step(run *r, uint32_t step, double *speed)
{
    dart_train_result result;
    const uint64_t begin = base_now_ns();
    r->task->fill(r->task->user, step, r->ids, r->targets);
    const dart_train_batch batch = {.count = r->count, .ids = r->ids, .targets = r->targets};
    const dart_status status = dart_trainer_step(r->trainer, &batch, rate(r, step), &result);
    if (status != DART_OK) return cli_fail_trainer(r->trainer, status);
    const double now = (double)r->task->batch * r->task->L / ((double)(base_now_ns() - begin) / 1e9);
    *speed = step < r->first + 3 ? now : 0.9 * *speed + 0.1 * now; /* the first ones prepare what all use */
    return report(r, step, &result, *speed);
}

static int take_steps(run *r)
{
    double speed = 0;
    uint32_t step = r->first;
    int status = CLI_OK;
    r->start = base_now_ns();
    while (step < r->end && stopped == 0 && status == CLI_OK) {
        status = take_step(r, step++, &speed);
        if (status == CLI_OK && (step % r->o->validate == 0 || step == r->end)) status = validate(r, step);
        if (status == CLI_OK && (step % r->o->save == 0 || step == r->end || stopped != 0)) status = save(r, step);
    }
    cli_progress_end();
    if (stopped != 0 && status == CLI_OK && step < r->end)
        fprintf(stderr, "dartlm: stopped after step %" PRIu32 " of %" PRIu32 "; --resume goes on\n", step, r->end);
    return status;
}

/* ---- A run ---- */

/* What the numbers depend on besides the task's own settings. */
static int add_settings(run *r, const dart_model_config *c)
{
    const training_options *o = r->o;
    const dart_trainer_options *a = &o->adam;
    json_t *model = json_pack("{s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "sma", c->sma, "V", (json_int_t)c->V, "W", (json_int_t)c->W,
                              "layers", (json_int_t)c->layers, "H", (json_int_t)c->H, "P", (json_int_t)c->P, "G", (json_int_t)c->G, "N",
                              (json_int_t)c->N, "K", (json_int_t)c->K, "S", (json_int_t)c->S);
    json_t *steps = json_pack("{s:I, s:I, s:I, s:I, s:f, s:f, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:I, s:I}", "seed", (json_int_t)o->seed, "sequences",
                              (json_int_t)r->task->batch, "rows", (json_int_t)o->rows, "steps", (json_int_t)r->task->steps, "lr", (double)o->lr,
                              "min-lr", (double)o->least, "warm-up", (json_int_t)o->warmup, "schedule", (json_int_t)o->schedule, "beta1",
                              (double)a->beta1, "beta2", (double)a->beta2, "eps", (double)a->eps, "weight-decay", (double)a->weight_decay, "clip",
                              (double)a->clip, "dtype", (json_int_t)a->weights, "activations", (json_int_t)a->activations);
    const bool added = json_object_update(r->settings, model) == 0 && json_object_update(r->settings, steps) == 0;
    json_decref(model);
    json_decref(steps);
    return added ? CLI_OK : cli_fail_memory();
}

static int make_trainer(run *r, const dart_model_config *config)
{
    dart_status status = file_make_folder(r->folder, &r->session.report);
    if (status != DART_OK) return cli_fail_file(&r->session, status);
    const bool there = has_run(r->folder);
    if (there && !r->o->resume) return cli_fail("%s holds a run already: --resume goes on with it", r->folder);
    if (!there && r->o->resume) return cli_fail("--resume: there is no run in %s", r->folder);
    status = there ? dart_trainer_resume(r->session.device, r->folder, &r->o->adam, &r->trainer)
                   : dart_trainer_create(r->session.device, config, &r->o->adam, &r->trainer);
    if (status != DART_OK) return cli_fail_device(&r->session, status);
    return there ? take_note(r) : save(r, 0); /* so that there is something to resume from the beginning on */
}

static int run_all(run *r, const dart_model_config *config)
{
    static cli_profile profile = {.phase = "steps"};
    const size_t tokens = (size_t)r->task->batch * r->task->L;
    cli_common common = r->o->common;
    if (r->o->profiled) common.profile = &profile;
    int status = add_settings(r, config);
    if (status == CLI_OK) status = cli_open_device(&r->session, &common);
    if (status == CLI_OK) status = make_trainer(r, config);
    if (status != CLI_OK) return status;
    r->ids = malloc(tokens * sizeof *r->ids);
    r->targets = malloc(tokens * sizeof *r->targets);
    if (r->ids == NULL || r->targets == NULL) return cli_fail_memory();
    listen_to_signals();
    status = take_steps(r);
    if (status == CLI_OK && r->o->profiled && r->end > r->first) cli_profile_print(&profile, r->end - r->first);
    return status;
}

int training_run(const args_syntax *syntax, training_options *options, const training_task *task, const dart_model_config *config,
                 json_t *settings, const char *folder)
{
    training_options *o = options;
    run r = {.o = o, .task = task, .folder = folder, .settings = settings, .session = {.context = NULL}};
    if (o->rows == 0) o->rows = task->batch;
    if (task->batch % o->rows != 0) {
        json_decref(settings);
        return args_mistake(syntax, "--rows %" PRIu32 " does not divide the %" PRIu32 " sequences of a step", o->rows, task->batch);
    }
    r.count = task->batch / o->rows;
    r.end = o->steps > 0 && o->steps < task->steps ? o->steps : task->steps;
    o->adam.B = o->rows;
    o->adam.L = task->L;
    o->adam.seed = o->seed;
    o->adam.weights = (dart_storage)o->common.dtype;
    o->adam.activations = (dart_storage)o->activations;
    const int status = run_all(&r, config);
    free(r.ids);
    free(r.targets);
    dart_trainer_destroy(&r.trainer);
    cli_close(&r.session);
    json_decref(settings);
    if (stopped != 0) {
        fflush(stdout);
        signal(stopped, SIG_DFL);
        raise(stopped);
    }
    return status;
}
