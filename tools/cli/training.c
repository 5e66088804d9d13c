#include "training_run.h"

#include "base/checksum.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Epochs ---- */

/* Source: Fisher and Yates 1938. */
const uint32_t *training_epoch(training_order *order, uint32_t epoch)
{
    if (order->epoch == epoch + 1) return order->places;
    const uint64_t key = base_mix(order->seed ^ base_mix(UINT64_C(0x65706F6368) + epoch));
    for (uint32_t i = 0; i < order->count; i++) {
        const uint32_t k = (uint32_t)((base_mix(key + i) >> 32) * (i + 1) >> 32);
        order->places[i] = order->places[k];
        order->places[k] = i;
    }
    order->epoch = epoch + 1;
    return order->places;
}

/* ---- Steps ---- */

/* Up over the warm-up, then down to a share of the peak, where it stays. */
static double rate(const run *r, uint32_t step)
{
    const training_options *o = r->o;
    const uint32_t steps = o->schedule_steps > 0 ? o->schedule_steps : r->task->steps;
    if (step < o->warmup) return (double)o->lr * (step + 1) / o->warmup;
    if (step >= steps) step = steps;
    const double done = steps > o->warmup ? (double)(step - o->warmup) / (steps - o->warmup) : 1;
    const double falls = o->schedule == 2 ? 0.5 * (1 + cos(3.141592653589793 * done)) : 1 - done, least = (double)o->min_lr;
    return (double)o->lr * (least + (1 - least) * falls);
}

static int report_step(const run *r, uint32_t step, const dart_train_result *result)
{
    const double accuracy = (double)result->correct / (double)result->labels, left = (double)(r->end - step - 1) * r->task->batch * r->task->L;
    char rate_text[CLI_NUMBER], time[CLI_NUMBER];
    const bool shown = step % r->o->every == 0 || step + 1 == r->end;
    if (!training_is_first(r)) return CLI_OK;
    if (r->o->common.json && shown) {
        json_t *line = json_pack("{s:I, s:o, s:f, s:f, s:o, s:f, s:f, s:b}", "step", (json_int_t)step, "loss", cli_json_number(result->loss),
                                 "accuracy", accuracy, "lr", rate(r, step), "norm", cli_json_number(result->norm), "tokens_per_second",
                                 r->speed, "seconds", (double)(base_now_ns() - r->start) / 1e9, "skipped", result->skipped);
        if (training_in_f16(r->o)) json_object_set_new(line, "scale", json_integer((json_int_t)result->scale));
        return cli_print_line(line);
    }
    if (shown) {
        char scale[CLI_NUMBER + 8] = "";
        if (training_in_f16(r->o)) snprintf(scale, sizeof scale, "  scale %g", result->scale);
        cli_progress_end();
        printf("step %6" PRIu32 " of %" PRIu32 "  loss %8.4f  accuracy %6.2f %%  lr %.2e  norm %8.3f%s  %s tokens/s%s\n", step, r->task->steps,
               result->loss, 100 * accuracy, rate(r, step), result->norm, scale, cli_rate(r->speed, rate_text), result->skipped ? "  skipped" : "");
        fflush(stdout);
    }
    if (step + 1 == r->end)
        printf("longest submission %.1f ms, %s of device memory\n", (double)dart_trainer_longest(r->trainer) / 1e6,
               cli_bytes(dart_device_bytes(r->session.device), time));
    cli_progress("step %" PRIu32 " of %" PRIu32 ", %s left", step + 1, r->end, cli_time(left / r->speed, time));
    return CLI_OK;
}

/* The borders of the documents in `count` parts of r->rows sequences. */
static void find_documents(const run *r, const int32_t *all, uint32_t count)
{
    const training_task *task = r->task;
    const size_t T = (size_t)r->rows * task->L, most = (size_t)r->rows * task->documents;
    for (size_t i = 0; i < count && r->cu != NULL; i++) {
        const int32_t *ids = all + i * T;
        int32_t *cu = r->cu + i * (most + 1);
        size_t found = 0;
        for (size_t t = 0; t < T; t++)
            if (t % task->L == 0 || ids[t - 1] == task->end) cu[found++] = (int32_t)t;
        while (found <= most) cu[found++] = (int32_t)T;
    }
}

static int prepare(run *r)
{
    const training_task *task = r->task;
    const int32_t *ids, *targets;
    const size_t first = (size_t)r->ranks.is.rank * r->parts, T = (size_t)r->rows * task->L, borders = (size_t)r->rows * task->documents + 1;
    batches_next(r->batches, &ids, &targets);
    find_documents(r, ids, task->batch / r->rows);
    const dart_train_batch batch = {.count = r->parts, .ids = ids + first * T, .targets = targets + first * T,
                                    .cu = r->cu != NULL ? r->cu + first * borders : NULL};
    const dart_status status = dart_trainer_prepare(r->trainer, &batch);
    r->prepared = status == DART_OK;
    return status == DART_OK ? CLI_OK : cli_fail_trainer(r->trainer, status);
}

/* Behind so many steps validation or saving finds none under way. */
static bool is_pause(const run *r, uint32_t steps) { return steps == r->end || steps % r->o->validate == 0 || steps % r->o->save == 0; }

/* Steps at the beginning of a run that go one by one, since they prepare what all use: they are out of the rate of those that follow. */
enum { FIRST = 3 };

/* Starts a step, and prepares the one after it while the device is at work. */
static int begin_step(run *r)
{
    const int outcome = r->prepared ? CLI_OK : prepare(r);
    if (outcome != CLI_OK) return outcome;
    const dart_status status = dart_trainer_start(r->trainer, rate(r, r->begun));
    if (status != DART_OK) return cli_fail_trainer(r->trainer, status);
    r->prepared = false;
    r->begun++;
    const uint64_t from = base_now_ns();
    const int prepared = r->begun < r->end ? prepare(r) : CLI_OK;
    if (r->taken < FIRST) r->preparing_ns = base_now_ns() - from;
    return prepared;
}

/* A step ahead, the host begins to write a batch when the step before is done, not while it runs. Where preparing it takes most of a step the host
 * may come too late then, and the device waits longer than between steps that go one by one, for a gain of 1 to 2 % (H100, where preparing took 0.35
 * to 0.6 of a step). The share is chosen, not derived. In f16 and of several ranks a step waits for the one before in any case; times of its own
 * would also let a rank exchange in another order than others. */
static bool pays_ahead(const run *r)
{
    return r->ranks.is.count == 1 && !training_in_f16(r->o) && (double)r->preparing_ns < 0.75 * (double)r->step_ns;
}

/* The following step is started first, so that the device goes on with it; unless the run pauses in between, or ends there (`last`). */
static int take_step(run *r, bool last)
{
    const uint32_t step = r->step;
    dart_train_result result;
    int outcome = CLI_OK;
    if (r->taken <= FIRST || is_pause(r, step)) {
        r->timed_from = base_now_ns();
        r->timed_step = step;
    }
    if (r->begun == step) outcome = begin_step(r);
    const bool ahead = r->taken >= FIRST && pays_ahead(r) && !last && !is_pause(r, step + 1);
    if (outcome == CLI_OK && ahead) outcome = begin_step(r);
    if (outcome != CLI_OK) return outcome;
    const dart_status status = dart_trainer_finish(r->trainer, &result);
    if (status != DART_OK) return cli_fail_trainer(r->trainer, status);
    r->step = step + 1;
    if (r->taken++ < FIRST) r->step_ns = base_now_ns() - r->timed_from;
    r->speed = (double)(r->step - r->timed_step) * r->task->batch * r->task->L / ((double)(base_now_ns() - r->timed_from) / 1e9);
    return report_step(r, step, &result);
}

/* Rows of the validation from `first` on; rows beyond its end have no targets. */
static void fill_validation(const run *r, uint32_t first)
{
    const training_task *task = r->task;
    for (uint32_t b = 0; b < r->rows; b++) {
        int32_t *ids = r->ids + (size_t)b * task->L, *targets = r->targets + (size_t)b * task->L;
        task->fill_validation(task->user, b < task->validation - first ? first + b : first, ids, targets);
        for (uint32_t t = 0; t < task->L && b >= task->validation - first; t++) targets[t] = -1;
    }
}

static int validate(const run *r)
{
    if (!training_is_first(r)) return CLI_OK;
    batches_rest(r->batches); /* that of the following step is made when this returns */
    uint64_t right = 0, labels = 0;
    double loss = 0;
    for (uint64_t first = 0; first < r->task->validation; first += r->rows) {
        dart_train_result result;
        fill_validation(r, (uint32_t)first);
        find_documents(r, r->ids, 1);
        const dart_train_batch batch = {.ids = r->ids, .targets = r->targets, .cu = r->cu};
        const dart_status status = dart_trainer_evaluate(r->trainer, &batch, &result);
        if (status != DART_OK) return cli_fail_trainer(r->trainer, status);
        right += result.correct;
        labels += result.labels;
        loss += result.loss * (double)result.labels;
    }
    const double accuracy = (double)right / (double)labels, seconds = (double)(base_now_ns() - r->start) / 1e9;
    cli_progress_end();
    if (r->o->common.json)
        return cli_print_line(json_pack("{s:I, s:o, s:f, s:I, s:f}", "step", (json_int_t)r->step, "validation_loss",
                                        cli_json_number(loss / (double)labels), "validation_accuracy", accuracy, "targets",
                                        (json_int_t)labels, "seconds", seconds));
    printf("after step %6" PRIu32 "  validation: loss %8.4f  accuracy %6.2f %%\n", r->step, loss / (double)labels, 100 * accuracy);
    return CLI_OK;
}

/* Ends with all steps taken, or behind a save after a signal, which the step that is under way then comes before. */
static int learn(run *r, bool *stopped)
{
    int outcome = batches_open(r->task, r->step, r->end, &r->batches);
    r->start = base_now_ns();
    r->begun = r->step;
    while (outcome == CLI_OK && (r->begun > r->step || (r->step < r->end && !*stopped))) {
        outcome = take_step(r, *stopped);
        const bool last = r->step == r->end;
        if (outcome == CLI_OK && (last || r->step % r->o->validate == 0)) outcome = validate(r);
        if (!*stopped) {
            *stopped = cli_stopped() != 0;
            if (outcome == CLI_OK && r->ranks.is.count > 1) outcome = cli_ranks_any(&r->ranks, *stopped, stopped);
        }
        const bool saves = last || r->step % r->o->save == 0 || (*stopped && r->begun == r->step);
        if (outcome == CLI_OK && saves) outcome = training_save(r);
    }
    return outcome;
}

static int export_model(run *r)
{
    if (!training_is_first(r)) return CLI_OK;
    const dart_status status = dart_trainer_export(r->trainer, r->task->folder);
    return status == DART_OK ? CLI_OK : cli_fail_trainer(r->trainer, status);
}

/* ---- A run ---- */

static int allocate(run *r)
{
    const size_t tokens = (size_t)r->rows * r->task->L;
    r->ids = malloc(tokens * sizeof *r->ids);
    r->targets = malloc(tokens * sizeof *r->targets);
    const size_t borders = (size_t)(r->task->batch / r->rows) * ((size_t)r->rows * r->task->documents + 1);
    if (r->task->documents > 0) r->cu = malloc(borders * sizeof *r->cu);
    const bool made = r->ids != NULL && r->targets != NULL && (r->cu != NULL || r->task->documents == 0);
    return made ? CLI_OK : cli_fail_memory();
}

/* An option that was not given is the same setting as one that was given its default. */
static void fill_defaults(const training_task *task, uint32_t ranks, training_options *o)
{
    if (o->rows == 0) o->rows = task->batch / ranks;
    if (o->common.dtype == DART_STORAGE_DEFAULT) o->common.dtype = DART_STORAGE_F32;
    if (o->activations == DART_STORAGE_DEFAULT) o->activations = o->common.dtype;
    o->adam.B = o->rows;
    o->adam.L = task->L;
    o->adam.documents = o->rows * task->documents;
    o->adam.seed = o->seed;
    o->adam.weights = (dart_storage)o->common.dtype;
    o->adam.activations = (dart_storage)o->activations;
}

/* All ranks have the same settings, data among them, and are after the same step. */
static int agree(const run *r)
{
    if (r->ranks.is.count <= 1) return CLI_OK;
    char *text = json_dumps(r->settings, JSON_COMPACT | JSON_SORT_KEYS);
    const uint64_t own[2] = {text != NULL ? base_checksum(0, text, strlen(text)) : 0, r->step};
    uint64_t *all = malloc(r->ranks.is.count * sizeof own);
    int status = text != NULL && all != NULL ? CLI_OK : cli_fail_memory();
    if (status == CLI_OK && r->ranks.is.gather(r->ranks.is.user, own, sizeof own, all) != DART_OK) status = CLI_FAILED;
    for (uint32_t i = 0; i < r->ranks.is.count && status == CLI_OK; i++)
        if (memcmp(all + 2 * (size_t)i, own, sizeof own) != 0)
            status = cli_fail("rank %" PRIu32 " has other settings or another step than rank %" PRIu32, i, r->ranks.is.rank);
    free(text);
    free(all);
    return status;
}

static int open_run(run *r)
{
    dart_trainer_options adam = r->o->adam;
    if (adam.beta1 == 0) adam.beta1 = DART_BETA_ZERO;
    if (adam.beta2 == 0) adam.beta2 = DART_BETA_ZERO;
    if (r->ranks.is.count > 1) adam.ranks = &r->ranks.is;
    int status = training_check_folder(r);
    if (status == CLI_OK) status = training_collect_settings(r);
    if (status == CLI_OK) status = allocate(r);
    if (status == CLI_OK) status = cli_open_device(&r->session, &r->o->common);
    if (status == CLI_OK) status = training_lock_folder(r);
    if (status == CLI_OK) status = training_check_folder(r); /* another program may have been at work there until now */
    if (status == CLI_OK) status = agree(r); /* before a new run is written */
    if (status == CLI_OK) status = r->o->resume ? training_resume(r, &adam) : training_begin(r, &adam);
    if (status == CLI_OK && r->o->resume) status = agree(r);
    return status;
}

int training_model(const args_syntax *syntax, bool mamba2, uint32_t V, dart_model_config *config)
{
    dart_model_config *c = config;
    if (c->transformer && mamba2) return args_mistake(syntax, "--transformer and --mamba2 exclude each other");
    if (c->independent_c && (mamba2 || c->transformer)) return args_mistake(syntax, "--independent-c is for a DART");
    if (c->F > 0 && !c->transformer) return args_mistake(syntax, "--mlp goes with --transformer");
    c->V = V;
    c->sma = !mamba2 && !c->transformer;
    if (!c->transformer) {
        if (c->P == 0) c->P = 64;
        c->H = 2 * c->W / c->P;
        return CLI_OK;
    }
    if (c->P == 0) c->P = c->W / 2 < 64 ? c->W / 2 : 64;
    if (c->P == 0 || c->W % c->P != 0) return args_mistake(syntax, "--width %" PRIu32 " is no multiple of --head-dim %" PRIu32, c->W, c->P);
    if (c->F == 0) c->F = (uint32_t)base_round_up(base_ceil_div(8 * (uint64_t)c->W, 3), 8);
    c->H = c->G = c->W / c->P;
    c->N = c->K = c->S = 0;
    c->sma_eps = 0;
    c->base = 10000;
    return CLI_OK;
}

/* Each rank of a machine has a device of its own. */
static int share_out(const training_task *task, training_options *o, run *r, char spec[CLI_NUMBER])
{
    const char *device = o->common.device;
    if (device == NULL) return args_mistake(task->syntax, "--ranks goes with --device cuda, vulkan or cpu");
    const int status = cli_ranks_join(&r->ranks, o->rendezvous, o->patience);
    if (status == CLI_OK && (strcmp(device, "cuda") == 0 || strcmp(device, "vulkan") == 0)) {
        snprintf(spec, CLI_NUMBER, "%s:%" PRIu32, device, r->ranks.local);
        o->common.device = spec;
    }
    return status;
}

static int plan_run(const training_task *task, training_options *o, run *r)
{
    const uint32_t ranks = r->ranks.is.count;
    int exponent;
    fill_defaults(task, ranks, o);
    if (o->rows == 0 || task->batch % o->rows != 0)
        return args_mistake(task->syntax, "--rows %" PRIu32 " does not divide the %" PRIu32 " sequences of a step", o->rows, task->batch);
    if (task->batch / o->rows % ranks != 0)
        return args_mistake(task->syntax, "%" PRIu32 " times --rows %" PRIu32 " sequences of a step do not divide among %" PRIu32 " ranks",
                            task->batch / o->rows, o->rows, ranks);
    if (training_in_f16(o) && frexp((double)o->adam.loss_scale, &exponent) != 0.5)
        return args_mistake(task->syntax, "--loss-scale %g is no power of two", (double)o->adam.loss_scale);
    r->rows = o->rows;
    r->parts = task->batch / o->rows / ranks;
    return CLI_OK;
}

int training_run(const training_task *task, training_options *o)
{
    static cli_profile profile = {.phase = "steps"};
    bool stopped = false;
    char spec[CLI_NUMBER];
    run r = {.task = task, .o = o, .ranks = {.is = {.count = 1}}, .end = o->steps > 0 && o->steps < task->steps ? o->steps : task->steps};
    if (o->profiled) o->common.profile = &profile;
    int status = o->ranked ? share_out(task, o, &r, spec) : CLI_OK;
    if (o->sharded && !o->ranked) return args_mistake(task->syntax, "--shard goes with --ranks");
    r.ranks.is.shard = o->sharded;
    if (status == CLI_OK) status = plan_run(task, o, &r);
    if (status == CLI_OK) status = open_run(&r);
    const uint32_t first = r.step;
    cli_stop_at(SIGINT, false);
    cli_stop_at(SIGTERM, false);
    if (status == CLI_OK) status = learn(&r, &stopped);
    if (status == CLI_OK && !stopped) status = export_model(&r);
    if (status == CLI_OK && o->profiled && r.step > first) cli_profile_print(&profile, r.step - first);
    if (status == CLI_OK && stopped && training_is_first(&r))
        (void)cli_fail("stopped after step %" PRIu32 " of %" PRIu32 "; --resume goes on with the run in %s, --resume --steps %" PRIu32
                       " writes its model as it is",
                       r.step, r.end, task->folder, r.step);
    batches_close(&r.batches);
    free(r.ids);
    free(r.targets);
    free(r.cu);
    json_decref(r.settings);
    dart_trainer_destroy(&r.trainer);
    cli_ranks_leave(&r.ranks);
    file_lock_close(&r.lock);
    cli_close(&r.session);
    cli_stop_no_more(SIGINT);
    cli_stop_no_more(SIGTERM);
    if (cli_stopped() != 0) {
        fflush(stdout);
        raise(cli_stopped());
    }
    return status == CLI_OK && stopped ? CLI_FAILED : status;
}
