/* Datagrams, with the offloads for IP that they may have: checksums, and large sends that are cut into segments. */
#include "ip.h"
#include "messages.h"

/* The GRH of the datagrams of a train, with the PayLen of this one: from BTH to ICRC (8.3). */
static void put_header(const struct train *train, const struct message *message, uint64_t length, uint8_t header[GRH])
{
    uint64_t size = BTH_SIZE + DETH_SIZE + (message->with_immediate ? IMM_DT_SIZE : 0) + length + (-length & 3) + ICRC;

    memcpy(header, (const uint8_t *)(uintptr_t)train->global_header, GRH);
    store16(header + GRH_HEADER_PAY_LEN_AT, (uint16_t)size);
}

/* What of a list of pieces is behind its first `skip` bytes. */
static void behind(const struct pieces *all, uint64_t skip, struct pieces *rest)
{
    rest->count = 0;
    rest->bytes = all->bytes - skip;
    for (uint32_t index = 0; index < all->count; index++) {
        struct piece piece = all->piece[index];
        uint64_t cut = skip < piece.size ? skip : piece.size;

        skip -= cut;
        if (piece.size > cut)
            rest->piece[rest->count++] = (struct piece){piece.at + cut, piece.size - cut};
    }
}

/* Fill checksums in, and find out which hold. What is behind `head` lies in `body`, and belongs to the receiver. */
static void do_checksums(const struct train *train, struct message *message, uint8_t *head, uint64_t head_length,
                         const struct pieces *body, uint64_t length)
{
    struct found found = ip_look(head, head_length, length);
    uint32_t sum = 0;
    bool l3 = false, l4 = false;

    message->checks = 0;
    if (found.kind == IP_NONE)
        return;
    if (found.protocol && (message->l4 || train->far_offloads))
        sum = ip_sum_pieces(body, length - head_length);
    if (message->l3)
        ip_fill_header(head, &found);
    if (message->l4 && found.protocol)
        ip_fill_transport(head, head_length, &found, length, sum);
    if (!train->far_offloads)
        return;
    l3 = ip_header_holds(head, &found);
    l4 = found.protocol && ip_transport_holds(head, head_length, &found, length, sum);
    message->checks = (uint32_t)l3 << CQE64_L3_OK_SHIFT | (uint32_t)l4 << CQE64_L4_OK_SHIFT;
}

/* A datagram of `head` and `size` bytes of the message's data from `from` on. */
static enum outcome deliver(struct run *run, struct message *message, uint8_t *head, uint64_t head_length,
                            uint64_t from, uint64_t size)
{
    static _Thread_local struct pieces all, payload, body, source;
    struct train *train = run->train;
    uint64_t length = head_length + size;
    uint8_t receive[1 << LOG_LONGEST_RECEIVE], header[GRH];
    enum outcome outcome;

    if (length > (uint64_t)1 << train->log_mtu)
        return LENGTH;
    outcome = look_at_receive(run, receive);
    if (outcome == FINE && !queue_has_room(&run->far_cq))
        outcome = ROOM;
    if (outcome == FINE)
        outcome = take_scatter_list(run, receive, GRH + length, &all);
    if (outcome != FINE)
        return outcome;
    if (train->has_grh) {
        put_header(train, message, length, header);
        fill_pieces(&all, header, GRH);
    }
    behind(&all, GRH, &payload);
    behind(&payload, head_length, &body);
    behind(&message->local, from, &source);
    copy_pieces(&body, &source, size);
    if (head_length) {
        do_checksums(train, message, head, head_length, &body, length);
        fill_pieces(&payload, head, head_length);
    }
    if (has_failed(run))
        return MEMORY;
    train->words_out += (int64_t)words_of(train, 1, length, DETH_SIZE + (message->with_immediate ? IMM_DT_SIZE : 0));
    train->packets++;
    train->bytes += (int64_t)length;
    train->next_psn++;
    complete_receive(run, message, message->with_immediate ? CQE_RESP_SEND_IMM : CQE_RESP_SEND, GRH + length,
                     message->with_immediate ? message->immediate : (uint32_t)train->pkey, NULL);
    return FINE;
}

/* The segments of a large send, from where the last train left off. */
static enum outcome execute_large_send(struct run *run, struct message *message)
{
    struct train *train = run->train;
    uint64_t done = (uint64_t)train->lso_done;
    uint8_t head[MOST_HEADER_BYTES];

    if (message->length > UINT64_C(1) << LOG_MAX_LSO)
        return LENGTH;
    if (!ip_can_be_cut(message->header, message->header_length) || done >= message->length || done % message->mss)
        return MALFORMED;
    for (;;) {
        uint64_t left = message->length - done, size = left < message->mss ? left : message->mss;
        enum outcome outcome;

        memcpy(head, message->header, message->header_length);
        ip_segment(head, message->header_length, (uint32_t)(done / message->mss), (uint32_t)done, size, size == left);
        outcome = deliver(run, message, head, message->header_length, done, size);
        if (outcome != FINE)
            return outcome;
        done += size;
        train->lso_done = (int64_t)done;
        if (size == left) {
            /* The caller charges the budget for the last one. */
            message->length = size;
            break;
        }
        charge(run, size);
        if (is_over(run))
            return FINE;
    }
    train->lso_done = 0;
    complete_send(run, message, NULL);
    return FINE;
}

enum outcome execute_datagram(struct run *run, struct message *message)
{
    struct train *train = run->train;
    uint8_t head[MOST_HEADER_BYTES];
    uint64_t head_length = 0;
    enum outcome outcome;

    if (message->mss)
        return execute_large_send(run, message);
    if (message->l3 || message->l4 || train->far_offloads) {
        head_length = message->length < MOST_HEADER_BYTES ? message->length : MOST_HEADER_BYTES;
        read_pieces(head, &message->local, head_length);
    }
    outcome = deliver(run, message, head, head_length, head_length, message->length - head_length);
    if (outcome == FINE)
        complete_send(run, message, NULL);
    return outcome;
}
