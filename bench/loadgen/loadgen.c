/*
 * Drives an HTTP/1.1 server on this machine and measures how long its answers take.
 *
 * One thread, one epoll, one timerfd. Closed loop: every connection sends its next request as soon
 * as it has its answer; what ends within the counted time counts. Open loop: requests are due at
 * given times whether or not earlier ones are answered, and latency runs from the due time, so a
 * server that stalls cannot hide the requests it held up ("coordinated omission", Gil Tene); what
 * is due within the counted time counts, and every such request is waited for.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "common.h"
#include "generator.h"
#include "options.h"
#include "results.h"

/* A request that leaves later than this after its due time is a late send. */
#define LATE_SEND_NS (1000 * NANOSECONDS_PER_MICROSECOND)
/* Closed loop: a connection rests after a failure, so that a dead server is not hammered. */
#define REST_NS (10000 * NANOSECONDS_PER_MICROSECOND)
/* Closed loop: connections start in groups, the next one when each of the last has had an answer,
 * or after this time. All at once would overflow a server's accept queue (100 to 128 is usual), and
 * what that drops comes again only after a second or more. */
#define GROUP_PATIENCE_NS NANOSECONDS_PER_SECOND
#define NEVER UINT64_MAX

enum { EVENTS_AT_ONCE = 256, GROUP_SIZE = 64 };

void die(int code, const char *format, ...)
{
    va_list values;

    va_start(values, format);
    fputs("loadgen: ", stderr);
    vfprintf(stderr, format, values);
    fputc('\n', stderr);
    va_end(values);
    exit(code);
}

static uint64_t clock_now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * NANOSECONDS_PER_SECOND + (uint64_t)time.tv_nsec;
}

static double cpu_seconds(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static bool is_empty(const struct place *queue)
{
    return queue->next == queue;
}

static struct connection *first(const struct place *queue)
{
    return (struct connection *)queue->next;
}

static void take_out(struct place *place)
{
    place->previous->next = place->next;
    place->next->previous = place->previous;
}

static void move_first(struct place *place, struct place *queue)
{
    take_out(place);
    place->previous = queue;
    place->next = queue->next;
    place->next->previous = queue->next = place;
}

static void move_last(struct place *place, struct place *queue)
{
    take_out(place);
    place->previous = queue->previous;
    place->next = queue;
    place->previous->next = queue->previous = place;
}

/* Whether a request that ends now, and was due at `due`, is part of the figures. */
static bool counts(const struct generator *generator, uint64_t due, uint64_t now)
{
    if (generator->options->open_loop)
        return due >= generator->counted_from_ns;
    return now >= generator->counted_from_ns && now < generator->counted_to_ns &&
           generator->results.requests < generator->options->request_limit;
}

/* Closed loop: whether one more request may begin without exceeding the limit. */
static bool may_begin(const struct generator *generator, uint64_t now)
{
    uint64_t begun = generator->results.requests + generator->in_flight_count;

    return now < generator->counted_from_ns || begun < generator->options->request_limit;
}

static void begin_request(struct generator *generator, struct connection *connection, uint64_t due);

/* What a connection does next, in flight no more. */
static void release(struct generator *generator, struct connection *connection, uint64_t now)
{
    if (!generator->options->open_loop && may_begin(generator, now))
        begin_request(generator, connection, now);
    else
        move_first(&connection->place, &generator->idle);
}

static void leave_flight(struct generator *generator, struct connection *connection)
{
    connection->request = NULL;
    generator->in_flight_count--;
    generator->awaited -= !connection->is_proven;
    connection->is_proven = true;
}

/* The one end of every request that got an answer. */
void settle_answer(struct generator *generator, struct connection *connection)
{
    uint64_t now = clock_now();

    leave_flight(generator, connection);
    if (counts(generator, connection->since_ns, now)) {
        results_answer(&generator->results, connection->response.status,
                       now - connection->since_ns, connection->bytes);
        generator->last_end_ns = now;
    }
    release(generator, connection, now);
}

/* The one end of every other request that was begun. */
void settle_failure(struct generator *generator, struct connection *connection,
                    enum failure failure)
{
    uint64_t now = clock_now();

    connection_close(connection);
    leave_flight(generator, connection);
    if (counts(generator, connection->since_ns, now)) {
        results_failure(&generator->results, failure);
        generator->last_end_ns = now;
    }
    connection->since_ns = now;
    if (generator->options->open_loop)
        move_first(&connection->place, &generator->idle);
    else
        move_last(&connection->place, &generator->resting);
}

static void begin_request(struct generator *generator, struct connection *connection, uint64_t due)
{
    const struct options *options = generator->options;

    connection->request = &options->requests[generator->next_request];
    generator->next_request = (generator->next_request + 1) % options->request_count;
    connection->since_ns = due;
    move_last(&connection->place, &generator->in_flight);
    generator->in_flight_count++;
    generator->awaited += !connection->is_proven;
    connection_send(generator, connection);
}

static void expire_requests(struct generator *generator, uint64_t now)
{
    while (!is_empty(&generator->in_flight) &&
           first(&generator->in_flight)->since_ns + generator->options->timeout_ns <= now)
        settle_failure(generator, first(&generator->in_flight), FAILURE_TIMEOUT);
    while (!is_empty(&generator->resting) &&
           first(&generator->resting)->since_ns + REST_NS <= now)
        release(generator, first(&generator->resting), now);
}

/* Closed loop: when the next group of connections is due to start, or NEVER once all have. */
static uint64_t next_start(const struct generator *generator)
{
    if (generator->options->open_loop || generator->started == generator->options->connections)
        return NEVER;
    return generator->awaited == 0 ? generator->start_ns
                                   : generator->group_start_ns + GROUP_PATIENCE_NS;
}

static void start_connections(struct generator *generator)
{
    size_t count = generator->options->connections;

    for (uint64_t now = clock_now(); next_start(generator) <= now; now = clock_now()) {
        size_t group_end = generator->started + GROUP_SIZE;
        generator->group_start_ns = now;
        while (generator->started < count && generator->started < group_end)
            release(generator, &generator->connections[generator->started++], clock_now());
    }
}

static void set_counted_time(struct generator *generator, uint64_t warm_up_start_ns)
{
    generator->counted_from_ns = warm_up_start_ns + generator->options->warm_up_ns;
    generator->counted_to_ns = generator->counted_from_ns + generator->options->duration_ns;
    generator->last_end_ns = generator->counted_from_ns;
}

/* Closed loop: some servers accept slowly under load, so the warm-up waits for all connections. */
static void begin_warm_up(struct generator *generator)
{
    if (generator->counted_from_ns == NEVER && generator->awaited == 0 &&
        generator->started == generator->options->connections)
        set_counted_time(generator, clock_now());
}

/* Open loop: begins what is due. What no connection was free for in time has timed out. */
static void begin_due_requests(struct generator *generator)
{
    const struct options *options = generator->options;

    for (; generator->next_arrival < options->arrival_count; generator->next_arrival++) {
        uint64_t due = generator->start_ns + options->arrivals[generator->next_arrival];
        uint64_t now = clock_now();
        bool counted = counts(generator, due, now);

        if (due > now)
            return;
        if (due + options->timeout_ns <= now) {
            if (counted) {
                results_failure(&generator->results, FAILURE_TIMEOUT);
                generator->last_end_ns = now;
            }
            continue;
        }
        if (is_empty(&generator->idle))
            return;
        generator->results.late_sends += counted && now - due > LATE_SEND_NS;
        begin_request(generator, first(&generator->idle), due);
    }
}

static uint64_t earlier(uint64_t left, uint64_t right)
{
    return left < right ? left : right;
}

static uint64_t next_wake(const struct generator *generator)
{
    const struct options *options = generator->options;
    uint64_t end = options->open_loop ? NEVER : generator->counted_to_ns;
    uint64_t wake = earlier(end, next_start(generator));

    if (!is_empty(&generator->in_flight))
        wake = earlier(wake, first(&generator->in_flight)->since_ns + options->timeout_ns);
    if (!is_empty(&generator->resting))
        wake = earlier(wake, first(&generator->resting)->since_ns + REST_NS);
    if (generator->next_arrival < options->arrival_count) {
        uint64_t due = generator->start_ns + options->arrivals[generator->next_arrival];
        wake = earlier(wake, is_empty(&generator->idle) ? due + options->timeout_ns : due);
    }
    return wake;
}

static void arm_timer(struct generator *generator)
{
    uint64_t wake = next_wake(generator);
    struct itimerspec time = {.it_value = {.tv_sec = (time_t)(wake / NANOSECONDS_PER_SECOND),
                                           .tv_nsec = (long)(wake % NANOSECONDS_PER_SECOND)}};

    if (wake >= generator->armed_ns)
        return;
    if (timerfd_settime(generator->timer, TFD_TIMER_ABSTIME, &time, NULL) != 0)
        die(EXIT_SYSTEM, "timerfd_settime: %s", strerror(errno));
    generator->armed_ns = wake;
}

static bool is_finished(const struct generator *generator)
{
    const struct options *options = generator->options;

    if (options->open_loop)
        return generator->next_arrival == options->arrival_count && generator->in_flight_count == 0;
    return generator->results.requests >= options->request_limit ||
           clock_now() >= generator->counted_to_ns;
}

/* Waits for one round of events and handles them. */
static void turn(struct generator *generator)
{
    struct epoll_event events[EVENTS_AT_ONCE];
    uint64_t expirations;

    arm_timer(generator);
    int count = epoll_wait(generator->epoll, events, EVENTS_AT_ONCE, -1);
    if (count < 0 && errno != EINTR)
        die(EXIT_SYSTEM, "epoll_wait: %s", strerror(errno));
    for (int index = 0; index < count; index++) {
        if (events[index].data.ptr)
            connection_handle(generator, events[index].data.ptr, events[index].events);
        else if (read(generator->timer, &expirations, sizeof expirations) > 0)
            generator->armed_ns = NEVER;
    }
    /* Only now, so that no connection is closed or reused while its event still waits above. */
    expire_requests(generator, clock_now());
    start_connections(generator);
    begin_warm_up(generator);
    begin_due_requests(generator);
}

static void set_up(struct generator *generator, const struct options *options)
{
    struct epoll_event timer_event = {.events = EPOLLIN, .data.ptr = NULL};
    struct rlimit files;

    generator->options = options;
    results_open(&generator->results,
                 options->open_loop ? options->arrival_count : options->request_limit);
    generator->connections = calloc(options->connections, sizeof *generator->connections);
    generator->epoll = epoll_create1(EPOLL_CLOEXEC);
    generator->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (!generator->connections || generator->epoll < 0 || generator->timer < 0 ||
        epoll_ctl(generator->epoll, EPOLL_CTL_ADD, generator->timer, &timer_event) != 0)
        die(EXIT_SYSTEM, "set-up: %s", strerror(errno));
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur < options->connections + 16)
        die(EXIT_USAGE, "--connections %zu: the limit of open files is too low",
            options->connections);
    generator->idle = (struct place){&generator->idle, &generator->idle};
    generator->in_flight = (struct place){&generator->in_flight, &generator->in_flight};
    generator->resting = (struct place){&generator->resting, &generator->resting};
    for (size_t index = 0; index < options->connections; index++) {
        struct place *place = &generator->connections[index].place;
        *place = (struct place){place, place};
        move_last(place, &generator->idle);
    }
    generator->armed_ns = NEVER;
    generator->start_cpu_seconds = cpu_seconds();
    generator->start_ns = clock_now();
    if (options->open_loop || options->warm_up_ns == 0)
        set_counted_time(generator, generator->start_ns);
    else
        generator->counted_from_ns = generator->counted_to_ns = NEVER;
}

static double counted_seconds(const struct generator *generator)
{
    const struct options *options = generator->options;
    uint64_t end = generator->last_end_ns;

    if (options->open_loop ? end < generator->counted_to_ns
                           : generator->results.requests < options->request_limit)
        end = generator->counted_to_ns;
    return (double)(end - generator->counted_from_ns) / (double)NANOSECONDS_PER_SECOND;
}

/* The share of one core that the generator itself has used, the warm-up included. */
static double cpu_share(const struct generator *generator)
{
    double wall = (double)(clock_now() - generator->start_ns) / (double)NANOSECONDS_PER_SECOND;

    return (cpu_seconds() - generator->start_cpu_seconds) / wall;
}

int main(int argument_count, char **arguments)
{
    struct options options;
    struct generator generator = {0};

    options_read(&options, argument_count, arguments);
    set_up(&generator, &options);
    while (!is_finished(&generator))
        turn(&generator);
    double share = cpu_share(&generator);
    if (options.latencies_path)
        results_write_latencies(&generator.results, options.latencies_path);
    results_print(&generator.results, stdout, counted_seconds(&generator), share);
    return EXIT_SUCCESS;
}
