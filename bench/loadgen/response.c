/* Framing after RFC 9112, sections 4 to 7: what a client must know to find the response's end. */
#define _GNU_SOURCE
#include "response.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

void response_begin(struct response *response)
{
    /* The line buffer keeps its old bytes: clearing it would cost more than all the rest. */
    response->part = PART_STATUS_LINE;
    response->status = 0;
    response->keep_alive = true;
    response->chunked = response->encoded = response->has_length = false;
    response->length = response->remaining = 0;
    response->head_bytes = response->line_length = 0;
    response->line_cut = false;
}

/* Moves bytes up to the next line feed into the line buffer; true once the line is whole. */
static bool take_line(struct response *response, const char **position, const char *end)
{
    const char *start = *position;
    const char *feed = memchr(start, '\n', (size_t)(end - start));
    size_t length = (size_t)((feed ? feed : end) - start);
    size_t room = RESPONSE_LINE_LIMIT - 1 - response->line_length;
    size_t kept = length < room ? length : room;

    memcpy(response->line + response->line_length, start, kept);
    response->line_length += kept;
    response->line_cut |= kept < length;
    response->head_bytes += length + (feed ? 1 : 0);
    *position = feed ? feed + 1 : end;
    if (!feed)
        return false;
    if (response->line_length > 0 && response->line[response->line_length - 1] == '\r')
        response->line_length--;
    response->line[response->line_length] = '\0';
    return true;
}

static void next_line(struct response *response, enum response_part part)
{
    response->part = part;
    response->line_length = 0;
    response->line_cut = false;
}

static bool read_status_line(struct response *response)
{
    const char *line = response->line;
    const char *code = line + 9;

    if (strncmp(line, "HTTP/1.", 7) != 0 || (line[7] != '0' && line[7] != '1') || line[8] != ' ')
        return false;
    for (int digit = 0; digit < 3; digit++)
        if (!isdigit((unsigned char)code[digit]))
            return false;
    if ((code[3] != ' ' && code[3] != '\0') || code[0] == '0')
        return false;
    response->status = (code[0] - '0') * 100 + (code[1] - '0') * 10 + (code[2] - '0');
    response->keep_alive = line[7] == '1';
    return true;
}

static bool read_number(const char *text, unsigned base, uint64_t *value)
{
    static const char digits[] = "0123456789abcdef";
    uint64_t number = 0;
    const char *start = text;

    for (; *text != '\0'; text++) {
        const char *digit = memchr(digits, tolower((unsigned char)*text), base);
        if (!digit || number > UINT64_MAX / base - 1)
            return false;
        number = number * base + (uint64_t)(digit - digits);
    }
    *value = number;
    return text > start;
}

/* Goes through a comma-separated list: cuts the next token out, or gives NULL after the last. */
static char *next_token(char **rest)
{
    char *token;

    while ((token = strsep(rest, ",")) != NULL) {
        token += strspn(token, " \t");
        token[strcspn(token, " \t")] = '\0';
        if (*token != '\0')
            return token;
    }
    return NULL;
}

static void read_connection(struct response *response, char *value)
{
    for (char *token; (token = next_token(&value)) != NULL;) {
        if (strcasecmp(token, "close") == 0)
            response->keep_alive = false;
        else if (strcasecmp(token, "keep-alive") == 0)
            response->keep_alive = true;
    }
}

static void read_transfer_encoding(struct response *response, char *value)
{
    response->encoded = true;
    for (char *token; (token = next_token(&value)) != NULL;)
        response->chunked = strcasecmp(token, "chunked") == 0; /* only the last coding frames */
}

static bool read_header(struct response *response)
{
    char *colon = strchr(response->line, ':');
    uint64_t length;

    if (!colon || colon == response->line || isspace((unsigned char)response->line[0]))
        return response->line_cut; /* no header that we need has a name that long */
    *colon = '\0';
    char *value = colon + 1 + strspn(colon + 1, " \t");
    for (size_t last = strlen(value); last > 0 && strchr(" \t", value[last - 1]); last--)
        value[last - 1] = '\0';

    bool is_length = strcasecmp(response->line, "Content-Length") == 0;
    bool is_coding = strcasecmp(response->line, "Transfer-Encoding") == 0;
    bool is_connection = strcasecmp(response->line, "Connection") == 0;
    if ((is_length || is_coding || is_connection) && response->line_cut)
        return false;
    if (is_connection)
        read_connection(response, value);
    if (is_coding)
        read_transfer_encoding(response, value);
    if (is_length) {
        if (!read_number(value, 10, &length) ||
            (response->has_length && length != response->length))
            return false;
        response->has_length = true;
        response->length = length;
    }
    return true;
}

static enum response_progress end_head(struct response *response)
{
    if (response->status == 101)
        return RESPONSE_MALFORMED; /* nobody asked for another protocol */
    if (response->status < 200) {
        response_begin(response); /* an interim response; the real one follows */
        return RESPONSE_INCOMPLETE;
    }
    if (response->status == 204 || response->status == 304)
        return RESPONSE_COMPLETE;
    if (response->chunked) {
        next_line(response, PART_CHUNK_SIZE);
        return RESPONSE_INCOMPLETE;
    }
    if (response->has_length && !response->encoded) {
        response->part = PART_BODY_OF_LENGTH;
        response->remaining = response->length;
        return response->length == 0 ? RESPONSE_COMPLETE : RESPONSE_INCOMPLETE;
    }
    response->part = PART_BODY_TO_END;
    response->keep_alive = false;
    return RESPONSE_INCOMPLETE;
}

static enum response_progress end_line(struct response *response)
{
    switch (response->part) {
    case PART_STATUS_LINE:
        if (response->line_cut || !read_status_line(response))
            return RESPONSE_MALFORMED;
        next_line(response, PART_HEADER);
        return RESPONSE_INCOMPLETE;
    case PART_HEADER:
        if (response->line_length == 0)
            return end_head(response);
        if (!read_header(response))
            return RESPONSE_MALFORMED;
        next_line(response, PART_HEADER);
        return RESPONSE_INCOMPLETE;
    case PART_CHUNK_SIZE:
        response->line[strcspn(response->line, "; \t")] = '\0'; /* extensions mean nothing to us */
        if (response->line_cut || !read_number(response->line, 16, &response->remaining))
            return RESPONSE_MALFORMED;
        next_line(response, response->remaining > 0 ? PART_CHUNK_DATA : PART_TRAILER);
        response->head_bytes = 0;
        return RESPONSE_INCOMPLETE;
    case PART_CHUNK_END:
        if (response->line_length > 0)
            return RESPONSE_MALFORMED;
        next_line(response, PART_CHUNK_SIZE);
        return RESPONSE_INCOMPLETE;
    case PART_TRAILER:
        if (response->line_length == 0)
            return RESPONSE_COMPLETE;
        next_line(response, PART_TRAILER);
        return RESPONSE_INCOMPLETE;
    default:
        return RESPONSE_MALFORMED; /* bodies have no lines */
    }
}

/* Skips body bytes; a body of known length ends here, a chunk leads to its closing line. */
static enum response_progress skip_body(struct response *response, const char **position,
                                        const char *end)
{
    uint64_t available = (uint64_t)(end - *position);
    uint64_t taken = available < response->remaining ? available : response->remaining;

    *position += taken;
    response->remaining -= taken;
    if (response->remaining > 0)
        return RESPONSE_INCOMPLETE;
    if (response->part == PART_BODY_OF_LENGTH)
        return RESPONSE_COMPLETE;
    next_line(response, PART_CHUNK_END);
    return RESPONSE_INCOMPLETE;
}

enum response_progress response_feed(struct response *response, const char *data, size_t length,
                                     size_t *used)
{
    enum response_progress progress = RESPONSE_INCOMPLETE;
    const char *position = data;
    const char *end = data + length;

    while (position < end && progress == RESPONSE_INCOMPLETE) {
        if (response->part == PART_BODY_TO_END)
            position = end;
        else if (response->part == PART_BODY_OF_LENGTH || response->part == PART_CHUNK_DATA)
            progress = skip_body(response, &position, end);
        else if (take_line(response, &position, end))
            progress = end_line(response);
        if (response->head_bytes > RESPONSE_HEAD_LIMIT)
            progress = RESPONSE_MALFORMED;
    }
    *used = (size_t)(position - data);
    return progress;
}

bool response_ends_with_stream(const struct response *response)
{
    return response->part == PART_BODY_TO_END;
}
