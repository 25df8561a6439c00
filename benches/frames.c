/*
 * What a frame costs that goes from one packet socket to another over a veth pair, with nothing of rxe in between: the most that
 * the raw link can reach where the kernel does not cut batches.
 *
 *     gcc -O2 -o target/frames benches/frames.c
 *     sudo target/frames SENDER RECEIVER SECONDS
 *
 * SENDER:   calls   sendmmsg of 16 frames, a head and a payload each, as the raw link does
 *           ring    PACKET_TX_RING (TPACKET_V2), 16 frames a call
 *           bypass  calls with PACKET_QDISC_BYPASS
 *           both    ring with PACKET_QDISC_BYPASS
 * RECEIVER: calls   recvmmsg
 *           ring    PACKET_RX_RING (TPACKET_V2)
 *           blocks  PACKET_RX_RING (TPACKET_V3), which hands a block over when it is full or after a millisecond
 *           spread  calls, and the interface's receive queue is handled by the other processor (rps_cpus)
 *
 * Each has a processor of its own and looks all the time; 256 frames at most are under way, and one copy of the payload is made
 * at each end. A UDP socket that drops everything is bound to the port, as the raw link's is. Needs root and two processors.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    PAYLOAD = 12 + 4096 + 4, /* BTH, payload, ICRC */
    HEADS = 10 + 14 + 20 + 8, /* virtio_net_hdr, Ethernet, IPv4, UDP */
    BATCH = 16,
    WINDOW = 256,
    SLOT = 8192,
    SLOTS = 1024,
    BLOCK = 1 << 18, /* of TPACKET_V3 */
    IGNORE_OUTGOING = 23,
};

/* What both processes see. */
static struct {
    volatile unsigned long received;
    volatile int step, stop;
    unsigned char station[6];
} *shared;

static void need(int done, const char *what) {
    if (!done) {
        perror(what);
        exit(1);
    }
}

static void option(int fd, int level, int name, const void *value, socklen_t length, const char *what) {
    need(setsockopt(fd, level, name, value, length) == 0, what);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static void await(int step) {
    while (shared->step < step)
        usleep(1000);
}

static void stay_on(int processor) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    need(sched_setaffinity(0, sizeof set, &set) == 0, "sched_setaffinity");
}

static void station_of(const char *interface, unsigned char *out) {
    char command[96];
    snprintf(command, sizeof command, "ip -o link show %s | sed 's/.*ether //;s/ .*//'", interface);
    FILE *said = popen(command, "r");
    need(said && fscanf(said, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", out, out + 1, out + 2, out + 3, out + 4, out + 5) == 6,
         command);
    pclose(said);
}

/* A packet socket; version 0: without a ring. */
static int packet_socket(int version) {
    int fd = socket(AF_PACKET, SOCK_RAW, 0), one = 1, room = 8 << 20;
    need(fd >= 0, "packet socket");
    if (version)
        option(fd, SOL_PACKET, PACKET_VERSION, &version, sizeof version, "PACKET_VERSION");
    option(fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one, "PACKET_VNET_HDR");
    option(fd, SOL_PACKET, IGNORE_OUTGOING, &one, sizeof one, "PACKET_IGNORE_OUTGOING");
    option(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room, "SO_RCVBUFFORCE");
    option(fd, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room, "SO_SNDBUFFORCE");
    return fd;
}

static char *ring_of(int fd, int name, struct tpacket_req3 wanted, socklen_t length) {
    option(fd, SOL_PACKET, name, &wanted, length, "the ring");
    size_t bytes = (size_t)wanted.tp_block_size * wanted.tp_block_nr;
    char *ring = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    need(ring != MAP_FAILED, "mmap");
    return ring;
}

static char *slots_of(int fd, int name) {
    struct tpacket_req3 wanted = {SLOT * 8, SLOTS / 8, SLOT, SLOTS, 0, 0, 0};
    return ring_of(fd, name, wanted, sizeof(struct tpacket_req));
}

static void bind_to(int fd, int ethertype, const char *interface) {
    struct sockaddr_ll at = {.sll_family = AF_PACKET, .sll_protocol = htons(ethertype)};
    at.sll_ifindex = interface ? (int)if_nametoindex(interface) : 0;
    need(bind(fd, (void *)&at, sizeof at) == 0, "bind");
}

static void write_heads(unsigned char *out, const unsigned char *from, const unsigned char *to, int id) {
    static const unsigned char fixed[] = {0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 99, 0, 2, 10, 99, 0, 1};
    unsigned char *ip = out + 24, *udp = out + 44;
    unsigned short linear = HEADS - 10 + PAYLOAD;
    unsigned sum = 0;
    memset(out, 0, HEADS);
    memcpy(out + 2, &linear, 2); /* one piece, as the raw link has it */
    memcpy(out + 10, to, 6);
    memcpy(out + 16, from, 6);
    out[22] = ETH_P_IP >> 8;
    memcpy(ip, fixed, sizeof fixed);
    ip[2] = (28 + PAYLOAD) >> 8, ip[3] = (28 + PAYLOAD) & 255, ip[5] = id;
    for (int at = 0; at < 20; at += 2)
        sum += ip[at] << 8 | ip[at + 1];
    sum = ~((sum & 0xffff) + (sum >> 16));
    ip[10] = sum >> 8, ip[11] = sum;
    udp[0] = 0xc0, udp[2] = 4791 >> 8, udp[3] = 4791 & 255;
    udp[4] = (8 + PAYLOAD) >> 8, udp[5] = (8 + PAYLOAD) & 255;
}

static char place[PAYLOAD];

static int take_by_calls(int fd) {
    enum { MOST = 32 };
    static char room[MOST][9000];
    static int wanted = 1;
    struct mmsghdr messages[MOST] = {0};
    struct iovec vectors[MOST];
    for (int at = 0; at < wanted; at++) {
        vectors[at] = (struct iovec){room[at], sizeof room[at]};
        messages[at].msg_hdr.msg_iov = &vectors[at], messages[at].msg_hdr.msg_iovlen = 1;
    }
    int taken = recvmmsg(fd, messages, wanted, MSG_DONTWAIT, 0);
    for (int at = 0; at < taken; at++)
        memcpy(place, room[at] + HEADS, PAYLOAD);
    if (taken == wanted)
        wanted = 4 * wanted < MOST ? 4 * wanted : MOST;
    else
        wanted = taken > 1 ? taken : 1;
    return taken > 0 ? taken : 0;
}

static int take_slots(char *ring) {
    static unsigned at;
    int taken = 0;
    for (; taken < BATCH; taken++, at = (at + 1) % SLOTS) {
        struct tpacket2_hdr *slot = (void *)(ring + (size_t)at * SLOT);
        if (!(__atomic_load_n(&slot->tp_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER))
            break;
        memcpy(place, (char *)slot + slot->tp_mac + HEADS - 10, PAYLOAD);
        __atomic_store_n(&slot->tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
    }
    return taken;
}

static int take_block(char *ring) {
    static unsigned at;
    struct tpacket_block_desc *block = (void *)(ring + (size_t)at * BLOCK);
    if (!(__atomic_load_n(&block->hdr.bh1.block_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER))
        return 0;
    int taken = block->hdr.bh1.num_pkts;
    char *frame = (char *)block + block->hdr.bh1.offset_to_first_pkt;
    for (int left = taken; left > 0; left--, frame += ((struct tpacket3_hdr *)frame)->tp_next_offset)
        memcpy(place, frame + ((struct tpacket3_hdr *)frame)->tp_mac + HEADS - 10, PAYLOAD);
    __atomic_store_n(&block->hdr.bh1.block_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
    at = (at + 1) % 32;
    return taken;
}

static void receive(const char *how) {
    struct sock_filter nothing[] = {{BPF_RET | BPF_K, 0, 0, 0}};
    struct sock_filter port[] = {{BPF_LD | BPF_H | BPF_ABS, 0, 0, 36},
                                 {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 4791},
                                 {BPF_RET | BPF_K, 0, 0, 0x40000},
                                 {BPF_RET | BPF_K, 0, 0, 0}};
    struct sock_fprog drop_all = {1, nothing}, of_port = {4, port};
    struct sockaddr_in roce = {.sin_family = AF_INET, .sin_port = htons(4791)};
    int slots = !strcmp(how, "ring"), blocks = !strcmp(how, "blocks");
    char *ring = 0;
    stay_on(1);
    need(unshare(CLONE_NEWNET) == 0, "unshare");
    shared->step = 1;
    await(2);
    need(system("ip link set v1 up && ip addr add 10.99.0.1/24 dev v1") == 0, "ip");
    if (!strcmp(how, "spread"))
        need(system("mount -t sysfs sysfs /sys && echo 2 >/sys/class/net/v1/queues/rx-0/rps_cpus") == 0, "rps_cpus");
    station_of("v1", shared->station);
    int udp = socket(AF_INET, SOCK_DGRAM, 0);
    option(udp, SOL_SOCKET, SO_ATTACH_FILTER, &drop_all, sizeof drop_all, "filter of the port");
    need(bind(udp, (void *)&roce, sizeof roce) == 0, "bind the port");
    int fd = packet_socket(slots ? TPACKET_V2 : blocks ? TPACKET_V3 : 0);
    option(fd, SOL_SOCKET, SO_ATTACH_FILTER, &of_port, sizeof of_port, "filter");
    if (slots)
        ring = slots_of(fd, PACKET_RX_RING);
    if (blocks)
        ring = ring_of(fd, PACKET_RX_RING, (struct tpacket_req3){BLOCK, 32, SLOT, BLOCK / SLOT * 32, 1, 0, 0},
                       sizeof(struct tpacket_req3));
    bind_to(fd, ETH_P_IP, 0);
    shared->step = 3;
    while (!shared->stop)
        shared->received += slots ? take_slots(ring) : blocks ? take_block(ring) : take_by_calls(fd);
    exit(0);
}

static void send_by_calls(int fd, struct sockaddr_ll *to, const unsigned char *own, const char *memory) {
    static unsigned char heads[BATCH][HEADS];
    static char arena[BATCH][PAYLOAD];
    struct mmsghdr messages[BATCH] = {0};
    struct iovec vectors[BATCH][2];
    for (int at = 0; at < BATCH; at++) {
        memcpy(arena[at], memory + at * PAYLOAD, PAYLOAD);
        write_heads(heads[at], own, shared->station, at);
        vectors[at][0] = (struct iovec){heads[at], HEADS};
        vectors[at][1] = (struct iovec){arena[at], PAYLOAD};
        struct msghdr *message = &messages[at].msg_hdr;
        message->msg_name = to, message->msg_namelen = sizeof *to;
        message->msg_iov = vectors[at], message->msg_iovlen = 2;
    }
    need(sendmmsg(fd, messages, BATCH, MSG_DONTWAIT) == BATCH, "sendmmsg");
}

static void send_by_ring(int fd, struct sockaddr_ll *to, const unsigned char *own, const char *memory, char *ring) {
    static unsigned next;
    for (int at = 0; at < BATCH; at++, next = (next + 1) % SLOTS) {
        struct tpacket2_hdr *slot = (void *)(ring + (size_t)next * SLOT);
        unsigned char *frame = (unsigned char *)slot + TPACKET2_HDRLEN - sizeof(struct sockaddr_ll);
        need(__atomic_load_n(&slot->tp_status, __ATOMIC_ACQUIRE) == TP_STATUS_AVAILABLE, "a free slot");
        write_heads(frame, own, shared->station, at);
        memcpy(frame + HEADS, memory + at * PAYLOAD, PAYLOAD);
        slot->tp_len = HEADS + PAYLOAD;
        __atomic_store_n(&slot->tp_status, TP_STATUS_SEND_REQUEST, __ATOMIC_RELEASE);
    }
    need(sendto(fd, 0, 0, MSG_DONTWAIT, (void *)to, sizeof *to) > 0, "send the ring");
}

int main(int count, char **words) {
    static char memory[BATCH * PAYLOAD];
    unsigned char own[6];
    char command[128], *ring = 0;
    int one = 1;
    if (count != 4) {
        fprintf(stderr, "usage: %s calls|ring|bypass|both calls|ring|blocks|spread SECONDS\n", words[0]);
        return 2;
    }
    int by_ring = !strcmp(words[1], "ring") || !strcmp(words[1], "both");
    int bypass = !strcmp(words[1], "bypass") || !strcmp(words[1], "both");
    shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    need(unshare(CLONE_NEWNET | CLONE_NEWNS) == 0 && system("mount --make-rprivate /") == 0, "namespaces");
    pid_t other = fork();
    if (other == 0)
        receive(words[2]);
    await(1);
    snprintf(command, sizeof command, "ip link add v0 mtu 9000 type veth peer name v1 mtu 9000 netns %d", other);
    need(system(command) == 0 && system("ip link set v0 up && ip addr add 10.99.0.2/24 dev v0") == 0, "ip");
    shared->step = 2;
    station_of("v0", own);
    await(3);
    usleep(300000); /* the interfaces come up */
    stay_on(0);
    int fd = packet_socket(by_ring ? TPACKET_V2 : 0);
    if (bypass)
        option(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof one, "PACKET_QDISC_BYPASS");
    if (by_ring)
        ring = slots_of(fd, PACKET_TX_RING);
    bind_to(fd, 0, "v0");
    struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_IP), .sll_halen = 6};
    to.sll_ifindex = (int)if_nametoindex("v0");
    unsigned long sent = 0;
    double start = now(), end = start + atof(words[3]);
    while (now() < end) {
        if (by_ring)
            send_by_ring(fd, &to, own, memory, ring);
        else
            send_by_calls(fd, &to, own, memory);
        sent += BATCH;
        while (sent - shared->received >= WINDOW && now() < end)
            ;
    }
    double rate = shared->received / (now() - start);
    shared->stop = 1;
    waitpid(other, 0, 0);
    printf("%s %s %.0f frames/s %.2f us %.2f Gbit/s\n", words[1], words[2], rate, 1e6 / rate, rate * 4096 * 8e-9);
    return 0;
}
