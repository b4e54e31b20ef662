/* Rings in guest memory: work queues, and completion queues while they are written. */
#ifndef VHCA_RINGS_H
#define VHCA_RINGS_H

#include "memory.h"

enum { BLOCK = 64, CQE = 64, ROOM_IN_FRONT = 64 };

/* A queue in guest memory: contiguous from `addr` on, or in pages of a list (as the host wrote it). */
struct ring {
    struct card *card;
    uint64_t addr, offset, pages, mask;
    const uint8_t *list;
    uint8_t log_page;
};

/* One completion queue during a train. */
struct queue {
    struct ring ring;
    const uint8_t *record;
    uint64_t log_size, entry_bytes, producer, consumer, taken;
    bool overrun_ignored;
};

/* 64 bytes at `offset` of a ring: they are aligned, so that they lie in one page. NULL if they cannot be reached. */
uint8_t *chunk(const struct ring *ring, uint64_t offset, bool write);

/* False if the record cannot be reached. */
bool queue_open(struct queue *queue, struct ring ring, uint64_t record, uint64_t log_size, uint64_t entry_bytes,
                uint64_t producer, uint64_t consumer, uint64_t overrun_ignored);

/* Tell whether the next completion has a place. */
bool queue_has_room(struct queue *queue);

/* Put a completion into the queue, which has room; `front` are the 64 bytes before it in an entry of 128, or NULL. */
void queue_put(struct queue *queue, uint8_t cqe[CQE], const uint8_t *front);

#endif
