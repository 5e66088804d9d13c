/* dart_stream, as op.c and stream.c share it. */
#ifndef DART_STREAM_H
#define DART_STREAM_H

#include "trace.h"

enum {
    STREAM_IN_FLIGHT = 128, /* the most ranges between two barriers */
    STREAM_CROWDED = 8192,  /* workgroups of a launch that keeps a device busy by itself */
    STREAM_PARTS = 4096     /* parts of a recording behind which launches are not cut into ranges: each part is a stream of the backend and takes up
                               to some 100 KiB, and before times are known a device may be a hundred times as fast as assumed */
};

/* A range of memory that a launch since the last barrier reads or writes. */
typedef struct hazard {
    const void *memory;
    uint64_t begin, end;
    kernel_access access;
} hazard;

typedef struct buffer_list {
    dart_buffer **buffers;
    uint32_t count;
} buffer_list;

/* A part begins at this launch, which goes in so many parts. */
typedef struct stream_cut {
    uint32_t launch, ranges;
} stream_cut;

/* A recording that is not to occupy the device for long is cut into parts, submitted one by one; each is a stream of the backend. The scratch
 * memory is that of the whole. Most recordings are one part. */
typedef struct stream_parts {
    void **handles;    /* `made` of them, the first `count` of this recording */
    uint32_t *ends;    /* launches up to the end of each, one that goes on in the next part included */
    uint32_t count, made;
    uint32_t from, in_flight; /* the first part in flight; how many are, which is at most `count` */
    /* Where parts begin: at these launches, which belong to the caller; without any, as stream_pace says. */
    const stream_cut *cuts;
    uint32_t cuts_count, next; /* next: the first that has not been passed */
    uint32_t filled;           /* launches and ranges in the newest part */
    double most_work, work; /* of a part, 0: no limit; since the last cut */
    uint32_t every;         /* a part has at most so many launches, 0: no limit */
    uint32_t ranges;        /* parts that the tiles of one launch go in; 0 as 1 */
    bool now, always;       /* the next launch begins a part: by the pace, unless there are cuts; in any case */
} stream_parts;

/* Overrides, for one stream, the capabilities and the variant name by which rows of kernels are picked (conformance). */
typedef struct stream_choice {
    uint32_t capabilities; /* all of which the device was opened with */
    const char *variant;   /* a row of that name goes first; NULL: none */
} stream_choice;

struct dart_stream {
    dart_device *device;
    const stream_choice *choice; /* NULL: the device's, but for conformance, whose streams share a device */
    void *handle; /* made by backend->stream_create: of the part that is being recorded */
    base_report report;
    dart_stream_options options;
    dart_status status; /* sticky */
    bool submitted;     /* a submission may be in flight */
    stream_parts parts;
    bool closed;        /* the recording has been submitted: ops fail until dart_stream_begin */
    bool timed;         /* elapsed_ns is the time of a finished submission */
    uint64_t elapsed_ns;
    uint32_t launches;  /* in the recording */
    hazard hazards[STREAM_IN_FLIGHT];
    uint32_t hazards_count;
    bool crowded; /* the last launch keeps the device busy by itself */
    launch_notes notes;  /* on a device that is profiled */
    backend_code *needs; /* of a stream with options.warm: the code of the launches, each once */
    uint32_t needs_count;
    /* Scratch memory of ops (op_scratch): buffers that are filled one after another. Every op starts again with the first. */
    buffer_list chunks;
    uint32_t chunk; /* index of the buffer that is being filled */
    uint64_t used;  /* bytes of that buffer in use */
    buffer_list tickets; /* op_tickets: new launches use the last and largest buffer, recorded ones may still use earlier ones */
    buffer_list posts, stuck; /* op_posts and op_stuck, likewise */
    bool waits;          /* some launch of the recording has op_stuck */
    bool renews;         /* the next recording begins with new posts: what the present ones hold belongs to no launch that has ended */
    buffer_list tables;  /* op_table: the first tables_used are of this recording */
    uint32_t tables_used;
};

/* Makes a failure of the backend the stream's sticky status and copies its text from the device's report, after `call`, the name of
 * the public function. DART_TIMEOUT is not sticky. Returns status. */
dart_status stream_take_failure(dart_stream *stream, dart_status status, const char *call);
/* dart_stream_submit_times, behind and before what `order` says; NULL: nothing. */
dart_status stream_submit(dart_stream *stream, uint32_t times, const backend_order *order);
/* Records the launch. Sets launch->barrier if it depends on a launch since the last barrier, or if one of both keeps the device busy by
 * itself: side by side such launches take the caches from one another, and the steps of training took half as long again. */
void stream_launch(dart_stream *stream, backend_launch *launch, const char *call);
/* The launches that follow, about so many, compute `work` operations together, in whatever unit parts.most_work has. A launch that may exceed
 * a part by itself goes in ranges of its tiles, one a part: results have the same bits. */
void stream_pace(dart_stream *stream, double work, uint32_t launches);
/* The launch that follows begins a part, whatever the cuts and the pace say. Returns the part that ends here. */
uint32_t stream_end_part(dart_stream *stream);
/* Submits one part. Parts go in their order, from 0 to parts.count - 1, and from 0 again; several may be in flight, each of them once. After
 * parts.in_flight has become 0 any part may be the next. */
dart_status stream_submit_part(dart_stream *stream, uint32_t part);
/* Waits for the first part in flight; *ns: the time it took. */
dart_status stream_wait_part(dart_stream *stream, uint64_t timeout_ns, uint64_t *ns);
#endif
