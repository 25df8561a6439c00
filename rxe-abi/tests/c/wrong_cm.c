/* Wrong calls of the connection manager, and the numbers that librdmacm over a kernel gives for them. Prints one line for
 * each that differs and a sum; exit code 1 if any does. With the argument "print" it prints what each call gave instead, for
 * scripts/compat to compare, and ends with 0. The argument "here=ADDRESS" names an address of the device. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int tried, differ, print, several;
static struct rdma_event_channel *channel;
static struct sockaddr_in here = { .sin_family = AF_INET };

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

/* All of librdmacm returns -1 and sets errno. */
#define MINUS1(call, wanted) (errno = 0, note(#call, (call) == -1 ? errno : 0, wanted))

static struct rdma_cm_id *make(enum rdma_port_space space)
{
	struct rdma_cm_id *id = NULL;

	rdma_create_id(channel, &id, NULL, space);
	return id;
}

static struct sockaddr *at(int port)
{
	here.sin_port = htons(port);
	return (struct sockaddr *)&here;
}

/* The next event's number, and its status by the way; -1 if none comes. */
static int event(int *status)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;
	int number;

	if (poll(&fd, 1, 10000) != 1 || rdma_get_cm_event(channel, &event))
		return -1;
	number = event->event;
	*status = event->status;
	rdma_ack_cm_event(event);
	return number;
}

static void addresses(void)
{
	struct sockaddr_in nowhere = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(0xc6336401) };
	struct sockaddr unknown = { .sa_family = 77 };
	struct rdma_cm_id *id = make(RDMA_PS_TCP), *other = make(RDMA_PS_TCP), *datagrams;

	MINUS1(rdma_bind_addr(id, &unknown), EINVAL);
	MINUS1(rdma_bind_addr(id, (struct sockaddr *)&nowhere), EADDRNOTAVAIL);
	MINUS1(rdma_bind_addr(id, at(7000)), 0);
	MINUS1(rdma_bind_addr(id, at(7001)), EINVAL);
	MINUS1(rdma_bind_addr(other, at(7000)), EADDRINUSE);
	note("rdma_get_src_port", ntohs(rdma_get_src_port(id)), 7000);
	MINUS1(rdma_listen(id, 1), 0);
	MINUS1(rdma_listen(id, 1), EINVAL);
	/* Ports of datagrams are others. */
	datagrams = make(RDMA_PS_UDP);
	MINUS1(rdma_bind_addr(datagrams, at(7000)), 0);
	MINUS1(rdma_destroy_id(datagrams), 0);
	MINUS1(rdma_destroy_id(id), 0);
	MINUS1(rdma_bind_addr(other, at(7000)), 0);
	MINUS1(rdma_destroy_id(other), 0);
	MINUS1(rdma_create_id(channel, &id, NULL, 0x7777), EINVAL);
}

static struct rdma_cm_id *bound(struct sockaddr *address, int afonly, int *result)
{
	struct rdma_cm_id *id = make(RDMA_PS_TCP);

	if (afonly)
		rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &afonly, sizeof(afonly));
	errno = 0;
	*result = rdma_bind_addr(id, address) ? errno : 0;
	return id;
}

/* "Any" addresses, and loopback ones, which count as such. */
static void wildcards(void)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(7010) };
	struct sockaddr_in loopback = { .sin_family = AF_INET, .sin_port = htons(7011), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_port = htons(7010) };
	struct rdma_cm_id *first, *other;
	int result;

	first = bound((struct sockaddr *)&any, 0, &result);
	note("0.0.0.0", result, 0);
	other = bound((struct sockaddr *)&any, 0, &result);
	note("0.0.0.0 again", result, EADDRNOTAVAIL);
	rdma_destroy_id(other);
	other = bound(at(7010), 0, &result);
	note("an address beside it", result, EADDRNOTAVAIL);
	rdma_destroy_id(other);
	other = bound((struct sockaddr *)&six, 0, &result);
	note("[::] beside it", result, EADDRNOTAVAIL);
	rdma_destroy_id(other);
	other = bound((struct sockaddr *)&six, 1, &result);
	note("[::] without IPv4 beside it", result, 0);
	MINUS1(rdma_listen(first, 1), 0);
	MINUS1(rdma_listen(other, 1), 0);
	rdma_destroy_id(other);
	rdma_destroy_id(first);

	first = bound(at(7010), 0, &result);
	note("an address", result, 0);
	other = bound((struct sockaddr *)&any, 0, &result);
	note("0.0.0.0 beside it", result, EADDRNOTAVAIL);
	rdma_destroy_id(other);
	rdma_destroy_id(first);

	first = bound((struct sockaddr *)&loopback, 0, &result);
	note("a loopback address", result, 0);
	/* Ours is that of lo where that is the only device. */
	if (print || several)
		note("it is no device's", first->verbs == NULL, 1);
	other = bound((struct sockaddr *)&loopback, 0, &result);
	note("a loopback address again", result, EADDRNOTAVAIL);
	rdma_destroy_id(other);
	MINUS1(rdma_listen(first, 1), 0);
	rdma_destroy_id(first);
}

static void order(void)
{
	struct rdma_conn_param param = { .retry_count = 1 };
	struct rdma_cm_id *id = make(RDMA_PS_TCP), *synchronous = NULL;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR };
	int mask = 0, byte = 7, status = 0, yes = 1;
	char tos = 4, none = 0;

	/* librdmacm follows a pointer to the device. */
	if (!print) {
		MINUS1(rdma_resolve_route(id, 1000), EINVAL);
		MINUS1(rdma_connect(id, &param), EINVAL);
		MINUS1(rdma_accept(id, &param), EINVAL);
	}
	MINUS1(rdma_reject(id, NULL, 0), EINVAL);
	MINUS1(rdma_disconnect(id), EINVAL);
	MINUS1(rdma_notify(id, IBV_EVENT_COMM_EST), EINVAL);
	MINUS1(rdma_migrate_id(id, channel), 0);
	rdma_create_id(NULL, &synchronous, NULL, RDMA_PS_TCP);
	MINUS1(rdma_migrate_id(synchronous, NULL), EINVAL);
	MINUS1(rdma_destroy_id(synchronous), 0);
	MINUS1(rdma_set_option(id, RDMA_OPTION_ID, 77, &byte, sizeof(byte)), ENOSYS);
	MINUS1(rdma_set_option(id, 77, RDMA_OPTION_ID_TOS, &tos, 1), ENOSYS);
	MINUS1(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &byte, sizeof(byte)), EINVAL);
	MINUS1(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 1), 0);
	MINUS1(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof(yes)), 0);
	MINUS1(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &none, 1), 0);

	MINUS1(rdma_resolve_addr(id, NULL, at(7999), 2000), 0);
	note("event of an address", event(&status), RDMA_CM_EVENT_ADDR_RESOLVED);
	MINUS1(rdma_resolve_addr(id, NULL, at(7999), 2000), EINVAL);
	MINUS1(rdma_listen(id, 1), EINVAL);
	note("rdma_init_qp_attr for RTR before there is a peer", rdma_init_qp_attr(id, &attr, &mask) == -1 ? errno : 0, EINVAL);
	MINUS1(rdma_connect(id, &param), EINVAL);
	MINUS1(rdma_resolve_route(id, 2000), 0);
	note("event of a route", event(&status), RDMA_CM_EVENT_ROUTE_RESOLVED);
	MINUS1(rdma_resolve_route(id, 2000), EINVAL);
	MINUS1(rdma_accept(id, &param), EINVAL);
	/* Nobody is there. */
	param.qp_num = 4711;
	MINUS1(rdma_connect(id, &param), 0);
	note("the answer of nobody", event(&status), RDMA_CM_EVENT_REJECTED);
	note("its status", status, 8);
	MINUS1(rdma_destroy_id(id), 0);
}

/* A path that the program brings along, in the place of a route. */
static void own_path(void)
{
	struct rdma_cm_id *id = make(RDMA_PS_TCP);
	struct ibv_path_data path = { .flags = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL };
	int status = 0;

	path.path.pkey = htons(0xffff);
	path.path.mtu = 0x83;
	path.path.rate = 0x83;
	path.path.packetlifetime = 0x90;
	MINUS1(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &path, sizeof(path)), EINVAL);
	MINUS1(rdma_resolve_addr(id, NULL, at(7999), 2000), 0);
	note("event of its address", event(&status), RDMA_CM_EVENT_ADDR_RESOLVED);
	MINUS1(rdma_set_option(id, RDMA_OPTION_IB, 77, &path, sizeof(path)), ENOSYS);
	MINUS1(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &path, sizeof(path) - 1), EINVAL);
	path.flags = IBV_PATH_FLAG_ALTERNATE;
	MINUS1(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &path, sizeof(path)), EINVAL);
	path.flags = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL;
	MINUS1(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &path, sizeof(path)), 0);
	note("event of the path", event(&status), RDMA_CM_EVENT_ROUTE_RESOLVED);
	MINUS1(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &path, sizeof(path)), EINVAL);
	MINUS1(rdma_resolve_route(id, 2000), EINVAL);
	MINUS1(rdma_destroy_id(id), 0);
}

static void pairs(void)
{
	struct rdma_cm_id *id = make(RDMA_PS_TCP);
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_pd *pd;
	int status = 0;

	MINUS1(rdma_bind_addr(id, at(7002)), 0);
	note("a bound id has a device", id->verbs != NULL, 1);
	pd = ibv_alloc_pd(id->verbs);
	init.qp_type = IBV_QPT_UD;
	MINUS1(rdma_create_qp(id, pd, &init), EINVAL);
	init.qp_type = IBV_QPT_RC;
	init.cap.max_send_wr = 1 << 30;
	note("a queue pair that is too large", rdma_create_qp(id, pd, &init) == -1, 1);
	init.cap.max_send_wr = 2;
	MINUS1(rdma_destroy_id(id), 0);
	/* The kernel gives no queue pair to an id that goes to its own address. */
	if (print)
		return;
	id = make(RDMA_PS_TCP);
	MINUS1(rdma_resolve_addr(id, NULL, at(7999), 2000), 0);
	note("the event of the second id", event(&status), RDMA_CM_EVENT_ADDR_RESOLVED);
	pd = ibv_alloc_pd(id->verbs);
	MINUS1(rdma_create_qp(id, pd, &init), 0);
	note("it has a queue pair", id->qp != NULL, 1);
	MINUS1(rdma_create_qp(id, pd, &init), EINVAL);
	rdma_destroy_qp(id);
	note("it has none", id->qp == NULL, 1);
	ibv_dealloc_pd(pd);
	MINUS1(rdma_destroy_id(id), 0);
}

static void groups(void)
{
	struct sockaddr_in group = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(0xef010203) };
	struct rdma_cm_id *id = make(RDMA_PS_UDP);
	struct rdma_cm_join_mc_attr_ex attr = { .comp_mask = 7, .addr = (struct sockaddr *)&group };

	MINUS1(rdma_join_multicast_ex(id, &attr, NULL), EOPNOTSUPP);
	attr.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS;
	note("a join without flags", rdma_join_multicast_ex(id, &attr, NULL) == -1 ? errno : 0, EINVAL);
	attr.comp_mask |= RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
	attr.join_flags = RDMA_MC_JOIN_FLAG_RESERVED;
	note("a join with an unknown flag", rdma_join_multicast_ex(id, &attr, NULL) == -1 ? errno : 0, EINVAL);
	MINUS1(rdma_join_multicast(id, (struct sockaddr *)&group, NULL), EINVAL);
	MINUS1(rdma_leave_multicast(id, (struct sockaddr *)&group), EADDRNOTAVAIL);
	MINUS1(rdma_destroy_id(id), 0);
}

/* The next event, which is to be this one; `asked` gets the id that a request comes with. */
static void expect(enum rdma_cm_event_type wanted, struct rdma_cm_id **asked)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event = NULL;

	if (poll(&fd, 1, 10000) == 1)
		rdma_get_cm_event(channel, &event);
	note("the next event", event ? (int)event->event : -1, wanted);
	if (event && asked)
		*asked = event->id;
	if (event)
		rdma_ack_cm_event(event);
}

/* Vendors' options: ids whose queue pairs are the program's own carry them, whatever they are of. */
static void options(void)
{
	struct ibv_ece ece = { .vendor_id = 0x123456, .options = 0xdeadbeef }, none = { .comp_mask = 7 }, said = { .comp_mask = 9 };
	struct rdma_conn_param param = { .qp_num = 0x4711, .retry_count = 1, .rnr_retry_count = 1 };
	struct rdma_cm_id *listener = make(RDMA_PS_TCP), *id = make(RDMA_PS_TCP), *request = NULL;

	MINUS1(rdma_set_local_ece(NULL, &ece), EINVAL);
	MINUS1(rdma_set_local_ece(id, NULL), EINVAL);
	MINUS1(rdma_set_local_ece(id, &none), EINVAL);
	none.vendor_id = 1;
	MINUS1(rdma_set_local_ece(id, &none), EINVAL);
	MINUS1(rdma_get_remote_ece(NULL, &said), EINVAL);
	MINUS1(rdma_get_remote_ece(id, NULL), EINVAL);
	MINUS1(rdma_get_remote_ece(id, &said), 0);
	note("nothing was heard yet", said.vendor_id | said.options | said.comp_mask, 0);

	MINUS1(rdma_bind_addr(listener, at(7006)), 0);
	MINUS1(rdma_listen(listener, 1), 0);
	MINUS1(rdma_set_local_ece(id, &ece), 0);
	MINUS1(rdma_resolve_addr(id, NULL, at(7006), 2000), 0);
	expect(RDMA_CM_EVENT_ADDR_RESOLVED, NULL);
	MINUS1(rdma_resolve_route(id, 2000), 0);
	expect(RDMA_CM_EVENT_ROUTE_RESOLVED, NULL);
	MINUS1(rdma_connect(id, &param), 0);
	expect(RDMA_CM_EVENT_CONNECT_REQUEST, &request);
	if (!request)
		return;
	MINUS1(rdma_get_remote_ece(request, &said), 0);
	note("the vendor of a request", said.vendor_id, 0x123456);
	note("its options", said.options == 0xdeadbeef, 1);
	note("its mask", said.comp_mask, 0);
	ece = (struct ibv_ece){ .vendor_id = 0x999999, .options = 0x5a };
	MINUS1(rdma_set_local_ece(request, &ece), 0);
	param.qp_num = 0x4712;
	MINUS1(rdma_accept(request, &param), 0);
	expect(RDMA_CM_EVENT_CONNECT_RESPONSE, NULL);
	MINUS1(rdma_get_remote_ece(id, &said), 0);
	note("a reply has the vendor of its request", said.vendor_id, 0x123456);
	note("options of a reply", said.options, 0x5a);
	MINUS1(rdma_establish(id), 0);
	expect(RDMA_CM_EVENT_ESTABLISHED, NULL);
	MINUS1(rdma_disconnect(id), 0);
	MINUS1(rdma_destroy_id(request), 0);
	MINUS1(rdma_destroy_id(id), 0);
	MINUS1(rdma_destroy_id(listener), 0);
	/* Events of ids that are gone do not come. */
}

static void information(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_NUMERICHOST }, *info = NULL;
	struct addrinfo *known = NULL;

	MINUS1(rdma_getaddrinfo(NULL, NULL, NULL, &info), EINVAL);
	note("rdma_getaddrinfo, no number", rdma_getaddrinfo("no.such.host.invalid", "1", &hints, &info), EAI_NONAME);
	note("rdma_getaddrinfo, no such service", rdma_getaddrinfo("127.0.0.1", "no-such-service", &hints, &info), EAI_SERVICE);
	MINUS1(rdma_getaddrinfo("127.0.0.1", "7000", &hints, &info), 0);
	note("its kind of queue pair", info ? info->ai_qp_type : -1, IBV_QPT_RC);
	note("its port space", info ? info->ai_port_space : -1, RDMA_PS_TCP);
	note("its family", info ? info->ai_family : -1, AF_INET);
	if (info)
		rdma_freeaddrinfo(info);
	info = NULL;
	note("a service by its name", rdma_getaddrinfo("127.0.0.1", "ssh", &hints, &info), getaddrinfo("127.0.0.1", "ssh", NULL, &known));
	note("its port", info && ntohs(((struct sockaddr_in *)info->ai_dst_addr)->sin_port) != 22, 0);
	/* libfabric takes addresses out and frees them. */
	if (info) {
		free(info->ai_dst_addr);
		info->ai_dst_addr = NULL;
		rdma_freeaddrinfo(info);
	}
	if (known)
		freeaddrinfo(known);
	hints.ai_flags = RAI_PASSIVE;
	info = NULL;
	MINUS1(rdma_getaddrinfo(NULL, "7000", &hints, &info), 0);
	note("any address to listen on", info && info->ai_src_addr && !info->ai_dst_addr, 1);
	if (info)
		rdma_freeaddrinfo(info);
}

/* rsockets. Those that librdmacm answers by crashing are left out. */
static void sockets(void)
{
	struct sockaddr_in at = here;
	int number = 0, socket;
	socklen_t len = sizeof number;

	MINUS1(rsocket(AF_UNIX, SOCK_STREAM, 0), EOPNOTSUPP);
	MINUS1(rsocket(AF_INET, SOCK_RAW, 0), EOPNOTSUPP);
	MINUS1(rsocket(AF_INET, SOCK_STREAM, IPPROTO_UDP), EOPNOTSUPP);
	MINUS1(rbind(-1, (struct sockaddr *)&at, sizeof at), EBADF);
	MINUS1(rlisten(-1, 1), EBADF);
	MINUS1(rshutdown(-1, SHUT_RDWR), EBADF);
	MINUS1(rsetsockopt(-1, SOL_RDMA, RDMA_SQSIZE, &number, sizeof number), EBADF);
	MINUS1(rfcntl(-1, F_GETFL), EBADF);
	socket = rsocket(AF_INET, SOCK_STREAM, 0);
	note("rsocket", socket < 0, 0);
	number = 77;
	MINUS1(rsetsockopt(socket, SOL_RDMA, RDMA_SQSIZE, &number, sizeof number), 0);
	number = 0;
	MINUS1(rgetsockopt(socket, SOL_RDMA, RDMA_SQSIZE, &number, &len), 0);
	note("RDMA_SQSIZE", number, 77);
	number = 300;
	MINUS1(rsetsockopt(socket, SOL_RDMA, RDMA_IOMAPSIZE, &number, sizeof number), 0);
	MINUS1(rgetsockopt(socket, SOL_RDMA, RDMA_IOMAPSIZE, &number, &len), 0);
	note("RDMA_IOMAPSIZE of 300", number, 256);
	MINUS1(rsetsockopt(socket, SOL_RDMA, 99, &number, sizeof number), EOPNOTSUPP);
	MINUS1(rgetsockopt(socket, SOL_RDMA, 99, &number, &len), EOPNOTSUPP);
	MINUS1(rsetsockopt(socket, SOL_SOCKET, SO_TIMESTAMP, &number, sizeof number), EOPNOTSUPP);
	number = 0;
	MINUS1(rsetsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &number, sizeof number), EINVAL);
	MINUS1(rfcntl(socket, F_GETOWN), EOPNOTSUPP);
	MINUS1(rfcntl(socket, F_SETFL, O_NONBLOCK), 0);
	note("O_NONBLOCK", (rfcntl(socket, F_GETFL) & O_NONBLOCK) != 0, 1);
	at.sin_port = htons(17174);
	MINUS1(rbind(socket, (struct sockaddr *)&at, sizeof at), 0);
	MINUS1(rbind(socket, (struct sockaddr *)&at, sizeof at), EINVAL);
	MINUS1(rlisten(socket, 5), 0);
	MINUS1(rlisten(socket, 5), 0);
	MINUS1(raccept(socket, NULL, NULL), EAGAIN);
	note("rclose", rclose(socket), 0);
}

int main(int count, char **arguments)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	inet_pton(AF_INET, "127.0.0.1", &here.sin_addr);
	for (int i = 1; i < count; i++) {
		print |= !strcmp(arguments[i], "print");
		if (!strncmp(arguments[i], "here=", 5))
			inet_pton(AF_INET, arguments[i] + 5, &here.sin_addr);
	}
	channel = rdma_create_event_channel();
	if (!channel)
		return 2;
	ibv_free_device_list(ibv_get_device_list(&several));
	several = several > 1;
	addresses();
	wildcards();
	order();
	own_path();
	pairs();
	groups();
	options();
	information();
	sockets();
	rdma_destroy_event_channel(channel);
	if (print)
		return 0;
	printf("%d calls tried, %d differ\n", tried, differ);
	return differ != 0;
}
