/* Cases of `bench op`, from the words of the call to sizes. */
#include "bench_case.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct dim_default {
    operation_dim dim;
    uint32_t size;
} dim_defaults[] = {{DIM_B, 1},    {DIM_L, 2048},   {DIM_H, 24},   {DIM_G, 1},     {DIM_N, 128},
                    {DIM_P, 64},   {DIM_T, 2048},   {DIM_W, 768},  {DIM_V, 50288}, {DIM_I, 1536},
                    {DIM_IN, 768}, {DIM_OUT, 3352}, {DIM_C, 1792}, {DIM_K, 4}, {DIM_D, 64}};

/* Chunks have a size where there are memories of them. */
static bool has_size(const operation_kind *kind, operation_dim dim)
{
    for (size_t i = 0; i < OPERATION_MAX_TENSORS && kind->tensors[i].name != NULL; i++)
        if (operation_mentions(&kind->tensors[i], dim == DIM_S ? DIM_M : dim)) return true;
    return false;
}

static bool parse_size(bench_case *p, const char *word, size_t length)
{
    size_t letters = 0;
    uint64_t size = 0;
    char digits[16];
    while (letters < length && isupper((unsigned char)word[letters])) letters++;
    const operation_dim dim = operation_dim_of(word, letters);
    const size_t from = letters + (letters < length && word[letters] == '=');
    if (dim == DIM_COUNT || !has_size(p->o.kind, dim) || length - from >= sizeof digits) return false;
    memcpy(digits, word + from, length - from);
    digits[length - from] = '\0';
    if (!args_whole(digits, &size) || size == 0 || size > 1u << 30) return false;
    p->o.dims[dim] = size;
    if (dim == DIM_S) p->o.settings.S = (uint32_t)size;
    return true;
}

static bool parse_word(bench_case *p, const char *word, size_t length)
{
    char name[32];
    if (length >= sizeof name) return false;
    memcpy(name, word, length);
    name[length] = '\0';
    for (dart_dtype dtype = DART_F32; dtype <= DART_BF16; dtype++)
        if (strcmp(name, dart_dtype_name(dtype)) == 0) {
            p->dtype = dtype;
            return true;
        }
    const size_t index = operation_index(p->o.kind, name);
    if (index < OPERATION_MAX_TENSORS && (p->o.kind->tensors[index].flags & TENSOR_OPTIONAL) != 0) {
        p->o.given[index] = true;
        return true;
    }
    return parse_size(p, word, length);
}

/* "L=2048..131072" stands for the powers of two between, a case each. */
static int add_cases(bench_cases *list, const args_syntax *syntax, const char *text)
{
    const char *range = strstr(text, "..");
    if (range == NULL) {
        void *grown = realloc(list->texts, (list->count + 1) * sizeof *list->texts);
        if (grown == NULL) return cli_fail_memory();
        list->texts = grown;
        snprintf(list->texts[list->count++], sizeof *list->texts, "%s", text);
        return ARGS_GO_ON;
    }
    const char *from = range;
    char low[16] = "", high[16] = "", one[256];
    uint64_t first = 0, last = 0;
    while (from > text && isdigit((unsigned char)from[-1])) from--;
    const size_t digits = strspn(range + 2, "0123456789");
    if ((size_t)(range - from) < sizeof low && digits < sizeof high) {
        memcpy(low, from, (size_t)(range - from));
        memcpy(high, range + 2, digits);
    }
    if (!args_whole(low, &first) || !args_whole(high, &last) || first == 0 || last > 1u << 30 || first > last)
        return args_mistake(syntax, "'%s': a range of sizes is LOW..HIGH, from 1 to %u", text, 1u << 30);
    for (uint64_t size = first; size <= last; size *= 2) {
        snprintf(one, sizeof one, "%.*s%" PRIu64 "%s", (int)(from - text), text, size, range + 2 + digits);
        const int status = add_cases(list, syntax, one);
        if (status != ARGS_GO_ON) return status;
    }
    return ARGS_GO_ON;
}

int bench_cases_list(bench_cases *list, const args_syntax *syntax, const args_operands *operands)
{
    char text[256] = "", name[32];
    for (uint32_t i = 0; i < operands->count; i++) {
        const char *word = operands->texts[i];
        const size_t length = strcspn(word, " ");
        snprintf(name, sizeof name, "%.*s", (int)length, word);
        if (operation_find(name) != NULL && text[0] != '\0') {
            const int status = add_cases(list, syntax, text);
            if (status != ARGS_GO_ON) return status;
            text[0] = '\0';
        }
        if (strlen(text) + strlen(word) + 2 > sizeof text) return args_mistake(syntax, "the case is too long: %s", word);
        if (text[0] != '\0') strcat(text, " ");
        strcat(text, word);
    }
    return add_cases(list, syntax, text);
}

int bench_case_parse(bench_case *p, const args_syntax *syntax, const char *text)
{
    char names[OPERATION_NAMES];
    while (*text != '\0') {
        const size_t length = strcspn(text, " ");
        if (length > 0 && p->o.kind == NULL) {
            char name[32];
            snprintf(name, sizeof name, "%.*s", (int)length, text);
            p->o.kind = operation_find(name);
            if (p->o.kind == NULL)
                return args_mistake(syntax, "unknown op '%s'; there are %s", name, operation_names(names));
            if (strncmp(text + length, " backward", 9) == 0 && (text[length + 9] == ' ' || text[length + 9] == '\0')) {
                p->o.kind = operation_find_backward(name);
                if (p->o.kind == NULL)
                    return args_mistake(syntax, "%s has no backward pass; there are those of %s", name, operation_backward_names(names));
                text += 9;
            }
        } else if (length > 0 && !parse_word(p, text, length)) {
            return args_mistake(syntax, "'%.*s' is no size, dtype or optional tensor of %s", (int)length, text,
                                p->o.kind->name);
        }
        text += length + (text[length] == ' ');
    }
    if (p->o.kind == NULL) return args_mistake(syntax, "the case is empty");
    return ARGS_GO_ON;
}

void bench_case_complete(bench_case *p)
{
    operation *o = &p->o;
    for (size_t i = 0; i < COUNT_OF(dim_defaults); i++)
        if (o->dims[dim_defaults[i].dim] == 0) o->dims[dim_defaults[i].dim] = dim_defaults[i].size;
    if (o->dims[DIM_M] == 0) o->dims[DIM_M] = base_ceil_div(o->dims[DIM_L], o->settings.S);
    o->dims[DIM_S] = o->settings.S;
    const size_t seq = operation_index(o->kind, "seq"), open = operation_index(o->kind, "open"),
                 decay = operation_index(o->kind, "open_decay");
    if (open < OPERATION_MAX_TENSORS && (o->given[open] || o->given[decay]))
        o->given[seq] = o->given[open] = o->given[decay] = true;
    if (o->kind->derive != NULL) o->kind->derive(o);
}

void bench_case_name(bench_case *p)
{
    static const struct {
        operation_dim dim;
        const char *name;
    } named[] = {{DIM_B, "B"},   {DIM_L, "L"},     {DIM_H, "H"}, {DIM_G, "G"}, {DIM_N, "N"}, {DIM_P, "P"},
                 {DIM_S, "S"},   {DIM_M, "M"},     {DIM_T, "T"}, {DIM_W, "W"}, {DIM_V, "V"}, {DIM_I, "I"},
                 {DIM_IN, "IN"}, {DIM_OUT, "OUT"}, {DIM_C, "C"}, {DIM_K, "K"},     {DIM_D, "D"}};
    const operation *o = &p->o;
    const char *backward = operation_find(o->kind->name) != o->kind ? " backward" : "";
    size_t used = (size_t)snprintf(p->name, sizeof p->name, "%s%s", o->kind->name, backward);
    for (size_t i = 0; i < COUNT_OF(named); i++) {
        bool is_used = named[i].dim == DIM_S && operation_index(o->kind, "dh") < OPERATION_MAX_TENSORS;
        for (const operation_tensor *t = o->kind->tensors; t->name != NULL; t++)
            if ((t->flags & TENSOR_IN) != 0 && operation_mentions(t, named[i].dim)) is_used = true;
        if (is_used)
            used += (size_t)snprintf(p->name + used, sizeof p->name - used, " %s=%" PRIu64, named[i].name,
                                     o->dims[named[i].dim]);
    }
    used += (size_t)snprintf(p->name + used, sizeof p->name - used, " %s", dart_dtype_name(p->dtype));
    for (size_t i = 0; o->kind->tensors[i].name != NULL; i++)
        if (o->given[i] && (o->kind->tensors[i].flags & TENSOR_OPTIONAL) != 0)
            used += (size_t)snprintf(p->name + used, sizeof p->name - used, " %s", o->kind->tensors[i].name);
}
