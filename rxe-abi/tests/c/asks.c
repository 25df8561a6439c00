/* How often the system is asked for its interfaces while ids resolve addresses: asks LIBIBVERBS LIBRDMACM. What this program
 * calls getifaddrs comes before the C library's. In a network namespace of its own; exit code 77 where it may have none. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { TCP = 0x0106, IDS = 20 };

static int asked;

int getifaddrs(struct ifaddrs **list)
{
	int (*original)(struct ifaddrs **) = (int (*)(struct ifaddrs **))dlsym(RTLD_NEXT, "getifaddrs");

	asked++;
	return original(list);
}

static int loopback_up(void)
{
	struct ifreq request = { .ifr_name = "lo", .ifr_flags = IFF_UP };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	int result = ioctl(fd, SIOCSIFFLAGS, &request);

	close(fd);
	return result;
}

int main(int argc, char **argv)
{
	struct sockaddr_in peer = { .sin_family = AF_INET, .sin_port = htons(7), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	void *cm, *channel, *id, *event;
	int before = 0;

	if (argc != 3 || unshare(CLONE_NEWNET))
		return 77;
	if (loopback_up() || !dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL) || !(cm = dlopen(argv[2], RTLD_NOW)))
		return 2;
	void *(*create_channel)(void) = (void *(*)(void))dlsym(cm, "rdma_create_event_channel");
	int (*create)(void *, void **, void *, int) = (int (*)(void *, void **, void *, int))dlsym(cm, "rdma_create_id");
	int (*resolve)(void *, void *, void *, int) = (int (*)(void *, void *, void *, int))dlsym(cm, "rdma_resolve_addr");
	int (*get)(void *, void **) = (int (*)(void *, void **))dlsym(cm, "rdma_get_cm_event");
	int (*ack)(void *) = (int (*)(void *))dlsym(cm, "rdma_ack_cm_event");

	channel = create_channel();
	if (!channel)
		return 2;
	for (int n = 0; n < IDS; n++) {
		if (create(channel, &id, NULL, TCP) || resolve(id, NULL, &peer, 2000) || get(channel, &event) || ack(event))
			return 2;
		if (n == 0)
			before = asked;
	}
	printf("%d by the first id, %d by all\n", before, asked);
	/* The system announces changes of its own, such as the loopback that came up: they are looked at, too. */
	return before == 0 || asked - before > IDS / 4;
}
