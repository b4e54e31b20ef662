/* In a guest: what a doorbell costs who rings it, and how long until it is answered.
 *
 *   ring_doorbells BELL ANSWER SECONDS BURST
 *   ring_doorbells BELL ANSWER
 *
 * BELL and ANSWER are FILE:OFFSET of 8-byte registers in PCI resource files. The device copies what is written to BELL
 * to the ANSWER of this guest or of another one, which is memory that it shares with it. The first form rings and waits
 * for the same value, again and again, then rings a burst without waiting, and last END. It prints median and mean of
 * the waits and the time of one store of the burst, in us. The second form rings back what it sees until that is END.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define MOST 4000000
#define END UINT64_MAX

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static volatile uint64_t *open_register(char *where)
{
	char *colon = strrchr(where, ':');
	long offset = strtol(colon + 1, NULL, 0);
	char *page;
	int fd;

	*colon = 0;
	fd = open(where, O_RDWR);
	if (fd < 0) {
		perror(where);
		exit(1);
	}
	page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset & ~4095L);
	if (page == MAP_FAILED) {
		perror(where);
		exit(1);
	}
	return (volatile uint64_t *)(page + (offset & 4095));
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static int ring_back(volatile uint64_t *bell, volatile uint64_t *answer)
{
	uint64_t seen = *answer, value;

	for (;;) {
		while ((value = *answer) == seen)
			;
		if (value == END)
			return 0;
		seen = *bell = value;
	}
}

int main(int argc, char **argv)
{
	volatile uint64_t *bell, *answer;
	double *waits, begin, burst, end, sum = 0;
	uint64_t value;
	int rounds = 0, writes;

	if (argc != 5 && argc != 3)
		return 2;
	bell = open_register(argv[1]);
	answer = open_register(argv[2]);
	if (argc == 3)
		return ring_back(bell, answer);
	end = now_us() + atof(argv[3]) * 1e6;
	writes = atoi(argv[4]);
	waits = calloc(MOST, sizeof(*waits));
	value = *answer == END ? 0 : *answer;
	while (rounds < MOST && now_us() < end) {
		value++;
		begin = now_us();
		*bell = value;
		while (*answer != value)
			if (now_us() - begin > 5e6) {
				fprintf(stderr, "no answer to doorbell %d\n", rounds);
				return 1;
			}
		sum += waits[rounds++] = now_us() - begin;
	}
	qsort(waits, rounds, sizeof(*waits), by_size);
	begin = now_us();
	for (int i = 0; i < writes; i++)
		*bell = ++value;
	burst = (now_us() - begin) / writes;
	while (*answer != value)
		;
	*bell = END;
	printf("%.2f %.2f %.4f\n", waits[rounds / 2], sum / rounds, burst);
	return 0;
}
