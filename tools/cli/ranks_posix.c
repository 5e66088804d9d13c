#define _DEFAULT_SOURCE
#include "ranks.h"

#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

/* macOS has neither: a socket there says for itself that it raises no SIGPIPE, and a program started by this one would keep it open. */
#if !defined(MSG_NOSIGNAL)
#define MSG_NOSIGNAL 0
#endif
#if !defined(SOCK_CLOEXEC)
#define SOCK_CLOEXEC 0
#endif

enum { MEETING_S = 60, PULSE_NS = 500000000, PULSE_STEP_NS = 50000000 }; /* for all ranks to be there; between signs of life, in steps */
/* What a byte between the ranks begins: a sign of life, or data. */
enum { LIVES = 'l', DATA = 'd' };

/* ---- Who this is ---- */

static const struct {
    const char *rank, *count, *local;
} launchers[] = {{"RANK", "WORLD_SIZE", "LOCAL_RANK"},
                 {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
                 {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
                 {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"}};

static bool number(const char *variable, uint64_t most, uint32_t *to)
{
    uint64_t value = 0;
    const char *text = getenv(variable);
    if (text == NULL || !args_whole(text, &value) || value > most) return false;
    *to = (uint32_t)value;
    return true;
}

static int identify(cli_ranks *r)
{
    for (size_t i = 0; i < COUNT_OF(launchers); i++) {
        if (getenv(launchers[i].rank) == NULL || getenv(launchers[i].count) == NULL) continue;
        if (!number(launchers[i].count, 65536, &r->is.count) || r->is.count == 0 || !number(launchers[i].rank, r->is.count - 1, &r->is.rank))
            return cli_fail("--ranks: %s and %s are no rank of so many: '%s' and '%s'", launchers[i].rank, launchers[i].count,
                            getenv(launchers[i].rank), getenv(launchers[i].count));
        if (!number(launchers[i].local, 65535, &r->local)) r->local = r->is.rank;
        return CLI_OK;
    }
    return cli_fail("--ranks: no launcher has set RANK and WORLD_SIZE, or the variables of Open MPI, MPICH or Slurm");
}

/* ---- Bytes ---- */

static int gone(const cli_ranks *r, uint32_t connection, const char *why)
{
    return cli_fail("rank %" PRIu32 " lost rank %" PRIu32 ": %s", r->is.rank, r->is.rank == 0 ? connection + 1 : 0, why);
}

/* What a failed call of a connection says. A process that has ended is told of in several ways. */
static const char *why(int error) { return error == EPIPE || error == ECONNRESET ? "it ended" : strerror(error); }

/* A sign of life that has come while this rank sends; there is nothing else to come. */
static bool lives(const cli_ranks *r, uint32_t connection)
{
    char kind = DATA;
    if (recv(r->connections[connection], &kind, 1, MSG_PEEK | MSG_DONTWAIT) != 1 || kind != LIVES) return false;
    return recv(r->connections[connection], &kind, 1, MSG_DONTWAIT) == 1;
}

/* Until the connection can be read (POLLIN) or written (POLLOUT), or has ended, which the call that follows finds out. */
static int await(const cli_ranks *r, uint32_t connection, short event)
{
    const uint64_t most = (uint64_t)r->patience * 1000000000;
    for (uint64_t heard = base_now_ns(); base_now_ns() - heard <= most;) {
        struct pollfd at = {.fd = r->connections[connection], .events = (short)(event | POLLIN)};
        if (poll(&at, 1, 200) > 0 && (at.revents & ~POLLIN || event == POLLIN)) return CLI_OK;
        if (at.revents & POLLIN && lives(r, connection)) heard = base_now_ns();
        else if (at.revents & POLLIN) return gone(r, connection, "it ended");
    }
    char silent[60];
    snprintf(silent, sizeof silent, "it has been silent for %" PRIu32 " s", r->patience);
    return gone(r, connection, silent);
}

static int send_all(const cli_ranks *r, uint32_t connection, const void *from, size_t bytes)
{
    for (const char *at = from; bytes > 0;) {
        const ssize_t sent = send(r->connections[connection], at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            if (await(r, connection, POLLOUT) != CLI_OK) return CLI_FAILED;
            continue;
        }
        if (sent <= 0) return gone(r, connection, why(errno));
        at += sent;
        bytes -= (size_t)sent;
    }
    return CLI_OK;
}

static int receive_all(const cli_ranks *r, uint32_t connection, void *to, size_t bytes)
{
    for (char *at = to; bytes > 0;) {
        if (await(r, connection, POLLIN) != CLI_OK) return CLI_FAILED;
        const ssize_t got = recv(r->connections[connection], at, bytes, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return gone(r, connection, got == 0 ? "it ended" : why(errno));
        at += got;
        bytes -= (size_t)got;
    }
    return CLI_OK;
}

static int send_data(cli_ranks *r, uint32_t connection, const void *from, size_t bytes)
{
    const char kind = DATA;
    base_lock(&r->sending);
    int outcome = send_all(r, connection, &kind, 1);
    if (outcome == CLI_OK) outcome = send_all(r, connection, from, bytes);
    base_unlock(&r->sending);
    return outcome;
}

static int receive_data(const cli_ranks *r, uint32_t connection, void *to, size_t bytes)
{
    char kind = LIVES;
    while (kind == LIVES)
        if (receive_all(r, connection, &kind, 1) != CLI_OK) return CLI_FAILED;
    return kind == DATA ? receive_all(r, connection, to, bytes) : gone(r, connection, "it sends something else");
}

/* A thread: tells the others that this process lives. Whoever is gone is noticed by the exchanges. */
static void beat(void *argument)
{
    cli_ranks *r = argument;
    const char kind = LIVES;
    for (uint64_t last = base_now_ns(); !atomic_load(&r->leaves); base_pause_ns(PULSE_STEP_NS)) {
        if (base_now_ns() - last < PULSE_NS) continue;
        last = base_now_ns();
        base_lock(&r->sending);
        for (uint32_t i = 0; i < r->connected; i++) (void)send(r->connections[i], &kind, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        base_unlock(&r->sending);
    }
}

static dart_status gather(void *user, const void *own, size_t bytes, void *all)
{
    cli_ranks *r = user;
    int outcome = CLI_OK;
    if (r->is.rank != 0) {
        outcome = send_data(r, 0, own, bytes);
        if (outcome == CLI_OK) outcome = receive_data(r, 0, all, bytes * r->is.count);
        return outcome == CLI_OK ? DART_OK : DART_IO;
    }
    memcpy(all, own, bytes);
    for (uint32_t i = 0; i < r->connected && outcome == CLI_OK; i++) outcome = receive_data(r, i, (char *)all + bytes * (i + 1), bytes);
    for (uint32_t i = 0; i < r->connected && outcome == CLI_OK; i++) outcome = send_data(r, i, all, bytes * r->is.count);
    return outcome == CLI_OK ? DART_OK : DART_IO;
}

int cli_ranks_any(cli_ranks *r, bool own, bool *any)
{
    const uint8_t said = own;
    uint8_t *all = malloc(r->is.count);
    if (all == NULL) return cli_fail_memory();
    const dart_status status = gather(r, &said, sizeof said, all);
    *any = false;
    for (uint32_t i = 0; i < r->is.count && status == DART_OK; i++) *any = *any || all[i] != 0;
    free(all);
    return status == DART_OK ? CLI_OK : CLI_FAILED;
}

/* ---- Meeting ---- */

/* What a rank says first; rank 0 answers with the same. */
typedef struct hello {
    char word[8];
    uint32_t rank, count;
} hello;
#define HELLO_WORD "dartlm 1"

static void settle(const cli_ranks *r, int connection)
{
    const int yes = 1, idle = 20, every = 5, times = 4;
    (void)setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    (void)setsockopt(connection, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
#if defined(SO_NOSIGPIPE)
    (void)setsockopt(connection, SOL_SOCKET, SO_NOSIGPIPE, &yes, sizeof yes);
#endif
#if defined(TCP_USER_TIMEOUT)
    const unsigned most = 1000 * r->patience; /* while data is not acknowledged, keepalive does not ask */
    (void)setsockopt(connection, IPPROTO_TCP, TCP_USER_TIMEOUT, &most, sizeof most);
#endif
#if defined(TCP_KEEPIDLE)
    (void)setsockopt(connection, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    (void)setsockopt(connection, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
    (void)setsockopt(connection, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof times);
#else
    (void)idle, (void)every, (void)times;
#endif
}

static bool is_late(uint64_t begin) { return base_now_ns() - begin > MEETING_S * UINT64_C(1000000000); }

/* A stranger at the port is sent away: false. */
static bool greet(cli_ranks *r, int connection)
{
    hello said = {.rank = 0};
    const struct timeval patience = {.tv_sec = 10}, none = {.tv_sec = 0};
    (void)setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    const ssize_t got = recv(connection, &said, sizeof said, MSG_WAITALL);
    (void)setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
    const bool known = got == (ssize_t)sizeof said && memcmp(said.word, HELLO_WORD, sizeof said.word) == 0 && said.count == r->is.count &&
                       said.rank > 0 && said.rank < r->is.count && r->connections[said.rank - 1] < 0;
    if (!known) return false;
    settle(r, connection);
    r->connections[said.rank - 1] = connection;
    return true;
}

static int wait_for_all(cli_ranks *r, int listener, const char *place)
{
    const uint64_t begin = base_now_ns();
    for (uint32_t met = 0; met + 1 < r->is.count;) {
        struct pollfd at = {.fd = listener, .events = POLLIN};
        if (is_late(begin)) return cli_fail("--ranks: %" PRIu32 " of %" PRIu32 " ranks came to %s in %d s", met + 1, r->is.count, place, MEETING_S);
        if (poll(&at, 1, 200) <= 0) continue;
        const int connection = accept(listener, NULL, NULL);
        if (connection < 0) continue;
        if (greet(r, connection)) met++;
        else close(connection);
    }
    r->connected = r->is.count - 1;
    const hello answer = {.word = HELLO_WORD, .count = r->is.count};
    int outcome = CLI_OK;
    for (uint32_t i = 0; i < r->connected && outcome == CLI_OK; i++) outcome = send_all(r, i, &answer, sizeof answer);
    return outcome;
}

static int listen_at(cli_ranks *r, const struct addrinfo *address, const char *place)
{
    const int yes = 1, listener = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0) return cli_fail("--ranks: no socket: %s", strerror(errno));
    (void)setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    int outcome = CLI_OK;
    if (bind(listener, address->ai_addr, address->ai_addrlen) != 0 || listen(listener, 128) != 0)
        outcome = cli_fail("--ranks: rank 0 cannot listen at %s: %s", place, strerror(errno));
    for (uint32_t i = 0; i + 1 < r->is.count; i++) r->connections[i] = -1;
    if (outcome == CLI_OK) outcome = wait_for_all(r, listener, place);
    close(listener);
    return outcome;
}

/* Rank 0 may come later. */
static int connect_to(cli_ranks *r, const struct addrinfo *address, const char *place)
{
    const uint64_t begin = base_now_ns();
    const struct addrinfo *const first = address;
    const hello said = {.word = HELLO_WORD, .rank = r->is.rank, .count = r->is.count};
    hello answer = {.count = 0};
    r->connections[0] = -1;
    for (;;) {
        const int connection = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connection < 0) return cli_fail("--ranks: no socket: %s", strerror(errno));
        if (connect(connection, address->ai_addr, address->ai_addrlen) == 0) {
            r->connections[0] = connection;
            break;
        }
        close(connection);
        if (is_late(begin)) return cli_fail("--ranks: rank 0 did not answer at %s in %d s", place, MEETING_S);
        address = address->ai_next != NULL ? address->ai_next : first;
        if (address == first) base_pause_ns(100000000);
    }
    r->connected = 1;
    settle(r, r->connections[0]);
    int outcome = send_all(r, 0, &said, sizeof said);
    if (outcome == CLI_OK) outcome = receive_all(r, 0, &answer, sizeof answer);
    if (outcome == CLI_OK && (memcmp(answer.word, HELLO_WORD, sizeof answer.word) != 0 || answer.count != r->is.count))
        outcome = cli_fail("--ranks: who answers at %s is not rank 0 of this training", place);
    return outcome;
}

static int meet(cli_ranks *r, const char *place)
{
    char host[256];
    struct addrinfo *found = NULL;
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    const char *colon = strrchr(place, ':');
    uint64_t port = 0;
    if (colon == NULL || colon == place || (size_t)(colon - place) >= sizeof host || !args_whole(colon + 1, &port) || port == 0 || port > 65535)
        return cli_fail("--rendezvous '%s' is not HOST:PORT", place);
    snprintf(host, sizeof host, "%.*s", (int)(colon - place), place);
    const int error = getaddrinfo(host, colon + 1, &hints, &found);
    if (error != 0) return cli_fail("--rendezvous %s: %s", place, gai_strerror(error));
    const int outcome = r->is.rank == 0 ? listen_at(r, found, place) : connect_to(r, found, place);
    freeaddrinfo(found);
    return outcome;
}

int cli_ranks_join(cli_ranks *r, const char *rendezvous, uint32_t patience)
{
    char place[300];
    const char *host = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
    *r = (cli_ranks){.is = {.gather = gather, .user = r, .timeout_ns = patience * UINT64_C(1000000000)}, .patience = patience};
    int outcome = identify(r);
    if (outcome != CLI_OK) return outcome;
    snprintf(place, sizeof place, "%s:%s", host != NULL ? host : "127.0.0.1", port != NULL ? port : "29400");
    r->connections = calloc(r->is.count, sizeof *r->connections);
    if (r->connections == NULL || base_mutex_init(&r->sending) != DART_OK) return cli_fail_memory();
    if (r->is.count == 1) return CLI_OK;
    outcome = meet(r, rendezvous != NULL ? rendezvous : place);
    r->has_pulse = outcome == CLI_OK && base_thread_start(&r->pulse, beat, r) == DART_OK;
    return outcome != CLI_OK || r->has_pulse ? outcome : cli_fail("--ranks: no thread");
}

void cli_ranks_leave(cli_ranks *r)
{
    atomic_store(&r->leaves, true);
    if (r->has_pulse) base_thread_join(&r->pulse);
    for (uint32_t i = 0; i < r->connected; i++) close(r->connections[i]);
    if (r->connections != NULL) base_mutex_destroy(&r->sending);
    free(r->connections);
    r->connections = NULL;
    r->connected = 0;
    r->has_pulse = false;
}
