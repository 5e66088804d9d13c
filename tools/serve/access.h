/* Who may ask: what headers say, as functions of texts. */
#ifndef DARTLM_SERVE_ACCESS_H
#define DARTLM_SERVE_ACCESS_H

#include <stdbool.h>
#include <stddef.h>

/* Whether a Host header names this server: by a number, by "localhost", or by one of the names, with or without a port. A web page can make its
 * own name stand for 127.0.0.1 (DNS rebinding), but no number and no other name. NULL, no header, is accepted. */
bool access_host(const char *host, const char *const *names, size_t count);
/* Whether an Origin header, which browsers send with the requests of pages, is this server's own. NULL is accepted: no browser asks. */
bool access_origin(const char *origin, const char *host);
/* Whether an Authorization header is "Bearer " and the key. Takes a time that does not depend on how much of it is right. */
bool access_key(const char *authorization, const char *key);
/* Whether an address, in numbers, is reached from this machine only. */
bool access_is_local(const char *address);

#endif
