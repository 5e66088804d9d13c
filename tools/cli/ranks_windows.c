#include "ranks.h"

int cli_ranks_join(cli_ranks *r, const char *rendezvous, uint32_t patience)
{
    (void)r, (void)rendezvous, (void)patience;
    return cli_fail("--ranks: not on Windows");
}

void cli_ranks_leave(cli_ranks *r) { (void)r; }

int cli_ranks_any(cli_ranks *r, bool own, bool *any)
{
    (void)r;
    *any = own;
    return CLI_OK;
}
