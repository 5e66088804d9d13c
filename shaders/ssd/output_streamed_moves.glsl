// What output_streamed.comp moves between buffers, the lanes' registers and shared memory, and products with rows of the stage;
// the variables are those of its main().
#define HIN_ROW(h) (((b * args.M + j) * args.H + (h)) * SIZE_N)
#define FETCH_HIN(words, h) \
    { \
        uint hin_first = (args.hin_at + (HIN_ROW(h) + row) * SIZE_P) / 8u + word; \
        [[unroll]] for (uint i = 0u; i < UNITS; i++) words[i] = quads_hin[hin_first + i * WORDS]; \
    }
#define FETCH_BELOW(h) \
    [[unroll]] for (uint i = 0u; i < UNITS; i++) lower[i] = quads_x[below_first + (h) * WORDS + i * x_row];
#define FETCH_OWN(h) \
    [[unroll]] for (uint i = 0u; i < UNITS; i++) own[i] = quads_x[own_rows[i] + (h) * WORDS];
#define FETCH_TOKENS(tokens, reference, h) \
    { \
        uint cum = (b * args.H + (h)) * args.L + chunk.begin; \
        reference = cum_at(cum + max(t_first, 1u) - 1u).xy; \
        tokens = cum_at(cum + min(LANE, t_end - 1u)); \
    }
// Loads before this are made before what follows.
#define ISSUE subgroup_sync();
#ifdef MATRIX_BF16
#define FETCH_SCALES(h)
#define PUT_HIN(half_at, words, h) \
    if (has(args.flags, HAS_HIN_SCALE)) { \
        [[unroll]] for (uint i = 0u; i < UNITS; i++) \
            PUT_UNIT(half_at, i, scale_eight(words[i], load_hin_scale(args.hin_scale_at + HIN_ROW(h) + (row + i)))) \
    } else { \
        PUT(half_at, words) \
    }
#else
#define FETCH_SCALES(h) \
    { \
        uint scale_first = args.hin_scale_at + HIN_ROW(h); \
        own_scales = quads_hin_scale[(scale_first + row) / 4u]; \
        all_scales = quads_hin_scale[scale_first / 4u + gl_SubgroupInvocationID]; \
    }
#define PUT_HIN(half_at, words, h) \
    { \
        largest_scale = subgroupMax(max(max(all_scales.x, all_scales.y), max(all_scales.z, all_scales.w))); \
        float shrink = largest_scale > 0.0 ? 1.0 / largest_scale : 0.0; \
        [[unroll]] for (uint i = 0u; i < UNITS; i++) PUT_UNIT(half_at, i, scale_eight(words[i], own_scales[i] * shrink)) \
    }
#endif
#define PUT_UNIT(half_at, i, unit) stage[put_at + (half_at) + (i) * PITCH] = unit;
#define PUT(half_at, words) [[unroll]] for (uint i = 0u; i < UNITS; i++) PUT_UNIT(half_at, i, words[i])
#define PUT_BELOW(half_at) \
    { \
        vec4 factors = before[now * BEFORE + row / 4u]; \
        [[unroll]] for (uint i = 0u; i < UNITS; i++) PUT_UNIT(half_at, i, WEIGH(lower[i], factors[i])) \
    }
// sums += a left factor of the subgroup's rows times MATRIX_K rows of the stage.
#define ADD(left, from) \
    [[unroll]] for (uint n = 0u; n < TN; n++) { \
        MatrixB column; \
        coopMatLoad(column, stage, (from) + n * MATRIX_N / 8u, PITCH, ROW_MAJOR); \
        sums[n] = coopMatMulAdd(left, column, sums[n]); \
    }
#ifdef MATRIX_BF16
#define PUT_TOP(set)
#else
#define PUT_TOP(set) \
    { \
        float top = subgroupMax(LANE < t_first ? before[(set) * BEFORE + LANE / 4u][LANE % 4u] : 0.0); \
        if (subgroupElect()) tops[(set) * SUBGROUPS / 4u + gl_SubgroupID / 4u][gl_SubgroupID % 4u] = top; \
    }
#endif
// What a head's tokens weigh, into shared memory.
#define PUT_FACTORS(set, tokens, reference) \
    { \
        if (!below) reference = vec2(0.0); \
        float step = min(tokens.z, LARGEST_STEP / CUT) * CUT; \
        if (LANE < t_first) { \
            before[(set) * BEFORE + LANE / 4u][LANE % 4u] = decay_exp(cum_between(tokens.xy, reference)) * step; \
        } else if (LANE < t_first + T1) { \
            float left = cum_between(reference, tokens.xy) * 1.44269504; \
            bool none = (floatBitsToUint(left) & 0x7fffffffu) > 0x7f800000u; /* by its bits: what min and max do with NaN is open */ \
            if (!none) left = clamp(left, LEAST_LOG, 0.0); \
            uint t = (set) * T1 + LANE - t_first; \
            logs[t] = left; \
            after[t] = exp2(left); \
            sources[t] = none ? vec2(-LEAST_LOG, 0.0) : vec2(left, step); \
        } \
        PUT_TOP(set) \
        enter = decay_exp(reference.x); \
    }
