#define _GNU_SOURCE
/* What queries answer: the device's flags, a queue pair's attributes, texts. Prints what is wrong; exit code 1 then. */
#include <dlfcn.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

static int wrong;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

static void note(const char *what, long got, long wanted)
{
	if (got == wanted)
		return;
	wrong++;
	printf("%s: %#lx, wanted %#lx\n", what, got, wanted);
}

/* Flags above the 32nd bit; not all headers name them: FLUSH to global visibility and to persistence, ATOMIC_WRITE. */
static void flags(void)
{
	struct ibv_device_attr_ex attr;

	note("ibv_query_device_ex", ibv_query_device_ex(context, NULL, &attr), 0);
	note("the low flags", attr.device_cap_flags_ex & 0xffffffff, attr.orig_attr.device_cap_flags);
	note("the high flags", attr.device_cap_flags_ex >> 32, 1 << 6 | 1 << 7 | 1 << 8);
}

static struct ibv_qp *pair(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 }, .sq_sig_all = 1,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	if (!qp)
		exit(2);
	return qp;
}

/* The attributes of programs that were built before `rate_limit` was added end where it begins. */
static void older(void)
{
	union {
		struct ibv_qp_attr attr;
		char bytes[sizeof(struct ibv_qp_attr)];
	} room;
	const size_t end = offsetof(struct ibv_qp_attr, rate_limit);
	struct ibv_qp *qp = pair();
	struct ibv_qp_init_attr made;
	struct rdma_cm_id *id;
	int mask;

	memset(&room, 0x5a, sizeof(room));
	note("ibv_query_qp", ibv_query_qp(qp, &room.attr, IBV_QP_STATE, &made), 0);
	for (size_t i = end; i < sizeof(room); i++)
		note("a byte behind ibv_query_qp's", room.bytes[i], 0x5a);
	ibv_destroy_qp(qp);

	memset(&room, 0x5a, sizeof(room));
	room.attr.qp_state = IBV_QPS_INIT;
	note("rdma_create_id", rdma_create_id(NULL, &id, NULL, RDMA_PS_UDP), 0);
	note("rdma_init_qp_attr", rdma_init_qp_attr(id, &room.attr, &mask), 0);
	for (size_t i = end; i < sizeof(room); i++)
		note("a byte behind rdma_init_qp_attr's", room.bytes[i], 0x5a);
	rdma_destroy_id(id);
}

static int draining(struct ibv_qp *qp)
{
	struct ibv_qp_init_attr made;
	struct ibv_qp_attr attr;

	note("ibv_query_qp", ibv_query_qp(qp, &attr, IBV_QP_STATE, &made), 0);
	return attr.sq_draining;
}

/* A send queue drains until what it has begun is answered. The peer answers nothing before it is ready to receive. */
static void drains(void)
{
	struct ibv_qp *qp = pair(), *peer = pair();
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num, .min_rnr_timer = 1,
		.timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .ah_attr = { .is_global = 1, .port_num = 1 },
	};
	const int init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	const int ready = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	const int sends = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_MAX_QP_RD_ATOMIC;
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND }, *bad_send;
	struct ibv_wc wc;

	ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid);
	note("INIT", ibv_modify_qp(qp, &attr, init) | ibv_modify_qp(peer, &attr, init), 0);
	attr.qp_state = IBV_QPS_RTR;
	note("RTR", ibv_modify_qp(qp, &attr, ready), 0);
	attr.qp_state = IBV_QPS_RTS;
	/* Without a timeout: it waits for as long as this takes. */
	attr.timeout = 0;
	note("RTS", ibv_modify_qp(qp, &attr, sends), 0);
	note("a send", ibv_post_send(qp, &send, &bad_send), 0);
	note("no completion of it", ibv_poll_cq(cq, 1, &wc), 0);
	note("draining in RTS", draining(qp), 0);
	attr.qp_state = IBV_QPS_SQD;
	note("SQD", ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	note("draining in SQD", draining(qp), 1);
	attr.qp_state = IBV_QPS_ERR;
	note("ERR", ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	note("draining in ERR", draining(qp), 0);
	note("the flushed send", ibv_poll_cq(cq, 1, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR, 1);

	/* Nothing was begun. */
	attr.qp_state = IBV_QPS_RESET;
	note("RESET", ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	attr.qp_state = IBV_QPS_INIT;
	note("INIT again", ibv_modify_qp(qp, &attr, init), 0);
	attr.qp_state = IBV_QPS_RTR;
	note("RTR again", ibv_modify_qp(qp, &attr, ready), 0);
	attr.qp_state = IBV_QPS_RTS;
	note("RTS again", ibv_modify_qp(qp, &attr, sends), 0);
	attr.qp_state = IBV_QPS_SQD;
	note("SQD again", ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	note("draining of an empty queue", draining(qp), 0);
	ibv_destroy_qp(qp);
	ibv_destroy_qp(peer);
}

/* A function that programs look for by its name. */
static void texts(void)
{
	static const struct { int opcode; const char *text; } cases[] = {
		{ IBV_WR_RDMA_WRITE, "rdma-write" }, { IBV_WR_SEND, "send" }, { IBV_WR_SEND_WITH_INV, "send-with-inv" },
		{ IBV_WR_DRIVER1, "driver1" }, { 12, "unknown" }, { 14, "flush" }, { 15, "atomic-write" }, { 16, "unknown" },
		{ -1, "unknown" },
	};
	const char *(*text)(int) = NULL;
	void *found = dlsym(RTLD_DEFAULT, "ibv_wr_opcode_str");

	memcpy(&text, &found, sizeof(text));
	for (unsigned int i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		const char *got = text ? text(cases[i].opcode) : NULL;

		note(cases[i].text, got && !strcmp(got, cases[i].text), 1);
	}
}

/* The second flag, which not all headers name: only the device is asked about, and not the processor. */
static void order(void)
{
	struct ibv_qp *qp = pair();

	for (unsigned int device_only = 0; device_only <= 2; device_only += 2) {
		note("a WRITE in order", ibv_query_qp_data_in_order(qp, IBV_WR_RDMA_WRITE, device_only), 1);
		note("its capabilities", ibv_query_qp_data_in_order(qp, IBV_WR_RDMA_WRITE, 1 | device_only), 3);
		note("a READ in order", ibv_query_qp_data_in_order(qp, IBV_WR_RDMA_READ, device_only), 0);
	}
	note("an unknown flag", ibv_query_qp_data_in_order(qp, IBV_WR_RDMA_WRITE, 4), 0);
	ibv_destroy_qp(qp);
}

/* A file whose name makes it a dma-buf for the library: "/dmabuf:..." below another root. Few machines have a driver that exports
 * real ones. */
static int make_dmabuf(char *root)
{
	char proc[64];

	snprintf(proc, sizeof(proc), "%s/proc", root);
	if (unshare(CLONE_NEWNS) || mkdir(proc, 0700) || mount("/proc", proc, NULL, MS_BIND | MS_REC, NULL) || chroot(root))
		return -1;
	return open("/dmabuf:test", O_RDWR | O_CREAT, 0600);
}

/* The region of a part of a dma-buf, whose address is the part's offset. */
static void dmabufs(void)
{
	char root[] = "/tmp/rxe-answers-XXXXXX", byte = 0;
	int outside = open("/tmp", O_DIRECTORY), fd = mkdtemp(root) ? make_dmabuf(root) : -1;
	struct ibv_mr *mr;

	note("a file", fd >= 0 && !ftruncate(fd, 8192) && pwrite(fd, "x", 1, 4096) == 1, 1);
	mr = ibv_reg_dmabuf_mr(pd, 4096, 4096, 0, fd, IBV_ACCESS_LOCAL_WRITE);
	note("ibv_reg_dmabuf_mr", mr != NULL, 1);
	if (mr) {
		note("its address", (uintptr_t)mr->addr, 4096);
		note("its length", mr->length, 4096);
		note("ibv_dereg_mr", ibv_dereg_mr(mr), 0);
	}
	note("the file is as it was", pread(fd, &byte, 1, 4096) == 1 && byte == 'x', 1);
	if (umount2("/proc", MNT_DETACH) || rmdir("/proc") || unlink("/dmabuf:test") ||
	    unlinkat(outside, strrchr(root, '/') + 1, AT_REMOVEDIR))
		perror(root);
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	pd = context ? ibv_alloc_pd(context) : NULL;
	cq = pd ? ibv_create_cq(context, 8, NULL, NULL, 0) : NULL;
	if (!cq)
		return 2;
	flags();
	older();
	drains();
	texts();
	order();
	/* The last, because it leaves the root. */
	dmabufs();
	printf("answers: %d wrong\n", wrong);
	return wrong != 0;
}
