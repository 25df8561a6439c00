/* Scatter elements in packed structures, at addresses that are no multiple of anything, as libiscsi has them: a queue pair that is
 * connected to itself sends by them what it receives by them. Prints what is wrong; exit code 1 then. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <string.h>

#pragma pack(push, 1)
static struct {
	char odd;
	struct ibv_sge one[2];
	char again;
	struct ibv_sge other[2];
} packed;
#pragma pack(pop)

static char memory[4096];

static int connect_to_itself(struct ibv_context *context, struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num, .min_rnr_timer = 1,
		.timeout = 17, .retry_cnt = 7, .rnr_retry = 7, .ah_attr = { .is_global = 1, .port_num = 1 },
	};

	return ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid) ||
		ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) ||
		(attr.qp_state = IBV_QPS_RTR, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
			IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)) ||
		(attr.qp_state = IBV_QPS_RTS, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
			IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static int complete(struct ibv_cq *cq)
{
	struct ibv_wc wc;

	for (int left = 2; left > 0;) {
		int got = ibv_poll_cq(cq, 1, &wc);

		if (got < 0 || (got > 0 && wc.status != IBV_WC_SUCCESS)) {
			printf("a completion: %s\n", got < 0 ? "none can be had" : ibv_wc_status_str(wc.status));
			return 1;
		}
		left -= got;
	}
	return 0;
}

static int arrived(const char *how)
{
	if (!memcmp(memory + 2000, memory, 300) && !memcmp(memory + 3000, memory + 500, 200))
		return 0;
	printf("%s: other data than were sent\n", how);
	return 1;
}

/* More elements than any queue takes: the list is not even read. */
static int too_many(struct ibv_qp *qp, struct ibv_sge *list)
{
	struct ibv_send_wr send = { .sg_list = list, .num_sge = 1 << 26, .opcode = IBV_WR_SEND }, *bad_send;
	struct ibv_recv_wr receive = { .sg_list = list, .num_sge = 1 << 26 }, *bad_receive;
	struct ibv_qp_ex *extended = ibv_qp_to_qp_ex(qp);

	ibv_wr_start(extended);
	ibv_wr_send(extended);
	ibv_wr_set_sge_list(extended, 1 << 26, list);
	if (ibv_wr_complete(extended) == EINVAL && ibv_post_send(qp, &send, &bad_send) == EINVAL &&
	    ibv_post_recv(qp, &receive, &bad_receive) == EINVAL)
		return 0;
	printf("too many elements: not EINVAL\n");
	return 1;
}

int main(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_context *context = devices && devices[0] ? ibv_open_device(devices[0]) : NULL;
	struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
	struct ibv_cq *cq = pd ? ibv_create_cq(context, 8, NULL, NULL, 0) : NULL;
	struct ibv_mr *mr = cq ? ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE) : NULL;
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 4, 4, 2, 2, 0 }, .sq_sig_all = 1, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
	struct ibv_qp *qp = mr ? ibv_create_qp_ex(context, &init) : NULL;
	/* The warning of a packed member's address is what this is about. */
	struct ibv_sge *from = (struct ibv_sge *)((char *)&packed + 1), *to = (struct ibv_sge *)((char *)from + sizeof(packed.one) + 1);
	struct ibv_send_wr send = { .sg_list = from, .num_sge = 2, .opcode = IBV_WR_SEND }, *bad_send;
	struct ibv_recv_wr receive = { .sg_list = to, .num_sge = 2 }, *bad_receive;
	struct ibv_qp_ex *extended;

	if (!qp || connect_to_itself(context, qp)) {
		printf("there is no connected queue pair\n");
		return 2;
	}
	packed.one[0] = (struct ibv_sge){ (uintptr_t)memory, 300, mr->lkey };
	packed.one[1] = (struct ibv_sge){ (uintptr_t)memory + 500, 200, mr->lkey };
	packed.other[0] = (struct ibv_sge){ (uintptr_t)memory + 2000, 300, mr->lkey };
	packed.other[1] = (struct ibv_sge){ (uintptr_t)memory + 3000, 200, mr->lkey };
	for (int i = 0; i < 1000; i++)
		memory[i] = i * 7;
	if (ibv_post_recv(qp, &receive, &bad_receive) || ibv_post_send(qp, &send, &bad_send) || complete(cq) ||
	    arrived("ibv_post_send"))
		return 1;
	memset(memory + 2000, 0, 2000);
	extended = ibv_qp_to_qp_ex(qp);
	if (ibv_post_recv(qp, &receive, &bad_receive))
		return 1;
	if (too_many(qp, from))
		return 1;
	ibv_wr_start(extended);
	ibv_wr_send(extended);
	ibv_wr_set_sge_list(extended, 2, from);
	return ibv_wr_complete(extended) || complete(cq) || arrived("ibv_wr_set_sge_list");
}
