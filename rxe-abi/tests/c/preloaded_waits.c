/* A program that knows nothing of RDMA, with librspreload: how it waits for its sockets. Prints what is wrong; exit code 1 then. */
#include "unaware.h"

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

int main(void)
{
	int ends[2];

	setvbuf(stdout, NULL, _IONBF, 0);
	connect_two(7310, ends);
	sets_are_as_small_as_they_may_be(ends[0]);
	more_numbers_than_a_set_has(ends[0], ends[1]);
	return wrong;
}
