/* dartlm, text: from text to token ids and back, by the tokenizer.json of Hugging Face's tokenizers.
 *
 * Encoding cuts the added tokens whose "normalized" is false out of the text, brings what is left between them into normal form
 * (NFC, where the file says so), cuts the other added tokens out of that, splits the rest into pieces by the file's pattern, and turns each piece
 * into tokens by byte pair encoding: its bytes are the first tokens, and the pair of neighbours of lowest rank, of equal ones the leftmost,
 * becomes one token until no pair has a rank. Added tokens are found leftmost, of those that begin at one place the longest.
 *
 * Files accepted: models of type BPE on bytes (pre-tokenizer and decoder ByteLevel), with no normalizer or NFC, and the patterns of GPT-2 (GPT-NeoX,
 * Pythia, Mamba), Llama-3 and Qwen2. A file that asks for something else is DART_UNSUPPORTED, and the text of the error names key and value: what
 * is accepted is computed as `tokenizers` 0.23.3 does, whose Unicode classes (version 16) and normal form (about version 9) are used.
 *
 * LAWS, besides those of dartlm.h.
 *   Text       UTF-8. U+0000 is a character as others. A text has at most DART_TEXT_BYTES bytes.
 *   Threads    A tokenizer does not change and may be used by several threads at once; a text stream by one thread at a time.
 *   Lifetime   Destroy text streams before their tokenizer. A tokenizer needs no context and no device; its file is closed once it is open.
 *   Errors     dart_tokenizer_error has the text of the last failure of a tokenizer or its streams, in whichever thread.
 */
#ifndef DARTLM_TEXT_H
#define DARTLM_TEXT_H

#include "dartlm/dartlm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Tokenizers ---------------------------------------------------------------------------------------------- */

typedef struct dart_tokenizer dart_tokenizer;

/* The most bytes of a text that is encoded in one call: 1 GiB. */
#define DART_TEXT_BYTES ((size_t)1 << 30)

/* Reads path, or tokenizer.json in the folder path; and tokenizer_config.json beside it where there is one, of which only bos_token and eos_token
 * matter. DART_IO, DART_BAD_DATA (the text names the place), DART_UNSUPPORTED (the text names key and value), DART_OUT_OF_MEMORY. error, optional,
 * receives the text, cut to error_size bytes. */
DART_API dart_status dart_tokenizer_open(const char *path, dart_tokenizer **tokenizer, char *error, size_t error_size);
/* The same of files in memory, which may go afterwards. config, optional: the contents of tokenizer_config.json. */
typedef struct dart_tokenizer_source {
    const char *json;
    size_t json_bytes;
    const char *config;
    size_t config_bytes;
} dart_tokenizer_source;
DART_API dart_status dart_tokenizer_create(const dart_tokenizer_source *source, dart_tokenizer **tokenizer, char *error, size_t error_size);
DART_API void dart_tokenizer_destroy(dart_tokenizer **tokenizer);
/* As dart_context_error. */
DART_API size_t dart_tokenizer_error(const dart_tokenizer *tokenizer, char *text, size_t size);

typedef struct dart_tokenizer_info {
    uint32_t ids;    /* one more than the largest id. A model may have more, as its V is often rounded up: no text encodes to those. */
    uint32_t tokens; /* ids that have a token */
    int32_t bos;     /* the id of bos_token in tokenizer_config.json, or -1 */
    int32_t eos;     /* of eos_token: ends a text */
    bool nfc;        /* text is brought into normal form */
    bool frames;     /* dart_encode_options.frame adds tokens */
} dart_tokenizer_info;
DART_API dart_status dart_tokenizer_describe(const dart_tokenizer *tokenizer, dart_tokenizer_info *info);
/* The id of a token by its name: an added token by its text, others as the file has them (a space is written U+0120). -1 where there is none. */
DART_API int32_t dart_tokenizer_find(const dart_tokenizer *tokenizer, const char *name);

/* ---- Encoding ------------------------------------------------------------------------------------------------ */

/* Ids that calls append to. Zero is an empty list; the memory is the library's until dart_token_list_free, which leaves an empty list. */
typedef struct dart_token_list {
    int32_t *ids;
    size_t count, capacity;
} dart_token_list;
DART_API void dart_token_list_free(dart_token_list *list);
/* Appends one. DART_OUT_OF_MEMORY leaves the list as it was. */
DART_API dart_status dart_token_list_add(dart_token_list *list, int32_t id);

typedef struct dart_encode_options {
    bool plain; /* special tokens in the text are text like any other: for text that is not trusted. Added tokens that are not special stay tokens. */
    bool frame; /* add the tokens that the file's post-processor puts before and behind a text */
    /* Optional: called first and about once a mebibyte of text, between pieces, from the thread of the call, with bytes that are encoded and bytes of
     * the text; false ends the call with DART_CANCELLED, and the list holds what it held before. Other threads may use the tokenizer meanwhile. */
    bool (*go_on)(void *user, uint64_t done, uint64_t of);
    void *user;
} dart_encode_options;
/* Appends the tokens of `bytes` bytes of text. options may be NULL. DART_BAD_DATA where text is not UTF-8 (the text of the error names the byte),
 * DART_INVALID_ARGUMENT above DART_TEXT_BYTES, DART_OUT_OF_MEMORY; the list then holds what it held before. Takes time proportional to the
 * text, but n log n for a piece of n bytes where tokens are hundreds of bytes long. */
DART_API dart_status dart_tokenizer_encode(dart_tokenizer *tokenizer, const char *text, size_t bytes, const dart_encode_options *options,
                                           dart_token_list *list);

/* ---- Decoding ------------------------------------------------------------------------------------------------ */

/* Text from tokens that come one after another. The bytes of a token need not be whole characters: bytes that may begin one are kept back until it
 * is complete, so that what has been given is always whole characters, and the same however ids are grouped in calls. U+FFFD stands for each
 * longest part of bytes that cannot become a character. */
typedef struct dart_text_stream dart_text_stream;

typedef struct dart_text_options {
    bool with_special;        /* special tokens give their text; by default they give none */
    const char *const *stops; /* stops_count texts, each ends the stream where it first occurs; text that may begin one is kept back */
    uint32_t stops_count;
} dart_text_options;
/* options may be NULL; the stops are copied. DART_INVALID_ARGUMENT for a stop that is empty or not UTF-8. */
DART_API dart_status dart_text_stream_create(dart_tokenizer *tokenizer, const dart_text_options *options, dart_text_stream **stream);
DART_API void dart_text_stream_destroy(dart_text_stream **stream);
/* Consumes count ids. *text is what they add, *bytes long, and stays valid until the next call on this stream. Ids without a token give nothing.
 * Once a stop has occurred, *stopped (optional) is true: the text before it has been given, and nothing follows. */
DART_API dart_status dart_text_stream_feed(dart_text_stream *stream, const int32_t *ids, size_t count, const char **text, size_t *bytes,
                                           bool *stopped);
/* Ends the text: returns the bytes that were kept back, and resets the stream. */
DART_API dart_status dart_text_stream_end(dart_text_stream *stream, const char **text, size_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
