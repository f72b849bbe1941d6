/* The command line and the files it names, checked and made ready for the load. */
#ifndef LOADGEN_OPTIONS_H
#define LOADGEN_OPTIONS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The hard bounds: whatever is asked for, the generator ends by itself within them. */
enum {
    CONNECTIONS_LIMIT = 20000,
    REQUESTS_LIMIT = 50000000,
    SECONDS_LIMIT = 3600,
    TIMEOUT_SECONDS_LIMIT = 600,
    INPUT_FILE_LIMIT = 1 << 30,
};

/* A whole request as it goes over the wire: head and body. */
struct request {
    char *data;
    size_t length;
};

struct options {
    struct sockaddr_in address;
    struct request *requests; /* taken in turn */
    size_t request_count;
    size_t connections;
    uint64_t warm_up_ns;
    uint64_t duration_ns;   /* of the counted part; 0 where the arrivals alone decide */
    uint64_t request_limit; /* counted requests */
    uint64_t timeout_ns;
    bool open_loop;
    uint64_t *arrivals; /* open loop: nanoseconds after the start, ascending */
    size_t arrival_count;
    const char *latencies_path; /* or NULL */
};

/* Reads everything; ends the process with EXIT_USAGE and a message where something is wrong. */
void options_read(struct options *options, int argument_count, char **arguments);

#endif
