/* The descriptor of an event channel is closed by the program, and another file has its number: that file is left alone,
 * and whoever waits for events waits. Prints what is wrong; exit code 1 then. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int wrong;
static struct rdma_event_channel *channel;

static void check(const char *what, int good)
{
	if (good)
		return;
	wrong++;
	printf("%s\n", what);
}

static void resolve(struct rdma_cm_id **id)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(7), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };

	if (rdma_create_id(channel, id, NULL, RDMA_PS_TCP) || rdma_resolve_addr(*id, NULL, (struct sockaddr *)&to, 2000))
		exit(2);
}

static void another_file(void)
{
	int file = memfd_create("stranger", MFD_CLOEXEC), number;
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	struct stat about;

	channel = rdma_create_event_channel();
	number = channel->fd;
	if (dup2(file, number) != number)
		exit(2);
	resolve(&id);
	check("the event", rdma_get_cm_event(channel, &event) == 0 && event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
	rdma_ack_cm_event(event);
	rdma_destroy_id(id);
	rdma_destroy_event_channel(channel);
	check("the file is open", fstat(number, &about) == 0);
	check("nothing was written to it", about.st_size == 0 && lseek(number, 0, SEEK_CUR) == 0);
	close(number);
	close(file);
}

static volatile long spent;
static volatile pid_t waiting;

static void *wait_for_an_event(void *arg)
{
	struct rdma_cm_event *event;
	struct timespec cpu;

	waiting = syscall(SYS_gettid);
	rdma_get_cm_event(channel, &event);
	rdma_ack_cm_event(event);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
	spent = cpu.tv_sec * 1000 + cpu.tv_nsec / 1000000;
	return arg;
}

/* Until the thread sleeps: on a busy machine it may come late. */
static void until_asleep(void)
{
	char name[64], state = 0;

	while (state != 'S') {
		FILE *file;

		usleep(1000);
		snprintf(name, sizeof(name), "/proc/self/task/%d/stat", waiting);
		file = waiting ? fopen(name, "r") : NULL;
		if (file && fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
			state = 0;
		if (file)
			fclose(file);
	}
}

static void no_file(void)
{
	struct rdma_cm_id *id;
	int pair[2], file, pipes;
	pthread_t thread;

	channel = rdma_create_event_channel();
	close(channel->fd);
	if (pthread_create(&thread, NULL, wait_for_an_event, NULL))
		exit(2);
	until_asleep();
	/* Long enough for many times round. */
	usleep(300000);
	/* Whoever opens files now has the number: the event is not waited for there. */
	file = memfd_create("another", MFD_CLOEXEC);
	pipes = pipe(pair);
	resolve(&id);
	pthread_join(thread, NULL);
	check("it was waited for without a pause", spent < 100);
	rdma_destroy_id(id);
	rdma_destroy_event_channel(channel);
	check("files opened meanwhile are open", fcntl(file, F_GETFD) >= 0 && pipes == 0 && fcntl(pair[0], F_GETFD) >= 0);
	close(file);
}

int main(void)
{
	another_file();
	no_file();
	printf("strangers: %d wrong\n", wrong);
	return wrong != 0;
}
