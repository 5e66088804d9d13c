/* Every call of Vulkan that can fail does so once, under all that a program does with a device, its own or its host's: fault_driver DATA_DIR
 * [all | FIRST LAST]. The driver is driver.c, which counts what is alive. The status says what happened, with the name of the call; nothing
 * leaks; nothing of the host's is destroyed; what failed succeeds the next time, or says that it cannot. Without `all`, calls beyond the first
 * ten are sampled: every fortieth, from one that the number in DARTLM_DRAW moves, so that ten numbers in a row have every fourth (of calls that wait,
 * of which there are fewer, a tenth of these strides). FIRST LAST: only those calls. */
#define _POSIX_C_SOURCE 200809L
#include "driver.h"

#include "rig.h"

#include "base/base.h"
#include "base/file.h"

#include "dartlm/model.h"
#include "dartlm/train.h"
#include "dartlm/vulkan.h"

#include <fcntl.h>
#include <unistd.h>

enum { B = 2, L = 11, V = 13, BYTES = DRIVER_PROGRAM_BYTES / 2, EVERY = 10, STRIDE = 40 };

static const dart_model_config config = {.sma = true, .V = V, .W = 8, .layers = 1, .H = 2, .P = 8, .G = 1, .N = 4, .K = 4, .S = 4, .eps = 1e-5f,
                                         .sma_eps = 1e-5f};
static const int32_t ids[B * L] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
static char model_folder[4096], run_folder[] = "fault_driver.XXXXXX", state_path[64];

typedef struct world {
    bool adopts;
    driver_program host;
    uint32_t losses; /* that the host was told of */
    dart_vulkan_needs *needs;
    dart_context *context;
    dart_device *device;
    dart_buffer *buffer, *wrapped, *shared, *imported;
    dart_semaphore *semaphores[2], *imported_semaphores[2]; /* timeline, binary */
    int fd; /* exported and not taken yet; -1: none */
    uint64_t allocated;
    dart_stream *stream;
    dart_model *model;
    dart_state *state;
    dart_trainer *trainer;
    char text[512];
} world;

static void lost(void *user) { ((world *)user)->losses++; }

/* ---- What a program does ---- */

static dart_status take_stream(world *w, dart_status status)
{
    if (status != DART_OK) dart_stream_error(w->stream, w->text, sizeof w->text);
    return status;
}
static dart_status take_device(world *w, dart_status status)
{
    if (status != DART_OK) dart_device_error(w->device, w->text, sizeof w->text);
    return status;
}

static dart_status make_context(world *w)
{
    return dart_context_create(&(dart_context_options){.without_cuda = true, .without_vulkan = w->adopts}, &w->context);
}
static dart_status query(world *w)
{
    if (!w->adopts) return DART_OK;
    const dart_vulkan_query_args args = {w->host.instance, w->host.physical, driver_get, VK_API_VERSION_1_3};
    const dart_status status = dart_vulkan_query(&args, &w->needs);
    if (status == DART_OK) assert_true(w->needs->usable);
    return status;
}
static dart_status open_device(world *w)
{
    const dart_device_options options = {.spec = "vulkan"};
    const dart_vulkan_adopt_args args = {.instance = w->host.instance, .physical_device = w->host.physical, .device = w->host.device,
                                         .get_instance_proc_addr = driver_get, .api_version = VK_API_VERSION_1_3,
                                         .extensions = w->needs != NULL ? w->needs->extensions : NULL,
                                         .extensions_count = w->needs != NULL ? w->needs->extensions_count : 0,
                                         .features = w->needs != NULL ? w->needs->features : NULL, .lost = lost, .lost_user = w};
    const dart_status status = w->adopts ? dart_device_adopt(w->context, &args, &options, &w->device)
                                         : dart_device_open(w->context, &options, &w->device);
    assert_true((status == DART_OK) == (w->device != NULL));
    if (status != DART_OK) dart_context_error(w->context, w->text, sizeof w->text);
    return status;
}
static dart_status make_buffer(world *w) { return take_device(w, dart_buffer_create(w->device, BYTES, &w->buffer)); }
static dart_status wrap(world *w)
{
    const dart_vulkan_buffer range = {.buffer = w->host.buffer, .offset = BYTES, .bytes = BYTES,
                                      .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT |
                                                                        VK_BUFFER_USAGE_TRANSFER_SRC_BIT};
    return w->adopts ? take_device(w, dart_vulkan_wrap(w->device, &range, &w->wrapped)) : DART_OK;
}
static dart_status copy_bytes(world *w)
{
    static const unsigned char sent[BYTES] = {1, 2, 3};
    unsigned char got[BYTES] = {0};
    dart_buffer *const buffers[] = {w->buffer, w->wrapped};
    for (int i = 0; i < 2 && buffers[i] != NULL; i++) {
        dart_status status = dart_buffer_write(buffers[i], 0, sent, sizeof sent);
        if (status == DART_OK) status = dart_buffer_read(buffers[i], 0, got, sizeof got);
        if (status != DART_OK) return take_device(w, status);
        assert_memory_equal(got, sent, sizeof got);
    }
    return DART_OK;
}
static dart_status make_stream(world *w) { return take_device(w, dart_stream_create(w->device, NULL, &w->stream)); }
static dart_status run(world *w)
{
    const dart_vulkan_semaphore semaphore = {.semaphore = w->host.semaphore};
    const dart_vulkan_submit_args order = {.signals = &semaphore, .signals_count = w->adopts};
    dart_status status = dart_stream_begin(w->stream);
    if (status == DART_OK) status = dart_fill(w->stream, &(dart_fill_args){.T = 1, .W = 8, .y = {.buffer = w->buffer}});
    if (status == DART_OK) status = w->adopts ? dart_vulkan_submit(w->stream, &order) : dart_stream_submit(w->stream);
    if (status == DART_OK) status = dart_stream_wait(w->stream, UINT64_MAX);
    return take_stream(w, status);
}
/* The ops go into the host's command buffer, and the stream can be used afterwards. */
static dart_status record(world *w)
{
    if (!w->adopts) return DART_OK;
    dart_status status = dart_vulkan_record(w->stream, w->host.commands);
    if (status == DART_OK) status = dart_fill(w->stream, &(dart_fill_args){.T = 1, .W = 8, .y = {.buffer = w->wrapped}});
    if (status == DART_OK) assert_int_equal(dart_stream_submit(w->stream), DART_INVALID_ARGUMENT);
    if (status == DART_OK) status = dart_stream_begin(w->stream);
    return take_stream(w, status);
}
/* A device whose extensions could not be listed does without: *w->shared stays NULL. */
static dart_status make_shared(world *w)
{
    const dart_status status = dart_buffer_create_shared(w->device, BYTES, &w->shared);
    const bool listed = driver_failed() == NULL || strcmp(driver_failed(), "vkEnumerateDeviceExtensionProperties") != 0;
    return status == DART_UNSUPPORTED && !listed ? DART_OK : take_device(w, status);
}
/* An export gives nothing when it fails, and an import then leaves the descriptor. */
static dart_status export_buffer(world *w)
{
    return w->shared == NULL ? DART_OK : take_device(w, dart_buffer_export(w->shared, &w->fd, &w->allocated));
}
static dart_status import_buffer(world *w)
{
    if (w->shared == NULL) return DART_OK;
    const dart_status status = dart_buffer_import(w->device, w->fd, w->allocated, BYTES, &w->imported);
    if (status == DART_OK) w->fd = -1;
    return take_device(w, status);
}
static dart_status share_semaphores(world *w)
{
    dart_status status = DART_OK;
    for (int binary = 0; binary < 2 && status == DART_OK && w->shared != NULL; binary++) {
        dart_semaphore **made = &w->semaphores[binary], **imported = &w->imported_semaphores[binary];
        if (*imported != NULL) continue;
        if (*made == NULL) status = dart_semaphore_create_shared(w->device, binary, made);
        if (status == DART_OK && w->fd < 0) status = dart_semaphore_export(*made, &w->fd);
        if (status == DART_OK) status = dart_semaphore_import(w->device, w->fd, binary, imported);
        if (status == DART_OK) w->fd = -1;
    }
    return take_device(w, status);
}
static dart_status run_ordered(world *w)
{
    const dart_semaphore_value waits[] = {{w->semaphores[0], 1}, {w->semaphores[1], 0}};
    const dart_semaphore_value signals[] = {{w->imported_semaphores[0], 2}, {w->imported_semaphores[1], 0}};
    if (w->shared == NULL) return DART_OK;
    dart_status status = dart_stream_begin(w->stream);
    if (status == DART_OK) status = dart_fill(w->stream, &(dart_fill_args){.T = 1, .W = 8, .y = {.buffer = w->imported}});
    if (status == DART_OK) status = dart_stream_submit_ordered(w->stream, &(dart_submit_args){waits, signals, 2, 2});
    if (status == DART_OK) status = dart_stream_wait(w->stream, UINT64_MAX);
    return take_stream(w, status);
}
static dart_status read_cache(world *w)
{
    static unsigned char cache[1 << 16];
    size_t bytes = 0;
    dart_status status = dart_device_cache(w->device, NULL, &bytes);
    if (status == DART_OK) status = dart_device_cache(w->device, cache, &bytes);
    return take_device(w, status);
}
static dart_status open_model(world *w)
{
    dart_model *model = NULL;
    const dart_status status = dart_model_open(w->device, model_folder, NULL, &model);
    assert_true((status == DART_OK) == (model != NULL));
    dart_model_destroy(&model);
    return take_device(w, status);
}
static dart_status make_model(world *w) { return take_device(w, dart_model_random(w->device, &config, 5, NULL, &w->model)); }
static dart_status make_state(world *w)
{
    const dart_status status = dart_state_create(w->model, &(dart_state_options){.B = B, .memory_block = 1}, &w->state);
    if (status != DART_OK) dart_model_error(w->model, w->text, sizeof w->text);
    return status;
}

/* The law of states: a call that failed before its work left the state as it was; otherwise every call gives its status until all is reset. */
static dart_status take_state(world *w, dart_status status)
{
    if (status == DART_OK || status == DART_DEVICE_LOST) {
        if (status != DART_OK) dart_state_error(w->state, w->text, sizeof w->text);
        return status;
    }
    dart_state_error(w->state, w->text, sizeof w->text);
    const dart_status after = dart_decode(w->state, &(dart_decode_args){.ids = ids});
    if (after != DART_OK) assert_int_equal(after, status);
    assert_int_equal(dart_state_reset(w->state, -1), DART_OK);
    return status;
}
static const dart_prefill_args text = {.ids = ids, .L = L, .sampling = &(dart_sampling){0}};
static dart_status warm(world *w) { return take_state(w, dart_state_warm(w->state)); }
static dart_status prefill(world *w)
{
    float logits[B * V];
    dart_prefill_args args = text;
    args.want = DART_LOGITS_LAST;
    args.logits = logits;
    return take_state(w, dart_prefill(w->state, &args));
}
static dart_status generate(world *w)
{
    float logits[B * V];
    dart_status status = dart_prefill(w->state, &text);
    if (status == DART_OK) status = dart_decode(w->state, &(dart_decode_args){.logits = logits});
    if (status == DART_OK) status = dart_generate(w->state, &(dart_generate_args){.n = 6});
    return take_state(w, status);
}
static bool go_on_of(void *user, uint64_t done, uint64_t of)
{
    (void)user;
    return done <= of;
}
static dart_status save_and_load(world *w)
{
    dart_status status = dart_prefill(w->state, &text);
    if (status == DART_OK) status = dart_state_save_while(w->state, -1, state_path, go_on_of, NULL);
    if (status == DART_OK) status = dart_state_load_while(w->state, -1, state_path, go_on_of, NULL);
    return take_state(w, status);
}
static bool go_on(void *user)
{
    (void)user;
    return true;
}
static dart_status go_back(world *w)
{
    dart_prefill_args args = text;
    args.go_on = go_on;
    dart_status status = dart_state_reset(w->state, -1);
    if (status == DART_OK) status = dart_prefill(w->state, &text);
    if (status == DART_OK) status = dart_state_mark(w->state, 0);
    if (status == DART_OK) status = dart_prefill(w->state, &args);
    if (status == DART_OK) status = dart_state_truncate(w->state, 0, L, NULL);
    if (status == DART_OK) status = dart_state_copy(w->state, 1, w->state, 0);
    return take_state(w, status);
}

static const dart_trainer_options training = {.B = B, .L = L, .keep = 1, .weights = DART_STORAGE_BF16, .clip = 1, .seed = 3};
static const dart_train_batch batch = {.ids = ids, .targets = ids};
static dart_status make_trainer(world *w)
{
    return w->trainer != NULL ? DART_OK : take_device(w, dart_trainer_create(w->device, &config, &training, &w->trainer));
}
/* A trainer that failed on its way stays so, and says so; another takes its place. */
static dart_status train(world *w)
{
    dart_train_result result;
    dart_status status = make_trainer(w);
    if (status != DART_OK) return status;
    status = dart_trainer_step(w->trainer, &batch, 1e-2, &result);
    if (status == DART_OK) status = dart_trainer_evaluate(w->trainer, &batch, &result);
    if (status == DART_OK) status = dart_trainer_save(w->trainer, run_folder, "a note");
    if (status == DART_OK) return DART_OK;
    dart_trainer_error(w->trainer, w->text, sizeof w->text);
    const dart_status after = dart_trainer_step(w->trainer, &batch, 1e-2, &result);
    if (after != DART_OK) assert_int_equal(after, status);
    dart_trainer_destroy(&w->trainer);
    return status;
}
static dart_status resume(world *w)
{
    dart_trainer *trainer = NULL;
    const dart_status status = dart_trainer_resume(w->device, run_folder, &training, &trainer);
    assert_true((status == DART_OK) == (trainer != NULL));
    dart_trainer_destroy(&trainer);
    return take_device(w, status);
}

static const struct { const char *name; dart_status (*run)(world *w); } steps[] = {
#define STEP(name) {#name, name}
    STEP(make_context), STEP(query), STEP(open_device), STEP(make_buffer), STEP(wrap), STEP(copy_bytes), STEP(make_stream),
    STEP(run), STEP(record), STEP(make_shared), STEP(export_buffer), STEP(import_buffer), STEP(share_semaphores), STEP(run_ordered),
    STEP(read_cache), STEP(open_model), STEP(make_model), STEP(make_state), STEP(warm), STEP(prefill), STEP(generate), STEP(save_and_load),
    STEP(go_back), STEP(make_trainer), STEP(train), STEP(resume),
};
enum { STEPS = sizeof steps / sizeof steps[0], STEP_CONTEXT = 0, STEP_QUERY = 1, STEP_OPEN = 2 };

/* ---- A life with one failure ---- */

static void end(world *w)
{
    dart_trainer_destroy(&w->trainer);
    dart_state_destroy(&w->state);
    dart_model_destroy(&w->model);
    dart_stream_destroy(&w->stream);
    for (int i = 0; i < 2; i++) {
        dart_semaphore_destroy(&w->semaphores[i]);
        dart_semaphore_destroy(&w->imported_semaphores[i]);
    }
    file_close_descriptor(w->fd);
    dart_buffer_destroy(&w->imported);
    dart_buffer_destroy(&w->shared);
    dart_buffer_destroy(&w->wrapped);
    dart_buffer_destroy(&w->buffer);
    if (w->device != NULL) assert_int_equal(dart_device_bytes(w->device), 0);
    dart_device_destroy(&w->device);
    dart_context_destroy(&w->context);
    dart_vulkan_needs_destroy(&w->needs);
}

/* Another kind or size of memory may do; a device may do without what its extensions would add. */
static bool may_do_without(const char *call)
{
    static const char *const calls[] = {"vkAllocateMemory", "vkMapMemory", "vkEnumerateDeviceExtensionProperties",
                                        "vkEnumerateInstanceExtensionProperties"};
    for (size_t i = 0; i < COUNT_OF(calls); i++)
        if (strcmp(call, calls[i]) == 0) return true;
    return false;
}

/* A text from a thread that compiles beside others may be another's; a wait that times out is an answer, which has none; memory is tried again. */
static bool names_the_call(const world *w, uint32_t step, VkResult gives)
{
    const char *call = driver_failed();
    if (step <= STEP_QUERY || gives == VK_TIMEOUT) return true;
    return strstr(w->text, call) != NULL || (may_do_without(call) && strstr(w->text, "vk") != NULL) ||
           (gives == VK_ERROR_DEVICE_LOST && strstr(w->text, "lost") != NULL);
}

static bool says_what_happened(dart_status status, uint32_t step, VkResult gives)
{
    switch ((int)gives) {
    case VK_ERROR_DEVICE_LOST: return status == DART_DEVICE_LOST;
    case VK_TIMEOUT: return status == DART_TIMEOUT || status == DART_DEVICE_LOST; /* the latter: of a copy, after ten minutes */
    default: return status == DART_OUT_OF_MEMORY || (step <= STEP_QUERY && status == DART_OK); /* the other backends are there */
    }
}

/* Those that are open, of the lowest few. */
static uint32_t count_descriptors(void)
{
    uint32_t count = 0;
    for (int fd = 0; fd < 256; fd++) count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* The n-th call fails. False: there are not that many. *at: the step. */
static bool live(bool adopts, bool discrete, uint32_t n, VkResult gives, uint32_t *at)
{
    world w = {.adopts = adopts, .fd = -1};
    bool failed = false;
    const uint32_t descriptors = count_descriptors();
    driver_set(&(driver_options){.discrete = discrete, .fail_at = n, .gives = gives});
    if (adopts) driver_program_open(&w.host);
    for (uint32_t i = 0; i < STEPS; i++) {
        w.text[0] = '\0';
        dart_status status = steps[i].run(&w);
        const bool now = driver_failed() != NULL && !failed;
        failed = failed || now;
        if (now) *at = i;
        if (now && status == DART_OK && may_do_without(driver_failed())) continue;
        if (now && i == STEP_CONTEXT && status == DART_OK && !adopts) { /* listed no devices */
            dart_context_destroy(&w.context);
            status = steps[i].run(&w);
        } else if (now) {
            if (!says_what_happened(status, i, gives) || !names_the_call(&w, i, gives))
                fail_msg("call %u, %s in %s: %s: %s", n, driver_failed(), steps[i].name, dart_status_name(status), w.text);
            if (status == DART_DEVICE_LOST && w.device != NULL) {
                dart_stream *none = NULL;
                assert_int_equal(dart_buffer_create(w.device, 4, &(dart_buffer *){NULL}), DART_DEVICE_LOST);
                assert_int_equal(dart_stream_create(w.device, NULL, &none), DART_DEVICE_LOST);
                if (w.state != NULL) assert_int_equal(dart_decode(w.state, &(dart_decode_args){.ids = ids}), DART_DEVICE_LOST);
                if (w.trainer != NULL) assert_int_equal(dart_trainer_step(w.trainer, &batch, 1e-2, NULL), DART_DEVICE_LOST);
                if (adopts) assert_int_equal(w.losses, 1);
                break;
            }
            status = steps[i].run(&w);
        }
        if (status != DART_OK)
            fail_msg("call %u, %s in %s: %s later gives %s: %s", n, failed ? driver_failed() : "none", steps[*at].name, steps[i].name,
                     dart_status_name(status), w.text);
    }
    end(&w);
    const char *call = failed ? driver_failed() : "none";
    if (driver_misuse() != NULL) fail_msg("call %u, %s in %s: %s", n, call, steps[*at].name, driver_misuse());
    if (driver_alive(false) != 0) fail_msg("call %u, %s in %s: %u objects leak", n, call, steps[*at].name, driver_alive(false));
    if (count_descriptors() != descriptors) fail_msg("call %u, %s in %s: a descriptor leaks", n, call, steps[*at].name);
    assert_int_equal(driver_alive(true), adopts ? DRIVER_PROGRAM_OBJECTS : 0);
    if (adopts) driver_program_close(&w.host);
    return failed;
}

static uint32_t first_call = 1, last_call = UINT32_MAX;
static bool all_calls;
static uint32_t drawn; /* DARTLM_DRAW, 0 to 9 */
static uint32_t tried, about; /* failures, of about so many */

/* The call after the n-th that fails next. */
static uint32_t next_call(uint32_t n, uint32_t stride, uint32_t offset)
{
    if (all_calls || n < EVERY) return n + 1;
    return n + (n == EVERY ? 1 + (drawn * stride / 10 + offset) % stride : stride);
}

/* One life for each call, or for some of them. All of them reach every step that works on a device. */
static void lives(bool adopts, bool discrete, VkResult gives, uint32_t offset)
{
    uint32_t counts[STEPS] = {0}, n = first_call, failures = 0, at = 0;
    for (; n <= last_call && live(adopts, discrete, n, gives, &at); n = next_call(n, gives == VK_TIMEOUT ? STRIDE / 10 : STRIDE, offset)) {
        counts[at]++;
        failures++;
    }
    print_message("  %s, %s device: %u failures, the last of call %u or before\n", adopts ? "the host's" : "its own",
                  discrete ? "discrete" : "integrated", failures, n);
    if (last_call != UINT32_MAX) return;
    tried += failures;
    about += n - 1;
    assert_true(failures > (gives == VK_TIMEOUT ? 10 : 30));
    static dart_status (*const needed[])(world *w) = {open_device, record, make_shared, export_buffer, import_buffer, share_semaphores, run_ordered,
                                                      open_model, prefill, generate, go_back, train};
    for (size_t k = 0; k < COUNT_OF(needed); k++)
        for (uint32_t i = 0; i < STEPS && all_calls; i++)
            if (steps[i].run == needed[k] && counts[i] == 0 && gives != VK_TIMEOUT && (adopts || needed[k] != record)) /* not all of them wait */
                fail_msg("%s never failed", steps[i].name);
}

#define CASES(name, gives) \
    static void name(void **unused) \
    { \
        (void)unused; \
        lives(false, true, gives, 0); \
        lives(true, false, gives, 2); \
    }
CASES(host_memory_runs_out, VK_ERROR_OUT_OF_HOST_MEMORY)
CASES(device_memory_runs_out, VK_ERROR_OUT_OF_DEVICE_MEMORY)
CASES(the_device_is_lost, VK_ERROR_DEVICE_LOST)
CASES(waiting_times_out, VK_TIMEOUT)

/* A queue of low priority where the driver has some, and a clear no where it has none. */
static void work_gives_way(void **unused)
{
    (void)unused;
    static const char *const extensions[] = {NULL, VK_EXT_GLOBAL_PRIORITY_EXTENSION_NAME, VK_KHR_GLOBAL_PRIORITY_EXTENSION_NAME};
    const dart_device_options low = {.spec = "vulkan", .low_priority = true}, none = {.spec = "vulkan"}, cpu = {.spec = "cpu", .low_priority = true};
    for (size_t i = 0; i < COUNT_OF(extensions); i++) {
        world w = {.adopts = false, .fd = -1};
        driver_set(&(driver_options){.extension = extensions[i]});
        assert_int_equal(make_context(&w), DART_OK);
        assert_int_equal(dart_device_open(w.context, &low, &w.device), extensions[i] != NULL ? DART_OK : DART_UNSUPPORTED);
        assert_int_equal(driver_priority(), extensions[i] != NULL ? VK_QUEUE_GLOBAL_PRIORITY_LOW_KHR : 0);
        dart_context_error(w.context, w.text, sizeof w.text);
        if (extensions[i] == NULL && strstr(w.text, "low_priority") == NULL) fail_msg("%s", w.text);
        dart_device_destroy(&w.device);
        assert_int_equal(dart_device_open(w.context, &none, &w.device), DART_OK);
        assert_int_equal(driver_priority(), 0);
        dart_device_destroy(&w.device);
        assert_int_equal(dart_device_open(w.context, &cpu, &w.device), DART_UNSUPPORTED);
        end(&w);
        assert_int_equal(driver_alive(false), 0);
    }
    world w = {.adopts = true, .fd = -1};
    driver_set(&(driver_options){.extension = VK_KHR_GLOBAL_PRIORITY_EXTENSION_NAME});
    driver_program_open(&w.host);
    assert_int_equal(make_context(&w), DART_OK);
    const dart_vulkan_adopt_args args = {.instance = w.host.instance, .physical_device = w.host.physical, .device = w.host.device,
                                         .get_instance_proc_addr = driver_get, .api_version = VK_API_VERSION_1_3};
    assert_int_equal(dart_device_adopt(w.context, &args, &low, &w.device), DART_UNSUPPORTED);
    end(&w);
    driver_program_close(&w.host);
}

/* MoltenVK: the loader shows it to who asks, and a device of it takes an extension. Adopted, the host is told of the extension. */
static void drivers_of_a_part_of_vulkan_are_used(void **state)
{
    (void)state;
    const dart_device_options options = {.spec = "vulkan"};
    world w = {.adopts = false, .fd = -1};
    driver_set(&(driver_options){.portability = true});
    assert_int_equal(make_context(&w), DART_OK);
    assert_int_equal(dart_device_open(w.context, &options, &w.device), DART_OK);
    end(&w);
    if (driver_misuse() != NULL) fail_msg("%s", driver_misuse());
    assert_int_equal(driver_alive(false), 0);

    world of_host = {.adopts = true, .fd = -1};
    driver_set(&(driver_options){.portability = true});
    driver_program_open(&of_host.host);
    assert_int_equal(query(&of_host), DART_OK);
    assert_int_equal(of_host.needs->required_count, 1);
    assert_string_equal(of_host.needs->extensions[0], "VK_KHR_portability_subset");
    end(&of_host);
    driver_program_close(&of_host.host);
}

static void vulkan_1_0(VkPhysicalDeviceProperties *p) { p->apiVersion = VK_API_VERSION_1_0; } /* Adreno 702, Mali-G31 and G52 */
static void vulkan_1_1(VkPhysicalDeviceProperties *p) { p->apiVersion = VK_API_VERSION_1_1; }
static void few_buffers(VkPhysicalDeviceProperties *p) { p->limits.maxPerStageDescriptorStorageBuffers = 4; }
static void small_workgroups(VkPhysicalDeviceProperties *p) { p->limits.maxComputeWorkGroupInvocations = 64; }
static void short_workgroups(VkPhysicalDeviceProperties *p) { p->limits.maxComputeWorkGroupSize[0] = 96; }
static void little_shared(VkPhysicalDeviceProperties *p) { p->limits.maxComputeSharedMemorySize = 8192; }
static void few_constants(VkPhysicalDeviceProperties *p) { p->limits.maxPushConstantsSize = 64; }
static void the_least(VkPhysicalDeviceProperties *p)
{
    p->apiVersion = VK_API_VERSION_1_2;
    p->limits.maxComputeWorkGroupInvocations = p->limits.maxComputeWorkGroupSize[0] = p->limits.maxPushConstantsSize = 128;
    p->limits.maxComputeSharedMemorySize = 16384;
    p->limits.maxStorageBufferRange = 1u << 27;
    p->limits.maxPerStageDescriptorStorageBuffers = p->limits.maxDescriptorSetStorageBuffers = 12;
}

/* A device that cannot be used is listed with what it lacks, and opening it says the same; one with no more than is needed opens. */
static void unusable_devices_say_why(void **unused)
{
    (void)unused;
    static const struct { driver_options driver; const char *why_not; } devices[] = {
        {{.change = vulkan_1_0}, "its driver offers Vulkan 1.0, 1.2 is needed"},
        {{.change = vulkan_1_1}, "its driver offers Vulkan 1.1, 1.2 is needed"},
        {{.change = few_buffers}, "4 storage buffers per stage, 12 needed"},
        {{.change = small_workgroups}, "64 invocations in a workgroup, 128 needed"},
        {{.change = short_workgroups}, "96 invocations in a workgroup, 128 needed"},
        {{.change = little_shared}, "8192 bytes of shared memory, 16384 needed"},
        {{.change = few_constants}, "64 bytes of push constants, 128 needed"},
        {{.queues = VK_QUEUE_GRAPHICS_BIT}, "no compute queue"},
        {{.change = the_least}, ""},
    };
    for (size_t i = 0; i < COUNT_OF(devices); i++) {
        const char *const why_not = devices[i].why_not;
        const bool usable = why_not[0] == '\0';
        world w = {.adopts = false, .fd = -1};
        dart_device_info info;
        driver_set(&devices[i].driver);
        assert_int_equal(make_context(&w), DART_OK);
        assert_int_equal(dart_context_device_info(w.context, 0, &info), DART_OK);
        assert_string_equal(info.name, "the tests' driver");
        assert_string_equal(info.why_not, why_not);
        assert_int_equal(info.usable, usable);
        assert_int_equal(open_device(&w), usable ? DART_OK : DART_UNSUPPORTED);
        if (strstr(w.text, why_not) == NULL) fail_msg("%s", w.text);
        end(&w);
        assert_int_equal(driver_alive(false), 0);
    }
}

/* As Mesa's driver does for Mali before the G310: no device is listed, and why is told in words. */
static void drivers_that_refuse_are_told(void **unused)
{
    (void)unused;
    char why[256] = "";
    for (uint32_t n = 1; n < 8 && (driver_failed() == NULL || strcmp(driver_failed(), "vkEnumeratePhysicalDevices") != 0); n++) {
        world w = {.adopts = false};
        driver_set(&(driver_options){.fail_at = n, .gives = VK_ERROR_INITIALIZATION_FAILED});
        assert_int_equal(make_context(&w), DART_OK);
        dart_context_why_none(w.context, DART_BACKEND_VULKAN, why, sizeof why);
        end(&w);
        assert_int_equal(driver_alive(false), 0);
    }
    assert_string_equal(why, "vulkan: no devices, the driver refuses the GPU: VK_ERROR_INITIALIZATION_FAILED");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(host_memory_runs_out), cmocka_unit_test(device_memory_runs_out),
                                       cmocka_unit_test(the_device_is_lost), cmocka_unit_test(waiting_times_out),
                                       cmocka_unit_test(work_gives_way), cmocka_unit_test(drivers_of_a_part_of_vulkan_are_used),
                                       cmocka_unit_test(unusable_devices_say_why), cmocka_unit_test(drivers_that_refuse_are_told)};
    if (argc < 2 || argc > 4) {
        fprintf(stderr, "usage: %s DATA_DIR [all | FIRST LAST]\n", argv[0]);
        return 2;
    }
    const char *const draw = getenv("DARTLM_DRAW");
    drawn = draw != NULL ? (uint32_t)(strtoull(draw, NULL, 10) % 10) : 0;
    all_calls = argc > 2;
    if (argc == 4) {
        first_call = (uint32_t)strtoul(argv[2], NULL, 10);
        last_call = (uint32_t)strtoul(argv[3], NULL, 10);
    }
    snprintf(model_folder, sizeof model_folder, "%s/hf-mamba2", argv[1]);
    if (mkdtemp(run_folder) == NULL) return 1;
    snprintf(state_path, sizeof state_path, "%s/a.state", run_folder);
    volkInitializeCustom(driver_get);
    const int failed = cmocka_run_group_tests_name("fault_driver", tests, NULL, NULL);
    if (argc == 2) printf("NOT RUN: %u of about %u failures of a call, drawn with %u of 10\n", about - tried, about, drawn);
    static const char *const made[] = {"a.state", "config.json", "model.safetensors", "training.safetensors"};
    for (size_t i = 0; i < COUNT_OF(made); i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", run_folder, made[i]);
        remove(path);
    }
    return failed + (rmdir(run_folder) != 0); /* and nothing else lies there */
}
