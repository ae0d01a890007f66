/* Invariants that the debug build checks and the shipped build does not pay for.
 *
 * RELAYD_CHECK(condition) ends the process with the place and the condition when it is false.  It is
 * for what cannot happen if the code around it is right, never for what a peer can cause.
 */
#ifndef RELAYD_DEBUG_H
#define RELAYD_DEBUG_H

#ifdef RELAYD_DEBUG
#include <stdio.h>
#include <stdlib.h>
#define RELAYD_CHECK(condition)                                                        \
    do {                                                                               \
        if (!(condition)) {                                                            \
            fprintf(stderr, "relayd: broken invariant at %s:%d: %s\n", __FILE__,       \
                    __LINE__, #condition);                                             \
            abort();                                                                   \
        }                                                                              \
    } while (0)
#define RELAYD_DEBUG_BUILD 1
#else
#define RELAYD_CHECK(condition) ((void)0)
#define RELAYD_DEBUG_BUILD 0
#endif

#endif
