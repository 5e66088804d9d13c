/* Arguments and contracts of the kernels of optim; the contract of every kernel is in ../args.h. Everything is packed f32, but for `copy`. */
#ifndef DART_OPTIM_ARGS_H
#define DART_OPTIM_ARGS_H

/* partial[partial_at + i] = the sum of the squares of x[T0 i .. T0 i + T0 - 1]; infinity where one of them is not finite. Tile: T0 elements. */
struct SquareSumArgs { U32 tiles, count, x_at, partial_at; };

/* norm = factor times the root of the sum of `count` partials: each of N lanes adds up every N-th one, in order and compensated, then the lanes
 * are added in pairs. factor is 1 without HAS_FACTOR.
 * scale = {norm, factor min(1, clip / (norm + 1e-6)), 1, 0}, or {infinity, 0, 0, 0} where the sum is not finite. One tile. */
struct GradScaleArgs { U32 tiles, flags, count, factor_at, scale_at; F32 clip; };
#define HAS_FACTOR 4u

/* hyper = {lr, beta1, beta2, eps, c1, c2, decay, 0}, scale = {norm, k, finite, 0}; nothing changes where finite is 0. Else
 *   m = beta1 m + (1 - beta1) k grad;  v = beta2 v + (1 - beta2) (k grad)^2;
 *   w -= lr (m / c1 / (sqrt(v / c2) + eps) + decay w), the last term with DECAYS;  copy = w rounded (HAS_COPY).
 * Tile: T0 consecutive elements. */
struct AdamwArgs { U32 tiles, flags, count, w_at, m_at, v_at, grad_at, scale_at, hyper_at, copy_at; };
#define DECAYS 1u
#define HAS_COPY 2u

#endif
