// Loads that are on their way together. A compiler may move a load down to where its value is used, to save registers. NVIDIA's does: a lane then
// waits for one load after another. nothing(bits) is 0, which no compiler can know. Where `bits` is the OR of a word of each load, all loads come
// before what depends on the result.
uint nothing(uint bits) { return bits & args.flags & NEVER; }
