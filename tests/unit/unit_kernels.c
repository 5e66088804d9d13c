/* The table of kernels: whole, and the choice from it. */
#include "runtime/kernel.h"
#include "cpu/cpu.h"
#include "ops/mixer/mixer.h"
#include "ops/ssd/tiles.h"
#include "ops/window/window.h"
#ifdef DARTLM_VULKAN
#include "vulkan/vk_spirv.h"
#endif

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* What a device of a backend may have. */
static const struct { dart_backend_kind backend; uint32_t may; } kinds[] = {
    {DART_BACKEND_CPU, DART_CAP_AVX2 | DART_CAP_BLAS},
    {DART_BACKEND_VULKAN,
     DART_CAP_STORE16 | DART_CAP_SUBGROUP | DART_CAP_FLOAT16 | DART_CAP_LARGE | DART_CAP_SHARED48 | DART_CAP_WIDE | DART_CAP_REGISTERS |
         DART_CAP_REGISTERS160 | DART_CAP_REGISTERS96 | DART_CAP_CUMULATIVE | DART_CAP_ADDRESSES | DART_CAP_RESIDENT | DART_CAP_MATRIX},
    {DART_BACKEND_CUDA, DART_CAP_SM90 | DART_CAP_CUBLASLT | DART_CAP_RESIDENT},
};

static void describes_every_kernel(void **unused)
{
    (void)unused;
    for (uint32_t k = 0; k < KERNEL_COUNT; k++) {
        const kernel_info *kernel = &kernel_table[k];
        assert_non_null(kernel->name);
        for (uint32_t i = 0; i < k; i++) assert_string_not_equal(kernel->name, kernel_table[i].name);
        assert_true(kernel->args_size >= 8 && kernel->args_size <= KERNEL_MAX_ARGS && kernel->args_size % 4 == 0);
        assert_true(kernel->bindings_count > 0 && kernel->bindings_count <= KERNEL_MAX_BINDINGS);
        int access = 0;
        for (uint32_t b = 0; b < kernel->bindings_count; b++) {
            const kernel_binding *binding = &kernel->bindings[b];
            if (binding->name == NULL) fail_msg("%s: binding %u has no name", kernel->name, b);
            assert_in_range(binding->access, ACCESS_READ, ACCESS_READ_WRITE);
            for (uint32_t i = 0; i < b; i++) assert_string_not_equal(binding->name, kernel->bindings[i].name);
            access |= (int)binding->access;
        }
        if ((access & ACCESS_WRITE) == 0 && !kernel->by_address) fail_msg("%s writes nothing", kernel->name);
        for (uint32_t b = kernel->bindings_count; b < KERNEL_MAX_BINDINGS; b++) assert_null(kernel->bindings[b].name);
    }
}

/* Knows all bits of the enum: two that are one number do not compile, nor does a bit that is missing here. */
static bool is_capability(dart_capability bit)
{
    switch (bit) {
    case DART_CAP_AVX2: case DART_CAP_BLAS: case DART_CAP_STORE16: case DART_CAP_SUBGROUP: case DART_CAP_FLOAT16: case DART_CAP_LARGE:
    case DART_CAP_SHARED48: case DART_CAP_MATRIX_F16: case DART_CAP_MATRIX_BF16: case DART_CAP_MATRIX2: case DART_CAP_WIDE:
    case DART_CAP_REGISTERS: case DART_CAP_MATRIX_CUTS: case DART_CAP_MATRIX_PLACES: case DART_CAP_SM90: case DART_CAP_CUBLASLT:
    case DART_CAP_REGISTERS160: case DART_CAP_REGISTERS96: case DART_CAP_CUMULATIVE: case DART_CAP_ADDRESSES:
    case DART_CAP_RESIDENT:
        return true;
    }
    return false;
}

static void rows_ask_for_known_capabilities(void **unused)
{
    (void)unused;
    for (uint32_t i = 0; i < kernel_rows_count; i++)
        for (uint32_t bit = 0; bit < 31; bit++) {
            const kernel_row *row = &kernel_rows[i];
            if ((row->needs >> bit & 1) != 0 && !is_capability((dart_capability)(1u << bit)))
                fail_msg("%s[%s] needs bit %u", kernel_table[row->id].name, row->variant, bit);
        }
}

static kernel_capabilities able(uint32_t bits) { return (kernel_capabilities){bits}; }

static void has_a_baseline_everywhere(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < COUNT_OF(kinds); i++)
        for (uint32_t k = 0; k < KERNEL_COUNT; k++) {
            /* For some devices only; on the others other launches do what ssd_decay_memory, ssd_piece, ssd_backward_gain, ssd_backward_walk,
             * sma_backward_tokens, sma_backward_rows, sma_backward_token_side, sma_backward_parts, sma_backward_memory_side, cross_entropy_x,
             * cross_entropy_weight, linear_quantised, linear_from, attention_backward_whole, mixer_layers, mixer_windows, mixer_window_layers,
             * window_project, window_gated, window_back and window_folds do. */
            if (k == KERNEL_matrix_check || k == KERNEL_wide_check || k == KERNEL_matrix2_check || k == KERNEL_ssd_decay_memory ||
                k == KERNEL_ssd_piece || k == KERNEL_ssd_backward_gain || k == KERNEL_ssd_backward_walk || k == KERNEL_sma_backward_tokens ||
                k == KERNEL_sma_backward_rows || k == KERNEL_sma_backward_token_side || k == KERNEL_sma_backward_parts ||
                k == KERNEL_sma_backward_memory_side || k == KERNEL_cross_entropy_x || k == KERNEL_cross_entropy_weight ||
                k == KERNEL_linear_quantised || k == KERNEL_linear_from || k == KERNEL_attention_backward_whole || k == KERNEL_mixer_layers ||
                k == KERNEL_mixer_windows || k == KERNEL_mixer_window_layers || k == KERNEL_window_project || k == KERNEL_window_gated ||
                k == KERNEL_window_back || k == KERNEL_window_folds || k == KERNEL_resident_check)
                continue;
            const kernel_row *row = kernel_pick(kinds[i].backend, (kernel_id)k, able(0), 0, UINT32_MAX, NULL);
            if (row == NULL || row->backend != kinds[i].backend || row->needs != 0 || row->fits != 0)
                fail_msg("%s has no baseline row for %s", kernel_table[k].name, dart_backend_name(kinds[i].backend));
        }
}

static void has_sound_rows(void **unused)
{
    (void)unused;
    uint32_t slots[4] = {0};
    for (uint32_t i = 0; i < kernel_rows_count; i++) {
        const kernel_row *row = &kernel_rows[i];
        size_t kind = 0;
        while (kind < COUNT_OF(kinds) && kinds[kind].backend != row->backend) kind++;
        assert_true(kind < COUNT_OF(kinds));
        const char *name = kernel_table[row->id].name;
        if (row->slot != slots[row->backend]++) fail_msg("%s[%s]: slot %u", name, row->variant, row->slot);
        if ((row->needs & ~kinds[kind].may) != 0) fail_msg("%s[%s]: needs 0x%x", name, row->variant, row->needs);
        /* 0 is computed at the launch, by ssd.c, sma.c, sma_backward.c and mixer.c. */
        const bool computed = row->id == KERNEL_sma_step || (ROW_HAS_MATRIX(row) && (row->id == KERNEL_ssd_output ||
                                                      row->id == KERNEL_ssd_decay_memory || row->id == KERNEL_sma ||
                                                      row->id == KERNEL_sma_backward_tokens));
        const bool shared_out = (row->id == KERNEL_mixer_project || row->id == KERNEL_mixer_output) && (row->fits & FITS_MIXER_STEP) != 0;
        const bool of_layers = row->id == KERNEL_mixer_layers || row->id == KERNEL_mixer_windows ||
                               row->id == KERNEL_mixer_window_layers; /* W and H */
        const bool walks = row->id == KERNEL_conv && row->T0 != 0; /* the op computes how many tokens a tile has */
        if ((row->T0 == 0 || row->T1 == 0) && !computed && !shared_out && !walks && !of_layers)
            fail_msg("%s[%s]: tile sizes %u and %u", name, row->variant, row->T0, row->T1);
        assert_true(strlen(row->variant) < 32); /* what dart_device_options.variant takes */
        /* Guaranteed by Vulkan: 128 invocations, which are four subgroups of 32 lanes; rows with matrices count those. */
        if (row->backend == DART_BACKEND_VULKAN) {
            const uint32_t most = (row->needs & DART_CAP_SHARED48) != 0 ? 512 : (row->needs & DART_CAP_LARGE) != 0 ? 256 : 128;
            if (row->local == 0 || row->local * (ROW_HAS_MATRIX(row) ? 32 : 1) > most)
                fail_msg("%s[%s]: %u of %u", name, row->variant, row->local, most);
        }
        bool reached = true;
        for (uint32_t j = 0; j < i; j++) {
            const kernel_row *other = &kernel_rows[j];
            if (other->id != row->id || other->backend != row->backend) continue;
            if (strcmp(other->variant, row->variant) == 0) fail_msg("%s[%s] is there twice", name, row->variant);
            /* An earlier row that needs no more and takes as many rows hides this one. */
            if ((other->needs & ~row->needs) == 0 && (other->fits & ~row->fits) == 0 &&
                (other->max_rows == 0 || (row->max_rows != 0 && other->max_rows >= row->max_rows)))
                reached = false;
        }
        /* A hidden row can still be asked for by name; CPU variants of linear are kept for that. */
        if (!reached && row->backend != DART_BACKEND_CPU) fail_msg("%s[%s] is never chosen", name, row->variant);
    }
}

/* linear_from: launched only in place of the row of linear that adds up alike, so that each row has one, of the same tiles and for the same calls. */
static void rows_that_add_up_alike_have_one_shape(void **unused)
{
    (void)unused;
    for (uint32_t i = 0; i < kernel_rows_count; i++) {
        const kernel_row *row = &kernel_rows[i], *other = kernel_same_bits(row);
        if (row->id != KERNEL_linear_from) {
            assert_null(other);
            continue;
        }
        if (other == NULL) fail_msg("linear_from[%s] is never launched", row->variant);
        if (other->id != KERNEL_linear || other->backend != row->backend || other->needs != row->needs || other->fits != row->fits ||
            other->T0 != row->T0 || other->T1 != row->T1 || other->local != row->local)
            fail_msg("linear_from[%s] is not as %s[%s]", row->variant, kernel_table[other->id].name, other->variant);
    }
}

static const struct { kernel_id id; const char *variant; } mapped[] = {
#define CUDA_MAP(id, variant, binding, rows) {KERNEL_##id, #variant},
#include "kernels.def"
};

/* A map copies whole rows of 64 elements, counted from the start of the binding. */
static void copies_of_rows_ask_for_whole_rows(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < COUNT_OF(mapped); i++) {
        const kernel_row *row = kernel_pick(DART_BACKEND_CUDA, mapped[i].id, able(UINT32_MAX), UINT32_MAX, 1, mapped[i].variant);
        if (strcmp(row->variant, mapped[i].variant) != 0 || (row->fits & FITS_SMA_BULK) == 0)
            fail_msg("%s[%s] takes memories that begin anywhere", kernel_table[mapped[i].id].name, mapped[i].variant);
    }
}

/* As the table writes them: there both are constants, which no compiler tells apart. */
static const struct { const char *row, *needs, *fits; kernel_id id; } written[] = {
#define CPU_ROW(id, variant, needs, fits, T0, T1, max_rows) {#id "[" #variant "]", #needs, #fits, KERNEL_##id},
#define CUDA_ROW(id, variant, source, needs, fits, T0, T1, max_rows) {#id "[" #variant "]", #needs, #fits, KERNEL_##id},
#define SPIRV_ROW(id, variant, source, needs, fits, T0, T1, max_rows, local, defines) {#id "[" #variant "]", #needs, #fits, KERNEL_##id},
#include "kernels.def"
};
/* The op before its kernels. */
static const struct { kernel_op op; kernel_id id; } order[] = {
#define KERNELS(op) {KERNEL_OP_##op, KERNEL_COUNT},
#define KERNEL(id, Args) {KERNEL_OPS, KERNEL_##id},
#include "kernels.def"
};
static const char *const traits_of[] = {
#define KERNELS(op) "FITS_" #op "_",
#include "kernels.def"
};

/* Is it 0, or NAME | NAME ... of names that begin so? */
static bool names_bits(const char *text, const char *begin)
{
    if (strcmp(text, "0") == 0) return true;
    for (;; text += 3) {
        if (strncmp(text, begin, strlen(begin)) != 0) return false;
        text += strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
        if (*text == '\0') return true;
        if (strncmp(text, " | ", 3) != 0) return false;
    }
}

static void names_capabilities_and_traits_where_they_belong(void **unused)
{
    (void)unused;
    assert_true(names_bits("DART_CAP_A | DART_CAP_B2", "DART_CAP_") && !names_bits("DART_CAP_A | FITS_B", "DART_CAP_") && !names_bits("1", "FITS_"));
    assert_int_equal(COUNT_OF(written), kernel_rows_count);
    for (size_t i = 0; i < COUNT_OF(written); i++)
        if (!names_bits(written[i].needs, "DART_CAP_") || !names_bits(written[i].fits, "FITS_"))
            fail_msg("%s needs %s and fits %s", written[i].row, written[i].needs, written[i].fits);
}

/* Traits of two ops may be the same bit. */
static void names_traits_of_its_own_op(void **unused)
{
    (void)unused;
    kernel_op op = KERNEL_OPS;
    for (size_t i = 0; i < COUNT_OF(order); i++) {
        if (order[i].id == KERNEL_COUNT) op = order[i].op;
        else if (kernel_op_of(order[i].id) != op) fail_msg("%s is of op %d", kernel_table[order[i].id].name, (int)kernel_op_of(order[i].id));
    }
    assert_int_equal(COUNT_OF(traits_of), KERNEL_OPS);
    for (size_t i = 0; i < COUNT_OF(written); i++)
        for (size_t k = 0; k < KERNEL_OPS; k++)
            if (k != kernel_op_of(written[i].id) && strstr(written[i].fits, traits_of[k]) != NULL)
                fail_msg("%s fits %s", written[i].row, written[i].fits);
}

static void has_code_for_every_row(void **unused)
{
    (void)unused;
    uint32_t vulkan = 0, capabilities = 0;
#ifdef DARTLM_AVX2
    capabilities |= DART_CAP_AVX2;
#endif
#ifdef DARTLM_BLAS
    capabilities |= DART_CAP_BLAS;
#endif
    for (uint32_t i = 0; i < kernel_rows_count; i++) {
        const kernel_row *row = &kernel_rows[i];
        vulkan += row->backend == DART_BACKEND_VULKAN;
        if (row->backend == DART_BACKEND_CPU && (row->needs & ~capabilities) == 0 && cpu_kernels[row->slot] == NULL)
            fail_msg("%s[%s] has no function", kernel_table[row->id].name, row->variant);
    }
    assert_true(vulkan > 0);
#ifdef DARTLM_VULKAN
    assert_int_equal(vk_spirv_modules_count, vulkan);
    for (uint32_t i = 0; i < vk_spirv_modules_count; i++) {
        assert_true(vk_spirv_modules[i].bytes > 20 && vk_spirv_modules[i].bytes % 4 == 0);
        assert_int_equal(vk_spirv_modules[i].words[0], 0x07230203);
    }
#endif
}

/* Rows without matrices are right for subgroups of any size, those that no device at hand has among them, because their lanes meet in sums and
 * maxima of whole subgroups only (docs/compilers.md): none votes, shuffles, or works on parts of a subgroup. */
static void subgroups_of_any_size_will_do(void **unused)
{
    (void)unused;
#ifdef DARTLM_VULKAN
    enum { OP_CAPABILITY = 17, VOTE = 62, ARITHMETIC = 63, BALLOT = 64, QUAD = 68, HEADER_WORDS = 5 }; /* of SPIR-V */
    uint32_t reducing = 0;
    for (uint32_t i = 0; i < kernel_rows_count; i++) {
        const kernel_row *row = &kernel_rows[i];
        /* Devices with DART_CAP_ADDRESSES have subgroups of one size. */
        if (row->backend != DART_BACKEND_VULKAN || ROW_HAS_MATRIX(row) || (row->needs & DART_CAP_ADDRESSES) != 0) continue;
        bool reduces = false;
        for (const uint32_t *word = vk_spirv_modules[row->slot].words + HEADER_WORDS; (*word & 0xffff) == OP_CAPABILITY; word += *word >> 16) {
            reduces = reduces || word[1] == ARITHMETIC;
            if (word[1] == VOTE || (word[1] >= BALLOT && word[1] <= QUAD)) fail_msg("%s[%s]: %u", kernel_table[row->id].name, row->variant, word[1]);
        }
        if (reduces && (row->needs & DART_CAP_SUBGROUP) == 0) fail_msg("%s[%s] does not need subgroups", kernel_table[row->id].name, row->variant);
        reducing += reduces;
    }
    assert_true(reducing > 20);
#endif
}

static const kernel_row *first_of(dart_backend_kind kind, kernel_id id, uint32_t capabilities, uint32_t traits, uint32_t rows)
{
    for (uint32_t i = 0; i < kernel_rows_count; i++) {
        const kernel_row *row = &kernel_rows[i];
        const bool fits = row->backend == kind && (row->needs & ~capabilities) == 0 && (row->fits & ~traits) == 0;
        if (row->id == id && fits && (row->max_rows == 0 || rows <= row->max_rows)) return row;
    }
    return NULL;
}

static void picks_the_first_that_fits(void **unused)
{
    (void)unused;
    for (uint32_t k = 0; k < KERNEL_COUNT; k++) {
        assert_null(kernel_pick(DART_BACKEND_NULL, (kernel_id)k, able(UINT32_MAX), UINT32_MAX, 1, NULL));
        uint32_t random = k;
        for (uint32_t n = 0; n < 4096; n++) {
            random = random * 1664525u + 1013904223u;
            const dart_backend_kind kind = kinds[n % COUNT_OF(kinds)].backend;
            /* Half of the bits or three quarters of them; the high ones of this generator are the random ones. */
            const uint32_t capabilities = random >> 13 | (n % 2 == 0 ? 0x1555 : 0), traits = random >> 7 | (n % 3 == 0 ? 0x555 : 0);
            static const uint32_t rows[] = {0, 1, 4, 5, 8, 9, 512, 513, UINT32_MAX};
            for (size_t i = 0; i < COUNT_OF(rows); i++)
                assert_ptr_equal(kernel_pick(kind, (kernel_id)k, able(capabilities), traits, rows[i], NULL),
                                 first_of(kind, (kernel_id)k, capabilities, traits, rows[i]));
        }
    }
}

static void picks_by_name(void **unused)
{
    (void)unused;
    const uint32_t cpu = DART_CAP_AVX2 | DART_CAP_BLAS;
    for (uint32_t i = 0; i < kernel_rows_count; i++) {
        const kernel_row *row = &kernel_rows[i];
        assert_ptr_equal(kernel_pick(row->backend, row->id, able(row->needs), row->fits, 1, row->variant), row);
        /* Not below its needs, and not above its rows. */
        const kernel_row *other = kernel_pick(row->backend, row->id, able(row->needs & ~(uint32_t)(DART_CAP_AVX2 | DART_CAP_STORE16)), row->fits, 1,
                                              row->variant);
        if ((row->needs & (DART_CAP_AVX2 | DART_CAP_STORE16)) != 0) assert_ptr_not_equal(other, row);
        if (row->max_rows != 0)
            assert_ptr_not_equal(kernel_pick(row->backend, row->id, able(row->needs), row->fits, row->max_rows + 1, row->variant), row);
    }
    assert_ptr_equal(kernel_pick(DART_BACKEND_CPU, KERNEL_linear, able(cpu), 0, 100, "no such"),
                     kernel_pick(DART_BACKEND_CPU, KERNEL_linear, able(cpu), 0, 100, NULL));
    assert_string_equal(kernel_pick(DART_BACKEND_CPU, KERNEL_linear, able(cpu), 0, 100, "plain")->variant, "plain");
}

/* On an H200, as measured for 24 heads in chunks of 256; elsewhere in proportion, and never none. */
static void computes_heads_of_a_workgroup(void **unused)
{
    (void)unused;
    static const struct { uint32_t most, memory, output; } h200[] = {
        {2048, 2, 3}, {4096, 3, 6}, {8192, 6, 6}, {16384, 12, 12}, {1u << 20, 24, 24}};
    for (uint32_t L = 1, i = 0; L <= 40000; L += L < 600 ? 1 : 127) {
        while (L > h200[i].most) i++;
        const ssd_size size = {.B = 1, .L = L, .H = 24, .G = 1, .S = 256};
        if (ssd_memory_heads(132, &size) != h200[i].memory || ssd_output_heads(132, &size) != h200[i].output)
            fail_msg("L %u: %u and %u heads", L, ssd_memory_heads(132, &size), ssd_output_heads(132, &size));
    }
    /* Two sequences are as much work as one twice as long; groups multiply the workgroups. */
    assert_int_equal(ssd_memory_heads(132, &(ssd_size){.B = 2, .L = 2048, .H = 24, .G = 1, .S = 256}), 3);
    assert_int_equal(ssd_output_heads(132, &(ssd_size){.B = 2, .L = 2048, .H = 24, .G = 1, .S = 256}), 6);
    assert_int_equal(ssd_memory_heads(132, &(ssd_size){.B = 1, .L = 2048, .H = 48, .G = 2, .S = 256}), 3);
    assert_int_equal(ssd_memory_heads(264, &(ssd_size){.B = 1, .L = 4096, .H = 24, .G = 1, .S = 256}), 2);
    for (uint32_t multiprocessors = 1; multiprocessors <= 1024; multiprocessors++)
        for (uint32_t L = 1; L <= 1u << 20; L *= 4) {
            const ssd_size size = {.B = 3, .L = L, .H = 8, .G = 8, .S = 64};
            assert_int_equal(ssd_memory_heads(multiprocessors, &size), 2);
            assert_int_equal(ssd_output_heads(multiprocessors, &size), 3);
        }
    assert_int_equal(ssd_clusters(132, 8), 15);
    assert_int_equal(ssd_clusters(4, 8), 0);
    assert_int_equal(ssd_clusters(8, 8), 1);
}

static bool windows_of(dart_backend_kind kind, uint32_t N, uint32_t P, dart_dtype dtype)
{
    const backend rows = {.rows = kind};
    const dart_device device = {.backend = &rows};
    return window_pays(&device, &(dart_window_args){.B = 64, .N = N, .P = P, .rows = {.dtype = dtype}, .hin = {.dtype = dtype}});
}

static bool norm_linear_of(dart_backend_kind kind, uint32_t T, dart_dtype weight)
{
    const backend rows = {.rows = kind};
    const dart_device device = {.backend = &rows, .info.capabilities = UINT32_MAX};
    return mixer_norm_linear_pays(&device, &(dart_norm_linear_args){.T = T, .IN = 768, .OUT = 50288, .weight = {.dtype = weight}});
}

/* Measured: through CUDA windows of one size only, and no norm with a product. */
static void says_what_pays(void **unused)
{
    (void)unused;
    for (dart_dtype dtype = DART_F32; dtype <= DART_BF16; dtype++) {
        assert_true(windows_of(DART_BACKEND_VULKAN, 128, 64, dtype) && windows_of(DART_BACKEND_VULKAN, 64, 64, dtype));
        assert_true(windows_of(DART_BACKEND_CUDA, 128, 64, dtype) == (dtype != DART_F32));
        assert_false(windows_of(DART_BACKEND_CUDA, 64, 64, dtype) || windows_of(DART_BACKEND_CUDA, 128, 128, dtype));
    }
    static const dart_dtype weights[] = {DART_F32, DART_F16, DART_BF16, DART_Q8, DART_Q4};
    for (uint32_t T = 1; T <= 8; T++)
        for (size_t i = 0; i < COUNT_OF(weights); i++)
            assert_true(norm_linear_of(DART_BACKEND_VULKAN, T, weights[i]) && !norm_linear_of(DART_BACKEND_CUDA, T, weights[i]));
    uint32_t slower = 0;
    for (uint32_t i = 0; i < kernel_rows_count; i++) slower += kernel_is_slower(&kernel_rows[i]);
    assert_int_equal(slower, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(describes_every_kernel), cmocka_unit_test(rows_ask_for_known_capabilities),
        cmocka_unit_test(has_a_baseline_everywhere),
        cmocka_unit_test(has_sound_rows),
        cmocka_unit_test(rows_that_add_up_alike_have_one_shape),
        cmocka_unit_test(copies_of_rows_ask_for_whole_rows),
        cmocka_unit_test(names_capabilities_and_traits_where_they_belong),
        cmocka_unit_test(names_traits_of_its_own_op),
        cmocka_unit_test(has_code_for_every_row),
        cmocka_unit_test(subgroups_of_any_size_will_do),
        cmocka_unit_test(picks_the_first_that_fits),
        cmocka_unit_test(picks_by_name),
        cmocka_unit_test(computes_heads_of_a_workgroup),
        cmocka_unit_test(says_what_pays),
    };
    return cmocka_run_group_tests_name("unit_kernels", tests, NULL, NULL);
}
