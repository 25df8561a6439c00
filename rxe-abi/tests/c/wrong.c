/* Wrong calls, and the numbers that libibverbs over a kernel device gives for them. Prints one line for each that differs
 * and a sum; exit code 1 if any does. With an argument it leaves out what would end a program over a kernel device; if that
 * is "print", it prints what each call gave instead, for scripts/compat to compare, and ends with 0. */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

static int tried, differ, ours, print;

static void note(const char *what, int got, int wanted)
{
	tried++;
	if (print)
		printf("%s: %d\n", what, got);
	if (got == wanted)
		return;
	differ++;
	if (!print)
		printf("%s: %d (%s), wanted %d (%s)\n", what, got, strerror(got), wanted, strerror(wanted));
}

/* A call that returns a number of errno's, one that returns -1 and one that returns a pointer. */
#define CODE(call, wanted) note(#call, (call), wanted)
#define MINUS1(call, wanted) (errno = 0, note(#call, (call) == -1 ? errno : 0, wanted))
#define NUL(call, wanted) (errno = 0, note(#call, (call) == NULL ? errno : 0, wanted))

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char *page;

static void port(void)
{
	struct ibv_port_attr attr;
	struct ibv_gid_entry entries[64];
	union ibv_gid gid;
	__be16 pkey;

	CODE(ibv_query_port(context, 1, &attr), 0);
	CODE(ibv_query_port(context, 0, &attr), EINVAL);
	CODE(ibv_query_port(context, 2, &attr), EINVAL);
	CODE(ibv_query_gid(context, 1, 0, &gid), 0);
	MINUS1(ibv_query_gid(context, 2, 0, &gid), EINVAL);
	MINUS1(ibv_query_gid(context, 1, 70000, &gid), EINVAL);
	CODE(ibv_query_gid_ex(context, 1, 0, entries, 0), 0);
	CODE(ibv_query_gid_ex(context, 1, 0, entries, 1), EINVAL);
	CODE(ibv_query_gid_ex(context, 1, 70000, entries, 0), EINVAL);
	note("ibv_query_gid_table, no room", ibv_query_gid_table(context, entries, 0, 0), -EINVAL);
	note("ibv_query_gid_table", ibv_query_gid_table(context, entries, 64, 0) > 0, 1);
	CODE(ibv_query_pkey(context, 1, 0, &pkey), 0);
	note("ibv_query_pkey, index 9999", ibv_query_pkey(context, 1, 9999, &pkey), -1);
	CODE(ibv_get_pkey_index(context, 1, pkey), 0);
	note("ibv_get_pkey_index, no such key", ibv_get_pkey_index(context, 1, 0x3412), -1);
}

static void memory(void)
{
	char *read_only = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *gone = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *other;

	munmap(gone, 8192);
	NUL(ibv_reg_mr(pd, gone, 8192, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	NUL(ibv_reg_mr(pd, gone, 8192, 0), EFAULT);
	NUL(ibv_reg_mr(pd, read_only, 8192, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	other = ibv_reg_mr(pd, read_only, 8192, IBV_ACCESS_REMOTE_READ);
	note("read-only memory for reading", other != NULL, 1);
	note("ibv_dereg_mr", other ? ibv_dereg_mr(other) : -1, 0);
	/* Kernels count the pages that a region touches. */
	NUL(ibv_reg_mr(pd, page, 0, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	other = ibv_reg_mr(pd, page + 8, 0, IBV_ACCESS_LOCAL_WRITE);
	note("no bytes inside a page", other != NULL, 1);
	note("ibv_dereg_mr", other ? ibv_dereg_mr(other) : -1, 0);
	NUL(ibv_reg_mr(pd, page, 4096, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	NUL(ibv_reg_mr(pd, page, 4096, IBV_ACCESS_REMOTE_ATOMIC), EINVAL);
	NUL(ibv_reg_mr(pd, page, 4096, 1 << 18), EINVAL);
	/* Standard input is no dma-buf. */
	NUL(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, 0, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	NUL(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE), EBADF);

	errno = 0;
	note("ibv_rereg_mr, unknown flag", ibv_rereg_mr(mr, 1 << 5, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	note("errno of it", errno, EINVAL);
	note("ibv_rereg_mr, no memory",
	     ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	note("ibv_rereg_mr, rights without the flag", ibv_rereg_mr(mr, 0, NULL, NULL, 0, 1), IBV_REREG_MR_ERR_INPUT);
	CODE(ibv_dealloc_pd(pd), EBUSY);
	NUL(ibv_alloc_mw(pd, 7), EINVAL);
}

static void queues(void)
{
	struct ibv_device_attr limits;
	struct ibv_cq_init_attr_ex unknown = { .cqe = 4, .wc_flags = 1ULL << 40 };
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_srq_attr change = { .srq_limit = 1000 };
	struct ibv_qp_init_attr pair = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 1, .max_send_sge = 1 },
	};
	struct ibv_cq *with_channel, *which;
	struct ibv_srq *made;
	struct ibv_pd *other;
	struct ibv_qp *qp;
	void *whose;

	ibv_query_device(context, &limits);
	NUL(ibv_create_cq(context, 0, NULL, NULL, 0), EINVAL);
	NUL(ibv_create_cq(context, -1, NULL, NULL, 0), EINVAL);
	NUL(ibv_create_cq(context, limits.max_cqe + 1, NULL, NULL, 0), EINVAL);
	NUL(ibv_create_cq(context, 4, NULL, NULL, -1), EINVAL);
	NUL(ibv_create_cq(context, 4, NULL, NULL, context->num_comp_vectors), EINVAL);
	NUL(ibv_create_cq_ex(context, &unknown), EOPNOTSUPP);
	CODE(ibv_resize_cq(cq, 0), EINVAL);
	CODE(ibv_resize_cq(cq, limits.max_cqe + 1), EINVAL);

	with_channel = ibv_create_cq(context, 4, cq, channel, 0);
	note("context of a queue", with_channel->cq_context == cq, 1);
	CODE(ibv_destroy_comp_channel(channel), EBUSY);
	fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
	MINUS1(ibv_get_cq_event(channel, &which, &whose), EAGAIN);
	CODE(ibv_destroy_cq(with_channel), 0);
	CODE(ibv_destroy_comp_channel(channel), 0);

	srq.attr.max_wr = 0;
	NUL(ibv_create_srq(pd, &srq), EINVAL);
	srq.attr.max_wr = limits.max_srq_wr + 1;
	NUL(ibv_create_srq(pd, &srq), EINVAL);
	srq.attr.max_wr = 16;
	made = ibv_create_srq(pd, &srq);
	CODE(ibv_modify_srq(made, &change, IBV_SRQ_LIMIT), EINVAL);
	CODE(ibv_modify_srq(made, &change, 1 << 5), 0);
	/* Its domain need not be the queue pair's. */
	other = ibv_alloc_pd(context);
	pair.srq = made;
	qp = ibv_create_qp(other, &pair);
	note("a queue pair of another domain", qp != NULL, 1);
	CODE(qp ? ibv_destroy_qp(qp) : -1, 0);
	CODE(ibv_dealloc_pd(other), 0);
	CODE(ibv_destroy_srq(made), 0);
}

static struct ibv_qp_init_attr usual(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64 },
	};
	return init;
}

/* Other handles of an XRC target: it lives as long as one of them. */
static void sharing(struct ibv_xrcd *domain, struct ibv_qp *first)
{
	struct ibv_xrcd_init_attr apart = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT };
	struct ibv_xrcd *other = ibv_open_xrcd(context, &apart);
	struct ibv_qp_open_attr open = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE | IBV_QP_OPEN_ATTR_CONTEXT,
		.qp_num = first->qp_num, .xrcd = domain, .qp_context = &open, .qp_type = IBV_QPT_XRC_RECV,
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	int init = IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS;
	struct ibv_qp_init_attr made;
	struct ibv_qp *second;

	open.qp_num++;
	NUL(ibv_open_qp(context, &open), EINVAL);
	open.qp_num--;
	open.qp_type = IBV_QPT_RC;
	NUL(ibv_open_qp(context, &open), EINVAL);
	open.qp_type = IBV_QPT_XRC_RECV;
	open.xrcd = other;
	NUL(ibv_open_qp(context, &open), EINVAL);
	open.xrcd = domain;
	open.comp_mask &= ~IBV_QP_OPEN_ATTR_NUM;
	NUL(ibv_open_qp(context, &open), EINVAL);
	open.comp_mask |= IBV_QP_OPEN_ATTR_NUM | 1 << 7;
	NUL(ibv_open_qp(context, &open), EOPNOTSUPP);
	open.comp_mask &= ~(1 << 7);
	second = ibv_open_qp(context, &open);
	note("another handle of the same target", second && second->qp_num == first->qp_num, 1);
	note("its own context", second && second->qp_context == &open, 1);
	CODE(ibv_modify_qp(first, &attr, init), 0);
	CODE(ibv_destroy_qp(first), 0);
	CODE(ibv_close_xrcd(domain), EBUSY);
	CODE(ibv_query_qp(second, &attr, IBV_QP_STATE, &made), 0);
	note("the state that both have", attr.qp_state, IBV_QPS_INIT);
	CODE(ibv_destroy_qp(second), 0);
	NUL(ibv_open_qp(context, &open), EINVAL);
	CODE(ibv_close_xrcd(other), 0);
}

/* Kernel rxe has no tag matching. */
static void tags(void)
{
	struct ibv_srq_init_attr_ex srq = {
		.attr = { .max_wr = 16, .max_sge = 1 }, .srq_type = IBV_SRQT_TM, .pd = pd, .cq = cq, .tm_cap = { 4, 4 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ,
	};
	struct ibv_srq_init_attr basic = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_UC, .send_cq = cq, .recv_cq = cq, .cap = { 2, 0, 1, 0, 0 } };
	struct ibv_send_wr *bad_send, send = { .opcode = IBV_WR_SEND };
	struct ibv_ops_wr *bad = NULL, add = { .opcode = IBV_WR_TAG_ADD }, last = { .opcode = 9 };
	struct ibv_srq *made, *plain;
	struct ibv_qp *qp;

	if (!ours)
		return;
	NUL(ibv_create_srq_ex(context, &srq), EINVAL);
	srq.comp_mask |= IBV_SRQ_INIT_ATTR_TM;
	srq.tm_cap.max_num_tags = 1 << 30;
	NUL(ibv_create_srq_ex(context, &srq), EINVAL);
	srq.tm_cap.max_num_tags = 4;
	srq.tm_cap.max_ops = 1 << 30;
	NUL(ibv_create_srq_ex(context, &srq), EINVAL);
	srq.tm_cap.max_ops = 4;
	made = ibv_create_srq_ex(context, &srq);
	plain = ibv_create_srq(pd, &basic);
	CODE(ibv_post_srq_ops(plain, &add, &bad), EINVAL);
	CODE(bad == &add, 1);
	add.next = &last;
	CODE(ibv_post_srq_ops(made, &add, &bad), EINVAL);
	CODE(bad == &last, 1);
	last.opcode = IBV_WR_TAG_SYNC;
	last.flags = 1 << 9;
	CODE(ibv_post_srq_ops(made, &last, &bad), EINVAL);
	for (int more = 1; more < 4; more++) {
		add.next = NULL;
		CODE(ibv_post_srq_ops(made, &add, &bad), 0);
	}
	CODE(ibv_post_srq_ops(made, &add, &bad), ENOMEM);
	add.tm.add.num_sge = -1;
	CODE(ibv_post_srq_ops(made, &add, &bad), EINVAL);
	init.srq = made;
	NUL(ibv_create_qp(pd, &init), EINVAL);
	init.qp_type = IBV_QPT_RC;
	qp = ibv_create_qp(pd, &init);
	/* The send queue is not the program's. */
	CODE(ibv_post_send(qp, &send, &bad_send), EINVAL);
	CODE(ibv_destroy_srq(made), EBUSY);
	CODE(ibv_destroy_qp(qp), 0);
	CODE(ibv_destroy_srq(made), 0);
	CODE(ibv_destroy_srq(plain), 0);
}

/* Kernels without XRC refuse all of it. */
static void extended(void)
{
	struct ibv_xrcd_init_attr open = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = 1 };
	struct ibv_srq_init_attr_ex srq = {
		.attr = { .max_wr = 16, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .pd = pd, .cq = cq,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_XRCD,
	};
	struct ibv_qp_init_attr_ex target = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD };
	struct ibv_qp_init_attr plain = { .qp_type = IBV_QPT_XRC_RECV, .send_cq = cq, .recv_cq = cq };
	struct ibv_srq_init_attr basic = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_recv_wr *bad, none = { .num_sge = 0 };
	struct ibv_xrcd *domain, *same;
	struct ibv_srq *made;
	struct ibv_qp *qp;
	uint32_t number = 0;

	if (!ours)
		return;
	NUL(ibv_open_xrcd(context, &open), EAGAIN);
	open.oflags = O_CREAT;
	open.fd = 9999;
	NUL(ibv_open_xrcd(context, &open), EBADF);
	open.fd = 1;
	domain = ibv_open_xrcd(context, &open);
	open.oflags = O_CREAT | O_EXCL;
	NUL(ibv_open_xrcd(context, &open), EINVAL);
	open.oflags = 0;
	same = ibv_open_xrcd(context, &open);
	CODE(same == NULL, 0);
	CODE(ibv_close_xrcd(same), 0);
	open.comp_mask = 1 << 5;
	NUL(ibv_open_xrcd(context, &open), EOPNOTSUPP);

	NUL(ibv_create_srq_ex(context, &srq), EINVAL);
	srq.xrcd = domain;
	srq.comp_mask &= ~IBV_SRQ_INIT_ATTR_CQ;
	NUL(ibv_create_srq_ex(context, &srq), EINVAL);
	srq.comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
	made = ibv_create_srq_ex(context, &srq);
	CODE(ibv_close_xrcd(domain), EBUSY);
	CODE(ibv_get_srq_num(made, &number), 0);
	CODE(number == 0, 0);
	CODE(ibv_destroy_srq(made), 0);
	made = ibv_create_srq(pd, &basic);
	CODE(ibv_get_srq_num(made, &number), EOPNOTSUPP);
	CODE(ibv_destroy_srq(made), 0);

	NUL(ibv_create_qp(pd, &plain), EINVAL);
	NUL(ibv_create_qp_ex(context, &target), EINVAL);
	target.xrcd = domain;
	qp = ibv_create_qp_ex(context, &target);
	CODE(ibv_post_recv(qp, &none, &bad), EINVAL);
	CODE(ibv_close_xrcd(domain), EBUSY);
	sharing(domain, qp);
	CODE(ibv_close_xrcd(domain), 0);
}

static void making_pairs(void)
{
	struct ibv_qp_init_attr init = usual();
	struct ibv_qp_init_attr_ex ex = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd,
		.cap = { .max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_TSO,
	};
	struct ibv_qp *plain;

	init.cap.max_send_wr = 1 << 30;
	NUL(ibv_create_qp(pd, &init), EINVAL);
	init = usual();
	init.cap.max_send_sge = 10000;
	NUL(ibv_create_qp(pd, &init), EINVAL);
	init = usual();
	init.qp_type = 77;
	NUL(ibv_create_qp(pd, &init), EINVAL);
	if (ours) {
		/* libibverbs follows the pointer. */
		init = usual();
		init.send_cq = NULL;
		NUL(ibv_create_qp(pd, &init), EINVAL);
	}
	NUL(ibv_create_qp_ex(context, &ex), EOPNOTSUPP);
	ex.send_ops_flags = 0;
	ex.comp_mask |= 1 << 20;
	NUL(ibv_create_qp_ex(context, &ex), EOPNOTSUPP);
	init = usual();
	plain = ibv_create_qp(pd, &init);
	note("no ibv_wr_* without asking", ibv_qp_to_qp_ex(plain) == NULL, 1);
	CODE(ibv_destroy_cq(cq), EBUSY);
	CODE(ibv_destroy_qp(plain), 0);
}

/* What needs an adapter's hardware, or the right to see everybody's packets. */
static void raw(void)
{
	struct ibv_qp_init_attr init = usual();
	struct ibv_qp_init_attr_ex ex = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RAW_PACKET, .pd = pd,
		.cap = { .max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1 }, .comp_mask = IBV_QP_INIT_ATTR_PD,
	};
	struct ibv_wq_init_attr queue = { .wq_type = IBV_WQT_RQ, .max_wr = 4, .max_sge = 1, .pd = pd, .cq = cq };
	struct ibv_wq *none = NULL;
	struct ibv_rwq_ind_table_init_attr table = { .ind_tbl = &none };
	struct ibv_flow_action_esp_attr esp = { 0 };
	struct ibv_counters_init_attr counters = { 0 };
	struct ibv_ece ece = { .vendor_id = 0x123456 };
	struct {
		struct ibv_flow_attr attr;
		struct ibv_flow_spec_eth eth;
	} flow = {
		.attr = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof(flow), .num_of_specs = 1, .port = 1 },
		.eth = { .type = IBV_FLOW_SPEC_ETH, .size = sizeof(struct ibv_flow_spec_eth) },
	};
	struct ibv_flow *made;
	struct ibv_qp *qp;
	struct ibv_wq *wq;
	int packets = socket(AF_PACKET, SOCK_RAW, 0), allowed = packets >= 0 ? 0 : EPERM;

	close(packets);
	init.qp_type = IBV_QPT_RAW_PACKET;
	errno = 0;
	qp = ibv_create_qp(pd, &init);
	note("a queue pair for raw packets", qp ? 0 : errno, allowed);
	if (qp)
		ibv_destroy_qp(qp);
	errno = 0;
	qp = ibv_create_qp_ex(context, &ex);
	note("an extended one", qp ? 0 : errno, allowed);
	if (qp)
		ibv_destroy_qp(qp);
	ex.qp_type = IBV_QPT_DRIVER;
	NUL(ibv_create_qp_ex(context, &ex), EOPNOTSUPP);
	init = usual();
	qp = ibv_create_qp(pd, &init);
	flow.attr.type = IBV_FLOW_ATTR_SNIFFER;
	NUL(made = ibv_create_flow(qp, &flow.attr), EOPNOTSUPP);
	flow.attr.type = IBV_FLOW_ATTR_NORMAL;
	NUL(made = ibv_create_flow(qp, &flow.attr), EOPNOTSUPP);
	note("no flow", made != NULL, 0);
	errno = 0;
	wq = ibv_create_wq(context, &queue);
	note("a receive work queue", wq ? 0 : errno, 0);
	if (wq)
		ibv_destroy_wq(wq);
	NUL(ibv_create_rwq_ind_table(context, &table), EINVAL);
	NUL(ibv_create_flow_action_esp(context, &esp), EOPNOTSUPP);
	NUL(ibv_create_counters(context, &counters), EOPNOTSUPP);
	/* Its connection options: none. */
	CODE(ibv_query_ece(qp, &ece), EOPNOTSUPP);
	CODE(ibv_set_ece(qp, &ece), EOPNOTSUPP);
	ece.vendor_id = 0;
	CODE(ibv_set_ece(qp, &ece), EOPNOTSUPP);
	CODE(ibv_destroy_qp(qp), 0);
}

static void changing_pairs(void)
{
	struct ibv_qp_init_attr init = usual();
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
	union ibv_gid gid = { .raw = { 0xff, 0x0e } };

	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	attr.qp_state = 99;
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	attr.qp_state = IBV_QPS_INIT;
	attr.port_num = 1;
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT), EINVAL);
	attr.port_num = 3;
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS), EINVAL);
	attr.port_num = 1;
	attr.pkey_index = 9999;
	/* Kernel rxe takes any index. */
	if (ours || print)
		note("ibv_modify_qp, P_Key index 9999",
		     ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS), EINVAL);
	attr.qp_state = IBV_QPS_RESET;
	ibv_modify_qp(qp, &attr, IBV_QP_STATE);
	attr.qp_state = IBV_QPS_INIT;
	attr.pkey_index = 0;
	CODE(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS), 0);
	note("the state that programs read", qp->state, IBV_QPS_INIT);
	CODE(ibv_attach_mcast(qp, &gid, 0), EINVAL);
	CODE(ibv_destroy_qp(qp), 0);
}

static void posting(void)
{
	struct ibv_qp_init_attr init = usual();
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_sge sge[2] = { { (uintptr_t)page, 8, mr->lkey }, { (uintptr_t)page, 8, mr->lkey } };
	struct ibv_recv_wr recv[4] = { 0 }, *bad_recv = NULL;
	struct ibv_send_wr send[2] = { 0 }, *bad_send = NULL;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	for (int i = 0; i < 4; i++)
		recv[i] = (struct ibv_recv_wr){ .next = i < 3 ? &recv[i + 1] : NULL, .sg_list = sge, .num_sge = 1 };
	send[0] = (struct ibv_send_wr){ .next = &send[1], .sg_list = sge, .num_sge = 1, .opcode = IBV_WR_SEND };
	send[1] = (struct ibv_send_wr){ .sg_list = sge, .num_sge = 1, .opcode = IBV_WR_SEND };
	CODE(ibv_post_recv(qp, recv, &bad_recv), EINVAL);
	CODE(ibv_post_send(qp, send, &bad_send), EINVAL);
	if (!ours && !print) {
		/*
		 * Kernel rxe makes queues larger than asked for, and its provider says ENOMEM also for requests that are
		 * wrong in themselves and does not always name the culprit. Adapters' providers do as we do.
		 */
		ibv_destroy_qp(qp);
		return;
	}
	note("bad_wr of a receive before INIT", bad_recv == &recv[0], 1);
	note("bad_wr of a send before RTS", bad_send == &send[0], 1);

	ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS);
	recv[0].num_sge = 2;
	note("a receive of more parts than the queue takes", ibv_post_recv(qp, recv, &bad_recv), EINVAL);
	/* Kernel rxe's provider copies as many parts as it is told. */
	if (ours) {
		recv[0].num_sge = -1;
		CODE(ibv_post_recv(qp, recv, &bad_recv), EINVAL);
	}
	recv[0].num_sge = 1;
	note("four receives into a queue of two", ibv_post_recv(qp, recv, &bad_recv), ENOMEM);
	note("bad_wr of them", bad_recv == &recv[2], 1);
	attr.qp_state = IBV_QPS_ERR;
	ibv_modify_qp(qp, &attr, IBV_QP_STATE);
	send[1].num_sge = 2;
	note("a send of more parts than the queue takes", ibv_post_send(qp, send, &bad_send), EINVAL);
	note("bad_wr of that send", bad_send == &send[1], 1);
	send[0].opcode = 77;
	note("a send of an unknown opcode", ibv_post_send(qp, send, &bad_send), EINVAL);
	note("bad_wr of the unknown opcode", bad_send == &send[0], 1);
	send[1] = (struct ibv_send_wr){ .sg_list = sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE };
	sge[0].length = 4000;
	note("more inline data than asked for", ibv_post_send(qp, &send[1], &bad_send), EINVAL);
	CODE(ibv_destroy_qp(qp), 0);
}

static void addresses(void)
{
	struct ibv_ah_attr attr = { .port_num = 1 };

	NUL(ibv_create_ah(pd, &attr), EINVAL);
	attr.is_global = 1;
	attr.grh.dgid.raw[10] = attr.grh.dgid.raw[11] = 0xff;
	attr.grh.dgid.raw[12] = 10;
	attr.grh.sgid_index = 200;
	NUL(ibv_create_ah(pd, &attr), ENODATA);
	attr.grh.sgid_index = 0;
	attr.port_num = 2;
	NUL(ibv_create_ah(pd, &attr), EINVAL);
}

int main(int count, char **arguments)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	ours = count < 2;
	print = count > 1 && !strcmp(arguments[1], "print");
	setvbuf(stdout, NULL, _IOLBF, 0);
	context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	if (!context)
		return 2;
	ibv_free_device_list(list);
	page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	mr = ibv_reg_mr(pd, page, 4096, ALL);
	if (!pd || !cq || !mr)
		return 2;
	port();
	memory();
	queues();
	tags();
	extended();
	making_pairs();
	raw();
	changing_pairs();
	posting();
	addresses();
	CODE(ibv_dereg_mr(mr), 0);
	CODE(ibv_destroy_cq(cq), 0);
	CODE(ibv_dealloc_pd(pd), 0);
	CODE(ibv_close_device(context), 0);
	if (print)
		return 0;
	printf("%d calls tried, %d differ\n", tried, differ);
	return differ != 0;
}
