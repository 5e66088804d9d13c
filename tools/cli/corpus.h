/* Files as one line of tokens, for language models. */
#ifndef DARTLM_CORPUS_H
#define DARTLM_CORPUS_H

#include "args.h"
#include "base/file.h"
#include "checkpoint/safetensors.h"
#include "dartlm/text.h"

/* A file: bytes or a tensor of token ids, which stay where the file is mapped, or the tokens of a text. */
typedef struct corpus_file {
    file_map map;      /* of bytes */
    dart_token_list tokens; /* of a text */
    safetensors *shard;
    const uint8_t *at;
    uint32_t width;    /* bytes of a token: 1, 2 or 4 */
    uint64_t first, count; /* place in the line; count without the end id that follows bytes */
} corpus_file;

/* With bytes, a token is a byte, each file a document, and CORPUS_END_ID comes behind it. With a tokenizer, each file is text, a document, and the
 * tokenizer's end of text comes behind it, where it has one. Else a file is safetensors with a tensor "tokens" (U16 or U32, of any shape),
 * documents one after another with whatever id ends them, and in its metadata "vocabulary": the number of ids, and perhaps "end": the id that ends
 * a document, the same in all files. */
enum { CORPUS_END_ID = 256 };
typedef struct corpus {
    corpus_file files[ARGS_MAX_LIST];
    uint32_t files_count;
    bool bytes;
    uint32_t V;
    int64_t end; /* the id behind every document; -1: not said */
    uint64_t count; /* tokens */
    uint64_t checksum;
} corpus;

/* Reads all of the files once; tokenizer is a path or NULL, and not to go with bytes. Returns CLI_OK, or CLI_FAILED after telling stderr why; the
 * caller closes the corpus either way. */
int corpus_open(corpus *c, const args_list *files, bool bytes, const char *tokenizer);
void corpus_close(corpus *c);
/* ids first .. first + L - 1, and as targets the ids that follow each. first + L < count. */
void corpus_cut(const corpus *c, uint64_t first, uint32_t L, int32_t *ids, int32_t *targets);

/* Documents that the ids of L tokens hold: a new one begins behind each end id. */
uint32_t corpus_documents(const int32_t *ids, uint32_t L, int64_t end);

/* For tables of options. */
#define CORPUS_OPTIONS(files, is_bytes) \
    {"data", 0, ARGS_LIST, "FILE", &(files), "tokens, one file after another: safetensors with a tensor \"tokens\" (U16 or\nU32) and " \
     "\"vocabulary\" in its metadata", 0, 0, true}, \
    {"bytes", 0, ARGS_FLAG, NULL, &(is_bytes), "files of any kind: tokens are bytes, and 256 behind each file", 0, 0, false}
#define CORPUS_TOKENIZER(path) \
    {"tokenizer", 0, ARGS_TEXT, "PATH", &(path), "files of text: tokens are those of this tokenizer.json, or of the one in this\nfolder, its end " \
     "of text behind each file", 0, 0, false}
#endif
