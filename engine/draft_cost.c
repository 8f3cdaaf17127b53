#include "engine/draft_cost.h"

#include <math.h>

#include "kernels/base.h"

enum {
    SINGLE_BUCKETS = 8, /* row counts with a bucket of their own */
    FIRST_TIMES = 3,    /* the least of so many is where a bucket starts */
    HEARSAY_AGE = 8,    /* forwards after which a bucket with fewer is not believed any more */
    SETTLED_TIMES = 12, /* from then on a bucket's changes tell of the others */
    WEIGHT_MAX = 20,    /* times that count when neighbours are pooled */
};

#define RATE      0.08 /* of a new time in a bucket's mean */
#define CUT_ABOVE 1.5  /* times the mean: the most that one time says */
#define DRIFT     0.5  /* of a settled bucket's move, which the others make as well */

static uint32_t bucket_of(uint32_t n_rows) {
    if (n_rows <= SINGLE_BUCKETS) return n_rows - 1;
    uint32_t octave = 0, top = n_rows - 1; /* 9..16 -> octave 0, 17..32 -> 1 */
    while (top >= 2 * SINGLE_BUCKETS) {
        top >>= 1;
        octave++;
    }
    uint32_t bucket = SINGLE_BUCKETS + 4 * octave + (top - SINGLE_BUCKETS) / 2;
    return bucket < DRAFT_COST_BUCKETS ? bucket : DRAFT_COST_BUCKETS - 1;
}

/* What a bucket below all that are well measured is taken to cost: in proportion to the next. */
static double lowest_by_others(const struct draft_cost *cost, uint32_t bucket) {
    const struct draft_cost_bucket *b = cost->buckets;
    for (uint32_t i = bucket + 1; i < DRAFT_COST_BUCKETS; i++)
        if (b[i].n >= FIRST_TIMES) return b[i].us * b[bucket].rows / b[i].rows;
    return INFINITY;
}

/* Pool adjacent violators: blocks of buckets, each with its weighted mean, merged while a block is
 * dearer than the one after it. Every bucket keeps its own rows and takes its block's time. A bucket
 * that was hardly measured is held to what its rows can cost at most: in proportion. */
static void make_rising(struct draft_cost *cost) {
    double mean[DRAFT_COST_BUCKETS], weight[DRAFT_COST_BUCKETS];
    uint32_t size[DRAFT_COST_BUCKETS], n_blocks = 0;
    double rows_before = 0;
    cost->n_points = 0;
    for (uint32_t i = 0; i < DRAFT_COST_BUCKETS; i++) {
        const struct draft_cost_bucket *b = &cost->buckets[i];
        if (!b->n || (b->n < FIRST_TIMES && cost->n_measured - b->last > HEARSAY_AGE)) continue;
        double us = b->us;
        if (b->n < FIRST_TIMES) {
            double most = n_blocks > 0 ? mean[n_blocks - 1] * b->rows / rows_before
                                       : lowest_by_others(cost, i);
            if (us > most) us = most;
        }
        rows_before = b->rows;
        cost->rows[cost->n_points++] = b->rows;
        mean[n_blocks] = us;
        weight[n_blocks] = b->n < WEIGHT_MAX ? b->n : WEIGHT_MAX;
        size[n_blocks++] = 1;
        while (n_blocks > 1 && mean[n_blocks - 2] > mean[n_blocks - 1]) {
            uint32_t to = n_blocks - 2, from = n_blocks - 1;
            double sum = weight[to] + weight[from];
            mean[to] = (mean[to] * weight[to] + mean[from] * weight[from]) / sum;
            weight[to] = sum;
            size[to] += size[from];
            n_blocks--;
        }
    }
    for (uint32_t block = 0, at = 0; block < n_blocks; block++)
        for (uint32_t i = 0; i < size[block]; i++)
            cost->us[at++] = mean[block];
}

void draft_cost_measure(struct draft_cost *cost, uint32_t n_rows, double us) {
    ASSERT(n_rows > 0);
    if (!(us >= 1)) us = 1; /* the clock's grain */
    cost->n_measured++;
    struct draft_cost_bucket *b = &cost->buckets[bucket_of(n_rows)];
    b->last = cost->n_measured;
    if (b->n < FIRST_TIMES) {
        if (b->n == 0 || us < b->us) b->us = us;
        b->rows += (n_rows - b->rows) / (b->n + 1);
        b->n++;
    } else {
        double before = b->us;
        if (us > CUT_ABOVE * before) us = CUT_ABOVE * before;
        b->us += RATE * (us - before);
        b->rows += RATE * (n_rows - b->rows);
        if (b->n < SETTLED_TIMES) {
            b->n++;
        } else {
            if (b->n < WEIGHT_MAX) b->n++;
            double follow = 1 + DRIFT * (b->us / before - 1);
            for (uint32_t i = 0; i < DRAFT_COST_BUCKETS; i++)
                if (&cost->buckets[i] != b) cost->buckets[i].us *= follow;
        }
    }
    make_rising(cost);
}

double draft_cost_of(const struct draft_cost *cost, uint32_t n_rows) {
    if (n_rows == 0) return 0;
    uint32_t n = cost->n_points, i = 0;
    const double *x = cost->rows, *y = cost->us, r = n_rows;
    ASSERT(n > 0);
    if (r <= x[0]) return y[0] * r / x[0];
    while (i < n && x[i] < r)
        i++;
    if (i < n) return y[i - 1] + (y[i] - y[i - 1]) * (r - x[i - 1]) / (x[i] - x[i - 1]);
    uint32_t half = n - 1; /* the bucket an octave below the last */
    while (half > 0 && x[half] > x[n - 1] / 2)
        half--;
    bool tells = x[half] <= x[n - 1] / 2; /* closer ones differ by noise more than by rows */
    double slope = tells ? (y[n - 1] - y[half]) / (x[n - 1] - x[half]) : 0;
    return y[n - 1] + slope * (r - x[n - 1]);
}

double draft_cost_on_line(const struct draft_cost *cost, uint32_t n_rows) {
    const double *x = cost->rows, *y = cost->us;
    ASSERT(cost->n_points > 0);
    if (n_rows == 0 || n_rows >= x[0]) return draft_cost_of(cost, n_rows);
    uint32_t i = 0; /* an octave above the least, or the last */
    while (i + 1 < cost->n_points && x[i] < 2 * x[0])
        i++;
    double slope = i > 0 ? (y[i] - y[0]) / (x[i] - x[0]) : 0;
    return fmax(y[0] - slope * (x[0] - n_rows), y[0] * n_rows / x[0]);
}

uint32_t draft_cost_known(const struct draft_cost *cost) {
    return cost->n_points ? (uint32_t)(cost->rows[cost->n_points - 1] + 0.5) : 0;
}
