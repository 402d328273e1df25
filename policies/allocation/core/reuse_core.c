/* Reuse times of sampled accesses, compiled: the rule that policies/allocation/table.py states, access by access. */

#include "split_core.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { WAYS = 8, AHEAD = 8 };

/* table.mix64 */
static inline uint64_t mix64(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static inline uint64_t row_of(uint64_t key, uint64_t mask) { return (mix64(key ^ 0xBF58476D1CE4E5B9u) & mask) * WAYS; }

static inline void fetch_row(const gr_table *table, uint64_t row) {
    __builtin_prefetch(table->key + row, 1);
    __builtin_prefetch(table->last_ms + row, 1);
    __builtin_prefetch(table->weight + row, 1);
}

/* Take in one access and return its bin; *square is what it adds there beside its size. */
static inline int renew(const gr_table *table, uint64_t asked, double now, double size, double *square) {
    const uint64_t row = row_of(asked, (uint64_t)table->sets - 1);
    uint64_t *key = table->key + row;
    double *last = table->last_ms + row, *weight = table->weight + row;
    int way = 0, oldest = 0;
    while (way < WAYS && !(key[way] == asked && last[way] > -INFINITY)) {
        if (last[way] < last[oldest]) oldest = way;
        way++;
    }
    double reuse = INFINITY, before = 0.0;
    int bin = table->bins;
    if (way < WAYS) {
        reuse = now > last[way] ? now - last[way] : 0.0;
        before = weight[way] * exp(-reuse / table->decay_ms);
        double place = floor(log((reuse > 1e-9 ? reuse : 1e-9) / table->shortest_ms) / table->log_step) + 1.0;
        if (!(place > 0.0)) bin = 0;
        else if (place < bin) bin = (int)place;
        if (now > last[way]) last[way] = now;
    } else {
        way = oldest;
        key[way] = asked;
        last[way] = now;
    }
    weight[way] = before + size;
    *square = size * (2.0 * before + size);
    return bin;
}

void gr_count(long n, const uint64_t *keys, const double *t_ms, const double *sizes, const gr_table *table, double *binned,
              double *squares) {
    const uint64_t mask = (uint64_t)table->sets - 1;
    for (long i = 0; i < n; i++) {
        /* what lies far apart in the table is on its way before it is needed */
        if (i + AHEAD < n) fetch_row(table, row_of(keys[i + AHEAD], mask));
        double square;
        const int bin = renew(table, keys[i], t_ms[i], sizes[i], &square);
        binned[bin] += sizes[i];
        squares[bin] += square;
    }
}

/* A sample record: kind in the two highest bits of the first word, size in the thirty below, the key, microseconds. */
typedef struct {
    uint64_t what, key, us;
} record;

static inline record record_at(const char *records, long i) {
    record one;
    memcpy(&one, records + i * (long)sizeof one, sizeof one);
    return one;
}

long gr_ingest(long n, const char *records, int kind, double unit_bytes, double shift_ms, double now_ms, const gr_table *table,
               int histograms, const double *keep, double *sums, double *out) {
    enum { MOST_BINS = 512 };
    const uint64_t mask = (uint64_t)table->sets - 1, wanted = (uint64_t)kind;
    const int bins = table->bins + 1;
    double binned[MOST_BINS] = {0}, squares[MOST_BINS] = {0}, sum = 0.0, square_sum = 0.0, t = now_ms;
    uint64_t latest = 0;
    if (bins > MOST_BINS) return -1;
    for (long i = 0; i < n; i++) {
        const record one = record_at(records, i);
        if (one.what >> 62 != wanted) continue;
        if (one.us < latest) return -1;
        latest = one.us;
    }
    long taken = 0;
    for (long i = 0; i < n; i++) {
        if (i + AHEAD < n) {
            const record next = record_at(records, i + AHEAD);
            if (next.what >> 62 == wanted) fetch_row(table, row_of(next.key, mask));
        }
        const record one = record_at(records, i);
        if (one.what >> 62 != wanted) continue;
        const double size = (double)(one.what >> 32 & 0x3FFFFFFF) * unit_bytes;
        t = (double)one.us / 1000.0 + shift_ms;
        if (t > now_ms) t = now_ms;
        double square;
        const int bin = renew(table, one.key, t, size, &square);
        binned[bin] += size;
        squares[bin] += square;
        sum += size;
        square_sum += size * size;
        taken++;
    }
    for (int h = 0; h < histograms; h++) {
        double *weight = sums + h * bins, *square = sums + (histograms + h) * bins;
        for (int b = 0; b < bins; b++) {
            weight[b] = weight[b] * keep[h] + binned[b];
            square[b] = square[b] * keep[histograms + h] + squares[b];
        }
    }
    out[0] = sum;
    out[1] = square_sum;
    out[2] = t;
    return taken;
}
