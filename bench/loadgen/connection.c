/*
 * One connection: opens it, sends the request it holds, receives the answer. When to do so and what
 * the outcome means is decided elsewhere.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common.h"
#include "generator.h"

enum { RECEIVE_BYTES = 256 * 1024 };

static char received[RECEIVE_BYTES];

static void set_interest(struct generator *generator, struct connection *connection,
                         uint32_t interest)
{
    struct epoll_event event = {.events = interest, .data.ptr = connection};

    if (connection->interest == interest)
        return;
    int operation = connection->interest == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    if (epoll_ctl(generator->epoll, operation, connection->descriptor, &event) != 0)
        die(EXIT_SYSTEM, "epoll_ctl: %s", strerror(errno));
    connection->interest = interest;
}

void connection_close(struct connection *connection)
{
    if (connection->state != LINK_CLOSED)
        close(connection->descriptor);
    connection->state = LINK_CLOSED;
    connection->interest = 0;
}

static void send_request(struct generator *generator, struct connection *connection)
{
    const struct request *request = connection->request;

    while (connection->sent < request->length && !connection->send_failed) {
        ssize_t count = send(connection->descriptor, request->data + connection->sent,
                             request->length - connection->sent, MSG_NOSIGNAL);
        if (count >= 0)
            connection->sent += (size_t)count;
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            break;
        else
            connection->send_failed = true; /* the server may have answered before it closed */
    }
    bool waits = connection->sent < request->length && !connection->send_failed;
    set_interest(generator, connection, waits ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

static void open_link(struct generator *generator, struct connection *connection)
{
    const struct sockaddr_in *address = &generator->options->address;
    int on = 1;

    connection->descriptor = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (connection->descriptor < 0)
        die(EXIT_SYSTEM, "socket: %s", strerror(errno));
    setsockopt(connection->descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    connection->state = LINK_CONNECTING;
    if (connect(connection->descriptor, (const struct sockaddr *)address, sizeof *address) == 0)
        connection->state = LINK_OPEN;
    else if (errno != EINPROGRESS)
        settle_failure(generator, connection, FAILURE_CONNECT);
    else
        set_interest(generator, connection, EPOLLIN | EPOLLOUT);
}

void connection_send(struct generator *generator, struct connection *connection)
{
    connection->sent = 0;
    connection->send_failed = false;
    connection->bytes = 0;
    response_begin(&connection->response);
    if (connection->state == LINK_CLOSED)
        open_link(generator, connection);
    if (connection->state == LINK_OPEN)
        send_request(generator, connection);
}

/* The stream ended or broke. An idle connection is opened again when it is needed. */
static void lose_link(struct generator *generator, struct connection *connection, bool orderly)
{
    connection_close(connection);
    if (!connection->request)
        return;
    if (orderly && response_ends_with_stream(&connection->response))
        settle_answer(generator, connection);
    else
        settle_failure(generator, connection, FAILURE_RESET);
}

static void receive(struct generator *generator, struct connection *connection)
{
    for (;;) {
        size_t used;
        ssize_t count = recv(connection->descriptor, received, sizeof received, 0);

        if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (count <= 0 || !connection->request) { /* unasked bytes break the framing, too */
            lose_link(generator, connection, count == 0);
            return;
        }
        enum response_progress progress =
            response_feed(&connection->response, received, (size_t)count, &used);
        connection->bytes += used;
        if (progress == RESPONSE_MALFORMED) {
            settle_failure(generator, connection, FAILURE_PROTOCOL);
            return;
        }
        if (progress == RESPONSE_COMPLETE) {
            if (!connection->response.keep_alive || used < (size_t)count ||
                connection->sent < connection->request->length)
                connection_close(connection);
            settle_answer(generator, connection);
            return;
        }
        if ((size_t)count < sizeof received)
            return; /* the socket is empty; epoll tells when there is more */
    }
}

void connection_handle(struct generator *generator, struct connection *connection, uint32_t events)
{
    int error = 0;
    socklen_t length = sizeof error;

    if (connection->state == LINK_CONNECTING) {
        getsockopt(connection->descriptor, SOL_SOCKET, SO_ERROR, &error, &length);
        if (error != 0) {
            settle_failure(generator, connection, FAILURE_CONNECT);
            return;
        }
        connection->state = LINK_OPEN;
    }
    if (connection->request && events & EPOLLOUT)
        send_request(generator, connection);
    if (events & ~(uint32_t)EPOLLOUT)
        receive(generator, connection);
}
