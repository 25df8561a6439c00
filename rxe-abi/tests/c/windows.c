/* A memory window of type 2 is bound by a request that names the low 8 bits of its new key. The window's own key says the whole
 * one afterwards, as irdma has it: programs read it there and give it to their peers. A queue pair that is connected to itself
 * reads through it. Prints what is wrong; exit code 1 then. */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <string.h>

static int wrong;

static void note(const char *what, long got, long wanted)
{
	if (got == wanted)
		return;
	printf("%s: %ld, not %ld\n", what, got, wanted);
	wrong = 1;
}

static void connect_to_itself(struct ibv_context *context, struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND };
	struct ibv_qp_attr ready = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12 };
	struct ibv_qp_attr send = { .qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };

	note("INIT", ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
	ready.ah_attr.is_global = 1;
	ready.ah_attr.port_num = 1;
	ready.ah_attr.grh.hop_limit = 64;
	note("GID", ibv_query_gid(context, 1, 0, &ready.ah_attr.grh.dgid), 0);
	note("RTR", ibv_modify_qp(qp, &ready, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), 0);
	note("RTS", ibv_modify_qp(qp, &send, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC), 0);
}

static int completed(struct ibv_qp *qp)
{
	struct ibv_wc wc;
	int found;

	while (!(found = ibv_poll_cq(qp->send_cq, 1, &wc)))
		;
	return found < 0 ? -1 : (int)wc.status;
}

static int posted(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	wr->send_flags = IBV_SEND_SIGNALED;
	note("ibv_post_send", ibv_post_send(qp, wr, &bad), 0);
	return completed(qp);
}

static int read_by(struct ibv_qp *qp, struct ibv_mr *mr, char *from, uint32_t key)
{
	struct ibv_sge sge = { (uintptr_t)mr->addr, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ };

	wr.wr.rdma.remote_addr = (uintptr_t)from;
	wr.wr.rdma.rkey = key;
	return posted(qp, &wr);
}

int main(void)
{
	static char memory[4096];
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_context *context = devices && devices[0] ? ibv_open_device(devices[0]) : NULL;
	struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
	struct ibv_cq *cq = pd ? ibv_create_cq(context, 8, NULL, NULL, 0) : NULL;
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 3, 1, 1, 1, 0 } };
	struct ibv_qp *qp = cq ? ibv_create_qp(pd, &init) : NULL;
	struct ibv_mr *mr = qp ? ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND) : NULL;
	struct ibv_mw *mw = mr ? ibv_alloc_mw(pd, IBV_MW_TYPE_2) : NULL;
	struct ibv_send_wr bind = { .opcode = IBV_WR_BIND_MW }, *bad = NULL, end, again;
	uint32_t key, index;

	if (!mw) {
		printf("no memory window\n");
		return 2;
	}
	connect_to_itself(context, qp);
	index = mw->rkey & ~0xffu;
	for (key = 0x5a; key < 0x5c; key++) {
		bind.bind_mw.mw = mw;
		bind.bind_mw.rkey = key;
		bind.bind_mw.bind_info = (struct ibv_mw_bind_info){ mr, (uintptr_t)memory + 64, 64, IBV_ACCESS_REMOTE_READ };
		note("bind", posted(qp, &bind), IBV_WC_SUCCESS);
		note("the window's key", mw->rkey, index | key);
		strcpy(memory + 64, "window");
		note("READ by that key", read_by(qp, mr, memory + 64, mw->rkey), IBV_WC_SUCCESS);
		note("what was read", memcmp(memory, "window", 7), 0);
		memset(memory, 0, sizeof(memory));
		/* A window of type 2 is bound once at a time. */
		bind = (struct ibv_send_wr){ .opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = mw->rkey };
		note("local invalidate", posted(qp, &bind), IBV_WC_SUCCESS);
		bind = (struct ibv_send_wr){ .opcode = IBV_WR_BIND_MW };
	}
	/* A request that is refused changes nothing. */
	key = mw->rkey;
	bind.bind_mw.mw = mw;
	bind.bind_mw.rkey = 0x77;
	note("without a region", ibv_post_send(qp, &bind, &bad) != 0, 1);
	note("the key then", mw->rkey, key);
	/* Bound, invalidated and bound again by one list. The last bind names the window before the first one is done. */
	bind.bind_mw.bind_info = (struct ibv_mw_bind_info){ mr, (uintptr_t)memory + 64, 64, IBV_ACCESS_REMOTE_READ };
	again = bind;
	again.bind_mw.rkey = 0x78;
	again.send_flags = IBV_SEND_SIGNALED;
	end = (struct ibv_send_wr){ .opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = index | 0x77, .next = &again };
	bind.next = &end;
	note("first of a list", posted(qp, &bind), IBV_WC_SUCCESS);
	note("last of the list", completed(qp), IBV_WC_SUCCESS);
	note("the key of the last", mw->rkey, index | 0x78);
	ibv_dealloc_mw(mw);
	return wrong;
}
