/* Loads and stores in shared files whose pages the host cannot provide: SIGBUS, which would end the process.
 *
 * Whoever maps such a file says where. At a fault there, a page of our own takes the place of the one that is missing,
 * in the handler, so that the access ends, in whatever code and thread it is; and it is noted, so that whoever asked for
 * the access learns that it has failed. Each range has a page of its own, which exists before it is needed: of what is
 * stored into a hole, nobody else reads anything.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RANGES = 8192 };

struct range {
    _Atomic uintptr_t start, end;
    atomic_bool lost;
};

static struct range ranges[RANGES];
static _Atomic int most;
static _Atomic uint64_t faults;
static atomic_flag changing = ATOMIC_FLAG_INIT;
static struct sigaction before;
static atomic_bool passed_on;
static int spare = -1;
static uintptr_t page;

static int range_of(uintptr_t at)
{
    for (int index = 0; index < most; index++) {
        uintptr_t start = atomic_load_explicit(&ranges[index].start, memory_order_acquire);

        if (start && at >= start && at < ranges[index].end)
            return index;
    }
    return -1;
}

static void caught(int number, siginfo_t *info, void *context)
{
    uintptr_t at = (uintptr_t)info->si_addr;
    /* An access that is not aligned would come again. */
    int index = info->si_code == BUS_ADRERR ? range_of(at) : -1;
    int error = errno;

    (void)context;
    if (index >= 0 && mmap((void *)(at & ~(page - 1)), page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, spare,
                           (off_t)((uintptr_t)index * page)) != MAP_FAILED) {
        ranges[index].lost = true;
        faults++;
    } else if (!atomic_exchange(&passed_on, true)) {
        sigaction(number, &before, NULL);
    } else {
        signal(number, SIG_DFL);
    }
    errno = error;
}

/* Begin; false if that cannot be. */
int vhca_guard_start(void)
{
    struct sigaction action = {.sa_sigaction = caught, .sa_flags = SA_SIGINFO | SA_ONSTACK};

    page = (uintptr_t)sysconf(_SC_PAGESIZE);
    spare = memfd_create("vhca-spare", MFD_CLOEXEC);
    return spare >= 0 && ftruncate(spare, (off_t)(RANGES * page)) == 0 && sigaction(SIGBUS, &action, &before) == 0;
}

/* Empty a range's page: the one before it may have stored something. */
static bool clear_spare(int number)
{
    static const char zeros[4096];

    for (uintptr_t at = 0; at < page; at += sizeof(zeros))
        if (pwrite(spare, zeros, sizeof(zeros), (off_t)((uintptr_t)number * page + at)) != sizeof(zeros))
            return false;
    return true;
}

/* Guard `size` bytes from `start` on; the number of the range, -1 if there are too many or there is no page for it. */
int vhca_guard_add(uintptr_t start, uint64_t size)
{
    int found = -1;

    while (atomic_flag_test_and_set(&changing))
        ;
    for (int index = 0; index < RANGES && found < 0; index++)
        if (!ranges[index].start)
            found = index;
    if (found >= 0 && !clear_spare(found))
        found = -1;
    if (found >= 0) {
        ranges[found].end = start + size;
        ranges[found].lost = false;
        atomic_store_explicit(&ranges[found].start, start, memory_order_release);
        if (found >= most)
            most = found + 1;
    }
    atomic_flag_clear(&changing);
    return found;
}

/* Its memory is about to be unmapped. */
void vhca_guard_remove(int number)
{
    atomic_store_explicit(&ranges[number].start, 0, memory_order_release);
}

/* Tell whether a page of the range was missing. */
int vhca_guard_lost(int number)
{
    return ranges[number].lost;
}

/* Where all faults are counted. */
uint64_t *vhca_guard_faults(void)
{
    return (uint64_t *)&faults;
}
