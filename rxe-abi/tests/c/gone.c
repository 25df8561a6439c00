/* Memory that goes while it is registered: what uses it fails, the process lives, and both queue pairs tell. (A kernel device
 * keeps such pages to itself, so that nothing here can be compared with one.) Prints what is wrong; exit code 1 then. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SIZE 16384
#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

static int differ, tried;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static char good[SIZE];

static void note(const char *what, const char *part, int got, int wanted)
{
	tried++;
	if (got == wanted)
		return;
	differ++;
	printf("%s: %s: %d, wanted %d\n", what, part, got, wanted);
}

struct end {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

static struct end make(void)
{
	struct end end = { .cq = ibv_create_cq(context, 16, NULL, NULL, 0) };
	struct ibv_qp_init_attr init = {
		.send_cq = end.cq, .recv_cq = end.cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	end.qp = end.cq ? ibv_create_qp(pd, &init) : NULL;
	if (!end.qp)
		exit(2);
	return end;
}

static void connect_to(struct ibv_qp *qp, uint32_t to)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL, .path_mtu = IBV_MTU_1024, .dest_qp_num = to,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh.hop_limit = 64 }, .max_dest_rd_atomic = 1, .min_rnr_timer = 1,
		.timeout = 18, .retry_cnt = 3, .rnr_retry = 3, .max_rd_atomic = 1,
	};
	int wrong;

	ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid);
	wrong = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS);
	attr.qp_state = IBV_QPS_RTR;
	wrong |= ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	attr.qp_state = IBV_QPS_RTS;
	wrong |= ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			       IBV_QP_MAX_QP_RD_ATOMIC);
	if (wrong)
		exit(2);
}

static int status_of(struct ibv_cq *cq)
{
	struct ibv_wc wc = { .status = -1 };

	while (!ibv_poll_cq(cq, 1, &wc))
		;
	return wc.status;
}

enum away { UNMAPPED, READ_ONLY };

/* One request of fresh queue pairs whose own memory goes (`local`), or that of the peer; -1 for a receive is none. */
static void try(const char *what, enum ibv_wr_opcode opcode, enum away away, int local, int requester, int receiver)
{
	char *lost = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *over = ibv_reg_mr(pd, lost, SIZE, ALL);
	struct end a = make(), b = make();
	uint32_t length = opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? 8 : SIZE;
	struct ibv_sge here = { (uintptr_t)(local ? lost : good), length, (local ? over : mr)->lkey };
	struct ibv_sge there = { (uintptr_t)(local ? good : lost), length, (local ? mr : over)->lkey };
	struct ibv_send_wr send = { .sg_list = &here, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_recv_wr recv = { .sg_list = &there, .num_sge = 1 }, *bad_recv;

	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		send.wr.atomic.remote_addr = there.addr;
		send.wr.atomic.rkey = (local ? mr : over)->rkey;
	} else {
		send.wr.rdma.remote_addr = there.addr;
		send.wr.rdma.rkey = (local ? mr : over)->rkey;
	}
	if (opcode == IBV_WR_SEND)
		note(what, "ibv_post_recv", ibv_post_recv(b.qp, &recv, &bad_recv), 0);
	if (away == UNMAPPED)
		munmap(lost, SIZE);
	else
		mprotect(lost, SIZE, PROT_READ);
	note(what, "ibv_post_send", ibv_post_send(a.qp, &send, &bad), 0);
	note(what, "the requester's status", status_of(a.cq), requester);
	if (receiver >= 0)
		note(what, "the receiver's status", status_of(b.cq), receiver);
	note(what, "ibv_destroy_qp", ibv_destroy_qp(a.qp) | ibv_destroy_qp(b.qp), 0);
	note(what, "ibv_destroy_cq", ibv_destroy_cq(a.cq) | ibv_destroy_cq(b.cq), 0);
	note(what, "ibv_dereg_mr", ibv_dereg_mr(over), 0);
	if (away == READ_ONLY)
		munmap(lost, SIZE);
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	setvbuf(stdout, NULL, _IOLBF, 0);
	context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	pd = context ? ibv_alloc_pd(context) : NULL;
	mr = pd ? ibv_reg_mr(pd, good, SIZE, ALL) : NULL;
	if (!mr)
		return 2;
	ibv_free_device_list(list);
	try("a SEND from it", IBV_WR_SEND, UNMAPPED, 1, IBV_WC_LOC_PROT_ERR, -1);
	try("a SEND to it", IBV_WR_SEND, UNMAPPED, 0, IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR);
	try("a WRITE from it", IBV_WR_RDMA_WRITE, UNMAPPED, 1, IBV_WC_LOC_PROT_ERR, -1);
	try("a WRITE to it", IBV_WR_RDMA_WRITE, UNMAPPED, 0, IBV_WC_REM_OP_ERR, -1);
	try("a READ to it", IBV_WR_RDMA_READ, UNMAPPED, 1, IBV_WC_LOC_PROT_ERR, -1);
	try("a READ from it", IBV_WR_RDMA_READ, UNMAPPED, 0, IBV_WC_REM_OP_ERR, -1);
	try("an atomic on it", IBV_WR_ATOMIC_FETCH_AND_ADD, UNMAPPED, 0, IBV_WC_REM_OP_ERR, -1);
	try("an atomic's answer to it", IBV_WR_ATOMIC_FETCH_AND_ADD, UNMAPPED, 1, IBV_WC_LOC_PROT_ERR, -1);
	try("a WRITE to what is read-only now", IBV_WR_RDMA_WRITE, READ_ONLY, 0, IBV_WC_REM_OP_ERR, -1);
	try("a READ from what is read-only now", IBV_WR_RDMA_READ, READ_ONLY, 0, IBV_WC_SUCCESS, -1);
	ibv_dereg_mr(mr);
	ibv_dealloc_pd(pd);
	note("at the end", "ibv_close_device", ibv_close_device(context), 0);
	printf("%d tried, %d differ\n", tried, differ);
	return differ != 0;
}
