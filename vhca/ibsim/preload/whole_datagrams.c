/* What a program under libumad2sim lacks of ib_umad: the last 32 bytes of each datagram, and datagrams of more than 256.
 *
 * Preloaded behind that library, so that its own read() comes here and a program's umad_recv() and umad_send() do.  A
 * datagram that the library reads is kept until the program gets it, 32 bytes short, and is made whole then.  The
 * server sends a long answer as its segments, one after the other, which are joined as the kernel does; a long datagram
 * of the program goes out as segments.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MESSAGE_BYTES = 288, /* of the socket, with a datagram behind 32 bytes */
    MESSAGE_HEAD_BYTES = 32,
    MAD_BYTES = 256,
    KEPT_BYTES = 224, /* that the library passes on */
    TAIL_BYTES = MAD_BYTES - KEPT_BYTES,
    UMAD_HEAD_BYTES = 64, /* struct ib_user_mad */
    HEAD_BYTES = 56,      /* of each segment: MAD, RMPP and SA header */
    DATA_BYTES = MAD_BYTES - HEAD_BYTES,
    SA_HEAD_BYTES = 20, /* counted as payload */
    TAILS = 256,        /* the library queues what the program does not take */
    FILES = 64,
    MOST_BYTES = 64 << 20,
    NEXT_MS = 10000, /* for the next segment: they come at once */

    CLASS_AT = 1,
    METHOD_AT = 3,
    TID_AT = 8,
    RMPP_VERSION_AT = 24,
    RMPP_TYPE_AT = 25,
    RMPP_FLAGS_AT = 26,
    RMPP_STATUS_AT = 27,
    SEGMENT_AT = 28,
    PAYLOAD_AT = 32,

    CLASS_SUBN_ADM = 3,
    METHOD_RESPONSE = 0x80,
    RMPP_DATA = 1,
    ACTIVE = 1,
    FIRST = 2,
    LAST = 4,
};

struct tail {
    uint8_t begin[KEPT_BYTES];
    uint8_t end[TAIL_BYTES];
    int used;
};

static struct tail tails[TAILS];
static unsigned next_tail;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* By file: a datagram, with its umad header, that the program's buffer was too small for. */
static uint8_t *waiting[FILES];
static size_t waiting_bytes[FILES];

ssize_t read(int fd, void *buffer, size_t count)
{
    static ssize_t (*next)(int, void *, size_t);
    if (!next)
        next = (ssize_t(*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");
    ssize_t got = next(fd, buffer, count);
    if (count == MESSAGE_BYTES && got == MESSAGE_BYTES) {
        const uint8_t *mad = (const uint8_t *)buffer + MESSAGE_HEAD_BYTES;
        pthread_mutex_lock(&lock);
        struct tail *tail = &tails[next_tail++ % TAILS];
        memcpy(tail->begin, mad, KEPT_BYTES);
        memcpy(tail->end, mad + KEPT_BYTES, TAIL_BYTES);
        tail->used = 1;
        pthread_mutex_unlock(&lock);
    }
    return got;
}

/* Give a datagram back what the library lost of it. */
static void make_whole(uint8_t *mad)
{
    pthread_mutex_lock(&lock);
    for (unsigned age = 0; age < TAILS; age++) { /* from the oldest on: alike ones come in order */
        struct tail *tail = &tails[(next_tail + age) % TAILS];
        if (tail->used && !memcmp(tail->begin, mad, KEPT_BYTES)) {
            memcpy(mad + KEPT_BYTES, tail->end, TAIL_BYTES);
            tail->used = 0;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
}

static uint32_t number_at(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static void put_number(uint8_t *at, uint32_t number)
{
    for (int byte = 0; byte < 4; byte++)
        at[byte] = (uint8_t)(number >> (24 - 8 * byte));
}

static int is_segment(const uint8_t *umad)
{
    const uint8_t *mad = umad + UMAD_HEAD_BYTES;
    uint32_t status;
    memcpy(&status, umad + 4, sizeof status);
    return !status && mad[CLASS_AT] == CLASS_SUBN_ADM && (mad[METHOD_AT] & METHOD_RESPONSE) &&
           mad[RMPP_VERSION_AT] == 1 && mad[RMPP_TYPE_AT] == RMPP_DATA && (mad[RMPP_FLAGS_AT] & ACTIVE);
}

/* Bytes of data in a segment. */
static size_t data_bytes(const uint8_t *mad)
{
    uint32_t payload = number_at(mad + PAYLOAD_AT);
    if (!(mad[RMPP_FLAGS_AT] & LAST) || payload < SA_HEAD_BYTES || payload > DATA_BYTES + SA_HEAD_BYTES)
        return DATA_BYTES;
    return payload - SA_HEAD_BYTES;
}

typedef int (*receive_t)(int, void *, int *, int);

/* Receive one datagram as it was sent; as umad_recv(). */
static int receive_one(int fd, uint8_t *umad, int timeout_ms)
{
    static receive_t next;
    if (!next)
        next = (receive_t)dlsym(RTLD_NEXT, "umad_recv");
    int length = MAD_BYTES;
    int agent = next(fd, umad, &length, timeout_ms);
    if (agent >= 0)
        make_whole(umad + UMAD_HEAD_BYTES);
    return agent;
}

/* Join the segments that follow `first`; gives the whole datagram and its bytes, NULL (errno) if one does not come. */
static uint8_t *join(int fd, const uint8_t *first, size_t *bytes)
{
    uint8_t one[UMAD_HEAD_BYTES + MAD_BYTES];
    memcpy(one, first, sizeof one);
    size_t size = UMAD_HEAD_BYTES + HEAD_BYTES;
    uint8_t *whole = malloc(size);
    if (whole)
        memcpy(whole, one, size);
    for (;;) {
        const uint8_t *mad = one + UMAD_HEAD_BYTES;
        size_t more = data_bytes(mad);
        uint8_t *larger = whole && size + more <= MOST_BYTES ? realloc(whole, size + more) : NULL;
        if (!larger) {
            free(whole);
            errno = ENOMEM;
            return NULL;
        }
        whole = larger;
        memcpy(whole + size, mad + HEAD_BYTES, more);
        size += more;
        if (mad[RMPP_FLAGS_AT] & LAST)
            break;
        int agent = receive_one(fd, one, NEXT_MS);
        if (agent < 0 || !is_segment(one) || memcmp(mad + TID_AT, first + UMAD_HEAD_BYTES + TID_AT, 8)) {
            free(whole);
            errno = agent < 0 ? -agent : EIO;
            return NULL;
        }
    }
    *bytes = size;
    return whole;
}

int umad_recv(int fd, void *umad, int *length, int timeout_ms)
{
    unsigned file = (unsigned)fd % FILES;
    uint8_t *whole = waiting[file];
    size_t bytes = waiting_bytes[file];
    waiting[file] = NULL;
    if (!whole) {
        uint8_t one[UMAD_HEAD_BYTES + MAD_BYTES];
        int agent = receive_one(fd, one, timeout_ms);
        if (agent < 0)
            return agent;
        if (is_segment(one)) {
            whole = join(fd, one, &bytes);
        } else {
            bytes = sizeof one;
            whole = malloc(bytes);
            if (whole)
                memcpy(whole, one, bytes);
        }
        if (!whole)
            return -errno;
    }
    int total = (int)(bytes - UMAD_HEAD_BYTES);
    uint32_t agent, told = (uint32_t)bytes;
    memcpy(whole + 16, &told, sizeof told); /* length, with the header, as the library has it */
    if (*length < total) {
        memcpy(umad, whole, UMAD_HEAD_BYTES + (size_t)(*length < 0 ? 0 : *length));
        waiting[file] = whole;
        waiting_bytes[file] = bytes;
        *length = total;
        errno = ENOSPC;
        return -ENOSPC;
    }
    memcpy(umad, whole, bytes);
    memcpy(&agent, whole, sizeof agent);
    free(whole);
    *length = total;
    return (int)agent;
}

int umad_send(int fd, int agentid, void *umad, int length, int timeout_ms, int retries)
{
    static int (*next)(int, int, void *, int, int, int);
    if (!next)
        next = (int (*)(int, int, void *, int, int, int))dlsym(RTLD_NEXT, "umad_send");
    const uint8_t *mad = (const uint8_t *)umad + UMAD_HEAD_BYTES;
    if (length <= MAD_BYTES || mad[CLASS_AT] != CLASS_SUBN_ADM || !(mad[RMPP_FLAGS_AT] & ACTIVE))
        return next(fd, agentid, umad, length, timeout_ms, retries);
    uint32_t data = (uint32_t)length - HEAD_BYTES;
    uint32_t segments = (data + DATA_BYTES - 1) / DATA_BYTES;
    for (uint32_t number = 1; number <= segments; number++) {
        uint8_t one[UMAD_HEAD_BYTES + MAD_BYTES] = {0};
        uint8_t *out = one + UMAD_HEAD_BYTES;
        uint32_t at = (number - 1) * DATA_BYTES;
        uint32_t part = data - at < DATA_BYTES ? data - at : DATA_BYTES;
        memcpy(one, umad, UMAD_HEAD_BYTES + HEAD_BYTES);
        memcpy(out + HEAD_BYTES, mad + HEAD_BYTES + at, part);
        int flags = ACTIVE | (number == 1 ? FIRST : 0) | (number == segments ? LAST : 0);
        out[RMPP_VERSION_AT] = 1;
        out[RMPP_TYPE_AT] = RMPP_DATA;
        out[RMPP_FLAGS_AT] = (uint8_t)((out[RMPP_FLAGS_AT] & 0xf8) | flags);
        out[RMPP_STATUS_AT] = 0;
        put_number(out + SEGMENT_AT, number);
        put_number(out + PAYLOAD_AT,
                   number == segments ? part + SA_HEAD_BYTES : number == 1 ? data + SA_HEAD_BYTES * segments : 0);
        int failed = next(fd, agentid, one, MAD_BYTES, timeout_ms, retries);
        if (failed)
            return failed;
    }
    return 0;
}
