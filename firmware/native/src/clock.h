/* Time, for work that ends by it. Whoever includes this has asked for POSIX's names before any other header. */
#ifndef VHCA_CLOCK_H
#define VHCA_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

#endif
