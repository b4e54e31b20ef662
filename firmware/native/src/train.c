/* A train: messages of one connection between two cards of this process, from the rings of the one to the
 * memory of the other, with their completions on both sides.
 *
 * Nothing is on its way when a train begins, and nothing when it ends: each message is executed, acknowledged and
 * completed before the next one is looked at. What needs more than that (no receive is posted, a key that is not
 * granted, lists of keys, an operation that is not here) is left where it is, untouched, for the engine in Python.
 */
#define _POSIX_C_SOURCE 200809L
#include "clock.h"
#include "messages.h"

/* Messages, and bytes, between two looks at the clock: 256 pieces at most, of which each may be in a page that the system
 * has to provide first. */
enum { LOOK_MESSAGES = 16, LOOK_BYTES = 1 << 16 };

bool is_over(struct run *run)
{
    if (!run->train->by_clock && (run->wqes <= 0 || run->bytes <= 0))
        return true;
    if (run->look_wqes > 0 && run->look_bytes > 0)
        return false;
    if (run->end && now_ns() >= run->end)
        return true;
    run->look_wqes = LOOK_MESSAGES;
    run->look_bytes = LOOK_BYTES;
    return false;
}

void charge(struct run *run, uint64_t bytes)
{
    int64_t cost = (int64_t)bytes + BURST_COST_BYTES + run->cost;

    run->cost = 0;
    run->wqes--;
    run->look_wqes--;
    run->bytes -= cost;
    run->look_bytes -= cost;
}

static uint64_t packets_of(const struct train *train, uint64_t length)
{
    uint64_t count = (length + (UINT64_C(1) << train->log_mtu) - 1) >> train->log_mtu;

    return count ? count : 1;
}

static enum outcome resolve_far(struct run *run, const struct message *message, uint8_t right, bool write,
                                struct pieces *out)
{
    struct train *train = run->train;
    enum outcome outcome;

    out->count = 0;
    out->bytes = 0;
    if (!message->length)
        return FINE;
    outcome = resolve(run->far, message->rkey, (uint32_t)train->far_pd, (uint32_t)train->far_qpn, message->va,
                      message->length, right, write, out);
    if (outcome == MISSING) {
        train->wanted_key = message->rkey;
        train->wanted_far = 1;
    }
    return outcome;
}

static uint32_t opcode_of_receive(uint8_t opcode)
{
    return opcode == WQE_SEND ? CQE_RESP_SEND : opcode == WQE_SEND_IMM ? CQE_RESP_SEND_IMM : CQE_RESP_SEND_INV;
}

/* Tell whether the peer may take back the key that it names (9.4.1.1). */
static enum outcome check_invalidation(struct run *run, uint32_t key)
{
    struct train *train = run->train;
    enum outcome outcome = may_invalidate(run->far, key, (uint32_t)train->far_pd, (uint32_t)train->far_qpn);

    if (outcome == MISSING) {
        train->wanted_key = key;
        train->wanted_far = 1;
    }
    return outcome;
}

/* WRITE and SEND: data, and perhaps a receive, go to the far side. */
static enum outcome execute_request(struct run *run, struct message *message)
{
    static _Thread_local struct pieces there;
    struct train *train = run->train;
    bool is_send = is_a_send(message->opcode);
    uint8_t receive[1 << LOG_LONGEST_RECEIVE], data[ROOM_IN_FRONT];
    const uint8_t *inlined = NULL;
    enum outcome outcome;
    uint64_t count;

    if (is_send || message->with_immediate) {
        outcome = look_at_receive(run, receive);
        if (outcome == FINE && !queue_has_room(&run->far_cq))
            outcome = ROOM;
        if (outcome != FINE)
            return outcome;
    }
    if (is_send) {
        outcome = take_scatter_list(run, receive, message->length, &there);
        if (outcome == FINE && message->opcode == WQE_SEND_INVAL)
            outcome = check_invalidation(run, message->immediate);
    } else {
        if (!(train->far_rights & ACCESS_REMOTE_WRITE))
            return RIGHTS;
        outcome = resolve_far(run, message, ACCESS_REMOTE_WRITE, true, &there);
    }
    if (outcome != FINE)
        return outcome;
    if (is_send && message->length && message->length <= (uint64_t)train->inline_receive) {
        read_pieces(data, &message->local, message->length);
        inlined = data;
    } else if (message->length) {
        copy_pieces(&there, &message->local, message->length);
    }
    if (has_failed(run))
        return MEMORY;
    count = packets_of(train, message->length);
    train->words_out += (int64_t)words_of(train, count, message->length,
                                          (is_send ? 0 : RETH_SIZE) + (message->with_extra ? IMM_DT_SIZE : 0));
    train->packets += (int64_t)count;
    if (!train->is_unreliable)
        train->unasked += (int64_t)count;
    if (train->unasked >= ASK_PACKETS) {
        train->unasked = 0;
        train->acks++;
    }
    train->next_psn += (int64_t)count;
    train->bytes += (int64_t)message->length;
    if (is_send)
        complete_receive(run, message, opcode_of_receive(message->opcode), message->length,
                         message->opcode == WQE_SEND ? 0 : message->immediate, inlined);
    else
        train->writes++;
    if (message->opcode == WQE_SEND_INVAL) {
        train->has_invalidated = 1;
        train->invalidated = message->immediate;
    }
    if (!is_send && message->with_immediate)
        complete_receive(run, message, CQE_RESP_WR_IMM, message->length, message->immediate, NULL);
    complete_send(run, message, NULL);
    return FINE;
}

/* Nothing but a completion. */
static enum outcome execute_nop(struct run *run, struct message *message)
{
    run->train->nops++;
    complete_send(run, message, NULL);
    return FINE;
}

static enum outcome execute_read(struct run *run, struct message *message)
{
    static _Thread_local struct pieces there;
    struct train *train = run->train;
    uint8_t data[ROOM_IN_FRONT];
    const uint8_t *answer = NULL;
    enum outcome outcome;
    uint64_t count;

    if (!(train->far_rights & ACCESS_REMOTE_READ))
        return RIGHTS;
    outcome = resolve_far(run, message, ACCESS_REMOTE_READ, false, &there);
    if (outcome != FINE)
        return outcome;
    if (message->length && message->length <= (uint64_t)train->inline_read && message->ce >= COMPLETION_ALWAYS) {
        read_pieces(data, &there, message->length);
        answer = data;
    } else if (message->length) {
        copy_pieces(&message->local, &there, message->length);
    }
    if (has_failed(run))
        return MEMORY;
    count = packets_of(train, message->length);
    train->words_out += (int64_t)words_of(train, 1, 0, RETH_SIZE);
    train->words_back += (int64_t)words_of(train, count, message->length, count == 1 ? AETH_SIZE : 2 * AETH_SIZE);
    train->packets++;
    train->answers += (int64_t)count;
    train->answer_bytes += (int64_t)message->length;
    train->next_psn += (int64_t)count;
    train->reads++;
    /* The answer acknowledges what was before it. */
    train->unasked = 0;
    complete_send(run, message, answer);
    return FINE;
}

static enum outcome execute_atomic(struct run *run, struct message *message)
{
    static _Thread_local struct pieces there;
    struct train *train = run->train;
    uint8_t original[8];
    uint64_t *word, value;
    enum outcome outcome;
    bool in_completion;

    if (message->length != 8 || message->va & 7)
        return MALFORMED;
    if (!(train->far_rights & ACCESS_REMOTE_ATOMIC))
        return RIGHTS;
    outcome = resolve_far(run, message, ACCESS_REMOTE_ATOMIC, true, &there);
    if (outcome != FINE || there.count != 1 || (uintptr_t)there.piece[0].at & 7)
        return outcome == FINE ? MEMORY : outcome;
    word = (uint64_t *)(void *)there.piece[0].at;
    /* Whether memory is there shows before anything has changed: what is done here must not be done again, and it is not
     * because something else has failed, on these cards or on any other. */
    (void)*(const volatile uint64_t *)word;
    if (has_failed(run))
        return MEMORY;
    /* Host order is little-endian, and so is every machine that this is built for. */
    if (message->opcode == WQE_ATOMIC_FA) {
        value = __atomic_fetch_add(word, message->swap_add, __ATOMIC_SEQ_CST);
    } else {
        value = message->compare;
        __atomic_compare_exchange_n(word, &value, message->swap_add, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    }
    memcpy(original, &value, 8);
    in_completion = train->inline_read && message->ce >= COMPLETION_ALWAYS;
    if (!in_completion)
        fill_pieces(&message->local, original, 8);
    train->words_out += (int64_t)words_of(train, 1, 0, ATOMIC_ETH_SIZE);
    train->words_back += (int64_t)words_of(train, 1, 0, AETH_SIZE + ATOMIC_ACK_ETH_SIZE);
    train->packets++;
    train->answers++;
    train->next_psn++;
    train->atomics++;
    train->unasked = 0;
    complete_send(run, message, in_completion ? original : NULL);
    return FINE;
}

static enum outcome execute(struct run *run, struct message *message)
{
    enum outcome outcome = take_wqe(run, message);

    if (outcome != FINE)
        return outcome;
    if (message->length > (uint64_t)run->train->message_max && !message->mss)
        return LENGTH;
    if (run->train->lso_done && !message->mss)
        /* The host has changed a large send under way. */
        return MALFORMED;
    if (message->ce >= COMPLETION_ALWAYS && !queue_has_room(&run->near_cq))
        return ROOM;
    if (message->opcode == WQE_NOP)
        return execute_nop(run, message);
    if (run->train->is_datagram)
        return execute_datagram(run, message);
    switch (message->opcode) {
    case WQE_RDMA_READ:
        return execute_read(run, message);
    case WQE_ATOMIC_CS:
    case WQE_ATOMIC_FA:
        return execute_atomic(run, message);
    default:
        return execute_request(run, message);
    }
}

static struct ring ring_of(struct card *card, int64_t addr, int64_t offset, int64_t list, int64_t pages,
                           int64_t log_page, int64_t log_size)
{
    return (struct ring){card, (uint64_t)addr, (uint64_t)offset, (uint64_t)pages, (UINT64_C(1) << log_size) - 1,
                         (const uint8_t *)(uintptr_t)list, (uint8_t)log_page};
}

#define RING(card, train, name)                                                                                        \
    ring_of(card, (train)->name##_addr, (train)->name##_offset, (train)->name##_list, (train)->name##_pages,          \
            (train)->name##_log_page, (train)->name##_log)

static bool open_run(struct run *run, struct train *train, struct card *near, struct card *far)
{
    run->train = train;
    run->near = near;
    run->far = far;
    run->near_faults = faults_of(near);
    run->far_faults = faults_of(far);
    run->sends = RING(near, train, sq);
    run->send_record = span_at(near, (uint64_t)train->sq_record + 4, 4, false);
    run->has_receives = train->has_rq && train->rq_log_stride >= 4 && train->rq_log_stride <= LOG_LONGEST_RECEIVE;
    if (run->has_receives) {
        run->receives = RING(far, train, rq);
        run->receive_record = span_at(far, (uint64_t)train->rq_record, 4, false);
        run->has_receives = run->receive_record;
    }
    return run->send_record &&
           queue_open(&run->near_cq, RING(near, train, scq), (uint64_t)train->scq_record, (uint64_t)train->scq_log,
                      (uint64_t)train->scq_bytes, (uint64_t)train->scq_producer, (uint64_t)train->scq_consumer,
                      (uint64_t)train->scq_ignores) &&
           queue_open(&run->far_cq, RING(far, train, rcq), (uint64_t)train->rcq_record, (uint64_t)train->rcq_log,
                      (uint64_t)train->rcq_bytes, (uint64_t)train->rcq_producer, (uint64_t)train->rcq_consumer,
                      (uint64_t)train->rcq_ignores);
}

void vhca_run_train(struct train *train, struct card *near, struct card *far)
{
    static _Thread_local struct message message;
    struct run run;

    /* What it tells begins at 0. */
    memset(&train->stop, 0, sizeof(*train) - offsetof(struct train, stop));
    train->stop = TRAIN_UNUSUAL;
    train->outcome = RING;
    if (!open_run(&run, train, near, far))
        return;
    train->outcome = FINE;
    run.waiting = (load_record(run.send_record) - (uint64_t)train->sq_consumer) & 0xFFFF;
    if (run.waiting > run.sends.mask + 1)
        run.waiting = run.sends.mask + 1;
    run.end = train->time_ns ? now_ns() + train->time_ns : 0;
    run.wqes = train->wqe_budget;
    run.bytes = train->byte_budget;
    run.look_wqes = LOOK_MESSAGES;
    run.look_bytes = LOOK_BYTES;
    for (;;) {
        enum outcome outcome;

        if (!run.waiting) {
            train->stop = TRAIN_EMPTY;
            break;
        }
        /* A key that was taken back is known to all only behind the train. */
        if (train->has_invalidated || is_over(&run)) {
            train->stop = TRAIN_BUDGET;
            break;
        }
        run.cost = 0;
        outcome = execute(&run, &message);
        train->outcome = outcome;
        if (outcome != FINE) {
            train->stop = outcome == MISSING ? TRAIN_MISSING : TRAIN_UNUSUAL;
            break;
        }
        if (train->lso_done) {
            train->stop = TRAIN_BUDGET;
            break;
        }
        charge(&run, message.length);
        train->messages++;
        train->sq_consumer += message.blocks;
        run.waiting -= message.blocks;
    }
    train->sq_waiting = (int64_t)run.waiting;
    if (train->unasked) {
        train->unasked = 0;
        train->acks++;
    }
    train->words_back += train->acks * (int64_t)words_of(train, 1, 0, AETH_SIZE);
    train->near_cqes = (int64_t)run.near_cq.taken;
    train->far_cqes = (int64_t)run.far_cq.taken;
    train->scq_producer = (int64_t)run.near_cq.producer;
    train->scq_consumer = (int64_t)run.near_cq.consumer;
    train->rcq_producer = (int64_t)run.far_cq.producer;
    train->rcq_consumer = (int64_t)run.far_cq.consumer;
}
