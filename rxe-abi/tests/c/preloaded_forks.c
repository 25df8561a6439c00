/* A program that knows nothing of RDMA, with librspreload and RDMAV_FORK_SAFE: the first that two threads do with a connection is done at
 * the same time. Prints what is wrong; exit code 1 then. */
#include "unaware.h"

static int client;

static void *read_the_answer(void *unused)
{
	char answer[8] = "";

	(void)unused;
	note("the client's recv", recv(client, answer, sizeof(answer), 0), 4);
	note("the answer", memcmp(answer, "pong", 4), 0);
	return NULL;
}

static void *serve(void *listener)
{
	char question[8] = "";
	int fd = accept(*(int *)listener, NULL, NULL);

	note("the server's recv", recv(fd, question, sizeof(question), 0), 4);
	note("the question", memcmp(question, "ping", 4), 0);
	note("the server's send", send(fd, "pong", 4, MSG_NOSIGNAL), 4);
	note("the end", recv(fd, question, sizeof(question), 0), 0);
	close(fd);
	return NULL;
}

int main(void)
{
	struct sockaddr_in place = { .sin_family = AF_INET, .sin_port = htons(7370) };
	int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	pthread_t server, reader;

	setvbuf(stdout, NULL, _IONBF, 0);
	alarm(60);
	inet_pton(AF_INET, "10.66.0.9", &place.sin_addr);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	note("bind", bind(listener, (struct sockaddr *)&place, sizeof(place)), 0);
	note("listen", listen(listener, 4), 0);
	client = socket(AF_INET, SOCK_STREAM, 0);
	note("connect", connect(client, (struct sockaddr *)&place, sizeof(place)), 0);
	pthread_create(&reader, NULL, read_the_answer, NULL);
	usleep(200000);
	pthread_create(&server, NULL, serve, &listener);
	note("the client's send", send(client, "ping", 4, MSG_NOSIGNAL), 4);
	pthread_join(reader, NULL);
	close(client);
	pthread_join(server, NULL);
	return wrong;
}
