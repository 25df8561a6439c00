/* Threads that are cancelled while they wait for management datagrams, as OpenSM does it: each ends where it waits, and the port serves
 * others afterwards. Prints what is wrong; exit code 1 then. */
#include <errno.h>
#include <infiniband/umad.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int port;
static volatile int started;

static void *receives(void *arg)
{
	int length = 256;

	started = 1;
	umad_recv(port, arg, &length, -1);
	return NULL;
}

static void *polls(void *arg)
{
	started = 1;
	umad_poll(port, -1);
	return arg;
}

static int is_cancelled(const char *what, void *(*wait)(void *), void *umad)
{
	void *result = NULL;
	pthread_t thread;

	started = 0;
	if (pthread_create(&thread, NULL, wait, umad))
		exit(2);
	while (!started)
		usleep(1000);
	/* It most likely sleeps then. If not, it is cancelled when it is about to. */
	usleep(100000);
	pthread_cancel(thread);
	pthread_join(thread, &result);
	if (result == PTHREAD_CANCELED)
		return 1;
	printf("%s: not cancelled\n", what);
	return 0;
}

int main(void)
{
	int right, length = 256;
	void *umad;

	setenv("RXE_SERVICE", "embedded", 1);
	umad_init();
	umad = umad_alloc(1, umad_size() + length);
	port = umad_open_port(NULL, 1);
	if (port < 0) {
		printf("umad_open_port: %d\n", port);
		return 2;
	}
	right = is_cancelled("umad_recv", receives, umad) & is_cancelled("umad_poll", polls, umad);
	if (umad_recv(port, umad, &length, 1) != -ETIMEDOUT) {
		printf("umad_recv afterwards: not ETIMEDOUT\n");
		right = 0;
	}
	umad_close_port(port);
	umad_free(umad);
	return !right;
}
