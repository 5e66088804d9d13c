/* Arguments and contracts of the kernels of probe; ../args.h has what all keep. */
#ifndef DART_PROBE_ARGS_H
#define DART_PROBE_ARGS_H

/* y = r 1^T + a b, see matrix_check.comp; the check of matrix hardware, not an op. One tile. */
struct MatrixCheckArgs { U32 tiles, side; };

#endif
