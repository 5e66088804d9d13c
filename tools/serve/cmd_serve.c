/* dartlm serve: completions over HTTP. */
#define _POSIX_C_SOURCE 200809L
#include "cli/cli.h"
#include "serve/access.h"
#include "serve/http.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct serve_options {
    cli_common common;
    cli_model_options with;
    const char *tokenizer, *preset, *host, *key_file, *name;
    args_list hosts;
    uint32_t port, queue, receive;
    batch_options batch;
} serve_options;

/* The key, from a file or the environment: arguments of a program can be read by others. NULL: none. */
static int read_key(const serve_options *o, char **key)
{
    size_t bytes = 0;
    const char *set = getenv("DARTLM_API_KEY");
    *key = NULL;
    if (o->key_file != NULL) {
        if (cli_read_text(o->key_file, key, &bytes) != CLI_OK) return CLI_FAILED;
        while (bytes > 0 && ((*key)[bytes - 1] == '\n' || (*key)[bytes - 1] == '\r')) (*key)[--bytes] = '\0';
        if (bytes == 0 || strlen(*key) != bytes || strpbrk(*key, "\r\n") != NULL) return cli_fail("%s must hold one line, the key", o->key_file);
    } else if (set != NULL && set[0] != '\0') {
        *key = strdup(set);
        if (*key == NULL) return cli_fail_memory();
    }
    if (*key == NULL && !access_is_local(o->host))
        return cli_fail("--host %s can be reached from other machines, so a key is needed: --key-file FILE, or DARTLM_API_KEY in the environment",
                        o->host);
    return CLI_OK;
}

/* The last part of the model's path. */
static char *default_name(const char *folder)
{
    size_t end = strlen(folder), begin;
    while (end > 1 && folder[end - 1] == '/') end--;
    for (begin = end; begin > 0 && folder[begin - 1] != '/'; begin--) continue;
    char *name = malloc(end - begin + 1);
    if (name == NULL) return NULL;
    memcpy(name, folder + begin, end - begin);
    name[end - begin] = '\0';
    return name;
}

static int open_model(cli_session *session, const serve_options *o, dart_model **model)
{
    dart_model_config config;
    if (o->preset == NULL) return cli_open_model(session, &o->common, &o->with, model);
    if (dart_config_preset(o->preset, &config) != DART_OK) return cli_fail("there is no preset '%s'", o->preset);
    const int opened = cli_open_device(session, &o->common);
    if (opened != CLI_OK) return opened;
    const dart_model_options storage = {.weights = (dart_storage)o->common.dtype, .activations = (dart_storage)o->with.activations,
                                        .memories = (dart_storage)o->with.memories};
    const dart_status status = dart_model_random(session->device, &config, 1, &storage, model);
    return status == DART_OK ? CLI_OK : cli_fail_device(session, status);
}

static int run(const serve_options *o, const char *name, const char *key)
{
    static metrics counts;
    char error[640] = "";
    cli_session session = {.context = NULL};
    dart_tokenizer *tokenizer = NULL;
    dart_model *model = NULL;
    dart_model_info info;
    api_names names = {.bytes = NULL};
    http *server = NULL;
    engine *computing = engine_create(o->queue, &counts);
    int status = computing != NULL ? CLI_OK : cli_fail_memory();
    const http_options listen = {.host = o->host, .port = (uint16_t)o->port, .key = key, .model = name, .names = o->hosts.texts,
                                 .names_count = o->hosts.count, .receive_seconds = o->receive, .log = o->common.verbosity > 0};
    if (status == CLI_OK) server = http_start(&listen, computing, &counts, error, sizeof error);
    if (status == CLI_OK && server == NULL) status = cli_fail("%s", error);
    if (status == CLI_OK) status = cli_open_tokenizer(o->tokenizer != NULL ? o->tokenizer : o->with.folder, &tokenizer);
    if (status == CLI_OK) status = open_model(&session, o, &model);
    if (status == CLI_OK && dart_model_describe(model, &info) != DART_OK) status = cli_fail("the model cannot be described");
    if (status == CLI_OK && !api_names_make(tokenizer, info.config.V, &names)) status = cli_fail_memory();
    if (status == CLI_OK) {
        const api_limits limits = {.model = name, .V = info.config.V, .context = o->batch.context, .prompts = HTTP_MOST_PROMPTS,
                                   .tokenizer = tokenizer};
        http_ready(server, &limits, &names);
        const dart_status started = engine_start(computing, model, tokenizer, &o->batch, error, sizeof error);
        if (started != DART_OK) status = cli_fail("%s (%s)", error, dart_status_name(started));
    }
    if (status == CLI_OK) {
        /* Until here a signal ends the program, however long the model loads. */
        cli_stop_at(SIGTERM, true);
        cli_stop_at(SIGINT, true);
        const bool six = strchr(o->host, ':') != NULL;
        printf("serving %s on http://%s%s%s:%u\n", name, six ? "[" : "", o->host, six ? "]" : "", (unsigned)http_port(server));
        fflush(stdout);
        cli_wait_for_stop();
        engine_stop(computing, false);
    }
    if (computing != NULL) engine_stop(computing, true); /* so that nothing sleeps */
    http_stop(&server);
    engine_destroy(&computing);
    api_names_free(&names);
    dart_model_destroy(&model);
    dart_tokenizer_destroy(&tokenizer);
    cli_close(&session);
    return status;
}

int cmd_serve(int argc, char **argv)
{
    serve_options o = {.host = "127.0.0.1", .port = 8080, .queue = 1024, .receive = 30, .batch = {.slots = 16, .context = 4096}};
    const args_option options[] = {
        {"model", 0, ARGS_TEXT, "DIR", &o.with.folder, "config.json and *.safetensors", 0, 0, false},
        {"tokenizer", 0, ARGS_TEXT, "PATH", &o.tokenizer, "tokenizer.json, or the folder that it is in; by default the\nmodel's", 0, 0, false},
        {"preset", 0, ARGS_TEXT, "NAME", &o.preset, "in place of --model: random weights, to measure the server with", 0, 0, false},
        {"name", 0, ARGS_TEXT, "NAME", &o.name, "of the model, which requests may give; by default the folder's", 0, 0, false},
        {"host", 0, ARGS_TEXT, "ADDRESS", &o.host,
         "to listen on, in numbers, by default 127.0.0.1; others\nthan this machine's own need a key", 0, 0, false},
        {"port", 0, ARGS_U32, "PORT", &o.port, "by default 8080; 0: any that is free, which is printed", 0, 65535, false},
        {"key-file", 0, ARGS_TEXT, "FILE", &o.key_file,
         "a line that requests must bring as Authorization: Bearer KEY;\nwithout it DARTLM_API_KEY of the environment",
         0, 0, false},
        {"allow-host", 0, ARGS_LIST, "NAME", &o.hosts, "accept this name in Host headers, too", 0, 0, false},
        {"slots", 0, ARGS_U32, "B", &o.batch.slots, "sequences that are decoded at once, by default 16", 1, 4096, false},
        {"context", 0, ARGS_U32, "N", &o.batch.context, "the most tokens of a prompt and its answer, by default 4096", 2, 1 << 24, false},
        {"queue", 0, ARGS_U32, "N", &o.queue, "the most sequences that wait, by default 1024", 1, 1 << 20, false},
        {"budget", 0, ARGS_U32, "N", &o.batch.budget,
         "tokens of prompts between two steps of decoding, by default as\nmany as take about 20 ms, at least 512", 1, 1 << 20, false},
        {"receive-timeout", 0, ARGS_U32, "S", &o.receive, "seconds that a request may take to arrive, by default 30", 1, 3600, false},
        CLI_STATE(o.with),
        CLI_WEIGHTS(o.common, o.with),
        CLI_DEVICE(o.common),
        {"verbose", 'v', ARGS_MORE, NULL, &o.common.verbosity, "show a line for each request and the library's log; twice: all\nof it", 0, 0, false}};
    const args_syntax syntax = {
        .command = "dartlm serve",
        .operands = "",
        .options = options,
        .options_count = COUNT_OF(options),
        .about =
            "Answers requests for completions over HTTP, in the form of OpenAI's /v1/completions, many at a time; see docs/serving.md.\n"
            "SIGTERM and SIGINT finish what has been asked and end the program; a second one, two seconds later\n"
            "or more, ends it at once."};
    args_operands operands;
    char *key = NULL, *name = NULL;
    int status = args_parse(&syntax, argc, argv, &operands);
    if (status != ARGS_GO_ON) return status;
    if ((o.with.folder == NULL) == (o.preset == NULL)) return args_mistake(&syntax, "one of --model and --preset is needed");
    if (o.preset != NULL && o.tokenizer == NULL) return args_mistake(&syntax, "--preset needs --tokenizer");
    o.batch.S = o.with.S;
    o.batch.no_sma = o.with.no_sma;
    status = read_key(&o, &key);
    if (status == CLI_OK) name = o.name != NULL ? strdup(o.name) : default_name(o.preset != NULL ? o.preset : o.with.folder);
    if (status == CLI_OK && name == NULL) status = cli_fail_memory();
    signal(SIGPIPE, SIG_IGN);
    if (status == CLI_OK) status = run(&o, name, key);
    free(key);
    free(name);
    return status;
}
