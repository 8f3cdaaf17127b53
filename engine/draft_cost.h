/* draft_cost.h: what a forward costs by its number of rows, as measured while it is used.
 *
 * Row counts fall into buckets (1 to 8 each their own, then four an octave). A bucket keeps the mean
 * of its rows and of its times. Each curve is made rising by pooling neighbours that are out of order
 * (isotonic regression by weights), then read by linear interpolation:
 *
 *   us |                     o           o measured     x pooled to one height
 *      |            o - - '
 *      |   x - x
 *      +-----------------------> rows
 *
 * Noise: the first times of a bucket count by their least (a cold cache, a page fault), later ones move
 * its mean slowly and are cut to at most half above it, so one outlier says nothing. What no bucket
 * knows is taken at its most favourable, so that it is tried and measured: below the least bucket the
 * cost shrinks with the rows, beyond the greatest it goes on as the last octave did (and stays where no whole octave is known). When a settled
 * bucket turns slower or faster (the texts grew longer) the others follow it a little. Engine thread
 * only; a plain struct that starts as zeros. */
#ifndef GERYON_DRAFT_COST_H
#define GERYON_DRAFT_COST_H

#include <stdbool.h>
#include <stdint.h>

enum { DRAFT_COST_BUCKETS = 64 };

struct draft_cost {
    struct draft_cost_bucket {
        double rows, us;  /* running means */
        uint32_t n, last; /* times, and which forward the last was */
    } buckets[DRAFT_COST_BUCKETS];
    uint32_t n_measured; /* forwards in all */
    uint32_t n_points;   /* the rising curve */
    double rows[DRAFT_COST_BUCKETS], us[DRAFT_COST_BUCKETS];
};

/* A forward of n_rows > 0 took this long. */
void draft_cost_measure(struct draft_cost *cost, uint32_t n_rows, double us);
/* Microseconds of a forward of n_rows; 0 for none. Only once something was measured. */
double draft_cost_of(const struct draft_cost *cost, uint32_t n_rows);
/* The same, but below the least bucket as the lowest octave goes: a guess at what will not be tried. */
double draft_cost_on_line(const struct draft_cost *cost, uint32_t n_rows);
/* The most rows that were measured; 0: nothing was. */
uint32_t draft_cost_known(const struct draft_cost *cost);

#endif
