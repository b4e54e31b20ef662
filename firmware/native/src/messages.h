/* A message on its way from a ring to a ring: taken apart, and completed on both sides. */
#ifndef VHCA_MESSAGES_H
#define VHCA_MESSAGES_H

#include "formats.h"
#include "rings.h"
#include "train.h"

#define FIELD(raw, name) ((load32((raw) + name##_AT) >> name##_SHIFT) & name##_MASK)

enum { UNIT = 16, MOST_BLOCKS = 16, LARGEST = 1 << 20, LOG_LONGEST_RECEIVE = 12 };

/* Bytes of a packet from LRH to ICRC without payload: LRH, BTH, ICRC; and the extended headers. */
enum { ICRC = 4, HEADERS = LRH_SIZE + BTH_SIZE + ICRC, GRH = GRH_HEADER_SIZE };

struct message {
    uint8_t opcode, ce;
    bool solicited, with_immediate;
    /* Immediate data, or the key to invalidate, go along. */
    bool with_extra;
    uint16_t index;
    uint32_t blocks, immediate, rkey;
    uint64_t length, va, swap_add, compare;
    /* The data of the message; inline data are pieces too, of the copy in `inlined`. */
    struct pieces local;
    uint8_t inlined[MOST_BLOCKS * BLOCK];
    uint32_t inlined_bytes;
    /* Of datagrams with offloads: checksums to fill in, headers and data of the segments of a large send. */
    bool l3, l4;
    uint32_t mss, header_length;
    uint8_t header[MOST_HEADER_BYTES];
    /* Word of a receive's completion that says which checksums hold. */
    uint32_t checks;
};

struct run {
    struct train *train;
    struct card *near, *far;
    struct ring sends, receives;
    bool has_receives;
    const uint8_t *send_record, *receive_record;
    struct queue near_cq, far_cq;
    uint64_t waiting;
    /* Of a linked list of receives: the one behind the one that was looked at. */
    uint16_t next_receive;
    /* What is left of the budget, and until the next look at the clock: work requests or datagrams, and bytes. */
    int64_t wqes, bytes, look_wqes, look_bytes;
    /* When the time is up; 0 if it does not count. */
    int64_t end;
    /* Of the message at hand, for the lists that it takes to walk: in bytes, as the budget is. */
    int64_t cost;
    /* Of both cards, when the train began. */
    uint64_t near_faults, far_faults;
};

/* Tell whether an access to memory has failed since: the message at hand is not complete, and Python will see why. */
static inline bool has_failed(const struct run *run)
{
    return faults_of(run->near) != run->near_faults || faults_of(run->far) != run->far_faults;
}

static inline bool is_a_send(uint8_t opcode)
{
    return opcode == WQE_SEND || opcode == WQE_SEND_IMM || opcode == WQE_SEND_INVAL;
}

/* Tell whether it is the next one's turn: the budget is spent, or the time is up. */
bool is_over(struct run *run);

/* Take a message, or a datagram of a large send, off the budget: its bytes, and what the lists for it have cost. */
void charge(struct run *run, uint64_t bytes);

/* Copy the WQE at the consumer's index out of the ring, and take it apart. */
enum outcome take_wqe(struct run *run, struct message *message);

/* Copy the next receive, of the queue pair's own ring or of a shared one. */
enum outcome look_at_receive(struct run *run, uint8_t *raw);

/* Where `length` bytes go that a receive takes. */
enum outcome take_scatter_list(struct run *run, const uint8_t *raw, uint64_t length, struct pieces *out);

/* Words from LRH to ICRC of a message's packets, whose first and last have `extended` bytes of headers together. */
uint64_t words_of(const struct train *train, uint64_t count, uint64_t length, uint64_t extended);

/* `answer` are data that go into the completion, or NULL. */
void complete_send(struct run *run, const struct message *message, const uint8_t *answer);

/* `size` and `extra` as the completion has them; `data` go into it, or are NULL. */
void complete_receive(struct run *run, const struct message *message, uint32_t opcode, uint64_t size, uint32_t extra,
                      const uint8_t *data);

/* A datagram, or the next segments of a large send, go to the other side; `lso_done` says whether some are left. */
enum outcome execute_datagram(struct run *run, struct message *message);

#endif
