/* Connections that do not come about: the queue pair of the id is in the error state when the program hears of it, so that
 * its requests are flushed. refused ADDRESS, which is one of this host. Prints what is wrong; exit code 1 then. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int wrong;
static struct rdma_event_channel *server, *client;
static struct rdma_cm_id *listener;
static struct rdma_conn_param param = { .retry_count = 1 };

static void check(const char *what, int good)
{
	if (good)
		return;
	wrong++;
	printf("%s\n", what);
}

static void must(const char *what, int good)
{
	if (good)
		return;
	printf("%s: %s\n", what, strerror(errno));
	exit(2);
}

static void wait_for(struct rdma_event_channel *channel)
{
	struct pollfd fd = { channel->fd, POLLIN, 0 };

	must("an event within 20 s", poll(&fd, 1, 20000) == 1);
}

static enum rdma_cm_event_type next(struct rdma_event_channel *channel, struct rdma_cm_id **id)
{
	struct rdma_cm_event *event;
	enum rdma_cm_event_type what;

	wait_for(channel);
	must("rdma_get_cm_event", !rdma_get_cm_event(channel, &event));
	what = event->event;
	if (id)
		*id = event->id;
	rdma_ack_cm_event(event);
	return what;
}

static void make_queues(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1 } };
	struct ibv_recv_wr recv = { .wr_id = 5 }, *bad;

	must("rdma_create_qp", !rdma_create_qp(id, NULL, &init));
	must("ibv_post_recv", !ibv_post_recv(id->qp, &recv, &bad));
}

/* Asks for a connection. Returns the request. */
static struct rdma_cm_id *ask(struct rdma_cm_id **id, struct sockaddr *address)
{
	struct rdma_cm_id *request;

	must("rdma_create_id", !rdma_create_id(client, id, NULL, RDMA_PS_TCP));
	must("rdma_resolve_addr", !rdma_resolve_addr(*id, NULL, address, 2000));
	must("the address", next(client, NULL) == RDMA_CM_EVENT_ADDR_RESOLVED);
	must("rdma_resolve_route", !rdma_resolve_route(*id, 2000));
	must("the route", next(client, NULL) == RDMA_CM_EVENT_ROUTE_RESOLVED);
	make_queues(*id);
	must("rdma_connect", !rdma_connect(*id, &param));
	must("a request", next(server, &request) == RDMA_CM_EVENT_CONNECT_REQUEST);
	return request;
}

static enum ibv_qp_state state_of(struct ibv_qp *qp)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	must("ibv_query_qp", !ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	return attr.qp_state;
}

static void is_flushed(struct rdma_cm_id *id)
{
	struct ibv_wc wc;

	check("the error state", state_of(id->qp) == IBV_QPS_ERR);
	check("the receive is flushed",
	      ibv_poll_cq(id->recv_cq, 1, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 5);
}

static void end(struct rdma_cm_id *id)
{
	rdma_destroy_qp(id);
	rdma_destroy_id(id);
}

static void rejected(struct sockaddr *address)
{
	struct rdma_cm_id *id, *request = ask(&id, address);

	must("rdma_reject", !rdma_reject(request, NULL, 0));
	check("RDMA_CM_EVENT_REJECTED", next(client, NULL) == RDMA_CM_EVENT_REJECTED);
	is_flushed(id);
	rdma_destroy_id(request);
	end(id);
}

/* The queue pair cannot take the connection that the peer has accepted. What the peer then says is no news. */
static void no_response(struct sockaddr *address)
{
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	struct rdma_cm_id *id, *request = ask(&id, address);
	struct rdma_cm_event *event;

	make_queues(request);
	must("rdma_accept", !rdma_accept(request, &param));
	wait_for(client);
	must("ibv_modify_qp", !ibv_modify_qp(id->qp, &error, IBV_QP_STATE));
	check("RDMA_CM_EVENT_CONNECT_ERROR", next(client, NULL) == RDMA_CM_EVENT_CONNECT_ERROR);
	end(request);
	must("O_NONBLOCK", !fcntl(client->fd, F_SETFL, O_NONBLOCK));
	wait_for(client);
	if (!rdma_get_cm_event(client, &event)) {
		check("nothing else is told", 0);
		rdma_ack_cm_event(event);
	}
	must("O_NONBLOCK", !fcntl(client->fd, F_SETFL, 0));
	end(id);
}

/* An id whose peer has gone cannot accept. */
static void not_accepted(struct sockaddr *address)
{
	struct rdma_cm_id *id, *request = ask(&id, address);

	make_queues(request);
	must("rdma_reject", !rdma_reject(request, NULL, 0));
	check("rdma_accept", rdma_accept(request, &param) == -1);
	is_flushed(request);
	check("RDMA_CM_EVENT_REJECTED", next(client, NULL) == RDMA_CM_EVENT_REJECTED);
	end(request);
	end(id);
}

int main(int count, char **arguments)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(7031) };

	if (count != 2 || inet_pton(AF_INET, arguments[1], &address.sin_addr) != 1)
		return 2;
	alarm(30);
	server = rdma_create_event_channel();
	client = rdma_create_event_channel();
	must("rdma_create_id", server && client && !rdma_create_id(server, &listener, NULL, RDMA_PS_TCP));
	must("rdma_bind_addr", !rdma_bind_addr(listener, (struct sockaddr *)&address) && !rdma_listen(listener, 4));
	rejected((struct sockaddr *)&address);
	not_accepted((struct sockaddr *)&address);
	no_response((struct sockaddr *)&address);
	rdma_destroy_id(listener);
	rdma_destroy_event_channel(server);
	rdma_destroy_event_channel(client);
	printf("refused: %d wrong\n", wrong);
	return wrong != 0;
}
