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

enum { TRIPS = 20000, BLOCK = 1000 }; /* the best block counts: others may use the cores too */

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

static void go_there_and_back(int from, int trips)
{
    for (int i = from; i < from + trips; i++) {
        atomic_store(&word, 2 * i + 1);
        while (atomic_load(&word) != 2 * i + 2)
            continue;
    }
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
    uint64_t best_ns = UINT64_MAX;
    for (int done = 0; done < TRIPS; done += BLOCK) {
        uint64_t start = now_ns();
        go_there_and_back(done, BLOCK);
        uint64_t taken = now_ns() - start;
        best_ns = taken < best_ns ? taken : best_ns;
    }
    printf("%.1f\n", (double)best_ns / BLOCK);
    pthread_join(other, NULL);
    return 0;
}
