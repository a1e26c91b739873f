/*
 * A conversation at the terminal, for the commands that end in one.
 */
#ifndef TR_CHAT_H
#define TR_CHAT_H

#include "client.h"
#include "sampling_options.h"

/* Opens the model and talks until the user ends it.  given: the table whose
 * options go into requests.  All are borrowed.  Returns the exit status. */
int tr_chat_with(const tr_target_t *target,
                 const tr_sampling_options_t *sampling, const char *system,
                 const tr_option_t *given);

#endif
