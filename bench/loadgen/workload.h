/* Between the command line and the options: what has to be read, drawn or built first. */
#ifndef LOADGEN_WORKLOAD_H
#define LOADGEN_WORKLOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "options.h"

/* The text of the command line, before the files are read and the requests built. */
struct arguments {
    const char *host;
    const char *method;
    const char *path;
    const char *body;
    const char *bodies;
    const char *arrivals;
    char *headers; /* complete lines, one after the other */
    uint64_t port;
    double rate;
    double duration;
    double warm_up;
    double timeout;
    uint64_t connections;
    uint64_t requests;
    uint64_t seed;
    bool has_seed;
};

uint64_t nanoseconds(double seconds);

/* Each fills its part of the options; files that are wrong end the process with EXIT_USAGE. */
void build_requests(struct options *options, const struct arguments *given);
void draw_arrivals(struct options *options, const struct arguments *given);
void read_arrivals(struct options *options, const char *path);

#endif
