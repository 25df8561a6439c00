/* A link-local address that two interfaces have, rxe-a with 10.66.1.1 and rxe-b with 10.66.2.1: the scope decides which device an id is
 * on. Prints what is wrong; exit code 1 then. */
#include <arpa/inet.h>
#include <net/if.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <string.h>

static int wrong;

static void check(const char *what, const char *interface, int good)
{
	if (good)
		return;
	wrong = 1;
	printf("%s, %s\n", what, interface);
}

static int has_address(struct ibv_context *verbs, const char *text)
{
	struct in_addr address;
	union ibv_gid gid;

	inet_pton(AF_INET, text, &address);
	for (int index = 0; verbs && !ibv_query_gid(verbs, 1, index, &gid); index++)
		if (!memcmp(gid.raw + 12, &address, 4))
			return 1;
	return 0;
}

static struct sockaddr_in6 link_local(const char *text, const char *interface)
{
	struct sockaddr_in6 address = { .sin6_family = AF_INET6, .sin6_scope_id = if_nametoindex(interface) };

	inet_pton(AF_INET6, text, &address.sin6_addr);
	return address;
}

static void is_on(const char *interface, const char *its_address)
{
	struct sockaddr_in6 own = link_local("fe80::1", interface), peer = link_local("fe80::2", interface);
	struct rdma_cm_id *id;

	check("no id", interface, !rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	check("not bound", interface, !rdma_bind_addr(id, (struct sockaddr *)&own));
	check("bound to another device", interface, has_address(id->verbs, its_address));
	rdma_destroy_id(id);

	rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP);
	check("not resolved", interface, !rdma_resolve_addr(id, NULL, (struct sockaddr *)&peer, 2000));
	check("resolved by another device", interface, has_address(id->verbs, its_address));
	rdma_destroy_id(id);

	/* Bound, and then resolved. */
	rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP);
	check("not resolved from there", interface,
	      !rdma_resolve_addr(id, (struct sockaddr *)&own, (struct sockaddr *)&peer, 2000));
	check("resolved from there by another device", interface, has_address(id->verbs, its_address));
	check("no route", interface, !rdma_resolve_route(id, 2000));
	rdma_destroy_id(id);
}

int main(void)
{
	struct sockaddr_in6 nowhere = link_local("fe80::1", "lo");
	struct rdma_cm_id *id;

	is_on("rxe-a", "10.66.1.1");
	is_on("rxe-b", "10.66.2.1");
	is_on("rxe-a", "10.66.1.1");
	rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP);
	check("not there", "lo", rdma_bind_addr(id, (struct sockaddr *)&nowhere));
	rdma_destroy_id(id);
	return wrong;
}
