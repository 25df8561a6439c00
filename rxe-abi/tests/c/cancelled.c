/* Threads that are cancelled while they wait for events, as rping does it: each ends where it waits, what it has pushed for
 * cleaning up is done, and its objects serve others afterwards. Functions that do not wait are no cancellation points.
 * Prints what is wrong; exit code 1 then. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(what, good) check(__LINE__, what, good)

static int wrong;
static struct ibv_context *context;
static struct ibv_comp_channel *completions;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct rdma_event_channel *channel;
static struct rdma_cm_id *listener;

struct waiter {
	void (*wait)(void);
	volatile int started, returned, cleaned;
	int forbid;
};

static void check(int line, const char *what, int good)
{
	if (good)
		return;
	wrong++;
	printf("line %d: %s\n", line, what);
}

static void clean(void *arg)
{
	((struct waiter *)arg)->cleaned = 1;
}

static void *run(void *arg)
{
	struct waiter *waiter = arg;

	pthread_cleanup_push(clean, waiter);
	if (waiter->forbid)
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	waiter->started = 1;
	waiter->wait();
	waiter->returned = 1;
	pthread_cleanup_pop(0);
	return NULL;
}

static void completion(void)
{
	struct ibv_cq *which;
	void *whose;

	if (ibv_get_cq_event(completions, &which, &whose) == 0)
		ibv_ack_cq_events(which, 1);
}

static void async(void)
{
	struct ibv_async_event event;

	if (ibv_get_async_event(context, &event) == 0)
		ibv_ack_async_event(&event);
}

static void connection(void)
{
	struct rdma_cm_event *event;

	if (rdma_get_cm_event(channel, &event) == 0)
		rdma_ack_cm_event(event);
}

static void request(void)
{
	struct rdma_cm_id *id;

	if (rdma_get_request(listener, &id) == 0)
		rdma_destroy_ep(id);
}

/* Cancelled before it sleeps, about when it does, and long after. */
static void cancelled(const char *what, void (*wait)(void))
{
	static const int pauses[] = { 0, 100, 1000, 50000 };

	for (unsigned int n = 0; n < 40; n++) {
		struct waiter waiter = { .wait = wait };
		void *result = NULL;
		pthread_t thread;

		if (pthread_create(&thread, NULL, run, &waiter))
			exit(2);
		while (!waiter.started)
			;
		usleep(pauses[n % 4]);
		pthread_cancel(thread);
		pthread_join(thread, &result);
		CHECK(what, result == PTHREAD_CANCELED && waiter.cleaned && !waiter.returned);
	}
}

/* Makes a completion, and an event for it. */
static void complete(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_recv_wr receive = { .wr_id = 1 }, *bad;
	struct ibv_wc wc;

	while (ibv_poll_cq(cq, 1, &wc) > 0)
		;
	if (ibv_req_notify_cq(cq, 0) || ibv_modify_qp(qp, &attr, IBV_QP_STATE) || ibv_post_recv(qp, &receive, &bad))
		exit(2);
}

/* One that has forbidden it waits on, and gets its event. */
static void forbidden(void)
{
	struct waiter waiter = { .wait = completion, .forbid = 1 };
	pthread_t thread;
	void *result;

	if (pthread_create(&thread, NULL, run, &waiter))
		exit(2);
	while (!waiter.started)
		;
	usleep(10000);
	pthread_cancel(thread);
	usleep(10000);
	CHECK("it may not be cancelled", !waiter.returned);
	complete();
	pthread_join(thread, &result);
	CHECK("its event", result == NULL && waiter.returned);
}

static void poll_for_long(void)
{
	struct ibv_recv_wr receive = { .wr_id = 1 }, *bad;
	struct ibv_port_attr port;
	struct ibv_wc wc[4];

	for (;;) {
		ibv_post_recv(qp, &receive, &bad);
		ibv_poll_cq(cq, 4, wc);
		ibv_query_port(context, 1, &port);
		ibv_dereg_mr(ibv_reg_mr(qp->pd, &wrong, sizeof wrong, 0));
		pthread_testcancel();
	}
}

static void make(void)
{
	struct sockaddr_in here = { .sin_family = AF_INET };
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 4, .max_recv_wr = 64, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	if (!context)
		exit(2);
	completions = ibv_create_comp_channel(context);
	cq = ibv_create_cq(context, 64, NULL, completions, 0);
	init.send_cq = init.recv_cq = cq;
	qp = ibv_create_qp(ibv_alloc_pd(context), &init);
	channel = rdma_create_event_channel();
	if (!qp || ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) || !channel ||
	    rdma_create_id(NULL, &listener, NULL, RDMA_PS_TCP) || rdma_bind_addr(listener, (struct sockaddr *)&here) ||
	    rdma_listen(listener, 4))
		exit(2);
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	make();
	cancelled("ibv_get_cq_event", completion);
	complete();
	completion();
	cancelled("ibv_get_async_event", async);
	cancelled("rdma_get_cm_event", connection);
	cancelled("rdma_get_request", request);
	forbidden();
	cancelled("functions that do not wait", poll_for_long);
	rdma_destroy_id(listener);
	rdma_destroy_event_channel(channel);
	CHECK("ibv_destroy_qp", ibv_destroy_qp(qp) == 0);
	CHECK("ibv_destroy_cq", ibv_destroy_cq(cq) == 0);
	CHECK("ibv_destroy_comp_channel", ibv_destroy_comp_channel(completions) == 0);
	printf("cancelled: %d wrong\n", wrong);
	return wrong != 0;
}
