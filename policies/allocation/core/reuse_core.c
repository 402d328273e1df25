/* Reuse times of sampled accesses, compiled: the rule that policies/allocation/table.py states, access by access. */

#include "split_core.h"

#include <math.h>
#include <stdint.h>

enum { WAYS = 8, AHEAD = 8 };

/* table.mix64 */
static inline uint64_t mix64(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static inline uint64_t row_of(uint64_t key, uint64_t mask) { return (mix64(key ^ 0xBF58476D1CE4E5B9u) & mask) * WAYS; }

void gr_count(long n, const uint64_t *keys, const double *t_ms, const double *sizes, const gr_table *table, double *binned,
              double *squares) {
    const uint64_t mask = (uint64_t)table->sets - 1;
    for (long i = 0; i < n; i++) {
        if (i + AHEAD < n) { /* what lies far apart in the table is on its way before it is needed */
            uint64_t next = row_of(keys[i + AHEAD], mask);
            __builtin_prefetch(table->key + next, 1);
            __builtin_prefetch(table->last_ms + next, 1);
            __builtin_prefetch(table->weight + next, 1);
        }
        const uint64_t row = row_of(keys[i], mask);
        uint64_t *key = table->key + row;
        double *last = table->last_ms + row, *weight = table->weight + row;
        const double now = t_ms[i], size = sizes[i];
        int way = 0, oldest = 0;
        while (way < WAYS && !(key[way] == keys[i] && last[way] > -INFINITY)) {
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
            key[way] = keys[i];
            last[way] = now;
        }
        weight[way] = before + size;
        binned[bin] += size;
        squares[bin] += size * (2.0 * before + size);
    }
}
