/* What queries answer: the device's flags, a queue pair's attributes, texts. Prints what is wrong; exit code 1 then. */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>

static int wrong;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

static void note(const char *what, long got, long wanted)
{
	if (got == wanted)
		return;
	wrong++;
	printf("%s: %#lx, wanted %#lx\n", what, got, wanted);
}

/* Flags above the 32nd bit; not all headers name them: FLUSH to global visibility and to persistence, ATOMIC_WRITE. */
static void flags(void)
{
	struct ibv_device_attr_ex attr;

	note("ibv_query_device_ex", ibv_query_device_ex(context, NULL, &attr), 0);
	note("the low flags", attr.device_cap_flags_ex & 0xffffffff, attr.orig_attr.device_cap_flags);
	note("the high flags", attr.device_cap_flags_ex >> 32, 1 << 6 | 1 << 7 | 1 << 8);
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	pd = context ? ibv_alloc_pd(context) : NULL;
	cq = pd ? ibv_create_cq(context, 8, NULL, NULL, 0) : NULL;
	if (!cq)
		return 2;
	flags();
	printf("answers: %d wrong\n", wrong);
	return wrong != 0;
}
