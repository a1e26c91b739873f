/*
 * The version of module, engine and command line, which are released together.
 * It stands here alone; make lint holds image tags and changelogs to it.
 */
#ifndef TOKENRING_VERSION_H
#define TOKENRING_VERSION_H

#define TR_VERSION "0.3.0"

#endif
