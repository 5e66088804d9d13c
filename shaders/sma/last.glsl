// How the workgroup that is done last with the partials of a (b, h) finds that out and merges them. Nobody waits for
// anybody: each takes a ticket when its own partial is there for all to see. Include after merge.glsl.
#extension GL_KHR_memory_scope_semantics : require
READS_WRITES_COHERENT(uint, words, tickets)
shared bool last;

// All lanes are here, and each sees what the others wrote, to buffers too, which barrier() alone does not say. A workgroup's scope
// is enough by the memory model, and is used with -DCUMULATIVE, where the driver keeps to that (DART_CAP_CUMULATIVE); on AMD Mesa leaves out the
// wait for stores then, and the ticket waits for those of its own subgroup only.
#ifdef CUMULATIVE
#define MEET_SCOPE gl_ScopeWorkgroup
#else
#define MEET_SCOPE gl_ScopeDevice
#endif
void meet()
{
    controlBarrier(gl_ScopeWorkgroup, MEET_SCOPE, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
}

// Call in uniform flow when the partial is written. The first lane's atomic releases to other workgroups what this workgroup wrote
// before meet(), and acquires what they released.
void merge_when_last(uint head)
{
    meet();
    if (LANE == 0u)
        last = atomicAdd(words_tickets[head], 1u, gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease) == args.splits - 1u;
    meet();
    if (!last) return;
    merge(head);
    if (LANE == 0u) words_tickets[head] = 0u; // for the next launch
}
