/* Sleeps for a Rust function, in a frame of C's: glibc ends a cancelled thread by unwinding it from the system call that it
 * sleeps in, and Rust's frames must not be unwound. So the cancellation is caught here, and told to the caller, who goes
 * back to where there are no such frames and ends the thread there (lib.rs). */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>

static void go_back(void *place)
{
	longjmp(*(jmp_buf *)place, 1);
}

/* ppoll(2) as a cancellation point, for a thread that cannot be cancelled otherwise: the number of descriptors, an errno
 * below zero, or -ECANCELED if the thread was cancelled, which it cannot be again. */
int rxe_sleep(struct pollfd *fds, nfds_t count, const struct timespec *timeout)
{
	volatile int result;
	jmp_buf place;

	/* glibc calls go_back from this very frame, so that the jump leaves nothing out. */
	pthread_cleanup_push(go_back, &place);
	if (setjmp(place) == 0) {
		pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
		result = ppoll(fds, count, timeout, NULL);
		if (result < 0)
			result = -errno;
	} else {
		result = -ECANCELED;
	}
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	pthread_cleanup_pop(0);
	return result;
}
