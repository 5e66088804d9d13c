/* The parts of a tokenizer. Text goes: raw added tokens are cut out, the rest takes its normal form, added tokens of normal form are cut out, the
 * rest is split into pieces, and the bytes of each piece are merged to tokens. */
#ifndef DART_TOKENIZER_H
#define DART_TOKENIZER_H

#include "dartlm/text.h"
#include "unicode.h"

/* ---- Lists ---- */

bool text_list_reserve(dart_token_list *list, size_t more); /* false without memory */

/* ---- Vocabulary ---- */

enum { TEXT_NO_TOKEN = -1 };

typedef struct text_token {
    uint32_t first, count; /* its bytes as decoding gives them, in text_vocabulary.bytes */
    bool present;
    bool special;
} text_token;

/* A place of the table of pieces. */
typedef struct text_place {
    uint64_t key; /* the bytes of a piece of up to 8, else a hash */
    uint32_t count; /* with TEXT_UNREACHED where merging these bytes does not end with the token: finding one piece is then not enough. 0: empty */
    int32_t id;     /* TEXT_NO_TOKEN: empty */
} text_place;
#define TEXT_UNREACHED (1u << 31)

/* The id of a token and the rank of a merge have 21 bits. */
enum { TEXT_ID_BITS = 21, TEXT_RANK_BITS = 21, TEXT_MAX_IDS = 1 << TEXT_ID_BITS, TEXT_NO_RANK = (1 << TEXT_RANK_BITS) - 1 };

typedef struct text_vocabulary {
    text_bytes bytes;
    text_token *tokens; /* by id */
    uint32_t ids;       /* one more than the largest id */
    uint32_t count;     /* tokens */
    int32_t symbols[256]; /* the token of a byte, or TEXT_NO_TOKEN */
    uint32_t *symbol_ranks; /* by two bytes, 256 a + b: the rank of the merge of their tokens, or TEXT_NO_RANK */
    text_place *pieces; /* a hash table of tokens by their bytes, a power of two of places */
    uint64_t *pairs;    /* a hash table of first and second id and rank of merges, a power of two of places; UINT64_MAX: empty */
    uint32_t pieces_mask, pairs_mask;
    int32_t *merged;    /* by rank: what the pair becomes */
    uint32_t merges;
    bool ignore_merges; /* a piece that is a token is that token, whatever merging gives */
} text_vocabulary;

/* Room for ids below `ids`, at most TEXT_MAX_IDS, their pieces, and `merges` merges, at most TEXT_NO_RANK. false without memory;
 * text_vocabulary_free is due either way. */
bool text_vocabulary_reserve(text_vocabulary *v, uint32_t ids, uint32_t tokens, uint32_t merges);
void text_vocabulary_free(text_vocabulary *v);
/* A token whose id is below `ids` and not there yet; name is UTF-8. merges: pieces may become it, unlike added tokens. false without memory. */
bool text_vocabulary_add(text_vocabulary *v, int32_t id, const char *name, size_t bytes, bool merges);
/* The token of a name of byte symbols, or TEXT_NO_TOKEN, which all other names have. false without memory. */
bool text_vocabulary_find(const text_vocabulary *v, const char *name, size_t bytes, int32_t *id);
/* The merge of a and b to `to` with the next rank. The last one of equal pairs counts. */
void text_vocabulary_merge(text_vocabulary *v, int32_t a, int32_t b, int32_t to);
/* Once all is in: finds out which tokens merging reaches. false without memory. */
bool text_vocabulary_finish(text_vocabulary *v);
/* Appends the tokens of a piece of at least one byte. false without memory. */
bool text_encode_piece(const text_vocabulary *v, const uint8_t *piece, size_t bytes, dart_token_list *list);
/* The same for the pieces at the start of a text of `bytes` bytes that text_block_ends finds; they have *done bytes. */
bool text_encode_block(const text_vocabulary *v, const uint8_t *text, size_t bytes, dart_token_list *list, size_t *done);
/* The tokens of a piece by merging only. */
bool text_merge(const text_vocabulary *v, const uint8_t *piece, size_t bytes, dart_token_list *list);

/* ---- Pieces ---- */

typedef enum text_pattern {
    TEXT_PATTERN_GPT2,   /* also GPT-NeoX: contractions, letters, numbers, others, each with a space in front, and white space */
    TEXT_PATTERN_LLAMA3, /* numbers of one to three digits, no space in front; letters with any one character in front */
    TEXT_PATTERN_QWEN2   /* the same with numbers of one digit */
} text_pattern;
/* The pattern of a regular expression. false where it is none of them. */
bool text_pattern_find(const char *expression, text_pattern *pattern);
/* Where the piece ends that begins at `at`, which is below bytes. */
size_t text_piece_end(text_pattern pattern, const uint8_t *properties, const uint8_t *text, size_t at, size_t bytes);

/* The same for several pieces of GPT2's pattern, as far as they are ASCII and end in a block, a bit each for where they end: 0 where
 * text_piece_end has to find it. The first one begins with the block. `bytes` of text are there, at least 1; spaces follow where they are fewer
 * than a block's. */
enum { TEXT_BLOCK = 64 };
uint64_t text_block_ends(const uint8_t *block, size_t bytes);

/* ---- Added tokens ---- */

typedef struct text_added_token {
    const uint8_t *at; /* what is looked for */
    uint32_t count;
    int32_t id;
    bool special;
} text_added_token;
typedef struct text_added {
    text_bytes bytes;
    text_added_token *tokens; /* in order of bytes once finished */
    uint32_t count, capacity;
    bool firsts[256];
    uint8_t pairs[8192]; /* a bit for each first two bytes */
    /* Where all tokens have the same first byte, that one eight times; where they have the same second byte, that one, and all bits else. */
    bool same_first;
    uint64_t first, second, any_second;
} text_added;
/* false without memory */
bool text_added_add(text_added *added, const uint8_t *content, size_t bytes, int32_t id, bool special);
/* NULL, or the first of two tokens with the same content. */
const text_added_token *text_added_finish(text_added *added);
void text_added_free(text_added *added);
/* The token with this content, or NULL. */
const text_added_token *text_added_exact(const text_added *added, const uint8_t *content, size_t bytes);
/* The leftmost, and of those the longest, token at or behind `from`; NULL where there is none. */
const text_added_token *text_added_find(const text_added *added, const uint8_t *text, size_t from, size_t bytes, size_t *at);

/* ---- The whole ---- */

enum { TEXT_FRAME = 8 };

struct dart_tokenizer {
    base_report report;
    uint8_t *properties;
    text_vocabulary vocabulary;
    text_added raw, normal; /* looked for before and after normalising */
    text_pattern pattern;
    bool nfc;
    int32_t before[TEXT_FRAME], after[TEXT_FRAME]; /* what the post-processor adds */
    uint32_t before_count, after_count;
    int32_t bos, eos; /* TEXT_NO_TOKEN: none */
};

/* The token of a name, or TEXT_NO_TOKEN: an added token by its text, others as the file writes them. Names of
 * more than 256 bytes take memory; without it they are not found. */
int32_t text_tokenizer_find(const dart_tokenizer *t, const char *name, size_t bytes);
/* tokenizer.json and tokenizer_config.json. name is for messages. */
dart_status text_tokenizer_read(dart_tokenizer *t, const char *json, size_t bytes, const char *name, base_report *report);
dart_status text_config_read(dart_tokenizer *t, const char *json, size_t bytes, const char *name, base_report *report);

#endif
