/* The conformance suite's agent for hosts without pyverbs: drives a device by libibverbs and librdmacm as it is told.
 *
 *     cc -O2 -o agent agent.c -libverbs -lrdmacm          (rdma-core 32 or newer; -DATOMIC_WRITE from 44 on)
 *     ./agent --bind 192.0.2.7 --port 7000 --token WORD
 *
 * It speaks the protocol that agent.py beside it describes, of which it has what `rxe conform` calls: one JSON object a line
 * over TCP, each answered by one. Numbers are integers, bytes are hexadecimal digits. Whoever connects has 20 seconds to say
 * hello with the token, fewer while others knock, else is hung up on. Each connection is a process, so its end destroys
 * whatever it has made; it can neither start programs nor touch files. Beyond agent.py it has multicast groups, XRC targets
 * and type 2 windows of any device; it has no FLUSH, and no network faults.
 *
 * It is one file although it is long, since it is copied to hosts and compiled there by hand. Its parts are headed by lines
 * of dashes: values from text, answers, objects, and so on down to the connections and main. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Seconds for the first line; bytes of it, and of any later one; values in a line; how deep they nest. */
enum { HELLO = 20, MAX_HELLO = 4096, MAX_LINE = 4 << 20, MAX_VALUES = 4096, MAX_DEPTH = 16 };
/* Connections at a time, and as many again that have not said hello; objects of one; pieces of a work request; milliseconds
 * that any call may wait. */
enum { MAX_CLIENTS = 16, MAX_OBJECTS = 1 << 20, MAX_SGE = 16, MAX_WAIT = 60000 };
/* Of the queue pair numbers that nobody has: ids have no queue pair here. */
enum { FIRST_QPN = 0x400000 };

/* --- values, from text ------------------------------------------------------------------------------------------------ */

enum kind { NONE, LITERAL, NUMBER, STRING, LIST, OBJECT };

/* A value of a request. Values of a line lie in an array; lists and objects are chains in it, 0 ends one. */
struct value {
	enum kind kind;
	const char *key, *text; /* of an object's member; of a string or literal */
	uint64_t number;        /* negative ones in two's complement */
	unsigned first, next;
};

static struct value values[MAX_VALUES];
static unsigned used;
static const struct value nothing;

static char error_text[512];
static int error_code;

/* Notes why an op cannot be done; `code` is an errno, 0 if there is none. */
__attribute__((format(printf, 2, 3))) static int fail(int code, const char *words, ...)
{
	va_list list;

	va_start(list, words);
	vsnprintf(error_text, sizeof(error_text), words, list);
	va_end(list);
	error_code = code;
	return -1;
}

/* The same for a call of a library, which has left errno. */
static int refused(const char *call)
{
	int code = errno;

	return fail(code, "%s: %s", call, strerror(code));
}

static char *skip(char *at)
{
	while (*at == ' ' || *at == '\t' || *at == '\r' || *at == '\n')
		at++;
	return at;
}

/* Unescapes a string in place, `at` behind its first quote; NULL if it has no end. Characters beyond ASCII become '?'. */
static char *string(char *at, const char **text)
{
	char *to = at;

	*text = at;
	for (; *at != '"'; at++) {
		if ((unsigned char)*at < ' ')
			return NULL;
		if (*at != '\\') {
			*to++ = *at;
			continue;
		}
		at++;
		if (*at == 'u') {
			for (int digit = 0; digit < 4; digit++)
				if (!strchr("0123456789abcdefABCDEF", *++at) || !*at)
					return NULL;
			*to++ = '?';
		} else if (*at && strchr("\"\\/bfnrt", *at)) {
			*to++ = strchr("\"\\/", *at) ? *at : ' ';
		} else {
			return NULL;
		}
	}
	*to = 0;
	return at + 1;
}

static char *parse(char *at, unsigned *which, int depth);

/* Members or elements up to `end`, `at` behind the bracket. */
static char *chain(char *at, struct value *whole, char end, int depth)
{
	unsigned *link = &whole->first;

	at = skip(at);
	if (*at == end)
		return at + 1;
	for (;;) {
		const char *key = NULL;

		if (end == '}') {
			if (*at != '"' || !(at = string(at + 1, &key)) || *(at = skip(at)) != ':')
				return NULL;
			at = skip(at + 1);
		}
		if (!(at = parse(at, link, depth + 1)))
			return NULL;
		values[*link].key = key;
		link = &values[*link].next;
		at = skip(at);
		if (*at == end)
			return at + 1;
		if (*at != ',')
			return NULL;
		at = skip(at + 1);
	}
}

/* Reads the value at `at` into a new place; the first byte behind it, or NULL. */
static char *parse(char *at, unsigned *which, int depth)
{
	struct value *value;

	if (used == MAX_VALUES || depth > MAX_DEPTH)
		return NULL;
	*which = used;
	value = &values[used++];
	*value = nothing;
	if (*at == '{' || *at == '[') {
		value->kind = *at == '{' ? OBJECT : LIST;
		return chain(at + 1, value, *at == '{' ? '}' : ']', depth);
	}
	if (*at == '"') {
		value->kind = STRING;
		return string(at + 1, &value->text);
	}
	if (*at == '-' || (*at >= '0' && *at <= '9')) {
		char *end;

		value->kind = NUMBER;
		errno = 0;
		value->number = *at == '-' ? (uint64_t)strtoll(at, &end, 10) : strtoull(at, &end, 10);
		/* Fractions mean nothing here. */
		return errno || end == at || *end == '.' || *end == 'e' || *end == 'E' ? NULL : end;
	}
	value->kind = LITERAL;
	static const char *const literals[] = { "null", "true", "false" };
	for (int literal = 0; literal < 3; literal++) {
		if (!strncmp(at, literals[literal], strlen(literals[literal]))) {
			value->text = literals[literal];
			return at + strlen(literals[literal]);
		}
	}
	return NULL;
}

/* The member of that name; what is null is absent. */
static const struct value *member(const struct value *object, const char *key)
{
	if (object->kind != OBJECT)
		return &nothing;
	for (unsigned at = object->first; at; at = values[at].next)
		if (!strcmp(values[at].key, key))
			return values[at].text && !strcmp(values[at].text, "null") && values[at].kind == LITERAL ? &nothing
														  : &values[at];
	return &nothing;
}

static int has(const struct value *object, const char *key)
{
	return member(object, key)->kind != NONE;
}

/* A number up to `most`; `missing` if there is none. What is no such number fails the op, at its end. */
static uint64_t number(const struct value *object, const char *key, uint64_t most, uint64_t missing)
{
	const struct value *found = member(object, key);

	if (found->kind == NONE)
		return missing;
	if (found->kind == NUMBER && found->number <= most)
		return found->number;
	if (found->kind == LITERAL)
		return !strcmp(found->text, "true");
	fail(EINVAL, "argument %s is no number up to %" PRIu64, key, most);
	return missing;
}

static const char *text(const struct value *object, const char *key)
{
	const struct value *found = member(object, key);

	return found->kind == STRING ? found->text : "";
}

/* What a hexadecimal digit stands for; -1 if it is none. */
static int nibble(char digit)
{
	if (digit >= '0' && digit <= '9')
		return digit - '0';
	if (digit >= 'a' && digit <= 'f')
		return digit - 'a' + 10;
	return digit >= 'A' && digit <= 'F' ? digit - 'A' + 10 : -1;
}

/* Hexadecimal digits into at most `room` bytes; how many they were, or -1. */
static long unhex(const char *digits, uint8_t *to, size_t room)
{
	size_t length = strlen(digits) / 2;

	if (strlen(digits) % 2 || length > room)
		return fail(EINVAL, "no even number of digits for at most %zu bytes", room);
	for (size_t at = 0; at < length; at++) {
		int high = nibble(digits[2 * at]), low = nibble(digits[2 * at + 1]);

		if (high < 0 || low < 0)
			return fail(EINVAL, "no hexadecimal digits");
		to[at] = (uint8_t)(high << 4 | low);
	}
	return (long)length;
}

/* --- what is answered ------------------------------------------------------------------------------------------------- */

static struct {
	char *text;
	size_t length, room;
} out;

__attribute__((format(printf, 1, 2))) static void say(const char *words, ...)
{
	va_list list;
	int length;

	va_start(list, words);
	length = vsnprintf(NULL, 0, words, list);
	va_end(list);
	if (out.length + (size_t)length + 1 > out.room) {
		out.room = 2 * (out.length + (size_t)length + 1);
		if (!(out.text = realloc(out.text, out.room))) {
			fprintf(stderr, "agent: no memory\n");
			_exit(1);
		}
	}
	va_start(list, words);
	vsnprintf(out.text + out.length, out.room - out.length, words, list);
	va_end(list);
	out.length += (size_t)length;
}

static void say_hex(const uint8_t *bytes, size_t length)
{
	say("\"");
	for (size_t at = 0; at < length; at++)
		say("%02x", bytes[at]);
	say("\"");
}

/* --- names ------------------------------------------------------------------------------------------------------------ */

struct name {
	const char *text;
	unsigned bit;
};

static const struct name ACCESS[] = {
	{ "LOCAL_WRITE", IBV_ACCESS_LOCAL_WRITE },     { "REMOTE_WRITE", IBV_ACCESS_REMOTE_WRITE },
	{ "REMOTE_READ", IBV_ACCESS_REMOTE_READ },     { "REMOTE_ATOMIC", IBV_ACCESS_REMOTE_ATOMIC },
	{ "MW_BIND", IBV_ACCESS_MW_BIND },             { "ZERO_BASED", IBV_ACCESS_ZERO_BASED },
	{ "FLUSH_GLOBAL", 1 << 8 },                    { "FLUSH_PERSISTENT", 1 << 9 },
	{ "RELAXED_ORDERING", IBV_ACCESS_RELAXED_ORDERING }, { NULL, 0 },
};
static const struct name FLAGS[] = {
	{ "SIGNALED", IBV_SEND_SIGNALED }, { "FENCE", IBV_SEND_FENCE }, { "SOLICITED", IBV_SEND_SOLICITED },
	{ "INLINE", IBV_SEND_INLINE },     { NULL, 0 },
};
static const struct name SERVICES[] = {
	{ "RC", IBV_QPT_RC }, { "UC", IBV_QPT_UC }, { "UD", IBV_QPT_UD }, { "XRC_TARGET", IBV_QPT_XRC_RECV }, { NULL, 0 },
};
static const struct name OPCODES[] = {
	{ "SEND", IBV_WR_SEND },
	{ "SEND_WITH_IMM", IBV_WR_SEND_WITH_IMM },
	{ "SEND_WITH_INV", IBV_WR_SEND_WITH_INV },
	{ "RDMA_WRITE", IBV_WR_RDMA_WRITE },
	{ "RDMA_WRITE_WITH_IMM", IBV_WR_RDMA_WRITE_WITH_IMM },
	{ "RDMA_READ", IBV_WR_RDMA_READ },
	{ "ATOMIC_CMP_AND_SWP", IBV_WR_ATOMIC_CMP_AND_SWP },
	{ "ATOMIC_FETCH_AND_ADD", IBV_WR_ATOMIC_FETCH_AND_ADD },
	{ "LOCAL_INV", IBV_WR_LOCAL_INV },
#ifdef ATOMIC_WRITE
	{ "ATOMIC_WRITE", IBV_WR_ATOMIC_WRITE },
#endif
	{ NULL, 0 },
};
/* From number 0 on. */
static const char *const STATES[] = { "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR" };
static const char *const STATUS[] = {
	"SUCCESS",        "LOC_LEN_ERR",     "LOC_QP_OP_ERR",      "LOC_EEC_OP_ERR",   "LOC_PROT_ERR",       "WR_FLUSH_ERR",
	"MW_BIND_ERR",    "BAD_RESP_ERR",    "LOC_ACCESS_ERR",     "REM_INV_REQ_ERR",  "REM_ACCESS_ERR",     "REM_OP_ERR",
	"RETRY_EXC_ERR",  "RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR", "REM_INV_RD_REQ_ERR", "REM_ABORT_ERR",    "INV_EECN_ERR",
	"INV_EEC_STATE_ERR", "FATAL_ERR",    "RESP_TIMEOUT_ERR",   "GENERAL_ERR",      "TM_ERR",             "TM_RNDV_INCOMPLETE",
};
static const char *const DONE[] = {
	"SEND", "RDMA_WRITE", "RDMA_READ", "COMP_SWAP", "FETCH_ADD", "BIND_MW", "LOCAL_INV", "TSO", "FLUSH", "ATOMIC_WRITE",
};
static const char *const EVENTS[] = {
	"CQ_ERR",      "QP_FATAL",   "QP_REQ_ERR", "QP_ACCESS_ERR",    "COMM_EST",            "SQ_DRAINED",         "PATH_MIG",
	"PATH_MIG_ERR", "DEVICE_FATAL", "PORT_ACTIVE", "PORT_ERR",     "LID_CHANGE",          "PKEY_CHANGE",        "SM_CHANGE",
	"SRQ_ERR",     "SRQ_LIMIT_REACHED", "QP_LAST_WQE_REACHED", "CLIENT_REREGISTER", "GID_CHANGE", "WQ_FATAL",
};
#define NAME(table, at) ((size_t)(at) < sizeof(table) / sizeof(*(table)) ? (table)[at] : "UNKNOWN")

static int find(const struct name *table, const char *wanted, unsigned *bit)
{
	for (; table->text; table++)
		if (!strcmp(table->text, wanted)) {
			*bit = table->bit;
			return 0;
		}
	return fail(EINVAL, "nothing here is called '%.40s'", wanted);
}

/* The bits of a list of names. */
static unsigned bits(const struct value *list, const struct name *table)
{
	unsigned all = 0;

	for (unsigned at = list->kind == LIST ? list->first : 0; at; at = values[at].next) {
		unsigned bit = 0;

		if (values[at].kind == STRING && !find(table, values[at].text, &bit))
			all |= bit;
	}
	return all;
}

static int state_of(const char *wanted)
{
	for (int state = 0; state < 7; state++)
		if (!strcmp(STATES[state], wanted))
			return state;
	return fail(EINVAL, "there is no state '%.40s'", wanted);
}

/* --- objects ---------------------------------------------------------------------------------------------------------- */

enum what { GONE, CONTEXT, PD, MR, MW, CQ, SRQ, QP, AH, CM_CHANNEL, CM_ID };
static const char *const WHAT[] = { "nothing", "context", "pd", "mr", "mw", "cq", "srq", "qp", "ah", "cm channel", "cm id" };

/* What a handle, one more than its place, stands for. Handles are not used again. */
struct object {
	enum what what;
	union {
		void *any;
		struct ibv_context *context;
		struct ibv_pd *pd;
		struct ibv_mr *mr;
		struct ibv_mw *mw;
		struct ibv_cq *cq;
		struct ibv_srq *srq;
		struct ibv_qp *qp;
		struct ibv_ah *ah;
		struct rdma_event_channel *channel;
		struct rdma_cm_id *id;
	};
	struct ibv_xrcd *xrcd; /* XRC targets: their domain, and a receive queue of their own in it */
	struct ibv_srq *own;
	struct ibv_qp_ex *extended; /* queue pairs that take extended posts */
	unsigned qpn;               /* the number that an id names */
};

static struct object *objects;
static size_t count;

static struct object *add(enum what what, void *any)
{
	if (count % 1024 == 0) {
		struct object *more = count < MAX_OBJECTS ? realloc(objects, (count + 1024) * sizeof(*more)) : NULL;

		if (!more) {
			/* Its end gives all back. */
			fprintf(stderr, "agent: too many objects\n");
			_exit(1);
		}
		objects = more;
	}
	memset(&objects[count], 0, sizeof(*objects));
	objects[count].what = what;
	objects[count].any = any;
	return &objects[count++];
}

static size_t handle_of(const struct object *object)
{
	return (size_t)(object - objects) + 1;
}

static struct object *get(const struct value *args, const char *key, enum what what)
{
	uint64_t handle = number(args, key, UINT64_MAX, 0);

	if (handle && handle <= count && objects[handle - 1].what == what)
		return &objects[handle - 1];
	fail(EINVAL, "%s: handle %" PRIu64 " is no %s", key, handle, WHAT[what]);
	return NULL;
}

/* A new object as an answer, or why there is none. */
static int made(enum what what, void *any, const char *call)
{
	if (!any)
		return refused(call);
	say("{\"handle\": %zu}", handle_of(add(what, any)));
	return 0;
}

static int destroy_qp(struct object *object)
{
	int code = ibv_destroy_qp(object->qp);

	if (!code && object->own)
		code = ibv_destroy_srq(object->own);
	if (!code && object->xrcd)
		code = ibv_close_xrcd(object->xrcd);
	return code;
}

static int destroy_mr(struct object *object)
{
	void *addr = object->mr->addr;
	size_t length = object->mr->length;
	int code = ibv_dereg_mr(object->mr);

	if (!code)
		munmap(addr, length ? length : 1);
	return code;
}

static int destroy(struct object *object)
{
	int code = 0;

	errno = 0;
	switch (object->what) {
	case CONTEXT: code = ibv_close_device(object->context); break;
	case PD: code = ibv_dealloc_pd(object->pd); break;
	case MR: code = destroy_mr(object); break;
	case MW: code = ibv_dealloc_mw(object->mw); break;
	case CQ: code = ibv_destroy_cq(object->cq); break;
	case SRQ: code = ibv_destroy_srq(object->srq); break;
	case QP: code = destroy_qp(object); break;
	case AH: code = ibv_destroy_ah(object->ah); break;
	case CM_CHANNEL: rdma_destroy_event_channel(object->channel); break;
	case CM_ID: code = rdma_destroy_id(object->id); break;
	case GONE: return fail(EINVAL, "there is nothing to close");
	}
	/* The verbs return their errno, rdma_cm sets it. */
	if (code)
		return fail(code > 0 ? code : errno, "closing the %s: %s", WHAT[object->what], strerror(code > 0 ? code : errno));
	object->what = GONE;
	return 0;
}

static int op_close(const struct value *args)
{
	uint64_t handle = number(args, "handle", UINT64_MAX, 0);

	if (!handle || handle > count)
		return fail(EINVAL, "handle %" PRIu64 " is nothing", handle);
	return destroy(&objects[handle - 1]);
}

static int op_close_all(const struct value *args)
{
	int worst = 0;

	(void)args;
	for (size_t at = count; at--;)
		if (objects[at].what != GONE && destroy(&objects[at]))
			worst = -1;
	return worst;
}

/* Whether the device is kernel rxe, by its vendor. */
static int is_rxe;

/* --- devices and memory ----------------------------------------------------------------------------------------------- */

static int op_ping(const struct value *args)
{
	(void)args;
	say("\"pong\"");
	return 0;
}

static int op_hello(const struct value *args)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct utsname system;

	(void)args;
	uname(&system);
	say("{\"kernel\": \"%s\", \"arch\": \"%s\", \"devices\": [", system.release, system.machine);
	for (int at = 0; list && list[at]; at++)
		say("%s\"%s\"", at ? ", " : "", ibv_get_device_name(list[at]));
	say("], \"protocol\": 1}");
	if (list)
		ibv_free_device_list(list);
	return 0;
}

static int op_open(const struct value *args)
{
	const char *name = text(args, "dev");
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;
	struct ibv_device_attr attr;

	for (int at = 0; list && list[at] && !context; at++)
		if (!strcmp(ibv_get_device_name(list[at]), name))
			context = ibv_open_device(list[at]);
	if (list)
		ibv_free_device_list(list);
	if (!context)
		return fail(ENODEV, "there is no device '%.60s', or it cannot be opened", name);
	fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK);
	memset(&attr, 0, sizeof(attr));
	ibv_query_device(context, &attr);
	is_rxe = attr.vendor_id == 0xffffff;
	say("{\"handle\": %zu, \"features\": [", handle_of(add(CONTEXT, context)));
	say("%s", attr.max_mcast_grp ? "\"multicast\"" : "");
	say("%s]}", !(attr.device_cap_flags & IBV_DEVICE_XRC) ? "" : attr.max_mcast_grp ? ", \"xrc\"" : "\"xrc\"");
	return 0;
}

static int op_query_port(const struct value *args)
{
	struct object *context = get(args, "ctx", CONTEXT);
	struct ibv_port_attr port;

	if (!context)
		return -1;
	errno = ibv_query_port(context->context, (uint8_t)number(args, "port", 255, 1), &port);
	if (errno)
		return refused("ibv_query_port");
	say("{\"active_mtu\": %d, \"max_mtu\": %d}", 128 << port.active_mtu, 128 << port.max_mtu);
	return 0;
}

static int op_async_event(const struct value *args)
{
	struct object *context = get(args, "ctx", CONTEXT);
	struct ibv_async_event event;

	if (!context)
		return -1;
	struct pollfd waits = { .fd = context->context->async_fd, .events = POLLIN };
	if (poll(&waits, 1, (int)number(args, "timeout_ms", MAX_WAIT, 0)) <= 0 ||
	    ibv_get_async_event(context->context, &event)) {
		say("null");
		return 0;
	}
	say("{\"event\": \"%s\"}", NAME(EVENTS, event.event_type));
	/* An event that is not acknowledged holds up the end of its object. */
	ibv_ack_async_event(&event);
	return 0;
}

static int op_pd(const struct value *args)
{
	struct object *context = get(args, "ctx", CONTEXT);

	return context ? made(PD, ibv_alloc_pd(context->context), "ibv_alloc_pd") : -1;
}

static int op_mr(const struct value *args)
{
	struct object *pd = get(args, "pd", PD);
	size_t length = number(args, "length", 1 << 30, 0);
	unsigned access = bits(member(args, "access"), ACCESS);
	struct ibv_mr *mr;
	void *memory;

	if (!pd || error_text[0])
		return -1;
	memory = mmap(NULL, length ? length : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return refused("mmap");
	mr = ibv_reg_mr(pd->pd, memory, length, (int)access);
	if (!mr) {
		refused("ibv_reg_mr");
		munmap(memory, length ? length : 1);
		return -1;
	}
	say("{\"handle\": %zu, \"addr\": %" PRIu64 ", \"length\": %zu, \"lkey\": %u, \"rkey\": %u}", handle_of(add(MR, mr)),
	    (uint64_t)(uintptr_t)memory, length, mr->lkey, mr->rkey);
	return 0;
}

static int op_mem(const struct value *args, int writes)
{
	struct object *region = get(args, "mr", MR);
	uint64_t offset = number(args, "offset", UINT32_MAX, 0);
	uint64_t length = writes ? strlen(text(args, "hex")) / 2 : number(args, "length", UINT32_MAX, 0);
	uint8_t *at;

	if (!region)
		return -1;
	if (offset + length > region->mr->length)
		return fail(EINVAL, "%" PRIu64 " bytes at %" PRIu64 " are outside the region", length, offset);
	at = (uint8_t *)region->mr->addr + offset;
	if (writes)
		return unhex(text(args, "hex"), at, length) < 0 ? -1 : 0;
	say("{\"data\": ");
	say_hex(at, length);
	say("}");
	return 0;
}

static int op_mem_write(const struct value *args)
{
	return op_mem(args, 1);
}

static int op_mem_read(const struct value *args)
{
	return op_mem(args, 0);
}

static int op_mw(const struct value *args)
{
	struct object *pd = get(args, "pd", PD);
	struct ibv_mw *mw;

	if (!pd)
		return -1;
	mw = ibv_alloc_mw(pd->pd, number(args, "type", 2, 1) == 2 ? IBV_MW_TYPE_2 : IBV_MW_TYPE_1);
	if (!mw)
		return refused("ibv_alloc_mw");
	say("{\"handle\": %zu, \"rkey\": %u}", handle_of(add(MW, mw)), mw->rkey);
	return 0;
}

/* --- queues ----------------------------------------------------------------------------------------------------------- */

static int op_cq(const struct value *args)
{
	struct object *context = get(args, "ctx", CONTEXT);
	int entries = (int)number(args, "cqe", 1 << 22, 128);

	return context ? made(CQ, ibv_create_cq(context->context, entries, NULL, NULL, 0), "ibv_create_cq") : -1;
}

static int op_srq(const struct value *args)
{
	struct object *pd = get(args, "pd", PD);
	struct ibv_srq_init_attr init = { .attr = { .max_wr = (uint32_t)number(args, "max_wr", 1 << 20, 128), .max_sge = 4 } };

	return pd ? made(SRQ, ibv_create_srq(pd->pd, &init), "ibv_create_srq") : -1;
}

static int op_modify_srq(const struct value *args)
{
	struct object *srq = get(args, "srq", SRQ);
	struct ibv_srq_attr attr = { .srq_limit = (uint32_t)number(args, "limit", 1 << 20, 0) };

	if (!srq)
		return -1;
	errno = ibv_modify_srq(srq->srq, &attr, IBV_SRQ_LIMIT);
	return errno ? refused("ibv_modify_srq") : 0;
}

/* The extended posts that a reliable queue pair is asked for: only those that have no other form here. */
static struct ibv_qp *create(struct ibv_context *context, struct ibv_qp_init_attr_ex *init)
{
	struct ibv_qp *qp = NULL;

	init->comp_mask = IBV_QP_INIT_ATTR_PD;
	if (init->qp_type == IBV_QPT_RC) {
		init->comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		init->send_ops_flags = IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
#ifdef ATOMIC_WRITE
		struct ibv_qp_init_attr_ex more = *init;

		more.send_ops_flags |= IBV_QP_EX_WITH_ATOMIC_WRITE;
		qp = ibv_create_qp_ex(context, &more);
#endif
		if (!qp)
			qp = ibv_create_qp_ex(context, init);
		init->comp_mask = IBV_QP_INIT_ATTR_PD;
	}
	return qp ? qp : ibv_create_qp_ex(context, init);
}

/* A receive queue and a domain of its own for an XRC target. */
static int create_target(struct ibv_pd *pd, struct ibv_cq *cq, struct object *target)
{
	struct ibv_xrcd_init_attr domain = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1,
					     .oflags = O_CREAT };
	struct ibv_srq_init_attr_ex queue = { .attr = { .max_wr = 128, .max_sge = 4 }, .srq_type = IBV_SRQT_XRC, .pd = pd, .cq = cq };
	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD };

	queue.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_XRCD;
	if (!(target->xrcd = ibv_open_xrcd(pd->context, &domain)))
		return refused("ibv_open_xrcd");
	queue.xrcd = init.xrcd = target->xrcd;
	if (!(target->own = ibv_create_srq_ex(pd->context, &queue))) {
		refused("ibv_create_srq_ex");
	} else if (!(target->qp = ibv_create_qp_ex(pd->context, &init))) {
		refused("ibv_create_qp_ex");
		ibv_destroy_srq(target->own);
	} else {
		return 0;
	}
	ibv_close_xrcd(target->xrcd);
	return -1;
}

static int op_qp(const struct value *args)
{
	struct object *pd = get(args, "pd", PD), *send = get(args, "send_cq", CQ), *receive = get(args, "recv_cq", CQ);
	struct object *srq = has(args, "srq") ? get(args, "srq", SRQ) : NULL, made = { .what = QP }, *kept;
	struct ibv_qp_init_attr_ex init = { .cap = { 128, 128, 4, 4, 0 } };
	uint32_t srq_number = 0;
	unsigned service = 0;

	find(SERVICES, text(args, "type"), &service);
	if (error_text[0])
		return -1;
	if (service == IBV_QPT_XRC_RECV) {
		if (create_target(pd->pd, receive->cq, &made))
			return -1;
		ibv_get_srq_num(made.own, &srq_number);
	} else {
		init.qp_type = service;
		init.send_cq = send->cq;
		init.recv_cq = receive->cq;
		init.srq = srq ? srq->srq : NULL;
		init.sq_sig_all = (int)number(args, "sig_all", 1, 0);
		init.pd = pd->pd;
		if (!(made.qp = create(pd->pd->context, &init)))
			return refused("ibv_create_qp_ex");
		made.extended = service == IBV_QPT_RC ? ibv_qp_to_qp_ex(made.qp) : NULL;
	}
	kept = add(QP, made.qp);
	kept->xrcd = made.xrcd;
	kept->own = made.own;
	kept->extended = made.extended;
	say("{\"handle\": %zu, \"qpn\": %u, \"srq_number\": %u}", handle_of(kept), made.qp->qp_num, srq_number);
	return 0;
}

/* An address as a GID: IPv4 is mapped. */
static int gid_of(const char *address, union ibv_gid *gid)
{
	memset(gid, 0, sizeof(*gid));
	if (inet_pton(AF_INET6, address, gid->raw) == 1)
		return 0;
	gid->raw[10] = gid->raw[11] = 0xff;
	return inet_pton(AF_INET, address, gid->raw + 12) == 1 ? 0 : fail(EINVAL, "'%.60s' is no address", address);
}

/* The place of an address of ours in the GID table, among the entries of that RoCE. */
static int gid_index(struct ibv_context *context, const char *address, unsigned type)
{
	struct ibv_port_attr port;
	struct ibv_gid_entry *table;
	union ibv_gid wanted;
	ssize_t length;
	int found = -1;

	if (gid_of(address, &wanted) || ibv_query_port(context, 1, &port))
		return fail(EINVAL, "no port 1, or '%.60s' is no address", address);
	if (!(table = calloc((size_t)port.gid_tbl_len + 1, sizeof(*table))))
		return refused("calloc");
	length = ibv_query_gid_table(context, table, (size_t)port.gid_tbl_len, 0);
	for (ssize_t at = 0; at < length && found < 0; at++)
		if (table[at].gid_type == type && table[at].port_num == 1 && !memcmp(&table[at].gid, &wanted, sizeof(wanted)))
			found = (int)table[at].gid_index;
	free(table);
	return found < 0 ? fail(EINVAL, "the device has no GID of that RoCE for %s", address) : found;
}

static int way(struct ibv_context *context, const struct value *av, struct ibv_ah_attr *attr)
{
	unsigned type = strcmp(text(av, "gid_type"), "v1") ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_ROCE_V1;
	int index = gid_index(context, text(av, "sgid"), type);

	if (index < 0 || gid_of(text(av, "dgid"), &attr->grh.dgid))
		return -1;
	attr->is_global = 1;
	attr->port_num = 1;
	attr->grh.sgid_index = (uint8_t)index;
	attr->grh.hop_limit = (uint8_t)number(av, "hop_limit", 255, 64);
	attr->grh.traffic_class = (uint8_t)number(av, "traffic_class", 255, 0);
	return 0;
}

/* Sets a field of `attr` and its bit in the mask if the call names it. */
#define TAKE(field, name, most, bit)                                          \
	do {                                                                  \
		if (has(attrs, name)) {                                       \
			attr.field = (uint32_t)number(attrs, name, most, 0); \
			mask |= bit;                                          \
		}                                                             \
	} while (0)

static int op_modify(const struct value *args)
{
	struct object *qp = get(args, "qp", QP);
	const struct value *attrs = member(args, "attrs");
	struct ibv_qp_attr attr = { 0 };
	int mask = 0, state;

	if (!qp)
		return -1;
	if (has(args, "state")) {
		if ((state = state_of(text(args, "state"))) < 0)
			return -1;
		attr.qp_state = (enum ibv_qp_state)state;
		mask |= IBV_QP_STATE;
	}
	TAKE(port_num, "port", 255, IBV_QP_PORT);
	TAKE(pkey_index, "pkey_index", UINT16_MAX, IBV_QP_PKEY_INDEX);
	TAKE(qkey, "qkey", UINT32_MAX, IBV_QP_QKEY);
	TAKE(dest_qp_num, "dest_qpn", UINT32_MAX, IBV_QP_DEST_QPN);
	TAKE(rq_psn, "rq_psn", UINT32_MAX, IBV_QP_RQ_PSN);
	TAKE(sq_psn, "sq_psn", UINT32_MAX, IBV_QP_SQ_PSN);
	TAKE(max_dest_rd_atomic, "max_dest_rd_atomic", 255, IBV_QP_MAX_DEST_RD_ATOMIC);
	TAKE(max_rd_atomic, "max_rd_atomic", 255, IBV_QP_MAX_QP_RD_ATOMIC);
	TAKE(min_rnr_timer, "min_rnr_timer", 255, IBV_QP_MIN_RNR_TIMER);
	TAKE(timeout, "timeout", 255, IBV_QP_TIMEOUT);
	TAKE(retry_cnt, "retry_cnt", 255, IBV_QP_RETRY_CNT);
	TAKE(rnr_retry, "rnr_retry", 255, IBV_QP_RNR_RETRY);
	TAKE(en_sqd_async_notify, "en_sqd_async_notify", 1, IBV_QP_EN_SQD_ASYNC_NOTIFY);
	if (has(attrs, "access")) {
		attr.qp_access_flags = bits(member(attrs, "access"), ACCESS);
		mask |= IBV_QP_ACCESS_FLAGS;
	}
	if (has(attrs, "path_mtu")) {
		uint64_t bytes = number(attrs, "path_mtu", 4096, 0);

		while (attr.path_mtu < IBV_MTU_4096 && 128u << attr.path_mtu != bytes)
			attr.path_mtu++;
		mask |= IBV_QP_PATH_MTU;
	}
	if (has(attrs, "av")) {
		if (way(qp->qp->context, member(attrs, "av"), &attr.ah_attr))
			return -1;
		mask |= IBV_QP_AV;
	}
	if (error_text[0])
		return -1;
	errno = ibv_modify_qp(qp->qp, &attr, mask);
	return errno ? refused("ibv_modify_qp") : 0;
}

static int op_query_qp(const struct value *args)
{
	struct object *qp = get(args, "qp", QP);
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	if (!qp)
		return -1;
	errno = ibv_query_qp(qp->qp, &attr, IBV_QP_STATE, &init);
	if (errno)
		return refused("ibv_query_qp");
	say("{\"state\": \"%s\"}", NAME(STATES, attr.qp_state));
	return 0;
}

/* The host joins a group as rdma_join_multicast would have it do, on the device's interface: else neither switches nor the
 * interface let its packets through to a device that is software. It stays in it to the end of this process, so that what goes
 * to which queue pair is the device's business alone. */
static int host_joins(struct ibv_context *context, const union ibv_gid *group)
{
	static int sockets[2] = { -1, -1 };
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };
	int four = !memcmp(group->raw, mapped, sizeof(mapped)), done;
	struct ibv_gid_entry entry;

	if (ibv_query_gid_ex(context, 1, 0, &entry, 0))
		return refused("ibv_query_gid_ex");
	if (sockets[four] < 0 && (sockets[four] = socket(four ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0)) < 0)
		return refused("socket");
	if (four) {
		struct ip_mreqn wish = { .imr_ifindex = (int)entry.ndev_ifindex };

		memcpy(&wish.imr_multiaddr, group->raw + 12, 4);
		done = setsockopt(sockets[four], IPPROTO_IP, IP_ADD_MEMBERSHIP, &wish, sizeof(wish));
	} else {
		struct ipv6_mreq wish = { .ipv6mr_interface = entry.ndev_ifindex };

		memcpy(&wish.ipv6mr_multiaddr, group->raw, 16);
		done = setsockopt(sockets[four], IPPROTO_IPV6, IPV6_JOIN_GROUP, &wish, sizeof(wish));
	}
	/* It may be in it already. */
	return done && errno != EADDRINUSE ? refused("joining the group") : 0;
}

static int member_of(const struct value *args, int joins)
{
	struct object *qp = get(args, "qp", QP);
	union ibv_gid group;

	if (!qp || gid_of(text(args, "group"), &group) || (joins && host_joins(qp->qp->context, &group)))
		return -1;
	errno = joins ? ibv_attach_mcast(qp->qp, &group, 0) : ibv_detach_mcast(qp->qp, &group, 0);
	return errno ? refused(joins ? "ibv_attach_mcast" : "ibv_detach_mcast") : 0;
}

static int op_attach_mcast(const struct value *args)
{
	return member_of(args, 1);
}

static int op_detach_mcast(const struct value *args)
{
	return member_of(args, 0);
}

static int op_ah(const struct value *args)
{
	struct object *pd = get(args, "pd", PD);
	struct ibv_ah_attr attr = { 0 };

	if (!pd || way(pd->pd->context, member(args, "av"), &attr))
		return -1;
	return made(AH, ibv_create_ah(pd->pd, &attr), "ibv_create_ah");
}

/* --- work ------------------------------------------------------------------------------------------------------------- */

static int pieces(const struct value *wr, struct ibv_sge *sges)
{
	const struct value *list = member(wr, "sge");
	int found = 0;

	for (unsigned at = list->kind == LIST ? list->first : 0; at; at = values[at].next, found++) {
		if (found == MAX_SGE)
			return fail(EINVAL, "more than %d pieces", MAX_SGE);
		sges[found].addr = number(&values[at], "addr", UINT64_MAX, 0);
		sges[found].length = (uint32_t)number(&values[at], "length", UINT32_MAX, 0);
		sges[found].lkey = (uint32_t)number(&values[at], "lkey", UINT32_MAX, 0);
	}
	return found;
}

static int receive(const struct value *args, struct ibv_qp *qp, struct ibv_srq *srq)
{
	const struct value *list = member(args, "wrs");

	for (unsigned at = list->kind == LIST ? list->first : 0; at; at = values[at].next) {
		struct ibv_sge sges[MAX_SGE];
		struct ibv_recv_wr wr = { .wr_id = number(&values[at], "wr_id", UINT64_MAX, 0), .sg_list = sges }, *bad;

		wr.num_sge = pieces(&values[at], sges);
		if (error_text[0])
			return -1;
		errno = srq ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad);
		if (errno)
			return refused("posting a receive");
	}
	return 0;
}

static int op_post_recv(const struct value *args)
{
	struct object *qp = get(args, "qp", QP);

	return qp ? receive(args, qp->qp, qp->own) : -1;
}

static int op_post_srq_recv(const struct value *args)
{
	struct object *srq = get(args, "srq", SRQ);

	return srq ? receive(args, NULL, srq->srq) : -1;
}

/* Requests that only the extended posts take: an address that ibv_post_send would refuse, and ATOMIC WRITE. */
static int post_extended(struct object *qp, const struct value *wr, const struct ibv_send_wr *plain)
{
	struct ibv_qp_ex *ex = qp->extended;

	if (!ex)
		return fail(EOPNOTSUPP, "no op '%s' here: the queue pair takes no extended posts", text(wr, "opcode"));
	if (plain->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD && plain->num_sge != 1)
		return fail(EINVAL, "an atomic has one piece, not %d", plain->num_sge);
	ibv_wr_start(ex);
	ex->wr_id = plain->wr_id;
	ex->wr_flags = plain->send_flags;
	if (plain->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		ibv_wr_atomic_fetch_add(ex, plain->wr.atomic.rkey, plain->wr.atomic.remote_addr, plain->wr.atomic.compare_add);
		ibv_wr_set_sge(ex, plain->sg_list->lkey, plain->sg_list->addr, plain->sg_list->length);
#ifdef ATOMIC_WRITE
	} else if (plain->opcode == IBV_WR_ATOMIC_WRITE) {
		uint64_t value = number(wr, "value", UINT64_MAX, 0);
		uint8_t bytes[8];

		for (int at = 0; at < 8; at++)
			bytes[at] = (uint8_t)(value >> 8 * at);
		ibv_wr_atomic_write(ex, plain->wr.rdma.rkey, plain->wr.rdma.remote_addr, bytes);
#endif
	} else {
		ibv_wr_abort(ex);
		return fail(EINVAL, "there is no unchecked %s", text(wr, "opcode"));
	}
	errno = ibv_wr_complete(ex);
	return errno ? refused("ibv_wr_complete") : 0;
}

static int post(struct object *qp, const struct value *from)
{
	struct ibv_sge sges[MAX_SGE];
	struct ibv_send_wr wr = { .wr_id = number(from, "wr_id", UINT64_MAX, 0), .sg_list = sges }, *bad;
	struct object *ah = has(from, "ah") ? get(from, "ah", AH) : NULL;
	uint64_t address = number(from, "remote_addr", UINT64_MAX, 0);
	uint32_t rkey = (uint32_t)number(from, "rkey", UINT32_MAX, 0);
	unsigned opcode = 0;

	if (find(OPCODES, text(from, "opcode"), &opcode))
		return fail(EOPNOTSUPP, "no op '%.40s' here", text(from, "opcode"));
	/* The library would take what lies at the handle's place for a pointer. */
	if ((qp->qp->qp_type == IBV_QPT_UD) != !!ah)
		return fail(EINVAL, ah ? "an ah is for datagrams only" : "a datagram needs an ah");
	if (qp->own)
		return fail(EINVAL, "an XRC target sends nothing");
	wr.opcode = opcode;
	wr.send_flags = bits(member(from, "flags"), FLAGS);
	wr.num_sge = pieces(from, sges);
	if (opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
		wr.imm_data = htonl((uint32_t)number(from, "imm", UINT32_MAX, 0));
	else if (opcode == IBV_WR_SEND_WITH_INV || opcode == IBV_WR_LOCAL_INV)
		wr.invalidate_rkey = (uint32_t)number(from, "invalidate_rkey", UINT32_MAX, 0);
	if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		int adds = opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;

		wr.wr.atomic.remote_addr = address;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = number(from, adds ? "add" : "compare", UINT64_MAX, 0);
		wr.wr.atomic.swap = number(from, "swap", UINT64_MAX, 0);
	} else if (ah) {
		wr.wr.ud.ah = ah->ah;
		wr.wr.ud.remote_qpn = (uint32_t)number(from, "remote_qpn", UINT32_MAX, 0);
		wr.wr.ud.remote_qkey = (uint32_t)number(from, "remote_qkey", UINT32_MAX, 0);
	} else {
		wr.wr.rdma.remote_addr = address;
		wr.wr.rdma.rkey = rkey;
	}
	if (error_text[0])
		return -1;
	if (number(from, "unchecked", 1, 0) || !strcmp(text(from, "opcode"), "ATOMIC_WRITE"))
		return post_extended(qp, from, &wr);
	errno = ibv_post_send(qp->qp, &wr, &bad);
	return errno ? refused("ibv_post_send") : 0;
}

static int op_post_send(const struct value *args)
{
	struct object *qp = get(args, "qp", QP);
	const struct value *list = member(args, "wrs");

	for (unsigned at = qp && list->kind == LIST ? list->first : 0; at; at = values[at].next)
		if (post(qp, &values[at]))
			return -1;
	return qp ? 0 : -1;
}

static int op_bind_mw(const struct value *args)
{
	struct object *qp = get(args, "qp", QP), *mw = get(args, "mw", MW), *mr = get(args, "mr", MR);
	struct ibv_mw_bind bind = { .send_flags = IBV_SEND_SIGNALED };
	struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED }, *bad;

	if (!qp || !mw || !mr)
		return -1;
	bind.wr_id = wr.wr_id = number(args, "wr_id", UINT64_MAX, 0);
	bind.bind_info.mr = mr->mr;
	bind.bind_info.addr = (uint64_t)(uintptr_t)mr->mr->addr + number(args, "offset", UINT32_MAX, 0);
	bind.bind_info.length = number(args, "length", UINT32_MAX, 0);
	bind.bind_info.mw_access_flags = bits(member(args, "access"), ACCESS);
	if (error_text[0])
		return -1;
	if (mw->mw->type == IBV_MW_TYPE_1) {
		errno = ibv_bind_mw(qp->qp, mw->mw, &bind);
	} else {
		wr.bind_mw.mw = mw->mw;
		wr.bind_mw.rkey = ibv_inc_rkey(mw->mw->rkey);
		wr.bind_mw.bind_info = bind.bind_info;
		errno = ibv_post_send(qp->qp, &wr, &bad);
		/* The next bind is to know the key that this one gives. */
		if (!errno)
			mw->mw->rkey = wr.bind_mw.rkey;
	}
	if (errno)
		return refused("binding the window");
	say("{\"rkey\": %u}", mw->mw->rkey);
	return 0;
}

/* Kernel rxe writes flags of its own: its WITH_INV is the library's IP_CSUM_OK, which it never means. */
static unsigned flags_of(const struct ibv_wc *wc)
{
	return is_rxe && wc->wc_flags & IBV_WC_IP_CSUM_OK ? wc->wc_flags | IBV_WC_WITH_INV : wc->wc_flags;
}

static void say_completion(const struct ibv_wc *wc)
{
	unsigned flags = flags_of(wc);
	const char *opcode = wc->opcode == IBV_WC_RECV		      ? "RECV"
			     : wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM ? "RECV_RDMA_WITH_IMM"
								       : NAME(DONE, wc->opcode);

	say("{\"wr_id\": %" PRIu64 ", \"status\": \"%s\", \"status_code\": %d, \"opcode\": \"%s\", \"byte_len\": %u, ", wc->wr_id,
	    NAME(STATUS, wc->status), wc->status, opcode, wc->byte_len);
	say("\"qp_num\": %u, \"src_qp\": %u, \"wc_flags\": [", wc->qp_num, wc->src_qp);
	say("%s", flags & IBV_WC_GRH ? "\"GRH\"" : "");
	if (flags & (IBV_WC_WITH_IMM | IBV_WC_WITH_INV))
		say("%s\"%s\"", flags & IBV_WC_GRH ? ", " : "", flags & IBV_WC_WITH_IMM ? "WITH_IMM" : "WITH_INV");
	say("], \"imm\": ");
	say(flags & IBV_WC_WITH_IMM ? "%u" : "null", ntohl(wc->imm_data));
	say(", \"invalidated_rkey\": ");
	say(flags & IBV_WC_WITH_INV ? "%u" : "null", wc->invalidated_rkey);
	say("}");
}

static long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000L + now.tv_nsec / 1000000L;
}

static int op_poll_cq(const struct value *args)
{
	struct object *cq = get(args, "cq", CQ);
	unsigned wanted = (unsigned)number(args, "count", 4096, 1), found = 0;
	long end = now_ms() + (long)number(args, "timeout_ms", MAX_WAIT, 0);
	struct ibv_wc wc;

	if (!cq || error_text[0])
		return -1;
	say("[");
	while (found < wanted) {
		int got = ibv_poll_cq(cq->cq, 1, &wc);

		if (got < 0)
			return fail(0, "ibv_poll_cq: %d", got);
		if (got) {
			say("%s", found++ ? ", " : "");
			say_completion(&wc);
		} else if (now_ms() >= end) {
			break;
		} else {
			usleep(500);
		}
	}
	say("]");
	return 0;
}

/* --- connection manager: ids without queue pairs ---------------------------------------------------------------------- */

static int op_cm_channel(const struct value *args)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();

	(void)args;
	/* The library looks for another event by itself where one is not for the program. */
	if (channel)
		fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
	return made(CM_CHANNEL, channel, "rdma_create_event_channel");
}

static struct object *enter(struct rdma_cm_id *id)
{
	static unsigned qpn = FIRST_QPN;
	struct object *object = add(CM_ID, id);

	object->qpn = qpn++ & 0xffffff;
	return object;
}

static int op_cm_id(const struct value *args)
{
	struct object *channel = get(args, "channel", CM_CHANNEL);
	struct rdma_cm_id *id;

	if (!channel)
		return -1;
	if (rdma_create_id(channel->channel, &id, NULL, strcmp(text(args, "space"), "UDP") ? RDMA_PS_TCP : RDMA_PS_UDP))
		return refused("rdma_create_id");
	say("{\"handle\": %zu}", handle_of(enter(id)));
	return 0;
}

static int sockaddr_of(const char *address, unsigned port, struct sockaddr_storage *to)
{
	struct sockaddr_in *four = (struct sockaddr_in *)to;
	struct sockaddr_in6 *six = (struct sockaddr_in6 *)to;

	memset(to, 0, sizeof(*to));
	if (inet_pton(AF_INET, address, &four->sin_addr) == 1) {
		four->sin_family = AF_INET;
		four->sin_port = htons((uint16_t)port);
		return 0;
	}
	six->sin6_family = AF_INET6;
	six->sin6_port = htons((uint16_t)port);
	return inet_pton(AF_INET6, address, &six->sin6_addr) == 1 ? 0 : fail(EINVAL, "'%.60s' is no address", address);
}

/* The next event of a channel within that time; NULL if none comes. */
static struct rdma_cm_event *event_of(struct rdma_event_channel *channel, int timeout)
{
	struct pollfd waits = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;

	return poll(&waits, 1, timeout) > 0 && !rdma_get_cm_event(channel, &event) ? event : NULL;
}

static int op_cm_listen(const struct value *args)
{
	struct object *id = get(args, "id", CM_ID);
	struct sockaddr_storage here;

	if (!id || sockaddr_of(text(args, "addr"), (unsigned)number(args, "port", 65535, 0), &here))
		return -1;
	if (rdma_bind_addr(id->id, (struct sockaddr *)&here))
		return refused("rdma_bind_addr");
	return rdma_listen(id->id, (int)number(args, "backlog", 65535, 0)) ? refused("rdma_listen") : 0;
}

/* Waits for one event of an id. */
static int expect(struct rdma_cm_id *id, enum rdma_cm_event_type wanted)
{
	struct rdma_cm_event *event = event_of(id->channel, 10000);
	int right = event && event->id == id && event->event == wanted;

	fail(0, "expected %s, got %s", rdma_event_str(wanted), event ? rdma_event_str(event->event) : "nothing");
	if (event)
		rdma_ack_cm_event(event);
	if (right)
		error_text[0] = 0;
	return right ? 0 : -1;
}

static int op_cm_resolve(const struct value *args)
{
	struct object *id = get(args, "id", CM_ID);
	struct sockaddr_storage from, to;

	if (!id || sockaddr_of(text(args, "addr"), (unsigned)number(args, "port", 65535, 0), &to))
		return -1;
	if (has(args, "src") && sockaddr_of(text(args, "src"), 0, &from))
		return -1;
	if (rdma_resolve_addr(id->id, has(args, "src") ? (struct sockaddr *)&from : NULL, (struct sockaddr *)&to, 5000))
		return refused("rdma_resolve_addr");
	if (expect(id->id, RDMA_CM_EVENT_ADDR_RESOLVED))
		return -1;
	if (rdma_resolve_route(id->id, 5000))
		return refused("rdma_resolve_route");
	return expect(id->id, RDMA_CM_EVENT_ROUTE_RESOLVED);
}

/* rdma_connect and rdma_accept, with the queue pair number that the call names or one of the id's own. */
static int join(const struct value *args, int accepts)
{
	struct object *id = get(args, "id", CM_ID);
	uint8_t data[255];
	long length = unhex(text(args, "data"), data, sizeof(data));
	struct rdma_conn_param param = { .private_data = data, .private_data_len = (uint8_t)length, .responder_resources = 1,
					 .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7 };

	if (!id || length < 0)
		return -1;
	id->qpn = (unsigned)number(args, "qpn", 0xffffff, id->qpn);
	param.qp_num = id->qpn;
	if (accepts ? rdma_accept(id->id, &param) : rdma_connect(id->id, &param))
		return refused(accepts ? "rdma_accept" : "rdma_connect");
	return 0;
}

static int op_cm_connect(const struct value *args)
{
	return join(args, 0);
}

static int op_cm_accept(const struct value *args)
{
	return join(args, 1);
}

static int op_cm_reject(const struct value *args)
{
	struct object *id = get(args, "id", CM_ID);
	uint8_t data[255];
	long length = unhex(text(args, "data"), data, sizeof(data));

	if (!id || length < 0)
		return -1;
	return rdma_reject(id->id, data, (uint8_t)length) ? refused("rdma_reject") : 0;
}

static int op_cm_establish(const struct value *args)
{
	struct object *id = get(args, "id", CM_ID);

	return !id ? -1 : rdma_establish(id->id) ? refused("rdma_establish") : 0;
}

static int op_cm_disconnect(const struct value *args)
{
	struct object *id = get(args, "id", CM_ID);

	return !id ? -1 : rdma_disconnect(id->id) ? refused("rdma_disconnect") : 0;
}

static void say_id(const char *name, const struct rdma_cm_id *id)
{
	size_t at = count;

	while (at && (objects[at - 1].what != CM_ID || objects[at - 1].id != id))
		at--;
	say(at && id ? ", \"%s\": %zu" : ", \"%s\": null", name, at);
}

static int op_cm_event(const struct value *args)
{
	struct object *channel = get(args, "channel", CM_CHANNEL);
	struct rdma_cm_event *event;
	const char *name;

	if (!channel)
		return -1;
	event = event_of(channel->channel, (int)number(args, "timeout_ms", MAX_WAIT, 0));
	if (!event) {
		say("null");
		return 0;
	}
	if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST)
		enter(event->id);
	name = rdma_event_str(event->event);
	/* One that the library does not know has a name of another form. */
	if (!strncmp(name, "RDMA_CM_EVENT_", strlen("RDMA_CM_EVENT_")))
		name += strlen("RDMA_CM_EVENT_");
	say("{\"event\": \"%s\", \"status\": %d, \"data\": ", name, event->status);
	/* The private data of both kinds of event lies at one place. */
	say_hex(event->param.conn.private_data, event->param.conn.private_data ? event->param.conn.private_data_len : 0);
	say_id("id", event->id);
	say_id("listener", event->listen_id);
	say("}");
	rdma_ack_cm_event(event);
	return 0;
}

/* --- connections ------------------------------------------------------------------------------------------------------ */

#define OP(name) { #name, op_##name }
static const struct {
	const char *name;
	int (*run)(const struct value *args);
} OPS[] = {
	OP(ping),          OP(hello),     OP(close),      OP(close_all),  OP(open),         OP(async_event), OP(pd),
	OP(query_port),    OP(mr),        OP(mem_write),  OP(mem_read),   OP(mw),           OP(cq),          OP(srq),
	OP(modify_srq),
	OP(qp),            OP(modify),    OP(query_qp),   OP(attach_mcast), OP(detach_mcast), OP(ah),        OP(post_recv),
	OP(post_srq_recv), OP(post_send), OP(bind_mw),    OP(poll_cq),    OP(cm_channel),   OP(cm_id),       OP(cm_listen),
	OP(cm_resolve),    OP(cm_connect), OP(cm_accept), OP(cm_reject),  OP(cm_establish), OP(cm_disconnect), OP(cm_event),
};

/* The request of a line, or nothing if it is no JSON. */
static const struct value *request(char *line)
{
	unsigned root;
	char *end;

	/* Place 0 is nobody's: it ends chains. */
	used = 1;
	end = parse(skip(line), &root, 0);
	return end && !*skip(end) ? &values[root] : &nothing;
}

/* Does what a request asks for, and leaves the whole answer in `out`. */
static void answer(const struct value *asked)
{
	const char *name = text(asked, "op");
	size_t begun, op = 0;

	out.length = 0;
	error_text[0] = 0;
	error_code = 0;
	say("{\"ok\": true, \"result\": ");
	begun = out.length;
	while (op < sizeof(OPS) / sizeof(*OPS) && strcmp(OPS[op].name, name))
		op++;
	if (asked->kind != OBJECT)
		fail(0, "no JSON object of at most %d values", MAX_VALUES);
	else if (op == sizeof(OPS) / sizeof(*OPS))
		fail(0, "no op '%.40s'", name);
	else if (!OPS[op].run(member(asked, "args")) && !error_text[0] && out.length == begun)
		say("null");
	if (error_text[0]) {
		out.length = 0;
		for (char *at = error_text; *at; at++)
			*at = *at == '"' || *at == '\\' || (unsigned char)*at < ' ' || (unsigned char)*at > '~' ? '?' : *at;
		say("{\"ok\": false, \"error\": \"%s\"", error_text);
		if (error_code)
			say(", \"errno\": %d", error_code);
	}
	say("}\n");
}

/* Whether this first request shows that its sender knows the token; takes as long whichever letter is wrong. */
static int is_known(const struct value *asked, const char *token)
{
	const char *told = text(member(asked, "args"), "token");
	size_t length = strlen(token), differs = strlen(told) ^ length;

	for (size_t at = 0; at < length; at++)
		differs |= (size_t)(told[at % (strlen(told) + 1)] ^ token[at]);
	return !strcmp(text(asked, "op"), "hello") && !differs;
}

static int send_all(int peer, const char *data, size_t length)
{
	while (length) {
		ssize_t sent = send(peer, data, length, MSG_NOSIGNAL);

		if (sent <= 0)
			return -1;
		data += sent;
		length -= (size_t)sent;
	}
	return 0;
}

/* A connection's process. Whoever has not said hello is a stranger. */
enum standing { STRANGER, KNOWN, OUT };
struct client {
	pid_t process; /* 0: the place is free */
	uint64_t age;  /* the higher, the younger */
	enum standing standing;
};

/* Places, and the processes of those who are known, in memory that all processes share. A seat has its holder's number in
 * it, so that it is freed with the process wherever that was killed. */
static struct {
	pid_t seats[MAX_CLIENTS];
	struct client places[2 * MAX_CLIENTS];
} *clients;

/* A stranger has said hello: whether it may stay. Not if the listener has sent it out meanwhile, or enough are here. */
static int admit(struct client *client)
{
	enum standing was = STRANGER;

	for (int at = 0; at < MAX_CLIENTS; at++) {
		pid_t nobody = 0;

		if (__atomic_compare_exchange_n(&clients->seats[at], &nobody, getpid(), 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			return __atomic_compare_exchange_n(&client->standing, &was, KNOWN, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	}
	return 0;
}

/* Serves one connection to its end. */
static void serve(int peer, const char *token, struct client *client)
{
	static const char stranger[] = "{\"ok\": false, \"error\": \"wrong token\"}\n";
	static const char full[] = "{\"ok\": false, \"error\": \"as many as may be are served already\"}\n";
	static char line[MAX_LINE + 1];
	size_t have = 0;
	int known = 0;

	/* A stranger neither stays nor fills memory. */
	alarm(HELLO);
	for (;;) {
		char *end = memchr(line, '\n', have);
		size_t room = known ? MAX_LINE : MAX_HELLO, taken;

		if (!end) {
			ssize_t got = have < room ? recv(peer, line + have, room - have, 0) : 0;

			if (got <= 0)
				return;
			have += (size_t)got;
			continue;
		}
		taken = (size_t)(end - line) + 1;
		*end = 0;
		const struct value *asked = request(line);

		if (!known && !is_known(asked, token)) {
			send_all(peer, stranger, sizeof(stranger) - 1);
			return;
		}
		if (!known && !admit(client)) {
			send_all(peer, full, sizeof(full) - 1);
			return;
		}
		known = 1;
		alarm(0);
		answer(asked);
		if (send_all(peer, out.text, out.length))
			return;
		have -= taken;
		memmove(line, line + taken, have);
	}
}

/* Frees the place and the seat of a process that has ended. */
static void leave(pid_t ended)
{
	for (int at = 0; at < 2 * MAX_CLIENTS; at++)
		if (clients->places[at].process == ended)
			clients->places[at].process = 0;
	for (int at = 0; at < MAX_CLIENTS; at++)
		if (__atomic_load_n(&clients->seats[at], __ATOMIC_SEQ_CST) == ended)
			__atomic_store_n(&clients->seats[at], 0, __ATOMIC_SEQ_CST);
}

static void reap(void)
{
	pid_t ended;

	while ((ended = waitpid(-1, NULL, WNOHANG)) > 0)
		leave(ended);
}

/* A place for a connection. Where all of the strangers' are taken the oldest has to go, so that silence shuts nobody out. */
static struct client *place(void)
{
	struct client *free_place = NULL, *oldest = NULL;
	enum standing was = STRANGER;
	int strangers = 0;

	reap();
	for (int at = 0; at < 2 * MAX_CLIENTS; at++) {
		struct client *client = &clients->places[at];

		if (!client->process) {
			free_place = client;
		} else if (__atomic_load_n(&client->standing, __ATOMIC_SEQ_CST) == STRANGER) {
			strangers++;
			oldest = oldest && oldest->age < client->age ? oldest : client;
		}
	}
	if (strangers < MAX_CLIENTS)
		return free_place;
	/* It may say hello at this moment. */
	if (!__atomic_compare_exchange_n(&oldest->standing, &was, OUT, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		return free_place;
	kill(oldest->process, SIGKILL);
	waitpid(oldest->process, NULL, 0);
	leave(oldest->process);
	return oldest;
}

static int listener_of(const char *address, const char *port)
{
	struct addrinfo hints = { .ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM }, *found;
	int code = getaddrinfo(address, port, &hints, &found), socket_of, on = 1;

	if (code) {
		fprintf(stderr, "agent: %s port %s: %s\n", address, port, gai_strerror(code));
		exit(2);
	}
	socket_of = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(socket_of, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (socket_of < 0 || bind(socket_of, found->ai_addr, found->ai_addrlen) || listen(socket_of, MAX_CLIENTS)) {
		fprintf(stderr, "agent: listening on %s port %s: %s\n", address, port, strerror(errno));
		exit(1);
	}
	freeaddrinfo(found);
	return socket_of;
}

int main(int argc, char **argv)
{
	const char *address = NULL, *port = "7000", *token = "";
	int listener;

	for (int at = 1; at < argc; at += 2) {
		const char **option = !strcmp(argv[at], "--bind")    ? &address
				      : !strcmp(argv[at], "--port")  ? &port
				      : !strcmp(argv[at], "--token") ? &token
								     : NULL;

		if (!option || at + 1 == argc) {
			fprintf(stderr, "usage: %s --bind ADDRESS [--port 7000] --token WORD\n", argv[0]);
			return 2;
		}
		*option = argv[at + 1];
	}
	if (!address || !*token) {
		fprintf(stderr, "agent: it needs --bind ADDRESS and --token WORD: nobody else is to drive this host's devices\n");
		return 2;
	}
	clients = mmap(NULL, sizeof(*clients), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (clients == MAP_FAILED) {
		fprintf(stderr, "agent: no memory: %s\n", strerror(errno));
		return 1;
	}
	listener = listener_of(address, port);
	printf("agent: listening\n");
	fflush(stdout);
	for (uint64_t age = 0;; age++) {
		int peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC), on = 1;
		struct client *client;

		if (peer < 0)
			continue;
		client = place();
		if (client) {
			pid_t process;

			client->age = age;
			client->standing = STRANGER;
			process = fork();
			if (!process) {
				close(listener);
				prctl(PR_SET_PDEATHSIG, SIGKILL);
				setsockopt(peer, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
				setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
				serve(peer, token, client);
				op_close_all(&nothing);
				_exit(0);
			}
			client->process = process > 0 ? process : 0;
		}
		close(peer);
	}
}
