/* What was measured, and its one way out: a JSON object. Knows nothing of sockets or clocks. */
#ifndef LOADGEN_RESULTS_H
#define LOADGEN_RESULTS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "response.h"

enum failure {
    FAILURE_CONNECT,  /* no connection came about */
    FAILURE_RESET,    /* the server closed before its answer was whole */
    FAILURE_TIMEOUT,  /* no whole answer within the time limit */
    FAILURE_PROTOCOL, /* the answer was not HTTP as we know it */
    FAILURE_KINDS
};

struct results {
    uint32_t *latencies; /* microseconds, of the answers with status 200 to 299, as they came */
    size_t capacity;
    uint64_t requests;
    uint64_t ok;
    uint64_t statuses[STATUS_LIMIT];
    uint64_t failures[FAILURE_KINDS];
    uint64_t late_sends;
    uint64_t bytes;
};

/* Makes room for `capacity` latencies; memory is taken only as they come. */
void results_open(struct results *results, size_t capacity);

void results_answer(struct results *results, int status, uint64_t nanoseconds, uint64_t bytes);

void results_failure(struct results *results, enum failure failure);

/* Writes the raw latencies: native 32-bit unsigned microseconds, in the order of the answers. */
void results_write_latencies(const struct results *results, const char *path);

/* Sorts the latencies and prints everything. `cpu_share` is the generator's own, of one core. */
void results_print(struct results *results, FILE *output, double seconds, double cpu_share);

#endif
