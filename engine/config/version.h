/*
 * The version of this engine, as --version and Redis show it.
 */
#ifndef TR_VERSION_H
#define TR_VERSION_H

#define TR_ENGINE_VERSION "0.1.0"

#endif
