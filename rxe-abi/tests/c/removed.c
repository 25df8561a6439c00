/*
 * What ids are told when the interface below their device gets another MAC address, and when it goes: as rdma_cm does it
 * (Linux, cma.c and ucma.c), ids on a device hear of it, those on all addresses do not; afterwards every call but
 * rdma_destroy_id gives EIO. The interface is rxe-a with 10.66.1.1, in a network namespace of the program's own.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int wrong;

static void expect(const char *what, int right)
{
	if (!right) {
		printf("%s: not so\n", what);
		wrong = 1;
	}
}

/* An event within 20 s, acknowledged. */
static enum rdma_cm_event_type next(struct rdma_event_channel *channel, struct rdma_cm_id **id)
{
	struct pollfd fd = { channel->fd, POLLIN, 0 };
	struct rdma_cm_event *event;
	enum rdma_cm_event_type what;

	if (poll(&fd, 1, 20000) != 1 || rdma_get_cm_event(channel, &event)) {
		printf("no event\n");
		exit(1);
	}
	what = event->event;
	if (id)
		*id = event->id;
	rdma_ack_cm_event(event);
	return what;
}

static void command(const char *text)
{
	if (system(text)) {
		printf("%s: failed\n", text);
		exit(1);
	}
}

static int fails(int result)
{
	return result ? errno : 0;
}

/* All of three ids are told, each once. */
static void all_hear(struct rdma_event_channel *channel, struct rdma_cm_id **ids, enum rdma_cm_event_type what)
{
	int heard[3] = { 0 };

	for (int i = 0; i < 3; i++) {
		struct rdma_cm_id *id;
		enum rdma_cm_event_type got = next(channel, &id);

		if (got != what)
			printf("%s in the place of %s\n", rdma_event_str(got), rdma_event_str(what));
		expect("the event", got == what);
		for (int k = 0; k < 3; k++)
			heard[k] += id == ids[k];
	}
	for (int k = 0; k < 3; k++)
		expect(rdma_event_str(what), heard[k] == 1);
}

/* The interface comes back under its name: ids get a device that works, and not the one that has gone. */
static void comes_back(struct rdma_event_channel *channel, struct sockaddr_in *address)
{
	struct ibv_ah_attr ah = { .port_num = 1, .is_global = 1 };
	struct ibv_context **devices;
	struct ibv_port_attr port;
	struct rdma_cm_id *id;
	struct ibv_ah *made;

	command("ip link add rxe-a type veth peer name rxe-b && ip addr add 10.66.1.1/24 dev rxe-a && "
		"ip link set rxe-b up && ip link set rxe-a up");
	expect("an id", !rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	expect("asked", !rdma_resolve_addr(id, NULL, (struct sockaddr *)address, 2000));
	expect("the address", next(channel, NULL) == RDMA_CM_EVENT_ADDR_RESOLVED);
	if (wrong)
		return;
	expect("its port is active", !ibv_query_port(id->verbs, 1, &port) && port.state == IBV_PORT_ACTIVE);
	/* The first address is the link-local one. */
	for (int index = 0; !ibv_query_gid(id->verbs, 1, index, &ah.grh.dgid) && ah.grh.dgid.raw[12] != 10; index++)
		ah.grh.sgid_index = index + 1;
	made = ibv_create_ah(id->pd, &ah);
	expect("an address handle", made != NULL);
	if (made)
		ibv_destroy_ah(made);
	rdma_destroy_id(id);
	devices = rdma_get_devices(NULL);
	for (int n = 0; devices && devices[n]; n++)
		expect("a device that is there", !ibv_query_port(devices[n], 1, &port) && port.state == IBV_PORT_ACTIVE);
	rdma_free_devices(devices);
}

int main(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(7471) }, any = address;
	struct ibv_qp_init_attr attr = { .cap = { 4, 4, 1, 1 }, .qp_type = IBV_QPT_RC };
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 1 };
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *ids[3], *wide;
	struct ibv_async_event fatal = { 0 };
	struct pollfd fd;

	inet_pton(AF_INET, "10.66.1.1", &address.sin_addr);
	any.sin_port = htons(7472);
	expect("a listener", !rdma_create_id(channel, &ids[0], NULL, RDMA_PS_TCP));
	expect("bound", !rdma_bind_addr(ids[0], (struct sockaddr *)&address) && !rdma_listen(ids[0], 0));
	expect("one on all", !rdma_create_id(channel, &wide, NULL, RDMA_PS_TCP));
	expect("bound", !rdma_bind_addr(wide, (struct sockaddr *)&any) && !rdma_listen(wide, 0));

	expect("a client", !rdma_create_id(channel, &ids[1], NULL, RDMA_PS_TCP));
	expect("asked", !rdma_resolve_addr(ids[1], NULL, (struct sockaddr *)&address, 2000));
	expect("the address", next(channel, NULL) == RDMA_CM_EVENT_ADDR_RESOLVED);
	expect("asked", !rdma_resolve_route(ids[1], 2000) && next(channel, NULL) == RDMA_CM_EVENT_ROUTE_RESOLVED);
	expect("a queue pair", !rdma_create_qp(ids[1], NULL, &attr));
	expect("asked", !rdma_connect(ids[1], &param) && next(channel, &ids[2]) == RDMA_CM_EVENT_CONNECT_REQUEST);
	attr.send_cq = attr.recv_cq = NULL;
	expect("a queue pair", !rdma_create_qp(ids[2], NULL, &attr));
	expect("accepted", !rdma_accept(ids[2], &param));
	expect("stands", next(channel, NULL) == RDMA_CM_EVENT_ESTABLISHED && next(channel, NULL) == RDMA_CM_EVENT_ESTABLISHED);
	if (wrong)
		return 1;

	command("ip link set rxe-a address 02:00:00:00:66:01");
	all_hear(channel, ids, RDMA_CM_EVENT_ADDR_CHANGE);
	/* Neither of these is news for an id. */
	command("ip addr add 10.66.1.7/24 dev rxe-a && ip link set rxe-a down && ip link set rxe-a up");
	command("ip link del rxe-a");
	all_hear(channel, ids, RDMA_CM_EVENT_DEVICE_REMOVAL);
	fd = (struct pollfd){ channel->fd, POLLIN, 0 };
	expect("nothing else is told", poll(&fd, 1, 300) == 0);

	expect("rdma_disconnect", fails(rdma_disconnect(ids[1])) == EIO);
	expect("rdma_connect", fails(rdma_connect(ids[1], &param)) == EIO);
	expect("rdma_accept", fails(rdma_accept(ids[2], &param)) == EIO);
	expect("rdma_listen", fails(rdma_listen(ids[0], 0)) == EIO);
	do
		expect("an asynchronous event", !ibv_get_async_event(ids[1]->verbs, &fatal));
	while (fatal.event_type != IBV_EVENT_DEVICE_FATAL && !wrong && (ibv_ack_async_event(&fatal), 1));

	for (int k = 1; k < 3; k++)
		rdma_destroy_qp(ids[k]);
	for (int k = 0; k < 3; k++)
		expect("rdma_destroy_id", !rdma_destroy_id(ids[k]));
	/* The port of the lost listener is free again; it is wanted for all addresses. */
	any.sin_port = htons(7471);
	expect("another id", !rdma_create_id(channel, &ids[0], NULL, RDMA_PS_TCP));
	expect("the port is free", !rdma_bind_addr(ids[0], (struct sockaddr *)&any));
	rdma_destroy_id(ids[0]);
	rdma_destroy_id(wide);
	comes_back(channel, &address);
	rdma_destroy_event_channel(channel);
	return wrong;
}
