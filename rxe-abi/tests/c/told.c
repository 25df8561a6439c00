/* What events of the connection manager say beside their kind, as over a kernel; connections of queue pairs that the library knows and
 * of others; ends of datagram services.
 * told ADDRESS, which is one of this host. Prints what is wrong; exit code 1 then. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int wrong;
static struct rdma_event_channel *channel;
static struct sockaddr_in here = { .sin_family = AF_INET };

static void note(const char *what, long got, long wanted)
{
	if (got == wanted)
		return;
	wrong++;
	printf("%s: %ld, wanted %ld\n", what, got, wanted);
}

/* 0, or errno. */
#define CALL(call, wanted) (errno = 0, note(#call, (call) == -1 ? errno : 0, wanted))

static struct sockaddr *at(int port)
{
	here.sin_port = htons(port);
	return (struct sockaddr *)&here;
}

/* The next event, which is to be this one. */
static struct rdma_cm_event *expect(enum rdma_cm_event_type wanted)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event = NULL;

	if (poll(&fd, 1, 10000) == 1)
		rdma_get_cm_event(channel, &event);
	note(rdma_event_str(wanted), event ? (int)event->event : -1, wanted);
	if (!event)
		exit(1);
	return event;
}

static struct rdma_cm_id *acknowledged(struct rdma_cm_event *event)
{
	struct rdma_cm_id *id = event->id;

	rdma_ack_cm_event(event);
	return id;
}

static struct rdma_cm_id *listener(enum rdma_port_space space, int port)
{
	struct rdma_cm_id *id = NULL;

	CALL(rdma_create_id(channel, &id, NULL, space), 0);
	CALL(rdma_bind_addr(id, at(port)), 0);
	CALL(rdma_listen(id, 4), 0);
	return id;
}

/* An id that may connect. */
static struct rdma_cm_id *resolved(enum rdma_port_space space, int port)
{
	struct rdma_cm_id *id = NULL;

	CALL(rdma_create_id(channel, &id, NULL, space), 0);
	CALL(rdma_resolve_addr(id, NULL, at(port), 2000), 0);
	acknowledged(expect(RDMA_CM_EVENT_ADDR_RESOLVED));
	CALL(rdma_resolve_route(id, 2000), 0);
	acknowledged(expect(RDMA_CM_EVENT_ROUTE_RESOLVED));
	return id;
}

static void make_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = { .qp_type = id->qp_type, .cap = { 4, 4, 1, 1, 0 } };

	CALL(rdma_create_qp(id, NULL, &init), 0);
}

static void nothing_else(const struct rdma_cm_event *event)
{
	static const struct rdma_conn_param none;

	note("what else it says", !!memcmp(&event->param.conn, &none, sizeof(none)), 0);
}

/* An event of that id which says nothing but its kind. */
static void told(const char *what, enum rdma_cm_event_type kind, const struct rdma_cm_id *whose)
{
	struct rdma_cm_event *event = expect(kind);

	note(what, event->id == whose, 1);
	nothing_else(event);
	acknowledged(event);
}

static void says(const struct rdma_cm_event *event, const char *data)
{
	const struct rdma_conn_param *param = &event->param.conn;

	note("length of its data", param->private_data_len >= strlen(data), 1);
	note("its data", param->private_data && !strcmp(param->private_data, data), 1);
	/* As seen from this side. */
	note("what is taken", param->responder_resources, 3);
	note("what may be asked", param->initiator_depth, 2);
}

/* The timeout of the queue pair that the program would make. */
static int timeout(struct rdma_cm_id *id)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
	int mask;

	CALL(rdma_init_qp_attr(id, &attr, &mask), 0);
	return attr.timeout;
}

/* A program may wish for another one, and give that up. */
static void timeouts(struct rdma_cm_id *id)
{
	int usual = timeout(id);
	uint8_t code = 23;

	CALL(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &code, 1), 0);
	note("a timeout as wished", timeout(id), 23);
	code = 0;
	CALL(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &code, 1), 0);
	note("the usual timeout", timeout(id), usual);
}

/* Whoever connects hears the data of the answer. Whoever accepts hears only that the connection stands, and both only that it ends.
 * The ids make queue pairs, or name one by its number. */
static void connections(int with_pairs, uint32_t number)
{
	struct rdma_conn_param asks = {
		.private_data = "asks", .private_data_len = 5, .responder_resources = 3, .initiator_depth = 2, .retry_count = 7,
		.qp_num = number,
	};
	struct rdma_conn_param answers = asks;
	struct rdma_cm_id *listens = listener(RDMA_PS_TCP, 7030), *id = resolved(RDMA_PS_TCP, 7030), *request;
	struct rdma_cm_event *event;

	answers.qp_num = 0x4712;
	answers.private_data = "answers";
	answers.private_data_len = 8;
	answers.responder_resources = 2;
	answers.initiator_depth = 3;
	if (with_pairs)
		make_pair(id);
	CALL(rdma_connect(id, &asks), 0);
	event = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
	note("data of the request", event->param.conn.private_data && !strcmp(event->param.conn.private_data, "asks"), 1);
	note("its queue pair", event->param.conn.qp_num, with_pairs ? id->qp->qp_num : number);
	request = acknowledged(event);
	if (with_pairs)
		make_pair(request);
	CALL(rdma_accept(request, &answers), 0);
	event = expect(with_pairs ? RDMA_CM_EVENT_ESTABLISHED : RDMA_CM_EVENT_CONNECT_RESPONSE);
	note("it is told first", event->id == id, 1);
	says(event, "answers");
	acknowledged(event);
	if (!with_pairs) {
		timeouts(id);
		CALL(rdma_establish(id), 0);
	}
	told("then the other", RDMA_CM_EVENT_ESTABLISHED, request);

	CALL(rdma_disconnect(id), 0);
	told("who is left", RDMA_CM_EVENT_DISCONNECTED, request);
	CALL(rdma_disconnect(request), 0);
	told("who has left", RDMA_CM_EVENT_DISCONNECTED, id);
	rdma_destroy_qp(id);
	rdma_destroy_qp(request);
	CALL(rdma_destroy_id(request), 0);
	CALL(rdma_destroy_id(id), 0);
	CALL(rdma_destroy_id(listens), 0);
}

/* A request whose peer gives up before it is accepted: no event says so, accepting fails. The next one is as ever. */
static void given_up(void)
{
	struct rdma_cm_id *listens = listener(RDMA_PS_TCP, 7032), *id = resolved(RDMA_PS_TCP, 7032), *request;
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };

	make_pair(id);
	CALL(rdma_connect(id, NULL), 0);
	request = acknowledged(expect(RDMA_CM_EVENT_CONNECT_REQUEST));
	rdma_destroy_qp(id);
	CALL(rdma_destroy_id(id), 0);
	note("an event before it is accepted", poll(&fd, 1, 300), 0);
	make_pair(request);
	CALL(rdma_accept(request, NULL), EINVAL);
	note("an event after that", poll(&fd, 1, 100), 0);
	rdma_destroy_qp(request);
	CALL(rdma_destroy_id(request), 0);
	CALL(rdma_destroy_id(listens), 0);
	connections(1, 0);
}

static int state(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr made;
	struct ibv_qp_attr attr;

	return ibv_query_qp(id->qp, &attr, IBV_QP_STATE, &made) ? -1 : (int)attr.qp_state;
}

/* A datagram service has no connection, but to end it is no error. */
static void services(void)
{
	struct rdma_cm_id *listens = listener(RDMA_PS_UDP, 7031), *id = resolved(RDMA_PS_UDP, 7031), *request;
	struct rdma_cm_event *event;

	make_pair(id);
	CALL(rdma_connect(id, NULL), 0);
	request = acknowledged(expect(RDMA_CM_EVENT_CONNECT_REQUEST));
	make_pair(request);
	CALL(rdma_accept(request, NULL), 0);
	event = expect(RDMA_CM_EVENT_ESTABLISHED);
	note("the service's queue pair", event->param.ud.qp_num, request->qp->qp_num);
	acknowledged(event);
	CALL(rdma_disconnect(id), 0);
	CALL(rdma_disconnect(request), 0);
	CALL(rdma_disconnect(request), 0);
	note("its queue pair is flushed", state(request), IBV_QPS_ERR);
	note("no event", poll(&(struct pollfd){ .fd = channel->fd, .events = POLLIN }, 1, 0), 0);
	rdma_destroy_qp(id);
	rdma_destroy_qp(request);
	CALL(rdma_destroy_id(request), 0);
	CALL(rdma_destroy_id(id), 0);
	CALL(rdma_destroy_id(listens), 0);
}

/* Whether the queue pair of an id is in a group. It is not any more. */
static int attached(struct rdma_cm_id *id, struct rdma_cm_event *event)
{
	return !ibv_detach_mcast(id->qp, &event->param.ud.ah_attr.grh.dgid, 0);
}

/* How many groups a socket may join. */
static void allow(int groups)
{
	FILE *file = fopen("/proc/sys/net/ipv4/igmp_max_memberships", "w");

	note("the limit can be set", file && fprintf(file, "%d", groups) > 0 && !fclose(file), 1);
}

/* A queue pair that is made after the join is attached when the event is fetched. If that fails, the event says so. */
static void groups(void)
{
	struct sockaddr_in group = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(0xef010207) };
	struct sockaddr_in other = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(0xef010208) };
	struct rdma_cm_join_mc_attr_ex quiet = {
		.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
		.join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, .addr = (struct sockaddr *)&other,
	};
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	CALL(rdma_create_id(channel, &id, NULL, RDMA_PS_UDP), 0);
	CALL(rdma_bind_addr(id, at(0)), 0);
	CALL(rdma_join_multicast(id, (struct sockaddr *)&group, &group), 0);
	CALL(rdma_join_multicast_ex(id, &quiet, &other), 0);
	make_pair(id);
	event = expect(RDMA_CM_EVENT_MULTICAST_JOIN);
	note("a later queue pair is attached", attached(id, event), 1);
	acknowledged(event);
	event = expect(RDMA_CM_EVENT_MULTICAST_JOIN);
	note("who only sends is not", attached(id, event), 0);
	acknowledged(event);
	CALL(rdma_leave_multicast(id, (struct sockaddr *)&group), 0);
	CALL(rdma_leave_multicast(id, (struct sockaddr *)&other), 0);
	rdma_destroy_qp(id);

	CALL(rdma_join_multicast(id, (struct sockaddr *)&group, &group), 0);
	make_pair(id);
	allow(0);
	event = expect(RDMA_CM_EVENT_MULTICAST_ERROR);
	allow(20);
	note("why", event->status, -ENOBUFS);
	note("whose", event->param.ud.private_data == &group, 1);
	note("it is not attached", attached(id, event), 0);
	acknowledged(event);
	CALL(rdma_leave_multicast(id, (struct sockaddr *)&group), 0);
	rdma_destroy_qp(id);
	CALL(rdma_destroy_id(id), 0);
}

int main(int count, char **arguments)
{
	channel = rdma_create_event_channel();
	if (count != 2 || !channel || inet_pton(AF_INET, arguments[1], &here.sin_addr) != 1)
		return 2;
	connections(1, 0);
	connections(0, 0x4711);
	/* Nor need a program name one. */
	connections(0, 0);
	given_up();
	services();
	groups();
	rdma_destroy_event_channel(channel);
	printf("told: %d wrong\n", wrong);
	return wrong != 0;
}
