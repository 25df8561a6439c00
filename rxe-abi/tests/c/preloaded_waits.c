/* A program that knows nothing of RDMA, with librspreload: how it waits for its sockets. Prints what is wrong; exit code 1 then. */
#include "unaware.h"

static volatile sig_atomic_t came;

static void handler(int number)
{
	(void)number;
	came++;
}

/* Sets may be as small as the number of descriptors allows. */
static void sets_are_as_small_as_they_may_be(int fd)
{
	unsigned char memory[512];
	unsigned long *set = (unsigned long *)memory;
	size_t len = (fd + 64) / 64 * 8;
	struct timeval none = { 0 };
	int behind = 0;

	memset(memory, 0xaa, sizeof(memory));
	memset(memory, 0, len);
	set[fd / 64] |= 1ul << fd % 64;
	note("select of a small set", select(fd + 1, (fd_set *)memory, NULL, NULL, &none), 0);
	for (size_t at = len; at < sizeof(memory); at++)
		behind += memory[at] != 0xaa;
	note("bytes overwritten behind the set", behind, 0);
}

/* select(getdtablesize(), ...) is for fd_sets, too. */
static void more_numbers_than_a_set_has(int fd, int peer)
{
	struct timeval time = { .tv_sec = 1000 };
	fd_set set;

	FD_ZERO(&set);
	FD_SET(fd, &set);
	time.tv_sec = 0;
	note("select(4096) of an idle socket", select(4096, &set, NULL, NULL, &time), 0);
	note("send", send(peer, "x", 1, 0), 1);
	FD_SET(fd, &set);
	time.tv_sec = 1000;
	note("select(4096)", select(4096, &set, NULL, NULL, &time), 1);
	note("it is in the set", FD_ISSET(fd, &set) != 0, 1);
	note("the time that is left is less", time.tv_sec < 1000, 1);
	char byte;
	note("recv", recv(fd, &byte, 1, 0), 1);
}

static void signal_is_let_through(const char *what, int result, int wanted)
{
	if (wanted)
		refused(what, result, EINTR);
	else
		note(what, result, 0);
	char text[64];
	snprintf(text, sizeof(text), "handlers run by %s", what);
	note(text, came, wanted);
	came = 0;
}

/* What pselect and its like are for: a signal that comes while it is blocked ends the wait. */
static void signals_end_waits(int fd)
{
	struct sigaction action = { .sa_handler = handler };
	struct timespec time = { .tv_sec = 2 }, little = { .tv_nsec = 200000000 };
	struct epoll_event event = { .events = EPOLLIN };
	struct itimerval soon = { .it_value.tv_usec = 200000 };
	struct pollfd one = { .fd = fd, .events = POLLIN };
	int epoll = epoll_create1(EPOLL_CLOEXEC);
	sigset_t blocked, before, none;
	fd_set set;

	sigemptyset(&none);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	sigaddset(&blocked, SIGALRM);
	sigaction(SIGUSR1, &action, NULL);
	sigaction(SIGALRM, &action, NULL);
	pthread_sigmask(SIG_BLOCK, &blocked, &before);
	note("epoll_ctl", epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), 0);

	raise(SIGUSR1);
	signal_is_let_through("pselect of nothing", pselect(0, NULL, NULL, NULL, &time, &none), 1);
	raise(SIGUSR1);
	FD_ZERO(&set);
	FD_SET(fd, &set);
	signal_is_let_through("pselect", pselect(fd + 1, &set, NULL, NULL, &time, &none), 1);
	raise(SIGUSR1);
	signal_is_let_through("ppoll", ppoll(&one, 1, &time, &none), 1);
	raise(SIGUSR1);
	signal_is_let_through("epoll_pwait", epoll_pwait(epoll, &event, 1, 2000, &none), 1);
	raise(SIGUSR1);
	signal_is_let_through("epoll_pwait2", epoll_pwait2(epoll, &event, 1, &time, &none), 1);
	/* One that comes in the middle. */
	setitimer(ITIMER_REAL, &soon, NULL);
	signal_is_let_through("ppoll, later", ppoll(&one, 1, &time, &none), 1);
	setitimer(ITIMER_REAL, &soon, NULL);
	signal_is_let_through("epoll_pwait, later", epoll_pwait(epoll, &event, 1, 2000, &none), 1);
	/* One that the new mask blocks, too. */
	raise(SIGUSR1);
	signal_is_let_through("ppoll that blocks it", ppoll(&one, 1, &little, &blocked), 0);
	signal_is_let_through("epoll_pwait that blocks it", epoll_pwait(epoll, &event, 1, 200, &blocked), 0);
	/* One that nobody handles is no reason to return. It is still pending from above. */
	signal(SIGUSR1, SIG_IGN);
	raise(SIGUSR1);
	signal_is_let_through("ppoll of an ignored one", ppoll(&one, 1, &little, &none), 0);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	close(epoll);
}

static int shared_epoll;
static struct epoll_event shared_event;

static void *wait_in_a_thread(void *unused)
{
	(void)unused;
	return (void *)(long)epoll_wait(shared_epoll, &shared_event, 1, 8000);
}

/* Threads that wait already see a socket that is added to their set. */
static void sockets_are_added_late(int fd, int peer)
{
	struct epoll_event event = { .events = EPOLLIN };
	pthread_t threads[2];
	void *result;
	char byte;
	int ends[2];

	note("pipe", pipe(ends), 0);
	shared_epoll = epoll_create1(EPOLL_CLOEXEC);
	note("epoll_ctl of a pipe", epoll_ctl(shared_epoll, EPOLL_CTL_ADD, ends[0], &event), 0);
	for (int at = 0; at < 2; at++)
		pthread_create(&threads[at], NULL, wait_in_a_thread, NULL);
	usleep(300000);
	event.data.u64 = 9;
	note("epoll_ctl", epoll_ctl(shared_epoll, EPOLL_CTL_ADD, fd, &event), 0);
	note("send", send(peer, "x", 1, 0), 1);
	for (int at = 0; at < 2; at++) {
		pthread_join(threads[at], &result);
		note("epoll_wait that began before", (long)result, 1);
	}
	note("whose event", shared_event.data.u64, 9);
	/* The pipe's events come, too, and nothing else does. */
	note("recv", recv(fd, &byte, 1, 0), 1);
	note("epoll_wait of nothing", epoll_wait(shared_epoll, &event, 1, 0), 0);
	event.data.u64 = 7;
	note("EPOLL_CTL_MOD", epoll_ctl(shared_epoll, EPOLL_CTL_MOD, ends[0], &event), 0);
	note("write", write(ends[1], "x", 1), 1);
	note("epoll_wait of the pipe", epoll_wait(shared_epoll, &event, 1, 1000), 1);
	note("whose event", event.data.u64, 7);
	close(shared_epoll);
	close(ends[0]);
	close(ends[1]);
}

/* A duplicate of an epoll descriptor is the same instance, made before its first socket or after. */
static void sets_have_duplicates(int fd, int peer)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 5 };
	int first = epoll_create1(EPOLL_CLOEXEC), early = dup(first), late, closed;
	char byte;

	note("epoll_ctl of a duplicate", epoll_ctl(early, EPOLL_CTL_ADD, fd, &event), 0);
	late = fcntl(first, F_DUPFD_CLOEXEC, 0);
	closed = dup(first);
	close(closed);
	note("send", send(peer, "x", 1, 0), 1);
	for (int at = 0; at < 3; at++) {
		int one[] = { first, early, late };
		event.data.u64 = 0;
		note("epoll_wait of a duplicate", epoll_wait(one[at], &event, 1, 2000), 1);
		note("its event", event.data.u64, 5);
	}
	refused("EPOLL_CTL_ADD again", epoll_ctl(late, EPOLL_CTL_ADD, fd, &event), EEXIST);
	close(first);
	note("epoll_wait after a duplicate is closed", epoll_wait(early, &event, 1, 2000), 1);
	close(early);
	close(late);
	note("recv", recv(fd, &byte, 1, 0), 1);
}

static void no_epoll(int fd)
{
	struct epoll_event event = { .events = EPOLLIN };
	int ends[2], epoll = epoll_create1(EPOLL_CLOEXEC);

	note("pipe", pipe(ends), 0);
	refused("epoll_ctl of no descriptor", epoll_ctl(999, EPOLL_CTL_ADD, fd, &event), EBADF);
	refused("epoll_ctl of a pipe", epoll_ctl(ends[0], EPOLL_CTL_ADD, fd, &event), EINVAL);
	refused("EPOLL_CTL_MOD of what is not in it", epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event), ENOENT);
	close(ends[0]);
	close(ends[1]);
	close(epoll);
}

int main(void)
{
	int ends[2];

	setvbuf(stdout, NULL, _IONBF, 0);
	connect_two(7310, ends);
	sets_are_as_small_as_they_may_be(ends[0]);
	more_numbers_than_a_set_has(ends[0], ends[1]);
	signals_end_waits(ends[0]);
	sockets_are_added_late(ends[0], ends[1]);
	sets_have_duplicates(ends[0], ends[1]);
	no_epoll(ends[0]);
	return wrong;
}
