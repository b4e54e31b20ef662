#include "messages.h"

/* The GRH of the datagrams of a train, with the PayLen of this one: from BTH to ICRC (8.3). */
static void put_header(const struct train *train, const struct message *message, uint8_t header[GRH])
{
    uint64_t size = BTH_SIZE + DETH_SIZE + (message->with_immediate ? IMM_DT_SIZE : 0) + message->length + (-message->length & 3) + ICRC;

    memcpy(header, (const uint8_t *)(uintptr_t)train->global_header, GRH);
    store16(header + GRH_HEADER_PAY_LEN_AT, (uint16_t)size);
}

/* `length` bytes of a list of pieces, behind the first GRH bytes of it. */
static void behind_header(const struct pieces *all, struct pieces *rest)
{
    uint64_t skip = GRH;

    rest->count = 0;
    rest->bytes = all->bytes - GRH;
    for (uint32_t index = 0; index < all->count; index++) {
        struct piece piece = all->piece[index];
        uint64_t cut = skip < piece.size ? skip : piece.size;

        skip -= cut;
        if (piece.size > cut)
            rest->piece[rest->count++] = (struct piece){piece.at + cut, piece.size - cut};
    }
}

enum outcome execute_datagram(struct run *run, struct message *message)
{
    static _Thread_local struct pieces all, rest;
    struct train *train = run->train;
    uint8_t receive[1 << LOG_LONGEST_RECEIVE], header[GRH];
    enum outcome outcome;

    if (message->length > (uint64_t)1 << train->log_mtu)
        return LENGTH;
    outcome = look_at_receive(run, receive);
    if (outcome == FINE && !queue_has_room(&run->far_cq))
        outcome = ROOM;
    if (outcome == FINE)
        outcome = take_scatter_list(run, receive, GRH + message->length, &all);
    if (outcome != FINE)
        return outcome;
    if (train->has_grh) {
        put_header(train, message, header);
        fill_pieces(&all, header, GRH);
    }
    behind_header(&all, &rest);
    copy_pieces(&rest, &message->local, message->length);
    train->words_out +=
        (int64_t)words_of(train, 1, message->length, DETH_SIZE + (message->with_immediate ? IMM_DT_SIZE : 0));
    train->packets++;
    train->bytes += (int64_t)message->length;
    train->next_psn++;
    complete_receive(run, message, message->with_immediate ? CQE_RESP_SEND_IMM : CQE_RESP_SEND, GRH + message->length,
                     message->with_immediate ? message->immediate : (uint32_t)train->pkey, NULL);
    complete_send(run, message, NULL);
    return FINE;
}
