#define _POSIX_C_SOURCE 200809L
#include "serve/access.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

enum { LONGEST = 255 };

/* The host without its port and the brackets of IPv6. false: it is none. */
static bool cut_port(const char *host, char to[LONGEST + 1])
{
    const char *end = host + strlen(host);
    if (host[0] == '[') {
        end = strchr(++host, ']');
        if (end == NULL || (end[1] != '\0' && end[1] != ':')) return false;
    } else if (strchr(host, ':') != NULL) end = strchr(host, ':');
    const size_t count = (size_t)(end - host);
    if (count == 0 || count > LONGEST) return false;
    memcpy(to, host, count);
    to[count] = '\0';
    return true;
}

bool access_host(const char *host, const char *const *names, size_t count)
{
    char name[LONGEST + 1];
    struct in6_addr address; /* room for either family */
    if (host == NULL) return true;
    if (!cut_port(host, name)) return false;
    if (strcasecmp(name, "localhost") == 0 || inet_pton(AF_INET, name, &address) == 1 || inet_pton(AF_INET6, name, &address) == 1) return true;
    for (size_t i = 0; i < count; i++)
        if (strcasecmp(name, names[i]) == 0) return true;
    return false;
}

bool access_origin(const char *origin, const char *host)
{
    if (origin == NULL) return true;
    if (host == NULL) return false;
    if (strncasecmp(origin, "http://", 7) == 0) return strcasecmp(origin + 7, host) == 0;
    return strncasecmp(origin, "https://", 8) == 0 && strcasecmp(origin + 8, host) == 0;
}

bool access_key(const char *authorization, const char *key)
{
    static const char scheme[] = "Bearer ";
    const bool bearer = authorization != NULL && strncasecmp(authorization, scheme, sizeof scheme - 1) == 0;
    const char *given = bearer ? authorization + sizeof scheme - 1 : "";
    const size_t given_count = strlen(given), count = strlen(key);
    unsigned differs = bearer ? 0 : 1;
    differs |= given_count != count;
    /* As many comparisons as were given, whatever the key is. */
    for (size_t i = 0; i < given_count; i++) differs |= (unsigned char)given[i] ^ (unsigned char)key[count > 0 ? i % count : 0];
    return differs == 0;
}

bool access_is_local(const char *address)
{
    struct in6_addr six;
    struct in_addr four;
    if (inet_pton(AF_INET, address, &four) == 1) return ntohl(four.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, address, &six) == 1 && memcmp(&six, &in6addr_loopback, sizeof six) == 0;
}
