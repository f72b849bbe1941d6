/* The command line: names, ranges and which options exclude each other. */
#define _GNU_SOURCE
#include "options.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common.h"
#include "workload.h"

static const char USAGE[] =
    "usage: loadgen --port PORT [options]\n"
    "  --host ADDRESS         numeric loopback address (127.0.0.1)\n"
    "  --method GET|POST      (POST)\n"
    "  --path PATH            (/)\n"
    "  --header 'NAME: VALUE' repeatable; Host and the body's length are set already\n"
    "  --body FILE            the body of every request\n"
    "  --bodies FILE          bodies taken in turn: 32-bit little-endian length, bytes, and so on\n"
    "  --connections N        at most this many at a time (1)\n"
    "  --timeout SECONDS      per request, open loop: from its scheduled time (10)\n"
    "  --warm-up SECONDS      load that is not counted (0); closed loop: after all connections'\n"
    "                         first answers\n"
    "  --latencies FILE       write the raw latencies: native uint32 microseconds\n"
    "closed loop: each connection sends when it has its answer\n"
    "  --duration SECONDS, --requests N, or whichever of both comes first\n"
    "open loop: requests leave at given times\n"
    "  --rate PER_SECOND      Poisson arrivals, for --duration or --requests\n"
    "  --seed N               of the arrivals (0)\n"
    "  --arrivals FILE        one offset from the start per line, microseconds, ascending\n";

static uint64_t read_integer(const char *name, const char *text, uint64_t minimum, uint64_t maximum)
{
    char *end;

    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end != '\0' || errno != 0 || value < minimum ||
        value > maximum)
        die(EXIT_USAGE, "--%s %s: not a whole number from %" PRIu64 " to %" PRIu64, name, text,
            minimum, maximum);
    return value;
}

static double read_decimal(const char *name, const char *text, double minimum, double maximum)
{
    char *end;
    double value = strtod(text, &end);

    if (end == text || *end != '\0' || !(value >= minimum && value <= maximum))
        die(EXIT_USAGE, "--%s %s: not a number from %g to %g", name, text, minimum, maximum);
    return value;
}

static void add_header(struct arguments *given, const char *line)
{
    static const char *const OURS[] = {"Host", "Content-Length", "Transfer-Encoding"};
    size_t name_length = strcspn(line, ":");
    char *headers;

    if (line[name_length] == '\0' || name_length == 0 || strcspn(line, " \t") < name_length)
        die(EXIT_USAGE, "--header %s: not of the form NAME: VALUE", line);
    for (const char *byte = line; *byte != '\0'; byte++)
        if (iscntrl((unsigned char)*byte) && *byte != '\t')
            die(EXIT_USAGE, "--header: a control character in it");
    for (size_t index = 0; index < sizeof OURS / sizeof *OURS; index++)
        if (strlen(OURS[index]) == name_length && strncasecmp(line, OURS[index], name_length) == 0)
            die(EXIT_USAGE, "--header %s: the generator sets this header itself", line);
    if (asprintf(&headers, "%s%s\r\n", given->headers ? given->headers : "", line) < 0)
        die(EXIT_SYSTEM, "no memory for the headers");
    free(given->headers);
    given->headers = headers;
}

static void read_argument(struct arguments *given, struct options *options, const char *name,
                          const char *text)
{
    if (strcmp(name, "host") == 0)
        given->host = text;
    else if (strcmp(name, "port") == 0)
        given->port = read_integer(name, text, 1, 65535);
    else if (strcmp(name, "method") == 0)
        given->method = text;
    else if (strcmp(name, "path") == 0)
        given->path = text;
    else if (strcmp(name, "header") == 0)
        add_header(given, text);
    else if (strcmp(name, "body") == 0)
        given->body = text;
    else if (strcmp(name, "bodies") == 0)
        given->bodies = text;
    else if (strcmp(name, "connections") == 0)
        given->connections = read_integer(name, text, 1, CONNECTIONS_LIMIT);
    else if (strcmp(name, "timeout") == 0)
        given->timeout = read_decimal(name, text, 0.001, TIMEOUT_SECONDS_LIMIT);
    else if (strcmp(name, "warm-up") == 0)
        given->warm_up = read_decimal(name, text, 0.0, SECONDS_LIMIT);
    else if (strcmp(name, "duration") == 0)
        given->duration = read_decimal(name, text, 0.001, SECONDS_LIMIT);
    else if (strcmp(name, "requests") == 0)
        given->requests = read_integer(name, text, 1, REQUESTS_LIMIT);
    else if (strcmp(name, "rate") == 0)
        given->rate = read_decimal(name, text, 0.001, 1e6);
    else if (strcmp(name, "arrivals") == 0)
        given->arrivals = text;
    else if (strcmp(name, "latencies") == 0)
        options->latencies_path = text;
    else if (strcmp(name, "seed") == 0) {
        given->seed = read_integer(name, text, 0, UINT64_MAX);
        given->has_seed = true;
    }
}

static void check_arguments(const struct arguments *given)
{
    bool bounded = given->duration > 0.0 || given->requests > 0;

    if (given->port == 0)
        die(EXIT_USAGE, "--port is missing");
    if (strcmp(given->method, "GET") != 0 && strcmp(given->method, "POST") != 0)
        die(EXIT_USAGE, "--method %s: neither GET nor POST", given->method);
    if (given->path[0] != '/')
        die(EXIT_USAGE, "--path %s: does not begin with /", given->path);
    for (const char *byte = given->path; *byte != '\0'; byte++)
        if (!isgraph((unsigned char)*byte))
            die(EXIT_USAGE, "--path: a byte in it that is not printable ASCII");
    if (given->body && given->bodies)
        die(EXIT_USAGE, "--body and --bodies exclude each other");
    if (given->rate > 0.0 && given->arrivals)
        die(EXIT_USAGE, "--rate and --arrivals exclude each other");
    if (given->arrivals && bounded)
        die(EXIT_USAGE, "--arrivals says itself when to end: no --duration, no --requests");
    if (given->has_seed && given->rate == 0.0)
        die(EXIT_USAGE, "--seed is for --rate");
    if (!given->arrivals && !bounded)
        die(EXIT_USAGE, "--duration or --requests is missing");
}

static void read_address(struct options *options, const struct arguments *given)
{
    struct sockaddr_in *address = &options->address;

    address->sin_family = AF_INET;
    address->sin_port = htons((uint16_t)given->port);
    if (inet_pton(AF_INET, given->host, &address->sin_addr) != 1 ||
        ntohl(address->sin_addr.s_addr) >> 24 != IN_LOOPBACKNET)
        die(EXIT_USAGE, "--host %s: not a numeric loopback address (127.0.0.0/8)", given->host);
}

void options_read(struct options *options, int argument_count, char **arguments)
{
    static const struct option NAMES[] = {
        {"host", required_argument, NULL, 0},      {"port", required_argument, NULL, 0},
        {"method", required_argument, NULL, 0},    {"path", required_argument, NULL, 0},
        {"header", required_argument, NULL, 0},    {"body", required_argument, NULL, 0},
        {"bodies", required_argument, NULL, 0},    {"connections", required_argument, NULL, 0},
        {"timeout", required_argument, NULL, 0},   {"warm-up", required_argument, NULL, 0},
        {"duration", required_argument, NULL, 0},  {"requests", required_argument, NULL, 0},
        {"rate", required_argument, NULL, 0},      {"seed", required_argument, NULL, 0},
        {"arrivals", required_argument, NULL, 0},  {"latencies", required_argument, NULL, 0},
        {"help", no_argument, NULL, 'h'},          {NULL, 0, NULL, 0},
    };
    struct arguments given = {.host = "127.0.0.1", .method = "POST", .path = "/",
                              .connections = 1, .timeout = 10.0};
    int index = 0;

    memset(options, 0, sizeof *options);
    for (int found; (found = getopt_long(argument_count, arguments, "h", NAMES, &index)) != -1;) {
        if (found == 'h') {
            fputs(USAGE, stdout);
            exit(EXIT_SUCCESS);
        }
        if (found != 0)
            die(EXIT_USAGE, "try --help"); /* getopt has named the mistake */
        read_argument(&given, options, NAMES[index].name, optarg);
    }
    if (optind < argument_count)
        die(EXIT_USAGE, "%s: not an option", arguments[optind]);
    check_arguments(&given);
    read_address(options, &given);
    options->connections = given.connections;
    options->warm_up_ns = nanoseconds(given.warm_up);
    options->timeout_ns = nanoseconds(given.timeout);
    options->request_limit = given.requests > 0 ? given.requests : REQUESTS_LIMIT;
    options->duration_ns = nanoseconds(given.duration);
    options->open_loop = given.rate > 0.0 || given.arrivals;
    if (!options->open_loop && given.duration == 0.0)
        options->duration_ns = SECONDS_LIMIT * NANOSECONDS_PER_SECOND;
    if (given.arrivals)
        read_arrivals(options, given.arrivals);
    else if (options->open_loop)
        draw_arrivals(options, &given);
    build_requests(options, &given);
    free(given.headers);
}
