// What the rows of mixer_project and mixer_output for one sequence share.
#include "lib/eight.glsl"
#include "lib/together.glsl"

float add_eight(float sum, Eight a, Eight b) { return add_four(add_four(sum, a.low, b.low), a.high, b.high); }
Eight scaled(Eight v, Eight by) { return Eight(v.low * by.low, v.high * by.high); }

// One word of eight elements as they lie in memory, for nothing().
uint bits_of(Words w) { return w.low.x | w.high.x; }
