#include "memory.h"
#include "formats.h"

uint8_t *span_at(struct card *card, uint64_t addr, uint64_t size, bool write)
{
    uint32_t low = 0, high = card->span_count;
    const struct span *span = &card->spans[card->last];

    if (card->last >= card->span_count || addr < span->start || addr >= span->end) {
        while (low < high) {
            uint32_t middle = (low + high) / 2;
            if (card->spans[middle].end <= addr)
                low = middle + 1;
            else
                high = middle;
        }
        if (low == card->span_count || card->spans[low].start > addr)
            return NULL;
        card->last = low;
        span = &card->spans[low];
    }
    if (size > span->end - addr || !(write ? span->writable : span->readable))
        return NULL;
    return span->at + (addr - span->start);
}

bool add_piece(struct pieces *out, uint8_t *at, uint64_t size)
{
    if (!at)
        return false;
    if (out->count && out->piece[out->count - 1].at + out->piece[out->count - 1].size == at) {
        out->piece[out->count - 1].size += size;
    } else {
        if (out->count == PIECES)
            return false;
        out->piece[out->count].at = at;
        out->piece[out->count++].size = size;
    }
    out->bytes += size;
    return true;
}

/* The key, or NULL. */
static const struct key *known(const struct card *card, uint32_t key)
{
    const struct key *entry = &card->keys[(key >> 8) % KEYS];

    return entry->kind != KEY_NONE && entry->key == key && entry->age == card->age ? entry : NULL;
}

enum outcome may_invalidate(const struct card *card, uint32_t key, uint32_t pd, uint32_t qpn)
{
    const struct key *entry = known(card, key);

    if (!entry)
        return MISSING;
    return entry->remote_invalidate && entry->pd == pd && (entry->qpn == QPN_ANY || entry->qpn == qpn) ? FINE : KEY;
}

enum outcome resolve(struct card *card, uint32_t key, uint32_t pd, uint32_t qpn, uint64_t va, uint64_t length,
                     uint8_t right, bool write, struct pieces *out)
{
    const struct key *entry = known(card, key);
    uint64_t offset;

    if (!entry)
        return MISSING;
    if (entry->pd != pd || (entry->qpn != QPN_ANY && entry->qpn != qpn) || (entry->rights & right) != right)
        return KEY;
    if (va + length < va)
        return KEY;
    if (!entry->unbounded && (va < entry->start || va - entry->start > entry->length ||
                              length > entry->length - (va - entry->start)))
        return KEY;
    if (entry->kind == KEY_FLAT)
        return add_piece(out, span_at(card, va, length, write), length) ? FINE : MEMORY;
    if (entry->kind == KEY_LINEAR) {
        uint64_t addr = entry->linear + (va - entry->start);
        return add_piece(out, span_at(card, addr, length, write), length) ? FINE : MEMORY;
    }
    if (va >> entry->log_page < entry->start >> entry->log_page)
        return KEY;
    offset = va & ((UINT64_C(1) << entry->log_page) - 1);
    for (uint64_t page = (va >> entry->log_page) - (entry->start >> entry->log_page); length; page++) {
        uint64_t size = (UINT64_C(1) << entry->log_page) - offset;
        uint64_t addr;

        if (page >= entry->pages)
            return KEY;
        addr = load64(entry->list + page * 8);
        if (entry->paged && (write ? (addr & 3) != 3 : !(addr & 1)))
            return MEMORY;
        addr = (addr & ~UINT64_C(0xFFF)) + offset;
        if (size > length)
            size = length;
        if (!add_piece(out, span_at(card, addr, size, write), size))
            return MEMORY;
        length -= size;
        offset = 0;
    }
    return FINE;
}

void copy_pieces(const struct pieces *to, const struct pieces *from, uint64_t length)
{
    const struct piece *there = to->piece, *here = from->piece;
    uint64_t put = 0, taken = 0;

    while (length) {
        uint64_t size = here->size - taken;

        if (size > there->size - put)
            size = there->size - put;
        if (size > length)
            size = length;
        memmove(there->at + put, here->at + taken, size);
        put += size;
        taken += size;
        length -= size;
        if (put == there->size) {
            there++;
            put = 0;
        }
        if (taken == here->size) {
            here++;
            taken = 0;
        }
    }
}

void fill_pieces(const struct pieces *to, const uint8_t *from, uint64_t length)
{
    for (const struct piece *there = to->piece; length; there++) {
        uint64_t size = there->size < length ? there->size : length;

        memcpy(there->at, from, size);
        from += size;
        length -= size;
    }
}

void read_pieces(uint8_t *to, const struct pieces *from, uint64_t length)
{
    for (const struct piece *here = from->piece; length; here++) {
        uint64_t size = here->size < length ? here->size : length;

        memcpy(to, here->at, size);
        to += size;
        length -= size;
    }
}
