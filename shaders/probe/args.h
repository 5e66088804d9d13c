/* Arguments and contracts of the probes, which run when a device is opened and belong to no op; ../args.h has what all keep. */
#ifndef DART_PROBE_ARGS_H
#define DART_PROBE_ARGS_H

/* matrix_check: y = r 1^T + a b for matrices of side x side. One tile.
 * matrix2_check, from a, f32 side x side, and patterns, f32 side x side of which the upper 16 bits count:
 *   reduced    f32, in each element the sum of its row of a, by a reduction of the matrix;
 *   numbered   f32, 2 a + (side row + column), by a function of each element that writes to the matrix that it reads;
 *   converted  a as a matrix of the row's 16-bit type, two elements a word: what the conversion of sums makes of it;
 *   placed     a as f16, two elements a word, each element of a matrix of f16 sums set from the element of that number of
 *              a matrix of f32 sums;
 *   moved      those 16 bits of each pattern, two a word, set as elements of a matrix of f16 sums;
 *   joined     those of patterns i and i + 1 (of 0 after the last) put into word i as a pair of f16.
 * One tile. */
struct MatrixCheckArgs { U32 tiles, side; };

#endif
