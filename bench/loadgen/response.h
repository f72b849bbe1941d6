/* Reads HTTP/1.x responses piece by piece: bytes go in, framing comes out. Never sees a socket. */
#ifndef LOADGEN_RESPONSE_H
#define LOADGEN_RESPONSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Long enough for every header that decides about framing; longer lines are read but not kept. */
enum { RESPONSE_LINE_LIMIT = 512, RESPONSE_HEAD_LIMIT = 65536, STATUS_LIMIT = 1000 };

enum response_progress { RESPONSE_INCOMPLETE, RESPONSE_COMPLETE, RESPONSE_MALFORMED };

enum response_part {
    PART_STATUS_LINE,
    PART_HEADER,
    PART_BODY_OF_LENGTH,
    PART_BODY_TO_END,
    PART_CHUNK_SIZE,
    PART_CHUNK_DATA,
    PART_CHUNK_END,
    PART_TRAILER,
};

struct response {
    enum response_part part;
    int status;
    bool keep_alive;
    bool encoded; /* there is a transfer coding, so Content-Length means nothing */
    bool chunked; /* and it is chunked; any other lasts until the stream ends */
    bool has_length;
    uint64_t length;
    uint64_t remaining; /* bytes of the body, or of the present chunk, still to come */
    size_t head_bytes;
    size_t line_length;
    bool line_cut;
    char line[RESPONSE_LINE_LIMIT];
};

void response_begin(struct response *response);

/* Takes bytes until the response is complete or the bytes run out; `used` says how many it took. */
enum response_progress response_feed(struct response *response, const char *data, size_t length,
                                     size_t *used);

/* Whether the end of the stream was the end of the response, too. */
bool response_ends_with_stream(const struct response *response);

#endif
