/* Signals while a thread waits for events or data. After handlers with SA_RESTART, which signal(3) sets, the wait goes on, as a read(2) of the
 * kernel's descriptors does. After others it fails with EINTR. Prints what is wrong; exit code 1 then. */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

/* Signals until an event is made. */
#define SIGNALS 5

static int wrong;
static volatile sig_atomic_t came, over, once, returned, ends_early;
static struct ibv_context *context;
static struct ibv_comp_channel *completions;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_srq *srq;
static struct rdma_event_channel *channel;
static struct rdma_cm_id *id;
static int ends[2];

static void handler(int number)
{
	came++;
	if (once)
		signal(number, SIG_IGN);
}

static void state(enum ibv_qp_state to)
{
	struct ibv_qp_attr attr = { .qp_state = to, .port_num = 1 };
	int mask = IBV_QP_STATE;

	if (to == IBV_QPS_INIT)
		mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	if (ibv_modify_qp(qp, &attr, mask)) {
		perror("ibv_modify_qp");
		exit(2);
	}
}

/* A send that is posted in the error state is flushed. */
static void make_completion(void)
{
	struct ibv_send_wr send = { .wr_id = 1, .opcode = IBV_WR_SEND }, *bad;

	state(IBV_QPS_ERR);
	if (ibv_post_send(qp, &send, &bad))
		exit(2);
}

static int wait_completion(void)
{
	struct ibv_cq *which;
	void *whose;

	if (ibv_get_cq_event(completions, &which, &whose))
		return -1;
	ibv_ack_cq_events(which, 1);
	return 0;
}

/* The queue pair of a shared receive queue takes its last receive. */
static void make_async(void)
{
	state(IBV_QPS_ERR);
}

static int wait_async(void)
{
	struct ibv_async_event event;

	if (ibv_get_async_event(context, &event))
		return -1;
	ibv_ack_async_event(&event);
	return 0;
}

static void make_connection(void)
{
	struct sockaddr_storage to = { .ss_family = AF_INET };
	const unsigned char loopback[4] = { 127, 0, 0, 1 };

	memcpy((char *)&to + 4, loopback, sizeof(loopback));
	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) ||
	    rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000)) {
		perror("rdma_resolve_addr");
		exit(2);
	}
}

static int wait_connection(void)
{
	struct rdma_cm_event *event;

	if (rdma_get_cm_event(channel, &event))
		return -1;
	rdma_ack_cm_event(event);
	return 0;
}

/* A byte for a socket that is connected to another of this process. */
static void make_byte(void)
{
	if (rsend(ends[0], "x", 1, 0) != 1)
		exit(2);
}

static int wait_byte(void)
{
	char byte;

	return rrecv(ends[1], &byte, 1, 0) == 1 ? 0 : -1;
}

static void *accept_one(void *listener)
{
	ends[1] = raccept(*(int *)listener, NULL, NULL);
	return NULL;
}

static void connect_sockets(void)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(7021) };
	int listener = rsocket(AF_INET, SOCK_STREAM, 0);
	pthread_t other;

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	ends[0] = rsocket(AF_INET, SOCK_STREAM, 0);
	if (rbind(listener, (struct sockaddr *)&to, sizeof(to)) || rlisten(listener, 1) ||
	    pthread_create(&other, NULL, accept_one, &listener) ||
	    rconnect(ends[0], (struct sockaddr *)&to, sizeof(to))) {
		perror("no connection");
		exit(2);
	}
	pthread_join(other, NULL);
	rclose(listener);
}

struct waiter {
	const char *what;
	int (*wait)(void);
	void (*make)(void);
};

static void *make(void *arg)
{
	const struct waiter *waiter = arg;

	/* A wait that should end does so without an event. If it does not, the event ends it after some seconds. */
	for (int n = 0; ends_early ? !returned && n < 5000 : came < SIGNALS; n++)
		usleep(1000);
	over = 1;
	waiter->make();
	return NULL;
}

static void play(const struct waiter *waiter, int flags)
{
	struct itimerval often = { { 0, 5000 }, { 0, 5000 } }, never = { { 0, 0 }, { 0, 0 } };
	struct sigaction action = { .sa_handler = handler, .sa_flags = flags };
	sigset_t alarms, before;
	pthread_t maker;
	int result, error;

	came = over = returned = 0;
	ends_early = !(flags & SA_RESTART);
	state(IBV_QPS_RESET);
	state(IBV_QPS_INIT);
	sigemptyset(&alarms);
	sigaddset(&alarms, SIGALRM);
	if (ibv_req_notify_cq(cq, 0) || sigaction(SIGALRM, &action, NULL))
		exit(2);
	/* The other thread does not take the signals. */
	pthread_sigmask(SIG_BLOCK, &alarms, &before);
	if (pthread_create(&maker, NULL, make, (void *)waiter))
		exit(2);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	result = waiter->wait();
	error = errno;
	returned = 1;
	if (flags & SA_RESTART ? result != 0 || !over : result != -1 || error != EINTR) {
		wrong++;
		printf("%s, %s SA_RESTART: %d (%s) after %d signals\n", waiter->what, flags ? "with" : "without",
		       result, strerror(error), (int)came);
	}
	pthread_join(maker, NULL);
	setitimer(ITIMER_REAL, &never, NULL);
	if (result && waiter->wait()) {
		wrong++;
		printf("%s: no event at last\n", waiter->what);
	}
	if (id) {
		rdma_destroy_id(id);
		id = NULL;
	}
}

int main(void)
{
	const struct waiter waiters[] = {
		{ "ibv_get_cq_event", wait_completion, make_completion },
		{ "ibv_get_async_event", wait_async, make_async },
		{ "rdma_get_cm_event", wait_connection, make_connection },
		{ "rrecv", wait_byte, make_byte },
	};
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 1, .max_sge = 1 } };
	struct ibv_pd *pd;

	context = devices && devices[0] ? ibv_open_device(devices[0]) : NULL;
	pd = context ? ibv_alloc_pd(context) : NULL;
	completions = context ? ibv_create_comp_channel(context) : NULL;
	cq = completions ? ibv_create_cq(context, 64, NULL, completions, 0) : NULL;
	srq = pd ? ibv_create_srq(pd, &shared) : NULL;
	channel = rdma_create_event_channel();
	if (!cq || !srq || !channel)
		return 2;
	connect_sockets();
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	for (unsigned int n = 0; n < sizeof(waiters) / sizeof(*waiters); n++) {
		init.srq = waiters[n].wait == wait_async ? srq : NULL;
		qp = ibv_create_qp(pd, &init);
		if (!qp)
			return 2;
		play(&waiters[n], SA_RESTART);
		play(&waiters[n], 0);
		/* A handler that removes itself, as for a first Ctrl-C: nothing says afterwards what it was. */
		once = 1;
		play(&waiters[n], 0);
		once = 0;
		if (ibv_destroy_qp(qp))
			return 2;
	}
	return wrong != 0;
}
