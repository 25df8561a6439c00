/* A forked child and what its parent has opened: calls end with EIO and leave the parent's alone; what only asks for the
 * device's properties works, device memory too, and so does a device that the child opens for itself. Prints what is wrong;
 * exit code 1 then. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "parts.h"

static int differ, tried;
static void note(const char *what, int got, int wanted)
{
	tried++;
	if (got == wanted)
		return;
	differ++;
	printf("%s: %d (%s), wanted %d\n", what, got, strerror(got), wanted);
}

#define CODE(call, wanted) note(#call, (call), wanted)
#define MINUS1(call, wanted) (errno = 0, note(#call, (call) == -1 ? errno : 0, wanted))
#define NUL(call, wanted) (errno = 0, note(#call, (call) == NULL ? errno : 0, wanted))

static int to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 17 };

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_QKEY);
}

static int receive(struct parts *parts)
{
	struct ibv_sge sge = { (uintptr_t)memory, 64, parts->mr->lkey };
	struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad;

	return ibv_post_recv(parts->qp, &recv, &bad);
}

static void child(struct parts *parts)
{
	struct ibv_alloc_dm_attr dm = { .length = 64 };
	struct ibv_device_attr_ex extended = { 0 };
	struct ibv_device_attr plain;
	struct ibv_port_attr port;
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND }, *bad_send;
	struct ibv_recv_wr none = { 0 }, *bad;
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq_attr limit = { .srq_limit = 1 };
	struct ibv_ah_attr ah = { .port_num = 1, .is_global = 1 };
	struct ibv_qp_init_attr init = {
		.send_cq = parts->cq, .recv_cq = parts->cq, .qp_type = IBV_QPT_UD,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	}, made;
	struct ibv_qp_attr attr;
	struct ibv_async_event event;
	struct ibv_wc wc;
	struct ibv_dm *own_dm;
	char word[8] = "forked";
	struct parts fresh;

	NUL(ibv_alloc_pd(parts->context), EIO);
	NUL(ibv_create_cq(parts->context, 4, NULL, NULL, 0), EIO);
	NUL(ibv_create_comp_channel(parts->context), EIO);
	NUL(ibv_reg_mr(parts->pd, memory, 64, 0), EIO);
	NUL(ibv_create_srq(parts->pd, &srq), EIO);
	NUL(ibv_create_qp(parts->pd, &init), EIO);
	ibv_query_gid(parts->context, 1, 0, &ah.grh.dgid);
	NUL(ibv_create_ah(parts->pd, &ah), EIO);
	NUL(ibv_alloc_mw(parts->pd, IBV_MW_TYPE_2), EIO);
	CODE(to_init(parts->qp), EIO);
	CODE(ibv_query_qp(parts->qp, &attr, IBV_QP_STATE, &made), EIO);
	CODE(receive(parts), EIO);
	CODE(ibv_post_send(parts->qp, &send, &bad_send), EIO);
	CODE(ibv_post_srq_recv(parts->srq, &none, &bad), EIO);
	CODE(ibv_modify_srq(parts->srq, &limit, IBV_SRQ_LIMIT), EIO);
	CODE(ibv_query_srq(parts->srq, &limit), EIO);
	CODE(ibv_req_notify_cq(parts->cq, 0), EIO);
	CODE(ibv_resize_cq(parts->cq, 64), EIO);
	note("ibv_poll_cq", ibv_poll_cq(parts->cq, 1, &wc) < 0, 1);
	note("ibv_get_async_event", ibv_get_async_event(parts->context, &event) != 0, 1);

	/* What the device is has not changed, and memory that both see is the program's affair, as with a kernel device. */
	CODE(ibv_query_device(parts->context, &plain), 0);
	CODE(ibv_query_device_ex(parts->context, NULL, &extended), 0);
	note("the devices' properties", memcmp(&plain, &extended.orig_attr, sizeof(plain)), 0);
	CODE(ibv_query_port(parts->context, 1, &port), EIO);
	own_dm = ibv_alloc_dm(parts->context, &dm);
	note("ibv_alloc_dm", own_dm != NULL, 1);
	if (own_dm) {
		CODE(ibv_memcpy_to_dm(own_dm, 8, word, sizeof(word)), 0);
		memset(word, 0, sizeof(word));
		CODE(ibv_memcpy_from_dm(word, own_dm, 8, sizeof(word)), 0);
		note("what device memory keeps", strcmp(word, "forked"), 0);
		CODE(ibv_free_dm(own_dm), 0);
	}

	/* Objects of the parent's may be put away, and a device may be opened. */
	ibv_destroy_qp(parts->qp);
	ibv_dereg_mr(parts->mr);
	ibv_destroy_cq(parts->cq);
	CODE(ibv_close_device(parts->context), 0);
	fresh = open_all();
	CODE(to_init(fresh.qp), 0);
	CODE(receive(&fresh), 0);
	CODE(ibv_destroy_qp(fresh.qp), 0);
	CODE(ibv_close_device(fresh.context), 0);
}

int main(void)
{
	struct parts parts = open_all();
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	int status = -1;
	pid_t pid;

	CODE(to_init(parts.qp), 0);
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		child(&parts);
		fflush(stdout);
		_exit(differ != 0);
	}
	waitpid(pid, &status, 0);
	note("the child", WIFEXITED(status) ? WEXITSTATUS(status) : 99, 0);
	/* It has left everything of ours as it was. */
	CODE(receive(&parts), 0);
	CODE(ibv_destroy_qp(parts.qp), 0);

	/* The connection manager: ids of the parent's are nothing to the child, which has its own. */
	channel = rdma_create_event_channel();
	MINUS1(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0);
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		struct sockaddr_in any = { .sin_family = AF_INET };
		struct rdma_event_channel *own;

		MINUS1(rdma_bind_addr(id, (struct sockaddr *)&any), EIO);
		own = rdma_create_event_channel();
		MINUS1(rdma_create_id(own, &id, NULL, RDMA_PS_TCP), 0);
		MINUS1(rdma_bind_addr(id, (struct sockaddr *)&any), 0);
		MINUS1(rdma_listen(id, 1), 0);
		CODE(rdma_destroy_id(id), 0);
		fflush(stdout);
		_exit(differ != 0);
	}
	waitpid(pid, &status, 0);
	note("the second child", WIFEXITED(status) ? WEXITSTATUS(status) : 99, 0);
	CODE(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(channel);
	printf("%d calls of the parent's tried, %d differ\n", tried, differ);
	return differ != 0;
}
