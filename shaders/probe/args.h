/* Arguments and contracts of the probes, which run when a device is opened and belong to no op; the contract of every kernel is in ../args.h. */
#ifndef DART_PROBE_ARGS_H
#define DART_PROBE_ARGS_H

/* matrix_check: y = 2 (r 1^T + a b) for matrices of side x side, doubled element by element. One tile.
 * matrix2_check, from a, f32 side x side, and patterns, f32 side x side of which the upper 16 bits count:
 *   reduced    f32, in each element the sum of its row of a, by a reduction of the matrix;
 *   summed     f32, in each element the sum of its column of a, likewise;
 *   numbered   f32, 2 a + (side row + column), by an element function whose result replaces the matrix that it reads;
 *   converted  a, converted from a matrix of f32 sums to the 16-bit type of the variant, two elements a word;
 *   placed     a as f16, two elements a word: element i of a matrix of f16 sums set from element i of a matrix of f32 sums,
 *              in every invocation;
 *   moved      the upper 16 bits of each pattern, two a word, moved through elements of a matrix of f16 sums;
 *   joined     the upper 16 bits of patterns i and i + 1 (of pattern 0 after the last), packed into word i as a pair of f16.
 * One tile. */
struct MatrixCheckArgs { U32 tiles, side; };

/* wide_check: y[i] = last + sum_{j <= 16} a_j[i] w_j + sum_{j > 16} w_j for i < count, with inputs a_0 to a_16. The kernel of no op has
 * more bindings or longer arguments, which are more than push constants hold. No op launches it; a test checks with it that a backend
 * passes on all arguments and bindings.
 * Tile: T0 elements. */
struct WideCheckArgs {
    U32 tiles, count, a00_at, a01_at, a02_at, a03_at, a04_at, a05_at, a06_at, a07_at, a08_at, a09_at, a10_at, a11_at, a12_at, a13_at, a14_at,
        a15_at, a16_at, y_at, w00, w01, w02, w03, w04, w05, w06, w07, w08, w09, w10, w11, w12, w13, w14, w15, w16, w17, w18, w19, w20, w21, w22,
        w23, w24, w25, w26, w27, w28, w29, w30;
    F32 last;
};

/* Workgroups that wait for one another: in round i, from 1 on, workgroup w posts 256 i + w for the others and waits until it has what all of them
 * have posted. r[w] = the sum of those numbers over `rounds` rounds, 0 where it has waited in vain. posts: two words a workgroup, its number and
 * above it the round; 0 before. Tile: a workgroup, all of which run side by side. */
struct ResidentCheckArgs { U32 tiles, rounds; };

#endif
