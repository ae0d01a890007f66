/* How far two cores are apart: the time a word takes from one to the other and back, in nanoseconds.
 *
 *     distance CORE CORE
 *
 * About 100 when they share a cache, 600 and more when a virtual machine's host has put them on different
 * sockets -- which it may do from one minute to the next, and which makes everything that crosses cores, and so
 * every proxied request, cost up to half as much again.
 */
#include "common.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { TRIPS = 20000 };

static _Alignas(64) atomic_int word;

static void move_to(int core)
{
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(core, &cores);
    if (sched_setaffinity(0, sizeof cores, &cores))
        die(1, "cannot run on core %d: %s", core, strerror(errno));
}

static void *answer(void *core)
{
    move_to(*(int *)core);
    for (int i = 0; i < TRIPS; i++) {
        while (atomic_load(&word) != 2 * i + 1)
            continue;
        atomic_store(&word, 2 * i + 2);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        die(2, "two cores are needed");
    int near = atoi(argv[1]), far = atoi(argv[2]);
    pthread_t other;
    move_to(near);
    if (pthread_create(&other, NULL, answer, &far))
        die(1, "cannot start a thread");
    uint64_t start = 0;
    for (int i = 0; i < TRIPS; i++) {
        atomic_store(&word, 2 * i + 1);
        while (atomic_load(&word) != 2 * i + 2)
            continue;
        if (i == TRIPS / 10)
            start = now_ns();
    }
    printf("%.1f\n", (double)(now_ns() - start) / (TRIPS - TRIPS / 10 - 1));
    pthread_join(other, NULL);
    return 0;
}
