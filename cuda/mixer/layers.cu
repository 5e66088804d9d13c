// The steps of several layers in one launch, see MixerLayersArgs. A layer is four stages: both products with their convolutions; the memories of a
// split; the scan of a head, which merges its splits; the product behind the norm. What a stage reads of weights, states and memories is asked for
// before its inputs are waited for, as far as registers go, and brought into the L2 cache otherwise. Numbers go from block to block in words of 64
// bits, each with the tag of its layer, so that a reader needs no barrier: it looks until the tag is there. A word is written again no earlier than a
// layer later, when all that read it have passed on what they made of it.
// The launch is cooperative, so that all blocks run side by side. Shared memory: 8 KiB for each 1,024 inputs of a row, and 6 KiB.
#include "layers_scan.cuh"

template <uint32_t chunks>
__device__ __forceinline__ void layers_run(const mixer_layers_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
    LayersShared<chunks> &shared = *reinterpret_cast<LayersShared<chunks> *>(tensor_memory);
    static_assert(sizeof(LayersShared<chunks>) <= SHARED_mixer_layers_resident, "shared memory");
    const uint32_t t = threadIdx.x, block = blockIdx.x, blocks = gridDim.x;
    LayersScan<chunks> mixer{{{{args, shared, reinterpret_cast<uint64_t *>(bindings.address[BINDING_mixer_layers_posts]),
                               FLOATS(mixer_layers, x) + args.x_at,
                               reinterpret_cast<const uint64_t *>(bindings.address[BINDING_mixer_layers_places])}}}};
    const Piece piece = piece_of(INTS(mixer_layers, seq) + args.seq_at, args.flags, 1, 0);
    if (piece.count == 0) return;
    mixer.weight_dtype = VIEW(mixer_layers, weight).dtype;
    mixer.tail_dtype = VIEW(mixer_layers, tail).dtype;
    mixer.dh_dtype = VIEW(mixer_layers, dh).dtype;
    mixer.W = 256 * chunks;
    mixer.H = args.H;
    mixer.I = args.H * layers_p;
    mixer.chunks_y = mixer.I / 256;
    mixer.channels = mixer.I + 2 * layers_n;
    mixer.R = mixer.I + mixer.channels + args.H;
    mixer.has_open = args.flags & HAS_OPEN;
    mixer.outputs = mixer.has_open ? mixer.R + layers_queries + 1 : mixer.R;
    mixer.lane = t % 32;
    mixer.warp = t / 32;
    mixer.first = mixer.warp * blocks + block; // of outputs
    mixer.step = warps * blocks;
    mixer.position = piece.position;
    // Heads' splits, then their scans, are shared out in turn; what comes first is fetched ahead.
    const uint32_t attends = mixer.has_open && args.runs > 0 ? mixer.H * args.splits : 0, items = attends + mixer.H;
    const uint32_t begun = uint32_t(load_post(mixer.posts)) + 1; // a word that nobody has written has tag 0
    float stream = mixer.first < mixer.W ? mixer.x[mixer.first] : 0.0f;
    if (t == 0) shared.gave_up = 0;
    if (t < PLACES) shared.table[t] = mixer.places[RUN_PAIRS + t];
    if (t < RUN_PAIRS) shared.runs[t] = reinterpret_cast<const uint2 *>(mixer.places)[t];
    mixer.tag = begun; // of the stream before the first layer
    for (uint32_t o = mixer.first; o < mixer.W && mixer.lane == 0; o += mixer.step) mixer.post(mixer.x_posts + o, mixer.x[o]);
    __syncthreads();
    uint32_t seen = 0;
    for (uint32_t i = 0; i < args.runs; i++) seen += mixer.seen_of(i);
    const uint32_t share = args.splits > 0 ? ceil_div(seen, args.splits) : 0;
    const uint32_t own_head = block < attends ? block / args.splits : block - attends, own_from = block < attends ? block % args.splits * share : 0;
    mixer.fetch_project(0);
#pragma unroll 1
    for (uint32_t layer = 0;; layer++) {
        float squares = 0.0f;
        if (layer > 0) squares = mixer.take_y(layer - 1);
        if (shared.gave_up != 0) break;
        if (layer > 0) stream = mixer.add_output(layer - 1, squares, stream);
        if (layer == args.layers) break;
        const bool goes_on = layer + 1 < args.layers;
        const uint64_t next_place = t < PLACES && goes_on ? mixer.places[RUN_PAIRS + (layer + 1) * PLACES + t] : 0;
        mixer.fetch_channel(layer, min(mixer.first + min(mixer.lane, layers_batch - 1) * mixer.step, mixer.outputs - 1));
        if (block < attends) mixer.fetch_pair(layer, own_head, own_from, min(own_from + share, seen));
        else if (block < items) mixer.fetch_state(layer, own_head);
        mixer.announce_output(layer);
        __syncthreads(); // the row is read
        squares = mixer.take_x(layer);
        if (shared.gave_up != 0) break;
        mixer.tag = begun + layer + 1;
        mixer.project(layer, squares);
        mixer.fetch_output(layer);
        if (t < PLACES) shared.table[(layer + 1) % 2 * PLACES + t] = next_place;
#pragma unroll 1
        for (uint32_t item = block; item < items; item += blocks) {
            const bool is_scan = item >= attends;
            const uint32_t head = is_scan ? item - attends : item / args.splits, split = is_scan ? 0 : item % args.splits;
            const uint32_t from = split * share, end = min(from + share, seen);
            mixer.gather(is_scan, head);
            if (shared.gave_up != 0) break;
            if (item != block) {
                if (is_scan) mixer.fetch_state(layer, head);
                else mixer.fetch_pair(layer, head, from, end);
            }
            if (is_scan) mixer.scan(layer, head);
            else mixer.attend(layer, head, split, from, end);
        }
        __syncthreads();
        if (!goes_on) continue;
        mixer.fetch_project(layer + 1);
        mixer.announce_project(layer + 1);
    }
    if (t == 0 && shared.gave_up != 0) FLOATS(mixer_layers, stuck)[0] = 1.0f;
    else if (t == 0 && block == 0) store_post(mixer.posts, begun + args.layers);
}

KERNEL_FUNCTION_BLOCKS(mixer_layers, resident, 1)
{
    switch (args.W / 256) {
    case 1: return layers_run<1>(args, bindings, dtypes);
    case 2: return layers_run<2>(args, bindings, dtypes);
    case 3: return layers_run<3>(args, bindings, dtypes);
    case 4: return layers_run<4>(args, bindings, dtypes);
    case 5: return layers_run<5>(args, bindings, dtypes);
    case 6: return layers_run<6>(args, bindings, dtypes);
    case 7: return layers_run<7>(args, bindings, dtypes);
    default: return layers_run<8>(args, bindings, dtypes);
    }
}
