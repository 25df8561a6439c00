/* Threads that are cancelled while they wait for management datagrams, as OpenSM does it: each ends where it waits, and the port serves
 * others afterwards. A thread that lists devices is not cancelled inside. Prints what is wrong; exit code 1 then. */
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

/* The functions that list devices read files, but are no cancellation points: they return, and the thread ends after that. */
static void *lists(void *returned)
{
	char names[2][UMAD_CA_NAME_LEN];
	struct umad_device_node *list;
	umad_port_t one;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	pthread_cancel(pthread_self());
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	umad_get_cas_names(names, 2);
	if (umad_get_port(NULL, 1, &one) == 0)
		umad_release_port(&one);
	list = umad_get_ca_device_list();
	umad_free_ca_device_list(list);
	*(int *)returned = 1;
	pthread_testcancel();
	return NULL;
}

static int lists_devices(void)
{
	void *result = NULL;
	pthread_t thread;
	int returned = 0;

	if (pthread_create(&thread, NULL, lists, &returned))
		exit(2);
	pthread_join(thread, &result);
	if (returned && result == PTHREAD_CANCELED)
		return 1;
	printf("a cancelled thread that lists devices: %s\n", returned ? "not cancelled" : "did not come back");
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
	right = is_cancelled("umad_recv", receives, umad) & is_cancelled("umad_poll", polls, umad) & lists_devices();
	if (umad_recv(port, umad, &length, 1) != -ETIMEDOUT) {
		printf("umad_recv afterwards: not ETIMEDOUT\n");
		right = 0;
	}
	umad_close_port(port);
	umad_free(umad);
	return !right;
}
