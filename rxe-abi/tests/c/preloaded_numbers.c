/* A program that knows nothing of RDMA, with librspreload: what the numbers of its descriptors mean while it closes and copies them, by
 * itself and in children. Prints what is wrong; exit code 1 then. */
#include "unaware.h"
#include <linux/close_range.h>
#include <sys/resource.h>

static char byte;

/* From one end to the other. */
static void still_works(const char *what, int from, int to)
{
	note(what, send(from, "y", 1, MSG_NOSIGNAL | MSG_DONTWAIT), 1);
	note("its other end", recv(to, &byte, 1, wrong ? MSG_DONTWAIT : 0), 1);
}

/* A child of vfork(2) has its own descriptors, but not its own memory. */
static void children_of_vfork(void)
{
	int ends[2], pipes[2], at = 60;
	pid_t child;

	connect_two(7320, ends);
	note("pipe", pipe(pipes), 0);
	note("dup2", dup2(pipes[1], at), at);
	child = vfork();
	if (child == 0) {
		int copy = dup(ends[0]);
		dup2(ends[0], at);
		fcntl(ends[0], F_SETFD, 0);
		close(copy);
		close(ends[0]);
		_exit(0);
	}
	waitpid(child, NULL, 0);
	still_works("send after a child of vfork", ends[0], ends[1]);
	note("write to what a child has replaced", write(at, "x", 1), 1);
	note("it comes by the pipe", fcntl(pipes[0], F_SETFL, O_NONBLOCK), 0);
	note("it has come", read(pipes[0], &byte, 1), 1);
	child = fork();
	if (child == 0) {
		close(ends[0]);
		_exit(0);
	}
	waitpid(child, NULL, 0);
	still_works("send after a child of fork", ends[0], ends[1]);
	close(at);
	close(pipes[0]);
	close(pipes[1]);
	close(ends[0]);
	close(ends[1]);
}

/* The number of a closed socket is used by a file. */
static void numbers_are_used_again(int way)
{
	const char *ways[] = { "close_range", "closefrom", "fclose" };
	int ends[2], file = -1;
	char text[8] = "";

	connect_two(7330 + way, ends);
	/* Above those of the drop-in, because closefrom takes all that are. */
	int fd = fcntl(ends[0], F_DUPFD_CLOEXEC, 1000);
	if (way == 0)
		note(ways[way], close_range(fd, fd, 0), 0);
	else if (way == 1)
		closefrom(fd);
	else
		note(ways[way], fclose(fdopen(fd, "r")), 0);
	file = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
	note("a file", syscall(SYS_dup2, file, fd), fd);
	fcntl(ends[0], F_SETFL, O_NONBLOCK);
	note(ways[way], read(fd, text, 7), 7);
	note("the text of the file", strncmp(text, "preload", 7), 0);
	syscall(SYS_close, fd);
	close(file);
	still_works("the first descriptor of the socket", ends[0], ends[1]);
	close(ends[0]);
	close(ends[1]);
}

/* A number that was closed past the library and comes back is that of what it is now. */
static void the_system_gives_a_number(void)
{
	int ends[2], pipes[2];

	connect_two(7340, ends);
	fcntl(ends[0], F_SETFL, O_NONBLOCK);
	fcntl(ends[1], F_SETFL, O_NONBLOCK);
	/* It is the lowest that is free. */
	while (open("/dev/null", O_RDONLY | O_CLOEXEC) < ends[0])
		;
	syscall(SYS_close, ends[0]);
	note("socketpair", socketpair(AF_UNIX, SOCK_STREAM, 0, pipes), 0);
	note("its number", pipes[0], ends[0]);
	note("write", write(pipes[0], "x", 1), 1);
	note("read", read(pipes[1], &byte, 1), 1);
	close(pipes[0]);
	close(pipes[1]);
	close(ends[1]);
}

/* Calls that fail change nothing. */
static void duplicates_that_fail(void)
{
	struct rlimit limit;
	int ends[2];

	connect_two(7350, ends);
	refused("dup2 of no descriptor", dup2(999, ends[0]), EBADF);
	refused("dup3 of no descriptor", dup3(999, ends[0], O_CLOEXEC), EBADF);
	refused("dup3 of itself", dup3(ends[0], ends[0], O_CLOEXEC), EINVAL);
	still_works("send after dup2 that failed", ends[0], ends[1]);
	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
	/* Without the library these may work, if the limit is so high; here no such number is ever a socket's. */
	refused("F_DUPFD of a large number", fcntl(ends[0], F_DUPFD, 70000), EINVAL);
	refused("dup2 to a large number", dup2(ends[0], 70000), EBADF);
	still_works("send after duplicates that failed", ends[0], ends[1]);
	/* dup2 over a socket closes it. */
	int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
	note("dup2 over a socket", dup2(null, ends[0]), ends[0]);
	note("write to what is there now", write(ends[0], "xyz", 3), 3);
	note("the end", recv(ends[1], &byte, 1, 0), 0);
	close(null);
	close(ends[0]);
	close(ends[1]);
}

/* sendmmsg(2) and recvmmsg(2), of a connection and of datagrams. */
static void several_messages(int from, int to, int is_stream)
{
	char out[3][4] = { "abc", "def", "ghi" }, in[3][4] = { "", "", "" };
	struct iovec out_parts[3], in_parts[3];
	struct mmsghdr sent[3], got[3];
	struct timespec time = { .tv_sec = 1000 };
	int count = 0;

	memset(sent, 0, sizeof(sent));
	memset(got, 0, sizeof(got));
	for (int at = 0; at < 3; at++) {
		out_parts[at] = (struct iovec){ out[at], 3 };
		in_parts[at] = (struct iovec){ in[at], 3 };
		sent[at].msg_hdr = (struct msghdr){ .msg_iov = &out_parts[at], .msg_iovlen = 1 };
		got[at].msg_hdr = (struct msghdr){ .msg_iov = &in_parts[at], .msg_iovlen = 1 };
	}
	note("sendmmsg", sendmmsg(from, sent, 3, 0), 3);
	note("msg_len", sent[2].msg_len, 3);
	if (wrong)
		return;
	struct pollfd one = { .fd = to, .events = POLLIN };
	note("poll", poll(&one, 1, 5000), 1);
	/* However many there are yet. */
	while (count < 3) {
		int more = recvmmsg(to, got + count, 3 - count, MSG_WAITFORONE, &time);
		if (more <= 0) {
			note("recvmmsg", more, 1);
			return;
		}
		count += more;
	}
	note("msg_len", got[2].msg_len, 3);
	note("the data", memcmp(in, out, sizeof(in)), 0);
	note("the time that is left is less", time.tv_sec < 1000, 1);
	refused("recvmmsg of nothing", recvmmsg(to, got, 3, MSG_DONTWAIT, NULL), EAGAIN);
	note("sendmmsg of one", sendmmsg(from, sent, 1, 0), 1);
	note("recvmmsg of one", recvmmsg(to, got, 1, 0, NULL), 1);
	if (is_stream) {
		/* What has arrived before a failure counts. */
		note("send", send(from, "abc", 3, 0), 3);
		note("poll", poll(&one, 1, 5000), 1);
		note("recvmmsg with less than is asked for", recvmmsg(to, got, 3, MSG_DONTWAIT, NULL), 1);
	}
	refused("recvmmsg of a bad time", recvmmsg(to, got, 3, 0, &(struct timespec){ .tv_nsec = -1 }), EINVAL);
}

static void messages(void)
{
	struct sockaddr_in place = { .sin_family = AF_INET, .sin_port = htons(7360) };
	int ends[2];

	connect_two(7360, ends);
	several_messages(ends[0], ends[1], 1);
	close(ends[0]);
	close(ends[1]);
	inet_pton(AF_INET, "10.66.0.9", &place.sin_addr);
	ends[0] = socket(AF_INET, SOCK_DGRAM, 0);
	ends[1] = socket(AF_INET, SOCK_DGRAM, 0);
	note("bind", bind(ends[1], (struct sockaddr *)&place, sizeof(place)), 0);
	note("connect", connect(ends[0], (struct sockaddr *)&place, sizeof(place)), 0);
	several_messages(ends[0], ends[1], 0);
	close(ends[0]);
	close(ends[1]);
}

int main(void)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	signal(SIGPIPE, SIG_IGN);
	alarm(120);
	children_of_vfork();
	duplicates_that_fail();
	for (int way = 0; way < 3; way++)
		numbers_are_used_again(way);
	the_system_gives_a_number();
	messages();
	return wrong;
}
