/* What the load counts between two of its commands, and how it is told: one line of JSON, latencies as quantiles. */
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#define MAX_WINDOWS 64
#define SUB_BITS 6 /* 64 buckets an octave: latencies are known to 1.6 % */
#define BUCKETS ((64 - SUB_BITS) << SUB_BITS)

struct window {
	char name[32];
	int mask, watched;
	int64_t began, ended, sent, ok, wrong, failed, again, seen;
	int64_t first_wrong, last_wrong, first_failed, last_failed, last_seen, slowest, late;
	uint32_t histogram[BUCKETS];
};

static struct window windows[MAX_WINDOWS], *now_open;

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int bucket_of(int64_t ns)
{
	uint64_t v = ns < 1 ? 1 : ns;
	int octave = 63 - __builtin_clzll(v);
	if (octave < SUB_BITS)
		return v;
	return ((octave - SUB_BITS + 1) << SUB_BITS) + (int)((v >> (octave - SUB_BITS)) & ((1 << SUB_BITS) - 1));
}

static int64_t middle_of(int bucket)
{
	int octave = (bucket >> SUB_BITS) + SUB_BITS - 1;
	if (octave < SUB_BITS)
		return bucket;
	int64_t width = 1LL << (octave - SUB_BITS);
	return ((1LL << SUB_BITS) + (bucket & ((1 << SUB_BITS) - 1))) * width + width / 2;
}

static double quantile_us(const struct window *w, double share)
{
	int64_t before = 0, wanted = share * (w->ok + w->wrong);
	for (int i = 0; i < BUCKETS; i++)
		if ((before += w->histogram[i]) > wanted)
			return middle_of(i) / 1000.0;
	return 0;
}

static void report(const struct window *last)
{
	printf("[");
	for (const struct window *w = windows; w <= last; w++) {
		printf("%s{\"name\":\"%s\",\"began\":%lld,\"ended\":%lld,\"sent\":%lld,\"ok\":%lld,\"wrong\":%lld,\"failed\":%lld,"
		       "\"again\":%lld,\"seen\":%lld,\"first_wrong\":%lld,\"last_wrong\":%lld,\"first_failed\":%lld,\"last_failed\":%lld,"
		       "\"last_seen\":%lld,\"p50_us\":%.1f,\"p90_us\":%.1f,\"p99_us\":%.1f,\"p999_us\":%.1f,\"slowest_us\":%.1f,\"late_us\":%.1f}",
		       w == windows ? "" : ",", w->name, (long long)w->began, (long long)w->ended, (long long)w->sent, (long long)w->ok,
		       (long long)w->wrong, (long long)w->failed, (long long)w->again, (long long)w->seen, (long long)w->first_wrong,
		       (long long)w->last_wrong, (long long)w->first_failed, (long long)w->last_failed, (long long)w->last_seen,
		       quantile_us(w, 0.5), quantile_us(w, 0.9), quantile_us(w, 0.99), quantile_us(w, 0.999), w->slowest / 1000.0, w->late / 1000.0);
	}
	printf("]\n");
	fflush(stdout);
}
