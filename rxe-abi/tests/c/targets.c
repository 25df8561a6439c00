/* XRC targets: every handle of one hears its events, whichever of them ends first; and what librdmacm makes with an XRC id's
 * queue is made once and ends with it. Kernel rxe has no XRC, so that nothing here can be compared with it: what is wanted
 * is what ibv_open_qp(3), rdma_create_srq(3) and the sources of the kernel and of librdmacm say. Prints what is wrong; exit
 * code 1 then. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int differ, tried;
static char memory[4096];

static void note(const char *what, int got, int wanted)
{
	tried++;
	if (got == wanted)
		return;
	differ++;
	printf("%s: %d, wanted %d\n", what, got, wanted);
}

static void *must(void *object, const char *what)
{
	if (!object) {
		printf("%s: %s\n", what, strerror(errno));
		exit(2);
	}
	return object;
}

#define MUST(call) must(call, #call)

/* Events of this type, of which a context gets `wanted`: how many of them are each handle's. */
static void hear(struct ibv_context *context, enum ibv_event_type type, struct ibv_qp **handles, int *counts, int wanted)
{
	struct pollfd fd = { .fd = context->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	for (int i = 0; i < wanted; i++) {
		if (poll(&fd, 1, 5000) != 1 || ibv_get_async_event(context, &event))
			return;
		for (int h = 0; h < 3; h++)
			counts[h] += event.event_type == type && event.element.qp == handles[h];
		ibv_ack_async_event(&event);
	}
	/* No more than that. */
	note("events left", poll(&fd, 1, 0), 0);
}

static void modify(struct ibv_qp *qp, struct ibv_qp_attr attr, int mask)
{
	int result = ibv_modify_qp(qp, &attr, mask);

	note("ibv_modify_qp", result, 0);
}

static void connect_to(struct ibv_qp *qp, uint32_t to, union ibv_gid *gid, int initiator)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .path_mtu = IBV_MTU_1024, .dest_qp_num = to,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = *gid, .hop_limit = 64 } },
		.max_dest_rd_atomic = 1, .min_rnr_timer = 1, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1,
	};
	int rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;

	modify(qp, attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS);
	attr.qp_state = IBV_QPS_RTR;
	modify(qp, attr, initiator ? rtr : rtr | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	attr.qp_state = IBV_QPS_RTS;
	if (initiator)
		modify(qp, attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		       IBV_QP_MAX_QP_RD_ATOMIC);
}

/* A message to a shared receive queue, and the status of its completion. */
static void send_to(struct ibv_qp *qp, uint32_t srq, struct ibv_mr *mr, int wanted)
{
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .qp_type.xrc.remote_srqn = srq,
	}, *bad;
	struct ibv_wc wc = { .status = -1 };
	int got = 0;

	note("ibv_post_send", ibv_post_send(qp, &wr, &bad), 0);
	while (!got)
		got = ibv_poll_cq(qp->send_cq, 1, &wc);
	note("status of a send", wc.status, wanted);
}

static void events(struct ibv_context *context, struct ibv_context *another)
{
	FILE *file = MUST(tmpfile());
	struct ibv_xrcd_init_attr open = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fileno(file), .oflags = O_CREAT,
	};
	struct ibv_xrcd *domain = MUST(ibv_open_xrcd(context, &open)), *same = MUST(ibv_open_xrcd(another, &open));
	struct ibv_pd *pd = MUST(ibv_alloc_pd(context));
	struct ibv_cq *send = MUST(ibv_create_cq(context, 8, NULL, NULL, 0)), *receive = MUST(ibv_create_cq(context, 8, NULL, NULL, 0));
	struct ibv_mr *mr = MUST(ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE));
	struct ibv_srq_init_attr_ex queue = {
		.attr = { .max_wr = 8, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .pd = pd, .cq = receive, .xrcd = domain,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_XRCD,
	};
	struct ibv_srq *srq = MUST(ibv_create_srq_ex(context, &queue));
	struct ibv_qp_init_attr_ex target = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = domain };
	struct ibv_qp_init_attr_ex source = {
		.qp_type = IBV_QPT_XRC_SEND, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd, .send_cq = send,
		.cap = { .max_send_wr = 4, .max_send_sge = 1 },
	};
	struct ibv_qp *initiator = MUST(ibv_create_qp_ex(context, &source)), *handles[3];
	struct ibv_sge sge = { (uintptr_t)memory + 64, 64, mr->lkey };
	struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad;
	uint32_t number = 0;
	union ibv_gid gid;
	int counts[3] = { 0 };

	ibv_query_gid(context, 1, 0, &gid);
	ibv_get_srq_num(srq, &number);
	handles[0] = MUST(ibv_create_qp_ex(context, &target));
	struct ibv_qp_open_attr again = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
		.qp_num = handles[0]->qp_num, .xrcd = domain, .qp_type = IBV_QPT_XRC_RECV,
	};
	handles[1] = MUST(ibv_open_qp(context, &again));
	again.xrcd = same;
	handles[2] = MUST(ibv_open_qp(another, &again));
	connect_to(handles[0], initiator->qp_num, &gid, 0);
	connect_to(initiator, handles[0]->qp_num, &gid, 1);

	/* The first packet, before RTS: all three hear of it. */
	note("ibv_post_srq_recv", ibv_post_srq_recv(srq, &recv, &bad), 0);
	send_to(initiator, number, mr, IBV_WC_SUCCESS);
	hear(context, IBV_EVENT_COMM_EST, handles, counts, 2);
	hear(another, IBV_EVENT_COMM_EST, handles, counts, 1);
	note("COMM_EST to the handle that was made", counts[0], 1);
	note("COMM_EST to the second", counts[1], 1);
	note("COMM_EST to the one of another context", counts[2], 1);

	/* The first is gone: a queue that nobody has is an error that the others hear of. */
	note("ibv_destroy_qp", ibv_destroy_qp(handles[0]), 0);
	handles[0] = NULL;
	memset(counts, 0, sizeof(counts));
	send_to(initiator, number + 77, mr, IBV_WC_REM_INV_REQ_ERR);
	hear(context, IBV_EVENT_QP_REQ_ERR, handles, counts, 1);
	hear(another, IBV_EVENT_QP_REQ_ERR, handles, counts, 1);
	note("QP_REQ_ERR to the second", counts[1], 1);
	note("QP_REQ_ERR to the one of another context", counts[2], 1);

	note("ibv_destroy_qp", ibv_destroy_qp(handles[1]), 0);
	note("ibv_close_xrcd", ibv_close_xrcd(same), EBUSY);
	note("ibv_destroy_qp", ibv_destroy_qp(handles[2]), 0);
	note("ibv_close_xrcd", ibv_close_xrcd(same), 0);
	ibv_destroy_qp(initiator);
	ibv_destroy_srq(srq);
	note("ibv_close_xrcd", ibv_close_xrcd(domain), 0);
	ibv_dereg_mr(mr);
	ibv_destroy_cq(send);
	ibv_destroy_cq(receive);
	note("ibv_dealloc_pd", ibv_dealloc_pd(pd), 0);
	fclose(file);
}

/* One of the device's, and no loopback one: those choose no device. */
static const char *address;

/* Open files: each completion channel is one. */
static int files(void)
{
	DIR *folder = MUST(opendir("/proc/self/fd"));
	int count = 0;

	while (readdir(folder))
		count++;
	closedir(folder);
	return count;
}

static void target_of_an_id(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_qp_type = IBV_QPT_XRC_RECV, .ai_port_space = RDMA_PS_IB }, *info;
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_XRC_RECV };
	struct ibv_srq_init_attr queue = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_cq *receive;
	struct rdma_cm_id *id;
	int before, with_queue;

	if (rdma_getaddrinfo(address, "7003", &hints, &info) || rdma_create_ep(&id, info, NULL, NULL)) {
		printf("rdma_create_ep: %s\n", strerror(errno));
		exit(2);
	}
	before = files();
	note("rdma_create_srq", rdma_create_srq(id, NULL, &queue), 0);
	receive = id->recv_cq;
	note("it completes on a queue of the id's", receive != NULL && receive->cq_context == id, 1);
	with_queue = files();
	/* Ours may have a set of descriptors with a counter in it. */
	note("one channel more", with_queue == before + 1 || with_queue == before + 2, 1);
	for (int i = 0; i < 3; i++) {
		note("rdma_create_qp", rdma_create_qp(id, NULL, &init), 0);
		note("a target completes nothing itself", id->send_cq == NULL && id->recv_cq == receive, 1);
		note("no file more for a target", files(), with_queue);
		rdma_destroy_qp(id);
		note("the queue's own is still there", id->recv_cq == receive, 1);
		note("no file more after a target", files(), with_queue);
	}
	/* It ends with the shared receive queue, also while there is a target, which does not use it. */
	note("rdma_create_qp", rdma_create_qp(id, NULL, &init), 0);
	rdma_destroy_srq(id);
	note("no queue, no channel", id->recv_cq == NULL && id->recv_cq_channel == NULL, 1);
	note("files after the queue", files(), before);
	rdma_destroy_qp(id);
	note("files after the target", files(), before);

	/* What fails leaves nothing. */
	queue.attr.max_wr = 1 << 30;
	note("a queue too large", rdma_create_srq(id, NULL, &queue) != 0, 1);
	note("nothing of it", id->recv_cq == NULL && id->recv_cq_channel == NULL && id->srq == NULL, 1);
	note("no file of it", files(), before);
	rdma_destroy_ep(id);
	rdma_freeaddrinfo(info);
}

/* Other kinds: a queue pair's completion queues are those of its id, and end with it. */
static void pair_of_an_id(enum ibv_qp_type type)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_qp_type = type, .ai_port_space = RDMA_PS_IB }, *info;
	struct ibv_qp_init_attr init = {
		.qp_type = type, .cap = { .max_send_wr = 4, .max_recv_wr = type == IBV_QPT_RC ? 4 : 0, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct rdma_cm_id *id;
	int before;

	if (rdma_getaddrinfo(address, "7004", &hints, &info) || rdma_create_ep(&id, info, NULL, NULL)) {
		printf("rdma_create_ep: %s\n", strerror(errno));
		exit(2);
	}
	before = files();
	for (int i = 0; i < 3; i++) {
		note("rdma_create_qp", rdma_create_qp(id, NULL, &init), 0);
		note("its send queue is its id's", id->send_cq != NULL && id->send_cq->cq_context == id, 1);
		note("a receive queue where it receives", id->recv_cq != NULL, type == IBV_QPT_RC);
		rdma_destroy_qp(id);
		note("none is left", id->send_cq == NULL && id->recv_cq == NULL, 1);
		/* rdma_create_qp has put those of the id here, which are gone. */
		init.send_cq = init.recv_cq = NULL;
		note("no file is left", files(), before);
	}
	init.cap.max_send_wr = 1 << 30;
	note("one too large", rdma_create_qp(id, NULL, &init) != 0, 1);
	note("nothing of that", id->send_cq == NULL && id->send_cq_channel == NULL && id->recv_cq == NULL, 1);
	note("no file of that", files(), before);
	rdma_destroy_ep(id);
	rdma_freeaddrinfo(info);
}

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context, *another;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc != 2 || !list || !list[0])
		return 2;
	address = argv[1];
	context = MUST(ibv_open_device(list[0]));
	another = MUST(ibv_open_device(list[0]));
	ibv_free_device_list(list);
	events(context, another);
	note("ibv_close_device", ibv_close_device(another), 0);
	note("ibv_close_device", ibv_close_device(context), 0);
	target_of_an_id();
	pair_of_an_id(IBV_QPT_RC);
	pair_of_an_id(IBV_QPT_XRC_SEND);
	printf("%d tried, %d differ\n", tried, differ);
	return differ != 0;
}
