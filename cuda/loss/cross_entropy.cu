// Of a row with a label: parts = {share (lse - logit of the target), 1 if the target is the lowest index of the largest logit, else 0};
// HAS_GRADIENT: logits = share (exp(logits - lse) - onehot). Without a label both become 0. A block takes a row: each thread carries the
// largest logit of every 256th column and the sum of exponentials below it; a second pass replaces the logits. A row with a logit that is
// not finite gives NaN.
#include "lib/dart.cuh"

KERNEL_FUNCTION(cross_entropy, simt)
{
    const int32_t *targets = INTS(cross_entropy, targets) + args.targets_at;
    const float share = FLOATS(cross_entropy, share)[args.share_at];
    const bool gradient = args.flags & HAS_GRADIENT;
    FOR_TILES(tile) {
        const int32_t target = targets[tile];
        float *logits = FLOATS(cross_entropy, logits) + args.logits_at + size_t(tile) * args.width;
        float *parts = FLOATS(cross_entropy, parts) + args.parts_at + 2 * size_t(tile);
        if (target < 0 || uint32_t(target) >= args.width) {
            for (uint32_t i = threadIdx.x; i < args.width && gradient; i += block_size) logits[i] = 0.0f;
            if (threadIdx.x < 2) parts[threadIdx.x] = 0.0f;
            continue;
        }
        const float own = logits[target];
        float top = lowest, sum = 0.0f, trouble = 0.0f; // 1: the target is not the choice; 2: a logit is not finite
        for (uint32_t i = threadIdx.x; i < args.width; i += block_size) {
            const float logit = logits[i];
            if ((__float_as_uint(logit) & 0x7f800000u) == 0x7f800000u) trouble = 2.0f;
            if (logit > own || (logit == own && i < uint32_t(target))) trouble = fmaxf(trouble, 1.0f);
            const float next = fmaxf(top, logit);
            sum = sum * exp_below(top - next) + exp_below(logit - next);
            top = next;
        }
        trouble = block_top(trouble); // its barriers also keep the target's logit until every thread has read it
        const float highest = block_top(top), total = block_sum(sum * exp_below(top - highest)), broken = __uint_as_float(0x7fc00000u);
        if (threadIdx.x == 0) {
            parts[0] = trouble > 1.0f ? broken : share * ((highest - own) + logf(total));
            parts[1] = trouble > 0.0f ? 0.0f : 1.0f;
        }
        if (!gradient) continue;
        const float factor = share / total;
        for (uint32_t i = threadIdx.x; i < args.width; i += block_size) {
            const float grad = exp_below(logits[i] - highest) * factor;
            logits[i] = trouble > 1.0f ? broken : i == uint32_t(target) ? grad - share : grad;
        }
    }
}

// The same for a width that is a multiple of 16 and at most 32 logits a thread: a block keeps its row in registers, so that it is read once, in
// words of 16 bytes, and each exponential is computed once.
KERNEL_FUNCTION(cross_entropy, short)
{
    constexpr uint32_t kept = 8; // words of a thread
    const int32_t *targets = INTS(cross_entropy, targets) + args.targets_at;
    const float share = FLOATS(cross_entropy, share)[args.share_at];
    const bool gradient = args.flags & HAS_GRADIENT;
    const uint32_t words = args.width / 4;
    FOR_TILES(tile) {
        const int32_t target = targets[tile];
        float *logits = FLOATS(cross_entropy, logits) + args.logits_at + size_t(tile) * args.width;
        float4 *quads = reinterpret_cast<float4 *>(logits);
        float *parts = FLOATS(cross_entropy, parts) + args.parts_at + 2 * size_t(tile);
        if (target < 0 || uint32_t(target) >= args.width) {
            for (uint32_t i = threadIdx.x; i < words && gradient; i += block_size) quads[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (threadIdx.x < 2) parts[threadIdx.x] = 0.0f;
            continue;
        }
        const float own = logits[target];
        float v[4 * kept];
#pragma unroll
        for (uint32_t k = 0; k < kept; k++) {
            const uint32_t i = threadIdx.x + k * block_size;
            const float4 word = i < words ? quads[i] : make_float4(lowest, lowest, lowest, lowest);
            v[4 * k] = word.x;
            v[4 * k + 1] = word.y;
            v[4 * k + 2] = word.z;
            v[4 * k + 3] = word.w;
        }
        float top = lowest, sum = 0.0f, trouble = 0.0f; // 1: the target is not the choice; 2: a logit is not finite
#pragma unroll
        for (uint32_t k = 0; k < 4 * kept; k++) {
            const uint32_t i = 4 * (threadIdx.x + k / 4 * block_size) + k % 4;
            if ((__float_as_uint(v[k]) & 0x7f800000u) == 0x7f800000u) trouble = 2.0f;
            if (i < args.width && (v[k] > own || (v[k] == own && i < uint32_t(target)))) trouble = fmaxf(trouble, 1.0f);
            top = fmaxf(top, v[k]);
        }
        trouble = block_top(trouble); // its barriers also keep the target's logit until every thread has read it
        const float highest = block_top(top), broken = __uint_as_float(0x7fc00000u);
#pragma unroll
        for (uint32_t k = 0; k < 4 * kept; k++) {
            v[k] = exp_below(v[k] - highest);
            if (threadIdx.x + k / 4 * block_size < words) sum += v[k];
        }
        const float total = block_sum(sum);
        if (threadIdx.x == 0) {
            parts[0] = trouble > 1.0f ? broken : share * ((highest - own) + logf(total));
            parts[1] = trouble > 0.0f ? 0.0f : 1.0f;
        }
        if (!gradient) continue;
        const float factor = share / total;
#pragma unroll
        for (uint32_t k = 0; k < 4 * kept; k++) {
            const uint32_t i = 4 * (threadIdx.x + k / 4 * block_size) + k % 4;
            v[k] = trouble > 1.0f ? broken : v[k] * factor - (i == uint32_t(target) ? share : 0.0f);
        }
#pragma unroll
        for (uint32_t k = 0; k < kept; k++) {
            const uint32_t i = threadIdx.x + k * block_size;
            if (i < words) quads[i] = make_float4(v[4 * k], v[4 * k + 1], v[4 * k + 2], v[4 * k + 3]);
        }
    }
}
