/* HTTP from anywhere: fuzz_http DATA_DIR [--seed N] [--seconds N] [FILE...]. The server of `dartlm serve`, without cmd_serve.c, runs
 * in this process with a small model on the CPU. Clients send requests that are changed at random, in pieces, slowly, with lengths that are wrong,
 * several in a row, and leave at any time. Checked meanwhile: what comes back is answers of HTTP with known statuses and bodies that are JSON where
 * they say so; no connection stays open for a minute; proper requests in between, in pieces and chunks of any size, get the right answer; without the
 * key of a server that has one nothing gets 200 but /health. Behind them: the server has no connections left, its heap is no larger than before, it
 * answers beside 300 connections that say nothing, and it is stopped amid requests.
 *
 * Requests to begin with are the files of DATA_DIR/fuzz/http. FILE...: requests that are sent as they are. */
#define _GNU_SOURCE
#include "fuzz/replies.h"
#include "serve/http_parts.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <poll.h>
#include <stdarg.h>
#include <sys/socket.h>

#define CAPACITY ((size_t)1 << 17)
#include "mutate.h"
#include "mutate_http.h"

enum { CLIENTS = 12, MOST_SEEDS = 64, CONTEXT = 96, LONGEST_ANSWER = 1 << 20, STATUSES = 600, CROWD = 300 };

static const char KEY[] = "s3cret";
static const char QUESTION[] = "{\"prompt\":[7,8,9,10],\"max_tokens\":8,\"temperature\":0,\"ignore_eos\":true}";

typedef struct server {
    metrics counts;
    engine *engine;
    http *http;
    bool keyed;
} server;

static struct {
    char *bytes;
    size_t size;
} seeds[MOST_SEEDS];
static uint32_t seeds_count;
static dart_context *context;
static dart_device *device;
static dart_model *model;
static dart_tokenizer *tokenizer;
static api_names names;
static char right[2048]; /* the answer to QUESTION behind its head */
static atomic_bool stopping; /* the server is being stopped: anything may end at any time */
static atomic_uint statuses[STATUSES], connections, proper;

static void fail(const char *format, ...) DART_PRINTF(1, 2);
static void fail(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    vprintf(format, values);
    va_end(values);
    printf("\nseed %llu\n", (unsigned long long)random_seed);
    fflush(stdout);
    abort();
}

static void require(bool condition, const char *what)
{
    if (!condition) fail("%s", what);
}

static bool once_in(uint32_t n) { return random_below(n) == 0; }
static double seconds_now(void) { return (double)base_now_ns() / 1e9; }

/* ---- The server ---- */

static void open_model(const char *data)
{
    static const dart_model_config shape = {.sma = true, .V = 1024, .W = 32, .layers = 2, .H = 4, .P = 16, .G = 1, .N = 16, .K = 4, .S = 8,
                                            .eps = 1e-5f, .sma_eps = 1e-5f};
    char path[512], error[640] = "";
    snprintf(path, sizeof path, "%s/tokenizer", data);
    require(dart_tokenizer_open(path, &tokenizer, error, sizeof error) == DART_OK, error);
    require(dart_context_create(&(dart_context_options){.log = NULL}, &context) == DART_OK, "no context");
    require(dart_device_open(context, &(dart_device_options){.spec = "cpu"}, &device) == DART_OK, "no device");
    require(dart_model_random(device, &shape, 7, NULL, &model) == DART_OK, "no model");
    require(api_names_make(tokenizer, shape.V, &names), "no memory");
}

static void start(server *s, bool keyed)
{
    const http_options listen = {.host = "127.0.0.1", .key = keyed ? KEY : NULL, .model = "m", .receive_seconds = 1};
    const api_limits limits = {.model = "m", .V = 1024, .context = CONTEXT, .prompts = HTTP_MOST_PROMPTS, .tokenizer = tokenizer};
    const batch_options options = {.slots = 6, .context = CONTEXT, .budget = 64};
    char error[640] = "";
    memset(s, 0, sizeof *s);
    s->keyed = keyed;
    s->engine = engine_create(1024, &s->counts);
    require(s->engine != NULL, "no memory");
    s->http = http_start(&listen, s->engine, &s->counts, error, sizeof error);
    require(s->http != NULL, error);
    http_ready(s->http, &limits, &names);
    require(engine_start(s->engine, model, tokenizer, &options, error, sizeof error) == DART_OK, error);
}

/* With `at_once` those who wait are told; otherwise what has been asked is finished. */
static void stop(server *s, bool at_once)
{
    if (!at_once) engine_stop(s->engine, false);
    engine_stop(s->engine, true);
    http_stop(&s->http);
    engine_destroy(&s->engine);
}

/* ---- Connections ---- */

static int open_connection(const server *s)
{
    const struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(http_port(s->http)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct timeval patience = {.tv_sec = 60};
    for (;;) {
        const int file = socket(AF_INET, SOCK_STREAM, 0);
        require(file >= 0, "no socket");
        setsockopt(file, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
        if (connect(file, (const struct sockaddr *)&address, sizeof address) == 0) return file;
        const int error = errno;
        close(file);
        if (atomic_load(&stopping)) return -1;
        if (error != EADDRNOTAVAIL) fail("no connection: %s", strerror(error)); /* that: all ports have been used a moment ago */
        base_pause_ns(10000000);
    }
}

/* Whether the server still listens. */
static bool send_bytes(int file, const uint8_t *bytes, size_t count)
{
    while (count > 0) {
        const ssize_t sent = send(file, bytes, count, MSG_NOSIGNAL);
        if (sent <= 0 && errno == EAGAIN) fail("the server reads no more, and does not close");
        if (sent <= 0) return false;
        bytes += sent;
        count -= (size_t)sent;
    }
    return true;
}

/* In pieces, with pauses in between. */
static bool send_pieces(int file, const uint8_t *bytes, size_t count)
{
    const uint32_t kind = random_below(4);
    size_t at = 0;
    while (at < count) {
        size_t piece = count - at;
        if (kind == 1) piece = 1 + random_below(piece);
        else if (kind == 2 && at < 300) piece = 1;
        if (!send_bytes(file, bytes + at, piece)) return false;
        at += piece;
        if (kind == 1 && at < count && once_in(2)) base_pause_ns(random_below(3000000));
    }
    return true;
}

typedef enum { ENDED, BROKEN, SILENT } ending;

/* Reads until nothing comes for so long, and keeps what there is room for behind the first *got bytes. */
static ending receive(int file, char *to, size_t room, size_t *got, int milliseconds)
{
    char rest[4096];
    for (;;) {
        const bool full = *got == room;
        struct pollfd socket = {.fd = file, .events = POLLIN};
        if (poll(&socket, 1, milliseconds) <= 0) return SILENT;
        const ssize_t count = recv(file, full ? rest : to + *got, full ? sizeof rest : room - *got, 0);
        if (count <= 0) return count == 0 ? ENDED : BROKEN;
        if (!full) *got += (size_t)count;
    }
}

/* Up to the end of the connection, which must come. Whether it is an orderly one. */
static bool receive_all(int file, char *to, size_t room, size_t *got)
{
    const ending how = receive(file, to, room, got, 60000);
    if (how == SILENT) fail("the server neither answers nor closes");
    return how == ENDED;
}

/* ---- Proper requests ---- */

static size_t add(uint8_t *to, size_t size, const char *text) { return memcpy(to + size, text, strlen(text)), size + strlen(text); }

static size_t add_body(uint8_t *to, size_t size, const char *body)
{
    char line[80];
    const size_t bytes = strlen(body);
    if (!once_in(3)) {
        snprintf(line, sizeof line, "%s: %zu\r\n\r\n", once_in(2) ? "content-length" : "Content-Length", bytes);
        return add(to, add(to, size, line), body);
    }
    size = add(to, size, "Transfer-Encoding: chunked\r\n\r\n");
    for (size_t at = 0, piece; at < bytes; at += piece) {
        piece = 1 + random_below(bytes - at);
        snprintf(line, sizeof line, once_in(2) ? "%zx\r\n" : "%zX;name=value\r\n", piece);
        size = add(to, size, line);
        memcpy(to + size, body + at, piece);
        size = add(to, size + piece, "\r\n");
    }
    return add(to, size, "0\r\n\r\n");
}

/* A completion behind none to two questions for the server's health on the same connection. Where the server has no room it is asked again. */
static void ask(const server *s, char *answers)
{
    uint8_t request[2048];
    const uint32_t healths = random_below(3);
    size_t size = 0;
    atomic_fetch_add(&proper, 1);
    for (uint32_t i = 0; i < healths; i++) size = add(request, size, "GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    size = add(request, size, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    if (s->keyed) size = add(request, size, "Authorization: Bearer s3cret\r\n");
    size = add_body(request, size, QUESTION);
    random_watch(request, size);
    for (uint32_t tries = 0; tries < 200; tries++, base_pause_ns(50000000)) {
        reply a = {.status = 0};
        const double begin = seconds_now();
        const int file = open_connection(s);
        if (file < 0) return;
        size_t got = 0;
        const bool sent = send_pieces(file, request, size), whole = receive_all(file, answers, LONGEST_ANSWER, &got);
        close(file);
        if (atomic_load(&stopping)) return;
        const char *wrong = NULL;
        size_t at = 0;
        for (uint32_t i = 0; i <= healths && wrong == NULL; i++) {
            wrong = reply_read(answers + at, got - at, true, false, &a);
            if (wrong != NULL && seconds_now() - begin > 0.5) break; /* on a busy machine it may have come too late for the server */
            if (wrong != NULL) fail("a proper request gets %s (sent: %d, ended: %d): %.*s", wrong, sent, whole, (int)got, answers);
            if (i < healths && a.status != 200) fail("health has status %d", a.status);
            at += a.bytes;
        }
        if (wrong != NULL || a.status == 429 || a.status == 503) continue;
        answers[got < LONGEST_ANSWER ? got : LONGEST_ANSWER - 1] = '\0';
        const char *const choices = a.status == 200 ? strstr(a.body, "\"choices\":") : NULL;
        if (choices == NULL || at != got) fail("a proper request gets status %d: %s", a.status, answers);
        if (right[0] == '\0') snprintf(right, sizeof right, "%s", choices);
        if (strcmp(choices, right) != 0) fail("a proper request gets\n%s\nnot\n%s", choices, right);
        return;
    }
    fail("no room for a proper request in ten seconds");
}

/* ---- Requests from anywhere ---- */

static bool contains(const uint8_t *text, size_t size, const char *word) { return memmem(text, size, word, strlen(word)) != NULL; }

/* What came back for a request of any bytes. whole: nobody cut it. */
static void check(const server *s, const uint8_t *sent, size_t sent_bytes, const char *answers, size_t size, bool whole)
{
    enum { SURE = 65536 }; /* the system takes that from the server at once, however late the client reads */
    const bool head = contains(sent, sent_bytes, "HEAD");
    for (size_t at = 0; at < size;) {
        reply a;
        const char *const wrong = reply_read(answers + at, size - at, whole && size < SURE, head, &a);
        if (wrong != NULL) fail("%s, %zu bytes after the first of %.*s", wrong, at, (int)size, answers);
        atomic_fetch_add(&statuses[a.status], 1);
        /* That is MHD's answer, with its own text, to a line between chunks that is longer than its buffer. */
        if (a.status == 500 && (a.json || memmem(a.body, a.body_bytes, "libmicrohttpd", 13) == NULL)) fail("%.*s", (int)size, answers);
        if (s->keyed && a.status == 200 && !contains(sent, sent_bytes, "/health")) fail("without the key: %.*s", (int)size, answers);
        at += a.bytes;
    }
}

/* Most leave once nothing more comes. Some say that nothing will follow, first or then, or say nothing, and read until the server closes. */
static void ask_anything(const server *s, const uint8_t *request, size_t size, char *answers)
{
    const uint32_t kind = random_below(64);
    const bool leaves = kind < 8, stays = kind >= 60;
    size_t got = 0;
    random_watch(request, size);
    const int file = open_connection(s);
    if (file < 0) return;
    atomic_fetch_add(&connections, 1);
    const bool sent = send_pieces(file, request, size);
    if (kind % 8 == 1) shutdown(file, SHUT_WR);
    if (!leaves) {
        ending how = receive(file, answers, LONGEST_ANSWER, &got, 1 + (int)random_below(12));
        if (stays && kind < 63) shutdown(file, SHUT_WR);
        if (stays && how == SILENT) how = receive_all(file, answers, LONGEST_ANSWER, &got) ? ENDED : BROKEN;
        check(s, request, size, answers, got, how == ENDED && sent && !atomic_load(&stopping));
    }
    if (once_in(3)) setsockopt(file, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger)); /* closing resets */
    close(file);
}

/* ---- Clients ---- */

typedef struct client {
    const server *of;
    pthread_t thread;
    uint32_t number;
    uint64_t stream;
    double end;
} client;

static void *run_client(void *user)
{
    static uint8_t requests[CLIENTS][CAPACITY];
    const client *c = user;
    uint8_t *const request = requests[c->number];
    char *answers = malloc(LONGEST_ANSWER);
    require(answers != NULL, "no memory");
    random_thread = c->number;
    random_state = random_stream(c->stream);
    while (seconds_now() < c->end && !atomic_load(&stopping)) {
        size_t size = 0;
        if (once_in(8)) ask(c->of, answers);
        for (uint32_t parts = once_in(3) ? 1 + random_below(3) : 1; parts > 0; parts--) {
            const uint32_t i = random_below(seeds_count);
            memcpy(request + size, seeds[i].bytes, seeds[i].size);
            size += seeds[i].size;
        }
        for (uint32_t steps = random_below(5); steps > 0; steps--) size = mutate_http(request, size);
        ask_anything(c->of, request, size, answers);
    }
    random_watch(NULL, 0);
    free(answers);
    return NULL;
}

static void start_clients(const server *s, client *clients, double seconds)
{
    static uint64_t streams;
    for (uint32_t i = 0; i < CLIENTS; i++) {
        clients[i] = (client){.of = s, .number = i, .stream = random_stream(random_seed) + streams++, .end = seconds_now() + seconds};
        require(pthread_create(&clients[i].thread, NULL, run_client, &clients[i]) == 0, "no thread");
    }
}

static void end_clients(client *clients)
{
    for (uint32_t i = 0; i < CLIENTS; i++) pthread_join(clients[i].thread, NULL);
}

/* ---- What must hold behind them ---- */

/* Waits until nothing is left of connections and sequences, and returns the bytes of the heap that are in use; 0 where that is not known, as with
 * sanitizers. */
static size_t settle(server *s)
{
    const metrics *const m = &s->counts;
    const double begin = seconds_now();
    for (;; base_pause_ns(10000000)) {
        const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->http->daemon, MHD_DAEMON_INFO_CURRENT_CONNECTIONS);
        const unsigned open = info != NULL ? info->num_connections : 0, exchanges = atomic_load(&s->http->exchanges);
        const unsigned sequences = atomic_load(&m->waiting) + atomic_load(&m->prefilling) + atomic_load(&m->decoding);
        if (open == 0 && exchanges == 0 && sequences == 0) break;
        if (seconds_now() - begin > 60) fail("%u connections, %u requests, %u sequences a minute after the clients", open, exchanges, sequences);
    }
    require(atomic_load(&s->http->bodies) == 0 && atomic_load(&s->http->answers) == 0, "bytes are counted of requests that have ended");
#if defined(__GLIBC__) && defined(__GLIBC_PREREQ) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#if __GLIBC_PREREQ(2, 33)
    const struct mallinfo2 heap = mallinfo2();
    return heap.uordblks + heap.hblkhd;
#endif
#endif
    return 0;
}

/* More connections than the server has room for, silent or with half a request. */
static void crowd(const server *s, char *answers)
{
    static const uint8_t half[] = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{\"pro";
    const struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(http_port(s->http)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int files[CROWD];
    for (uint32_t i = 0; i < CROWD; i++) {
        files[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        require(files[i] >= 0, "no socket");
        (void)connect(files[i], (const struct sockaddr *)&address, sizeof address);
        (void)send(files[i], half, random_below(sizeof half), MSG_NOSIGNAL);
    }
    ask(s, answers);
    for (uint32_t i = 0; i < CROWD; i++) close(files[i]);
}

/* A server from its start to its end. */
static void run_server(uint32_t number, double seconds)
{
    enum { GROWTH = 1 << 20 }; /* up to 378 KiB were seen: rooms of the batch grow to what the longest sequences need */
    client clients[CLIENTS];
    server s;
    char *answers = malloc(LONGEST_ANSWER);
    require(answers != NULL, "no memory");
    start(&s, number % 2 == 1);
    ask(&s, answers);
    start_clients(&s, clients, seconds / 3);
    end_clients(clients);
    const size_t before = settle(&s);
    start_clients(&s, clients, seconds / 3 * 2);
    end_clients(clients);
    const size_t after = settle(&s);
    printf("server %" PRIu32 ": %u connections, %u proper requests; heap %zu KiB, then %zu\n", number, atomic_load(&connections),
           atomic_load(&proper), before / 1024, after / 1024);
    fflush(stdout);
    if (after > before + GROWTH) fail("the heap has grown by %zu bytes", after - before);
    crowd(&s, answers);
    ask(&s, answers);
    start_clients(&s, clients, 60);
    base_pause_ns(100000000 + random_below(200000000));
    atomic_store(&stopping, true);
    stop(&s, number % 4 < 2);
    end_clients(clients);
    atomic_store(&stopping, false);
    free(answers);
}

/* ---- Files ---- */

static bool read_seed(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) return false;
    char *bytes = malloc(CAPACITY / 4);
    require(bytes != NULL && seeds_count < MOST_SEEDS, "no room for what requests begin with");
    seeds[seeds_count].bytes = bytes;
    seeds[seeds_count++].size = fread(bytes, 1, CAPACITY / 4, file);
    fclose(file);
    return true;
}

static void read_folder(const char *data)
{
    char path[700];
    snprintf(path, sizeof path, "%s/fuzz/http", data);
    DIR *folder = opendir(path);
    require(folder != NULL, path);
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        snprintf(path, sizeof path, "%s/fuzz/http/%s", data, entry->d_name);
        if (entry->d_name[0] != '.') require(read_seed(path), path);
    }
    closedir(folder);
    require(seeds_count > 0, "there is nothing to begin with");
}

/* The files as they are. */
static void send_files(char **files, int count)
{
    server s;
    char *answers = malloc(LONGEST_ANSWER);
    require(answers != NULL, "no memory");
    start(&s, false);
    for (int i = 0; i < count; i++) {
        require(read_seed(files[i]), files[i]);
        const int file = open_connection(&s);
        const bool sent = send_bytes(file, (const uint8_t *)seeds[i].bytes, seeds[i].size);
        shutdown(file, SHUT_WR);
        size_t got = 0;
        const bool whole = receive_all(file, answers, LONGEST_ANSWER, &got) && sent;
        close(file);
        printf("%s: %.*s\n", files[i], got > 12 ? 12 : (int)got, answers);
        check(&s, (const uint8_t *)seeds[i].bytes, seeds[i].size, answers, got, whole);
    }
    ask(&s, answers);
    stop(&s, false);
    free(answers);
}

int main(int argc, char **argv)
{
    const char *const data = argc > 1 ? argv[1] : ".";
    const int left = random_begin(argc - 1, argv + 1);
    signal(SIGPIPE, SIG_IGN);
    open_model(data);
    if (left > 1) send_files(argv + 2, left - 1);
    else {
        read_folder(data);
        /* Some servers, with the key and without, of which two or three take so many seconds with what is around the clients' time. */
        const double begin = seconds_now(), seconds = random_seconds > 0 ? (double)random_seconds : 10;
        for (uint32_t i = 0; i < 2 || seconds_now() - begin < seconds; i++) run_server(i, seconds / 5);
        for (int i = 0; i < STATUSES; i++)
            if (atomic_load(&statuses[i]) > 0) printf("status %d: %u\n", i, atomic_load(&statuses[i]));
        require(atomic_load(&statuses[200]) > 0 && atomic_load(&statuses[400]) > 0 && atomic_load(&statuses[401]) > 0, "too little was answered");
        printf("seed %llu: %u connections, %u proper requests\n", (unsigned long long)random_seed, atomic_load(&connections), atomic_load(&proper));
    }
    for (uint32_t i = 0; i < seeds_count; i++) free(seeds[i].bytes);
    api_names_free(&names);
    dart_model_destroy(&model);
    dart_tokenizer_destroy(&tokenizer);
    dart_device_destroy(&device);
    dart_context_destroy(&context);
    return 0;
}
