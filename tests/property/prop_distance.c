/* Tensors that lie far out: elements past 2^31 and 2^32 of sparse memory that is hardly touched. On the CPU backend:
 * prop_distance [DEVICE_SPEC]. */
#include "rig.h"

/* 2^32 f16 elements and some: 8 GiB of addresses. */
#define FAR_ELEMENTS (UINT64_C(1) << 32)
#define ROOM (UINT64_C(1) << 16)

typedef struct far_rig {
    rig r;
    dart_tensor far_out, near_by;
} far_rig;

/* False, and said so, where the system does not give that much address space. */
static bool open_far(far_rig *f)
{
    rig_open_with(&f->r, &(dart_device_options){.spec = rig_spec});
    dart_buffer *buffer = NULL;
    if (dart_buffer_create(f->r.device, (FAR_ELEMENTS + ROOM) * 2, &buffer) != DART_OK) {
        print_message("NOT RUN: no 8 GiB of address space on %s\n", f->r.info.name);
        rig_close(&f->r);
        return false;
    }
    f->r.buffers[f->r.buffers_count++] = buffer;
    f->far_out = (dart_tensor){.buffer = buffer, .dtype = DART_F16};
    f->near_by = rig_tensor(&f->r, DART_F16, ROOM, NULL);
    return true;
}

static void compare(far_rig *f, const char *what, const dart_tensor *got, const dart_tensor *expected, uint64_t count)
{
    rig_run(&f->r);
    float *a = rig_read(got, count), *b = rig_read(expected, count);
    rig_same_bits(what, a, b, count);
    free(a);
    free(b);
}

static void starts_far_out(void **unused)
{
    (void)unused;
    enum { T = 5, W = 300 };
    static const uint64_t places[] = {(UINT64_C(1) << 31) - 7, UINT64_C(1) << 31, (UINT64_C(1) << 32) - 1000, (UINT64_C(1) << 32) + 13};
    far_rig f;
    if (!open_far(&f)) skip();
    rig *r = &f.r;
    const dart_tensor x = rig_random(r, DART_F32, T * W, -1, 1), weight = rig_random(r, DART_F32, W * W, -0.1f, 0.1f),
                      y = rig_tensor(r, DART_F16, T * W, NULL);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        dart_tensor far_out = f.far_out;
        far_out.offset = places[i];
        MUST(r, dart_convert(r->stream, &(dart_convert_args){.T = T, .W = W, .x = x, .y = far_out}));
        MUST(r, dart_convert(r->stream, &(dart_convert_args){.T = T, .W = W, .x = x, .y = y}));
        compare(&f, "convert", &far_out, &y, T * W);
        dart_tensor out = f.near_by, near_out = f.near_by;
        near_out.offset = ROOM / 2;
        MUST(r, dart_linear(r->stream, &(dart_linear_args){.T = T, .IN = W, .OUT = W, .x = far_out, .weight = weight, .y = out}));
        MUST(r, dart_linear(r->stream, &(dart_linear_args){.T = T, .IN = W, .OUT = W, .x = y, .weight = weight, .y = near_out}));
        compare(&f, "linear", &out, &near_out, T * W);
        MUST(r, dart_rms_norm(r->stream, &(dart_rms_norm_args){.T = T, .W = W, .eps = 1e-5f, .x = far_out, .weight = weight, .y = out}));
        MUST(r, dart_rms_norm(r->stream, &(dart_rms_norm_args){.T = T, .W = W, .eps = 1e-5f, .x = y, .weight = weight, .y = near_out}));
        compare(&f, "rms_norm", &out, &near_out, T * W);
    }
    rig_close(&f.r);
}

/* Rows as far apart as one binding allows: the last one's elements lie just below 2^31. */
static void strides_far(void **unused)
{
    (void)unused;
    enum { T = 4, W = 64 };
    far_rig f;
    if (!open_far(&f)) skip();
    rig *r = &f.r;
    const uint64_t stride = ((UINT64_C(1) << 31) - 4096) / (T - 1);
    const dart_tensor x = rig_random(r, DART_F32, T * W, -1, 1), y = rig_tensor(r, DART_F16, T * W, NULL), h = rig_random(r, DART_F32, W, -1, 1),
                      weight = rig_random(r, DART_F32, W * W, -0.1f, 0.1f);
    dart_tensor wide = f.far_out, near_out = f.near_by, out = f.near_by;
    wide.offset = 77;
    wide.row = stride;
    near_out.offset = ROOM / 2;
    MUST(r, dart_convert(r->stream, &(dart_convert_args){.T = T, .W = W, .x = x, .y = wide}));
    MUST(r, dart_convert(r->stream, &(dart_convert_args){.T = T, .W = W, .x = wide, .y = out}));
    MUST(r, dart_convert(r->stream, &(dart_convert_args){.T = T, .W = W, .x = x, .y = y}));
    compare(&f, "convert", &out, &y, T * W);
    dart_tensor last = wide;
    last.offset += (T - 1) * stride;
    dart_tensor last_near = y;
    last_near.offset = (T - 1) * W;
    compare(&f, "last row", &last, &last_near, W);
    MUST(r, dart_linear(r->stream, &(dart_linear_args){.T = T, .IN = W, .OUT = W, .x = wide, .weight = weight, .y = out}));
    MUST(r, dart_linear(r->stream, &(dart_linear_args){.T = T, .IN = W, .OUT = W, .x = y, .weight = weight, .y = near_out}));
    compare(&f, "linear", &out, &near_out, T * W);
    MUST(r, dart_conv(r->stream, &(dart_conv_args){.B = 1, .L = T, .C = W / 4, .K = 4, .x = wide, .weight = h, .y = out}));
    dart_tensor narrow = y;
    narrow.row = W;
    MUST(r, dart_conv(r->stream, &(dart_conv_args){.B = 1, .L = T, .C = W / 4, .K = 4, .x = narrow, .weight = h, .y = near_out}));
    compare(&f, "conv", &out, &near_out, T * W / 4);
    /* x, b and c of the scan. */
    dart_ssd_args ssd = {.B = 1, .L = T, .H = 2, .G = 1, .N = 8, .P = 16, .S = 2, .x = wide, .dt = x, .b = wide, .c = wide, .a_log = h, .y = out};
    ssd.b.offset += 32;
    ssd.c.offset += 40;
    MUST(r, dart_ssd(r->stream, &ssd));
    ssd.x = ssd.b = ssd.c = y;
    ssd.x.row = ssd.b.row = ssd.c.row = W;
    ssd.b.offset = 32;
    ssd.c.offset = 40;
    ssd.y = near_out;
    MUST(r, dart_ssd(r->stream, &ssd));
    compare(&f, "ssd", &out, &near_out, T * 32);
    /* Farther than a binding reaches: taken row by row, or refused, never wrapped around. */
    wide.row = UINT64_C(1) << 31;
    MUST(r, dart_fill(r->stream, &(dart_fill_args){.T = 1, .W = W, .value = 1, .y = wide}));
    rig_run(r);
    const dart_status status = dart_fill(r->stream, &(dart_fill_args){.T = 2, .W = W, .value = 1, .y = wide});
    if (status == DART_OK) {
        MUST(r, dart_fill(r->stream, &(dart_fill_args){.T = 1, .W = W, .value = 1, .y = near_out}));
        dart_tensor second = wide;
        second.offset += wide.row;
        compare(&f, "second row", &second, &near_out, W);
    } else {
        assert_int_equal(status, DART_UNSUPPORTED);
        rig_begin(r);
    }
    wide.row = UINT32_MAX;
    MUST(r, dart_linear(r->stream, &(dart_linear_args){.T = 2, .IN = W, .OUT = W, .x = y, .weight = weight, .y = wide}));
    MUST(r, dart_linear(r->stream, &(dart_linear_args){.T = 2, .IN = W, .OUT = W, .x = y, .weight = weight, .y = near_out}));
    last = wide;
    last.offset += UINT32_MAX;
    last_near = near_out;
    last_near.offset += W;
    compare(&f, "linear, second row", &last, &last_near, W);
    rig_close(&f.r);
}

/* A batch's second run of memories begins near element 2^30 of its binding, with a table of which little is used. */
static void remembers_far(void **unused)
{
    (void)unused;
    enum { B = 2, H = 2, N = 64, P = 128, S = 1, SEEN = 2, MEMORY = H * N * P, M = (1 << 30) / MEMORY - 8 };
    far_rig f;
    if (!open_far(&f)) skip();
    rig *r = &f.r;
    const dart_tensor q = rig_random(r, DART_F32, B * N, -1, 1), e = rig_random(r, DART_F32, B * P, -1, 1), c = rig_random(r, DART_F32, B * N, -1, 1),
                      seq = rig_ints(r, 4, (const int32_t[]){SEEN, 1, SEEN, 1}), r_far = rig_tensor(r, DART_F32, B * H * P, NULL),
                      r_near = rig_tensor(r, DART_F32, B * H * P, NULL), near_dh = rig_random(r, DART_F16, (uint64_t)B * SEEN * MEMORY, -1, 1),
                      scale = rig_tensor(r, DART_F32, (uint64_t)B * M * H * N, NULL),
                      ones = rig_tensor(r, DART_F32, (uint64_t)B * SEEN * H * N, NULL);
    MUST(r, dart_fill(r->stream, &(dart_fill_args){.T = B * M, .W = H * N, .value = 1, .y = scale}));
    MUST(r, dart_fill(r->stream, &(dart_fill_args){.T = B * SEEN, .W = H * N, .value = 1, .y = ones}));
    dart_tensor far_dh = f.far_out;
    far_dh.row = 0;
    for (uint64_t b = 0; b < B; b++) {
        dart_tensor from = near_dh, to = far_dh;
        from.offset = b * SEEN * MEMORY;
        to.offset = b * M * MEMORY;
        MUST(r, dart_convert(r->stream, &(dart_convert_args){.T = 1, .W = SEEN * MEMORY, .x = from, .y = to}));
    }
    dart_memories run = {.M = M, .dh = far_dh, .scale = scale};
    dart_sma_args sma = {.B = B, .L = 1, .H = H, .G = 1, .N = N, .P = P, .S = S, .eps = 1e-5f, .q = q, .e = e, .c = c, .seq = seq, .memories = &run,
                         .memories_count = 1, .r = r_far};
    for (int plan = DART_PLAN_CHUNKED; plan <= DART_PLAN_STEP; plan++) {
        sma.plan = (dart_plan)plan;
        run = (dart_memories){.M = M, .dh = far_dh, .scale = scale};
        sma.r = r_far;
        MUST(r, dart_sma(r->stream, &sma));
        run = (dart_memories){.M = SEEN, .dh = near_dh, .scale = ones};
        sma.r = r_near;
        MUST(r, dart_sma(r->stream, &sma));
        rig_run(r);
        float *got = rig_read(&r_far, B * H * P), *expected = rig_read(&r_near, B * H * P);
        rig_close_to("r", got, expected, B * H * P, 1e-6);
        free(got);
        free(expected);
    }
    rig_close(&f.r);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(starts_far_out),
    cmocka_unit_test(strides_far),
    cmocka_unit_test(remembers_far),
};
RIG_MAIN("prop_distance")
