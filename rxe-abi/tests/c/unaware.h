/* What the programs share that know nothing of RDMA and run with librspreload. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static int wrong;

/* The number of the error is told, too, where the call has failed. */
static void note(const char *what, long got, long wanted)
{
	if (got == wanted)
		return;
	printf("%s: %ld, not %ld (%s)\n", what, got, wanted, got < 0 ? strerror(errno) : "-");
	wrong = 1;
}

__attribute__((unused)) static void refused(const char *what, long got, int why)
{
	int errno_is = errno;

	if (got != -1 || errno_is != why) {
		printf("%s: %ld %s, not %s\n", what, got, got < 0 ? strerror(errno_is) : "", strerror(why));
		wrong = 1;
	}
}

/* Two ends of a connection. */
__attribute__((unused)) static void connect_two(int port, int ends[2])
{
	struct sockaddr_in place = { .sin_family = AF_INET, .sin_port = htons(port) };
	int listener = socket(AF_INET, SOCK_STREAM, 0);

	inet_pton(AF_INET, "10.66.0.9", &place.sin_addr);
	note("bind", bind(listener, (struct sockaddr *)&place, sizeof(place)), 0);
	note("listen", listen(listener, 4), 0);
	ends[0] = socket(AF_INET, SOCK_STREAM, 0);
	note("connect", connect(ends[0], (struct sockaddr *)&place, sizeof(place)), 0);
	ends[1] = accept(listener, NULL, NULL);
	close(listener);
}
