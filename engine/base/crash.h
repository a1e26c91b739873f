/*
 * Says on the status page that the process ends by its own fault.
 *
 * SIGSEGV, SIGBUS, SIGILL, SIGFPE and SIGABRT end the process as ever; before
 * that, `crashed` on the page gets the signal's number.  The page outlives the
 * process in who has mapped it: a gateway tells a crash, which may be the fault
 * of a request, from a kill.  A SIGBUS in a mapped file, which somebody has made
 * shorter, is no crash: who has mapped it is told (mapped_file.h).  A thread whose stack overflows has nothing left to
 * say that on, unless it has asked for another stack when it began.
 */
#ifndef TR_CRASH_H
#define TR_CRASH_H

#include <stdatomic.h>
#include <stdint.h>

/* From now on, here (borrowed: the page's `crashed`); NULL: nowhere. */
void tr_crash_tell(_Atomic uint64_t *crashed);

/* At the start of a thread that works on what clients send: a stack for last
 * words, which is a part of the thread's memory.  A sanitizer's stays. */
void tr_crash_stack(void);

#endif
