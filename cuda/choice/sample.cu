// Chooses ids[t] by the settings of row t: the lowest index of the largest logit, from the parts of the row, where the
// temperature is not above 0, else a draw among the top_k largest logits with weights exp((logit - max) / temperature),
// see args.h. A block works on a row. To draw, the smallest kept key is found digit by digit from counts of keys; then every thread adds up
// the weights of a run of indices, and the thread in whose run the running sum passes u times the total walks it.
// Shared memory: 1.2 KiB.
#include "ranking.cuh"

// Word 0 of Philox4x32-10 for counter (c0, c1, 0, 0).
__device__ __forceinline__ uint32_t philox_word(uint32_t c0, uint32_t c1, uint32_t k0, uint32_t k1)
{
    uint32_t c2 = 0, c3 = 0;
    for (int round = 0; round < 10; round++) {
        const uint64_t a = uint64_t(0xD2511F53u) * c0, b = uint64_t(0xCD9E8D57u) * c2;
        c0 = uint32_t(b >> 32) ^ c1 ^ k0;
        c1 = uint32_t(b);
        c2 = uint32_t(a >> 32) ^ c3 ^ k1;
        c3 = uint32_t(a);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c0;
}

KERNEL_FUNCTION(sample, simt)
{
    static_assert(block_size == 256, "a thread per digit");
    __shared__ uint32_t counts[256], digit_found, left_found;
    const View logits = VIEW(sample, logits);
    const int32_t *seq = INTS(sample, seq) + args.seq_at;
    const uint32_t *part = reinterpret_cast<const uint32_t *>(INTS(sample, part));
    const int32_t *settings = INTS(sample, settings) + args.settings_at;
    int32_t *ids = INTS(sample, ids);
    const uint32_t run = ceil_div(args.width, block_size);
    const uint32_t begin = uint32_t(min(uint64_t(threadIdx.x) * run, uint64_t(args.width)));
    const uint32_t end = min(begin + run, args.width);
    FOR_TILES(tile) {
        // The same in every thread of the block.
        if ((args.flags & HAS_SEQ) && (args.flags & KEEPS_ENDED) && seq[2 * size_t(tile) + 1] == 0) continue;
        const unsigned long long best = best_of_parts(part, tile, args.blocks);
        const uint32_t highest = uint32_t(best >> 32);
        const int32_t *setting = settings + SETTING_WORDS * size_t(tile);
        const float temperature = __int_as_float(setting[0]);
        if (!(temperature > 0.0f)) {
            if (threadIdx.x == 0) ids[args.ids_at + size_t(tile)] = best ? int32_t(~uint32_t(best)) : 0;
            continue;
        }
        const uint32_t top_k = uint32_t(setting[1]), seed_low = uint32_t(setting[2]), seed_high = uint32_t(setting[3]);
        const size_t from = args.logits_at + size_t(tile) * args.logits_row;
        uint32_t valid = 0;
        for (uint32_t i = threadIdx.x; i < args.width; i += block_size) valid += key_of(load(logits, from + i)) != 0;
        valid = block_scan(valid).total;

        // Kept: keys above `threshold`, and the first `ties` of those equal to it.
        uint32_t threshold = 0, ties = 0;
        if (top_k != 0 && top_k < valid) {
            ties = top_k;
            uint32_t known = 0;
            for (int shift = 24; shift >= 0; shift -= 8) {
                counts[threadIdx.x] = 0;
                __syncthreads();
                for (uint32_t i = threadIdx.x; i < args.width; i += block_size) {
                    const uint32_t key = key_of(load(logits, from + i));
                    if (key && (key & known) == threshold) atomicAdd(&counts[key >> shift & 255u], 1u);
                }
                __syncthreads();
                const uint32_t digit = 255 - threadIdx.x; // so that running sums count larger keys
                const Scan<uint32_t> larger = block_scan(counts[digit]);
                if (larger.before < ties && ties <= larger.with) {
                    digit_found = digit;
                    left_found = ties - larger.before;
                }
                __syncthreads();
                threshold |= digit_found << shift;
                ties = left_found;
                known |= 255u << shift;
                __syncthreads();
            }
        }
        uint32_t equal = 0;
        for (uint32_t i = begin; i < end && threshold; i++) equal += key_of(load(logits, from + i)) == threshold;
        const uint32_t equal_before = block_scan(equal).before;

        const float most = of_key(highest);
        // Calls each(i, weight) for the kept indices of this thread in order, until it says to stop.
        const auto walk = [&](auto each) {
            uint32_t seen = equal_before;
            for (uint32_t i = begin; i < end; i++) {
                const float v = load(logits, from + i);
                const uint32_t key = key_of(v);
                if (key < threshold || key == 0 || (key == threshold && seen++ >= ties)) continue;
                float weight = 0.0f;
                if (v == most) weight = 1.0f;
                else weight = expf((v - most) / temperature);
                if (key == key_of(__uint_as_float(0xff800000u))) weight = 0.0f;
                if (!each(i, weight)) break;
            }
        };
        float sum = 0.0f;
        uint32_t last = 0; // one past the last kept index
        walk([&](uint32_t i, float weight) {
            sum += weight;
            last = i + 1;
            return true;
        });
        last = uint32_t(block_max(last));
        const Scan<float> sums = block_scan(sum);

        const uint32_t position =
            args.flags & HAS_SEQ ? uint32_t(seq[2 * size_t(tile)]) + uint32_t(seq[2 * size_t(tile) + 1]) : 0;
        // Rounding may not reach 1.
        const float u = fminf(float(philox_word(position, tile, seed_low, seed_high)) * 2.3283064365386963e-10f, 0.99999994f);
        const float target = u * sums.total;
        unsigned long long chosen = 0; // complement of the index, so that the lowest one wins
        if (sums.with > target && sum > 0.0f) {
            float running = sums.before;
            walk([&](uint32_t i, float weight) {
                running += weight;
                // Rounding may leave the walk at or below the target: then the last index with weight stands.
                if (weight > 0.0f) chosen = 0xffffffffu - i;
                return !(running > target);
            });
        }
        chosen = block_max(chosen);
        if (threadIdx.x == 0) {
            uint32_t id = last ? last - 1 : 0;
            if (chosen) id = 0xffffffffu - uint32_t(chosen);
            ids[args.ids_at + size_t(tile)] = int32_t(id);
        }
    }
}
