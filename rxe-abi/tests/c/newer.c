/* Functions of rdma-core 60 and later, which the headers here may not have: registration with all attributes in one call,
 * hints for caches, buffers of the library's, the port's speed, addresses by an event. What is wanted is what rdma-core's own tests want. Prints
 * what is wrong; exit code 1 then. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct buf;
struct dmah {
	struct ibv_context *context;
};

enum { IOVA = 1, ADDR = 2, FD = 4, DMAH = 16, BUF = 32 };

struct mr_init_attr {
	size_t length;
	int access;
	uint64_t comp_mask;
	uint64_t iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	struct dmah *dmah;
	struct buf *buf;
};

struct dmah_init_attr {
	uint32_t comp_mask;
	uint32_t cpu_id;
	uint8_t ph;
	uint8_t tph_mem_type;
};

/* Looked up, since the library that this is linked with may not have them. */
static struct ibv_mr *(*reg_mr_ex)(struct ibv_pd *, struct mr_init_attr *);
static struct dmah *(*alloc_dmah)(struct ibv_context *, struct dmah_init_attr *);
static int (*dealloc_dmah)(struct dmah *);
static void *(*alloc_buf)(struct ibv_pd *, size_t, struct buf **);
static void (*free_buf)(struct buf *);
static struct ibv_mr *(*reg_buf_mr)(struct ibv_pd *, struct buf *, void *, size_t, int);
static int (*export_buf)(struct buf *);
static int (*query_port_speed)(struct ibv_context *, uint32_t, uint64_t *);

static void find(void *place, const char *name)
{
	void *found = dlsym(RTLD_DEFAULT, name);

	if (!found) {
		printf("no %s\n", name);
		exit(2);
	}
	memcpy(place, &found, sizeof(found));
}

static void find_all(void)
{
	find(&reg_mr_ex, "ibv_reg_mr_ex");
	find(&alloc_dmah, "ibv_alloc_dmah");
	find(&dealloc_dmah, "ibv_dealloc_dmah");
	find(&alloc_buf, "ibv_alloc_buf");
	find(&free_buf, "ibv_free_buf");
	find(&reg_buf_mr, "ibv_reg_buf_mr");
	find(&export_buf, "ibv_export_buf_dmabuf_fd");
	find(&query_port_speed, "ibv_query_port_speed");
}

static int wrong;

static void note(const char *what, long got, long wanted)
{
	if (got == wanted)
		return;
	wrong++;
	printf("%s: %ld, wanted %ld\n", what, got, wanted);
}

#define NUL(call, wanted) (errno = 0, note(#call, (call) == NULL ? errno : 0, wanted))

static void region(struct ibv_pd *pd, struct ibv_context *context)
{
	static char page[8192] __attribute__((aligned(4096)));
	struct mr_init_attr attr = { .length = 4096, .access = IBV_ACCESS_LOCAL_WRITE, .comp_mask = ADDR | IOVA, .addr = page, .iova = 7 };
	struct dmah_init_attr hints = { .comp_mask = 7 };
	struct dmah *dmah = alloc_dmah(context, &hints);
	struct ibv_mr *mr;

	mr = reg_mr_ex(pd, &attr);
	note("ibv_reg_mr_ex", mr && mr->addr == page && mr->length == 4096 && mr->pd == pd, 1);
	note("ibv_dereg_mr", mr ? ibv_dereg_mr(mr) : -1, 0);
	note("ibv_alloc_dmah", dmah && dmah->context == context, 1);
	attr.comp_mask |= DMAH;
	attr.dmah = dmah;
	mr = reg_mr_ex(pd, &attr);
	note("with hints", mr != NULL, 1);
	note("ibv_dealloc_dmah in use", dealloc_dmah(dmah), EBUSY);
	note("ibv_dereg_mr", mr ? ibv_dereg_mr(mr) : -1, 0);
	attr.access |= IBV_ACCESS_ON_DEMAND;
	NUL(reg_mr_ex(pd, &attr), EINVAL);
	note("ibv_dealloc_dmah", dealloc_dmah(dmah), 0);
	attr.comp_mask = IOVA;
	NUL(reg_mr_ex(pd, &attr), EINVAL);
	/* A dma-buf needs an offset, and a descriptor of one. */
	attr.comp_mask = FD;
	NUL(reg_mr_ex(pd, &attr), EINVAL);
	attr.comp_mask = FD | 8;
	attr.access = IBV_ACCESS_LOCAL_WRITE;
	attr.fd = -1;
	NUL(reg_mr_ex(pd, &attr), EBADF);
	attr.fd = 0;
	NUL(reg_mr_ex(pd, &attr), EINVAL);
	attr.comp_mask = ADDR | 1 << 20;
	NUL(reg_mr_ex(pd, &attr), EOPNOTSUPP);

	hints.ph = 4;
	NUL(alloc_dmah(context, &hints), EINVAL);
	hints.ph = 0;
	hints.cpu_id = 0xffff;
	NUL(alloc_dmah(context, &hints), EINVAL);
	hints.cpu_id = 0;
	hints.tph_mem_type = 0xfe;
	NUL(alloc_dmah(context, &hints), EINVAL);
	hints.tph_mem_type = 1;
	dmah = alloc_dmah(context, &hints);
	note("persistent memory", dmah != NULL, 1);
	note("ibv_dealloc_dmah", dealloc_dmah(dmah), 0);
}

static void addresses(void)
{
	int (*resolve)(struct rdma_cm_id *, const char *, const char *, const struct rdma_addrinfo *);
	int (*query)(struct rdma_cm_id *, struct rdma_addrinfo **);
	int (*write_event)(struct rdma_cm_id *, int, int, uint64_t);
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_addrinfo hints = { .ai_flags = 0x10 }, *info = NULL;
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	uint64_t arg = 0;

	find(&resolve, "rdma_resolve_addrinfo");
	find(&query, "rdma_query_addrinfo");
	find(&write_event, "rdma_write_cm_event");
	rdma_create_id(channel, &id, NULL, RDMA_PS_TCP);
	note("rdma_query_addrinfo too early", query(id, &info) == -1 ? errno : 0, ENOENT);
	note("a subnet manager's names", resolve(id, NULL, "7000", &hints) == -1 ? errno : 0, EOPNOTSUPP);
	note("rdma_resolve_addrinfo", resolve(id, "127.0.0.1", "7000", NULL), 0);
	note("rdma_resolve_addrinfo twice", resolve(id, "127.0.0.1", "7000", NULL) == -1 ? errno : 0, EBUSY);
	note("rdma_get_cm_event", rdma_get_cm_event(channel, &event), 0);
	note("ADDRINFO_RESOLVED", event->event, 16);
	rdma_ack_cm_event(event);
	note("rdma_query_addrinfo", query(id, &info), 0);
	note("its port", info ? ntohs(((struct sockaddr_in *)info->ai_dst_addr)->sin_port) : 0, 7000);
	rdma_freeaddrinfo(info);

	note("rdma_write_cm_event of another kind", write_event(id, 0, 0, 0) == -1 ? errno : 0, EINVAL);
	note("rdma_write_cm_event", write_event(id, 18, -5, 1ULL << 40), 0);
	note("rdma_get_cm_event", rdma_get_cm_event(channel, &event), 0);
	memcpy(&arg, &event->param, sizeof(arg));
	note("USER", event->event == 18 && event->status == -5 && event->id == id && arg == 1ULL << 40, 1);
	note("its name", strcmp(rdma_event_str(event->event), "RDMA_CM_EVENT_USER"), 0);
	rdma_ack_cm_event(event);
	/* What nobody asked for ends with the id. */
	note("rdma_resolve_addrinfo", resolve(id, "127.0.0.1", "7000", NULL), 0);
	rdma_destroy_id(id);
	rdma_destroy_event_channel(channel);
}

static void buffer(struct ibv_pd *pd, struct ibv_pd *other)
{
	size_t page = sysconf(_SC_PAGESIZE);
	struct buf *buf = NULL;
	char *start = alloc_buf(pd, 2 * page, &buf);
	struct ibv_mr *first = reg_buf_mr(pd, buf, start, page, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *second = reg_buf_mr(pd, buf, start + page, page, IBV_ACCESS_LOCAL_WRITE);

	note("ibv_alloc_buf", start && (uintptr_t)start % page == 0, 1);
	memset(start, 1, 2 * page);
	note("ibv_reg_buf_mr", first && second && first->lkey != second->lkey && second->addr == start + page, 1);
	NUL(reg_buf_mr(other, buf, start, page, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	NUL(reg_buf_mr(pd, buf, start, 3 * page, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	NUL(reg_buf_mr(pd, buf, start + page, 2 * page, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	NUL(reg_buf_mr(pd, buf, start - 8, page, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	note("ibv_export_buf_dmabuf_fd", export_buf(buf) == -1 ? errno : 0, ENODATA);
	ibv_dereg_mr(first);
	ibv_dereg_mr(second);
	note("ibv_dealloc_pd", ibv_dealloc_pd(pd), EBUSY);
	free_buf(buf);
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	struct ibv_pd *pd, *other;
	uint64_t speed = 0;

	if (!context)
		return 2;
	find_all();
	pd = ibv_alloc_pd(context);
	other = ibv_alloc_pd(context);
	region(pd, context);
	buffer(pd, other);
	addresses();
	note("ibv_query_port_speed", query_port_speed(context, 1, &speed), 0);
	note("40 Gbit/s in units of 100 Mbit/s", speed, 400);
	note("ibv_query_port_speed of no port", query_port_speed(context, 2, &speed), EINVAL);
	note("ibv_dealloc_pd", ibv_dealloc_pd(pd), 0);
	note("ibv_dealloc_pd", ibv_dealloc_pd(other), 0);
	printf("newer: %d wrong\n", wrong);
	return wrong != 0;
}
