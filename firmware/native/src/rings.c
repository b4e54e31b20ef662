#include "rings.h"

uint8_t *chunk(const struct ring *ring, uint64_t offset, bool write)
{
    uint64_t page;

    if (!ring->list)
        return span_at(ring->card, ring->addr + offset, 64, write);
    offset += ring->offset;
    page = offset >> ring->log_page;
    if (page >= ring->pages)
        return NULL;
    return span_at(ring->card,
                   (load64(ring->list + page * 8) & ~UINT64_C(0xFFF)) + (offset & ((UINT64_C(1) << ring->log_page) - 1)),
                   64, write);
}

bool queue_open(struct queue *queue, struct ring ring, uint64_t record, uint64_t log_size,
                       uint64_t entry_bytes, uint64_t producer, uint64_t consumer, uint64_t overrun_ignored)
{
    queue->ring = ring;
    queue->record = span_at(ring.card, record, 4, false);
    queue->log_size = log_size;
    queue->entry_bytes = entry_bytes;
    queue->producer = producer;
    queue->consumer = consumer;
    queue->taken = 0;
    queue->overrun_ignored = overrun_ignored;
    return queue->record;
}

/* Where the next completion goes: the entry, or the second half of one of 128 bytes. */
static uint8_t *queue_entry(const struct queue *queue)
{
    uint64_t slot = queue->producer & ((UINT64_C(1) << queue->log_size) - 1);

    return chunk(&queue->ring, slot * queue->entry_bytes + queue->entry_bytes - CQE, true);
}

/* The half in front of it, of an entry of 128 bytes. */
static uint8_t *queue_front(const struct queue *queue)
{
    uint64_t slot = queue->producer & ((UINT64_C(1) << queue->log_size) - 1);

    return chunk(&queue->ring, slot * queue->entry_bytes, true);
}

bool queue_has_room(struct queue *queue)
{
    uint64_t size = UINT64_C(1) << queue->log_size;
    uint64_t consumer;

    if (!queue_entry(queue) || (queue->entry_bytes != CQE && !queue_front(queue)))
        return false;
    if (queue->producer - queue->consumer < size || queue->overrun_ignored)
        return true;
    consumer = queue->consumer + ((load_record(queue->record) - queue->consumer) & 0xFFFFFF);
    if (consumer <= queue->producer)
        queue->consumer = consumer;
    return queue->producer - queue->consumer < size;
}

void queue_put(struct queue *queue, uint8_t cqe[CQE], const uint8_t *front)
{
    uint8_t *entry = queue_entry(queue);
    uint64_t last;

    cqe[CQE - 1] = (uint8_t)((cqe[CQE - 1] & 0xFE) | (queue->producer >> queue->log_size & 1));
    if (front)
        memcpy(queue_front(queue), front, CQE);
    memcpy(entry, cqe, CQE - 8);
    memcpy(&last, cqe + CQE - 8, 8);
    /* The host owns the entry from here on. */
    __atomic_store_n((uint64_t *)(void *)(entry + CQE - 8), last, __ATOMIC_RELEASE);
    queue->producer++;
    queue->taken++;
}
