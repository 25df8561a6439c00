/* A program that knows nothing of RDMA, with librspreload: connections to a peer that has no rsocket are made by TCP, and what the program
 * has set before stays. Its ways to wait know rsockets. Prints what is wrong; exit code 1 then. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

static int wrong;

static void note(const char *what, long got, long wanted)
{
	if (got == wanted)
		return;
	printf("%s: %ld, not %ld (%s)\n", what, got, wanted, strerror(errno));
	wrong = 1;
}

static struct sockaddr_in at(const char *address, int port)
{
	struct sockaddr_in place = { .sin_family = AF_INET, .sin_port = htons(port) };

	inet_pton(AF_INET, address, &place.sin_addr);
	return place;
}

/* A TCP listener that the library does not see. */
static void listen_by_tcp(int port)
{
	struct sockaddr_in place = at("127.0.0.1", port);
	int fd = syscall(SYS_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	note("bind by a system call", syscall(SYS_bind, fd, &place, sizeof(place)), 0);
	note("listen by a system call", syscall(SYS_listen, fd, 8), 0);
}

static int value(int fd, int level, int name)
{
	int value = -1;
	socklen_t len = sizeof(value);

	getsockopt(fd, level, name, &value, &len);
	return value;
}

static void set(int fd, int level, int name, int value)
{
	note("setsockopt", setsockopt(fd, level, name, &value, sizeof(value)), 0);
}

/* What is_closed_by_exec asks for is set by the way with this number. */
static void connect_by_tcp(int way, int is_closed_by_exec)
{
	struct sockaddr_in peer = at("127.0.0.1", 7100), own = at("127.0.0.2", 7200 + way), found;
	socklen_t len = sizeof(found);
	struct timeval time = { .tv_sec = 7 };
	struct linger linger = { .l_onoff = 1, .l_linger = 3 };
	int fd = socket(AF_INET, SOCK_STREAM | (way == 1 ? SOCK_CLOEXEC : 0), 0);

	if (way == 2)
		note("F_SETFD", fcntl(fd, F_SETFD, FD_CLOEXEC), 0);
	if (way == 3)
		note("FIOCLEX", ioctl(fd, FIOCLEX), 0);
	if (way == 0) {
		set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
		set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
		set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
		set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 77);
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time));
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
		note("bind", bind(fd, (struct sockaddr *)&own, sizeof(own)), 0);
	}
	note("connect", connect(fd, (struct sockaddr *)&peer, sizeof(peer)), 0);
	/* TCP's own memory of a connection: an rsocket's is empty. */
	struct tcp_info info = { 0 };
	len = sizeof(info);
	getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len);
	note("it is TCP", info.tcpi_state, TCP_ESTABLISHED);
	note("FD_CLOEXEC", fcntl(fd, F_GETFD), is_closed_by_exec ? FD_CLOEXEC : 0);
	note("TCP_NODELAY", value(fd, IPPROTO_TCP, TCP_NODELAY), way == 0);
	note("SO_KEEPALIVE", value(fd, SOL_SOCKET, SO_KEEPALIVE), way == 0);
	note("SO_REUSEADDR", value(fd, SOL_SOCKET, SO_REUSEADDR), way == 0);
	if (way == 0) {
		note("TCP_KEEPIDLE", value(fd, IPPROTO_TCP, TCP_KEEPIDLE), 77);
		len = sizeof(time);
		memset(&time, 0, sizeof(time));
		getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, &len);
		note("SO_RCVTIMEO", time.tv_sec, 7);
		len = sizeof(linger);
		memset(&linger, 0, sizeof(linger));
		getsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &len);
		note("SO_LINGER", linger.l_linger, 3);
		len = sizeof(found);
		getsockname(fd, (struct sockaddr *)&found, &len);
		note("the own address", ntohl(found.sin_addr.s_addr), INADDR_LOOPBACK + 1);
		note("the own port", ntohs(found.sin_port), 7200);
	}
	close(fd);
}

/* A listener is never writable. The descriptor by which the library shows it is. */
static void wait_for_a_listener(void)
{
	struct sockaddr_in own = at("10.66.0.9", 7300);
	struct timespec none = { 0 };
	struct epoll_event event = { .events = EPOLLOUT };
	int fd = socket(AF_INET, SOCK_STREAM, 0), set = epoll_create1(EPOLL_CLOEXEC);
	struct pollfd one = { .fd = fd, .events = POLLOUT };

	note("bind", bind(fd, (struct sockaddr *)&own, sizeof(own)), 0);
	note("listen", listen(fd, 8), 0);
	note("ppoll", ppoll(&one, 1, &none, NULL), 0);
	/* What gcc makes of ppoll with _FORTIFY_SOURCE. */
	extern int __ppoll_chk(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *, size_t);
	note("__ppoll_chk", __ppoll_chk(&one, 1, &none, NULL, sizeof(one)), 0);
	note("epoll_ctl", epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
	note("epoll_pwait2", epoll_pwait2(set, &event, 1, &none, NULL), 0);
	/* It is in the set all the same. */
	event.events = EPOLLIN | EPOLLOUT;
	note("EPOLL_CTL_MOD", epoll_ctl(set, EPOLL_CTL_MOD, fd, &event), 0);
	struct sockaddr_in peer = own;
	int client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	struct timespec long_time = { .tv_sec = 20 };
	connect(client, (struct sockaddr *)&peer, sizeof(peer));
	note("epoll_pwait2 of a connection", epoll_pwait2(set, &event, 1, &long_time, NULL), 1);
	note("its events", event.events, EPOLLIN);
	close(client);
	close(fd);
}

int main(void)
{
	listen_by_tcp(7100);
	connect_by_tcp(0, 0);
	connect_by_tcp(1, 1);
	connect_by_tcp(2, 1);
	connect_by_tcp(3, 1);
	wait_for_a_listener();
	return wrong;
}
