// The steps of several layers in one launch, see MixerLayersArgs. A layer is four stages: both products with their convolutions; memories, which
// blocks share out; the scan of a head, which merges what blocks have of its memories; the product behind the norm. What a stage reads of weights,
// states and memories was copied to shared memory long before its inputs are there (layers_copies.cuh), so that memory is read while blocks wait for
// one another. Numbers go from block to block in words of 64 bits, each with the tag of its layer, so that a reader needs no barrier: it looks until
// the tag is there. A word is written again no earlier than a layer later, when all that read it have passed on what they made of it.
// The launch is cooperative, so that all blocks run side by side, with as much shared memory as a block may have.
#include "lib/one_row.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

#include "layers_scan.cuh"

// Registers of threads that compute and of the warpgroup that copies: 512 x 104 + 128 x 64 are 640 x 96, which the block begins with.
constexpr uint32_t layers_registers = 104, layers_copy_registers = 64;

// holds: see LayersProducts::hold.
template <bool holds>
__device__ __forceinline__ void layers_run(const LayersShape &shape, const mixer_layers_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
    LayersScan mixer(shape, reinterpret_cast<uint64_t *>(bindings.address[BINDING_mixer_layers_posts]), FLOATS(mixer_layers, x) + args.x_at);
    mixer.weight_dtype = VIEW(mixer_layers, weight).dtype;
    mixer.tail_dtype = VIEW(mixer_layers, tail).dtype;
    mixer.dh_dtype = VIEW(mixer_layers, dh).dtype;
    const uint32_t t = threadIdx.x, block = blockIdx.x;
    const uint32_t begun = uint32_t(load_post(mixer.posts)) + 1; // a word that nobody has written has tag 0
    float *x = mixer.x + mixer.begin_out + t; // thread t keeps this one of the stream
    float stream = t < mixer.rows_out ? *x : 0.0f;
    mixer.tag = begun; // of the stream before the first layer
    if (t < mixer.rows_out) mixer.post(mixer.x_posts + mixer.begin_out + t, stream);
    // Numbers that threads load by themselves are asked for a layer ahead where there are registers for them.
    const auto fetch = [&](uint32_t layer) {
        if (!holds) mixer.fetch_channels(layer);
        if (mixer.does_scan()) mixer.fetch_head(layer);
    };
    fetch(0);
#pragma unroll 1
    for (uint32_t layer = 0;; layer++) {
        float squares = 0.0f;
        if (layer > 0) squares = mixer.take_y(layer - 1);
        if (layers_shared().gave_up != 0) break;
        if (layer > 0) stream = mixer.add_output(squares, stream);
        if (layer == args.layers) break;
        const bool goes_on = layer + 1 < args.layers;
        uint64_t next_place = 0;
        if (t < PLACES && goes_on) next_place = ask_place(mixer.places + RUN_PAIRS + (layer + 1) * PLACES + t);
        LayersProducts::Held held;
        if (holds) mixer.hold(held);
        squares = mixer.take_x(layer);
        if (holds) mixer.fetch_channels(layer); // whose registers held weights took until now
        if (layers_shared().gave_up != 0) break;
        mixer.tag = begun + layer + 1;
        mixer.project<holds>(layer, squares, held);
        if (t < PLACES) layers_shared().table[(layer + 1) % 2 * PLACES + t] = next_place;
        if (mixer.does_attend()) {
            mixer.gather(false);
            meet();
            if (layers_shared().gave_up == 0) mixer.attend();
        } else if (mixer.does_scan()) {
            mixer.gather(true);
            mixer.prepare();
            meet();
            if (layers_shared().gave_up == 0) mixer.scan(layer);
            if (mixer.attends > 0) mixer.merge();
        }
        meet();
        if (goes_on) fetch(layer + 1);
    }
    if (layers_shared().gave_up != 0) return;
    if (t < mixer.rows_out) *x = stream;
    if (t == 0 && block == 0) store_post(mixer.posts, begun + args.layers);
}

template <bool holds>
__device__ __forceinline__ void layers_start(const mixer_layers_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
    const uint32_t t = threadIdx.x;
    const uint64_t *places = reinterpret_cast<const uint64_t *>(bindings.address[BINDING_mixer_layers_places]);
    const Piece piece = piece_of(INTS(mixer_layers, seq) + args.seq_at, args.flags, 1, 0);
    if (piece.count == 0) return;
    if (t == 0) layers_shared().gave_up = 0;
    if (t < PLACES) layers_shared().table[t] = places[RUN_PAIRS + t];
    if (t < RUN_PAIRS) layers_shared().runs[t] = reinterpret_cast<const uint2 *>(places)[t];
    if (t < layers_slots + layers_most_room) {
        RingPlace &place = t < layers_slots ? layers_shared().item_places[t] : layers_shared().weight_places[t - layers_slots];
        attend::barrier_init(attend::shared_address(&place.there), 1);
        attend::barrier_init(attend::shared_address(&place.empty), t < layers_slots ? 1 : layers_sharers);
    }
    attend::barriers_visible();
    __syncthreads();
    const LayersShape shape(args, places, piece.position);
    if (t == 0) shape.make_role(layers_shared().role);
    __syncthreads();
    if (t < layers_threads) {
        attend::registers_take<layers_registers>();
        layers_run<holds>(shape, args, bindings, dtypes);
        if (t == 0 && layers_shared().gave_up != 0) FLOATS(mixer_layers, stuck)[0] = 1.0f;
    } else {
        attend::registers_give<layers_copy_registers>();
        if (t / 32 == layers_warps) copy_weights(shape, VIEW(mixer_layers, tail).dtype == DTYPE_F32 ? 4 : 2);
        else if (t / 32 == layers_warps + 1) copy_items(shape);
    }
}

#endif

KERNEL_FUNCTION_BLOCKS(mixer_layers, resident_held, 1)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    static_assert(THREADS_mixer_layers_resident_held == layers_threads + 128, "threads that compute and a warpgroup that copies");
    layers_start<true>(args, bindings, dtypes);
#endif
}
KERNEL_FUNCTION_BLOCKS(mixer_layers, resident, 1)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    static_assert(THREADS_mixer_layers_resident == layers_threads + 128, "threads that compute and a warpgroup that copies");
    layers_start<false>(args, bindings, dtypes);
#endif
}
