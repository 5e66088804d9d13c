// Chooses ids[t] by the settings of row t: the lowest index of the largest logit, from the parts of the row where they hold it, where the
// temperature is not above 0, else a draw among what top_k, top_p and min_p keep with weights exp((logit - max) / temperature), see
// args.h. A block works on a row. To draw, the smallest kept key is found digit by digit, for top_k from counts of keys, for top_p from sums of
// weights; then every thread adds up the weights of a run of indices, and the thread in whose run the running sum passes u times the total walks it.
// Where neither of them leaves logits out, neighbours read neighbours: a warp adds up a chunk of the row at a time, and one warp walks the chunk
// in which the running sum passes. Shared memory: 3 KiB.
#include "ranking.cuh"

constexpr uint32_t sample_threads = THREADS_sample_simt, sample_warps = sample_threads / 32;

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

// The logits of a row that take part, after the repetition penalty.
struct Row {
    View logits;
    size_t from;
    const uint32_t *seen;
    uint32_t width, past; // past: an id that counts as seen
    float penalty;        // 0: none
    __device__ __forceinline__ float at(uint32_t i) const
    {
        const float v = load(logits, from + i);
        if (penalty == 0.0f || !(i == past || (seen[i / 32] >> i % 32 & 1))) return v;
        return v < 0.0f ? v * penalty : v / penalty;
    }
};

// Sums of the block's `digits` values a thread, in every thread, in a fixed order. To be called by the whole block.
constexpr uint32_t digits = 16;
__device__ __forceinline__ void block_sums(float (&values)[digits])
{
    __shared__ float parts[digits][sample_warps];
#pragma unroll
    for (uint32_t j = 0; j < digits; j++) {
        const float sum = warp_sum(values[j]);
        if (threadIdx.x % 32 == 0) parts[j][threadIdx.x / 32] = sum;
    }
    __syncthreads();
#pragma unroll
    for (uint32_t j = 0; j < digits; j++) {
        values[j] = 0.0f;
        for (uint32_t w = 0; w < sample_warps; w++) values[j] += parts[j][w];
    }
    __syncthreads();
}

// The first kept index whose running sum of weights exceeds u times their total, else the last kept index, 0 where nothing is kept; in the first
// warp. weigh(i): the weight of a kept index, below 0 where it is not kept. To be called by the whole block.
template <class Weigh> __device__ __forceinline__ uint32_t draw_of_all(const Row &row, float u, const Weigh &weigh)
{
    constexpr uint32_t most = 128;
    static_assert(most <= sample_threads, "a thread a chunk");
    __shared__ float chunk_sums[most], before_chunk;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t each = ceil_div(ceil_div(row.width, most), 256) * 256, chunks = ceil_div(row.width, each);
    unsigned long long last = 0; // one past the last kept index
    for (uint32_t c = warp; c < chunks; c += sample_warps) {
        const uint32_t end = uint32_t(min(uint64_t(row.width), (uint64_t(c) + 1) * each));
        float sum = 0.0f;
#pragma unroll 8
        for (uint32_t i = c * each + lane; i < end; i += 32) {
            const float weight = weigh(i);
            if (weight < 0.0f) continue;
            sum += weight;
            last = i + 1;
        }
        sum = warp_sum(sum);
        if (lane == 0) chunk_sums[c] = sum;
    }
    last = block_max<sample_threads>(last); // and all sums are there
    const float own = threadIdx.x < chunks ? chunk_sums[threadIdx.x] : 0.0f;
    const Scan<float> sums = block_scan<sample_threads>(own);
    const float target = u * sums.total;
    const bool passes = sums.with > target && own > 0.0f;
    const unsigned long long first = block_max<sample_threads>(passes ? 0xffffffffu - threadIdx.x : 0u);
    if (first && threadIdx.x == 0xffffffffu - uint32_t(first)) before_chunk = sums.before;
    __syncthreads();
    if (warp > 0) return 0;
    uint32_t id = last ? uint32_t(last) - 1 : 0;
    if (!first) return id;
    const uint32_t c = 0xffffffffu - uint32_t(first), end = uint32_t(min(uint64_t(row.width), (uint64_t(c) + 1) * each));
    float running = before_chunk;
    for (uint32_t begin = c * each; begin < end; begin += 32) {
        const float weight = begin + lane < end ? fmaxf(weigh(begin + lane), 0.0f) : 0.0f;
        float with = weight;
        for (uint32_t step = 1; step < 32; step *= 2) {
            const float lower = __shfl_up_sync(0xffffffffu, with, step);
            if (lane >= step) with = lower + with;
        }
        const uint32_t there = __ballot_sync(0xffffffffu, weight > 0.0f), over = __ballot_sync(0xffffffffu, weight > 0.0f && running + with > target);
        // Rounding may leave the walk at or below the target: then the last index with weight stands.
        if (there) id = begin + 31 - __clz(there);
        if (over) {
            id = begin + __ffs(over) - 1;
            break;
        }
        running += __shfl_sync(0xffffffffu, with, 31);
    }
    return id;
}

KERNEL_FUNCTION(sample, simt)
{
    static_assert(sample_threads >= 256, "a thread per digit");
    __shared__ uint32_t counts[256], digit_found, left_found;
    predecessors_wait();
    successors_begin();
    const View logits = VIEW(sample, logits);
    const int32_t *seq = INTS(sample, seq) + args.seq_at;
    const uint32_t *part = reinterpret_cast<const uint32_t *>(INTS(sample, part));
    const int32_t *settings = INTS(sample, settings) + args.settings_at;
    int32_t *ids = INTS(sample, ids);
    uint32_t *sets = reinterpret_cast<uint32_t *>(INTS(sample, seen));
    const uint32_t negative_infinity = key_of(__uint_as_float(0xff800000u));
    FOR_TILES(tile) {
        // The same in every thread of the block.
        if ((args.flags & HAS_SEQ) && (args.flags & KEEPS_ENDED) && seq[2 * size_t(tile) + 1] == 0) continue;
        const int32_t *setting = settings + SETTING_WORDS * size_t(tile);
        uint32_t *seen = sets + args.seen_at + size_t(tile) * ceil_div(args.width, 32);
        const float temperature = __int_as_float(setting[0]), top_p = __int_as_float(setting[4]), penalty = __int_as_float(setting[6]);
        const uint32_t below = uint32_t(setting[7]) & ~ROW_ZERO, place = uint32_t(setting[7]) & ROW_ZERO ? 0 : tile;
        const bool penalised = (args.flags & HAS_SEEN) && penalty > 0.0f && isfinite(penalty) && penalty != 1.0f;
        const Row row = {logits, args.logits_at + size_t(tile) * args.logits_row, seen, below ? min(below, args.width) : args.width,
                         args.flags & MARKS_IDS ? uint32_t(ids[args.ids_at + size_t(tile)]) : ~0u, penalised ? penalty : 0.0f};
        unsigned long long best = best_of_parts<sample_threads>(part, tile, args.blocks);
        if (penalised || (best && uint32_t(~uint32_t(best)) >= row.width)) { // the parts know no penalty and all ids
            best = 0;
            for (uint32_t i = threadIdx.x; i < row.width; i += sample_threads) {
                const uint32_t key = key_of(row.at(i));
                if (key) best = max(best, (unsigned long long)(key) << 32 | uint32_t(~i));
            }
            best = block_max<sample_threads>(best);
        }
        // Sets the bit of the id before, which all threads have read; none reads the set after the barriers of block_max.
        const auto mark = [&] {
            if (threadIdx.x == 0 && row.past < args.width) seen[row.past / 32] |= 1u << row.past % 32;
        };
        const uint32_t highest = uint32_t(best >> 32);
        if (!(temperature > 0.0f)) {
            mark();
            if (threadIdx.x == 0) ids[args.ids_at + size_t(tile)] = best ? int32_t(~uint32_t(best)) : 0;
            continue;
        }
        const uint32_t run = ceil_div(row.width, sample_threads);
        const uint32_t begin = uint32_t(min(uint64_t(threadIdx.x) * run, uint64_t(row.width)));
        const uint32_t end = min(begin + run, row.width);
        const uint32_t top_k = uint32_t(setting[1]), seed_low = uint32_t(setting[2]), seed_high = uint32_t(setting[3]);
        uint32_t valid = 0;
        for (uint32_t i = threadIdx.x; i < row.width && top_k != 0; i += sample_threads) valid += key_of(row.at(i)) != 0;
        if (top_k != 0) valid = block_scan<sample_threads>(valid).total;
        const float most = of_key(highest), least = __int_as_float(setting[5]);
        const auto weight_of = [&](float v, uint32_t key) {
            if (key == negative_infinity) return 0.0f;
            return key == highest ? 1.0f : expf((v - most) / temperature);
        };

        // Kept: keys above `threshold`, and the first `ties` of those equal to it.
        uint32_t threshold = 0, ties = 0;
        if (top_k != 0 && top_k < valid) {
            ties = top_k;
            uint32_t known = 0;
            for (int shift = 24; shift >= 0; shift -= 8) {
                if (threadIdx.x < 256) counts[threadIdx.x] = 0;
                __syncthreads();
                for (uint32_t i = threadIdx.x; i < row.width; i += sample_threads) {
                    const uint32_t key = key_of(row.at(i));
                    if (key && (key & known) == threshold) atomicAdd(&counts[key >> shift & 255u], 1u);
                }
                __syncthreads();
                const bool has_digit = threadIdx.x < 256;
                const uint32_t digit = 255 - threadIdx.x % 256; // so that running sums count larger keys
                const Scan<uint32_t> larger = block_scan<sample_threads>(has_digit ? counts[digit] : 0u);
                if (has_digit && larger.before < ties && ties <= larger.with) {
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
        // Of these, those before which the weights, from the largest down, add up to less than top_p of all. The mass at a key is the weight of the
        // logits of this key and above: the largest key at which it reaches the target is found four bits at a time.
        if (top_p > 0.0f && top_p < 1.0f && highest > negative_infinity) {
            const float tied = ties ? float(ties) * weight_of(of_key(threshold), threshold) : 0.0f;
            uint32_t found = 0;
            float target = 0.0f;
            for (int shift = 28; shift >= 0; shift -= 4) {
                float mass[digits];
#pragma unroll
                for (uint32_t j = 0; j < digits; j++) mass[j] = 0.0f;
                for (uint32_t i = threadIdx.x; i < row.width; i += sample_threads) {
                    const float v = row.at(i);
                    const uint32_t key = key_of(v);
                    if (key <= threshold || key < found) continue;
                    const float weight = weight_of(v, key);
#pragma unroll
                    for (uint32_t j = 0; j < digits; j++) mass[j] += key >= (found | j << shift) ? weight : 0.0f;
                }
                block_sums(mass);
#pragma unroll
                for (uint32_t j = 0; j < digits; j++) mass[j] += (found | j << shift) <= threshold ? tied : 0.0f;
                if (shift == 28) target = fmaxf(top_p * mass[0], 1.0e-30f);
                uint32_t digit = 0;
#pragma unroll
                for (uint32_t j = 1; j < digits; j++)
                    if (mass[j] >= target) digit = j;
                found |= digit << shift;
            }
            if (found >= threshold) { // else rounding keeps all of them
                float larger = 0.0f;
                for (uint32_t i = threadIdx.x; i < row.width; i += sample_threads) {
                    const float v = row.at(i);
                    const uint32_t key = key_of(v);
                    if (key > found) larger += weight_of(v, key);
                }
                larger = block_sum<sample_threads>(larger);
                const float each = fmaxf(weight_of(of_key(found), found), 1.0e-38f);
                const uint32_t keep = uint32_t(fminf(fmaxf(ceilf((target - larger) / each), 1.0f), 1.0e9f));
                ties = found == threshold ? min(ties, keep) : keep;
                threshold = found;
            }
        }
        const uint32_t position =
            args.flags & HAS_SEQ ? uint32_t(seq[2 * size_t(tile)]) + uint32_t(seq[2 * size_t(tile) + 1]) : 0;
        // Rounding may not reach 1.
        const float u = fminf(float(philox_word(position, place, seed_low, seed_high)) * 2.3283064365386963e-10f, 0.99999994f);
        if (threshold == 0) {
            const uint32_t id = draw_of_all(row, u, [&](uint32_t i) {
                const float v = row.at(i);
                const uint32_t key = key_of(v);
                const float weight = key ? weight_of(v, key) : -1.0f;
                return least > 0.0f && weight < least ? -1.0f : weight;
            });
            if (threadIdx.x >= 32) continue;
            mark();
            if (threadIdx.x == 0) ids[args.ids_at + size_t(tile)] = int32_t(id);
            continue;
        }
        uint32_t equal = 0;
        for (uint32_t i = begin; i < end; i++) equal += key_of(row.at(i)) == threshold;
        const uint32_t equal_before = block_scan<sample_threads>(equal).before;

        // Calls each(i, weight) for the kept indices of this thread in order, until it says to stop.
        const auto walk = [&](auto each) {
            uint32_t equals = equal_before;
            for (uint32_t i = begin; i < end; i++) {
                const float v = row.at(i);
                const uint32_t key = key_of(v);
                if (key < threshold || key == 0 || (key == threshold && equals++ >= ties)) continue;
                const float weight = weight_of(v, key);
                if (least > 0.0f && weight < least) continue;
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
        last = uint32_t(block_max<sample_threads>(last));
        const Scan<float> sums = block_scan<sample_threads>(sum);

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
        chosen = block_max<sample_threads>(chosen);
        mark();
        if (threadIdx.x == 0) {
            uint32_t id = last ? last - 1 : 0;
            if (chosen) id = 0xffffffffu - uint32_t(chosen);
            ids[args.ids_at + size_t(tile)] = int32_t(id);
        }
    }
}
