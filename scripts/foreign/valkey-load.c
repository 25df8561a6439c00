// A load of GETs or SETs for a valkey server, by RDMA or TCP, through libvalkey's own connections.
//
//   valkey-load rdma|tcp HOST PORT get|set CLIENTS BYTES SECONDS
//
// One thread with epoll, one request under way on each connection: what valkey-benchmark does, which speaks RDMA only in trees
// newer than the server's. Every answer is compared with what is expected. Prints one line of JSON: rate in answers a second,
// median and 99th percentile of a request in microseconds. Ends with 1 if a connection or an answer is wrong.

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>

#include <valkey/rdma.h>
#include <valkey/valkey.h>

// The start of a measurement that is left out, in seconds.
#define WARM_UP 0.5
// The longest that nothing may come, in seconds.
#define SILENCE 10
// Times are counted by steps of a sixteenth of a power of two: 3 % of the time, at most 2^40 ns.
#define STEPS 16
#define TIMES (40 * STEPS)

struct client {
    valkeyContext *context;
    uint64_t posted;
    // A request is under way. libvalkey's read waits until there is data, also where it was an old send's completion that made
    // the descriptor readable.
    int waiting;
};

static char *request;
static size_t request_bytes;
static char *value;
static size_t value_bytes;
static int is_get;
static uint64_t times[TIMES];

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void fail(const char *what, const char *why) {
    fprintf(stderr, "valkey-load: %s: %s\n", what, why && *why ? why : "no reason given");
    exit(1);
}

static void count_time(uint64_t time) {
    int power = time < STEPS ? 0 : 63 - __builtin_clzll(time);
    uint64_t part = power < 4 ? 0 : (time >> (power - 4)) - STEPS;
    uint64_t place = (uint64_t)power * STEPS + part;
    times[place < TIMES ? place : TIMES - 1]++;
}

// The time in microseconds below which that part of the requests lies.
static double time_of(double part, uint64_t requests) {
    uint64_t seen = 0;
    for (int place = 0; place < TIMES; place++) {
        seen += times[place];
        if (seen && seen >= part * requests)
            return (double)((uint64_t)1 << (place / STEPS)) * (1 + (place % STEPS + 0.5) / STEPS) / 1000;
    }
    return 0;
}

static valkeyContext *connect_to(int by_rdma, const char *host, int port) {
    valkeyOptions options = {0};
    if (by_rdma)
        VALKEY_OPTIONS_SET_RDMA(&options, host, port);
    else
        VALKEY_OPTIONS_SET_TCP(&options, host, port);
    struct timeval limit = {.tv_sec = 5};
    options.connect_timeout = &limit;
    valkeyContext *context = valkeyConnectWithOptions(&options);
    if (!context || context->err)
        fail("connection", context ? context->errstr : "no memory");
    struct timeval silence = {.tv_sec = SILENCE};
    if (valkeySetTimeout(context, silence) != VALKEY_OK)
        fail("valkeySetTimeout", context->errstr);
    return context;
}

static void post(struct client *client) {
    valkeyContext *context = client->context;
    client->posted = now();
    client->waiting = 1;
    if (valkeyAppendFormattedCommand(context, request, request_bytes) != VALKEY_OK)
        fail("request", context->errstr);
    int done = 0;
    while (!done)
        if (valkeyBufferWrite(context, &done) != VALKEY_OK)
            fail("write", context->errstr);
}

static void judge(const valkeyReply *answer) {
    if (is_get) {
        if (answer->type != VALKEY_REPLY_STRING || answer->len != value_bytes || memcmp(answer->str, value, value_bytes))
            fail("answer", "GET gave another value");
    } else if (answer->type != VALKEY_REPLY_STATUS || strcmp(answer->str, "OK")) {
        fail("answer", answer->str);
    }
}

// Reads what is there; whether it was a whole answer.
static int answered(struct client *client) {
    valkeyContext *context = client->context;
    if (valkeyBufferRead(context) != VALKEY_OK)
        fail("read", context->errstr);
    void *answer = NULL;
    if (valkeyGetReplyFromReader(context, &answer) != VALKEY_OK)
        fail("answer", context->errstr);
    if (!answer)
        return 0;
    judge(answer);
    freeReplyObject(answer);
    return 1;
}

// Plays for that long. How many requests were answered; their times are in `times`.
static uint64_t play(int set, struct client *clients, int count, double seconds) {
    memset(times, 0, sizeof times);
    uint64_t until = now() + (uint64_t)(seconds * 1e9), answers = 0;
    int waiting = count;
    for (int i = 0; i < count; i++)
        post(&clients[i]);
    while (waiting) {
        struct epoll_event events[64];
        int found = epoll_wait(set, events, 64, 1000 * SILENCE);
        if (found < 0 && errno == EINTR)
            continue;
        if (found <= 0)
            fail("epoll_wait", found ? strerror(errno) : "no answer for 10 s");
        for (int i = 0; i < found; i++) {
            struct client *client = events[i].data.ptr;
            if (!client->waiting || !answered(client))
                continue;
            client->waiting = 0;
            uint64_t time = now();
            count_time(time - client->posted);
            answers++;
            if (time < until)
                post(client);
            else
                waiting--;
        }
    }
    return answers;
}

int main(int argc, char **argv) {
    if (argc != 8) {
        fprintf(stderr, "usage: valkey-load rdma|tcp HOST PORT get|set CLIENTS BYTES SECONDS\n");
        return 2;
    }
    int by_rdma = !strcmp(argv[1], "rdma"), port = atoi(argv[3]), count = atoi(argv[5]);
    is_get = !strcmp(argv[4], "get");
    value_bytes = strtoul(argv[6], NULL, 10);
    double seconds = strtod(argv[7], NULL);
    if (count < 1 || seconds <= 0)
        fail("arguments", "at least one client and some seconds");
    if (by_rdma && valkeyInitiateRdma() != VALKEY_OK)
        fail("libvalkey", "it was built without RDMA");

    value = malloc(value_bytes + 1);
    for (size_t i = 0; i < value_bytes; i++)
        value[i] = (char)('a' + i * 7 % 26);
    struct client *clients = calloc(count, sizeof *clients);
    int set = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < count; i++) {
        clients[i].context = connect_to(by_rdma, argv[2], port);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &clients[i]};
        if (epoll_ctl(set, EPOLL_CTL_ADD, clients[i].context->fd, &event))
            fail("epoll_ctl", strerror(errno));
    }
    valkeyReply *first = valkeyCommand(clients[0].context, "SET load %b", value, value_bytes);
    if (!first || first->type != VALKEY_REPLY_STATUS)
        fail("SET", first ? first->str : clients[0].context->errstr);
    freeReplyObject(first);
    request_bytes = is_get ? valkeyFormatCommand(&request, "GET load")
                           : valkeyFormatCommand(&request, "SET load %b", value, value_bytes);

    play(set, clients, count, WARM_UP);
    uint64_t began = now(), answers = play(set, clients, count, seconds);
    double took = (now() - began) / 1e9;
    printf("{\"rate\": %.0f, \"p50_us\": %.1f, \"p99_us\": %.1f}\n", answers / took, time_of(0.5, answers), time_of(0.99, answers));
    for (int i = 0; i < count; i++)
        valkeyFree(clients[i].context);
    return 0;
}
