/*
 * Queue pairs for raw packets: a frame sent by one comes to those whose flows fit, and to no other; what waits is flushed;
 * without CAP_NET_RAW there are none (EPERM). On the first device, in a network namespace of the program's own.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SIZE 1024

static int wrong;
static struct ibv_pd *pd;
static char memory[4][SIZE];
static struct ibv_mr *mr;

static void expect(const char *what, int right)
{
	if (!right) {
		printf("%s: not so\n", what);
		wrong = 1;
	}
}

struct end {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

static struct end make(void)
{
	struct end end = { .cq = ibv_create_cq(pd->context, 16, NULL, NULL, 0) };
	struct ibv_qp_init_attr init = {
		.send_cq = end.cq, .recv_cq = end.cq, .cap = { 4, 4, 2, 2 }, .qp_type = IBV_QPT_RAW_PACKET, .sq_sig_all = 1,
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	end.qp = ibv_create_qp(pd, &init);
	if (!end.qp) {
		printf("no queue pair: %s\n", strerror(errno));
		exit(1);
	}
	expect("INIT", !ibv_modify_qp(end.qp, &attr, IBV_QP_STATE | IBV_QP_PORT));
	attr.qp_state = IBV_QPS_RTR;
	expect("RTR", !ibv_modify_qp(end.qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	expect("RTS", !ibv_modify_qp(end.qp, &attr, IBV_QP_STATE));
	return end;
}

static int next(struct end *end, struct ibv_wc *wc)
{
	/* Up to 20 s. */
	for (int i = 0; i < 20000; i++) {
		int got = ibv_poll_cq(end->cq, 1, wc);

		if (got)
			return got;
		usleep(1000);
	}
	return 0;
}

static void receive(struct end *end, int place)
{
	/* In two elements, so that a frame lies in both. */
	struct ibv_sge sges[2] = { { (uintptr_t)memory[place], 50, mr->lkey }, { (uintptr_t)memory[place] + 50, SIZE - 50, mr->lkey } };
	struct ibv_recv_wr wr = { .wr_id = place, .sg_list = sges, .num_sge = 2 }, *bad;

	expect("ibv_post_recv", !ibv_post_recv(end->qp, &wr, &bad));
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct none[2] = { { 0 } };
	struct {
		struct ibv_flow_attr attr;
		struct ibv_flow_spec_eth eth;
	} flow = {
		.attr = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof(flow), .num_of_specs = 1, .port = 1 },
		.eth = { .type = IBV_FLOW_SPEC_ETH, .size = sizeof(struct ibv_flow_spec_eth),
			 .val = { .ether_type = 0xb588 }, .mask = { .ether_type = 0xffff } },
	};
	struct end from, to, other;
	struct ibv_flow *rule, *others;
	struct ibv_sge sge = { (uintptr_t)memory[0], 100, 0 };
	struct ibv_send_wr wr = { .wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_wc wc;

	pd = context ? ibv_alloc_pd(context) : NULL;
	mr = pd ? ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE) : NULL;
	if (!mr)
		return 2;
	sge.lkey = mr->lkey;
	from = make();
	to = make();
	other = make();
	rule = ibv_create_flow(to.qp, &flow.attr);
	flow.eth.val.ether_type = 0xb688;
	others = ibv_create_flow(other.qp, &flow.attr);
	expect("flows", rule && others);
	flow.attr.port = 2;
	expect("a flow of port 2", !ibv_create_flow(to.qp, &flow.attr) && errno == EINVAL);
	receive(&to, 1);
	receive(&other, 2);
	receive(&from, 3);

	for (int i = 0; i < 100; i++)
		memory[0][i] = i;
	/* For experiments (IEEE 802, 0x88b5); in network order. */
	memory[0][12] = (char)0x88;
	memory[0][13] = (char)0xb5;
	expect("ibv_post_send", !ibv_post_send(from.qp, &wr, &bad));
	expect("it has left", next(&from, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == 7 && wc.opcode == IBV_WC_SEND);
	expect("it has come", next(&to, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == 1 && wc.opcode == IBV_WC_RECV);
	expect("whole", wc.byte_len == 100 && !memcmp(memory[0], memory[1], 100));
	usleep(20000);
	expect("to nobody else", !ibv_poll_cq(other.cq, 1, &wc) && !ibv_poll_cq(from.cq, 1, &wc));

	expect("no flow", !ibv_destroy_flow(rule));
	receive(&to, 1);
	expect("ibv_post_send", !ibv_post_send(from.qp, &wr, &bad) && next(&from, &wc) == 1);
	usleep(20000);
	expect("nothing comes", !ibv_poll_cq(to.cq, 1, &wc));
	wr.opcode = IBV_WR_RDMA_WRITE;
	expect("a WRITE", ibv_post_send(from.qp, &wr, &bad) == EINVAL);
	wr.opcode = IBV_WR_SEND;
	sge.lkey ^= 0x100;
	expect("a wrong key", !ibv_post_send(from.qp, &wr, &bad) && next(&from, &wc) == 1 && wc.status == IBV_WC_LOC_PROT_ERR);
	expect("ERR", !ibv_modify_qp(to.qp, &attr, IBV_QP_STATE));
	expect("flushed", next(&to, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 1);

	ibv_destroy_flow(others);
	expect("destroyed", !ibv_destroy_qp(from.qp) && !ibv_destroy_qp(to.qp) && !ibv_destroy_qp(other.qp));
	expect("their queues too", !ibv_destroy_cq(from.cq) && !ibv_destroy_cq(to.cq));
	if (syscall(SYS_capset, &header, none))
		return 2;
	{
		struct ibv_qp_init_attr init = {
			.send_cq = other.cq, .recv_cq = other.cq, .cap = { 1, 1, 1, 1 }, .qp_type = IBV_QPT_RAW_PACKET,
		};
		expect("without the capability", !ibv_create_qp(pd, &init) && errno == EPERM);
	}
	expect("the last ones", !ibv_destroy_cq(other.cq) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	ibv_free_device_list(list);
	return wrong;
}
