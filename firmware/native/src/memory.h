/* Guest memory and memory keys of one card: addresses of this process for what a work request names.
 *
 * Everything that a guest wrote is copied before it is looked at, and every range is checked before it is touched.
 */
#ifndef VHCA_MEMORY_H
#define VHCA_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "formats.h"
#include "train.h"

enum { SPANS = 64, KEYS = 1024 };

/* Bus addresses [start, end) lie at `at` in this process. */
struct span {
    uint64_t start, end;
    uint8_t *at;
    bool readable, writable;
};

/* A memory key that translates to the bus: as it is (FLAT), by one address (LINEAR), or by a page list. */
struct key {
    uint32_t key, pd, qpn;
    uint8_t rights, kind, log_page;
    /* Of a list whose entries say what may be done with their pages (bit 0 read, bit 1 write) `paged` is set. */
    bool unbounded, paged, remote_invalidate;
    /* The card's number when it was added: one of another number is forgotten. */
    uint32_t age;
    uint64_t start, length, linear, pages;
    const uint8_t *list;
};

struct card {
    struct span spans[SPANS];
    uint32_t span_count, last, age;
    /* Another number after an access to guest memory that has failed, without a sign; NULL if none does. */
    const uint64_t *faults;
    struct key keys[KEYS];
    /* Of queue pairs, by the end of their number: where in this process is what their trains read; NULL before one. */
    uint64_t (*noted)[RUNS];
};

/* A range of a list of pieces: `size` bytes at `at`. */
struct piece {
    uint8_t *at;
    uint64_t size;
};

enum { PIECES = 640 };

struct pieces {
    struct piece piece[PIECES];
    uint32_t count;
    uint64_t bytes;
};

static inline uint16_t load16(const uint8_t *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

static inline uint32_t load32(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* A doorbell record: read once, and before what it tells of. Hosts are little-endian, as x86-64 and aarch64 are. */
static inline uint32_t load_record(const uint8_t *at)
{
    uint32_t value;

    memcpy(&value, at, 4);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return __builtin_bswap32(value);
}

static inline uint64_t load64(const uint8_t *at)
{
    return (uint64_t)load32(at) << 32 | load32(at + 4);
}

static inline void store16(uint8_t *at, uint16_t value)
{
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static inline void store32(uint8_t *at, uint32_t value)
{
    store16(at, (uint16_t)(value >> 16));
    store16(at + 2, (uint16_t)value);
}

static inline void store64(uint8_t *at, uint64_t value)
{
    store32(at, (uint32_t)(value >> 32));
    store32(at + 4, (uint32_t)value);
}

static inline uint64_t faults_of(const struct card *card)
{
    return card->faults ? __atomic_load_n(card->faults, __ATOMIC_ACQUIRE) : 0;
}

uint8_t *span_at(struct card *card, uint64_t addr, uint64_t size, bool write);

/* Append `size` > 0 bytes, to the last piece if they lie behind it; false if there are too many pieces, or `at` is NULL. */
bool add_piece(struct pieces *out, uint8_t *at, uint64_t size);

/* Append the pieces of `length` > 0 bytes at `va` behind `key`; MISSING if the card's table does not have the key. */
enum outcome resolve(struct card *card, uint32_t key, uint32_t pd, uint32_t qpn, uint64_t va, uint64_t length,
                     uint8_t right, bool write, struct pieces *out);

/* FINE if the peer of queue pair `qpn` of domain `pd` may take this key back. */
enum outcome may_invalidate(const struct card *card, uint32_t key, uint32_t pd, uint32_t qpn);

/* Copy `length` bytes from one list of pieces to another; both hold as many. */
void copy_pieces(const struct pieces *to, const struct pieces *from, uint64_t length);

/* Copy bytes of this process into pieces that hold as many. */
void fill_pieces(const struct pieces *to, const uint8_t *from, uint64_t length);

void read_pieces(uint8_t *to, const struct pieces *from, uint64_t length);

#endif
