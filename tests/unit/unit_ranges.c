/* Launches that go in ranges of their tiles, and recordings in parts: unit_ranges [DEVICE_SPEC]. */
#include "rig.h"

#include "runtime/device.h"
#include "runtime/stream.h"

/* A launch in ranges of its tiles does what the whole does, each tile once: a sum in place would tell. */
static void ranges_make_a_launch(void **unused)
{
    (void)unused;
    enum { T = 70, IN = 64, OUT = 330 };
    float *values[3] = {NULL}, *results[2];
    uint32_t lines[2];
    for (uint32_t cut = 0; cut < 2; cut++) {
        rig r;
        rig_open_with(&r, &(dart_device_options){.spec = rig_spec, .cut = 3 * cut});
        static const uint64_t counts[] = {T * IN, OUT * IN, T * OUT};
        dart_tensor tensors[3];
        for (size_t i = 0; i < 3; i++) {
            if (values[i] == NULL) values[i] = rig_values(&r, counts[i], -1, 1);
            tensors[i] = rig_tensor(&r, DART_F32, counts[i], values[i]);
        }
        MUST(&r, dart_linear(r.stream, &(dart_linear_args){.T = T, .IN = IN, .OUT = OUT, .add = true, .x = tensors[0], .weight = tensors[1],
                                                           .y = tensors[2]}));
        lines[cut] = r.lines_count;
        rig_run(&r);
        results[cut] = rig_read(&tensors[2], T * OUT);
        if (cut > 0) assert_true(lines[1] > lines[0] || !r.device->backend->ranges);
        rig_close(&r);
    }
    rig_same_bits("ranges", results[1], results[0], T * OUT);
    for (size_t i = 0; i < 3; i++) free(values[i]);
    for (size_t i = 0; i < 2; i++) free(results[i]);
}

/* Some parts of a recording may never be submitted. The next one finds the tickets of the step of SMA as they must be all the same. */
static void leaves_tickets_as_they_were(void **unused)
{
    (void)unused;
    enum { H = 2, SN = 128, P = 64, M = 61, CUTS = 8 };
    rig r;
    rig_open_with(&r, &(dart_device_options){.spec = rig_spec, .poison = true});
    if (r.info.backend == DART_BACKEND_NULL) {
        rig_close(&r);
        skip();
    }
    const int32_t position[2] = {M - 3, 1};
    const dart_memories run = {.M = M, .dh = rig_random(&r, DART_F16, M * H * SN * P, -1, 1), .scale = rig_random(&r, DART_F32, M * H * SN, 0.5f, 2)};
    const dart_tensor result = rig_tensor(&r, DART_F32, H * P, NULL);
    dart_sma_args sma = {.B = 1, .L = 1, .H = H, .G = 1, .N = SN, .P = P, .S = 1, .eps = 1e-5f, .q = rig_random(&r, DART_F16, SN, -1, 1),
                               .e = rig_random(&r, DART_F16, P, -1, 1), .c = rig_random(&r, DART_F16, SN, -1, 1), .seq = rig_ints(&r, 2, position),
                               .memories = &run, .memories_count = 1, .r = result};
    const dart_tensor q[2] = {sma.q, rig_random(&r, DART_F16, SN, -1, 1)};
    stream_cut cuts[CUTS];
    for (uint32_t i = 0; i < CUTS; i++) cuts[i] = (stream_cut){.launch = i, .ranges = 3};
    float *want = NULL;
    for (int time = 0; time < 2; time++) {
        rig_begin(&r);
        sma.q = q[0];
        MUST(&r, dart_sma(r.stream, &sma));
        rig_run(&r);
        float *got = rig_read(&result, H * P);
        if (want != NULL) rig_same_bits("behind a recording that was left", got, want, H * P);
        if (time == 1) free(got);
        else want = got;
        /* Two steps that share their tickets, each launch in ranges where it can be; all parts but the last one are submitted. Another query:
         * a merge that came too early would take their partials for its own. */
        sma.q = q[1];
        r.stream->parts.cuts = cuts;
        r.stream->parts.cuts_count = CUTS;
        rig_begin(&r);
        for (int i = 0; i < 2; i++) MUST(&r, dart_sma(r.stream, &sma));
        assert_in_range(r.stream->launches, 2, CUTS);
        const uint32_t parts = r.stream->parts.count;
        assert_true(parts > 1 || !r.device->backend->ranges);
        for (uint32_t i = 0; i + 1 < parts; i++) {
            uint64_t ns;
            MUST(&r, stream_submit_part(r.stream, i));
            MUST(&r, stream_wait_part(r.stream, UINT64_MAX, &ns));
        }
        r.stream->parts.cuts_count = 0;
    }
    free(want);
    rig_close(&r);
}

/* What the backend below has been given: launches, the tiles of the last one, and where its last range ends. */
static struct noted {
    backend fake;
    uint32_t launches, tiles, end;
} noted;

static dart_status note_launch(void *device, void *stream, const backend_launch *launch)
{
    (void)device, (void)stream;
    assert_int_equal(launch->first, launch->first == 0 ? 0 : noted.end);
    assert_true(launch->end > launch->first && launch->end <= launch->tiles);
    noted.launches += launch->first == 0;
    noted.tiles = launch->tiles;
    noted.end = launch->end;
    return DART_OK;
}

/* However slow its device counts as, a recording has STREAM_PARTS parts, or as many as it has launches. Each launch is whole. */
static void has_parts_to_a_limit(void **unused)
{
    (void)unused;
    enum { FEW = 3, MANY = STREAM_PARTS + 100, ALL = FEW + MANY, LARGE = 1 << 24, SMALL = 64 };
    rig r;
    rig_open_with(&r, &(dart_device_options){.spec = "null"});
    noted = (struct noted){.fake = *r.device->backend};
    noted.fake.stream_launch = note_launch;
    r.device->backend = &noted.fake;
    const dart_tensor one = rig_tensor(&r, DART_F32, LARGE, NULL), small = rig_tensor(&r, DART_F32, SMALL, NULL);
    stream_parts *p = &r.stream->parts;
    p->most_work = 1;
    for (int time = 0; time < 2; time++) { /* the second recording takes the parts of the first */
        noted.launches = 0;
        rig_begin(&r);
        for (uint32_t i = 0; i < ALL; i++) {
            const bool large = i < FEW;
            const uint32_t before = p->count;
            stream_pace(r.stream, large ? 1e9 : 2, 1);
            MUST(&r, dart_fill(r.stream, &(dart_fill_args){.T = 1, .W = large ? LARGE : SMALL, .y = large ? one : small}));
            assert_int_equal(noted.end, noted.tiles);
            assert_true(noted.tiles > (large ? STREAM_PARTS : 0));
            if (i == 0) assert_in_range(p->count, STREAM_PARTS - 1, STREAM_PARTS);
            else assert_true(p->count <= before + 1);
        }
        assert_int_equal(noted.launches, ALL);
        assert_in_range(p->count, ALL, STREAM_PARTS + ALL);
        assert_int_equal(p->ends[p->count - 1], ALL);
        for (uint32_t i = 0; i < p->count; i++) {
            uint64_t ns;
            MUST(&r, stream_submit_part(r.stream, i));
            MUST(&r, stream_wait_part(r.stream, UINT64_MAX, &ns));
        }
    }
    assert_int_equal(p->made, p->count);
    rig_close(&r);
}

/* A recording in three parts exchanges two tensors. Its runs follow one another with two parts in flight, those of the next run among them. */
static void runs_follow_one_another(void **unused)
{
    (void)unused;
    enum { RUNS = 5, PARTS = 3, COUNT = 1000 };
    static const stream_cut cuts[] = {{.launch = 1, .ranges = 1}, {.launch = 2, .ranges = 1}};
    rig r;
    uint64_t ns;
    rig_open(&r, rig_spec);
    float *values[2] = {rig_values(&r, COUNT, -1, 1), rig_values(&r, COUNT, 2, 3)};
    dart_tensor tensors[] = {rig_tensor(&r, DART_F32, COUNT, values[0]), rig_tensor(&r, DART_F32, COUNT, values[1]),
                             rig_tensor(&r, DART_F32, COUNT, NULL)};
    stream_parts *p = &r.stream->parts;
    p->cuts = cuts;
    p->cuts_count = COUNT_OF(cuts);
    rig_begin(&r);
    for (uint32_t i = 0; i < PARTS; i++) /* the third becomes the first, the first the second, the second the third */
        MUST(&r, dart_convert(r.stream, &(dart_convert_args){.T = 1, .W = COUNT, .x = tensors[i], .y = tensors[(i + 2) % PARTS]}));
    assert_int_equal(p->count, PARTS);
    for (uint32_t i = 0; i < RUNS * PARTS; i++) {
        assert_int_equal(p->in_flight, i < 2 ? i : 2);
        if (i >= 2) MUST(&r, stream_wait_part(r.stream, UINT64_MAX, &ns));
        MUST(&r, stream_submit_part(r.stream, i % PARTS));
        assert_int_equal((p->from + p->in_flight - 1) % PARTS, i % PARTS);
    }
    while (r.stream->submitted) MUST(&r, stream_wait_part(r.stream, UINT64_MAX, &ns));
    assert_int_equal(p->in_flight, 0);
    p->cuts_count = 0;
    for (uint32_t i = 0; i < 2 && r.info.backend != DART_BACKEND_NULL; i++) {
        float *got = rig_read(&tensors[i], COUNT);
        rig_same_bits("exchanged", got, values[1 - i], COUNT);
        free(got);
    }
    for (size_t i = 0; i < 2; i++) free(values[i]);
    rig_close(&r);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(ranges_make_a_launch), cmocka_unit_test(leaves_tickets_as_they_were),
                                          cmocka_unit_test(has_parts_to_a_limit), cmocka_unit_test(runs_follow_one_another)};
RIG_MAIN("unit_ranges")
