// Maximum and minimum over edges, merged across blocks, and their gradients.
//
// The message of edge e in column f is v = w[e] * x[source, f], one rounded product (or x itself);
// whether it attains the extremum is found again in the gradients from the same product. A NaN
// message makes the result NaN, and it stays so: nothing equals it, so nothing gets its gradient.
// Messages that tie are counted; a message of -inf counts although the result starts there.
#pragma once

#include "common.h"

namespace fullgraph::FULLGRAPH_ISA {

template <bool largest, typename T>
inline bool better(T value, T best) {
    return largest ? value > best : value < best;
}

// Merges the messages of row i into out[t(i), :] and count[t(i), :].
template <bool largest, typename X, typename T>
void extremum_of(const EdgeRanges& edges, const X* x, Weights<T> w, T* out, int32_t* count,
                 int64_t num_cols) {
    const auto ask = [&](int64_t row) __attribute__((always_inline)) {
        prefetch_row(x, row, num_cols, 0, num_cols);
    };
    with_weight(w, [&](auto weight_of) {
        const auto of_rows = [&](int64_t first_row, int64_t last_row) {
            EdgeCursor ahead = ahead_of(edges, first_row, ask);
            for (int64_t i = first_row; i < last_row; ++i) {
                const EdgeCursor start = ahead;
                for_each_tile<T, 2>(num_cols, [&](int64_t first, int64_t done, auto width) {
                    constexpr int W = decltype(width)::value;
                    const int64_t at = target(edges, i) * num_cols + first;
                    T best[W];
                    int32_t ties[W];
                    for (int f = 0; f < W; ++f) best[f] = out[at + f];
                    for (int f = 0; f < W; ++f) ties[f] = count[at + f];
                    EdgeCursor later = start;
                    for (int64_t e = edges.begin[i]; e < edges.end[i]; ++e) {
                        prefetch_row(x, later.next(), num_cols, first, W);
                        const X* from = x + (edges.cols[e] - edges.col_offset) * num_cols + first;
                        const T weight = weight_of(e);
#pragma omp simd
                        for (int f = 0; f < W; ++f) {
                            const T value = weight * widen(from[f]);
                            const bool takes = better<largest>(value, best[f]) | (value != value);
                            const int32_t more = ties[f] + (value == best[f] ? 1 : 0);
                            ties[f] = takes ? 1 : more;
                            best[f] = takes ? value : best[f];
                        }
                    }
                    for (int64_t f = done; f < W; ++f) out[at + f] = best[f];
                    for (int64_t f = done; f < W; ++f) count[at + f] = ties[f];
                    ahead = later;
                });
            }
        };
        for_each_batch(edges.num_rows, edges.num_edges * num_cols, of_rows);
    });
}

template <typename X, typename T>
void extremum(const EdgeRanges& edges, const X* x, Weights<T> w, T* out, int32_t* count,
              int64_t num_cols, bool largest) {
    if (largest) {
        extremum_of<true>(edges, x, w, out, count, num_cols);
    } else {
        extremum_of<false>(edges, x, w, out, count, num_cols);
    }
}

// By source: dx[i, :] += sum over edges e of row i, to destination d = cols[e], of
// w[e] * share[d, :] where w[e] * x[i, :] == best[d, :].
template <typename X, typename T>
void extremum_grad_source(const EdgeRanges& edges, const X* x, Weights<T> w, const T* best,
                          const T* share, T* dx, int64_t num_cols) {
    const auto ask_for = [&](int64_t row, int64_t first, int64_t width)
                             __attribute__((always_inline)) {
        prefetch_row(best, row, num_cols, first, width);
        prefetch_row(share, row, num_cols, first, width);
    };
    with_weight(w, [&](auto weight_of) {
        const auto of_rows = [&](int64_t first_row, int64_t last_row) {
            EdgeCursor ahead =
                ahead_of(edges, first_row, [&](int64_t row) __attribute__((always_inline)) {
                    ask_for(row, 0, num_cols);
                });
            for (int64_t i = first_row; i < last_row; ++i) {
                if (edges.begin[i] == edges.end[i]) continue;
                const EdgeCursor start = ahead;
                for_each_tile<T, 2>(num_cols, [&](int64_t first, int64_t done, auto width) {
                    constexpr int W = decltype(width)::value;
                    T own[W];
                    for (int f = 0; f < W; ++f) own[f] = widen(x[i * num_cols + first + f]);
                    T* to = dx + i * num_cols + first;
                    EdgeCursor later = start;
                    for (int64_t e = edges.begin[i]; e < edges.end[i];) {
                        T sum[W] = {};
                        for (const int64_t stop = smaller(edges.end[i], e + kRun); e < stop; ++e) {
                            ask_for(later.next(), first, W);
                            const int64_t at = edges.cols[e] * num_cols + first;
                            const T weight = weight_of(e);
#pragma omp simd
                            for (int f = 0; f < W; ++f) {
                                const T value = weight * own[f];
                                sum[f] += value == best[at + f] ? weight * share[at + f] : T(0);
                            }
                        }
                        for (int64_t f = done; f < W; ++f) to[f] += sum[f];
                    }
                    ahead = later;
                });
            }
        };
        for_each_batch(edges.num_rows, edges.num_edges * num_cols, of_rows);
    });
}

// By destination: out[e] += sum over f of share[t(i), f] * x[source, f] where
// w[e] * x[source, f] == best[t(i), f].
template <typename X, typename T>
void extremum_grad_weight(const EdgeRanges& edges, const X* x, const T* weights, const T* best,
                          const T* share, T* out, int64_t num_cols) {
    const auto ask = [&](int64_t row) __attribute__((always_inline)) {
        prefetch_row(x, row, num_cols, 0, num_cols);
    };
    const auto of_rows = [&](int64_t first_row, int64_t last_row) {
        EdgeCursor ahead = ahead_of(edges, first_row, ask);
        for (int64_t i = first_row; i < last_row; ++i) {
            const int64_t at = target(edges, i) * num_cols;
            for (int64_t e = edges.begin[i]; e < edges.end[i]; ++e) {
                ask(ahead.next());
                const X* from = x + (edges.cols[e] - edges.col_offset) * num_cols;
                const T weight = weights[e];
                T sum = 0;
#pragma omp simd reduction(+ : sum)
                for (int64_t f = 0; f < num_cols; ++f) {
                    const T value = weight * widen(from[f]);
                    sum += value == best[at + f] ? share[at + f] * widen(from[f]) : T(0);
                }
                out[e] += sum;
            }
        }
    };
    for_each_batch(edges.num_rows, edges.num_edges * num_cols, of_rows);
}

}  // namespace fullgraph::FULLGRAPH_ISA
