#include "conform_suite.h"

static void print_json_text(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\') fprintf(out, "\\%c", *text);
        else if ((unsigned char)*text < 32) fprintf(out, "\\u%04x", (unsigned)*text);
        else fputc(*text, out);
    }
    fputc('"', out);
}

static const char *const float_names[] = {"preserve f16", "preserve f32", "denormal f16", "denormal f32", "flush f16",
                                          "flush f32",    "nearest f16",  "nearest f32",  "truncate f16", "truncate f32"};

static void print_json_limits(FILE *json, const dart_device_info *d)
{
    fprintf(json, ", \"limits\": {\"subgroup\": %u, \"workgroup\": %u, \"shared_bytes\": %u, \"max_bindings\": %u, \"max_binding_bytes\": %llu, "
            "\"memory_bytes\": %llu, \"multiprocessors\": %u}, \"float_controls\": [", d->subgroup, d->workgroup, d->shared_bytes, d->max_bindings,
            (unsigned long long)d->max_binding_bytes, (unsigned long long)d->memory_bytes, d->multiprocessors);
    bool first = true;
    for (uint32_t i = 0; i < COUNT_OF(float_names); i++) {
        if ((d->float_controls >> i & 1) == 0) continue;
        fprintf(json, "%s\"%s\"", first ? "" : ", ", float_names[i]);
        first = false;
    }
    fprintf(json, "]}");
}

/* The command that runs this case alone, in every variant, with the same inputs. */
static void command_of(const suite *s, const target *t, const char *name, char *text, size_t size)
{
    char cut[24] = "", margin[24] = "", backwards[24] = "", multiprocessors[36] = "";
    if (s->options->cut > 0) snprintf(cut, sizeof cut, " --cut %u", s->options->cut);
    if (s->options->margin > 0) snprintf(margin, sizeof margin, " --margin %u", s->options->margin);
    if (s->options->backwards > 0) snprintf(backwards, sizeof backwards, " --backwards %u", s->options->backwards);
    if (s->options->multiprocessors > 0) snprintf(multiprocessors, sizeof multiprocessors, " --multiprocessors %u", s->options->multiprocessors);
    snprintf(text, size, "dartlm conform --device '%s'%s%s%s%s%s%s%s --seed %llu --case '%s'", t->spec, s->options->no_matrix ? " --no-matrix" : "",
             s->options->no_resident ? " --no-resident" : "",
             s->options->minimum_limits ? " --minimum-limits" : "", cut, margin, backwards, multiprocessors, (unsigned long long)s->seed, name);
}

void conform_print_header(const suite *s)
{
    FILE *json = s->json;
    const char *commit = s->options->commit != NULL ? s->options->commit : "", *system = s->options->system != NULL ? s->options->system : "";
    if (json != NULL) {
        fprintf(json, "{\"dartlm\": \"%s\", \"commit\": ", dart_version());
        print_json_text(json, commit);
        fprintf(json, ", \"system\": ");
        print_json_text(json, system);
        fprintf(json, ", \"seed\": %llu, \"devices\": [", (unsigned long long)s->options->seed);
    }
    if (!s->options->json) fprintf(s->out, "dartlm %s%s%s%s%s\n", dart_version(), commit[0] != '\0' ? ", commit " : "", commit,
                                   system[0] != '\0' ? ", " : "", system);
    for (uint32_t i = 0; i < s->targets_count; i++) {
        const dart_device_info *d = &s->targets[i].info;
        if (s->targets[i].variant[0] != '\0') continue;
        if (!s->options->json) fprintf(s->out, "%s  %s, driver %s\n", s->targets[i].spec, d->name, d->driver);
        if (json == NULL) continue;
        char uuid[33];
        for (size_t k = 0; k < sizeof d->uuid; k++) snprintf(uuid + 2 * k, 3, "%02x", d->uuid[k]);
        fprintf(json, "%s\n  {\"device\": ", i > 0 ? "," : "");
        print_json_text(json, s->targets[i].spec);
        fprintf(json, ", \"name\": ");
        print_json_text(json, d->name);
        fprintf(json, ", \"driver\": ");
        print_json_text(json, d->driver);
        fprintf(json, ", \"uuid\": \"%s\", \"capabilities\": %u", uuid, d->capabilities);
        print_json_limits(json, d);
    }
    if (json != NULL) fprintf(json, "\n], \"results\": [");
    if (!s->options->json) fflush(s->out);
}

static void print_json_outcome(suite *s, const target *t, const char *name, const conform_outcome *o, const char *command)
{
    FILE *out = s->json;
    fprintf(out, "%s\n  {\"device\": ", s->first_json ? "" : ",");
    s->first_json = false;
    print_json_text(out, t->info.name);
    fprintf(out, ", \"backend\": \"%s\", \"variant\": \"%s\", \"case\": \"%s\", \"seed\": %llu, \"status\": \"%s\", \"kernels\": ",
            dart_backend_name(t->info.backend), t->variant[0] != '\0' ? t->variant : "default", name, (unsigned long long)s->seed,
            !o->ran ? "not run" : o->passed ? "passed" : "failed");
    print_json_text(out, o->variants);
    if (o->status != DART_OK) {
        fprintf(out, ", \"reason\": ");
        print_json_text(out, o->text);
    }
    if (o->ran && !o->passed) {
        fprintf(out, ", \"repeat\": ");
        print_json_text(out, command);
    }
    if (o->dumped[0] != '\0') {
        fprintf(out, ", \"dump\": ");
        print_json_text(out, o->dumped);
    }
    fprintf(out, ", \"seconds\": %.3g, \"inputs\": \"%016llx\", \"tensors\": [", (double)o->ns * 1e-9, (unsigned long long)o->inputs);
    for (uint32_t i = 0; i < o->results_count; i++) {
        const conform_result *r = &o->results[i];
        fprintf(out,
                "%s{\"name\": \"%s\", \"l2\": %.3e, \"linf\": %.3e, \"row\": %.3e, \"worst_row\": %llu, \"element\": %llu, \"got\": \"%.9g\", "
                "\"want\": \"%.9g\", \"tolerance\": %.3e, \"share\": %.4g, \"against_first\": %.3e, \"digest\": \"%016llx\", \"broken\": %s}",
                i > 0 ? ", " : "", r->tensor, r->l2, r->linf, r->row, (unsigned long long)r->worst_row, (unsigned long long)r->element, r->got,
                r->want, r->tolerance, r->share < 1e9 ? r->share : 1e9, r->against_first, (unsigned long long)r->digest,
                r->broken ? "true" : "false");
    }
    fprintf(out, "]}");
    fflush(out);
}

void conform_print_outcome(suite *s, const target *t, const char *name, const conform_outcome *o)
{
    FILE *out = s->out;
    char command[600];
    command_of(s, t, name, command, sizeof command);
    if (s->json != NULL) print_json_outcome(s, t, name, o, command);
    if (s->options->json) return;
    if (!o->ran) {
        fprintf(out, "NOT RUN  %-10s %-58s %s: %s\n", t->variant, name, dart_status_name(o->status), o->text);
    } else if (!o->passed || s->options->verbose) {
        fprintf(out, "%-8s %-10s %-58s %s\n", o->passed ? "ok" : "FAILED", t->variant[0] != '\0' ? t->variant : "default", name, o->variants);
        if (o->status != DART_OK) fprintf(out, "         %s: %s\n", dart_status_name(o->status), o->text);
        for (uint32_t i = 0; i < o->results_count; i++) {
            const conform_result *r = &o->results[i];
            fprintf(out, "         %-10s L2 %.2e  Linf %.2e  row %llu %.2e  tolerance %.2e  used %5.1f %% %s\n", r->tensor, r->l2, r->linf,
                    (unsigned long long)r->worst_row, r->row, r->tolerance, 100 * r->share, r->broken ? r->note : "");
            if (r->broken || !(r->share <= 1))
                fprintf(out, "         %-10s element %llu is %.9g, expected %.9g\n", "", (unsigned long long)r->element, r->got, r->want);
        }
        if (o->dumped[0] != '\0') fprintf(out, "         tensors in %s\n", o->dumped);
        if (!o->passed) fprintf(out, "         on %s, seed %llu; repeat with: %s\n", t->info.name, (unsigned long long)s->seed, command);
    }
    fflush(out); /* what was found is not lost with a run that is stopped */
}

void conform_print_end(const suite *s, const tally *tallies)
{
    if (s->json != NULL)
        fprintf(s->json, "\n], \"passed\": %d, \"failed\": %d, \"not_run\": %d, \"runs\": %u, \"runs_of\": %u, \"rows\": %u%s}\n", s->passed,
                s->failed, s->not_run, s->share.runs, s->share.runs_of, s->share.rows, s->stopped ? ", \"stopped\": true" : "");
    if (s->options->json) return;
    fprintf(s->out, "\n%-44s %-16s %6s %6s %7s %6s  %-9s %s\n", "device", "variant", "cases", "failed", "not run", "used", "vs first",
            "largest share of a tolerance");
    for (uint32_t i = 0; i < s->targets_count; i++) {
        const target *t = &s->targets[i];
        char device[300];
        snprintf(device, sizeof device, "%s %s", dart_backend_name(t->info.backend), t->info.name);
        if (tallies[i].cases == 0) continue;
        fprintf(s->out, "%-44.44s %-16s %6d %6d %7d %4.0f %%  %-9.1e %s of %s, row %llu\n", device, t->variant[0] != '\0' ? t->variant : "default",
                tallies[i].cases, tallies[i].failed, tallies[i].not_run, 100 * tallies[i].share, tallies[i].against_first, tallies[i].tensor,
                tallies[i].worst, (unsigned long long)tallies[i].row);
    }
    if (s->options->draw)
        fprintf(s->out, "\ndrawn: %u of %u runs of a case in a variant, which launch %u rows of kernels\n", s->share.runs, s->share.runs_of,
                s->share.rows);
    char seeds[64];
    snprintf(seeds, sizeof seeds, "seed %llu", (unsigned long long)s->options->seed);
    if (s->options->seeds > 1)
        snprintf(seeds, sizeof seeds, "seeds %llu to %llu", (unsigned long long)s->options->seed,
                 (unsigned long long)s->options->seed + s->options->seeds - 1);
    fprintf(s->out, "\n%s: %d passed, %d failed, %d not run%s\n", seeds, s->passed, s->failed, s->not_run,
            s->stopped ? "; stopped before its end" : "");
    if (s->passed + s->failed + s->not_run == 0 && s->options->filter != NULL && !s->stopped)
        fprintf(s->out, "No case that '%s' is part of can run here; --list names all.\n", s->options->filter);
}
