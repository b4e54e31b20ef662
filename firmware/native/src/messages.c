#include "messages.h"

/* Inline data of a WQE, of which the segment's `size` says how many; `room` bytes are left behind the size. */
static enum outcome take_inline(struct message *message, const uint8_t *from, uint32_t size, uint64_t room)
{
    uint8_t *kept = message->inlined + message->inlined_bytes;

    if (size > room)
        return MALFORMED;
    memcpy(kept, from, size);
    message->inlined_bytes += size;
    return size && !add_piece(&message->local, kept, size) ? MEMORY : FINE;
}

/* The data segments of a WQE: pointers and inline data in any order. */
static enum outcome take_segments(struct run *run, struct message *message, const uint8_t *at, const uint8_t *end,
                                  bool write)
{
    struct train *train = run->train;
    uint8_t right = write ? ACCESS_LOCAL_WRITE : ACCESS_LOCAL_READ;

    while (end - at >= UNIT) {
        uint32_t size = load32(at + DATA_SEGMENT_BYTE_COUNT_AT);
        enum outcome outcome;

        run->cost += SEGMENT_COST_BYTES;
        if (size & INLINE_FLAG) {
            size &= ~INLINE_FLAG;
            outcome = write ? MALFORMED : take_inline(message, at + INLINE_HEADER, size, (uint64_t)(end - at) - INLINE_HEADER);
            at += (INLINE_HEADER + size + UNIT - 1) / UNIT * UNIT;
        } else {
            uint32_t key = load32(at + DATA_SEGMENT_LKEY_AT);

            if (!size || size > LARGEST || message->length + size > LARGEST)
                return LENGTH;
            outcome = resolve(run->near, key, (uint32_t)train->near_pd, (uint32_t)train->near_qpn,
                              load64(at + DATA_SEGMENT_ADDR_AT), size, right, write, &message->local);
            if (outcome == MISSING) {
                train->wanted_key = key;
                train->wanted_far = 0;
            }
            at += UNIT;
        }
        if (outcome != FINE)
            return outcome;
        message->length += size;
    }
    return FINE;
}

/* Copy the WQE at the consumer's index out of the ring; `units` of 16 bytes. */
static enum outcome copy_wqe(struct run *run, struct message *message, uint8_t *raw, uint32_t *units)
{
    uint64_t index = (uint64_t)run->train->sq_consumer;
    const uint8_t *from = chunk(&run->sends, (index & run->sends.mask) * BLOCK, false);

    if (!from)
        return RING;
    memcpy(raw, from, BLOCK);
    *units = FIELD(raw, CTRL_SEGMENT_DS);
    message->blocks = (*units + 3) / 4;
    if (!*units || message->blocks > run->waiting || message->blocks > MOST_BLOCKS)
        return MALFORMED;
    for (uint32_t block = 1; block < message->blocks; block++) {
        from = chunk(&run->sends, ((index + block) & run->sends.mask) * BLOCK, false);
        if (!from)
            return RING;
        memcpy(raw + block * BLOCK, from, BLOCK);
    }
    if (FIELD(raw, CTRL_SEGMENT_QPN) != (uint64_t)run->train->near_qpn ||
        FIELD(raw, CTRL_SEGMENT_WQE_INDEX) != (index & 0xFFFF))
        return MALFORMED;
    return FINE;
}

/* What is behind the control segment of a message of a connection. */
static enum outcome take_operation(struct run *run, struct message *message, const uint8_t *at, const uint8_t *end)
{
    bool answered = message->opcode >= WQE_RDMA_READ;

    if (!is_a_send(message->opcode)) {
        if (end - at < UNIT)
            return MALFORMED;
        message->va = load64(at + RADDR_SEGMENT_RADDR_AT);
        message->rkey = load32(at + RADDR_SEGMENT_RKEY_AT);
        at += UNIT;
    }
    if (message->opcode == WQE_ATOMIC_CS || message->opcode == WQE_ATOMIC_FA) {
        if (end - at < UNIT)
            return MALFORMED;
        message->swap_add = load64(at + ATOMIC_SEGMENT_SWAP_ADD_AT);
        message->compare = load64(at + ATOMIC_SEGMENT_COMPARE_AT);
        at += UNIT;
    }
    return take_segments(run, message, at, end, answered);
}

/* Tell whether the service has this operation, and C knows it. */
static enum outcome check_opcode(const struct train *train, uint8_t opcode)
{
    switch (opcode) {
    case WQE_NOP:
    case WQE_SEND:
    case WQE_SEND_IMM:
        return FINE;
    case WQE_RDMA_WRITE:
    case WQE_RDMA_WRITE_IMM:
        return train->is_datagram ? OPERATION : FINE;
    case WQE_SEND_INVAL:
    case WQE_RDMA_READ:
    case WQE_ATOMIC_CS:
    case WQE_ATOMIC_FA:
        return train->is_datagram || train->is_unreliable ? OPERATION : FINE;
    case WQE_LSO:
        return train->is_datagram && train->near_offloads ? FINE : OPERATION;
    case WQE_UMR:
        return REGISTRATION;
    default:
        return OPERATION;
    }
}

/* The Ethernet segment of a datagram: where what is behind it begins, or NULL if it is for Python to refuse. */
static const uint8_t *take_offload(struct message *message, const uint8_t *at, const uint8_t *end)
{
    uint64_t size;

    if (end - at < ETH_PAD_SIZE + ETH_SEGMENT_SIZE)
        return NULL;
    at += ETH_PAD_SIZE;
    message->l3 = FIELD(at, ETH_SEGMENT_L3_CSUM);
    message->l4 = FIELD(at, ETH_SEGMENT_L4_CSUM);
    size = load16(at + ETH_SEGMENT_INLINE_HDR_SZ_AT);
    if (message->opcode != WQE_LSO)
        return size ? NULL : at + ETH_SEGMENT_SIZE;
    message->mss = load16(at + ETH_SEGMENT_MSS_AT);
    if (!message->mss || size > MOST_HEADER_BYTES ||
        size > (uint64_t)(end - at) - ETH_SEGMENT_INLINE_HDR_START_AT)
        return NULL;
    message->header_length = (uint32_t)size;
    memcpy(message->header, at + ETH_SEGMENT_INLINE_HDR_START_AT, size);
    return at + (ETH_SEGMENT_INLINE_HDR_START_AT + size + UNIT - 1) / UNIT * UNIT;
}

enum outcome take_wqe(struct run *run, struct message *message)
{
    struct train *train = run->train;
    uint8_t raw[MOST_BLOCKS * BLOCK];
    const uint8_t *at = raw + UNIT, *end;
    uint32_t units;
    enum outcome outcome = copy_wqe(run, message, raw, &units);

    if (outcome != FINE)
        return outcome;
    end = raw + units * UNIT;
    message->opcode = (uint8_t)FIELD(raw, CTRL_SEGMENT_OPCODE);
    message->ce = (uint8_t)FIELD(raw, CTRL_SEGMENT_CE);
    message->solicited = FIELD(raw, CTRL_SEGMENT_SE);
    message->immediate = load32(raw + CTRL_SEGMENT_IMM_AT);
    message->with_immediate = message->opcode == WQE_RDMA_WRITE_IMM || message->opcode == WQE_SEND_IMM;
    message->with_extra = message->with_immediate || message->opcode == WQE_SEND_INVAL;
    message->index = (uint16_t)train->sq_consumer;
    message->length = 0;
    message->inlined_bytes = 0;
    message->local.count = 0;
    message->local.bytes = 0;
    message->l3 = message->l4 = false;
    message->mss = message->header_length = message->checks = 0;
    outcome = check_opcode(train, message->opcode);
    if (outcome != FINE || message->opcode == WQE_NOP)
        return outcome;
    if (train->is_datagram) {
        /* One destination: whoever goes elsewhere has another train. */
        if (end - at < DATAGRAM_SEGMENT_SIZE ||
            memcmp(at, (const uint8_t *)(uintptr_t)train->address_vector, DATAGRAM_SEGMENT_SIZE) != 0)
            return DESTINATION;
        at += DATAGRAM_SEGMENT_SIZE;
        if (train->near_offloads)
            at = take_offload(message, at, end);
        return at ? take_segments(run, message, at, end, false) : MALFORMED;
    }
    return take_operation(run, message, at, end);
}

enum outcome look_at_receive(struct run *run, uint8_t *raw)
{
    struct train *train = run->train;
    uint64_t posted, at;

    if (!run->has_receives)
        return RECEIVE;
    posted = (load_record(run->receive_record) - (uint64_t)train->rq_consumer) & 0xFFFF;
    if (!posted)
        return RECEIVE;
    if (posted - 1 < (uint64_t)train->rq_limit)
        return LIMIT;
    at = ((uint64_t)(train->rq_is_list ? train->rq_next : train->rq_consumer) & run->receives.mask) << train->rq_log_stride;
    for (uint64_t done = 0; done < UINT64_C(1) << train->rq_log_stride; done += 64) {
        const uint8_t *from = chunk(&run->receives, (at + done) & ~UINT64_C(63), false);

        if (!from)
            return RING;
        if (train->rq_log_stride < 6)
            memcpy(raw, from + (at & 63), (size_t)1 << train->rq_log_stride);
        else
            memcpy(raw + done, from, 64);
    }
    run->next_receive = (uint16_t)(load16(raw + NEXT_SEGMENT_NEXT_WQE_INDEX_AT) & run->receives.mask);
    return FINE;
}

enum outcome take_scatter_list(struct run *run, const uint8_t *raw, uint64_t length, struct pieces *out)
{
    struct train *train = run->train;
    const uint8_t *end = raw + ((size_t)1 << train->rq_log_stride);

    raw += train->rq_head;
    out->count = 0;
    out->bytes = 0;
    for (; length && end - raw >= UNIT; raw += UNIT) {
        uint32_t size = load32(raw + DATA_SEGMENT_BYTE_COUNT_AT);
        uint32_t key = load32(raw + DATA_SEGMENT_LKEY_AT);
        enum outcome outcome;

        run->cost += SEGMENT_COST_BYTES;
        if (!size && key == TERMINATOR_LKEY)
            break;
        size &= 0x7FFFFFFF;
        if (size > length)
            size = (uint32_t)length;
        if (!size)
            continue;
        outcome = resolve(run->far, key, (uint32_t)train->rq_pd, (uint32_t)train->far_qpn,
                          load64(raw + DATA_SEGMENT_ADDR_AT), size, ACCESS_LOCAL_WRITE, true, out);
        if (outcome == MISSING) {
            train->wanted_key = key;
            train->wanted_far = 1;
        }
        if (outcome != FINE)
            return outcome;
        length -= size;
    }
    return length ? RECEIVE : FINE;
}

static uint64_t headers(const struct train *train)
{
    return HEADERS + (train->has_grh ? GRH : 0);
}

uint64_t words_of(const struct train *train, uint64_t count, uint64_t length, uint64_t extended)
{
    return (count * headers(train) + length + (-length & 3) + extended) >> 2;
}

/* Data that go into a completion: over its first half, or in front of it. */
static const uint8_t *put_inline(uint8_t cqe[CQE], uint8_t front[ROOM_IN_FRONT], const uint8_t *data, uint64_t length,
                                 uint64_t room)
{
    if (room == ROOM_IN_FRONT) {
        memset(front, 0, ROOM_IN_FRONT);
        memcpy(front, data, length);
        cqe[CQE - 1] |= CQE_INLINE_64 << CQE64_INLINE_FORMAT_SHIFT;
        return front;
    }
    memcpy(cqe, data, length);
    cqe[CQE - 1] |= CQE_INLINE_32 << CQE64_INLINE_FORMAT_SHIFT;
    return NULL;
}

void complete_send(struct run *run, const struct message *message, const uint8_t *answer)
{
    struct train *train = run->train;
    uint8_t cqe[CQE] = {0}, front[ROOM_IN_FRONT];
    const uint8_t *before = NULL;

    if (message->ce < COMPLETION_ALWAYS)
        return;
    store32(cqe + CQE64_SRQN_UIDX_AT, (uint32_t)train->near_user);
    if (message->opcode >= WQE_RDMA_READ)
        store32(cqe + CQE64_BYTE_CNT_AT, (uint32_t)message->length);
    store64(cqe + CQE64_TIMESTAMP_AT, (uint64_t)train->near_time);
    store32(cqe + CQE64_QPN_AT, (uint32_t)message->opcode << CQE64_SEND_WQE_OPCODE_SHIFT | (uint32_t)train->near_qpn);
    store32(cqe + CQE64_WQE_COUNTER_AT, (uint32_t)message->index << CQE64_WQE_COUNTER_SHIFT);
    if (answer)
        before = put_inline(cqe, front, answer, message->length, (uint64_t)train->inline_read);
    queue_put(&run->near_cq, cqe, before);
    if (message->ce == COMPLETION_ALWAYS_AND_EQE) {
        train->near_solicited = (int64_t)run->near_cq.producer - 1;
        train->near_events++;
    }
}

void complete_receive(struct run *run, const struct message *message, uint32_t opcode, uint64_t size, uint32_t extra,
                      const uint8_t *data)
{
    struct train *train = run->train;
    uint8_t cqe[CQE] = {0}, front[ROOM_IN_FRONT];
    const uint8_t *before = NULL;

    cqe[CQE64_ML_PATH_AT] = (uint8_t)train->path_bits;
    store16(cqe + CQE64_SLID_AT, (uint16_t)train->slid);
    store32(cqe + CQE64_RQPN_AT, (uint32_t)train->grh_in_cqe << CQE64_GRH_SHIFT | (uint32_t)train->sl << CQE64_SL_SHIFT |
                                     (uint32_t)train->source_qpn);
    store32(cqe + CQE64_L3_OK_AT, message->checks);
    store32(cqe + CQE64_SRQN_UIDX_AT, (uint32_t)train->far_user);
    store32(cqe + CQE64_IMM_INVAL_PKEY_AT, extra);
    store32(cqe + CQE64_BYTE_CNT_AT, (uint32_t)size);
    store64(cqe + CQE64_TIMESTAMP_AT, (uint64_t)train->far_time);
    store32(cqe + CQE64_QPN_AT, (uint32_t)train->far_qpn);
    store32(cqe + CQE64_WQE_COUNTER_AT,
            (uint32_t)(uint16_t)(train->rq_is_list ? train->rq_next : train->rq_consumer) << CQE64_WQE_COUNTER_SHIFT | opcode << CQE64_OPCODE_SHIFT |
                (uint32_t)message->solicited << CQE64_SE_SHIFT);
    if (data)
        before = put_inline(cqe, front, data, message->length, (uint64_t)train->inline_receive);
    train->rq_consumer++;
    train->rq_next = run->next_receive;
    queue_put(&run->far_cq, cqe, before);
    if (message->solicited) {
        train->far_solicited = (int64_t)run->far_cq.producer - 1;
        train->far_events++;
    }
}
