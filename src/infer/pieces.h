/* Which tokens of a dart_prefill pass through the layers together. */
#ifndef DART_PIECES_H
#define DART_PIECES_H

#include "state.h"

/* A part of the batch and of its tokens: tokens t .. t + L - 1 of sequences b .. b + B - 1. Packed: all tokens of these sequences, T of them,
 * one sequence behind the other. */
typedef struct piece {
    uint32_t b, B, t, L;
    uint32_t T; /* 0: not packed */
    bool last;  /* of its sequences */
    uint64_t context; /* tokens up to the end of the longest of its sequences */
} piece;

/* Rows of tokens that it has. */
static inline uint32_t piece_rows(const piece *p) { return p->T > 0 ? p->T : p->B * p->L; }

/* The row of token t of sequence b. */
static inline uint32_t piece_row(const dart_state *state, const piece *p, uint32_t b, uint32_t t)
{
    return p->T > 0 ? (uint32_t)state->host_cu[b - p->b] + t : (b - p->b) * p->L + t - p->t;
}

/* Tokens of sequence b in the call. */
static inline uint32_t piece_count(const dart_prefill_args *a, uint32_t b) { return a->counts != NULL ? a->counts[b] : a->L; }

/* Tokens of sequence b in the piece. */
static inline uint32_t piece_part(const dart_prefill_args *a, const piece *p, uint32_t b)
{
    const uint32_t count = piece_count(a, b);
    if (count <= p->t) return 0;
    return count - p->t < p->L ? count - p->t : p->L;
}

/* Sequences of a part of the batch whose pieces are rows of one length, of sequences of L tokens. */
uint32_t piece_sequences(const dart_state *state, uint32_t L);
/* Tokens of each of B sequences that such a piece takes, of L that are left; the longest of them has `position` tokens so far. */
uint32_t piece_length(const dart_state *state, uint32_t B, uint32_t L, uint64_t position);
/* Sequences from b on as one packed piece, all that they have in the call. They must all begin here, and their tokens and the states of their chunks
 * must fit. false where packing does not do or does not pay. */
bool piece_pack(const dart_state *state, const dart_prefill_args *a, uint32_t b, piece *p);

#endif
