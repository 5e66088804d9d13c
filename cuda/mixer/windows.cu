// The steps of several layers for many sequences in one launch, see MixerWindowsArgs. A layer is three stages: both products with their convolutions,
// which also fill the window; the heads, each a warp; the product behind the norm. Weights, states, memories and inputs of convolutions are copied to
// shared memory before they are needed, so that memory is read while blocks wait for one another. Numbers of the products go to the heads with tags;
// of the other stages blocks post that they have finished, and what they pass on goes through memory. A place is written again no earlier than a
// layer later, when all that read it have passed on what they made of it.
// The launch is cooperative, so that all blocks run side by side, with as much shared memory as a block may have.
#include "lib/one_row.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

#include "windows_fold.cuh"

// Registers of threads that compute and of the warpgroup that serves them: 512 x 112 + 128 x 32 are 640 x 96, which the block begins with.
constexpr uint32_t windows_registers = 112, windows_serving_registers = 32;

__device__ __forceinline__ void windows_run(const WindowsSizes &sizes, const mixer_windows_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
    WindowsFold mixer(sizes, reinterpret_cast<uint64_t *>(bindings.address[BINDING_mixer_windows_posts]), FLOATS(mixer_windows, work));
    const uint32_t t = threadIdx.x, begun = uint32_t(load_post(mixer.posts)) + 1; // a word that nobody has written has tag 0
    const auto piece = [&](uint32_t row) { return piece_of(INTS(mixer_windows, seq) + args.seq_at, args.flags, 1, mixer.shape().first + row); };
    if (t < windows_rows_in) {
        const Piece of = t < mixer.shape().sequences ? piece(t) : Piece{0, 0};
        const uint32_t slot = of.position % args.S % WINDOW;
        const bool folds = of.count != 0 && (slot + 1 == WINDOW || (of.position + 1) % args.S == 0);
        const uint32_t all = __ballot_sync(0xffffffffu, folds);
        windows_shared().slots[t] = of.count != 0 ? int32_t(slot) : -1;
        windows_shared().positions[t] = of.position;
        if (folds) windows_shared().folding[__popc(all & ((1u << t) - 1))] = t;
        windows_shared().folding_count = __popc(all);
    }
    float *x = FLOATS(mixer_windows, x) + args.x_at + size_t(mixer.stream_row()) * args.W + mixer.stream_output();
    const bool has_stream = mixer.has_stream(), moves = has_stream && piece(mixer.shape().first_row + mixer.warp).count != 0;
    float stream = has_stream ? *x : 0.0f, norm = 0.0f;
    const auto fetch_norm = [&](uint32_t layer) {
        if (has_stream) norm = ask_float(mixer.at<const float>(layer, PLACE_NORM) + mixer.stream_output());
    };
    fetch_norm(0);
    mixer.tag = begun;
    mixer.post_stream(stream, norm);
    mixer.keep_in();
    bool there = true;
#pragma unroll 1
    for (uint32_t layer = 0; there && layer < args.layers; layer++) {
        const bool goes_on = layer + 1 < args.layers;
        uint64_t next_place = 0;
        if (t < WINDOW_PLACES && goes_on) next_place = ask_place(mixer.places + RUN_PAIRS + (layer + 1) * WINDOW_PLACES + t);
        there = mixer.await(windows_out, 0, mixer.shape().blocks);
        if (!there) break;
        mixer.project(layer);
        if (t < WINDOW_PLACES) windows_shared().table[(layer + 1) % 2 * WINDOW_PLACES + t] = next_place;
        there = mixer.run_heads(layer);
        if (!there) break;
        mixer.keep_out();
        if (goes_on) fetch_norm(layer + 1);
        const uint32_t rows = min(mixer.shape().sequences - mixer.shape().first_row, windows_rows_out);
        there = mixer.await(windows_heads, mixer.shape().first_row * args.share, rows * args.share);
        if (!there) break;
        const float more = mixer.output(layer);
        stream = moves ? stream + more : stream;
        mixer.tag = begun + layer + 1;
        if (!goes_on) continue;
        mixer.post_stream(stream, norm);
        mixer.keep_in();
    }
    if (!there) return;
    if (moves) *x = stream;
    if (windows_shared().folding_count > 0) {
        mixer.tag = begun + args.layers - 1;
        if (!mixer.await(windows_heads, 0, mixer.shape().blocks)) return;
        mixer.fold();
    }
    if (blockIdx.x != 0) return;
    // The last tag may be written once all blocks, those of other groups, too, have read the one before.
    bool missing = t < gridDim.x;
#pragma unroll 1
    for (uint32_t tries = 0; missing && tries < MIXER_PATIENCE; tries++)
        missing = uint32_t(load_post(mixer.posts + windows_posts_begin + windows_out * gridDim.x + t) >> 32) != begun + args.layers - 1;
    if (missing) windows_shared().gave_up = 1;
    mixer.meet();
    if (t == 0) store_post(mixer.posts, begun + args.layers);
}

#endif

KERNEL_FUNCTION_BLOCKS(mixer_windows, resident, 1)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    static_assert(THREADS_mixer_windows_resident == windows_threads + 128, "to compute; a warp to copy, one to post, two for the tails");
    WindowsShared &shared = windows_shared();
    const uint32_t t = threadIdx.x;
    const uint64_t *places = reinterpret_cast<const uint64_t *>(bindings.address[BINDING_mixer_windows_places]);
    if (t == 0) shared.gave_up = shared.asked = 0;
    if (t < WINDOW_PLACES) shared.table[t] = places[RUN_PAIRS + t];
    if (t < RUN_PAIRS) shared.runs[t] = reinterpret_cast<const uint2 *>(places)[t];
    if (t < windows_room) {
        attend::barrier_init(attend::shared_address(&shared.places[t].there), 1);
        attend::barrier_init(attend::shared_address(&shared.places[t].empty), windows_readers);
    }
    if (t < 3) attend::barrier_init(attend::shared_address(&shared.finished[t]), 1);
    if (t == 3) {
        attend::barrier_init(attend::shared_address(&shared.inputs_free), windows_warps);
        attend::barrier_init(attend::shared_address(&shared.tails_there), windows_tail_threads);
        attend::barrier_init(attend::shared_address(&shared.extras_there), 1);
        attend::barrier_init(attend::shared_address(&shared.rows_there), 1);
    }
    attend::barriers_visible();
    __syncthreads();
    const WindowsSizes sizes{args, places};
    if (t == 0) shared.shape.make(args, sizes.outputs(), INTS(mixer_windows, seq) + args.seq_at, shared.runs);
    __syncthreads();
    if (t < windows_threads) {
        attend::registers_take<windows_registers>();
        windows_run(sizes, args, bindings, dtypes);
        if (t == 0 && shared.gave_up != 0) FLOATS(mixer_windows, stuck)[0] = 1.0f;
    } else {
        attend::registers_give<windows_serving_registers>();
        if (t / 32 == windows_warps) windows_copy(sizes);
        if (t / 32 >= windows_warps + 2) windows_tails(sizes);
        if (t == 32 * (windows_warps + 1)) windows_post(args, reinterpret_cast<uint64_t *>(bindings.address[BINDING_mixer_windows_posts]));
    }
#endif
}
