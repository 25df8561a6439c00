// librpma at both ends: a client writes to a server's memory, flushes it to where all see it, reads it back and compares; the
// server compares what it has when the client has gone.
//
//   persist server ADDRESS PORT | persist client ADDRESS PORT
#include <librpma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE 65536

static void check(const char *what, int result) {
    if (!result)
        return;
    fprintf(stderr, "persist: %s: %s\n", what, rpma_err_2str(result));
    exit(1);
}

static void await(struct rpma_conn *conn, enum rpma_conn_event wanted) {
    enum rpma_conn_event event;
    check("rpma_conn_next_event", rpma_conn_next_event(conn, &event));
    if (event == wanted)
        return;
    fprintf(stderr, "persist: %s in place of %s\n", rpma_utils_conn_event_2str(event), rpma_utils_conn_event_2str(wanted));
    exit(1);
}

// The completion of the request of that number.
static void completed(struct rpma_conn *conn, const char *what, uint64_t number) {
    struct rpma_cq *cq;
    struct ibv_wc wc;
    check("rpma_conn_get_cq", rpma_conn_get_cq(conn, &cq));
    check("rpma_cq_wait", rpma_cq_wait(cq));
    check("rpma_cq_get_wc", rpma_cq_get_wc(cq, 1, &wc, NULL));
    if (wc.status == IBV_WC_SUCCESS && wc.wr_id == number)
        return;
    fprintf(stderr, "persist: %s ended with %s\n", what, ibv_wc_status_str(wc.status));
    exit(1);
}

static char byte_at(int i) {
    return (char)(i * 7 + i / 256);
}

static int differs(const char *memory) {
    for (int i = 0; i < SIZE; i++)
        if (memory[i] != byte_at(i))
            return fprintf(stderr, "persist: byte %d is another\n", i);
    return 0;
}

static int serve(struct rpma_peer *peer, char *memory, const char *address, const char *port) {
    struct rpma_ep *ep;
    struct rpma_conn_req *request;
    struct rpma_conn *conn;
    struct rpma_mr_local *mr;
    char descriptor[64];
    size_t size;
    check("rpma_mr_reg", rpma_mr_reg(peer, memory, SIZE, RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_READ_SRC |
        RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY, &mr));
    check("rpma_mr_get_descriptor_size", rpma_mr_get_descriptor_size(mr, &size));
    check("rpma_mr_get_descriptor", rpma_mr_get_descriptor(mr, descriptor));
    struct rpma_conn_private_data data = {.ptr = descriptor, .len = (uint8_t)size};
    check("rpma_ep_listen", rpma_ep_listen(peer, address, port, &ep));
    check("rpma_ep_next_conn_req", rpma_ep_next_conn_req(ep, NULL, &request));
    check("rpma_conn_req_connect", rpma_conn_req_connect(&request, &data, &conn));
    await(conn, RPMA_CONN_ESTABLISHED);
    await(conn, RPMA_CONN_CLOSED);
    int wrong = differs(memory);
    check("rpma_conn_disconnect", rpma_conn_disconnect(conn));
    check("rpma_conn_delete", rpma_conn_delete(&conn));
    check("rpma_ep_shutdown", rpma_ep_shutdown(&ep));
    check("rpma_mr_dereg", rpma_mr_dereg(&mr));
    return wrong != 0;
}

static int ask(struct rpma_peer *peer, char *memory, const char *address, const char *port) {
    struct rpma_conn_req *request;
    struct rpma_conn *conn;
    struct rpma_mr_local *mr;
    struct rpma_mr_remote *remote;
    struct rpma_conn_private_data data;
    check("rpma_mr_reg", rpma_mr_reg(peer, memory, SIZE, RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_READ_DST, &mr));
    check("rpma_conn_req_new", rpma_conn_req_new(peer, address, port, NULL, &request));
    check("rpma_conn_req_connect", rpma_conn_req_connect(&request, NULL, &conn));
    await(conn, RPMA_CONN_ESTABLISHED);
    check("rpma_conn_get_private_data", rpma_conn_get_private_data(conn, &data));
    check("rpma_mr_remote_from_descriptor", rpma_mr_remote_from_descriptor(data.ptr, data.len, &remote));
    for (int i = 0; i < SIZE; i++)
        memory[i] = byte_at(i);
    check("rpma_write", rpma_write(conn, remote, 0, mr, 0, SIZE, RPMA_F_COMPLETION_ON_ERROR, (void *)1));
    check("rpma_flush", rpma_flush(conn, remote, 0, SIZE, RPMA_FLUSH_TYPE_VISIBILITY, RPMA_F_COMPLETION_ALWAYS, (void *)2));
    completed(conn, "flush", 2);
    memset(memory, 0, SIZE);
    check("rpma_read", rpma_read(conn, mr, 0, remote, 0, SIZE, RPMA_F_COMPLETION_ALWAYS, (void *)3));
    completed(conn, "read", 3);
    int wrong = differs(memory);
    check("rpma_conn_disconnect", rpma_conn_disconnect(conn));
    await(conn, RPMA_CONN_CLOSED);
    check("rpma_conn_delete", rpma_conn_delete(&conn));
    check("rpma_mr_remote_delete", rpma_mr_remote_delete(&remote));
    check("rpma_mr_dereg", rpma_mr_dereg(&mr));
    return wrong != 0;
}

int main(int count, char **words) {
    struct ibv_context *context;
    struct rpma_peer *peer;
    if (count != 4) {
        fprintf(stderr, "usage: persist server|client ADDRESS PORT\n");
        return 2;
    }
    int serves = !strcmp(words[1], "server");
    char *memory = calloc(1, SIZE);
    check("rpma_utils_get_ibv_context", rpma_utils_get_ibv_context(words[2],
        serves ? RPMA_UTIL_IBV_CONTEXT_LOCAL : RPMA_UTIL_IBV_CONTEXT_REMOTE, &context));
    check("rpma_peer_new", rpma_peer_new(context, &peer));
    int wrong = serves ? serve(peer, memory, words[2], words[3]) : ask(peer, memory, words[2], words[3]);
    check("rpma_peer_delete", rpma_peer_delete(&peer));
    free(memory);
    return wrong;
}
