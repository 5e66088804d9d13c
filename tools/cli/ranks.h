/* The processes of one training: who they are, from the variables that launchers set, and what they exchange, over TCP.
 *
 * Rank 0 listens at the address of --rendezvous, the others connect to it. Every exchange goes through rank 0. A process that ends closes its
 * connections, which the others see at once. Besides, each tells the others twice a second that it lives: one that has stopped, or whose machine is
 * gone, is given up when it has been silent for --rank-timeout. */
#ifndef DARTLM_RANKS_H
#define DARTLM_RANKS_H

#include "cli.h"

#include <stdatomic.h>

typedef struct cli_ranks {
    dart_ranks is;
    uint32_t local;     /* number among the ranks of this machine */
    int *connections;   /* rank 0: of each other rank, from 1 on; else the one to rank 0 */
    uint32_t connected; /* how many there are */
    uint32_t patience;  /* s: the silence of another rank */
    base_mutex sending;
    base_thread pulse;
    atomic_bool leaves;
    bool has_pulse;
} cli_ranks;

/* Finds out rank and number of ranks: RANK, WORLD_SIZE and LOCAL_RANK (torchrun), else the variables of Open MPI, of MPICH and of Slurm. Then meets
 * the others at HOST:PORT; NULL: MASTER_ADDR and MASTER_PORT, else 127.0.0.1:29400. patience in seconds. Tells stderr of a failure. */
int cli_ranks_join(cli_ranks *r, const char *rendezvous, uint32_t patience);
void cli_ranks_leave(cli_ranks *r);
/* Whether any rank says so. */
int cli_ranks_any(cli_ranks *r, bool own, bool *any);

#endif
