/* Counts durations so that percentiles come out within 0.4 %, in constant memory.
 *
 * Buckets are 256 to every power of two; below 256 ns they are exact.
 */
#ifndef BENCH_HISTOGRAM_H
#define BENCH_HISTOGRAM_H

#include <stdint.h>
#include <stdio.h>

enum { HISTOGRAM_BITS = 8, HISTOGRAM_BUCKETS = (64 - HISTOGRAM_BITS + 1) << HISTOGRAM_BITS };

struct histogram {
    uint64_t count, max_ns;
    uint64_t buckets[HISTOGRAM_BUCKETS];
};

static void histogram_add(struct histogram *h, uint64_t ns)
{
    int shift = 63 - __builtin_clzll(ns | 1) - HISTOGRAM_BITS;
    if (shift < 0)
        shift = 0;
    h->buckets[((uint64_t)shift << HISTOGRAM_BITS) + (ns >> shift)]++;
    h->count++;
    if (ns > h->max_ns)
        h->max_ns = ns;
}

/* The middle of the bucket that holds the sample of this rank. */
static uint64_t histogram_at(const struct histogram *h, double share)
{
    uint64_t wanted = (uint64_t)((double)h->count * share), seen = 0;
    for (uint64_t i = 0; i < HISTOGRAM_BUCKETS; i++) {
        seen += h->buckets[i];
        if (seen <= wanted)
            continue;
        if (i < (2u << HISTOGRAM_BITS))
            return i;
        uint64_t shift = (i >> HISTOGRAM_BITS) - 1;
        uint64_t base = i - (shift << HISTOGRAM_BITS);
        return (base << shift) + (1ull << shift) / 2;
    }
    return h->max_ns;
}

/* Prints `"name": {...}` in microseconds, or null when nothing was counted. */
static void histogram_print(const struct histogram *h, const char *name)
{
    if (!h->count) {
        printf("\"%s\": null", name);
        return;
    }
    printf("\"%s\": {\"count\": %llu, \"p50\": %.2f, \"p90\": %.2f, \"p99\": %.2f, \"max\": %.2f}", name,
           (unsigned long long)h->count, (double)histogram_at(h, 0.5) / 1e3, (double)histogram_at(h, 0.9) / 1e3,
           (double)histogram_at(h, 0.99) / 1e3, (double)h->max_ns / 1e3);
}

#endif
