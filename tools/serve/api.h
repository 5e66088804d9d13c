/* The server's messages: requests from JSON, answers to JSON. Functions of their arguments, without sockets and threads. */
#ifndef DARTLM_SERVE_API_H
#define DARTLM_SERVE_API_H

#include "base/base.h"
#include "dartlm/model.h"
#include "dartlm/text.h"
#include "serve/names.h"

/* ---- Text that grows ---- */

/* Zero is empty. Without memory `failed` is set, and what is appended later is lost. */
typedef struct api_text {
    char *at;
    size_t bytes, capacity;
    bool failed;
} api_text;
void api_text_free(api_text *text);
void api_add(api_text *text, const char *bytes, size_t count);
void api_print(api_text *text, const char *format, ...) DART_PRINTF(2, 3);
/* A JSON string, with its quotes. What is not UTF-8 becomes U+FFFD. */
void api_add_string(api_text *text, const char *bytes, size_t count);

/* ---- Errors ---- */

typedef struct api_error {
    int status;         /* of HTTP; 0: none */
    const char *param;  /* the key that is wrong, or NULL */
    char message[240];
} api_error;
/* Returns false, so that a check can be one line. */
bool api_fail(api_error *error, int status, const char *param, const char *format, ...) DART_PRINTF(4, 5);
void api_write_error(api_text *to, const api_error *error);

/* ---- Requests ---- */

/* What a request may ask for. */
typedef struct api_limits {
    const char *model;        /* its name; a request that names another is refused */
    uint32_t V;               /* ids are below */
    uint32_t context;         /* the most tokens of a prompt and its answer */
    uint32_t prompts;         /* of a request */
    dart_tokenizer *tokenizer;
} api_limits;

enum {
    API_MOST_LOGPROBS = 20,
    API_MOST_STOPS = 64,
    API_MOST_STOP_IDS = DART_END_IDS - 1, /* the end of text is one, too */
    API_STOP_BYTES = 1024,
    API_DEPTH = 16,
    API_MOST_LISTS = 4096,     /* objects and lists of a body */
    API_MOST_VALUES = 1 << 22, /* in lists and objects of a body */
    API_MOST_IDS = 1 << 20,    /* of a list */
    API_MOST_ENTRIES = 1 << 21 /* log-probabilities of an answer, with those of other tokens */
};

typedef struct api_settings {
    uint32_t max_tokens;
    uint32_t n; /* answers to each prompt */
    int32_t logprobs; /* likeliest tokens beside the token itself, -1: no log-probabilities */
    bool echo, stream, usage; /* usage: a last chunk of the stream has it */
    bool ignore_eos;
    bool seeded;
    uint64_t seed;
    float temperature, top_p, min_p, repetition_penalty; /* as dart_sampling has them */
    uint32_t top_k;
    int32_t stop_ids[API_MOST_STOP_IDS]; /* tokens behind which an answer ends */
    uint32_t stop_ids_count;
    char *stops[API_MOST_STOPS];
    uint32_t stops_count;
} api_settings;

typedef struct api_prompt {
    char *text; /* as it came, or NULL where it came as ids */
    size_t bytes;
    dart_token_list ids;
} api_prompt;

typedef struct api_request {
    api_settings settings;
    api_prompt *prompts;
    uint32_t prompts_count;
} api_request;

/* Reads the body of /v1/completions. false with the error; the request is to be freed either way. */
bool api_read_completion(const char *body, size_t bytes, const api_limits *limits, api_request *request, api_error *error);
void api_request_free(api_request *request);
/* About how many bytes its answer takes. */
size_t api_answer_bytes(const api_request *request);

/* The bodies of /tokenize and /detokenize, straight to their answers. */
bool api_tokenize(const char *body, size_t bytes, const api_limits *limits, api_text *answer, api_error *error);
bool api_detokenize(const char *body, size_t bytes, const api_limits *limits, api_text *answer, api_error *error);

/* ---- Answers ---- */

/* Log-probabilities of tokens that follow one another. */
typedef struct api_scores {
    float *own;       /* of the token itself; of the first of a prompt it has no meaning */
    int32_t *top_ids; /* k of each, the likeliest first; -1: fewer there are not */
    float *top;
    size_t count, capacity;
    uint32_t k;
} api_scores;
bool api_scores_reserve(api_scores *scores, size_t more); /* false without memory */
/* The first `count` of other scores with as many likeliest tokens. false without memory. */
bool api_scores_append(api_scores *scores, const api_scores *from, size_t count);
void api_scores_free(api_scores *scores);

/* A part of one answer: all of it, or what a chunk of a stream has. */
typedef struct api_choice {
    uint32_t index;
    const char *text; /* behind the prompt */
    size_t bytes;
    const api_prompt *prompt;   /* to be repeated in front, or NULL */
    const int32_t *ids;         /* generated */
    size_t ids_count;
    const api_scores *scores;   /* of the prompt where it is repeated, then of ids; NULL: not wanted */
    size_t scores_at;           /* the first of them that belongs to this part */
    size_t offset;              /* code points of the tokens before, for text_offset */
    const char *finish;         /* "stop", "length", or NULL: it goes on */
} api_choice;

typedef struct api_head {
    const char *id, *model;
    int64_t created; /* seconds of Unix time */
} api_head;
typedef struct api_usage {
    uint64_t prompt, completion;
} api_usage;

/* The answer as one object. */
void api_write_completion(api_text *to, const api_head *head, const api_choice *choices, size_t count, const api_usage *usage, const api_names *names,
                          dart_tokenizer *tokenizer);
/* One event of a stream. usage without a choice: the last one before the end. Returns the code points of the tokens. */
size_t api_write_chunk(api_text *to, const api_head *head, const api_choice *choice, const api_usage *usage, const api_names *names,
                       dart_tokenizer *tokenizer);
/* The one model, and the list of it. */
void api_write_model(api_text *to, const char *model, int64_t created, uint32_t context);
void api_write_models(api_text *to, const char *model, int64_t created, uint32_t context);
void api_write_tokenizer(api_text *to, const api_names *names, dart_tokenizer *tokenizer);

#endif
