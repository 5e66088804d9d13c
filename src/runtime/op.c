#include "op.h"
#include "stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* UNKNOWN_MULTIPROCESSORS: a power of two near the 132 of an H200. */
enum { MIN_CHUNK = 1 << 20, MIN_TICKETS = 1 << 12, UNKNOWN_MULTIPROCESSORS = 128 };

dart_status op_status(const op_call *call) { return call->stream->status; }

dart_status op_fail(op_call *call, dart_status code, const char *format, ...)
{
    if (call->stream->status != DART_OK) return call->stream->status;
    char text[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return call->stream->status = base_fail(&call->stream->report, code, "%s: %s", call->op, text);
}

dart_status op_begin(op_call *call, dart_stream *stream, const char *op)
{
    memset(call, 0, sizeof *call);
    call->stream = stream;
    call->op = op;
    if (stream->status != DART_OK) return stream->status;
    if (stream->closed) return op_fail(call, DART_INVALID_ARGUMENT, "the recording was submitted already: dart_stream_begin first");
    return DART_OK;
}

dart_status op_end(op_call *call)
{
    /* With margins every operand of scratch memory has a buffer of its own, which no other op uses. */
    if (call->stream->device->margin == 0) call->stream->chunk = 0;
    else call->stream->chunk = call->stream->chunks.count;
    call->stream->used = 0;
    return call->stream->status;
}

static bool check_one(op_call *call, const op_operand *operand)
{
    const char *name = operand->name;
    const dart_tensor *tensor = &operand->of;
    const int kinds = operand->kinds;
    const uint64_t rows = operand->rows, width = operand->width;
    if (tensor->buffer == NULL) {
        if ((kinds & OP_OPTIONAL) == 0) op_fail(call, DART_INVALID_ARGUMENT, "%s is missing", name);
        return call->stream->status == DART_OK;
    }
    if (tensor->buffer->device != call->stream->device) {
        op_fail(call, DART_INVALID_ARGUMENT, "%s lies on another device", name);
        return false;
    }
    if ((unsigned)tensor->dtype > DART_Q4 || (kinds & 1 << tensor->dtype) == 0) {
        op_fail(call, DART_INVALID_ARGUMENT, "%s cannot be %s", name, dart_dtype_name(tensor->dtype));
        return false;
    }
    if ((1 << tensor->dtype & OP_QUANTISED) != 0 && tensor->offset % 16 != 0) {
        op_fail(call, DART_INVALID_ARGUMENT, "%s starts at byte %llu, not at a multiple of 16", name, (unsigned long long)tensor->offset);
        return false;
    }
    const uint64_t row = tensor->row != 0 ? tensor->row : width;
    if (row < width || (row != width && (kinds & OP_VIEW) == 0) || row > UINT32_MAX) {
        op_fail(call, DART_INVALID_ARGUMENT, "%s: rows of %llu elements cannot lie %llu apart", name,
                (unsigned long long)width, (unsigned long long)row);
        return false;
    }
    if ((kinds & OP_ALIGNED) != 0 && tensor->offset % 64 != 0) {
        op_fail(call, DART_INVALID_ARGUMENT, "%s starts at element %llu, not at a multiple of 64", name,
                (unsigned long long)tensor->offset);
        return false;
    }
    uint64_t end = 0;
    const uint64_t size = dart_dtype_size(tensor->dtype);
    const bool fits = base_mul(rows - 1, row, &end) && base_add(end, width, &end) && base_add(end, tensor->offset, &end) &&
                      base_mul(end, size, &end) && end <= tensor->buffer->bytes;
    if (!fits)
        op_fail(call, DART_INVALID_ARGUMENT, "%s: %llu rows of %llu %s elements, %llu apart, from element %llu exceed a buffer of %llu bytes",
                name, (unsigned long long)rows, (unsigned long long)width, dart_dtype_name(tensor->dtype),
                (unsigned long long)row, (unsigned long long)tensor->offset, (unsigned long long)tensor->buffer->bytes);
    return fits;
}

bool op_check(op_call *call, const op_operand *operands, size_t count)
{
    if (call->stream->status != DART_OK) return false;
    for (size_t i = 0; i < count; i++)
        if (!check_one(call, &operands[i])) return false;
    return true;
}

/* Makes room for one more buffer at the end of the list. */
static bool grow(buffer_list *list)
{
    dart_buffer **grown = realloc(list->buffers, (list->count + 1) * sizeof *grown);
    if (grown != NULL) list->buffers = grown;
    return grown != NULL;
}

/* With the device's own words. */
static void fail_for_want_of(op_call *call, dart_status status, uint64_t bytes, const char *what)
{
    char text[256];
    base_report_copy(&call->stream->device->report, text, sizeof text);
    op_fail(call, status, "%llu bytes of %s: %s", (unsigned long long)bytes, what, text);
}

static bool add_chunk(op_call *call, uint64_t bytes)
{
    dart_stream *stream = call->stream;
    if (!grow(&stream->chunks)) {
        op_fail(call, DART_OUT_OF_MEMORY, "no host memory");
        return false;
    }
    dart_buffer *chunk = NULL;
    const bool larger = bytes < MIN_CHUNK && stream->device->margin == 0;
    const dart_status status = dart_buffer_create(stream->device, larger ? MIN_CHUNK : bytes, &chunk);
    if (status != DART_OK) {
        fail_for_want_of(call, status, bytes, "scratch memory");
        return false;
    }
    stream->chunks.buffers[stream->chunks.count++] = chunk;
    return true;
}

op_operand op_scratch(op_call *call, dart_dtype dtype, uint64_t rows, uint64_t width)
{
    op_operand scratch = {.name = "scratch", .of.dtype = dtype, .rows = rows, .width = width};
    dart_stream *stream = call->stream;
    const uint64_t size = dart_dtype_size(dtype);
    uint64_t bytes = 0;
    if (stream->status != DART_OK) return scratch;
    if (!base_mul(rows, width, &bytes) || !base_mul(bytes, size, &bytes) || bytes > UINT64_MAX / 2) {
        op_fail(call, DART_OUT_OF_MEMORY, "scratch memory of %llu x %llu elements", (unsigned long long)rows, (unsigned long long)width);
        return scratch;
    }
    if (stream->device->margin == 0) bytes = base_round_up(bytes, BACKEND_ALIGN);
    while (stream->chunk < stream->chunks.count && stream->used + bytes > stream->chunks.buffers[stream->chunk]->bytes) {
        stream->chunk++;
        stream->used = 0;
    }
    if (stream->chunk == stream->chunks.count && !add_chunk(call, bytes)) return scratch;
    scratch.of.buffer = stream->chunks.buffers[stream->chunk];
    scratch.of.offset = stream->used / size;
    stream->used += bytes;
    return scratch;
}

/* Zeros from the host, once: a launch that fills them would cost every token what they are there to save. */
static bool add_zeros(op_call *call, buffer_list *list, uint64_t bytes, const char *what)
{
    dart_stream *stream = call->stream;
    void *zeros = calloc(1, (size_t)bytes);
    const bool room = grow(list);
    dart_buffer *made = NULL;
    dart_status status = zeros != NULL && room ? DART_OK : base_fail(&stream->device->report, DART_OUT_OF_MEMORY, "no host memory");
    if (status == DART_OK) status = dart_buffer_create(stream->device, bytes, &made);
    if (status == DART_OK) status = dart_buffer_write(made, 0, zeros, bytes);
    free(zeros);
    if (status == DART_OK) {
        list->buffers[list->count++] = made;
        return true;
    }
    dart_buffer_destroy(&made);
    fail_for_want_of(call, status, bytes, what);
    return false;
}

static op_operand zeros_of(op_call *call, buffer_list *list, uint64_t elements, uint64_t least, const char *what)
{
    op_operand zeros = {.name = what, .of.dtype = DART_I32, .rows = 1, .width = elements};
    if (call->stream->status != DART_OK) return zeros;
    const uint64_t bytes = base_round_up(4 * base_larger(elements, least), BACKEND_ALIGN);
    const bool enough = list->count > 0 && list->buffers[list->count - 1]->bytes >= bytes;
    if (enough || add_zeros(call, list, bytes, what)) zeros.of.buffer = list->buffers[list->count - 1];
    return zeros;
}

op_operand op_tickets(op_call *call, uint64_t elements)
{
    return zeros_of(call, &call->stream->tickets, elements, MIN_TICKETS, "tickets");
}

op_operand op_posts(op_call *call, uint64_t elements) { return zeros_of(call, &call->stream->posts, elements, 0, "posts"); }

op_operand op_stuck(op_call *call)
{
    const op_operand stuck = zeros_of(call, &call->stream->stuck, 1, 0, "stuck");
    call->stream->waits = call->stream->waits || op_has(&stuck.of);
    return stuck;
}

op_operand op_table(op_call *call, const uint32_t *words, uint64_t count)
{
    dart_stream *stream = call->stream;
    buffer_list *list = &stream->tables;
    op_operand table = {.name = "table", .of.dtype = DART_I32, .rows = 1, .width = count};
    if (stream->status != DART_OK) return table;
    const uint64_t bytes = base_round_up(4 * count, BACKEND_ALIGN);
    while (stream->tables_used < list->count && list->buffers[stream->tables_used]->bytes < bytes) stream->tables_used++;
    if (stream->tables_used == list->count && !add_zeros(call, list, bytes, "table")) return table;
    table.of.buffer = list->buffers[stream->tables_used++];
    const dart_status status = dart_buffer_write(table.of.buffer, 0, words, 4 * count);
    if (status != DART_OK) fail_for_want_of(call, status, bytes, "table");
    return table;
}

uint64_t op_address(const op_call *call, const op_operand *operand)
{
    const dart_device *device = call->stream->device;
    const dart_buffer *buffer = operand->of.buffer;
    if (buffer == NULL || device->backend->memory_address == NULL) return 0;
    const uint64_t address = device->backend->memory_address(device->handle, buffer->memory);
    return address == 0 ? 0 : address + buffer->margin + operand->of.offset * dart_dtype_size(operand->of.dtype);
}

op_operand op_kept(op_call *call, const op_operand *operand)
{
    return op_has(&operand->of) ? *operand : op_scratch(call, DART_F32, operand->rows, operand->width);
}

uint32_t op_fits_16bit(const dart_tensor *a, const dart_tensor *b)
{
    if (a->dtype != b->dtype) return 0;
    return a->dtype == DART_F16 ? FITS_F16 : a->dtype == DART_BF16 ? FITS_BF16 : 0;
}

bool op_fits_rows(const op_operand *operand)
{
    return operand->of.offset % 8 == 0 && op_row(operand) % 8 == 0;
}

static const char *variant_of(const dart_stream *stream)
{
    if (stream->choice != NULL) return stream->choice->variant;
    return stream->device->variant[0] != '\0' ? stream->device->variant : NULL;
}

static const kernel_row *pick(const dart_stream *stream, kernel_id id, uint32_t rows, uint32_t traits)
{
    const dart_device *device = stream->device;
    if (!kernel_fits(id, &device->info)) return NULL;
    const kernel_capabilities capabilities = {stream->choice != NULL ? stream->choice->capabilities : device->info.capabilities};
    return kernel_pick(device->backend->rows, id, capabilities, traits, rows, variant_of(stream));
}

const kernel_row *op_row_on(const dart_device *device, kernel_id id, uint32_t rows, uint32_t traits)
{
    const kernel_capabilities capabilities = {device->info.capabilities};
    return kernel_pick(device->backend->rows, id, capabilities, traits, rows, NULL);
}

void op_kernel(op_call *call, kernel_id id, uint32_t rows, uint32_t traits)
{
    static const kernel_row none = {.variant = "none", .T0 = 1, .T1 = 1};
    const dart_device *device = call->stream->device;
    call->row = pick(call->stream, id, rows, traits);
    if (call->row == NULL) {
        call->row = &none;
        op_fail(call, DART_UNSUPPORTED, "no variant of kernel %s runs on %s", kernel_table[id].name, device->info.name);
    }
    call->T0 = call->row->T0;
    call->T1 = call->row->T1;
}

bool op_prefers(const op_call *call, kernel_id one, kernel_id other, uint32_t rows, uint32_t traits)
{
    const char *variant = variant_of(call->stream);
    const kernel_row *row = pick(call->stream, one, rows, traits), *beside = pick(call->stream, other, rows, traits);
    if (row == NULL || variant == NULL || beside == NULL) return row != NULL;
    return strcmp(row->variant, variant) == 0 || strcmp(beside->variant, variant) != 0;
}

uint32_t op_multiprocessors(const op_call *call)
{
    const uint32_t known = call->stream->device->info.multiprocessors;
    return known != 0 ? known : UNKNOWN_MULTIPROCESSORS;
}

uint32_t op_wave(const op_call *call)
{
    uint32_t wave = 1;
    while (wave <= op_multiprocessors(call) / 2) wave *= 2;
    return wave;
}

uint64_t op_binding_limit(const op_call *call) { return call->stream->device->info.max_binding_bytes - BACKEND_ALIGN; }

static void bind(op_call *call, backend_launch *launch, const op_binding *binding)
{
    const op_operand *operand = binding->operand;
    const kernel_info *kernel = &kernel_table[launch->row->id];
    if (binding->row != NULL) *binding->row = op_row(operand);
    if (binding->at != NULL) *binding->at = 0;
    if (!op_has(&operand->of)) {
        /* As where it is there: kernels ask a flag, and calls with and without a `seq` share compiled code. */
        if ((operand->kinds & (OP_FLOAT | OP_I32)) == OP_I32 && binding->slot < KERNEL_TYPED_BINDINGS)
            launch->dtypes |= (uint32_t)DART_I32 << (2 * binding->slot);
        return;
    }
    const uint64_t size = dart_dtype_size(operand->of.dtype), elements = (operand->rows - 1) * op_row(operand) + operand->width;
    const uint64_t begin = operand->of.offset * size, before = begin % BACKEND_ALIGN, bytes = before + elements * size;
    const char *name = kernel->bindings[binding->slot].name;
    const uint64_t most = call->stream->device->info.max_binding_bytes;
    if (bytes > most) {
        op_fail(call, DART_UNSUPPORTED, "%s of kernel %s would be %llu bytes, the device binds at most %llu: use smaller pieces", name,
                kernel->name, (unsigned long long)bytes, (unsigned long long)most);
        return;
    }
    if (before != 0 && binding->at == NULL) {
        op_fail(call, DART_INTERNAL, "%s of kernel %s starts at byte %llu, not at a multiple of %u", name, kernel->name,
                (unsigned long long)begin, BACKEND_ALIGN);
        return;
    }
    const dart_buffer *buffer = operand->of.buffer;
    /* A margin before the tensor is within reach of kernels that are told where in the binding it begins. */
    const uint64_t lead = binding->at != NULL && bytes + buffer->margin <= most ? buffer->margin : 0, start = buffer->margin + begin - before - lead;
    if (binding->at != NULL) *binding->at = (uint32_t)((lead + before) / size);
    launch->bindings[binding->slot] = (backend_binding){.memory = buffer->memory, .offset = start, .bytes = bytes};
    if (buffer->margin > 0)
        launch->bindings[binding->slot].bytes = base_smaller(most, buffer->bytes + 2 * buffer->margin - start);
    if (binding->slot < KERNEL_TYPED_BINDINGS) launch->dtypes |= ((uint32_t)operand->of.dtype & 3u) << (2 * binding->slot);
    else if (operand->of.dtype != DART_F32) op_fail(call, DART_INTERNAL, "%s of kernel %s is not f32", name, kernel->name);
}

void op_launch(op_call *call, void *args, uint64_t tiles, const op_binding *bindings, size_t count)
{
    const dart_stream *stream = call->stream;
    backend_launch launch = {.row = call->row, .T0 = call->T0, .T1 = call->T1, .args = args};
    for (size_t i = 0; i < count && stream->status == DART_OK; i++) bind(call, &launch, &bindings[i]);
    if (stream->status != DART_OK || tiles == 0) return;
    if (tiles > INT32_MAX) {
        op_fail(call, DART_UNSUPPORTED, "%llu tiles of kernel %s in one launch: use smaller pieces", (unsigned long long)tiles,
                kernel_table[call->row->id].name);
        return;
    }
    launch.tiles = launch.end = (uint32_t)tiles;
    memcpy(args, &launch.tiles, sizeof launch.tiles);
    stream_launch(call->stream, &launch, call->op);
}

dart_status op_lay_out(op_call *call, op_layout *layout, uint32_t B, uint32_t L, uint32_t T, const dart_tensor *seq, const dart_tensor *cu)
{
    const bool packed = op_has(cu);
    OP_REQUIRE(call, B > 0 && L > 0, "B %u, L %u: both must be above 0", B, L);
    OP_REQUIRE(call, L <= 1u << 30, "L %u must be at most 2^30", L);
    OP_REQUIRE(call, !packed || !op_has(seq), "seq and cu exclude each other");
    OP_REQUIRE(call, packed == (T > 0), "T %u: cu and T come together", T);
    OP_REQUIRE(call, T <= 1u << 30 && B <= 1u << 30, "T %u, B %u must be at most 2^30", T, B);
    OP_REQUIRE(call, packed || (uint64_t)B * L <= UINT32_MAX, "B L = %llu rows are too many for one piece", (unsigned long long)B * L);
    *layout = (op_layout){.B = B, .L = L, .T = T, .rows = packed ? T : (uint64_t)B * L, .traits = packed ? 0 : FITS_UNPACKED};
    layout->flags = packed ? HAS_CU : op_has(seq) ? HAS_SEQ : 0;
    if (packed) layout->seq = (op_operand){"cu", *cu, OP_I32, 1, (uint64_t)B + 1};
    else layout->seq = (op_operand){"seq", *seq, OP_I32 | OP_OPTIONAL, B, 2};
    return op_status(call);
}

dart_status dart_cu_check(const int32_t *cu, uint32_t B, uint32_t L, uint32_t T)
{
    if (cu == NULL || B == 0 || cu[0] != 0) return DART_INVALID_ARGUMENT;
    for (uint32_t b = 0; b < B; b++)
        if (cu[b + 1] < cu[b] || (uint32_t)(cu[b + 1] - cu[b]) > L) return DART_INVALID_ARGUMENT;
    return (uint32_t)cu[B] <= T ? DART_OK : DART_INVALID_ARGUMENT;
}

uint64_t dart_packed_chunks(uint32_t T, uint32_t S, uint32_t B)
{
    return S == 0 ? 0 : (uint64_t)T / S + B;
}
