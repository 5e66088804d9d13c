/* Mutations of requests over HTTP. Include once, after mutate.h. */
#ifndef DARTLM_TESTS_MUTATE_HTTP_H
#define DARTLM_TESTS_MUTATE_HTTP_H

#include "base/base.h"

static const char *const http_words[] = {
    "\r\n", "\n", "\r", " ", ":", "\r\n\r\n", "\t", "%", "%00", "%2e%2e/", "?a=b&c", "*", "\xFF", "\x1b[31m", "HTTP/1.0", "HTTP/1.1", "HTTP/0.9",
    "HTTP/2.0", "HTTP/11", "GET ", "HEAD ", "POST ", "PUT ", "DELETE ", "OPTIONS ", "TRACE ", "CONNECT ", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "/health", "/v1/models/", "/v1/completions", "/metrics", "http://localhost/health", "Host: localhost\r\n", "Host: evil.example\r\n",
    "Host:\r\n", "Origin: http://evil.example\r\n", "Authorization: Bearer \r\n", "Authorization: Bearer s3cre\r\n", "Content-Length: 5\r\n",
    "Content-Length: -1\r\n", "Content-Length: +5\r\n", "Content-Length: 0x10\r\n", "Content-Length: 5, 5\r\n", "Content-Length: \r\n",
    "Content-Length: 18446744073709551615\r\n", "Content-Length: 99999999999999999999\r\n", "Content-Length : 3\r\n",
    "Transfer-Encoding: chunked\r\n", "Transfer-Encoding: gzip, chunked\r\n", "Transfer-Encoding: identity\r\n",
    "Transfer-Encoding: chunked, chunked\r\n", "Expect: 100-continue\r\n", "Expect: x\r\n", "Connection: close\r\n", "Connection: keep-alive\r\n",
    "Connection: upgrade\r\n", "Upgrade: websocket\r\n", "Range: bytes=0-1\r\n", "Cookie: a=b; =; ;\r\n", "Content-Encoding: gzip\r\n",
    "Accept-Encoding: gzip\r\n", " folded\r\n", "0\r\n\r\n", "1\r\n", "5;x\r\n", "-1\r\n", "7fffffff\r\n", "ffffffffffffffff\r\n",
    "00000000000000000000000000000001\r\n", "\"stream\":true,", "\"n\":40,", "\"max_tokens\":80,",
};

static inline size_t mutate_http(uint8_t *text, size_t size)
{
    static const uint8_t fillers[] = "a \0\r\n:%/0";
    uint8_t piece[600];
    const size_t at = random_below(size + 1), count = random_below(sizeof piece);
    const char *word = http_words[random_below(COUNT_OF(http_words))];
    switch (random_below(8)) {
    case 0:
        if (at < size) text[at] ^= (uint8_t)(1u << random_below(8));
        return size;
    case 1: return replace(text, size, at, random_below(4), word, strlen(word));
    case 2: { /* a word at the beginning of a line */
        const uint8_t *const line = memchr(text + at, '\n', size - at);
        return line != NULL ? replace(text, size, (size_t)(line - text) + 1, 0, word, strlen(word)) : size;
    }
    case 3: return replace(text, size, at, random_below(40), "", 0);
    case 4: /* a part once more, elsewhere */
        memcpy(piece, text + at, count < size - at ? count : size - at);
        return replace(text, size, random_below(size + 1), 0, piece, count < size - at ? count : size - at);
    case 5: { /* a digit for a digit: of lengths, versions and sizes of chunks */
        size_t i = at;
        while (i < size && (text[i] < '0' || text[i] > '9')) i++;
        if (i < size) text[i] = (uint8_t)('0' + random_below(10));
        return size;
    }
    case 6: /* far too much of something */
        if (random_below(4) == 0) {
            static const size_t most[] = {300, 5000, 40000, 70000};
            const size_t length = 1 + random_below(most[random_below(COUNT_OF(most))]);
            if (size + length <= CAPACITY) {
                memmove(text + at + length, text + at, size - at);
                memset(text + at, fillers[random_below(sizeof fillers - 1)], length);
                size += length;
            }
        }
        return size;
    default: return random_below(4) == 0 ? at : size; /* cut */
    }
}

#endif
