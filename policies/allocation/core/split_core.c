/* See split_core.h. Compile with -ffp-contract=off: a fused multiply-add would round otherwise than numpy does, and the choice
 * among equally good splits hangs on the last digit. No -ffast-math: not a number has to stay not a number. */

#include "split_core.h"

#include <float.h>
#include <math.h>
#include <string.h>

#if FLT_EVAL_METHOD != 0 || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "needs plain double arithmetic and little-endian numbers; numpy decides on other machines"
#endif

static const double Z99 = 2.3263478740408408;
static const double SATURATION = 0.95, OVERLOAD_MS = 10000.0, INDIFFERENT = 0.002, TINY_MS = 1e-9;
static const double LOG10_E = 0.4342944819032518;
static const double MOST_RATIO = 5.0, MOST_SURPRISE = 2.0;                 /* features.py */
static const double WIDEN_PER_VOLATILITY = 40.0, MOST_WIDENING = 4.0;      /* base.py */
static const float MOST_DEVIATIONS = 8.0f;                                 /* base.py */
static const double PROBE_OFFSETS[GR_PROBES] = {-0.10, -0.05, 0.0, 0.05, 0.10};
enum { HERE = 2 };

/* As numpy.maximum and numpy.minimum: not a number wins. */
static inline double most(double a, double b) { return a < b || b != b ? b : a; }
static inline double least(double a, double b) { return a > b || b != b ? b : a; }
/* The same where b is a constant. */
static inline double at_least(double a, double b) { return a < b ? b : a; }
static inline double at_most(double a, double b) { return a > b ? b : a; }

static inline double get(const char *packed, int i) {
    double value;
    memcpy(&value, packed + sizeof value * (size_t)i, sizeof value);
    return value;
}

typedef struct {
    const char *capacity, *miss;
    long points;
} curve;

/* Whether capacities are numbers that do not fall. */
static int rises(curve c) {
    if (c.points < 1) return 0;
    int ok = get(c.capacity, 0) == get(c.capacity, 0);
    for (long i = 1; i < c.points; i++) ok &= get(c.capacity, i) >= get(c.capacity, i - 1);
    return ok;
}

/* numpy.interp at m capacities that rise (step 1) or fall (step -1). */
static void curve_at(curve c, int m, const double *at, int step, double *out) {
    long j = -1; /* last point at or below the capacity */
    for (int k = 0; k < m; k++) {
        int i = step > 0 ? k : m - 1 - k;
        double x = at[i];
        while (j + 1 < c.points && get(c.capacity, j + 1) <= x) j++;
        if (x != x && c.points > 1) {
            out[i] = x;
        } else if (j < 0) {
            out[i] = get(c.miss, 0);
        } else if (j >= c.points - 1) {
            out[i] = get(c.miss, c.points - 1);
        } else {
            double left = get(c.capacity, j), right = get(c.capacity, j + 1), high = get(c.miss, j), low = get(c.miss, j + 1);
            double slope = (low - high) / (right - left);
            double y = left == x ? high : slope * (x - left) + high;
            if (y != y && left != x) { /* infinite capacities: from the other side, as numpy does */
                y = slope * (x - right) + low;
                if (y != y && low == high) y = high;
            }
            out[i] = y;
        }
    }
}

static inline double gamma_p99(double mean, double deviation) {
    double ratio = at_most(deviation / mean, 1.5 * Z99);
    double root = 1.0 + ratio * (Z99 / 3.0 - ratio / 9.0);
    return mean * root * root * root;
}

/* anchor.predict_p99_ms, for pairs of splits: the one at a time that would follow is more code to be fetched. */
static void predict(int pairs, const double *restrict emb_miss, const double *restrict kv_miss, const double *restrict f,
                    double *restrict p99) {
    const double ms_per_row = f[GR_MS_PER_EMB_MISS_ROW], ms_per_token = f[GR_MS_PER_KV_MISS_TOKEN], cv2 = f[GR_KV_SIZE_CV2];
    const double again = f[GR_EMB_ROWS_PER_KV_MISS_TOKEN], base = f[GR_BASE_SERVICE_MS], base_var = f[GR_SERVICE_VARIANCE_MS2];
    const double rows = f[GR_EMB_ROWS_PER_REQUEST], tokens = f[GR_KV_TOKENS_PER_REQUEST], per_ms = f[GR_ARRIVAL_PER_S] / 1000.0;
    const double spread = 1.0 + cv2, spread3 = 1.0 + 2.0 * cv2;
    for (int i = 0; i < 2 * pairs; i++) {
        double row_ms = ms_per_row * emb_miss[i];
        double fixed = base + rows * row_ms;
        double history = tokens * (ms_per_token + again * row_ms);
        double x1 = kv_miss[i] * history;
        double x2 = x1 * history * spread;
        double x3 = x2 * history * spread3;
        double s1 = at_least(fixed + x1, TINY_MS);
        double s2 = fixed * (fixed + 2.0 * x1) + x2 + base_var;
        double s3 = fixed * (fixed * (fixed + 3.0 * x1) + 3.0 * x2) + x3 + 3.0 * base_var * s1;
        double load = s1 * per_ms;
        double served = at_most(load, SATURATION);
        double per_ms_idle = served / (s1 * (1.0 - served));
        double wait1 = 0.5 * per_ms_idle * s2;
        double wait2 = 2.0 * wait1 * wait1 + per_ms_idle * s3 / 3.0;
        double excess = at_least(x1 + wait1, TINY_MS);
        double wait_var = at_least(wait2 - wait1 * wait1, 0.0);
        double deviation = sqrt(at_least(s2 - s1 * s1, 1e-12) + wait_var);
        double tail = most(fixed + gamma_p99(excess, deviation), gamma_p99(fixed + excess, deviation));
        double lost = at_least(history + wait1, TINY_MS);
        tail = least(tail, fixed + gamma_p99(lost, sqrt(cv2 * history * history + base_var + wait_var)));
        p99[i] = tail + OVERLOAD_MS * (load - served);
    }
}

/* Miss ratios of both caches and predicted P99 at m splits, in rising order. */
typedef struct {
    curve emb, kv;
    double f[GR_FIGURES];
} row;

static void predict_at(const row *r, int m, const double *emb_bytes, double *emb_miss, double *kv_miss, double *p99) {
    for (int i = 0; i < m; i++) kv_miss[i] = r->f[GR_USABLE_BYTES] - emb_bytes[i];
    curve_at(r->emb, m, emb_bytes, 1, emb_miss);
    curve_at(r->kv, m, kv_miss, -1, kv_miss); /* in place */
    if (m & 1) { /* pairs are calculated side by side */
        emb_miss[m] = emb_miss[m - 1];
        kv_miss[m] = kv_miss[m - 1];
    }
    predict((m + 1) / 2, emb_miss, kv_miss, r->f, p99);
}

/* anchor.split_grid: how many splits to try, or -1 where numpy has to say what is wrong. */
static int split_grid(const double *f, double *grid) {
    const double usable = f[GR_USABLE_BYTES], granule = f[GR_GRANULE_BYTES];
    const double low = f[GR_MIN_EMB_PERCENT], high = f[GR_MAX_EMB_PERCENT];
    if (!(granule >= 1.0 && usable >= 2.0 * granule && usable < 2251799813685248.0)) return -1;
    if (usable != floor(usable) || granule != floor(granule) || !(low >= 0.0 && low <= high && high <= 100.0)) return -1;
    const double last = floor(usable / granule) - 1.0; /* exact: both are whole and below 2^51 */
    const double lowest = fmin(fmax(ceil(low * usable / 100.0 / granule - 1e-9), 1.0), last);
    const double highest = fmax(fmin(floor(high * usable / 100.0 / granule + 1e-9), last), lowest);
    const int count = (int)(high - low + 1e-9) + 1;
    const double per_percent = usable / 100.0 / granule;
    const double round = 6755399441055744.0; /* 1.5 * 2^52: rounds to the nearest, ties to even */
    int m = 0;
    for (int i = 0; i < count; i++) {
        double percent = low + (double)i;
        double size = at_most(at_least((percent * per_percent + round) - round, lowest), highest) * granule;
        if (m == 0 || size != grid[m - 1]) grid[m++] = size;
    }
    return m;
}

/* path._nearest_good */
static int nearest_good(int m, const double *grid, const double *p99, double current) {
    double bound = p99[0];
    for (int i = 1; i < m; i++) bound = least(bound, p99[i]);
    bound *= 1.0 + INDIFFERENT;
    int best = 0;
    double nearest = INFINITY;
    for (int i = 0; i < m; i++) {
        double distance = fabs(grid[i] - current);
        if (p99[i] <= bound && distance < nearest) best = i, nearest = distance;
    }
    return best;
}

/* What features.py calls a Situation, as far as it is not a figure. */
typedef struct {
    double anchor, smoothed, anchor_p99;
    double emb_miss[GR_PROBES + 1], kv_miss[GR_PROBES + 1], p99[GR_PROBES + 1];
} probed;


/* Natural logarithms of m numbers, to 1e-15: x = 2^k f with f in [sqrt(1/2), sqrt(2)), and the series of 2 atanh((f-1) / (f+1)).
 * Not for subnormal numbers. Those of the library lie in other pages, with tables: 2 us more of 15 from a cold cache. */
static void logarithms(int m, const double *restrict x, double *restrict out) {
    for (int i = 0; i < m; i++) {
        union {
            double number;
            uint64_t bits;
        } u = {.number = x[i]}, f;
        uint64_t shifted = u.bits - 0x3FE6A09E667F3BCDu; /* sqrt(1/2) */
        int64_t k = (int64_t)shifted >> 52;
        f.bits = u.bits - ((uint64_t)k << 52);
        double s = (f.number - 1.0) / (f.number + 1.0), z = s * s;
        double series = 1.0 / 13 + z * (1.0 / 15 + z * (1.0 / 17 + z * (1.0 / 19 + z * (1.0 / 21 + z / 23))));
        series = 1.0 + z * (1.0 / 3 + z * (1.0 / 5 + z * (1.0 / 7 + z * (1.0 / 9 + z * (1.0 / 11 + z * series)))));
        double y = (double)k * 0.6931471805599453 + 2.0 * s * series;
        if (!(x[i] > 0.0)) y = x[i] == 0.0 ? -INFINITY : NAN;
        if (x[i] == INFINITY) y = x[i];
        out[i] = y;
    }
}

static inline double clip(double x, double most_) { return at_most(at_least(x, -most_), most_); }

/* features.features */
static void featurise(const double *f, const probed *s, float *x) {
    const double usable = f[GR_USABLE_BYTES], emb_share = f[GR_CURRENT_EMB_BYTES] / usable;
    const double emb_miss = s->emb_miss[HERE], kv_miss = s->kv_miss[HERE], here = at_least(s->p99[HERE], TINY_MS);
    const double rows = f[GR_EMB_ROWS_PER_REQUEST], tokens = f[GR_KV_TOKENS_PER_REQUEST];
    const double row_ms = f[GR_MS_PER_EMB_MISS_ROW] * emb_miss, rows_ms = rows * row_ms;
    const double again = f[GR_EMB_ROWS_PER_KV_MISS_TOKEN] * tokens * kv_miss;
    const double history_ms = tokens * f[GR_MS_PER_KV_MISS_TOKEN] * kv_miss + again * row_ms;
    const double service_ms = at_least(f[GR_BASE_SERVICE_MS] + rows_ms + history_ms, TINY_MS);
    const double emb_fall = at_least(emb_miss - s->emb_miss[HERE + 1], 0.0);
    const double kv_rise = at_least(s->kv_miss[HERE + 1] - kv_miss, 0.0);
    const double emb_gain_ms = (rows + again) * f[GR_MS_PER_EMB_MISS_ROW] * emb_fall;
    const double token_ms = f[GR_MS_PER_KV_MISS_TOKEN] + f[GR_EMB_ROWS_PER_KV_MISS_TOKEN] * row_ms;
    const double kv_loss_ms = tokens * token_ms * kv_rise, floor_ms = 1e-6 * service_ms;
    const double observed = f[GR_OBSERVED_P99_MS], used = f[GR_UTILISATION], usual = f[GR_UTILISATION_SLOW];
    enum { ANCHOR, FAR_DOWN, DOWN, UP, FAR_UP, GHOST, TREND, ROWS, TOKENS, HISTORY, SERVICE, SAMPLES, SURPRISE, LOGARITHMS };
    const double of[LOGARITHMS + 1] = {
        here / at_least(s->anchor_p99, TINY_MS),
        at_least(s->p99[0], TINY_MS) / here,
        at_least(s->p99[1], TINY_MS) / here,
        at_least(s->p99[3], TINY_MS) / here,
        at_least(s->p99[4], TINY_MS) / here,
        (emb_gain_ms + floor_ms) / (kv_loss_ms + floor_ms),
        at_least(used, 1e-6) / at_least(usual, 1e-6),
        1.0 + rows,
        1.0 + tokens,
        1.0 + f[GR_KV_SIZE_CV2],
        1.0 + f[GR_SERVICE_VARIANCE_MS2] / (service_ms * service_ms),
        1.0 + least(f[GR_EMB_SAMPLES], f[GR_KV_SAMPLES]),
        observed != observed ? 1.0 : at_least(observed, TINY_MS) / here,
    };
    double ln[LOGARITHMS + 1]; /* an even number: pairs are calculated side by side */
    logarithms(LOGARITHMS + 1, of, ln);
    const double columns[GR_FEATURES] = {
        emb_share,
        s->anchor / usable - emb_share,
        s->smoothed / usable - emb_share,
        ln[ANCHOR],
        emb_miss,
        kv_miss,
        emb_fall,
        kv_rise,
        ln[FAR_DOWN],
        ln[DOWN],
        ln[UP],
        ln[FAR_UP],
        clip(ln[GHOST], MOST_RATIO),
        f[GR_ARRIVAL_PER_S] * service_ms / 1000.0,
        used,
        clip(ln[TREND], MOST_SURPRISE),
        f[GR_BASE_SERVICE_MS] / service_ms,
        rows_ms / service_ms,
        history_ms / service_ms,
        ln[ROWS] * LOG10_E,
        ln[TOKENS] * LOG10_E,
        ln[HISTORY],
        ln[SERVICE],
        again / at_least(rows + again, TINY_MS),
        f[GR_EMB_VOLATILITY],
        f[GR_KV_VOLATILITY],
        ln[SAMPLES] * LOG10_E,
        clip(ln[SURPRISE], MOST_SURPRISE),
        f[GR_REFILL_BLOCKING],
        f[GR_BACKLOG_BYTES] / usable,
        f[GR_LAST_ACTION],
    };
    for (int i = 0; i < GR_FEATURES; i++) x[i] = (float)columns[i];
}

/* tanh of a whole layer, to 2e-7: 1 - 2 / (exp(2 x) + 1), with 2^fraction by its series and 2^whole by the exponent's bits. */
static void tanh_layer(const float *restrict x, float *restrict y) {
    for (int i = 0; i < GR_HIDDEN; i++) {
        float t = x[i] * 2.885390081777927f; /* 2 / ln 2 */
        t = t < -30.0f ? -30.0f : t;
        t = t > 30.0f ? 30.0f : t;
        float shifted = t + 12582912.0f; /* 1.5 * 2^23: to the nearest whole number */
        float part = t - (shifted - 12582912.0f);
        union {
            float number;
            unsigned bits;
        } whole = {.number = shifted}, power;
        power.bits = (whole.bits - 0x4B400000u + 127u) << 23;
        float e = 1.0f + part * (0.6931472f + part * (0.2402265f + part * (0.05550411f + part * (0.009618129f
                  + part * (0.0013333558f + part * 0.00015403530f)))));
        float value = 1.0f - 2.0f / (e * power.number + 1.0f);
        y[i] = x[i] != x[i] ? x[i] : value;
    }
}

static void dense(int inputs, const float *restrict w, const float *restrict b, const float *restrict x, float *restrict y) {
    float sum[GR_HIDDEN];
    memcpy(sum, b, sizeof sum);
    for (int i = 0; i < inputs; i++)
        for (int j = 0; j < GR_HIDDEN; j++) sum[j] += x[i] * w[i * GR_HIDDEN + j];
    tanh_layer(sum, y);
}

/* base.act */
static double act(const gr_model *model, const float *x) {
    float z[GR_FEATURES], first[GR_HIDDEN], second[GR_HIDDEN];
    for (int i = 0; i < GR_FEATURES; i++) {
        float v = (x[i] - model->mean[i]) / model->scale[i];
        v = v < -MOST_DEVIATIONS ? -MOST_DEVIATIONS : v;
        z[i] = v > MOST_DEVIATIONS ? MOST_DEVIATIONS : v;
    }
    dense(GR_FEATURES, model->w1, model->b1, z, first);
    dense(GR_HIDDEN, model->w2, model->b2, first, second);
    float sum = model->b3;
    for (int i = 0; i < GR_HIDDEN; i++) sum += second[i] * model->w3[i];
    return clip((double)sum, 1.0);
}

/* base.out_of_distribution */
static int outlier(const gr_model *model, const float *x) {
    for (int i = 0; i < GR_FEATURES; i++)
        if (!(x[i] >= model->low[i] && x[i] <= model->high[i])) return i;
    return -1;
}

/* path._ask */
static void ask(const row *r, const gr_model *model, double smoothed, const float *x, double *results, long n) {
    const double *f = r->f, points = f[GR_USABLE_BYTES] / 100.0, action = act(model, x);
    const double origin = model->from_anchor ? smoothed : f[GR_CURRENT_EMB_BYTES];
    const double asked = origin + action * model->max_step_percent * points;
    const double wanted = least(most(asked, f[GR_MIN_EMB_PERCENT] * points), f[GR_MAX_EMB_PERCENT] * points);
    const double volatility = most(f[GR_EMB_VOLATILITY], f[GR_KV_VOLATILITY]);
    const double width = f[GR_CLAMP_PERCENT] * at_most(1.0 + WIDEN_PER_VOLATILITY * volatility, MOST_WIDENING) * points;
    const double emb_bytes = least(most(wanted, smoothed - width), smoothed + width);
    double emb_miss[2], kv_miss[2], p99[2];
    predict_at(r, 1, &emb_bytes, emb_miss, kv_miss, p99);
    results[GR_P99_MS * n] = p99[0];
    predict_at(r, 1, &smoothed, emb_miss, kv_miss, p99);
    results[GR_SMOOTHED_P99_MS * n] = p99[0];
    results[GR_OUTLIER * n] = (double)outlier(model, x);
    results[GR_ACTION * n] = action;
    results[GR_EMB_BYTES * n] = emb_bytes;
    results[GR_CLAMPED * n] = emb_bytes != wanted;
}

/* path.evaluate, one row; 0 where numpy has to. */
static int evaluate(const row *r, const gr_model *model, double *results, long n, float *x) {
    double grid[GR_MOST_SPLITS + 1], emb_miss[GR_MOST_SPLITS + 1], kv_miss[GR_MOST_SPLITS + 1], p99[GR_MOST_SPLITS + 1];
    double probes[GR_PROBES];
    const double *f = r->f, usable = f[GR_USABLE_BYTES], current = f[GR_CURRENT_EMB_BYTES];
    const int m = split_grid(f, grid);
    if (m < 1 || !(current >= 0.0 && current <= usable) || !rises(r->emb) || !rises(r->kv)) return 0;
    predict_at(r, m, grid, emb_miss, kv_miss, p99);
    const int best = nearest_good(m, grid, p99, current);
    const double low = least(grid[0], current), high = most(grid[m - 1], current), before = f[GR_SMOOTHED_EMB_BYTES];
    for (int i = 0; i < GR_PROBES; i++) probes[i] = least(most(current + usable * PROBE_OFFSETS[i], low), high);
    probed s = {.anchor = grid[best], .anchor_p99 = p99[best]};
    predict_at(r, GR_PROBES, probes, s.emb_miss, s.kv_miss, s.p99);
    s.smoothed = before != before ? s.anchor : before + (s.anchor - before) * f[GR_SMOOTHING];
    results[GR_ANCHOR_EMB_BYTES * n] = s.anchor;
    results[GR_ANCHOR_P99_MS * n] = s.anchor_p99;
    results[GR_SMOOTHED * n] = s.smoothed;
    results[GR_CURRENT_P99_MS * n] = s.p99[HERE];
    if (model) {
        featurise(f, &s, x);
        ask(r, model, s.smoothed, x, results, n);
    } else {
        for (int i = GR_OUTLIER; i < GR_RESULTS; i++) results[i * n] = NAN;
    }
    return 1;
}

/* An agent decides ten times a second and finds its model thrown out of the processor's cache each time: fetch it meanwhile. */
static void fetch(const void *memory, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char *)memory + i);
}

long gr_evaluate(long n, const char *emb_capacity, const char *emb_miss, long emb_points, const char *kv_capacity,
                 const char *kv_miss, long kv_points, const double *figures, const gr_model *model, double *results,
                 float *features) {
    if (model) fetch(model, sizeof *model);
    for (long i = 0; i < n; i++) {
        const size_t emb_at = sizeof(double) * (size_t)(i * emb_points), kv_at = sizeof(double) * (size_t)(i * kv_points);
        row r = {{emb_capacity + emb_at, emb_miss + emb_at, emb_points}, {kv_capacity + kv_at, kv_miss + kv_at, kv_points}, {0}};
        memcpy(r.f, figures + i * GR_FIGURES, sizeof r.f);
        if (!evaluate(&r, model, results + i, n, features + i * GR_FEATURES)) return i;
    }
    return n;
}

const char *gr_source_digest(void) { return GR_SOURCE_DIGEST; }
