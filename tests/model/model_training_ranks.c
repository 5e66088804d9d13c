/* Training of several ranks, each a thread of this program: one of the files of model_training. */
#include "train_cases.h"

enum { RANKS = 2, STEPS = 3, KINDS = 3, MANY = 18 };
static const dart_train_values kinds[KINDS] = {DART_TRAIN_WEIGHT, DART_TRAIN_MEAN, DART_TRAIN_SQUARE};

/* Where they exchange: what each brings, and how often all have come and gone. */
typedef struct meeting {
    base_mutex mutex;
    base_condition changed;
    const void *own[RANKS];
    uint32_t here, rounds;
} meeting;

typedef struct member {
    meeting *at;
    uint32_t rank, B;
    bool shard, cancels;
    const dart_train_batch *batch;
    dart_status status, cancelled;
    float *values;  /* of all parameters, by kind */
    uint64_t bytes; /* of the device, with all trainers made */
} member;

static uint64_t elements_of(dart_trainer *trainer)
{
    dart_train_parameter p;
    uint64_t sum = 0;
    for (uint32_t i = 0; dart_trainer_parameter(trainer, i, &p); i++) sum += p.elements;
    return sum;
}

/* Twice, so that what a rank brings lies there until all have it. */
static void wait_for_all(meeting *at)
{
    const uint32_t round = at->rounds;
    if (++at->here == RANKS) {
        at->here = 0;
        at->rounds++;
        base_condition_broadcast(&at->changed);
    }
    while (at->rounds == round) base_condition_wait(&at->changed, &at->mutex);
}

static dart_status gather(void *user, const void *own, size_t bytes, void *all)
{
    const member *m = user;
    base_lock(&m->at->mutex);
    m->at->own[m->rank] = own;
    wait_for_all(m->at);
    for (uint32_t i = 0; i < RANKS; i++) memcpy((char *)all + i * bytes, m->at->own[i], bytes);
    wait_for_all(m->at);
    base_unlock(&m->at->mutex);
    return DART_OK;
}

static bool may_go_on(void *user, uint64_t done, uint64_t of)
{
    (void)done, (void)of;
    return !((const member *)user)->cancels;
}

static dart_status read_all(dart_trainer *trainer, float *to)
{
    dart_train_parameter p;
    dart_status status = DART_OK;
    for (int kind = 0; kind < KINDS; kind++)
        for (uint32_t i = 0; dart_trainer_parameter(trainer, i, &p) && status == DART_OK; i++, to += p.elements)
            status = dart_trainer_read(trainer, kinds[kind], i, to);
    return status;
}

static dart_trainer_options options_of(member *m)
{
    return (dart_trainer_options){.B = m->B, .L = SMALL_L, .seed = 7, .clip = 1, .weights = DART_STORAGE_BF16, .go_on = may_go_on, .user = m};
}

/* A thread. */
static void train(void *argument)
{
    member *m = argument;
    const dart_ranks ranks = {.rank = m->rank, .count = RANKS, .gather = gather, .user = m, .shard = m->shard};
    dart_trainer_options options = options_of(m);
    dart_model_config config = small;
    dart_trainer *trainer = NULL;
    uint8_t made = 1, all[RANKS];
    config.sma = true;
    config.layers = 3;
    options.ranks = &ranks;
    m->status = dart_trainer_create(device, &config, &options, &trainer);
    gather(m, &made, 1, all);
    m->bytes = dart_device_bytes(device);
    gather(m, &made, 1, all);
    m->cancels = true;
    if (m->status == DART_OK) m->cancelled = dart_trainer_step(trainer, m->batch, 1e-2, NULL);
    m->cancels = false;
    for (uint32_t i = 0; i < STEPS && m->status == DART_OK; i++) m->status = dart_trainer_step(trainer, m->batch, 1e-2, NULL);
    if (m->status == DART_OK) m->values = malloc((size_t)(KINDS * elements_of(trainer)) * sizeof *m->values);
    if (m->status == DART_OK) m->status = m->values != NULL ? read_all(trainer, m->values) : DART_OUT_OF_MEMORY;
    gather(m, &made, 1, all);
    dart_trainer_destroy(&trainer);
}

static void train_ranks(bool shard, uint32_t B, const dart_train_batch *batches, member *members)
{
    meeting at = {.here = 0};
    base_thread threads[RANKS];
    must(base_mutex_init(&at.mutex), "mutex");
    must(base_condition_init(&at.changed), "condition");
    for (uint32_t i = 0; i < RANKS; i++) {
        members[i] = (member){.at = &at, .rank = i, .B = B, .shard = shard, .batch = &batches[i]};
        must(base_thread_start(&threads[i], train, &members[i]), "thread");
    }
    for (uint32_t i = 0; i < RANKS; i++) base_thread_join(&threads[i]);
    base_condition_destroy(&at.changed);
    base_mutex_destroy(&at.mutex);
    for (uint32_t i = 0; i < RANKS; i++) {
        assert_int_equal(members[i].status, DART_OK);
        assert_int_equal(members[i].cancelled, DART_CANCELLED);
    }
}

/* uneven: the first rank has one target in eight tokens and the second one for each, so that alone they would compute other rows. */
static void ranks_agree_on(bool uneven)
{
    const uint32_t B = uneven ? MANY : SMALL_B, tokens = B * SMALL_L;
    int32_t ids[RANKS * MANY * SMALL_L], targets[RANKS * MANY * SMALL_L];
    dart_train_batch batches[RANKS];
    for (uint32_t i = 0; i < RANKS * tokens; i++) {
        ids[i] = (int32_t)(base_mix(5 + i) % small.V);
        targets[i] = (int32_t)(base_mix(1005 + i) % small.V);
        if (uneven ? i < tokens && i % 8 != 0 : i % 3 == 0) targets[i] = -1;
    }
    for (uint32_t i = 0; i < RANKS; i++) batches[i] = (dart_train_batch){.ids = ids + i * tokens, .targets = targets + i * tokens};
    const dart_train_batch whole = {.count = RANKS, .ids = ids, .targets = targets};
    member members[RANKS], single = {.B = B};
    dart_model_config config = small;
    dart_trainer *alone = NULL;
    config.sma = true;
    config.layers = 3;
    const dart_trainer_options options = options_of(&single);
    must(dart_trainer_create(device, &config, &options, &alone), "create");
    for (uint32_t i = 0; i < STEPS; i++) must_train(alone, dart_trainer_step(alone, &whole, 1e-2, NULL), "step");
    const uint64_t elements = elements_of(alone);
    float *expected = malloc((size_t)(KINDS * elements) * sizeof *expected);
    assert_non_null(expected);
    must_train(alone, read_all(alone, expected), "read");
    dart_trainer_destroy(&alone);
    uint64_t bytes[2];
    for (int shard = 0; shard < 2; shard++) {
        train_ranks(shard != 0, B, batches, members);
        bytes[shard] = members[0].bytes;
        for (uint32_t i = 0; i < RANKS; i++) {
            assert_memory_equal(members[i].values, expected, (size_t)(KINDS * elements) * sizeof *expected);
            free(members[i].values);
        }
    }
    /* Of the moments of each rank, 8 bytes a parameter, all but a share is gone, but for what rounds shares up. */
    const double saved = (double)(bytes[0] - bytes[1]), wanted = 8.0 * (RANKS - 1) * (double)elements;
    assert_true(bytes[1] < bytes[0] && saved > 0.8 * wanted && saved < 1.2 * wanted);
    free(expected);
}

/* Each rank, with all moments or a part of them, leaves the bits of one trainer that takes the parts in their order, also behind a step that all
 * ended early. */
void ranks_agree(void **unused)
{
    (void)unused;
    ranks_agree_on(false);
    ranks_agree_on(true);
}
