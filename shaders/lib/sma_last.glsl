// How the workgroup that is done last with the partials of a (b, h) finds that out and merges them. Nobody waits for
// anybody: each takes a ticket when its own partial is there for all to see. Include after lib/sma_merge.glsl.
layout(std430, binding = 7) coherent buffer Block_tickets { uint tickets[]; };
shared bool last;

// Call in uniform flow when the partial is written.
void merge_when_last(uint head)
{
    /* barrier() orders shared memory only: every lane's writes come before the ticket, and every lane's reads after it, by the
     * barriers for buffers on both its sides. */
    memoryBarrierBuffer();
    barrier();
    if (LANE == 0u) {
        memoryBarrierBuffer();
        last = atomicAdd(tickets[head], 1u) == args.splits - 1u;
        memoryBarrierBuffer();
    }
    barrier();
    memoryBarrierBuffer();
    if (!last) return;
    merge(head);
    if (LANE == 0u) tickets[head] = 0u; // for the next launch
}
