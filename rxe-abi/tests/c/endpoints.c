/* Endpoints made in one call: what rdma_create_ep is given for a listener is what its requests' queue pairs are made of.
 * A client's queue pair made by rdma_create_qp_ex has the functions that it asks for. Listeners for datagrams, too, and one that migrates.
 * endpoints ADDRESS, which is one of this host. Prints what is wrong; exit code 1 then. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int wrong;
static const char *address;

static void check(const char *what, int good)
{
	if (good)
		return;
	wrong++;
	printf("%s\n", what);
}

static struct rdma_addrinfo *find(int flags, int space)
{
	struct rdma_addrinfo hints = { .ai_port_space = space, .ai_flags = flags }, *info;

	if (rdma_getaddrinfo(address, "7020", &hints, &info))
		exit(2);
	return info;
}

static struct ibv_qp_init_attr small(void)
{
	return (struct ibv_qp_init_attr){
		.sq_sig_all = 1, .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
}

/* The number of the next descriptor. */
static int next_descriptor(void)
{
	int fd = dup(0);

	close(fd);
	return fd;
}

/* A queue pair that sends by ibv_wr_*. */
static void make_extended(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr_ex init = {
		.cap = small().cap, .qp_type = IBV_QPT_RC, .sq_sig_all = 1, .comp_mask = IBV_QP_INIT_ATTR_CREATE_FLAGS,
		.create_flags = 1 << 1,
	};

	check("unknown flags are refused", rdma_create_qp_ex(id, &init) && errno == EOPNOTSUPP);
	init.comp_mask = IBV_QP_INIT_ATTR_RX_HASH | IBV_QP_INIT_ATTR_IND_TABLE;
	check("spreading is refused", rdma_create_qp_ex(id, &init) && errno == EOPNOTSUPP);
	init.comp_mask = IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	init.send_ops_flags = IBV_QP_EX_WITH_SEND;
	if (rdma_create_qp_ex(id, &init)) {
		perror("rdma_create_qp_ex");
		exit(2);
	}
	check("what it was made of is told", init.send_cq == id->send_cq && init.recv_cq == id->recv_cq && init.pd == id->pd);
}

static void send_one(struct rdma_cm_id *id)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(id->qp);
	char hello[8] = "hello";
	struct ibv_wc wc;

	check("extended functions", qp != NULL);
	if (!qp)
		return;
	ibv_wr_start(qp);
	qp->wr_id = 17;
	ibv_wr_send(qp);
	ibv_wr_set_inline_data(qp, hello, sizeof(hello));
	check("ibv_wr_complete", ibv_wr_complete(qp) == 0);
	check("what was sent", rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == 17);
}

/* An id that may connect. */
static struct rdma_cm_id *endpoint(enum rdma_port_space space, struct ibv_qp_init_attr *init)
{
	struct rdma_addrinfo *info = find(0, space);
	struct rdma_cm_id *id;

	if (rdma_create_ep(&id, info, NULL, init)) {
		perror("rdma_create_ep");
		exit(2);
	}
	rdma_freeaddrinfo(info);
	return id;
}

static void *client(void *arg)
{
	struct rdma_cm_id *id = endpoint(RDMA_PS_TCP, NULL);

	make_extended(id);
	check("rdma_connect", rdma_connect(id, NULL) == 0);
	send_one(id);
	rdma_disconnect(id);
	rdma_destroy_ep(id);
	return arg;
}

/* Connects in the port space at `arg`, and leaves. */
static void *plain_client(void *arg)
{
	struct ibv_qp_init_attr init = small();
	struct rdma_cm_id *id = endpoint(*(enum rdma_port_space *)arg, &init);

	check("rdma_connect of a plain client", rdma_connect(id, NULL) == 0);
	rdma_destroy_ep(id);
	return NULL;
}

/* A listener for datagrams can be destroyed before the request that it has answered. */
static void datagrams(void)
{
	enum rdma_port_space space = RDMA_PS_UDP;
	struct ibv_qp_init_attr init = small();
	struct rdma_addrinfo *info = find(RAI_PASSIVE, RDMA_PS_UDP);
	struct rdma_cm_id *listener, *request;
	pthread_t thread;

	if (rdma_create_ep(&listener, info, NULL, &init) || rdma_listen(listener, 1) ||
	    pthread_create(&thread, NULL, plain_client, &space) || rdma_get_request(listener, &request))
		exit(2);
	rdma_freeaddrinfo(info);
	check("rdma_accept for datagrams", rdma_accept(request, NULL) == 0);
	alarm(10);
	rdma_destroy_ep(listener);
	alarm(0);
	pthread_join(thread, NULL);
	rdma_destroy_ep(request);
}

/* A listener that gets a channel while a request waits: the request's id is on that channel, too. */
static void migrates(void)
{
	enum rdma_port_space space = RDMA_PS_TCP;
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct ibv_qp_init_attr init = small();
	struct rdma_addrinfo *info = find(RAI_PASSIVE, RDMA_PS_TCP);
	struct rdma_cm_id *listener, *request;
	struct rdma_cm_event *event;
	struct pollfd waits;
	pthread_t thread;

	if (rdma_create_ep(&listener, info, NULL, NULL) || rdma_listen(listener, 1) ||
	    pthread_create(&thread, NULL, plain_client, &space))
		exit(2);
	rdma_freeaddrinfo(info);
	waits = (struct pollfd){ .fd = listener->channel->fd, .events = POLLIN };
	alarm(20);
	if (poll(&waits, 1, -1) != 1 || rdma_migrate_id(listener, channel) || rdma_get_cm_event(channel, &event))
		exit(2);
	request = event->id;
	check("channel of the request", request->channel == channel);
	rdma_ack_cm_event(event);
	init.qp_type = IBV_QPT_RC;
	check("rdma_create_qp", rdma_create_qp(request, NULL, &init) == 0);
	check("rdma_accept of the request", rdma_accept(request, NULL) == 0);
	if (rdma_get_cm_event(channel, &event))
		exit(2);
	check("established", event->event == RDMA_CM_EVENT_ESTABLISHED && event->id == request);
	rdma_ack_cm_event(event);
	alarm(0);
	pthread_join(thread, NULL);
	rdma_destroy_ep(request);
	rdma_destroy_ep(listener);
	rdma_destroy_event_channel(channel);
}

int main(int count, char **arguments)
{
	struct ibv_qp_init_attr init = small();
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct rdma_cm_id *listener, *request;
	struct rdma_addrinfo *info;
	struct ibv_recv_wr recv = { .num_sge = 1 }, *bad;
	struct ibv_cq *send, *receive;
	char memory[64] = "";
	struct ibv_srq *srq;
	struct ibv_sge sge;
	struct ibv_mr *mr;
	struct ibv_wc wc;
	struct ibv_pd *pd;
	pthread_t thread;
	int before;

	if (count != 2)
		return 2;
	address = arguments[1];
	rdma_destroy_event_channel(rdma_create_event_channel());
	before = next_descriptor();
	check("no place for the id", rdma_create_id(NULL, NULL, NULL, RDMA_PS_TCP) == -1);
	check("nothing is left of it", next_descriptor() == before);
	info = find(RAI_PASSIVE, RDMA_PS_TCP);
	if (rdma_create_ep(&listener, info, NULL, NULL))
		return 2;
	pd = ibv_alloc_pd(listener->verbs);
	send = ibv_create_cq(listener->verbs, 8, NULL, NULL, 0);
	receive = ibv_create_cq(listener->verbs, 8, NULL, NULL, 0);
	srq = ibv_create_srq(pd, &shared);
	mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	sge = (struct ibv_sge){ (uintptr_t)memory, sizeof(memory), mr->lkey };
	recv.sg_list = &sge;
	if (ibv_post_srq_recv(srq, &recv, &bad))
		return 2;
	rdma_destroy_ep(listener);

	init.qp_context = &wrong;
	init.send_cq = send;
	init.recv_cq = receive;
	init.srq = srq;
	if (rdma_create_ep(&listener, info, pd, &init) || rdma_listen(listener, 1) || pthread_create(&thread, NULL, client, NULL))
		return 2;
	rdma_freeaddrinfo(info);
	if (rdma_get_request(listener, &request)) {
		perror("rdma_get_request");
		return 2;
	}
	check("its queue pair", request->qp != NULL);
	if (request->qp) {
		check("context", request->qp->qp_context == &wrong);
		check("completion queues", request->qp->send_cq == send && request->qp->recv_cq == receive);
		check("shared receive queue", request->qp->srq == srq);
		check("protection domain", request->qp->pd == pd);
	}
	check("rdma_accept", rdma_accept(request, NULL) == 0);
	alarm(20);
	while (!ibv_poll_cq(receive, 1, &wc))
		;
	alarm(0);
	check("what was received", wc.byte_len == 8 && !strcmp(memory, "hello"));
	/* The client waits in the same call, for us to agree. */
	rdma_disconnect(request);
	pthread_join(thread, NULL);
	rdma_destroy_ep(request);
	rdma_destroy_ep(listener);
	ibv_dereg_mr(mr);
	check("nothing holds the queues", ibv_destroy_srq(srq) == 0 && ibv_destroy_cq(send) == 0 && ibv_destroy_cq(receive) == 0);
	check("nothing holds the domain", ibv_dealloc_pd(pd) == 0);
	datagrams();
	migrates();
	printf("endpoints: %d wrong\n", wrong);
	return wrong != 0;
}
