#include "messages.h"

/* The data segments of a WQE; UNUSUAL also if inline data and pointers are mixed. */
static enum outcome take_segments(struct run *run, struct message *message, const uint8_t *at, const uint8_t *end,
                                  bool write)
{
    struct train *train = run->train;
    uint8_t right = write ? ACCESS_LOCAL_WRITE : ACCESS_LOCAL_READ;

    while (end - at >= UNIT) {
        uint32_t size = load32(at + DATA_SEGMENT_BYTE_COUNT_AT);

        if (size & 0x80000000) {
            size &= 0x7FFFFFFF;
            if (write || message->local.count || size > (uint64_t)(end - at) - 4)
                return UNUSUAL;
            memcpy(message->inlined + message->length, at + 4, size);
            message->has_inline = true;
            message->length += size;
            at += (4 + size + UNIT - 1) / UNIT * UNIT;
        } else {
            uint32_t key = load32(at + DATA_SEGMENT_LKEY_AT);
            enum outcome outcome;

            if (message->has_inline || !size || size > LARGEST || message->length + size > LARGEST)
                return UNUSUAL;
            outcome = resolve(run->near, key, (uint32_t)train->near_pd, (uint32_t)train->near_qpn,
                              load64(at + DATA_SEGMENT_ADDR_AT), size, right, write, &message->local);
            if (outcome == MISSING) {
                train->wanted_key = key;
                train->wanted_far = 0;
            }
            if (outcome != FINE)
                return outcome;
            message->length += size;
            at += UNIT;
        }
    }
    return FINE;
}

enum outcome take_wqe(struct run *run, struct message *message)
{
    struct train *train = run->train;
    uint8_t raw[MOST_BLOCKS * BLOCK];
    uint64_t index = (uint64_t)train->sq_consumer;
    const uint8_t *at = raw + UNIT, *end, *from;
    uint32_t units;

    from = chunk(&run->sends, (index & run->sends.mask) * BLOCK, false);
    if (!from)
        return UNUSUAL;
    memcpy(raw, from, BLOCK);
    units = FIELD(raw, CTRL_SEGMENT_DS);
    message->blocks = (units + 3) / 4;
    if (!units || message->blocks > run->waiting || message->blocks > MOST_BLOCKS)
        return UNUSUAL;
    for (uint32_t block = 1; block < message->blocks; block++) {
        from = chunk(&run->sends, ((index + block) & run->sends.mask) * BLOCK, false);
        if (!from)
            return UNUSUAL;
        memcpy(raw + block * BLOCK, from, BLOCK);
    }
    if (FIELD(raw, CTRL_SEGMENT_QPN) != (uint64_t)train->near_qpn ||
        FIELD(raw, CTRL_SEGMENT_WQE_INDEX) != (index & 0xFFFF))
        return UNUSUAL;
    end = raw + units * UNIT;
    message->opcode = (uint8_t)FIELD(raw, CTRL_SEGMENT_OPCODE);
    message->ce = (uint8_t)FIELD(raw, CTRL_SEGMENT_CE);
    message->solicited = FIELD(raw, CTRL_SEGMENT_SE);
    message->immediate = load32(raw + CTRL_SEGMENT_IMM_AT);
    message->with_immediate = message->opcode == WQE_RDMA_WRITE_IMM || message->opcode == WQE_SEND_IMM;
    message->index = (uint16_t)index;
    message->length = 0;
    message->has_inline = false;
    message->local.count = 0;
    message->local.bytes = 0;
    if (train->is_datagram) {
        /* One destination: whoever goes elsewhere has another train. */
        if ((message->opcode != WQE_SEND && message->opcode != WQE_SEND_IMM) || end - at < DATAGRAM_SEGMENT_SIZE ||
            memcmp(at, (const uint8_t *)(uintptr_t)train->address_vector, DATAGRAM_SEGMENT_SIZE) != 0)
            return UNUSUAL;
        return take_segments(run, message, at + DATAGRAM_SEGMENT_SIZE, end, false);
    }
    switch (message->opcode) {
    case WQE_SEND:
    case WQE_SEND_IMM:
        return take_segments(run, message, at, end, false);
    case WQE_RDMA_WRITE:
    case WQE_RDMA_WRITE_IMM:
    case WQE_RDMA_READ:
    case WQE_ATOMIC_CS:
    case WQE_ATOMIC_FA:
        break;
    default:
        return UNUSUAL;
    }
    if (end - at < UNIT)
        return UNUSUAL;
    message->va = load64(at + RADDR_SEGMENT_RADDR_AT);
    message->rkey = load32(at + RADDR_SEGMENT_RKEY_AT);
    at += UNIT;
    if (message->opcode == WQE_ATOMIC_CS || message->opcode == WQE_ATOMIC_FA) {
        if (end - at < UNIT)
            return UNUSUAL;
        message->swap_add = load64(at + ATOMIC_SEGMENT_SWAP_ADD_AT);
        message->compare = load64(at + ATOMIC_SEGMENT_COMPARE_AT);
        at += UNIT;
    }
    return take_segments(run, message, at, end,
                         message->opcode != WQE_RDMA_WRITE && message->opcode != WQE_RDMA_WRITE_IMM);
}

enum outcome look_at_receive(struct run *run, uint8_t *raw)
{
    struct train *train = run->train;
    uint64_t posted, at;

    if (!run->has_receives)
        return UNUSUAL;
    posted = (load_record(run->receive_record) - (uint64_t)train->rq_consumer) & 0xFFFF;
    if (!posted)
        return UNUSUAL;
    at = ((uint64_t)train->rq_consumer & run->receives.mask) << train->rq_log_stride;
    for (uint64_t done = 0; done < UINT64_C(1) << train->rq_log_stride; done += 64) {
        const uint8_t *from = chunk(&run->receives, (at + done) & ~UINT64_C(63), false);

        if (!from)
            return UNUSUAL;
        if (train->rq_log_stride < 6)
            memcpy(raw, from + (at & 63), (size_t)1 << train->rq_log_stride);
        else
            memcpy(raw + done, from, 64);
    }
    return FINE;
}

enum outcome take_scatter_list(struct run *run, const uint8_t *raw, uint64_t length, struct pieces *out)
{
    struct train *train = run->train;
    const uint8_t *end = raw + ((size_t)1 << train->rq_log_stride);

    out->count = 0;
    out->bytes = 0;
    for (; length && end - raw >= UNIT; raw += UNIT) {
        uint32_t size = load32(raw + DATA_SEGMENT_BYTE_COUNT_AT);
        uint32_t key = load32(raw + DATA_SEGMENT_LKEY_AT);
        enum outcome outcome;

        if (!size && key == TERMINATOR_LKEY)
            break;
        size &= 0x7FFFFFFF;
        if (size > length)
            size = (uint32_t)length;
        if (!size)
            continue;
        outcome = resolve(run->far, key, (uint32_t)train->far_pd, (uint32_t)train->far_qpn,
                          load64(raw + DATA_SEGMENT_ADDR_AT), size, ACCESS_LOCAL_WRITE, true, out);
        if (outcome == MISSING) {
            train->wanted_key = key;
            train->wanted_far = 1;
        }
        if (outcome != FINE)
            return outcome;
        length -= size;
    }
    return length ? UNUSUAL : FINE;
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
    store32(cqe + CQE64_SRQN_UIDX_AT, (uint32_t)train->far_user);
    store32(cqe + CQE64_IMM_INVAL_PKEY_AT, extra);
    store32(cqe + CQE64_BYTE_CNT_AT, (uint32_t)size);
    store64(cqe + CQE64_TIMESTAMP_AT, (uint64_t)train->far_time);
    store32(cqe + CQE64_QPN_AT, (uint32_t)train->far_qpn);
    store32(cqe + CQE64_WQE_COUNTER_AT,
            (uint32_t)(uint16_t)train->rq_consumer << CQE64_WQE_COUNTER_SHIFT | opcode << CQE64_OPCODE_SHIFT |
                (uint32_t)message->solicited << CQE64_SE_SHIFT);
    if (data)
        before = put_inline(cqe, front, data, message->length, (uint64_t)train->inline_receive);
    train->rq_consumer++;
    queue_put(&run->far_cq, cqe, before);
    if (message->solicited) {
        train->far_solicited = (int64_t)run->far_cq.producer - 1;
        train->far_events++;
    }
}
