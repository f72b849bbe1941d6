/* What is sent and when: requests out of body files, due times out of a file or a seed. */
#define _GNU_SOURCE
#include "workload.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"

uint64_t nanoseconds(double seconds)
{
    return (uint64_t)llround(seconds * (double)NANOSECONDS_PER_SECOND);
}

static void *allocate(size_t size)
{
    void *memory = malloc(size > 0 ? size : 1);

    if (!memory)
        die(EXIT_SYSTEM, "no memory for %zu bytes", size);
    return memory;
}

/* The whole file, with a NUL behind it. */
static struct request read_file(const char *name, const char *path)
{
    FILE *file = fopen(path, "rb");
    long size = -1;

    if (!file || fseek(file, 0, SEEK_END) != 0 || (size = ftell(file)) < 0 ||
        fseek(file, 0, SEEK_SET) != 0)
        die(EXIT_USAGE, "--%s %s: %s", name, path, strerror(errno));
    if (size > INPUT_FILE_LIMIT)
        die(EXIT_USAGE, "--%s %s: larger than %d bytes", name, path, INPUT_FILE_LIMIT);
    struct request content = {.data = allocate((size_t)size + 1), .length = (size_t)size};
    if (fread(content.data, 1, content.length, file) != content.length)
        die(EXIT_USAGE, "--%s %s: cannot be read", name, path);
    content.data[content.length] = '\0';
    fclose(file);
    return content;
}

static struct request build_request(const struct arguments *given, const char *body, size_t length)
{
    char *head;
    char size[48] = "";

    if (length > 0 || strcmp(given->method, "POST") == 0)
        snprintf(size, sizeof size, "Content-Length: %zu\r\n", length);
    int head_length = asprintf(&head, "%s %s HTTP/1.1\r\nHost: %s:%" PRIu64 "\r\n%s%s\r\n",
                               given->method, given->path, given->host, given->port,
                               given->headers ? given->headers : "", size);
    if (head_length < 0)
        die(EXIT_SYSTEM, "no memory for a request");
    struct request request = {.length = (size_t)head_length + length};
    request.data = allocate(request.length);
    memcpy(request.data, head, (size_t)head_length);
    if (length > 0)
        memcpy(request.data + head_length, body, length);
    free(head);
    return request;
}

/* The length at the front of a framed body, or an end of the process where the frame is broken. */
static size_t frame_length(const char *path, const struct request *content, size_t offset)
{
    const unsigned char *bytes = (const unsigned char *)content->data + offset;
    size_t left = content->length - offset;

    if (left < 4)
        die(EXIT_USAGE, "--bodies %s: %zu bytes too many at the end", path, left);
    size_t length = bytes[0] | bytes[1] << 8 | bytes[2] << 16 | (size_t)bytes[3] << 24;
    if (length > left - 4)
        die(EXIT_USAGE, "--bodies %s: the body at byte %zu is cut short", path, offset);
    return length;
}

void build_requests(struct options *options, const struct arguments *given)
{
    struct request content = {0};
    size_t count = 0;

    if (given->body)
        content = read_file("body", given->body);
    if (!given->bodies) {
        options->requests = allocate(sizeof *options->requests);
        options->requests[0] = build_request(given, content.data, content.length);
        options->request_count = 1;
        free(content.data);
        return;
    }
    content = read_file("bodies", given->bodies);
    for (size_t at = 0; at < content.length; count++)
        at += 4 + frame_length(given->bodies, &content, at);
    if (count == 0)
        die(EXIT_USAGE, "--bodies %s: no body in it", given->bodies);
    options->requests = allocate(count * sizeof *options->requests);
    options->request_count = count;
    for (size_t at = 0, index = 0; index < count; index++) {
        size_t length = frame_length(given->bodies, &content, at);
        options->requests[index] = build_request(given, content.data + at + 4, length);
        at += 4 + length;
    }
    free(content.data);
}

/* SplitMix64 (Steele, Lea and Flood 2014): the same arrivals from the same seed everywhere. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t mixed = *state += UINT64_C(0x9e3779b97f4a7c15);

    mixed = (mixed ^ mixed >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    mixed = (mixed ^ mixed >> 27) * UINT64_C(0x94d049bb133111eb);
    return mixed ^ mixed >> 31;
}

void draw_arrivals(struct options *options, const struct arguments *given)
{
    double end = given->duration > 0.0 ? given->warm_up + given->duration : SECONDS_LIMIT;
    double mean_gap = 1.0 / given->rate;
    uint64_t state = given->seed;
    uint64_t counted = 0;
    double expected = given->rate * given->warm_up +
                      fmin(given->rate * (end - given->warm_up), (double)options->request_limit);

    if (expected > REQUESTS_LIMIT / 2.0)
        die(EXIT_USAGE, "--rate %g: more than %d arrivals in all", given->rate, REQUESTS_LIMIT / 2);
    /* Eight standard deviations of room: a Poisson count does not reach it. */
    size_t room = (size_t)(expected + 8.0 * sqrt(expected) + 16.0);
    options->arrivals = allocate(room * sizeof *options->arrivals);
    for (double time = 0.0; options->arrival_count < room; options->arrival_count++) {
        double uniform = ((double)(next_random(&state) >> 11) + 1.0) * 0x1p-53; /* above 0 */
        time -= mean_gap * log(uniform);
        counted += time >= given->warm_up;
        if (time >= end || counted > options->request_limit)
            break;
        options->arrivals[options->arrival_count] = nanoseconds(time);
    }
}

void read_arrivals(struct options *options, const char *path)
{
    const uint64_t last_allowed = SECONDS_LIMIT * UINT64_C(1000000);
    struct request content = read_file("arrivals", path);
    uint64_t previous = 0;
    char *text = content.data;

    options->arrivals = allocate((content.length / 2 + 1) * sizeof *options->arrivals);
    for (text += strspn(text, " \r\n"); *text != '\0'; text += strspn(text, " \r\n")) {
        char *end;
        size_t number = options->arrival_count + 1;
        uint64_t offset = strtoull(text, &end, 10);

        if (!isdigit((unsigned char)*text) || !strchr(" \r\n", *end) || offset > last_allowed)
            die(EXIT_USAGE, "--arrivals %s: number %zu is not a whole number up to %" PRIu64, path,
                number, last_allowed);
        if (offset < previous)
            die(EXIT_USAGE, "--arrivals %s: number %zu is earlier than the one before", path,
                number);
        if (number > REQUESTS_LIMIT)
            die(EXIT_USAGE, "--arrivals %s: more than %d", path, REQUESTS_LIMIT);
        options->arrivals[options->arrival_count++] = offset * NANOSECONDS_PER_MICROSECOND;
        previous = offset;
        text = end;
    }
    if (options->arrival_count == 0)
        die(EXIT_USAGE, "--arrivals %s: no arrival in it", path);
    free(content.data);
}

