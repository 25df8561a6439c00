/* What event loops rely on, with descriptors watched by edges (EPOLLET), as tokio's: each event of a channel wakes, also while one
 * before it has not been fetched; and the flags of what is received. Prints what is wrong; exit code 1 then. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

/* How long anything may take on a busy machine. */
#define PATIENCE 60000

static int wrong, set;

static void check(const char *what, int good)
{
	if (good)
		return;
	wrong++;
	printf("%s\n", what);
}

static void watch(int fd)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLET, .data.fd = fd };

	if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) || epoll_ctl(set, EPOLL_CTL_ADD, fd, &event)) {
		perror("a descriptor cannot be watched");
		exit(2);
	}
}

/* Whether the descriptor wakes. */
static int wakes(int fd)
{
	struct epoll_event event;
	int count;

	/* Interrupted: this process was stopped, and goes on (signal(7)). */
	do
		count = epoll_wait(set, &event, 1, PATIENCE);
	while (count < 0 && errno == EINTR);
	return count == 1 && event.data.fd == fd;
}

static int connect_to_itself(struct ibv_context *context, struct ibv_qp *qp, int reliable)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num, .min_rnr_timer = 1,
		.timeout = 17, .retry_cnt = 7, .rnr_retry = 7, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
		.ah_attr = { .is_global = 1, .port_num = 1 },
	};
	int ready = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	int sends = IBV_QP_STATE | IBV_QP_SQ_PSN;

	if (reliable) {
		ready |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
		sends |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	}
	return ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid) ||
		ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) ||
		(attr.qp_state = IBV_QPS_RTR, ibv_modify_qp(qp, &attr, ready)) ||
		(attr.qp_state = IBV_QPS_RTS, ibv_modify_qp(qp, &attr, sends));
}

static struct ibv_wc completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int got;

	while (!(got = ibv_poll_cq(cq, 1, &wc)))
		;
	if (got < 0 || wc.status != IBV_WC_SUCCESS) {
		printf("a completion: %s\n", got < 0 ? "none can be had" : ibv_wc_status_str(wc.status));
		exit(1);
	}
	return wc;
}

/* A queue pair that is connected to itself, its sends and its receives in queues of their own, and a registered buffer. */
struct end {
	struct ibv_cq *sends, *receives;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char memory[4096];
};

static void make(struct ibv_context *context, struct ibv_comp_channel *channel, struct end *end, int reliable)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_qp_init_attr init = { .qp_type = reliable ? IBV_QPT_RC : IBV_QPT_UC, .cap = { 4, 4, 1, 1, 0 }, .sq_sig_all = 1 };

	end->mr = ibv_reg_mr(pd, end->memory, sizeof(end->memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	init.send_cq = end->sends = ibv_create_cq(context, 8, NULL, channel, 0);
	init.recv_cq = end->receives = ibv_create_cq(context, 8, NULL, channel, 0);
	end->qp = ibv_create_qp(pd, &init);
	if (!end->mr || !end->qp || connect_to_itself(context, end->qp, reliable)) {
		printf("there is no connected queue pair\n");
		exit(2);
	}
}

static void post(struct end *end, enum ibv_wr_opcode opcode)
{
	struct ibv_sge from = { (uintptr_t)end->memory, 100, end->mr->lkey }, to = { (uintptr_t)end->memory + 2000, 100, end->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &from, .num_sge = 1, .opcode = opcode, .imm_data = htonl(77) }, *bad_send;
	struct ibv_recv_wr receive = { .sg_list = &to, .num_sge = 1 }, *bad_receive;

	wr.wr.rdma.remote_addr = (uintptr_t)end->memory + 1000;
	wr.wr.rdma.rkey = end->mr->rkey;
	if (ibv_post_recv(end->qp, &receive, &bad_receive) || ibv_post_send(end->qp, &wr, &bad_send)) {
		perror("a request was not posted");
		exit(2);
	}
}

/* As rxe has it for all queues of programs: what was received came with a GRH. */
static void flags(struct end *end)
{
	static const struct { enum ibv_wr_opcode opcode; unsigned int flags; } cases[] = {
		{ IBV_WR_SEND, IBV_WC_GRH }, { IBV_WR_SEND_WITH_IMM, IBV_WC_GRH | IBV_WC_WITH_IMM },
		{ IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WC_GRH | IBV_WC_WITH_IMM },
	};

	for (unsigned int i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct ibv_wc wc;

		post(end, cases[i].opcode);
		check("a send has no flags", completion(end->sends).wc_flags == 0);
		wc = completion(end->receives);
		if (wc.wc_flags != cases[i].flags || (wc.wc_flags & IBV_WC_WITH_IMM && wc.imm_data != htonl(77)))
			check("flags of a receive", (printf("opcode %d, flags %#x: ", cases[i].opcode, wc.wc_flags), 0));
	}
}

/* The next event of a channel; a completion is seen a moment before its event. */
static struct ibv_cq *fetched(struct ibv_comp_channel *channel)
{
	struct ibv_cq *cq;
	void *none;

	for (int left = PATIENCE; left; left--, usleep(1000))
		if (!ibv_get_cq_event(channel, &cq, &none))
			return cq;
	return NULL;
}

/* Two queues on one channel: the event of the second wakes though that of the first lies there. */
static void completions(struct ibv_context *context)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	static struct end end;
	struct ibv_cq *cq;
	struct ibv_wc wc;
	void *none;
	uint32_t acknowledged;
	int got;

	make(context, channel, &end, 1);
	flags(&end);
	watch(channel->fd);
	for (int round = 0; round < 100; round++) {
		ibv_req_notify_cq(end.sends, 0);
		post(&end, IBV_WR_SEND);
		check("the first event wakes", wakes(channel->fd));
		completion(end.sends);
		completion(end.receives);
		ibv_req_notify_cq(end.receives, 0);
		post(&end, IBV_WR_SEND);
		/* To wake once too often is allowed, but not once too rarely. */
		do
			check("and so does the second", wakes(channel->fd));
		while (!(got = ibv_poll_cq(end.receives, 1, &wc)) && !wrong);
		check("something was received", got == 1);
		check("the event of the first", fetched(channel) == end.sends);
		check("and of the second", fetched(channel) == end.receives);
		check("and no third", ibv_get_cq_event(channel, &cq, &none) != 0);
		acknowledged = end.sends->comp_events_completed;
		ibv_ack_cq_events(end.sends, 1);
		ibv_ack_cq_events(end.receives, 1);
		check("what is acknowledged is counted", end.sends->comp_events_completed == acknowledged + 1);
		completion(end.sends);
		if (wrong)
			break;
	}
	epoll_ctl(set, EPOLL_CTL_DEL, channel->fd, NULL);
}

/* Sends that are drained are told of asynchronously. */
static void asynchronous(struct ibv_context *context)
{
	static struct end ends[2];
	struct ibv_qp_attr drain = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 };
	struct ibv_async_event event;

	for (int i = 0; i < 2; i++)
		make(context, NULL, &ends[i], 1);
	watch(context->async_fd);
	for (int i = 0; i < 2; i++) {
		if (ibv_modify_qp(ends[i].qp, &drain, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY)) {
			check("a queue pair is drained", 0);
			return;
		}
		check("an asynchronous event wakes, another lying there or not", wakes(context->async_fd));
	}
	for (int i = 0; i < 2; i++) {
		int left = PATIENCE;

		while (ibv_get_async_event(context, &event))
			if (usleep(1000), --left == 0) {
				check("there are two events", 0);
				return;
			}
		check("of the queue pairs in turn", event.event_type == IBV_EVENT_SQ_DRAINED && event.element.qp == ends[i].qp);
		ibv_ack_async_event(&event);
		check("which counts it", ends[i].qp->events_completed == 1);
	}
	epoll_ctl(set, EPOLL_CTL_DEL, context->async_fd, NULL);
}

static void connections(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(7), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_cm_event *event;
	struct rdma_cm_id *ids[2];

	watch(channel->fd);
	for (int i = 0; i < 2; i++) {
		if (rdma_create_id(channel, &ids[i], NULL, RDMA_PS_TCP) ||
		    rdma_resolve_addr(ids[i], NULL, (struct sockaddr *)&to, 2000)) {
			check("an address is asked for", 0);
			return;
		}
		check("an event of a connection wakes, another lying there or not", wakes(channel->fd));
	}
	for (int i = 0; i < 2; i++) {
		int left = PATIENCE;

		while (rdma_get_cm_event(channel, &event))
			if (usleep(1000), --left == 0) {
				check("there are two events", 0);
				return;
			}
		check("of the ids in turn", event->id == ids[i]);
		rdma_ack_cm_event(event);
		rdma_destroy_id(ids[i]);
	}
	rdma_destroy_event_channel(channel);
}

/* Memory as programs have it: from malloc, not filled in, at any address and of any length. */
static void registered(struct ibv_context *context)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);

	for (size_t len = 1; len < 100000; len = len * 3 + 1) {
		char *memory = malloc(len + 3);
		struct ibv_mr *mr = ibv_reg_mr(pd, memory + 3, len, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);

		check("memory is registered, and given back", mr && !ibv_dereg_mr(mr));
		free(memory);
	}
	check("a protection domain is given back", !ibv_dealloc_pd(pd));
}

int main(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_context *context = devices && devices[0] ? ibv_open_device(devices[0]) : NULL;
	static struct end unreliable;

	set = epoll_create1(EPOLL_CLOEXEC);
	if (!context || set < 0) {
		printf("there is no device\n");
		return 2;
	}
	registered(context);
	completions(context);
	make(context, NULL, &unreliable, 0);
	flags(&unreliable);
	asynchronous(context);
	connections();
	return wrong != 0;
}
