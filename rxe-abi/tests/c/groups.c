/* Multicast joins of one id: they are told in their order, and one that fails leaves those before it as they are. The
 * argument is an address of the device's; once this says "joined", somebody is to take it away, which makes the next join
 * fail. Prints what is wrong; exit code 1 then. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int differ, tried;
static struct rdma_event_channel *channel;

static void note(const char *what, int got, int wanted)
{
	tried++;
	if (got == wanted)
		return;
	differ++;
	printf("%s: %d, wanted %d\n", what, got, wanted);
}

#define MINUS1(call, wanted) (errno = 0, note(#call, (call) == -1 ? errno : 0, wanted))

/* The next event's number, and what it says of its group. */
static int event(void **context, union ibv_gid *gid)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;
	int number;

	if (poll(&fd, 1, 10000) != 1 || rdma_get_cm_event(channel, &event))
		return -1;
	number = event->event;
	*context = (void *)event->param.ud.private_data;
	*gid = event->param.ud.ah_attr.grh.dgid;
	rdma_ack_cm_event(event);
	return number;
}

static int has_address(struct ibv_context *verbs, struct in_addr address)
{
	union ibv_gid gid;

	for (int index = 0; !ibv_query_gid(verbs, 1, index, &gid); index++)
		if (!memcmp(gid.raw + 12, &address, 4))
			return 1;
	return 0;
}

int main(int count, char **arguments)
{
	struct sockaddr_in here = { .sin_family = AF_INET };
	struct sockaddr_in group = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(0xef010209) };
	struct rdma_cm_join_mc_attr_ex quiet = {
		.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
		.join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, .addr = (struct sockaddr *)&group,
	};
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_UD, .cap = { .max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct sockaddr *to = (struct sockaddr *)&group;
	union ibv_gid gid, again;
	struct rdma_cm_id *id;
	void *context = NULL;
	int first, second;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (count != 2 || inet_pton(AF_INET, arguments[1], &here.sin_addr) != 1)
		return 2;
	channel = rdma_create_event_channel();
	if (!channel || rdma_create_id(channel, &id, NULL, RDMA_PS_UDP) || rdma_bind_addr(id, (struct sockaddr *)&here)) {
		printf("no id: %s\n", strerror(errno));
		return 2;
	}
	MINUS1(rdma_create_qp(id, NULL, &init), 0);

	/* Who only sends gets nothing, so that there is nothing to detach from. */
	MINUS1(rdma_join_multicast_ex(id, &quiet, &quiet), 0);
	note("an event of a join", event(&context, &gid), RDMA_CM_EVENT_MULTICAST_JOIN);
	note("what it names", context == &quiet, 1);
	note("a sender is not attached", ibv_detach_mcast(id->qp, &gid, 0) != 0, 1);
	MINUS1(rdma_leave_multicast(id, to), 0);

	/* Two at once. */
	MINUS1(rdma_join_multicast(id, to, &first), 0);
	MINUS1(rdma_join_multicast(id, to, &second), 0);
	note("an event of the first", event(&context, &gid), RDMA_CM_EVENT_MULTICAST_JOIN);
	note("what the first names", context == &first, 1);
	note("an event of the second", event(&context, &again), RDMA_CM_EVENT_MULTICAST_JOIN);
	note("what the second names", context == &second, 1);
	MINUS1(rdma_leave_multicast(id, to), 0);
	MINUS1(rdma_leave_multicast(id, to), 0);
	MINUS1(rdma_leave_multicast(id, to), EADDRNOTAVAIL);

	/* Who leaves is not told of the join any more, but of those before it. */
	MINUS1(rdma_join_multicast(id, to, &first), 0);
	MINUS1(rdma_join_multicast(id, to, &second), 0);
	MINUS1(rdma_leave_multicast(id, to), 0);
	note("an event of who stays", event(&context, &gid), RDMA_CM_EVENT_MULTICAST_JOIN);
	note("what it names", context == &first, 1);
	note("nothing else waits", poll(&(struct pollfd){ .fd = channel->fd, .events = POLLIN }, 1, 0), 0);
	MINUS1(rdma_leave_multicast(id, to), 0);

	/* Of one that receives and one that only sends the second is left first; the first goes on. */
	MINUS1(rdma_join_multicast(id, to, &first), 0);
	note("an event of who receives", event(&context, &gid), RDMA_CM_EVENT_MULTICAST_JOIN);
	MINUS1(rdma_join_multicast_ex(id, &quiet, &quiet), 0);
	note("an event of who sends", event(&context, &again), RDMA_CM_EVENT_MULTICAST_JOIN);
	MINUS1(rdma_leave_multicast(id, to), 0);
	note("who receives is still attached", ibv_detach_mcast(id->qp, &gid, 0), 0);
	MINUS1(rdma_leave_multicast(id, to), 0);

	/* One that fails. */
	MINUS1(rdma_join_multicast(id, to, &first), 0);
	note("an event of the one before", event(&context, &gid), RDMA_CM_EVENT_MULTICAST_JOIN);
	printf("joined\n");
	for (int i = 0; i < 1000 && has_address(id->verbs, here.sin_addr); i++)
		usleep(20000);
	note("the address is gone", has_address(id->verbs, here.sin_addr), 0);
	note("a join from nowhere", rdma_join_multicast(id, to, &second), -1);
	note("still attached", ibv_detach_mcast(id->qp, &gid, 0), 0);
	MINUS1(rdma_leave_multicast(id, to), 0);
	MINUS1(rdma_leave_multicast(id, to), EADDRNOTAVAIL);
	rdma_destroy_qp(id);
	MINUS1(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(channel);
	printf("%d tried, %d differ\n", tried, differ);
	return differ != 0;
}
