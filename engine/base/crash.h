/*
 * Says on the status page that the process ends by its own fault.
 *
 * SIGSEGV, SIGBUS, SIGILL, SIGFPE and SIGABRT end the process as ever; before
 * that, `crashed` on the page gets the signal's number.  The page outlives the
 * process in who has mapped it: a gateway tells a crash, which may be the fault
 * of a request, from a kill.
 */
#ifndef TR_CRASH_H
#define TR_CRASH_H

#include <tokenring/status.h>

/* From now on, on this page (borrowed); NULL: on none. */
void tr_crash_tell(tr_status_page_t *page);

#endif
