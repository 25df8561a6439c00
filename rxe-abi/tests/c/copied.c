/* A program of a bundle, whose copies of the two libraries have names of their own: where its calls go. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>

int main(void)
{
	Dl_info verbs, cm;

	if (!dladdr(ibv_get_device_list, &verbs) || !dladdr(rdma_create_event_channel, &cm))
		return 1;
	printf("%s\n%s\n", verbs.dli_fname, cm.dli_fname);
	return 0;
}
