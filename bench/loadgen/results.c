/* Latencies are kept one by one, so percentiles are exact and not read off a histogram. */
#define _GNU_SOURCE
#include "results.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common.h"

static const char *const FAILURE_NAMES[FAILURE_KINDS] = {
    [FAILURE_CONNECT] = "connect",
    [FAILURE_RESET] = "reset",
    [FAILURE_TIMEOUT] = "timeout",
    [FAILURE_PROTOCOL] = "protocol",
};

static const struct {
    const char *name;
    uint64_t permille;
} PERCENTILES[] = {{"p50", 500}, {"p90", 900}, {"p99", 990}, {"p99.9", 999}, {"max", 1000}};

void results_open(struct results *results, size_t capacity)
{
    memset(results, 0, sizeof *results);
    results->capacity = capacity;
    /* An array that grew while the load runs would stop the load for each copy. */
    results->latencies = mmap(NULL, (capacity + 1) * sizeof *results->latencies,
                              PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (results->latencies == MAP_FAILED)
        die(EXIT_SYSTEM, "no memory for %zu latencies: %s", capacity, strerror(errno));
}

void results_answer(struct results *results, int status, uint64_t nanoseconds, uint64_t bytes)
{
    uint64_t microseconds =
        (nanoseconds + NANOSECONDS_PER_MICROSECOND / 2) / NANOSECONDS_PER_MICROSECOND;

    results->requests++;
    results->statuses[status]++;
    results->bytes += bytes;
    if (status < 200 || status > 299 || results->ok == results->capacity)
        return;
    results->latencies[results->ok++] =
        microseconds > UINT32_MAX ? UINT32_MAX : (uint32_t)microseconds;
}

void results_failure(struct results *results, enum failure failure)
{
    results->requests++;
    results->failures[failure]++;
}

void results_write_latencies(const struct results *results, const char *path)
{
    FILE *file = fopen(path, "wb");

    if (!file || fwrite(results->latencies, sizeof *results->latencies, results->ok, file) !=
                     results->ok ||
        fclose(file) != 0)
        die(EXIT_SYSTEM, "--latencies %s cannot be written: %s", path, strerror(errno));
}

static int ascending(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left;
    uint32_t b = *(const uint32_t *)right;

    return (a > b) - (a < b);
}

/* Nearest rank: the smallest latency that `permille` of all latencies do not exceed. */
static uint32_t percentile(const struct results *results, uint64_t permille)
{
    return results->latencies[(permille * results->ok + 999) / 1000 - 1];
}

static void print_latency(struct results *results, FILE *output)
{
    double sum = 0.0;

    if (results->ok == 0) {
        fputs("null", output);
        return;
    }
    qsort(results->latencies, results->ok, sizeof *results->latencies, ascending);
    for (uint64_t index = 0; index < results->ok; index++)
        sum += results->latencies[index];
    fprintf(output, "{\"mean\": %.1f", sum / (double)results->ok);
    for (size_t index = 0; index < sizeof PERCENTILES / sizeof *PERCENTILES; index++)
        fprintf(output, ", \"%s\": %" PRIu32, PERCENTILES[index].name,
                percentile(results, PERCENTILES[index].permille));
    fputs("}", output);
}

void results_print(struct results *results, FILE *output, double seconds, double cpu_share)
{
    const char *separator = "";

    fprintf(output, "{\"requests\": %" PRIu64 ", \"ok\": %" PRIu64 ", \"statuses\": {",
            results->requests, results->ok);
    for (int status = 0; status < STATUS_LIMIT; status++) {
        if (results->statuses[status] == 0)
            continue;
        fprintf(output, "%s\"%d\": %" PRIu64, separator, status, results->statuses[status]);
        separator = ", ";
    }
    fputs("}, \"errors\": {", output);
    for (int kind = 0; kind < FAILURE_KINDS; kind++)
        fprintf(output, "%s\"%s\": %" PRIu64, kind > 0 ? ", " : "", FAILURE_NAMES[kind],
                results->failures[kind]);
    fprintf(output, "}, \"seconds\": %.6f, \"rate\": %.3f, \"latency_microseconds\": ", seconds,
            seconds > 0.0 ? (double)results->ok / seconds : 0.0);
    print_latency(results, output);
    fprintf(output, ", \"late_sends\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"cpu_share\": %.4f}\n",
            results->late_sends, results->bytes, cpu_share);
    if (fflush(output) != 0)
        die(EXIT_SYSTEM, "the result cannot be written: %s", strerror(errno));
}
