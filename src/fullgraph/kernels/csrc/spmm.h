// Sums over edges (sparse times dense), and the gradient of their weights (sampled dense-dense).
//
// Edge cases: a row without edges gives 0 (or leaves the output as it is, when accumulating); no
// columns, nothing happens.
#pragma once

#include "common.h"

namespace fullgraph::FULLGRAPH_ISA {

// out[t(i), :] (+)= sum over edges e of row i of w[e] * x[cols[e] - col_offset, :].
template <typename X, typename T>
void spmm(const EdgeRanges& edges, const X* x, Weights<T> w, T* out, int64_t num_cols,
          bool accumulate) {
    const auto ask = [&](int64_t row) __attribute__((always_inline)) {
        prefetch_row(x, row, num_cols, 0, num_cols);
    };
    with_weight(w, [&](auto weight_of) {
        const auto sum_rows = [&](int64_t first_row, int64_t last_row) {
            EdgeCursor ahead = ahead_of(edges, first_row, ask);
            for (int64_t i = first_row; i < last_row; ++i) {
                const int64_t begin = edges.begin[i], end = edges.end[i];
                if (begin == end && accumulate) continue;
                if (accumulate) {
                    const int64_t later = smaller(i + kRowsAhead, edges.num_rows - 1);
                    prefetch_row(out, target(edges, later), num_cols, 0, num_cols);
                }
                const EdgeCursor start = ahead;
                for_each_tile<T, 1>(num_cols, [&](int64_t first, int64_t done, auto width) {
                    constexpr int W = decltype(width)::value;
                    T* to = out + target(edges, i) * num_cols + first;
                    EdgeCursor later = start;
                    int64_t e = begin;
                    do {
                        T sum[W] = {};
                        const bool add = accumulate || e > begin;
                        for (const int64_t stop = smaller(end, e + kRun); e < stop; ++e) {
                            prefetch_row(x, later.next(), num_cols, first, W);
                            const X* from = x + (edges.cols[e] - edges.col_offset) * num_cols + first;
                            const T weight = weight_of(e);
#pragma omp simd
                            for (int f = 0; f < W; ++f) sum[f] += weight * widen(from[f]);
                        }
                        if (add) {
                            for (int64_t f = done; f < W; ++f) to[f] += sum[f];
                        } else {
                            for (int64_t f = done; f < W; ++f) to[f] = sum[f];
                        }
                    } while (e < end);
                    ahead = later;
                });
            }
        };
        for_each_batch(edges.num_rows, edges.num_edges * num_cols, sum_rows);
    });
}

// out[e] += <grad[t(i), :], x[cols[e] - col_offset, :]> for every edge e of row i.
template <typename X, typename T>
void sddmm(const EdgeRanges& edges, const X* x, const T* grad, T* out, int64_t num_cols) {
    const auto ask = [&](int64_t row) __attribute__((always_inline)) {
        prefetch_row(x, row, num_cols, 0, num_cols);
    };
    for_each_batch(edges.num_rows, edges.num_edges * num_cols, [&](int64_t first, int64_t last) {
        EdgeCursor ahead = ahead_of(edges, first, ask);
        for (int64_t i = first; i < last; ++i) {
            const T* g = grad + target(edges, i) * num_cols;
            for (int64_t e = edges.begin[i]; e < edges.end[i]; ++e) {
                ask(ahead.next());
                const X* from = x + (edges.cols[e] - edges.col_offset) * num_cols;
                T sum = 0;
#pragma omp simd reduction(+ : sum)
                for (int64_t f = 0; f < num_cols; ++f) sum += g[f] * widen(from[f]);
                out[e] += sum;
            }
        }
    });
}

}  // namespace fullgraph::FULLGRAPH_ISA
