/*
 * The version of what is released together: module, engine and command line.
 *
 * It stands here alone: --version, the engine's entry in Redis, the module's
 * log and /metrics take it from here, and scripts/check-version.sh (make lint)
 * holds to it what cannot: image tags and the changelog.  What the processes
 * speak with each other has versions of its own (handshake.h, status.h).
 */
#ifndef TOKENRING_VERSION_H
#define TOKENRING_VERSION_H

#define TR_VERSION "0.2.0"

#endif
