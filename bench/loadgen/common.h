/* What every part of the load generator shares: units of time and the way to give up. */
#ifndef LOADGEN_COMMON_H
#define LOADGEN_COMMON_H

#include <stdint.h>

#define NANOSECONDS_PER_SECOND UINT64_C(1000000000)
#define NANOSECONDS_PER_MICROSECOND UINT64_C(1000)

/* Exit codes: the caller can tell a mistake of his from a failing machine. */
enum { EXIT_SYSTEM = 1, EXIT_USAGE = 2 };

/* Prints one line on standard error and ends the process with `code`. */
_Noreturn void die(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
