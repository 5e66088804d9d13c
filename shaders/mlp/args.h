/* Arguments and contracts of the kernels of mlp; the contract of every kernel is in ../args.h. */
#ifndef DART_MLP_ARGS_H
#define DART_MLP_ARGS_H

/* Pairs (i, i + R/2) of the first R elements of each head turned by position r^i radians, r below 1; backwards with IS_INVERSE. The other
 * D - R elements stay as they are. Token t of sequence b has the position seq[2 b] + t, or t. Rows past the count become 0 with IS_INVERSE.
 * y may be x.
 * Angles are exact to 2^-31 turns at every position, in whole numbers: rk_high, rk_low are the two words of the fraction r^(2^k), from
 * which r^i / (2 pi) is multiplied as a fraction of 64 bits; its product with the position keeps the 32 bits of the fraction of a turn.
 * (ah, al) (bh, bl) = ah bh + the upper words of ah bl and al bh.
 * Tile: T0 tokens, row by row, all heads. */
struct RopeArgs {
    U32 tiles, flags, B, L, T, H, D, R, x_at, x_row, seq_at, y_at, y_row, r0_high, r0_low, r1_high, r1_low, r2_high, r2_low, r3_high, r3_low, r4_high,
        r4_low, r5_high, r5_low, r6_high, r6_low;
};
#define IS_INVERSE 2u
#define TURN_HIGH 0x28be60dbu /* 1 / (2 pi) as a fraction of 64 bits */
#define TURN_LOW 0x9391054au

/* h = a (1 + erf(a / sqrt(2))) / 2, or with IS_TANH a / (1 + exp(-2 v)), v = sqrt(2 / pi) (a + 0.044715 a^3), which is
 * a (1 + tanh(v)) / 2. Tile: T0 consecutive elements of rows x width, counted row by row. */
struct GeluArgs { U32 tiles, flags, rows, width, a_at, a_row, h_at, h_row; };

/* h = SiLU(a) u. Tile: T0 consecutive elements of rows x width, counted row by row. */
struct SwigluArgs { U32 tiles, rows, width, a_at, a_row, u_at, u_row, h_at, h_row; };
/* grad_a = up_h u SiLU'(a), grad_u = up_h SiLU(a). Tile as in swiglu. */
struct SwigluBackwardArgs {
    U32 tiles, rows, width, a_at, a_row, u_at, u_row, up_h_at, up_h_row, grad_a_at, grad_a_row, grad_u_at, grad_u_row;
};

#endif
