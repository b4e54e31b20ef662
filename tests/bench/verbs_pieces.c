/* In two guests: what a small WRITE costs its program, piece by piece, and the latency that comes of it.
 *
 *   verbs_pieces first|second DEVICE SIZE ROUNDS
 *
 * Each prints "LID QPN ADDRESS RKEY" of a queue pair on its device and reads the other's line. `second` reads
 * another word, "go", and answers what comes then; `first` prints "go" when that may be. Before, it measures, in us,
 * of the guest's own clock and without what that takes, with a pause before each, so that whoever works for it is done
 * and asleep again. It prints what the quickest tenth did not exceed: what it takes while nobody else has the processor.
 *
 *   post-inline, post   ibv_post_send of one WRITE, its SIZE bytes in the request or in memory
 *   burst-inline, burst the same in runs of BURST without a pause
 *   poll                ibv_poll_cq that finds one completion
 *   look                ibv_poll_cq that finds none
 *   store               an 8-byte store to a place of the doorbell's page at which there is no register
 *   stores              the same, in runs of BURST
 *   hop                 half a round trip of WRITEs, inline, noticed by looking at the last byte: the median
 */
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define AREA 8192
#define BURST 32
#define NO_REGISTER 0x700
#define PAUSE_US 100
#define LONG_PAUSE_US 1000
#define DEPTH 256
#define PATIENCE_US 5e6

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static volatile unsigned char *area;
static uint64_t peer_area;
static uint32_t peer_key;
static int size, rounds;
static double *times, clock_us;

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void need(int good, const char *what)
{
	if (!good) {
		perror(what);
		exit(1);
	}
}

static void open_queue_pair(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1 };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };

	need(list != NULL, "ibv_get_device_list");
	while (*list && strcmp(ibv_get_device_name(*list), name))
		list++;
	need(*list != NULL, name);
	context = ibv_open_device(*list);
	need(context != NULL, "ibv_open_device");
	pd = ibv_alloc_pd(context);
	area = aligned_alloc(4096, AREA);
	memset((void *)area, 0, AREA);
	mr = ibv_reg_mr(pd, (void *)area, AREA, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	need(mr != NULL, "ibv_reg_mr");
	cq = ibv_create_cq(context, DEPTH, NULL, NULL, 0);
	need(cq != NULL, "ibv_create_cq");
	init.send_cq = init.recv_cq = cq;
	init.cap.max_send_wr = init.cap.max_recv_wr = DEPTH;
	init.cap.max_send_sge = init.cap.max_recv_sge = 1;
	init.cap.max_inline_data = size;
	qp = ibv_create_qp(pd, &init);
	need(qp != NULL, "ibv_create_qp");
	need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
}

static void connect_queue_pair(void)
{
	struct ibv_port_attr port;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .min_rnr_timer = 12 };
	unsigned int lid, qpn;

	need(!ibv_query_port(context, 1, &port), "ibv_query_port");
	printf("%u %u %llu %u\n", port.lid, qp->qp_num, (unsigned long long)(uintptr_t)area, mr->rkey);
	fflush(stdout);
	need(scanf("%u %u %lu %u", &lid, &qpn, &peer_area, &peer_key) == 4, "the other's line");
	attr.dest_qp_num = qpn;
	attr.ah_attr.dlid = lid;
	attr.ah_attr.port_num = 1;
	attr.max_dest_rd_atomic = 1;
	need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

/* From the second half of the area into the first half of the other's. */
static void post(int flags)
{
	struct ibv_sge sge = { (uintptr_t)area + AREA / 2, size, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = flags }, *bad;

	wr.wr.rdma.remote_addr = peer_area;
	wr.wr.rdma.rkey = peer_key;
	need(!ibv_post_send(qp, &wr, &bad), "ibv_post_send");
}

static void wait_completions(int count)
{
	double end = now_us() + PATIENCE_US;
	struct ibv_wc wc;
	int got;

	while (count) {
		got = ibv_poll_cq(cq, 1, &wc);
		need(got >= 0 && (!got || wc.status == IBV_WC_SUCCESS) && now_us() < end, "a completion");
		count -= got;
	}
}

static void pause_us(double us)
{
	double end = now_us() + us;

	while (now_us() < end)
		;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void report(const char *what, int measured, int each)
{
	qsort(times, measured, sizeof(*times), by_size);
	printf("%s %.3f\n", what, (times[measured / 10] - clock_us) / each);
	fflush(stdout);
}

static void measure_clock(void)
{
	for (int i = 0; i < rounds; i++) {
		double begin = now_us();

		times[i] = now_us() - begin;
	}
	qsort(times, rounds, sizeof(*times), by_size);
	clock_us = times[rounds / 2];
}

static void measure_posts(const char *what, int flags, int count)
{
	int measured = count == 1 ? rounds : (rounds + 3) / 4;

	for (int i = 0; i < measured; i++) {
		double begin;

		pause_us(count == 1 ? PAUSE_US : LONG_PAUSE_US);
		begin = now_us();
		for (int k = 0; k < count; k++)
			post(flags);
		times[i] = now_us() - begin;
		wait_completions(count);
	}
	report(what, measured, count);
}

static void measure_poll(int found)
{
	struct ibv_wc wc;

	for (int i = 0; i < rounds; i++) {
		double begin;
		int got;

		if (found)
			post(IBV_SEND_INLINE);
		pause_us(PAUSE_US);
		begin = now_us();
		got = ibv_poll_cq(cq, 1, &wc);
		times[i] = now_us() - begin;
		if (got < found)
			wait_completions(1);
	}
	report(found ? "poll" : "look", rounds, 1);
}

static void measure_stores(const char *what, int count)
{
	struct mlx5dv_qp dv = { 0 };
	struct mlx5dv_obj object = { .qp = { .in = qp, .out = &dv } };
	int measured = count == 1 ? rounds : (rounds + 3) / 4;
	volatile uint64_t *place;

	need(!mlx5dv_init_obj(&object, MLX5DV_OBJ_QP) && dv.bf.reg, "mlx5dv_init_obj");
	place = (volatile uint64_t *)(((uintptr_t)dv.bf.reg & ~4095ul) + NO_REGISTER);
	for (int i = 0; i < measured; i++) {
		double begin;

		pause_us(count == 1 ? PAUSE_US : LONG_PAUSE_US);
		begin = now_us();
		for (int k = 0; k < count; k++)
			*place = 0;
		times[i] = now_us() - begin;
	}
	report(what, measured, count);
}

/* Both write what they have seen; the last byte tells. Rounds count from 1 to 250 and again. */
static void exchange(int first, int turns)
{
	volatile unsigned char *source = area + AREA / 2 + size - 1, *seen = area + size - 1;
	unsigned char number = 0;

	for (int i = 0; i < turns; i++) {
		double begin = now_us();

		number = number % 250 + 1;
		*source = number;
		if (first)
			post(IBV_SEND_INLINE);
		while (*seen != number)
			if (now_us() - begin > PATIENCE_US * 12)
				need(0, "the other's WRITE");
		if (!first)
			post(IBV_SEND_INLINE);
		wait_completions(1);
		times[i] = (now_us() - begin) / 2;
	}
}

int main(int argc, char **argv)
{
	int first = argc == 5 && !strcmp(argv[1], "first");

	if (argc != 5)
		return 2;
	size = atoi(argv[3]);
	rounds = atoi(argv[4]);
	times = calloc(rounds, sizeof(*times));
	open_queue_pair(argv[2]);
	connect_queue_pair();
	if (first) {
		measure_clock();
		measure_posts("post", 0, 1);
		measure_posts("post-inline", IBV_SEND_INLINE, 1);
		measure_posts("burst", 0, BURST);
		measure_posts("burst-inline", IBV_SEND_INLINE, BURST);
		measure_poll(1);
		measure_poll(0);
		measure_stores("store", 1);
		measure_stores("stores", BURST);
		puts("go");
		fflush(stdout);
	} else {
		char word[8];

		need(scanf("%7s", word) == 1, "the word");
	}
	/* What was measured so far has written into the other's area: begin anew. */
	exchange(first, 100);
	exchange(first, rounds);
	if (first) {
		qsort(times, rounds, sizeof(*times), by_size);
		printf("hop %.3f\n", times[rounds / 2]);
	}
	return 0;
}
