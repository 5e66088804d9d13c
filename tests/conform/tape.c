#include "tape.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum node_kind { INPUT, PART, JOIN, ADD, MULTIPLY, SCALE, SUM, OUTER, ROWS, COLUMNS, APPLY } node_kind;

typedef struct node {
    node_kind kind;
    uint32_t a, b;        /* operands; JOIN: the first of its links */
    size_t at, count;     /* of its values */
    size_t first, stride; /* PART: elements of a; JOIN: first is the number of links */
    double numbers[2];
    tape_function function;
} node;

struct tape {
    node *nodes;
    size_t nodes_count, nodes_room;
    double *values, *gradients, *squares;
    size_t values_count, values_room;
    uint32_t *links; /* operands of JOIN */
    size_t links_count, links_room;
};

static void demand(int condition, const char *what)
{
    if (condition) return;
    fprintf(stderr, "tape: %s\n", what);
    abort();
}

/* Room for `more` elements behind count ones. */
static void *grow(void *memory, size_t count, size_t more, size_t *room, size_t size)
{
    if (count + more <= *room) return memory;
    *room = 2 * (count + more);
    memory = realloc(memory, *room * size);
    demand(memory != NULL, "out of memory");
    return memory;
}

tape *tape_create(void)
{
    tape *t = calloc(1, sizeof *t);
    demand(t != NULL, "out of memory");
    return t;
}

void tape_destroy(tape **t)
{
    if (*t == NULL) return;
    free((*t)->nodes);
    free((*t)->values);
    free((*t)->gradients);
    free((*t)->squares);
    free((*t)->links);
    free(*t);
    *t = NULL;
}

/* A node of count values, not yet set. */
static node *add(tape *t, node_kind kind, tape_vector a, tape_vector b, size_t count)
{
    demand(t->gradients == NULL, "an operation after tape_reverse");
    t->nodes = grow(t->nodes, t->nodes_count, 1, &t->nodes_room, sizeof *t->nodes);
    t->values = grow(t->values, t->values_count, count, &t->values_room, sizeof *t->values);
    node *made = &t->nodes[t->nodes_count++];
    *made = (node){.kind = kind, .a = a.id, .b = b.id, .at = t->values_count, .count = count};
    t->values_count += count;
    return made;
}

static tape_vector last(const tape *t) { return (tape_vector){(uint32_t)(t->nodes_count - 1)}; }

size_t tape_count(const tape *t, tape_vector v) { return t->nodes[v.id].count; }
const double *tape_values(const tape *t, tape_vector v) { return t->values + t->nodes[v.id].at; }

static const tape_vector none = {0};

tape_vector tape_input(tape *t, const double *values, size_t count)
{
    const node *made = add(t, INPUT, none, none, count);
    for (size_t i = 0; i < count; i++) t->values[made->at + i] = values != NULL ? values[i] : 0;
    return last(t);
}

tape_vector tape_part(tape *t, tape_vector v, size_t first, size_t stride, size_t count)
{
    demand(count > 0 && first + (count - 1) * stride < tape_count(t, v), "a part beyond its vector");
    node *made = add(t, PART, v, none, count);
    made->first = first;
    made->stride = stride;
    for (size_t i = 0; i < count; i++) t->values[made->at + i] = tape_values(t, v)[first + i * stride];
    return last(t);
}

tape_vector tape_join(tape *t, const tape_vector *parts, size_t count)
{
    size_t total = 0, done = 0;
    for (size_t i = 0; i < count; i++) total += tape_count(t, parts[i]);
    node *made = add(t, JOIN, (tape_vector){(uint32_t)t->links_count}, none, total);
    made->first = count;
    t->links = grow(t->links, t->links_count, count, &t->links_room, sizeof *t->links);
    for (size_t i = 0; i < count; i++) {
        t->links[t->links_count++] = parts[i].id;
        memcpy(t->values + made->at + done, tape_values(t, parts[i]), tape_count(t, parts[i]) * sizeof(double));
        done += tape_count(t, parts[i]);
    }
    return last(t);
}

/* ADD and MULTIPLY. */
static tape_vector combine(tape *t, node_kind kind, tape_vector a, tape_vector b)
{
    const size_t count = tape_count(t, a), step = tape_count(t, b) == 1 ? 0 : 1;
    demand(step == 0 || tape_count(t, b) == count, "vectors of two sizes");
    const node *made = add(t, kind, a, b, count);
    const double *x = tape_values(t, a), *y = tape_values(t, b);
    for (size_t i = 0; i < count; i++) t->values[made->at + i] = kind == ADD ? x[i] + y[i * step] : x[i] * y[i * step];
    return last(t);
}

tape_vector tape_add(tape *t, tape_vector a, tape_vector b) { return combine(t, ADD, a, b); }
tape_vector tape_multiply(tape *t, tape_vector a, tape_vector b) { return combine(t, MULTIPLY, a, b); }

tape_vector tape_scale(tape *t, tape_vector a, double factor, double term)
{
    node *made = add(t, SCALE, a, none, tape_count(t, a));
    made->numbers[0] = factor;
    for (size_t i = 0; i < made->count; i++) t->values[made->at + i] = factor * tape_values(t, a)[i] + term;
    return last(t);
}

tape_vector tape_sum(tape *t, tape_vector a)
{
    double sum = 0;
    for (size_t i = 0; i < tape_count(t, a); i++) sum += tape_values(t, a)[i];
    const size_t at = add(t, SUM, a, none, 1)->at;
    t->values[at] = sum;
    return last(t);
}

tape_vector tape_outer(tape *t, tape_vector a, tape_vector b)
{
    const size_t N = tape_count(t, a), P = tape_count(t, b);
    const size_t at = add(t, OUTER, a, b, N * P)->at;
    double *y = t->values + at;
    for (size_t n = 0; n < N; n++)
        for (size_t p = 0; p < P; p++) y[n * P + p] = tape_values(t, a)[n] * tape_values(t, b)[p];
    return last(t);
}

static size_t other_side(const tape *t, tape_vector matrix, tape_vector v)
{
    const size_t count = tape_count(t, v);
    demand(count > 0 && tape_count(t, matrix) % count == 0, "a vector that does not divide its matrix");
    return tape_count(t, matrix) / count;
}

tape_vector tape_rows(tape *t, tape_vector matrix, tape_vector v, size_t rows)
{
    enum { TOGETHER = 8 }; /* sums that do not wait for each other */
    demand(rows > 0 && tape_count(t, v) % rows == 0, "rows that do not divide their vector");
    const size_t P = tape_count(t, v) / rows;
    demand(P > 0 && tape_count(t, matrix) % P == 0, "a vector that does not divide its matrix");
    const size_t N = tape_count(t, matrix) / P;
    node *made = add(t, ROWS, matrix, v, rows * N);
    made->first = rows;
    for (size_t first = 0; first < N; first += TOGETHER) {
        const size_t some = N - first < TOGETHER ? N - first : TOGETHER;
        const double *m[TOGETHER];
        for (size_t k = 0; k < TOGETHER; k++) m[k] = tape_values(t, matrix) + (first + (k < some ? k : 0)) * P;
        for (size_t r = 0; r < rows; r++) {
            const double *x = tape_values(t, v) + r * P;
            double sum[TOGETHER] = {0};
            for (size_t p = 0; p < P; p++)
                for (size_t k = 0; k < TOGETHER; k++) sum[k] += m[k][p] * x[p];
            memcpy(t->values + made->at + r * N + first, sum, some * sizeof *sum);
        }
    }
    return last(t);
}

tape_vector tape_columns(tape *t, tape_vector matrix, tape_vector v)
{
    const size_t P = other_side(t, matrix, v), N = tape_count(t, v), at = add(t, COLUMNS, matrix, v, P)->at;
    const double *m = tape_values(t, matrix), *x = tape_values(t, v);
    double *y = t->values + at;
    memset(y, 0, P * sizeof *y);
    for (size_t n = 0; n < N; n++)
        for (size_t p = 0; p < P; p++) y[p] += x[n] * m[n * P + p];
    return last(t);
}

tape_vector tape_apply(tape *t, tape_vector a, tape_function function, double first, double second)
{
    node *made = add(t, APPLY, a, none, tape_count(t, a));
    made->function = function;
    made->numbers[0] = first;
    made->numbers[1] = second;
    for (size_t i = 0; i < made->count; i++) t->values[made->at + i] = function(tape_values(t, a)[i], made->numbers).value;
    return last(t);
}

/* ---- Functions ---- */

static double logistic(double v) { return v >= 0 ? 1 / (1 + exp(-v)) : exp(v) / (1 + exp(v)); }

tape_point tape_exp(double v, const double *numbers)
{
    (void)numbers;
    return (tape_point){exp(v), exp(v)};
}

tape_point tape_log(double v, const double *numbers)
{
    (void)numbers;
    return (tape_point){log(v), 1 / v};
}

tape_point tape_silu(double v, const double *numbers)
{
    (void)numbers;
    const double s = logistic(v);
    return (tape_point){v * s, s + v * s * (1 - s)};
}

tape_point tape_softplus(double v, const double *numbers)
{
    (void)numbers;
    return (tape_point){v > 0 ? v + log1p(exp(-v)) : log1p(exp(v)), logistic(v)};
}

tape_point tape_power(double v, const double *numbers)
{
    return (tape_point){pow(v, numbers[0]), numbers[0] * pow(v, numbers[0] - 1)};
}

tape_point tape_clamp(double v, const double *numbers)
{
    if (v < numbers[0]) return (tape_point){numbers[0], 0};
    return v > numbers[1] ? (tape_point){numbers[1], 0} : (tape_point){v, 1};
}

/* ---- Backwards ---- */

static void need_gradients(tape *t)
{
    if (t->gradients != NULL) return;
    t->gradients = calloc(t->values_count > 0 ? t->values_count : 1, sizeof *t->gradients);
    t->squares = calloc(t->values_count > 0 ? t->values_count : 1, sizeof *t->squares);
    demand(t->gradients != NULL && t->squares != NULL, "out of memory");
}

void tape_push(tape *t, tape_vector v, const double *up)
{
    need_gradients(t);
    for (size_t i = 0; i < tape_count(t, v) && up != NULL; i++) {
        t->gradients[t->nodes[v.id].at + i] += up[i];
        t->squares[t->nodes[v.id].at + i] += up[i] * up[i];
    }
}

/* Adds slope times the gradient of element `from` to that of element `to`, and its square. */
static void pass(tape *t, size_t to, size_t from, double slope)
{
    t->gradients[to] += slope * t->gradients[from];
    t->squares[to] += slope * slope * t->squares[from];
}

/* The same of element `from` to `count` neighbours, each with a slope of its own. */
static void pass_each(tape *t, size_t to, size_t from, const double *slopes, size_t count)
{
    const double gradient = t->gradients[from], square = t->squares[from];
    double *gradients = t->gradients + to, *squares = t->squares + to;
    for (size_t i = 0; i < count; i++) {
        gradients[i] += slopes[i] * gradient;
        squares[i] += slopes[i] * slopes[i] * square;
    }
}

/* To `rows` neighbours from `to` on, each from `count` neighbours with slopes; those of the next one lie from_step and slopes_step farther. */
static void pass_sums(tape *t, size_t to, size_t rows, size_t from, size_t from_step, const double *slopes, size_t slopes_step, size_t count)
{
    enum { TOGETHER = 8 }; /* sums that do not wait for each other */
    for (size_t first = 0; first < rows; first += TOGETHER) {
        const size_t some = rows - first < TOGETHER ? rows - first : TOGETHER;
        double gradient[TOGETHER] = {0}, square[TOGETHER] = {0};
        memcpy(gradient, t->gradients + to + first, some * sizeof *gradient);
        memcpy(square, t->squares + to + first, some * sizeof *square);
        for (size_t p = 0; p < count; p++)
            for (size_t k = 0; k < TOGETHER; k++) {
                const size_t row = first + (k < some ? k : 0);
                const double slope = slopes[row * slopes_step + p];
                gradient[k] += slope * t->gradients[from + row * from_step + p];
                square[k] += slope * slope * t->squares[from + row * from_step + p];
            }
        memcpy(t->gradients + to + first, gradient, some * sizeof *gradient);
        memcpy(t->squares + to + first, square, some * sizeof *square);
    }
}

/* Of a product of a matrix with rows: some rows at a time, which stay in a cache. */
static void hand_back_rows(tape *t, const node *n, const node *a, const node *b)
{
    enum { SOME = 32 };
    const size_t rows = n->first, P = b->count / rows, N = n->count / rows;
    for (size_t end = rows; end > 0; end = end > SOME ? end - SOME : 0)
        for (size_t i = 0; i < N; i++)
            for (size_t r = end; r > 0 && r + SOME > end; r--) {
                const size_t from = n->at + (r - 1) * N + i;
                pass_each(t, a->at + i * P, from, t->values + b->at + (r - 1) * P, P);
                pass_each(t, b->at + (r - 1) * P, from, t->values + a->at + i * P, P);
            }
}

/* One node's gradient, handed to its operands. */
static void hand_back(tape *t, const node *n)
{
    const node *a = &t->nodes[n->kind == JOIN ? 0 : n->a], *b = &t->nodes[n->b];
    const double *x = t->values + a->at, *y = t->values + b->at;
    const size_t count = n->count, step = b->count == 1 ? 0 : 1;
    switch (n->kind) {
    case INPUT: break;
    case PART:
        for (size_t i = 0; i < count; i++) pass(t, a->at + n->first + i * n->stride, n->at + i, 1);
        break;
    case JOIN:
        for (size_t k = 0, done = 0; k < n->first; k++) {
            const node *part = &t->nodes[t->links[n->a + k]];
            for (size_t i = 0; i < part->count; i++) pass(t, part->at + i, n->at + done + i, 1);
            done += part->count;
        }
        break;
    case ADD:
        for (size_t i = 0; i < count; i++) pass(t, a->at + i, n->at + i, 1);
        for (size_t i = 0; i < count; i++) pass(t, b->at + i * step, n->at + i, 1);
        break;
    case MULTIPLY:
        for (size_t i = 0; i < count; i++) pass(t, a->at + i, n->at + i, y[i * step]);
        for (size_t i = 0; i < count; i++) pass(t, b->at + i * step, n->at + i, x[i]);
        break;
    case SCALE:
        for (size_t i = 0; i < count; i++) pass(t, a->at + i, n->at + i, n->numbers[0]);
        break;
    case SUM:
        for (size_t i = 0; i < a->count; i++) pass(t, a->at + i, n->at, 1);
        break;
    case OUTER:
        pass_sums(t, a->at, a->count, n->at, b->count, y, 0, b->count);
        for (size_t i = 0; i < a->count; i++)
            for (size_t k = 0; k < b->count; k++) pass(t, b->at + k, n->at + i * b->count + k, x[i]);
        break;
    case ROWS: hand_back_rows(t, n, a, b); break;
    case COLUMNS: /* a: b->count x count */
        for (size_t i = 0; i < b->count; i++)
            for (size_t k = 0; k < count; k++) pass(t, a->at + i * count + k, n->at + k, y[i]);
        pass_sums(t, b->at, b->count, n->at, 0, x, count, count);
        break;
    case APPLY:
        for (size_t i = 0; i < count; i++) pass(t, a->at + i, n->at + i, n->function(x[i], n->numbers).slope);
        break;
    }
}

void tape_reverse(tape *t)
{
    need_gradients(t);
    for (size_t i = t->nodes_count; i-- > 0;) hand_back(t, &t->nodes[i]);
}

const double *tape_gradient(const tape *t, tape_vector v) { return t->gradients + t->nodes[v.id].at; }

const double *tape_squares(const tape *t, tape_vector v) { return t->squares + t->nodes[v.id].at; }
