/* One split decision, compiled (split_core.c): what policies/allocation/path.py computes with numpy, in the same order of
 * operations, so that both give the same answer; and what table.py counts of accesses (reuse_core.c). Pure functions over memory
 * of the caller: nothing is allocated, nothing is kept. */

#ifndef GR_SPLIT_CORE_H
#define GR_SPLIT_CORE_H

#include <stdint.h>

#define GR_FEATURES 31
#define GR_HIDDEN 64
#define GR_PROBES 5
#define GR_MOST_SPLITS 101

/* Columns of the figures of one instance: path.Figure. */
enum gr_figure {
    GR_USABLE_BYTES,
    GR_GRANULE_BYTES,
    GR_CURRENT_EMB_BYTES,
    GR_MIN_EMB_PERCENT,
    GR_MAX_EMB_PERCENT,
    GR_CLAMP_PERCENT,
    GR_MS_PER_EMB_MISS_ROW,
    GR_MS_PER_KV_MISS_TOKEN,
    GR_EMB_ROWS_PER_KV_MISS_TOKEN,
    GR_BASE_SERVICE_MS,
    GR_SERVICE_VARIANCE_MS2,
    GR_ARRIVAL_PER_S,
    GR_EMB_ROWS_PER_REQUEST,
    GR_KV_TOKENS_PER_REQUEST,
    GR_KV_SIZE_CV2,
    GR_SMOOTHED_EMB_BYTES,
    GR_SMOOTHING,
    GR_EMB_VOLATILITY,
    GR_KV_VOLATILITY,
    GR_EMB_SAMPLES,
    GR_KV_SAMPLES,
    GR_OBSERVED_P99_MS,
    GR_UTILISATION,
    GR_UTILISATION_SLOW,
    GR_REFILL_BLOCKING,
    GR_BACKLOG_BYTES,
    GR_LAST_ACTION,
    GR_FIGURES
};

/* Rows of the results, each n doubles. Those from GR_OUTLIER on need a model. */
enum gr_result {
    GR_ANCHOR_EMB_BYTES,
    GR_ANCHOR_P99_MS,
    GR_SMOOTHED,
    GR_CURRENT_P99_MS,
    GR_OUTLIER,
    GR_ACTION,
    GR_EMB_BYTES,
    GR_CLAMPED,
    GR_P99_MS,
    GR_SMOOTHED_P99_MS,
    GR_RESULTS
};

/* A trained model as the core reads it: the weights of one input stand side by side, for all units of the layer. */
typedef struct {
    float w1[1984]; /* [GR_FEATURES][GR_HIDDEN] */
    float w2[4096]; /* [GR_HIDDEN][GR_HIDDEN] */
    float b1[64], b2[64], w3[64];
    float mean[31], scale[31], low[31], high[31];
    float b3;
    int from_anchor; /* the answer counts from the smoothed anchor, not from the split in force */
    double max_step_percent;
} gr_model;

/* Digest of the source that the core was made from. */
const char *gr_source_digest(void);

/* Evaluate n rows: curves of emb_points and kv_points doubles a row (no alignment needed), figures double[n][GR_FIGURES], results
 * double[GR_RESULTS][n], not a number from GR_OUTLIER on where there is no model, features float[n][GR_FEATURES].
 * Returns n, or the first row that the core leaves to numpy: a pool, bounds or a curve that are not as they should be. */
long gr_evaluate(long n, const char *emb_capacity, const char *emb_miss, long emb_points, const char *kv_capacity,
                 const char *kv_miss, long kv_points, const double *figures, const gr_model *model, double *results,
                 float *features);

/* table.AccessTable: three arrays of [sets][8], and how reuse times are binned. */
typedef struct {
    uint64_t *key;
    double *last_ms, *weight;
    long sets;
    int bins;
    double decay_ms, shortest_ms, log_step;
} gr_table;

/* Take in n accesses in order of time; add their bytes and the squares of these to double[bins + 1] by bin of reuse time. */
void gr_count(long n, const uint64_t *keys, const double *t_ms, const double *sizes, const gr_table *table, double *binned,
              double *squares);

/* Take in those of n sample records (contract.samples: three words of 64 bits each, as in memory) that are of this kind, if their
 * stamps rise: fade sums double[2][histograms][bins + 1] by keep double[2][histograms], then add bytes (first half) and squares
 * (second) to each. A record is of unit_bytes a unit, at its stamp + shift_ms, but never after now_ms. Writes to double out[3]: sum of
 * bytes, sum of their squares, last time. Returns their number, or -1 and has done nothing where the stamps do not rise. */
long gr_ingest(long n, const char *records, int kind, double unit_bytes, double shift_ms, double now_ms, const gr_table *table,
               int histograms, const double *keep, double *sums, double *out);

#endif
