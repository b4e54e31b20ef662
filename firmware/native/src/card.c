/* What the engine in C knows of a card, filled from Python. */
#include <stdlib.h>

#include "memory.h"
#include "train.h"

struct card *vhca_card_new(void)
{
    return calloc(1, sizeof(struct card));
}

void vhca_card_free(struct card *card)
{
    if (!card)
        return;
    free(card->noted);
    free(card);
}

void vhca_card_map(struct card *card, uint32_t count, const uint64_t *starts, const uint64_t *ends,
                   void *const *places, const uint8_t *access, const uint64_t *faults)
{
    if (count > SPANS)
        count = 0;
    for (uint32_t index = 0; index < count; index++)
        card->spans[index] = (struct span){starts[index], ends[index], places[index], access[index] & 1,
                                           access[index] >> 1 & 1};
    card->span_count = count;
    card->faults = faults;
    card->last = 0;
}

void vhca_card_forget_keys(struct card *card)
{
    card->age++;
    /* After as many changes as the number has, one that was never used since would be known again. */
    if (!card->age)
        memset(card->keys, 0, sizeof(card->keys));
}

void vhca_card_add_key(struct card *card, uint32_t key, uint32_t pd, uint32_t qpn, uint8_t rights, uint8_t kind,
                       uint8_t log_page, uint8_t flags, uint64_t start, uint64_t length, uint64_t linear,
                       const void *list, uint64_t pages)
{
    card->keys[(key >> 8) % KEYS] = (struct key){
        .key = key, .pd = pd, .qpn = qpn, .rights = rights, .kind = kind, .log_page = log_page,
        .unbounded = flags & 1, .paged = flags >> 1 & 1, .remote_invalidate = flags >> 2 & 1, .age = card->age,
        .start = start, .length = length, .linear = linear, .list = list, .pages = pages,
    };
}

void vhca_card_note(struct card *card, uint32_t qpn, const uint64_t *runs)
{
    if (!card->noted)
        card->noted = calloc(NOTED, sizeof(*card->noted));
    if (card->noted)
        memcpy(card->noted[qpn % NOTED], runs, sizeof(*card->noted));
}

void vhca_card_warm(const struct card *card, uint32_t qpn)
{
    const uint64_t *runs;

    if (!card->noted)
        return;
    runs = card->noted[qpn % NOTED];
    /* Asking for a line does nothing else: it may be of something that is gone. */
    for (int run = 0; run < RUNS && runs[run]; run++)
        for (uint64_t line = 0; line <= runs[run] % LINE; line++)
            __builtin_prefetch((const void *)(uintptr_t)((runs[run] & ~(uint64_t)(LINE - 1)) + line * LINE));
}
