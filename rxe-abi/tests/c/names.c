/* Both names of the drop-in, loaded as programs do that look functions up themselves: one library, with versions.
 * Arguments: the two files. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>

static int failed;

static void check(int right, const char *what)
{
	if (right)
		return;
	printf("wrong: %s\n", what);
	failed = 1;
}

int main(int count, char **files)
{
	if (count != 3)
		return 2;
	void *verbs = dlopen(files[1], RTLD_NOW | RTLD_LOCAL);
	void *cm = dlopen(files[2], RTLD_NOW | RTLD_LOCAL);
	if (!verbs || !cm) {
		printf("%s\n", dlerror());
		return 1;
	}
	check(verbs == cm, "the two names are two libraries");
	check(dlsym(verbs, "ibv_open_device") == dlsym(cm, "ibv_open_device"), "ibv_open_device differs");

	void *newest = dlvsym(verbs, "ibv_open_device", "IBVERBS_1.1");
	void *oldest = dlvsym(verbs, "ibv_open_device", "IBVERBS_1.0");
	check(newest && newest == dlsym(verbs, "ibv_open_device"), "without a version the newest is meant");
	check(oldest && oldest != newest, "the first ABI is another");
	if (oldest) {
		errno = 0;
		check(!((void *(*)(void *))oldest)(NULL) && errno == EOPNOTSUPP, "the first ABI is refused");
	}
	check(dlvsym(cm, "rdma_create_id", "RDMACM_1.0") != NULL, "rdma_create_id@RDMACM_1.0");
	check(dlvsym(verbs, "ibv_reg_mr_iova2", "IBVERBS_1.8") != NULL, "ibv_reg_mr_iova2@IBVERBS_1.8");
	check(dlvsym(verbs, "ibv_reg_mr_iova2", "IBVERBS_1.1") == NULL, "ibv_reg_mr_iova2 has one version");
	const char *nodes[] = { "33", "34", "57", "59", "64", "65" };
	for (unsigned int i = 0; i < sizeof(nodes) / sizeof(nodes[0]); i++) {
		char version[32], name[64];
		snprintf(version, sizeof(version), "IBVERBS_PRIVATE_%s", nodes[i]);
		snprintf(name, sizeof(name), "verbs_register_driver_%s", nodes[i]);
		check(dlvsym(verbs, "ibv_cmd_create_qp", version) != NULL, version);
		check(dlvsym(verbs, "ibv_query_gid_type", version) != NULL, version);
		check(dlvsym(verbs, name, version) != NULL, name);
	}

	/* Nothing of ours but what the map names. */
	check(dlsym(verbs, "rxe_refuse_null") == NULL, "rxe_refuse_null is exported");
	check(dlsym(verbs, "rust_eh_personality") == NULL, "Rust's names are exported");
	return failed;
}
