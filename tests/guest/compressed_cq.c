/* In a guest: datagrams to oneself whose receives complete in a queue with compressed completions, read by hand.
 *
 *   compressed_cq FORMAT COUNT
 *
 * FORMAT is a bit of mlx5dv_cqe_comp_res_format. Prints "session N" for each compressed session, "single" for each other
 * completion, and behind it one line "COUNTER LENGTH" for each receive that they stand for.
 */
#include <endian.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define Q_KEY 0x1234
#define MOST 64
/* The library counts receives as posted for good, since nobody polls for them. */
#define RECEIVES 512
#define ROOM 256
#define COMPRESSED 3
#define SHORTEST 10

struct mini {
    uint32_t result, byte_count;
};

static void *must(void *made, const char *what)
{
    if (!made) {
        perror(what);
        exit(1);
    }
    return made;
}

static void check(int error, const char *what)
{
    if (error) {
        fprintf(stderr, "%s: %s\n", what, strerror(error));
        exit(1);
    }
}

static struct ibv_qp *make_qp(struct ibv_pd *pd, struct ibv_cq *sends, struct ibv_cq *receives)
{
    struct ibv_qp_init_attr init = {.send_cq = sends, .recv_cq = receives, .qp_type = IBV_QPT_UD, .sq_sig_all = 1,
                                    .cap = {MOST, RECEIVES, 1, 1, 0}};
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = Q_KEY};
    struct ibv_qp *qp = must(ibv_create_qp(pd, &init), "ibv_create_qp");

    check(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), "INIT");
    attr.qp_state = IBV_QPS_RTR;
    check(ibv_modify_qp(qp, &attr, IBV_QP_STATE), "RTR");
    attr.qp_state = IBV_QPS_RTS;
    check(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), "RTS");
    return qp;
}

static struct mlx5_cqe64 *entry(const struct mlx5dv_cq *cq, uint32_t index)
{
    return (struct mlx5_cqe64 *)((char *)cq->buf + (size_t)(index & (cq->cqe_cnt - 1)) * cq->cqe_size);
}

/* Tell whether the card has handed over the entry at this free running index. */
static int is_mine(const struct mlx5dv_cq *cq, uint32_t index)
{
    uint8_t last = *(volatile uint8_t *)&entry(cq, index)->op_own;

    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return last >> 4 != MLX5_CQE_INVALID && (last & 1) == !!(index & cq->cqe_cnt);
}

/* Print the completion at `index`, and all that it stands for; how many. */
static uint32_t take(const struct mlx5dv_cq *cq, uint32_t index)
{
    struct mlx5_cqe64 *title = entry(cq, index);
    uint32_t count = be32toh(title->byte_cnt);
    uint16_t counter = be16toh(title->wqe_counter);

    if (title->op_own >> 4 != MLX5_CQE_RESP_SEND) {
        fprintf(stderr, "opcode %u\n", title->op_own >> 4);
        exit(1);
    }
    if ((title->op_own >> 2 & 3) != COMPRESSED) {
        printf("single\n%u %u\n", counter, count);
        return 1;
    }
    printf("session %u\n", count);
    for (uint32_t at = 0; at < count; at++) {
        uint32_t array = at / 8 ? at / 8 * 8 : 1;
        const struct mini *minis = (const struct mini *)entry(cq, index + array);

        printf("%u %u\n", (uint16_t)(counter + at), be32toh(minis[at % 8].byte_count));
    }
    for (uint32_t at = 0; at < count; at++)
        entry(cq, index + at)->op_own = (uint8_t)(MLX5_CQE_INVALID << 4 | !!((index + at) & cq->cqe_cnt));
    return count;
}

int main(int argc, char **argv)
{
    static char source[ROOM], place[MOST][ROOM];
    struct ibv_context *context;
    struct ibv_device **devices = must(ibv_get_device_list(NULL), "ibv_get_device_list");
    struct mlx5dv_cq_init_attr more = {.comp_mask = MLX5DV_CQ_INIT_ATTR_MASK_COMPRESSED_CQE};
    struct ibv_cq_init_attr_ex wanted = {.cqe = MOST};
    struct mlx5dv_cq ring;
    struct mlx5dv_obj object = {0};
    struct ibv_port_attr port;
    struct ibv_ah_attr way = {.port_num = 1};
    uint32_t total, seen = 0;
    struct ibv_pd *pd;
    struct ibv_cq *sends, *receives;
    struct ibv_qp *qp;
    struct ibv_ah *ah;
    struct ibv_mr *from, *to;
    struct timespec began, now;

    if (argc != 3 || !devices[0])
        return 2;
    more.cqe_comp_res_format = (uint8_t)atoi(argv[1]);
    total = (uint32_t)atoi(argv[2]);
    context = must(ibv_open_device(devices[0]), "ibv_open_device");
    pd = must(ibv_alloc_pd(context), "ibv_alloc_pd");
    sends = must(ibv_create_cq(context, MOST, NULL, NULL, 0), "ibv_create_cq");
    receives = ibv_cq_ex_to_cq(must(mlx5dv_create_cq(context, &wanted, &more), "mlx5dv_create_cq"));
    object.cq.in = receives;
    object.cq.out = &ring;
    check(mlx5dv_init_obj(&object, MLX5DV_OBJ_CQ), "mlx5dv_init_obj");
    qp = make_qp(pd, sends, receives);
    from = must(ibv_reg_mr(pd, source, sizeof(source), 0), "ibv_reg_mr");
    to = must(ibv_reg_mr(pd, place, sizeof(place), IBV_ACCESS_LOCAL_WRITE), "ibv_reg_mr");
    check(ibv_query_port(context, 1, &port), "ibv_query_port");
    way.dlid = port.lid;
    ah = must(ibv_create_ah(pd, &way), "ibv_create_ah");
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (uint32_t done = 0; done < total;) {
        struct ibv_send_wr sending[MOST] = {0}, *bad_send;
        struct ibv_sge parts[MOST];
        uint32_t count = total - done < MOST / 2 ? total - done : MOST / 2, polled = 0;

        for (uint32_t at = 0; at < count; at++) {
            struct ibv_sge part = {(uintptr_t)place[at], ROOM, to->lkey};
            struct ibv_recv_wr receive = {.sg_list = &part, .num_sge = 1}, *bad;

            check(ibv_post_recv(qp, &receive, &bad), "ibv_post_recv");
            parts[at] = (struct ibv_sge){(uintptr_t)source, SHORTEST + (done + at) % 100, from->lkey};
            sending[at] = (struct ibv_send_wr){.next = at + 1 < count ? &sending[at + 1] : NULL, .sg_list = &parts[at],
                                               .num_sge = 1, .opcode = IBV_WR_SEND,
                                               .wr.ud = {ah, qp->qp_num, Q_KEY}};
        }
        check(ibv_post_send(qp, sending, &bad_send), "ibv_post_send");
        while (polled < count || seen < done + count) {
            struct ibv_wc wc;

            if (ibv_poll_cq(sends, 1, &wc) == 1) {
                check(wc.status, "a send failed");
                polled++;
            }
            if (is_mine(&ring, seen)) {
                seen += take(&ring, seen);
                ring.dbrec[0] = htobe32(seen & 0xFFFFFF);
            }
            clock_gettime(CLOCK_MONOTONIC, &now);
            if (now.tv_sec - began.tv_sec > 30) {
                fprintf(stderr, "%u of %u after 30 s\n", seen, total);
                return 1;
            }
        }
        done += count;
    }
    return 0;
}
