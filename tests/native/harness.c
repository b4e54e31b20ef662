/* Random trains in guests' memory full of random rings, keys and sizes, for sanitizers to watch.
 *
 *     harness SEED ROUNDS [PAIRS THREADS]
 *
 * With PAIRS, so many pairs of machines have their trains side by side, run by THREADS threads and this one.
 *
 * Memory of each card is in pieces of their own, so that a byte too far is another object's. Half of what is random is
 * made right first and changed in a few places then. Prints how many messages went; exits with 1 if a train broke a
 * rule that a caller relies on.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats.h"
#include "memory.h"
#include "train.h"

enum { PIECE = 1 << 16, PIECES_OF_A_CARD = 3, RING_LOG = 4, CQ_LOG = 5, STRIDE_LOG = 6 };

static uint64_t state;

static uint64_t chance(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static bool rarely(unsigned one_in)
{
    return chance() % one_in == 0;
}

struct machine {
    struct card *card;
    uint8_t *piece[PIECES_OF_A_CARD];
    uint64_t base;
    uint8_t *pages, *ring;
};

static uint8_t *at(struct machine *machine, uint64_t addr)
{
    return machine->piece[(addr - machine->base) / PIECE] + (addr - machine->base) % PIECE;
}

/* A bus address that is mostly in memory. */
static uint64_t somewhere(struct machine *machine)
{
    if (rarely(20))
        return chance();
    return machine->base + chance() % (PIECES_OF_A_CARD * PIECE);
}

static void start(struct machine *machine, uint64_t base)
{
    uint64_t starts[PIECES_OF_A_CARD], ends[PIECES_OF_A_CARD];
    void *places[PIECES_OF_A_CARD];
    uint8_t access[PIECES_OF_A_CARD];

    machine->base = base;
    machine->ring = NULL;
    machine->card = vhca_card_new();
    for (int index = 0; index < PIECES_OF_A_CARD; index++) {
        machine->piece[index] = malloc(PIECE);
        for (int byte = 0; byte < PIECE; byte++)
            machine->piece[index][byte] = (uint8_t)chance();
        starts[index] = base + (uint64_t)index * PIECE;
        ends[index] = starts[index] + PIECE;
        places[index] = machine->piece[index];
        access[index] = rarely(30) ? 1 : 3;
    }
    vhca_card_map(machine->card, PIECES_OF_A_CARD, starts, ends, places, access, NULL);
    machine->pages = malloc(16 * 8);
    for (int page = 0; page < 16; page++)
        store64(machine->pages + page * 8, somewhere(machine) & ~UINT64_C(0xFFF));
}

static void end(struct machine *machine)
{
    for (int index = 0; index < PIECES_OF_A_CARD; index++)
        free(machine->piece[index]);
    free(machine->pages);
    free(machine->ring);
    vhca_card_free(machine->card);
}

static uint32_t add_key(struct machine *machine, uint32_t index)
{
    uint32_t key = index << 8 | 0x11;
    uint8_t kind = (uint8_t)(KEY_FLAT + chance() % 3);
    uint64_t length = rarely(4) ? chance() % 100000 : PIECE;

    vhca_card_add_key(machine->card, key, rarely(40) ? 9 : 1, rarely(40) ? 5 : 0xFFFFFF,
                      rarely(20) ? (uint8_t)chance() : 0x1F, kind, (uint8_t)(12 + chance() % 3), (uint8_t)(rarely(30) | rarely(3) << 1 | rarely(2) << 2),
                      rarely(4) ? chance() : machine->base, length, somewhere(machine), machine->pages,
                      rarely(4) ? chance() % 17 : 16);
    return key;
}

static const uint8_t OPCODES[] = {WQE_SEND, WQE_SEND_IMM, WQE_RDMA_WRITE, WQE_RDMA_WRITE_IMM, WQE_RDMA_READ,
                                  WQE_ATOMIC_CS, WQE_ATOMIC_FA, WQE_NOP, WQE_SEND_INVAL, WQE_UMR};

/* What datagrams have at the place of their address vector. */
static uint8_t vector[DATAGRAM_SEGMENT_SIZE], header[40];

/* Behind the address vector: what asks for checksums, or headers of a large send. */
static void fill_offload(uint8_t *wqe, uint64_t index, uint32_t qpn, uint64_t addr, uint32_t key)
{
    static const uint8_t ip4[] = {8, 0, 0, 0, 0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, PROTOCOL_TCP};
    static const uint8_t ip6[] = {0x86, 0xDD, 0, 0, 0x60, 0, 0, 0, 0, 0, PROTOCOL_TCP, 64};
    bool large = !rarely(3), six = rarely(2);
    uint8_t *segment = wqe + 64 + ETH_PAD_SIZE, *headers = segment + ETH_SEGMENT_INLINE_HDR_START_AT;
    uint32_t size = large ? (six ? 64 : 44) : 0, units;

    memset(wqe + 64, 0, 192);
    store32(segment + ETH_SEGMENT_L4_CSUM_AT, (uint32_t)(chance() % 4) << ETH_SEGMENT_L3_CSUM_SHIFT);
    store16(segment + ETH_SEGMENT_MSS_AT, (uint16_t)(rarely(20) ? chance() : large ? 1 + chance() % 1500 : 0));
    store16(segment + ETH_SEGMENT_INLINE_HDR_SZ_AT, (uint16_t)(rarely(20) ? chance() : size));
    if (large) {
        memcpy(headers, six ? ip6 : ip4, six ? sizeof(ip6) : sizeof(ip4));
        headers[size - TCP_HEADER_SIZE + TCP_HEADER_DATA_OFFSET_AT] = 5 << 4;
        if (rarely(10))
            headers[chance() % size] = (uint8_t)chance();
    }
    units = (ETH_SEGMENT_INLINE_HDR_START_AT + size + 15) / 16;
    segment += large ? units * 16 : ETH_SEGMENT_SIZE;
    if (rarely(2)) {
        uint32_t inlined = (uint32_t)(1 + chance() % 44);

        store32(segment, 0x80000000 | inlined);
        segment += (4 + inlined + 15) / 16 * 16 - 16;
    } else {
        store32(segment, (uint32_t)(chance() % 8000));
        store32(segment + 4, key);
        store64(segment + 8, addr);
    }
    store32(wqe, (uint32_t)(index & 0xFFFF) << CTRL_SEGMENT_WQE_INDEX_SHIFT | (large ? WQE_LSO : WQE_SEND));
    store32(wqe + 4, qpn << CTRL_SEGMENT_QPN_SHIFT | (uint32_t)((segment + 16 - wqe) / 16));
}

static void fill_ring(struct machine *machine, struct machine *other, uint64_t ring, uint64_t consumer, uint32_t qpn,
                      const uint32_t *keys, bool datagrams, bool offloads)
{
    for (uint64_t slot = 0; slot < 1u << RING_LOG; slot++) {
        uint8_t *wqe = at(machine, ring + slot * 64);
        uint64_t index = consumer + ((slot - consumer) & ((1u << RING_LOG) - 1));
        uint8_t opcode = OPCODES[chance() % sizeof(OPCODES)];
        uint8_t *segment = wqe + 16;

        store32(wqe, (uint32_t)(index & 0xFFFF) << CTRL_SEGMENT_WQE_INDEX_SHIFT | opcode);
        store32(wqe + 4, qpn << CTRL_SEGMENT_QPN_SHIFT | (uint32_t)(rarely(6) ? chance() % 64 : 2 + chance() % 3));
        store32(wqe + 8, (uint32_t)(chance() % 16));
        store32(wqe + CTRL_SEGMENT_IMM_AT, rarely(3) ? (uint32_t)chance() : keys[4 + chance() % 4]);
        if (opcode != WQE_SEND && opcode != WQE_SEND_IMM && opcode != WQE_SEND_INVAL) {
            store64(segment, somewhere(other) & ~UINT64_C(7));
            store32(segment + 8, keys[4 + chance() % 4]);
            segment += 16;
        }
        for (; segment < wqe + 64; segment += 16) {
            store32(segment, (uint32_t)(rarely(3) ? 0x80000000 | chance() % 60 : rarely(20) ? chance() : chance() % 6000));
            store32(segment + 4, keys[chance() % 4]);
            store64(segment + 8, somewhere(machine));
        }
        if (datagrams && slot % 4 == 0) {
            /* Two blocks: the address vector fills the first. */
            memcpy(wqe + 16, vector, sizeof(vector));
            store32(wqe, (uint32_t)(index & 0xFFFF) << CTRL_SEGMENT_WQE_INDEX_SHIFT | WQE_SEND);
            store32(wqe + 4, qpn << CTRL_SEGMENT_QPN_SHIFT | (uint32_t)(4 + chance() % 3));
        }
        if (datagrams && offloads && slot % 4 == 0) {
            fill_offload(wqe, index, qpn, somewhere(machine), keys[chance() % 4]);
            slot += 3;
        }
        if (rarely(8))
            wqe[chance() % 64] = (uint8_t)chance();
    }
}

static void fill_receives(struct machine *machine, uint64_t ring, const uint32_t *keys)
{
    for (uint64_t at_slot = 0; at_slot < 1u << (RING_LOG + STRIDE_LOG); at_slot += 16) {
        uint8_t *segment = at(machine, ring + at_slot);

        store32(segment, (uint32_t)(rarely(10) ? chance() : chance() % 8000));
        store32(segment + 4, rarely(10) ? TERMINATOR_LKEY : keys[4 + chance() % 4]);
        store64(segment + 8, somewhere(machine));
    }
}

struct pair {
    struct machine near, far;
    struct train train;
    uint32_t keys[8], number;
    int64_t consumer;
    int tries;
};

enum { TRIES = 20, MOST_PAIRS = 16 };

static void set_up(struct pair *pair)
{
    struct machine *near = &pair->near, *far = &pair->far;
    struct train *train = &pair->train;
    uint32_t *keys = pair->keys;

    memset(pair, 0, sizeof(*pair));
    start(near, UINT64_C(0x100000));
    start(far, rarely(2) ? UINT64_C(0x7FFFFFFF0000) : UINT64_C(0x200000));
    for (uint32_t index = 0; index < 8; index++)
        keys[index] = add_key(index < 4 ? near : far, 0x40 + index);
    train->near_qpn = train->far_qpn = 0x77;
    train->near_pd = train->far_pd = 1;
    train->log_mtu = 8 + (int64_t)(chance() % 5);
    train->message_max = 1 << 30;
    train->has_grh = rarely(2);
    train->inline_read = (int64_t[]){0, 32, 64}[chance() % 3];
    train->inline_receive = (int64_t[]){0, 32, 64}[chance() % 3];
    train->sq_log = train->rq_log = RING_LOG;
    train->scq_log = train->rcq_log = CQ_LOG;
    train->scq_bytes = train->rcq_bytes = rarely(2) ? 64 : 128;
    train->far_rights = rarely(20) ? (int64_t)(chance() & 0x1F) : 0x1F;
    train->has_rq = !rarely(10);
    train->rq_log_stride = rarely(20) ? (int64_t)(4 + chance() % 9) : STRIDE_LOG;
    train->is_unreliable = rarely(4);
    train->rq_pd = rarely(30) ? 9 : 1;
    if (rarely(3)) {
        train->rq_is_list = rarely(2);
        train->rq_head = train->rq_is_list || rarely(2) ? NEXT_SEGMENT_SIZE : 0;
        train->rq_next = (int64_t)(chance() % 16);
        train->rq_limit = rarely(4) ? (int64_t)(chance() % 20) : 0;
    }
    train->sq_addr = (int64_t)near->base;
    train->sq_record = (int64_t)near->base + 0x8000;
    train->scq_addr = (int64_t)near->base + 0xA000;
    train->scq_record = (int64_t)near->base + 0x8040;
    train->rq_addr = (int64_t)far->base;
    train->rq_record = (int64_t)far->base + 0x8000;
    train->rcq_addr = (int64_t)far->base + 0xA000;
    train->rcq_record = (int64_t)far->base + 0x8040;
    if (rarely(3)) {
        train->is_datagram = 1;
        train->address_vector = (int64_t)(intptr_t)vector;
        train->global_header = (int64_t)(intptr_t)header;
        train->source_qpn = 0x77;
        train->near_offloads = !rarely(4);
        train->far_offloads = rarely(2);
    }
    if (rarely(2)) {
        /* The same memory as a list of pages: in order, or wherever. */
        near->ring = malloc(8 * 8);
        far->ring = malloc(8 * 8);
        for (int page = 0; page < 8; page++) {
            store64(near->ring + page * 8, rarely(20) ? somewhere(near) : near->base + (uint64_t)page * 4096);
            store64(far->ring + page * 8, rarely(20) ? somewhere(far) : far->base + (uint64_t)page * 4096);
        }
        train->sq_list = (int64_t)(intptr_t)near->ring;
        train->rq_list = (int64_t)(intptr_t)far->ring;
        train->sq_pages = train->rq_pages = rarely(10) ? 0 : 8;
        train->sq_log_page = train->rq_log_page = 12;
        train->sq_offset = rarely(10) ? 32704 : 0;
        if (rarely(2)) {
            train->scq_list = train->sq_list;
            train->rcq_list = train->rq_list;
            train->scq_pages = train->rcq_pages = 8;
            train->scq_log_page = train->rcq_log_page = 12;
            train->scq_offset = train->rcq_offset = 0x4000;
        }
    }
    if (rarely(10))
        train->sq_addr = (int64_t)somewhere(near);
    if (rarely(10))
        train->rcq_addr = (int64_t)(somewhere(far) & ~UINT64_C(63));
    if (rarely(10))
        train->rq_addr = (int64_t)somewhere(far);
    train->scq_ignores = rarely(10);
    train->rcq_ignores = rarely(10);
    train->sq_consumer = (int64_t)(chance() % 100000);
    train->rq_consumer = (int64_t)(chance() % 100000);
    train->scq_producer = train->scq_consumer = (int64_t)(chance() % 100000);
    train->rcq_producer = train->rcq_consumer = (int64_t)(chance() % 100000);
    if (train->near_offloads)
        /* Requests of up to four blocks. */
        train->sq_consumer &= ~INT64_C(3);
    fill_ring(near, far, near->base, (uint64_t)train->sq_consumer, 0x77, keys, train->is_datagram,
              train->near_offloads);
    fill_receives(far, far->base, keys);
    store32(at(near, near->base + 0x8004), (uint32_t)(train->sq_consumer + (int64_t)(chance() % 20)));
    store32(at(far, far->base + 0x8000), (uint32_t)(train->rq_consumer + 16));
}

static void before(struct pair *pair)
{
    struct train *train = &pair->train;

    pair->consumer = train->sq_consumer;
    train->wqe_budget = 64;
    train->byte_budget = 1 << 20;
    train->time_ns = rarely(4) ? 100000 : 0;
    train->by_clock = train->time_ns && rarely(2);
}

/* Look at what a train has left behind, which is how many messages; false in `goes_on` if it was the last. */
static int64_t behind(struct pair *pair, bool *goes_on)
{
    struct train *train = &pair->train;

    if (train->messages < 0 || train->messages > 64 || train->sq_consumer < pair->consumer ||
        train->near_cqes > train->messages || train->packets < 0 ||
        train->far_cqes > (train->is_datagram ? train->packets : train->messages) ||
        (train->is_datagram && !train->by_clock && train->packets > 64) || train->lso_done < 0 ||
        train->lso_done >= 1 << LOG_MAX_LSO || train->nops > train->messages ||
        train->rq_next < 0 || train->rq_next >= 1 << RING_LOG || (train->has_invalidated && !train->messages) || train->stop < 0 || train->stop > 3) {
        fprintf(stderr, "a train of %lld messages broke a rule\n", (long long)train->messages);
        exit(1);
    }
    *goes_on = train->stop != TRAIN_EMPTY && ++pair->tries < TRIES;
    /* What is unusual is for somebody else: here it is left out. */
    if (train->stop != TRAIN_BUDGET || !train->lso_done) {
        train->lso_done = 0;
        train->sq_consumer += train->near_offloads ? 4 : 1;
    }
    store32(at(&pair->near, pair->near.base + 0x8040), (uint32_t)train->scq_producer);
    store32(at(&pair->far, pair->far.base + 0x8040), (uint32_t)train->rcq_producer);
    return train->messages;
}

static void clear_up(struct pair *pair)
{
    end(&pair->near);
    end(&pair->far);
}

static int64_t play(void)
{
    static struct pair pair;
    int64_t messages = 0;
    bool goes_on = true;

    set_up(&pair);
    while (goes_on) {
        before(&pair);
        vhca_run_train(&pair.train, pair.near.card, pair.far.card);
        messages += behind(&pair, &goes_on);
    }
    clear_up(&pair);
    return messages;
}

/* Some pairs at once; whoever is ready before others has another pair in its place, so that they never wait in step. */
static int64_t play_together(int count)
{
    static struct pair pairs[MOST_PAIRS];
    int64_t messages = 0;

    for (int index = 0; index < count; index++)
        set_up(&pairs[index]);
    for (int tries = 0; tries < TRIES; tries++) {
        for (int index = 0; index < count; index++) {
            before(&pairs[index]);
            pairs[index].number = vhca_train_begin(&pairs[index].train, pairs[index].near.card, pairs[index].far.card);
        }
        for (int step = 0; step < count; step++) {
            /* In any order: one that nobody has begun is run by who ends it. */
            struct pair *pair = &pairs[tries & 1 ? step : count - 1 - step];
            bool goes_on;

            vhca_train_end(pair->number);
            messages += behind(pair, &goes_on);
            if (!goes_on) {
                clear_up(pair);
                set_up(pair);
            }
        }
    }
    for (int index = 0; index < count; index++)
        clear_up(&pairs[index]);
    return messages;
}

int main(int argc, char **argv)
{
    int64_t messages = 0;
    long rounds = argc > 2 ? atol(argv[2]) : 1000;
    int pairs = argc > 3 ? atoi(argv[3]) : 0;

    state = (argc > 1 ? strtoull(argv[1], NULL, 0) : 1) * UINT64_C(0x9E3779B97F4A7C15) + 1;
    if (argc > 4)
        vhca_crew((uint32_t)atoi(argv[4]));
    for (long round = 0; round < rounds; round++)
        messages += pairs ? play_together(pairs < MOST_PAIRS ? pairs : MOST_PAIRS) : play();
    printf("%lld messages in %ld rounds\n", (long long)messages, rounds);
    return 0;
}
