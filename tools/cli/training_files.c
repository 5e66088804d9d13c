/* What a run of `dartlm train` keeps in its folder, and the settings that a run that goes on must have. */
#include "training_run.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Settings: what determines the numbers, as texts that the command line would take ---- */

/* The shortest text that reads as the same f32. */
static json_t *decimal(float value)
{
    char text[CLI_NUMBER];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value) break;
    }
    return json_string(text);
}

static json_t *setting(const training_task *task, const args_option *option)
{
    const char *words = option->value;
    switch (option->kind) {
    case ARGS_FLAG: return json_string(*(bool *)option->to ? "true" : "false");
    case ARGS_MORE:
    case ARGS_U32: return json_sprintf("%" PRIu32, *(uint32_t *)option->to);
    case ARGS_U64: return json_sprintf("%" PRIu64, *(uint64_t *)option->to);
    case ARGS_F32: return decimal(*(float *)option->to);
    case ARGS_TEXT: return json_string(*(const char **)option->to);
    case ARGS_CHOICE:
        for (int i = 1; i < *(int *)option->to; i++) words += strcspn(words, "|") + 1;
        return json_stringn(words, strcspn(words, "|"));
    case ARGS_LIST: return json_string(task->data);
    }
    return NULL;
}

/* Kinds of models and options that came later, where the run has none of them: runs from before go on. */
static bool is_late(const run *r, const void *option)
{
    const dart_model_config *c = r->task->config;
    if (option == &r->o->schedule_steps) return r->o->schedule_steps == 0;
    return (option == &c->independent_c && !c->independent_c) || ((option == &c->transformer || option == &c->F) && !c->transformer);
}

int training_collect_settings(run *r)
{
    const training_options *o = r->o;
    r->settings = json_object();
    for (const args_option *option = r->task->syntax->options; option->to != &o->resume; option++) {
        if (is_late(r, option->to)) continue;
        if (!training_in_f16(o) && (option->to == &o->adam.loss_scale || option->to == &o->adam.scale_steps)) continue;
        if (json_object_set_new(r->settings, option->name, setting(r->task, option)) != 0) return cli_fail_memory();
    }
    return CLI_OK;
}

static int compare_settings(const run *r, const json_t *had)
{
    const char *name;
    json_t *value;
    json_object_foreach(r->settings, name, value) {
        const char *before = json_string_value(json_object_get(had, name)), *now = json_string_value(value);
        if (before == NULL) return cli_fail("%s: the run does not say what --%s it has", r->task->folder, name);
        if (strcmp(before, now) != 0) return cli_fail("%s: the run has --%s %s, not %s", r->task->folder, name, before, now);
    }
    json_object_foreach((json_t *)had, name, value)
        if (json_object_get(r->settings, name) == NULL)
            return cli_fail("%s: the run has --%s %.40s, which was not given", r->task->folder, name, json_string_value(value));
    return CLI_OK;
}

/* ---- Files ---- */

int training_save(run *r)
{
    if (!training_is_first(r) && !r->o->sharded) return CLI_OK;
    json_t *note = json_pack("{s:s, s:I, s:O}", "task", r->task->name, "step", (json_int_t)r->step, "settings", r->settings);
    char *text = note != NULL ? json_dumps(note, JSON_COMPACT) : NULL;
    json_decref(note);
    if (text == NULL) return cli_fail_memory();
    const dart_status status = dart_trainer_save(r->trainer, r->task->folder, text);
    free(text);
    return status == DART_OK ? CLI_OK : cli_fail_trainer(r->trainer, status);
}

static int read_note(run *r, const json_t *note)
{
    const char *folder = r->task->folder, *task = json_string_value(json_object_get(note, "task"));
    const json_t *step = json_object_get(note, "step"), *settings = json_object_get(note, "settings");
    if (task == NULL || !json_is_integer(step) || !json_is_object(settings)) return cli_fail("%s: not a run of dartlm train", folder);
    if (strcmp(task, r->task->name) != 0) return cli_fail("%s: a run of dartlm train %s, not of %s", folder, task, r->task->name);
    if (compare_settings(r, settings) != CLI_OK) return CLI_FAILED;
    const json_int_t taken = json_integer_value(step);
    if (taken < 0 || taken > (json_int_t)r->task->steps)
        return cli_fail("%s: the run is after step %lld of %" PRIu32, folder, taken, r->task->steps);
    if (taken > (json_int_t)r->end)
        return cli_fail("%s: the run is after step %lld already, beyond --steps %" PRIu32, folder, taken, r->end);
    r->step = (uint32_t)taken;
    return CLI_OK;
}

static bool holds(const char *folder, const char *name)
{
    char *path = file_join(folder, name);
    const bool found = path != NULL && file_exists(path);
    free(path);
    return found;
}

int training_check_folder(const run *r)
{
    const char *folder = r->task->folder;
    if (!training_is_first(r)) return CLI_OK;
    const bool has_run = holds(folder, "training.safetensors");
    if (r->o->resume) return has_run ? CLI_OK : cli_fail("%s holds no run to go on with; without --resume one begins there", folder);
    if (has_run) return cli_fail("%s holds a run already: --resume goes on with it, a new one needs another folder", folder);
    if (holds(folder, "model.safetensors")) return cli_fail("%s holds a model already; a new run needs another folder", folder);
    return CLI_OK;
}

/* The file stays: who removed it could remove another program's. */
int training_lock_folder(run *r)
{
    if (!training_is_first(r)) return CLI_OK;
    char *path = file_join(r->task->folder, "training.lock");
    if (path == NULL) return cli_fail_memory();
    dart_status status = file_make_folder(r->task->folder, &r->session.report);
    if (status == DART_OK) status = file_lock_open(path, &r->session.report, &r->lock);
    free(path);
    return status == DART_OK ? CLI_OK : cli_fail_file(&r->session, status);
}

int training_begin(run *r, const dart_trainer_options *options)
{
    const dart_status status = dart_trainer_create(r->session.device, r->task->config, options, &r->trainer);
    return status == DART_OK ? training_save(r) : cli_fail_device(&r->session, status);
}

int training_resume(run *r, const dart_trainer_options *options)
{
    const dart_status status = dart_trainer_resume(r->session.device, r->task->folder, options, &r->trainer);
    if (status != DART_OK) return cli_fail_device(&r->session, status);
    json_t *note = json_loads(dart_trainer_note(r->trainer), JSON_REJECT_DUPLICATES, NULL);
    const int result = read_note(r, note);
    json_decref(note);
    if (result != CLI_OK || !training_is_first(r)) return result;
    if (r->o->common.json)
        return cli_print_line(json_pack("{s:I, s:I, s:I}", "resumed", (json_int_t)r->step, "steps", (json_int_t)r->end, "updates",
                                        (json_int_t)dart_trainer_steps(r->trainer)));
    printf("after step %6" PRIu32 "  resumed\n", r->step);
    return CLI_OK;
}
