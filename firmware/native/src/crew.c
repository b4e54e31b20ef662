/* Threads that run trains while the loop of the rack goes on with other cards.
 *
 * Whoever begins a train ends it, too, before anything else happens to its cards: a train belongs to one thread at any
 * time, and so does a card. A train that no thread has taken until then is run by the one that ends it, so that a
 * thread that is slow to wake up costs nothing. Threads know nothing of Python and hold no lock of its; those that have
 * nothing to do sleep, a moment after their last train: to wake one costs its waker as much as a short train does.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "clock.h"
#include "train.h"

/* Cards are in one train each, and a rack has 254 at most. */
enum { MOST_THREADS = 16, MOST_JOBS = 128, LEAST_SPIN_NS = 4000, MOST_SPIN_NS = 200000, LOOKS = 64, LOG_LONGEST_REST = 5 };

enum state { FREE, WAITS, RUNS, DONE };

struct job {
    struct train *train;
    struct card *near, *far;
    /* Changed with the lock; looked at without it by who spins. */
    _Atomic enum state state;
};

struct worker {
    pthread_t thread;
    pthread_cond_t wanted;
    bool asleep;
    int core;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t done;
    /* Threads that there are to be, and that there are; jobs that wait for one. */
    uint32_t wish, threads;
    _Atomic uint32_t waits;
    /* What this process may run on. */
    cpu_set_t cores;
    struct worker workers[MOST_THREADS];
    /* Jobs are taken in turn, from here on. */
    uint32_t next;
    /* Where cores are busy with something else, whoever is woken comes too late: so many times in a row one did, for so
     * many jobs to come no one is woken, and one who was is not there yet. */
    uint32_t futile, rest;
    bool is_coming;
    bool fork_is_handled, is_awaited;
    struct job jobs[MOST_JOBS];
} crew = {.lock = PTHREAD_MUTEX_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};

/* In the child of a fork there is no thread, and nobody who would end what had begun. */
static void forget(void)
{
    pthread_mutex_init(&crew.lock, NULL);
    pthread_cond_init(&crew.done, NULL);
    crew.threads = crew.waits = crew.futile = crew.rest = 0;
    crew.is_awaited = crew.is_coming = false;
    for (uint32_t number = 0; number < MOST_JOBS; number++)
        crew.jobs[number].state = FREE;
}

static void pause_a_little(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Look for work, or with `job` for its end, for a moment. Called with the lock, which is free meanwhile. */
static void spin(struct job *job, int64_t spin_ns)
{
    int64_t end = now_ns() + spin_ns;

    pthread_mutex_unlock(&crew.lock);
    do {
        for (int look = 0; look < LOOKS; look++) {
            if (atomic_load_explicit(&crew.waits, memory_order_relaxed) ||
                (job && atomic_load_explicit(&job->state, memory_order_relaxed) == DONE))
                goto found;
            pause_a_little();
        }
    } while (now_ns() < end);
found:
    pthread_mutex_lock(&crew.lock);
}

/* Run a job that waits. Called with the lock, which is free meanwhile. */
static void run(struct job *job)
{
    job->state = RUNS;
    crew.waits--;
    pthread_mutex_unlock(&crew.lock);
    vhca_run_train(job->train, job->near, job->far);
    pthread_mutex_lock(&crew.lock);
    job->state = DONE;
}

static struct job *oldest(void)
{
    for (uint32_t step = 0; step < MOST_JOBS; step++) {
        struct job *job = &crew.jobs[(crew.next + step) % MOST_JOBS];

        if (job->state == WAITS)
            return job;
    }
    return NULL;
}

static void *work(void *own)
{
    struct worker *worker = own;
    int64_t spin_ns = MOST_SPIN_NS;

    pthread_mutex_lock(&crew.lock);
    for (;;) {
        while (!crew.waits) {
            spin(NULL, spin_ns);
            if (crew.waits) {
                spin_ns = MOST_SPIN_NS;
                break;
            }
            if (spin_ns > LEAST_SPIN_NS)
                spin_ns /= 2;
            worker->core = sched_getcpu();
            worker->asleep = true;
            while (worker->asleep)
                pthread_cond_wait(&worker->wanted, &crew.lock);
            if (!crew.waits)
                /* Too late: there is more to do than it seemed. */
                spin_ns = MOST_SPIN_NS;
        }
        crew.futile = crew.rest = 0;
        crew.is_coming = false;
        run(oldest());
        if (crew.is_awaited)
            pthread_cond_signal(&crew.done);
    }
    return NULL;
}

/* Wake one who sleeps, if there is one. Called with the lock.
 *
 * On the core of the one who wakes him he would be of no use: that has a train of its own next. Yet that is where he is
 * put if all cores have something to do, however unimportant.
 */
static void wake(void)
{
    int here = sched_getcpu();
    struct worker *found = NULL;

    for (uint32_t number = 0; number < crew.threads; number++) {
        struct worker *worker = &crew.workers[number];

        if (worker->asleep && (!found || found->core == here))
            found = worker;
    }
    if (!found)
        return;
    if (found->core == here) {
        cpu_set_t others = crew.cores;

        CPU_CLR(here, &others);
        if (CPU_COUNT(&others))
            pthread_setaffinity_np(found->thread, sizeof(others), &others);
        found->core = -1;
    }
    found->asleep = false;
    crew.is_coming = true;
    pthread_cond_signal(&found->wanted);
}

/* Called with the lock. What cannot be had is done without. */
static void enlist(void)
{
    sigset_t all, before;

    if (!crew.fork_is_handled)
        crew.fork_is_handled = pthread_atfork(NULL, NULL, forget) == 0;
    if (!crew.fork_is_handled || sched_getaffinity(0, sizeof(crew.cores), &crew.cores)) {
        crew.wish = 0;
        return;
    }
    /* Signals are for Python's threads; but a fault of a thread's own ends it, and says where. */
    sigfillset(&all);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
    sigdelset(&all, SIGABRT);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (crew.threads < crew.wish) {
        struct worker *worker = &crew.workers[crew.threads];

        pthread_cond_init(&worker->wanted, NULL);
        worker->asleep = false;
        worker->core = -1;
        if (pthread_create(&worker->thread, NULL, work, worker))
            break;
        pthread_detach(worker->thread);
        crew.threads++;
    }
    crew.wish = crew.threads;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

uint32_t vhca_crew(uint32_t threads)
{
    uint32_t wish = threads < MOST_THREADS ? threads : MOST_THREADS;

    pthread_mutex_lock(&crew.lock);
    crew.wish = wish;
    pthread_mutex_unlock(&crew.lock);
    return wish;
}

uint32_t vhca_train_begin(struct train *train, struct card *near, struct card *far)
{
    uint32_t number;

    pthread_mutex_lock(&crew.lock);
    if (crew.threads < crew.wish)
        enlist();
    number = crew.next;
    while (crew.jobs[number].state != FREE)
        number = (number + 1) % MOST_JOBS;
    crew.jobs[number].train = train;
    crew.jobs[number].near = near;
    crew.jobs[number].far = far;
    crew.jobs[number].state = WAITS;
    crew.next = (number + 1) % MOST_JOBS;
    crew.waits++;
    if (crew.rest)
        crew.rest--;
    else
        wake();
    pthread_mutex_unlock(&crew.lock);
    return number;
}

void vhca_train_end(uint32_t number)
{
    struct job *job = &crew.jobs[number];

    pthread_mutex_lock(&crew.lock);
    if (job->state == WAITS) {
        if (crew.is_coming) {
            crew.is_coming = false;
            crew.rest = 1u << (crew.futile < LOG_LONGEST_REST ? crew.futile++ : LOG_LONGEST_REST);
        }
        run(job);
    }
    if (job->state == RUNS && !crew.waits)
        spin(job, MOST_SPIN_NS);
    while (job->state == RUNS) {
        if (crew.waits) {
            /* Rather another one's work than none. */
            run(oldest());
            continue;
        }
        crew.is_awaited = true;
        pthread_cond_wait(&crew.done, &crew.lock);
        crew.is_awaited = false;
    }
    job->state = FREE;
    pthread_mutex_unlock(&crew.lock);
}
