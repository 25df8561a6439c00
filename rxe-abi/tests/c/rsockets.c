/* rsockets as a program of C sees them: what closing does to sets of repoll, datagrams of IPv4 at a socket of IPv6, keep-alive,
 * odd arguments, waiting when no descriptor is left, several buffers, calls of signal handlers. Prints what is wrong; exit code 1 then. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

/* How long anything may take on a busy machine. */
#define PATIENCE 60000

static int wrong;

static void check(const char *what, int good)
{
	if (good)
		return;
	wrong++;
	printf("%s (errno %d)\n", what, errno);
}

static struct sockaddr_in at(const char *address, int port)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(port) };

	inet_pton(AF_INET, address, &in.sin_addr);
	return in;
}

/* Both ends of a connection. */
static void connected(int port, int ends[2])
{
	struct sockaddr_in to = at("10.66.0.9", port);
	int listener = rsocket(AF_INET, SOCK_STREAM, 0);

	ends[0] = rsocket(AF_INET, SOCK_STREAM, 0);
	if (rbind(listener, (struct sockaddr *)&to, sizeof to) || rlisten(listener, 4) ||
	    rconnect(ends[0], (struct sockaddr *)&to, sizeof to)) {
		perror("no connection");
		exit(2);
	}
	ends[1] = raccept(listener, NULL, NULL);
	rclose(listener);
}

/* repoll is newer than the headers of many systems. */
static void sets(void)
{
	int (*create)(int) = dlsym(RTLD_DEFAULT, "repoll_create");
	int (*control)(int, int, int, struct epoll_event *) = dlsym(RTLD_DEFAULT, "repoll_ctl");
	int (*wait)(int, struct epoll_event *, int, int) = dlsym(RTLD_DEFAULT, "repoll_wait");
	struct epoll_event event = { .events = EPOLLIN | EPOLLOUT, .data.u64 = 7 }, told[4];
	int ends[2], others[2], set = create(1);

	connected(7101, ends);
	check("it is added", control(set, EPOLL_CTL_ADD, ends[0], &event) == 0);
	check("it is writable", wait(set, told, 4, PATIENCE) == 1 && told[0].data.u64 == 7);
	check("twice is once too often", control(set, EPOLL_CTL_ADD, ends[0], &event) < 0 && errno == EEXIST);
	/* Nobody takes it out. */
	check("it is closed", rclose(ends[0]) == 0);
	check("nothing is told of what is closed", wait(set, told, 4, 0) == 0);
	/* Its number is free again, and may be another's. */
	connected(7102, others);
	check("the number was given back", others[0] == ends[0] || others[1] == ends[0] || fcntl(ends[0], F_GETFD) < 0);
	event.data.u64 = 8;
	check("another is added", control(set, EPOLL_CTL_ADD, others[0], &event) == 0);
	check("it is told of", wait(set, told, 4, PATIENCE) == 1 && told[0].data.u64 == 8);
	rclose(others[0]);
	rclose(others[1]);
	rclose(ends[1]);
	check("a set is closed", rclose(set) == 0);
}

/* Receives; where from, as a number of the port. */
static int got(int fd, const char *text, struct sockaddr_storage *from)
{
	struct pollfd one = { .fd = fd, .events = POLLIN };
	socklen_t len = sizeof *from;
	char data[64];

	return rpoll(&one, 1, PATIENCE) == 1 &&
	       rrecvfrom(fd, data, sizeof data, 0, (struct sockaddr *)from, &len) == (ssize_t)strlen(text) &&
	       !memcmp(data, text, strlen(text));
}

static void datagrams(void)
{
	struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_port = htons(7103) };
	int six = rsocket(AF_INET6, SOCK_DGRAM, 0), four = rsocket(AF_INET, SOCK_DGRAM, 0), round;
	struct sockaddr_in to = at("127.0.0.1", 7103);
	struct timeval longest = { .tv_sec = LONG_MAX };
	struct sockaddr_storage from;

	check("IPv6 takes a port", rbind(six, (struct sockaddr *)&any, sizeof any) == 0);
	check("a very long time", rsetsockopt(six, SOL_SOCKET, SO_RCVTIMEO, &longest, sizeof longest) == 0);
	/* By UDP at first, then between queue pairs. */
	for (round = 0; round < 3; round++) {
		const struct sockaddr_in6 *peer = (void *)&from;

		check("IPv4 sends", rsendto(four, "there", 5, 0, (struct sockaddr *)&to, sizeof to) == 5);
		check("IPv6 receives", got(six, "there", &from));
		check("from a mapped address", from.ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&peer->sin6_addr));
		check("IPv6 answers", rsendto(six, "back", 4, 0, (struct sockaddr *)&from, sizeof *peer) == 4);
		check("IPv4 receives", got(four, "back", &from) && from.ss_family == AF_INET);
	}
	rclose(four);
	rclose(six);
}

static void options(void)
{
	int ends[2], one = 1, value, fd = rsocket(AF_INET, SOCK_STREAM, 0);
	socklen_t len = sizeof value;

	check("a keep-alive time of 0", rsetsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &(int){ 0 }, 4) < 0 && errno == EINVAL);
	check("too few bytes", rsetsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, 3) < 0 && errno == EINVAL);
	check("not connected", rsend(fd, "x", 1, 0) < 0 && errno == ENOTCONN);
	check("another family", rsocket(AF_UNIX, SOCK_STREAM, 0) < 0);
	rclose(fd);
	check("it is closed", rclose(fd) < 0 && errno == EBADF);
	connected(7104, ends);
	check("one second", rsetsockopt(ends[0], IPPROTO_TCP, TCP_KEEPIDLE, &one, 4) == 0);
	check("keep-alive", rsetsockopt(ends[0], SOL_SOCKET, SO_KEEPALIVE, &one, 4) == 0);
	check("as it was set", rgetsockopt(ends[0], IPPROTO_TCP, TCP_KEEPIDLE, &value, &len) == 0 && value == 1);
	check("no place for it", rgetsockopt(ends[0], IPPROTO_TCP, TCP_KEEPIDLE, NULL, &len) == -1 && errno == EFAULT);
	check("it goes on", rsend(ends[0], "x", 1, 0) == 1 && rrecv(ends[1], &value, 1, 0) == 1);
	rclose(ends[0]);
	check("the end", rrecv(ends[1], &value, 1, 0) == 0);
	rclose(ends[1]);
}

static void *says_something(void *arg)
{
	poll(NULL, 0, 100);
	check("somebody else sends", rsend(*(int *)arg, "x", 1, 0) == 1);
	return NULL;
}

/* poll needs no descriptor, and there may be none left. */
static void nothing_left(void)
{
	int (*wait)(int, struct epoll_event *, int, int) = dlsym(RTLD_DEFAULT, "repoll_wait");
	int (*control)(int, int, int, struct epoll_event *) = dlsym(RTLD_DEFAULT, "repoll_ctl");
	int (*create)(int) = dlsym(RTLD_DEFAULT, "repoll_create");
	struct epoll_event event = { .events = EPOLLIN }, told;
	int ends[2], set = create(1), taken[256], count = 0, fd, way;
	struct rlimit had, few;
	struct pollfd one;
	pthread_t thread;
	char byte;

	connected(7105, ends);
	one = (struct pollfd){ .fd = ends[0], .events = POLLIN };
	check("it is added", control(set, EPOLL_CTL_ADD, ends[0], &event) == 0);
	/* Those of ours that are above do not matter. */
	getrlimit(RLIMIT_NOFILE, &had);
	few = (struct rlimit){ .rlim_cur = 128, .rlim_max = had.rlim_max };
	check("fewer descriptors", setrlimit(RLIMIT_NOFILE, &few) == 0);
	while (count < 256 && (fd = dup(0)) >= 0)
		taken[count++] = fd;
	check("none is left", count < 256 && errno == EMFILE);
	check("time passes", rpoll(&one, 1, 50) == 0);
	check("in a set, too", wait(set, &told, 1, 50) == 0);
	for (way = 0; way < 2; way++) {
		check("a thread", pthread_create(&thread, NULL, says_something, &ends[1]) == 0);
		check("what comes is told", way ? wait(set, &told, 1, PATIENCE) == 1 : rpoll(&one, 1, PATIENCE) == 1);
		pthread_join(thread, NULL);
		check("and can be had", rrecv(ends[0], &byte, 1, 0) == 1 && byte == 'x');
	}
	while (count > 0)
		close(taken[--count]);
	setrlimit(RLIMIT_NOFILE, &had);
	rclose(ends[0]);
	rclose(ends[1]);
	rclose(set);
}

static void *says_the_rest(void *arg)
{
	poll(NULL, 0, 100);
	check("the rest is sent", rsend(*(int *)arg, "23456789", 8, 0) == 8);
	return NULL;
}

/* What is received into several pieces is one thing. */
static void pieces(void)
{
	char few[2], more[8], byte;
	struct iovec list[2] = { { few, sizeof few }, { more, sizeof more } };
	struct msghdr message = { .msg_iov = list, .msg_iovlen = 2 };
	struct linger at_once = { 1, 0 };
	struct pollfd one;
	pthread_t thread;
	int ends[2], tries;

	connected(7106, ends);
	check("a part", rsend(ends[1], "01", 2, 0) == 2);
	check("a thread", pthread_create(&thread, NULL, says_the_rest, &ends[1]) == 0);
	check("all pieces are waited for", rrecvmsg(ends[0], &message, MSG_WAITALL) == 10);
	check("one after the other", !memcmp(few, "01", 2) && !memcmp(more, "23456789", 8));
	pthread_join(thread, NULL);
	check("the last", rsend(ends[1], "abcd", 4, 0) == 4);
	check("it comes", rrecv(ends[0], &byte, 1, MSG_PEEK) == 1);
	check("a look at it", rrecvmsg(ends[0], &message, MSG_PEEK) == 4 && !memcmp(few, "ab", 2) && !memcmp(more, "cd", 2));
	rsetsockopt(ends[1], SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
	rclose(ends[1]);
	one = (struct pollfd){ .fd = ends[0], .events = POLLIN };
	for (tries = 0; tries < PATIENCE / 10 && !(one.revents & POLLERR); tries++, poll(NULL, 0, 10))
		rpoll(&one, 1, 0);
	check("more room than there is to read", rreadv(ends[0], list, 2) == 4);
	check("the reason is still told", rrecv(ends[0], &byte, 1, 0) == -1 && errno == ECONNRESET);
	check("once", rrecv(ends[0], &byte, 1, 0) == 0);
	rclose(ends[0]);
}

static void datagrams_in_pieces(void)
{
	struct sockaddr_in to = at("10.66.0.9", 7107), from;
	int here = rsocket(AF_INET, SOCK_DGRAM, 0), there = rsocket(AF_INET, SOCK_DGRAM, 0);
	char head[6], body[20];
	struct iovec list[2] = { { head, sizeof head }, { body, sizeof body } };
	struct msghdr message = { .msg_name = &from, .msg_namelen = sizeof from, .msg_iov = list, .msg_iovlen = 2 };
	struct pollfd one = { .fd = here, .events = POLLIN };
	int round;

	check("a port", rbind(here, (struct sockaddr *)&to, sizeof to) == 0);
	for (round = 0; round < 3; round++) {
		check("it is sent", rsendto(there, "headerbody", 10, 0, (struct sockaddr *)&to, sizeof to) == 10);
		check("it comes", rpoll(&one, 1, PATIENCE) == 1);
		message.msg_iovlen = round == 1 ? 1 : 2;
		message.msg_flags = 0;
		switch (round) {
		case 0:
			check("into both pieces", rrecvmsg(here, &message, 0) == 10 && !message.msg_flags);
			check("one after the other", !memcmp(head, "header", 6) && !memcmp(body, "body", 4));
			check("from there", from.sin_family == AF_INET && from.sin_addr.s_addr == to.sin_addr.s_addr);
			break;
		case 1:
			check("into one that is too short", rrecvmsg(here, &message, 0) == 6 && message.msg_flags == MSG_TRUNC);
			break;
		case 2:
			check("how long it was", rrecv(here, head, sizeof head, MSG_TRUNC) == 10);
		}
		check("no more of it", rrecv(here, body, sizeof body, MSG_DONTWAIT) == -1 && errno == EAGAIN);
	}
	rclose(here);
	rclose(there);
}

#define FAULTS(call) check(#call, (errno = 0, (call) == -1 && errno == EFAULT))

/* A program that counts what it has sent would go on for ever if nothing were sent without an error. */
static void nowhere(void)
{
	struct iovec bad = { NULL, 10 }, none = { NULL, 0 };
	struct msghdr message = { .msg_iov = &bad, .msg_iovlen = 1 };
	int ends[2];

	connected(7108, ends);
	check("something to receive", rsend(ends[1], "x", 1, 0) == 1);
	FAULTS(rsend(ends[0], NULL, 10, 0));
	FAULTS(rwrite(ends[0], NULL, 10));
	FAULTS(rwritev(ends[0], &bad, 1));
	FAULTS(rwritev(ends[0], NULL, 1));
	FAULTS(rsendmsg(ends[0], &message, 0));
	FAULTS(rrecv(ends[0], NULL, 10, 0));
	FAULTS(rrecvfrom(ends[0], NULL, 10, 0, NULL, NULL));
	FAULTS(rreadv(ends[0], &bad, 1));
	FAULTS(rrecvmsg(ends[0], &message, 0));
	check("nothing is from anywhere", rsend(ends[0], NULL, 0, 0) == 0 && rwritev(ends[0], &none, 1) == 0);
	rclose(ends[0]);
	rclose(ends[1]);
}

static volatile sig_atomic_t came, said, odd, over;
static int spoken_at;
static pthread_t speaker;

/* POSIX lists send among the functions that a handler may call. It may have interrupted another send. */
static void speaks(int signal)
{
	int before = errno;

	if (rsend(spoken_at, "!", 1, 0) == 1)
		said++;
	else if (errno != EAGAIN)
		odd++;
	came++;
	errno = before;
	(void)signal;
}

static void *signals(void *arg)
{
	(void)arg;
	while (!over) {
		pthread_kill(speaker, SIGUSR1);
		poll(NULL, 0, 1);
	}
	return NULL;
}

static void *hears(void *arg)
{
	static char heard[65536];

	while (rrecv(*(int *)arg, heard, sizeof heard, 0) > 0)
		;
	return NULL;
}

static void *answers_once_told(void *arg)
{
	while (!said)
		poll(NULL, 0, 1);
	over = 1;
	check("the answer", rsend(*(int *)arg, "x", 1, 0) == 1);
	return NULL;
}

static void handlers(void)
{
	static char data[100000];
	struct sigaction action = { .sa_handler = speaks, .sa_flags = SA_RESTART }, had;
	pthread_t threads[2];
	int ends[2];
	char byte;

	connected(7109, ends);
	spoken_at = ends[0];
	speaker = pthread_self();
	sigaction(SIGUSR1, &action, &had);
	/* Ends the program if it hangs. */
	alarm(PATIENCE / 1000);
	check("a thread", pthread_create(&threads[0], NULL, hears, &ends[1]) == 0);
	check("a thread", pthread_create(&threads[1], NULL, signals, NULL) == 0);
	while (came < 500)
		check("it is sent beside them", rsend(ends[0], data, sizeof data, 0) > 0);
	over = 1;
	pthread_join(threads[1], NULL);
	check("nothing odd happens to handlers", !odd);
	rshutdown(ends[0], SHUT_WR);
	pthread_join(threads[0], NULL);
	rclose(ends[0]);
	rclose(ends[1]);

	/* A thread that sleeps holds nothing: then the handler's call succeeds. */
	connected(7110, ends);
	spoken_at = ends[0];
	over = said = 0;
	check("a thread", pthread_create(&threads[0], NULL, answers_once_told, &ends[1]) == 0);
	check("a thread", pthread_create(&threads[1], NULL, signals, NULL) == 0);
	check("it goes on waiting", rrecv(ends[0], &byte, 1, 0) == 1 && byte == 'x');
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	check("nothing odd happens to handlers", !odd);
	alarm(0);
	sigaction(SIGUSR1, &had, NULL);
	rclose(ends[0]);
	rclose(ends[1]);
}

/* Nobody has this address, and packets to it are kept for seconds: then the system takes no more of them. */
static void full(const char *address)
{
	struct sockaddr_in to = at(address, 7111);
	int fd = rsocket(AF_INET, SOCK_DGRAM, 0), sent = 0, rounds;
	struct timeval brief = { .tv_usec = 50000 };
	static char data[900];

	while (sent < 1000 && rsendto(fd, data, sizeof data, MSG_DONTWAIT, (struct sockaddr *)&to, sizeof to) > 0)
		sent++;
	check("the socket is full", sent > 0 && sent < 1000 && errno == EAGAIN);
	for (rounds = 0; rounds < 10; rounds++)
		check("room is waited for", rsendto(fd, data, sizeof data, 0, (struct sockaddr *)&to, sizeof to) == sizeof data);
	check("not for long", rsetsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &brief, sizeof brief) == 0);
	for (sent = 0; sent < 1000 && rsendto(fd, data, sizeof data, 0, (struct sockaddr *)&to, sizeof to) > 0; sent++)
		;
	check("its time is over", sent < 1000 && errno == EAGAIN);
	rclose(fd);
}

int main(int count, char **arguments)
{
	if (count > 1) {
		full(arguments[1]);
		return wrong != 0;
	}
	sets();
	datagrams();
	options();
	nothing_left();
	pieces();
	datagrams_in_pieces();
	nowhere();
	handlers();
	return wrong != 0;
}
