/* An object whose `handle` the program has written over is not known any more, as a kernel has it: ENOENT, and with the right number
 * it is as it was. Prints what is wrong; exit code 1 then. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>

static int wrong;

static void note(const char *what, int got, int wanted)
{
	if (got == wanted)
		return;
	printf("%s: %d, not %d\n", what, got, wanted);
	wrong = 1;
}

/* A call with another number gives ENOENT. */
#define UNKNOWN(object, call) do { \
		(object)->handle ^= 0xdeadbeef; \
		note(#call, call, ENOENT); \
		(object)->handle ^= 0xdeadbeef; \
	} while (0)
/* One that makes something gives nothing. */
#define NOTHING(object, call) do { \
		(object)->handle ^= 0xdeadbeef; \
		errno = 0; \
		note(#call, (call) != NULL, 0); \
		note("errno of " #call, errno, ENOENT); \
		(object)->handle ^= 0xdeadbeef; \
	} while (0)

int main(void)
{
	static char memory[4096];
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_context *context = devices && devices[0] ? ibv_open_device(devices[0]) : NULL;
	struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
	struct ibv_cq *cq = pd ? ibv_create_cq(context, 8, NULL, NULL, 0) : NULL;
	struct ibv_srq_init_attr queue = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = cq ? ibv_create_srq(pd, &queue) : NULL;
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC, .cap = { 2, 1, 1, 1, 0 } };
	struct ibv_qp *qp = srq ? ibv_create_qp(pd, &init) : NULL;
	struct ibv_mr *mr = qp ? ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE) : NULL;
	struct ibv_mw *mw = mr ? ibv_alloc_mw(pd, IBV_MW_TYPE_2) : NULL;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;

	if (!mw) {
		printf("not all objects were made\n");
		return 2;
	}
	NOTHING(pd, ibv_create_qp(pd, &init));
	NOTHING(cq, ibv_create_qp(pd, &init));
	NOTHING(srq, ibv_create_qp(pd, &init));
	NOTHING(pd, ibv_create_srq(pd, &queue));
	NOTHING(pd, ibv_reg_mr(pd, memory, 64, 0));
	NOTHING(pd, ibv_alloc_mw(pd, IBV_MW_TYPE_1));
	UNKNOWN(qp, ibv_modify_qp(qp, &attr, mask));
	UNKNOWN(qp, ibv_query_qp(qp, &attr, mask, &init));
	UNKNOWN(mw, ibv_dealloc_mw(mw));
	UNKNOWN(mr, ibv_dereg_mr(mr));
	UNKNOWN(qp, ibv_destroy_qp(qp));
	UNKNOWN(srq, ibv_destroy_srq(srq));
	UNKNOWN(cq, ibv_destroy_cq(cq));
	UNKNOWN(pd, ibv_dealloc_pd(pd));
	note("ibv_dealloc_mw", ibv_dealloc_mw(mw), 0);
	note("ibv_dereg_mr", ibv_dereg_mr(mr), 0);
	note("ibv_destroy_qp", ibv_destroy_qp(qp), 0);
	note("ibv_destroy_srq", ibv_destroy_srq(srq), 0);
	note("ibv_destroy_cq", ibv_destroy_cq(cq), 0);
	note("ibv_dealloc_pd", ibv_dealloc_pd(pd), 0);
	return wrong;
}
