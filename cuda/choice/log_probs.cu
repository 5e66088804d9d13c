// log Z of a row of logits, the log-probability of its target, and its k largest, see args.h. A block works on a row. Every thread looks at the
// indices threadIdx.x + n block_size and keeps the best of them that has not been given out; after each round only the thread that won looks again.
// Shared memory: 96 bytes.
#include "ranking.cuh"

__device__ __forceinline__ unsigned long long ranked(float v, uint32_t i)
{
    const uint32_t key = key_of(v);
    return key ? (unsigned long long)(key) << 32 | uint32_t(~i) : 0;
}

KERNEL_FUNCTION(log_probs, simt)
{
    const View logits = VIEW(log_probs, logits);
    FOR_TILES(tile) {
        const size_t from = args.logits_at + size_t(tile) * args.logits_row;
        unsigned long long best = 0; // key above the complement of the index, so that the lowest index wins
        for (uint32_t i = threadIdx.x; i < args.width; i += block_size) best = max(best, ranked(load(logits, from + i), i));
        unsigned long long first = block_max(best);
        const float most = of_key(uint32_t(first >> 32));
        const bool empty = uint32_t(first >> 32) <= key_of(__uint_as_float(0xff800000u)); // no number above -infinity
        float sum = 0.0f;
        for (uint32_t i = threadIdx.x; i < args.width && !empty; i += block_size) {
            const float v = load(logits, from + i);
            if (!isnan(v)) sum += expf(v - most);
        }
        sum = block_sum(sum);
        const float log_z = empty ? lowest : most + logf(sum);
        // A logit of -infinity, or NaN, has the lowest number for its log-probability.
        const auto probability = [&](float v) { return empty || isnan(v) ? lowest : fmaxf(v - log_z, lowest); };
        if (threadIdx.x == 0) {
            FLOATS(log_probs, log_z)[args.log_z_at + size_t(tile)] = log_z;
            if (args.flags & HAS_TARGETS) {
                const uint32_t id = uint32_t(INTS(log_probs, targets)[args.targets_at + size_t(tile)]);
                FLOATS(log_probs, target)[args.target_at + size_t(tile)] = id < args.width ? probability(load(logits, from + id)) : 0.0f;
            }
        }
        for (uint32_t n = 0; n < args.k; n++) {
            const unsigned long long now = n == 0 ? first : block_max(best);
            const uint32_t id = ~uint32_t(now);
            if (threadIdx.x == 0) {
                INTS(log_probs, top_ids)[args.top_ids_at + size_t(tile) * args.k + n] = now ? int32_t(id) : -1;
                FLOATS(log_probs, top)[args.top_at + size_t(tile) * args.k + n] = now ? probability(of_key(uint32_t(now >> 32))) : lowest;
            }
            if (best != now || now == 0) continue;
            best = 0;
            for (uint32_t i = threadIdx.x; i < args.width; i += block_size) {
                const unsigned long long other = ranked(load(logits, from + i), i);
                if (other < now) best = max(best, other);
            }
        }
    }
}
