/* Endpoints made in one call: what rdma_create_ep is given for a listener is what its requests' queue pairs are made of.
 * endpoints ADDRESS, which is one of this host. Prints what is wrong; exit code 1 then. */
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>

static int wrong;
static const char *address;

static void check(const char *what, int good)
{
	if (good)
		return;
	wrong++;
	printf("%s\n", what);
}

static struct rdma_addrinfo *find(int flags)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP, .ai_flags = flags }, *info;

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

static void *client(void *arg)
{
	struct ibv_qp_init_attr init = small();
	struct rdma_addrinfo *info = find(0);
	struct rdma_cm_id *id;

	(void)arg;
	if (rdma_create_ep(&id, info, NULL, &init)) {
		perror("rdma_create_ep");
		exit(2);
	}
	rdma_freeaddrinfo(info);
	check("rdma_connect", rdma_connect(id, NULL) == 0);
	rdma_disconnect(id);
	rdma_destroy_ep(id);
	return NULL;
}

int main(int count, char **arguments)
{
	struct ibv_qp_init_attr init = small();
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct rdma_cm_id *listener, *request;
	struct rdma_addrinfo *info;
	struct ibv_cq *send, *receive;
	struct ibv_srq *srq;
	struct ibv_pd *pd;
	pthread_t thread;

	if (count != 2)
		return 2;
	address = arguments[1];
	info = find(RAI_PASSIVE);
	if (rdma_create_ep(&listener, info, NULL, NULL))
		return 2;
	pd = ibv_alloc_pd(listener->verbs);
	send = ibv_create_cq(listener->verbs, 8, NULL, NULL, 0);
	receive = ibv_create_cq(listener->verbs, 8, NULL, NULL, 0);
	srq = ibv_create_srq(pd, &shared);
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
	pthread_join(thread, NULL);
	rdma_destroy_ep(request);
	rdma_destroy_ep(listener);
	check("nothing holds the queues", ibv_destroy_srq(srq) == 0 && ibv_destroy_cq(send) == 0 && ibv_destroy_cq(receive) == 0);
	check("nothing holds the domain", ibv_dealloc_pd(pd) == 0);
	printf("endpoints: %d wrong\n", wrong);
	return wrong != 0;
}
