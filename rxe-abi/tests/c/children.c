/* Forked children of a process whose threads are busy, and that has not acknowledged an event. A child posts a batch (in vain), destroys what its
 * parent had, and makes an id of its own, without waiting for locks or acknowledgements of threads that it does not have.
 * Prints what is wrong; exit code 1 then. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "parts.h"

static volatile int enough;
static struct parts shared;

/* Makes and destroys queue pairs. */
static void *makes_queues(void *arg)
{
	struct ibv_qp_init_attr init = {
		.send_cq = shared.cq, .recv_cq = shared.cq, .qp_type = IBV_QPT_UD,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	(void)arg;
	while (!enough) {
		struct ibv_qp *qp = ibv_create_qp(shared.pd, &init);

		if (qp)
			ibv_destroy_qp(qp);
	}
	return NULL;
}

/* Makes ids and takes their events. An address that is not ours is looked for among all interfaces. */
static void *makes_ids(void *arg)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr_in strange = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(0xc6336401) };
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	(void)arg;
	while (!enough && !rdma_create_id(channel, &id, NULL, RDMA_PS_TCP)) {
		rdma_bind_addr(id, (struct sockaddr *)&strange);
		if (!rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000) && !rdma_get_cm_event(channel, &event))
			rdma_ack_cm_event(event);
		rdma_destroy_id(id);
	}
	rdma_destroy_event_channel(channel);
	return NULL;
}

/* A queue pair of which a thread of the parent is between ibv_wr_start and ibv_wr_complete. */
static struct ibv_qp_ex *half_a_batch(void)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = shared.cq, .recv_cq = shared.cq, .qp_type = IBV_QPT_RC, .pd = shared.pd,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(shared.context, &init);

	if (!qp)
		exit(2);
	ibv_wr_start(ibv_qp_to_qp_ex(qp));
	return ibv_qp_to_qp_ex(qp);
}

int main(void)
{
	struct ibv_qp_ex *batch;
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_cm_event *event;
	struct rdma_cm_id *id, *own;
	pthread_t threads[2];
	int status = 0;

	shared = open_all();
	batch = half_a_batch();
	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) ||
	    rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000) || rdma_get_cm_event(channel, &event))
		return 2;
	if (pthread_create(&threads[0], NULL, makes_queues, NULL) || pthread_create(&threads[1], NULL, makes_ids, NULL))
		return 2;
	fflush(stdout);
	for (int n = 0; n < 200; n++) {
		pid_t pid = fork();

		if (pid == 0) {
			alarm(20);
			/* The parent has the UDP port. */
			if (unshare(CLONE_NEWNET) || system("ip link set lo up"))
				_exit(77);
			own = NULL;
			if (rdma_create_id(rdma_create_event_channel(), &own, NULL, RDMA_PS_TCP) || !own)
				_exit(3);
			if (!rdma_bind_addr(id, (struct sockaddr *)&to) || errno != EIO)
				_exit(5);
			ibv_wr_start(batch);
			ibv_wr_send(batch);
			if (ibv_wr_complete(batch) == 0)
				_exit(4);
			ibv_destroy_qp(shared.qp);
			ibv_dereg_mr(shared.mr);
			ibv_destroy_srq(shared.srq);
			ibv_destroy_cq(shared.cq);
			ibv_dealloc_pd(shared.pd);
			rdma_destroy_id(id);
			_exit(rdma_destroy_id(own) != 0);
		}
		waitpid(pid, &status, 0);
		if (status) {
			printf("child %d: status %#x\n", n, status);
			break;
		}
	}
	enough = 1;
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	rdma_ack_cm_event(event);
	rdma_destroy_id(id);
	rdma_destroy_event_channel(channel);
	return status != 0;
}
