/* Tier 2: load a checkpoint, read a prompt, continue it greedily. generate FOLDER */
#include <dartlm/model.h>

#include <stdio.h>

static bool show(void *user, uint32_t step, const int32_t *ids)
{
    (void)user;
    (void)step;
    printf(" %d", (int)ids[0]);
    return true;
}

int main(int argc, char **argv)
{
    dart_context *context = NULL;
    dart_device *device = NULL;
    dart_model *model = NULL;
    dart_state *state = NULL;
    dart_status status = DART_OK;
    if (argc != 2) {
        fprintf(stderr, "usage: generate FOLDER\n");
        return 2;
    }

    const int32_t prompt[] = {17, 4301, 25, 4999, 17};
    const dart_sampling greedy = {.temperature = 0};
    int32_t next = 0;
    const dart_prefill_args read = {.ids = prompt, .L = 5, .sampling = &greedy, .next_ids = &next};
    const dart_generate_args more = {.n = 7, .sampling = &greedy, .step = show};
    if ((status = dart_context_create(NULL, &context)) == DART_OK &&
        (status = dart_device_open(context, NULL, &device)) == DART_OK &&
        (status = dart_model_open(device, argv[1], NULL, &model)) == DART_OK &&
        (status = dart_state_create(model, NULL, &state)) == DART_OK &&
        (status = dart_prefill(state, &read)) == DART_OK) {
        printf("%d", (int)next);
        status = dart_generate(state, &more);
        printf("\n");
    }

    if (status != DART_OK) {
        /* The text lies with the object on which the call was made. */
        char text[512] = "";
        if (state != NULL) dart_state_error(state, text, sizeof text);
        else if (model != NULL) dart_model_error(model, text, sizeof text);
        else if (device != NULL) dart_device_error(device, text, sizeof text);
        else dart_context_error(context, text, sizeof text);
        fprintf(stderr, "%s: %s\n", dart_status_name(status), text);
    }
    dart_state_destroy(&state);
    dart_model_destroy(&model);
    dart_device_destroy(&device);
    dart_context_destroy(&context);
    return status == DART_OK ? 0 : 1;
}
