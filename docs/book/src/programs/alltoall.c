/* All-to-all: N processes, each connected to every other, each sends its number to all.
 *
 *     gcc -o alltoall alltoall.c -lrdmacm -libverbs
 *     ./alltoall RANK N          for every RANK from 0 to N - 1
 *
 * Rank r listens to port 7600 + r. It accepts a connection from every lower rank, then connects to every higher one: so of two
 * ranks always one listens and the other connects, and nobody waits for somebody who waits for him. */
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST 64
#define PORT 7600

static void check(int failed, const char *what)
{
    if (failed) {
        perror(what);
        exit(1);
    }
}

/* Room for one SEND and one RECV, each with a completion. */
static struct ibv_qp_init_attr queues(void)
{
    struct ibv_qp_init_attr attr = {0};
    attr.cap.max_send_wr = attr.cap.max_recv_wr = 1;
    attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
    attr.cap.max_inline_data = sizeof(int);
    attr.sq_sig_all = 1;
    return attr;
}

static struct rdma_addrinfo *resolve(int rank, int passive)
{
    struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP, .ai_flags = passive ? RAI_PASSIVE : 0}, *info;
    char port[16];
    snprintf(port, sizeof port, "%d", PORT + rank);
    check(rdma_getaddrinfo("127.0.0.1", port, &hints, &info), "rdma_getaddrinfo");
    return info;
}

/* The receive has to be there before the connection: the peer may send as soon as it stands. */
static struct ibv_mr *receive(struct rdma_cm_id *id, int *into)
{
    struct ibv_mr *mr = rdma_reg_msgs(id, into, sizeof *into);
    check(!mr, "rdma_reg_msgs");
    check(rdma_post_recv(id, NULL, into, sizeof *into, mr), "rdma_post_recv");
    return mr;
}

/* Connects to a rank that may not listen yet: then it is refused, and tries again with another queue pair. */
static struct rdma_cm_id *connect_to(int me, int peer, int *into)
{
    struct rdma_addrinfo *info = resolve(peer, 0);
    struct rdma_conn_param param = {.private_data = &me, .private_data_len = sizeof me, .retry_count = 7, .rnr_retry_count = 7};
    for (;;) {
        struct ibv_qp_init_attr attr = queues();
        struct rdma_cm_id *id;
        check(rdma_create_ep(&id, info, NULL, &attr), "rdma_create_ep");
        receive(id, into);
        if (!rdma_connect(id, &param)) {
            rdma_freeaddrinfo(info);
            return id;
        }
        rdma_destroy_ep(id);
        usleep(20000);
    }
}

int main(int argc, char **argv)
{
    int rank = argc == 3 ? atoi(argv[1]) : -1, n = argc == 3 ? atoi(argv[2]) : 0;
    if (rank < 0 || n > MOST || rank >= n) {
        fprintf(stderr, "usage: alltoall RANK N (N up to %d)\n", MOST);
        return 2;
    }
    struct rdma_cm_id *listener, *peers[MOST] = {0};
    struct ibv_qp_init_attr attr = queues();
    int got[MOST], sum = rank;

    struct rdma_addrinfo *info = resolve(rank, 1);
    check(rdma_create_ep(&listener, info, NULL, &attr), "rdma_create_ep");
    check(rdma_listen(listener, n), "rdma_listen");
    for (int i = 0; i < rank; i++) {
        struct rdma_cm_id *id;
        int who;
        check(rdma_get_request(listener, &id), "rdma_get_request");
        /* Requests come in any order: the private data say whose this is. */
        memcpy(&who, id->event->param.conn.private_data, sizeof who);
        peers[who] = id;
        receive(id, &got[who]);
        check(rdma_accept(id, NULL), "rdma_accept");
    }
    for (int peer = rank + 1; peer < n; peer++)
        peers[peer] = connect_to(rank, peer, &got[peer]);

    struct ibv_wc wc;
    for (int peer = 0; peer < n; peer++)
        if (peer != rank)
            check(rdma_post_send(peers[peer], NULL, &rank, sizeof rank, NULL, IBV_SEND_INLINE), "rdma_post_send");
    for (int peer = 0; peer < n; peer++) {
        if (peer == rank)
            continue;
        check(rdma_get_send_comp(peers[peer], &wc) != 1 || wc.status, "SEND");
        check(rdma_get_recv_comp(peers[peer], &wc) != 1 || wc.status, "RECV");
        sum += got[peer];
    }
    printf("rank %d: %d connections, the sum of all ranks is %d\n", rank, n - 1, sum);
    for (int peer = 0; peer < n; peer++)
        if (peer != rank)
            rdma_disconnect(peers[peer]);
    return 0;
}
