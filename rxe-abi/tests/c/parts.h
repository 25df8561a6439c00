/* One object of each kind, on the first device. */
#include <infiniband/verbs.h>
#include <stdlib.h>

static char memory[4096];

struct parts {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_qp *qp;
	struct ibv_srq *srq;
};

static struct parts open_all(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct parts parts = { .context = list && list[0] ? ibv_open_device(list[0]) : NULL };
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 4, .max_sge = 1 } };

	if (!parts.context)
		exit(2);
	ibv_free_device_list(list);
	parts.pd = ibv_alloc_pd(parts.context);
	parts.cq = ibv_create_cq(parts.context, 16, NULL, NULL, 0);
	parts.mr = ibv_reg_mr(parts.pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	parts.srq = ibv_create_srq(parts.pd, &srq);
	struct ibv_qp_init_attr init = {
		.send_cq = parts.cq, .recv_cq = parts.cq, .qp_type = IBV_QPT_UD,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	parts.qp = ibv_create_qp(parts.pd, &init);
	if (!parts.pd || !parts.cq || !parts.mr || !parts.srq || !parts.qp)
		exit(2);
	return parts;
}
