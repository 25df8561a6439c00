/* Completion queues that two threads use at once. Prints what is wrong; exit code 1 then. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Queues that are destroyed beside a thread that takes their events. */
#define QUEUES 500
/* Completions that two threads poll in a round. */
#define COMPLETIONS 4096
/* Rounds of both. */
#define ROUNDS 20

static int wrong;
static struct ibv_context *context;
static struct ibv_pd *pd;

static void must(const char *what, int good)
{
	if (good)
		return;
	printf("%s: %s\n", what, strerror(errno));
	exit(2);
}

/* A queue pair in the error state, where each send is flushed at once. */
static struct ibv_qp *broken(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 64, 1, 1, 1 }, .sq_sig_all = 1,
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	must("ibv_create_qp", qp && !ibv_modify_qp(qp, &attr, mask));
	attr.qp_state = IBV_QPS_ERR;
	must("ibv_modify_qp", !ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	return qp;
}

static void flush(struct ibv_qp *qp, uint64_t wr_id)
{
	struct ibv_send_wr send = { .wr_id = wr_id, .opcode = IBV_WR_SEND }, *bad;

	must("ibv_post_send", !ibv_post_send(qp, &send, &bad));
}

static void *events(void *arg)
{
	struct ibv_cq *cq;
	void *whose = NULL;

	while (whose != &wrong) {
		must("ibv_get_cq_event", !ibv_get_cq_event(arg, &cq, &whose));
		ibv_ack_cq_events(cq, 1);
		/* Sometimes the other thread has woken up until then. */
		for (volatile int spins = rand() % 100000; spins > 0; spins--)
			;
	}
	return NULL;
}

/* A queue that nothing uses is never busy. A destruction waits until the event of its queue is acknowledged, so many of
 * these happen while the other thread takes the next event. */
static int destroyed_beside_events(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cqs[QUEUES];
	struct ibv_qp *qps[QUEUES];
	pthread_t thread;
	int busy = 0;

	must("ibv_create_comp_channel", channel != NULL);
	for (int n = 0; n < QUEUES; n++) {
		cqs[n] = ibv_create_cq(context, 4, n == QUEUES - 1 ? &wrong : NULL, channel, 0);
		must("ibv_req_notify_cq", cqs[n] && !ibv_req_notify_cq(cqs[n], 0));
		qps[n] = broken(cqs[n]);
		/* The last one ends the other thread. */
		if (n < QUEUES - 1)
			flush(qps[n], 1);
	}
	for (int n = 0; n < QUEUES - 1; n++)
		must("ibv_destroy_qp", !ibv_destroy_qp(qps[n]));
	must("a thread", !pthread_create(&thread, NULL, events, channel));
	for (int n = 0; n < QUEUES - 1; n++)
		while (ibv_destroy_cq(cqs[n]))
			busy++;
	flush(qps[QUEUES - 1], 1);
	pthread_join(thread, NULL);
	must("the last", !ibv_destroy_qp(qps[QUEUES - 1]) && !ibv_destroy_cq(cqs[QUEUES - 1]));
	must("ibv_destroy_comp_channel", !ibv_destroy_comp_channel(channel));
	return busy;
}

struct poller {
	struct ibv_cq_ex *cq;
	pthread_t thread;
	unsigned char seen[COMPLETIONS];
};

static void *reads(void *arg)
{
	struct poller *poller = arg;
	struct ibv_poll_cq_attr attr = { 0 };

	while (!ibv_start_poll(poller->cq, &attr)) {
		do
			sched_yield(), poller->seen[poller->cq->wr_id % COMPLETIONS]++;
		while (poller->cq->wr_id % 3 == 0 && !ibv_next_poll(poller->cq));
		ibv_end_poll(poller->cq);
	}
	return NULL;
}

/* From ibv_start_poll to ibv_end_poll the current completion is that of one thread. */
static void polled_by_two(void)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = COMPLETIONS };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &attr);
	static struct poller pollers[2];
	struct ibv_qp *qp;
	int lost = 0;

	must("ibv_create_cq_ex", cq != NULL);
	qp = broken(ibv_cq_ex_to_cq(cq));
	for (int round = 0; round < ROUNDS; round++) {
		for (int n = 0; n < COMPLETIONS; n++)
			flush(qp, n);
		memset(pollers, 0, sizeof(pollers));
		for (int n = 0; n < 2; n++) {
			pollers[n].cq = cq;
			must("a thread", !pthread_create(&pollers[n].thread, NULL, reads, &pollers[n]));
		}
		for (int n = 0; n < 2; n++)
			pthread_join(pollers[n].thread, NULL);
		for (int n = 0; n < COMPLETIONS; n++)
			lost += pollers[0].seen[n] + pollers[1].seen[n] != 1;
	}
	must("ibv_destroy_qp", !ibv_destroy_qp(qp) && !ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	if (lost) {
		wrong++;
		printf("%d completions were not read once\n", lost);
	}
}

int main(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	int busy = 0;

	context = devices && devices[0] ? ibv_open_device(devices[0]) : NULL;
	pd = context ? ibv_alloc_pd(context) : NULL;
	must("a device", pd != NULL);
	for (int round = 0; round < ROUNDS; round++)
		busy += destroyed_beside_events();
	if (busy) {
		wrong++;
		printf("ibv_destroy_cq failed %d times\n", busy);
	}
	polled_by_two();
	return wrong != 0;
}
