/* A wall clock that steps: seconds in the file of CLOCK are added to it. The monotonic clock stays. */
#define _GNU_SOURCE
#include <time.h>
#include <sys/time.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
static volatile long *offset;
static void __attribute__((constructor)) open_clock(void) {
    int file = open(getenv("CLOCK"), O_RDONLY);
    offset = mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
    close(file);
}
int clock_gettime(clockid_t id, struct timespec *now) {
    int code = syscall(SYS_clock_gettime, id, now);
    if (id == CLOCK_REALTIME && offset) now->tv_sec += *offset;
    return code;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec read; clock_gettime(CLOCK_REALTIME, &read);
    now->tv_sec = read.tv_sec; now->tv_usec = read.tv_nsec / 1000; return 0;
}
time_t time(time_t *now) {
    struct timespec read; clock_gettime(CLOCK_REALTIME, &read);
    if (now) *now = read.tv_sec;
    return read.tv_sec;
}
