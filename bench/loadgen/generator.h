/* The load's state: connections, the queues they are in, and when what is due. */
#ifndef LOADGEN_GENERATOR_H
#define LOADGEN_GENERATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "options.h"
#include "response.h"
#include "results.h"

enum link_state { LINK_CLOSED, LINK_CONNECTING, LINK_OPEN };

/* A place in one of the generator's queues; a queue is a ring through its own place. */
struct place {
    struct place *previous;
    struct place *next;
};

struct connection {
    struct place place; /* first, so that a place is a connection */
    enum link_state state;
    int descriptor;
    uint32_t interest;
    const struct request *request; /* NULL while none is in flight */
    size_t sent;
    bool send_failed;
    bool is_proven; /* its first request has ended */
    uint64_t since_ns; /* in flight: when the request began or was due; resting: the failure */
    uint64_t bytes;
    struct response response;
};

struct generator {
    const struct options *options;
    struct results results;
    struct connection *connections;
    struct place idle;      /* the one used last comes first */
    struct place in_flight; /* by `since_ns`, so the first one times out first */
    struct place resting;   /* by `since_ns`, too */
    size_t in_flight_count;
    size_t started; /* closed loop: connections that were let go */
    size_t awaited; /* connections whose first request is in flight */
    uint64_t group_start_ns;
    size_t next_request;
    size_t next_arrival;
    int epoll;
    int timer;
    uint64_t armed_ns; /* when the timer fires; earlier than needed does no harm */
    uint64_t start_ns;
    double start_cpu_seconds;
    uint64_t counted_from_ns; /* NEVER, as the next one, until all connections have started */
    uint64_t counted_to_ns;
    uint64_t last_end_ns; /* of a counted request */
};

/* loadgen.c: each request ends in exactly one of these; the connection may then begin the next. */
void settle_answer(struct generator *generator, struct connection *connection);
void settle_failure(struct generator *generator, struct connection *connection,
                    enum failure failure);

/* connection.c: sends the request that the connection holds, over a new link where it has none. */
void connection_send(struct generator *generator, struct connection *connection);
void connection_handle(struct generator *generator, struct connection *connection, uint32_t events);
void connection_close(struct connection *connection);

#endif
