// Dense products of a tall matrix, n rows of a few hundred columns, with weights that stay in cache,
// straight into memory that is there: torch's own make a new matrix of n rows for every product.
//
// Letters: n rows, K and G columns. A tile of the result, kTileRows x tile_columns<T>(), stays in
// registers. What it is multiplied with is packed into panels of that many columns, [K, columns],
// filled up with zeros.
#pragma once

#include "vectors.h"

namespace fullgraph::FULLGRAPH_ISA {

constexpr int kTileRows = 6;
constexpr int kTileVectors = kVectorBytes == 64 ? 4 : 2;  // of 32 or of 16 registers
constexpr int64_t kRowsAtOnce = 16 * kTileRows;           // that use a panel while it is in cache
constexpr int64_t kTilesAhead = 4;                        // that memory is asked for
constexpr int64_t kDepth = 256;                           // rows of a panel that is made on the way
constexpr int64_t kSegments = 64;  // of n, summed each for itself: any number of threads, one result

template <typename T>
constexpr int tile_columns() {
    return kTileVectors * (kVectorBytes / int(sizeof(T)));
}

inline int64_t rounded_up(int64_t count, int64_t unit) { return (count + unit - 1) / unit; }

// Panels of the columns first .. of a matrix whose element (k, j) is b[k * b_k + j * b_j].
template <typename T>
class Panels {
public:
    Panels(int64_t depth, int64_t num_columns)
        : depth_(depth), num_columns_(num_columns),
          values_(rounded_up(num_columns, tile_columns<T>()) * tile_columns<T>() * depth) {}

    // The first `depth` rows of it; depth is at most that of the constructor.
    void pack(const T* b, int64_t b_k, int64_t b_j, int64_t depth) {
        constexpr int64_t C = tile_columns<T>();
        for (int64_t first = 0; first < num_columns_; first += C) {
            const int64_t width = smaller(C, num_columns_ - first);
            T* panel = values_.get() + first * depth_;
            for (int64_t k = 0; k < depth; ++k) {
                for (int64_t j = 0; j < width; ++j) {
                    panel[k * C + j] = b[k * b_k + (first + j) * b_j];
                }
                for (int64_t j = width; j < C; ++j) panel[k * C + j] = 0;
            }
        }
    }

    // The panel that begins with this column.
    const T* at(int64_t column) const { return values_.get() + column * depth_; }

private:
    int64_t depth_, num_columns_;
    Scratch<T> values_;
};

// What comes after a tile, asked for while that is worked on, a step of bytes for each k: memory that
// will be read, and memory that will be written to, or just read.
struct Upcoming {
    const void* read;
    int64_t read_step;
    const void* write;
    int64_t write_step;

    void ask_for(int64_t k) const {  // a prefetch cannot fault
        __builtin_prefetch(reinterpret_cast<const void*>(uintptr_t(read) + k * read_step));
        __builtin_prefetch(reinterpret_cast<const void*>(uintptr_t(write) + k * write_step), 1);
    }
};

// sum[r, c] = Σ_k a[r * a_row + k * a_k] panel[k, c] for R rows and the first V vectors of columns.
template <int R, int V, typename T>
inline void tile_product(const T* a, int64_t a_row, int64_t a_k, const T* panel, int64_t depth,
                         T* sum, const Upcoming& upcoming) {
    constexpr int lanes = kVectorBytes / int(sizeof(T));
    Vector<T, lanes> sums[R][V] = {};
    for (int64_t k = 0; k < depth; ++k) {
        Vector<T, lanes> b[V];
        upcoming.ask_for(k);
        unroll<V>([&](auto v) { b[v] = load<lanes>(panel + v * lanes); });
        unroll<R>([&](auto r) {
            const T x = a[r * a_row + k * a_k];
            unroll<V>([&](auto v) { sums[r][v] += x * b[v]; });
        });
        panel += tile_columns<T>();
    }
    unroll<R>([&](auto r) {
        unroll<V>([&](auto v) {
            store<lanes>(sum + r * tile_columns<T>() + v * lanes, sums[r][v]);
        });
    });
}

// The same for up to kTileRows rows, and as many vectors as this many columns take.
template <int V, typename T>
inline void tile(int64_t rows, int64_t columns, const T* a, int64_t a_row, int64_t a_k,
                 const T* panel, int64_t depth, T* sum, const Upcoming& upcoming) {
    if constexpr (V > 1) {
        if (columns * int64_t(sizeof(T)) <= (V - 1) * kVectorBytes) {
            return tile<V - 1>(rows, columns, a, a_row, a_k, panel, depth, sum, upcoming);
        }
    }
    while (rows > 0) {
        const int64_t done = rows >= kTileRows ? kTileRows : rows >= 3 ? 3 : rows;
        if (done == kTileRows) tile_product<kTileRows, V>(a, a_row, a_k, panel, depth, sum, upcoming);
        if (done == 3) tile_product<3, V>(a, a_row, a_k, panel, depth, sum, upcoming);
        if (done == 2) tile_product<2, V>(a, a_row, a_k, panel, depth, sum, upcoming);
        if (done == 1) tile_product<1, V>(a, a_row, a_k, panel, depth, sum, upcoming);
        rows -= done;
        a += done * a_row;
        sum += done * tile_columns<T>();
    }
}

// out[i, j] = Σ_k x[i, k] w[k * w_k + j * w_j], plus bias[j] if any; without one, added to out if
// `accumulate`. An element's sum runs over k in order, wherever its row is.
template <typename T>
void dense(const T* x, const T* w, int64_t w_k, int64_t w_j, const T* bias, T* out, int64_t num_rows,
           int64_t depth, int64_t num_columns, bool accumulate) {
    constexpr int64_t C = tile_columns<T>();
    Panels<T> panels(depth, num_columns);
    panels.pack(w, w_k, w_j, depth);
    const int64_t row_step = kTileRows * sizeof(T);
    const int64_t out_step = row_step * num_columns / larger(1, depth);
    const auto rows_at_once = [&](int64_t group) {
        const int64_t last = smaller(num_rows, (group + 1) * kRowsAtOnce);
        for (int64_t first = 0; first < num_columns; first += C) {
            const int64_t width = smaller(C, num_columns - first);
            for (int64_t i = group * kRowsAtOnce; i < last; i += kTileRows) {
                T sum[kTileRows * C];
                const int64_t rows = smaller(kTileRows, last - i);
                // The first panel's tiles ask for rows, those of others find them in cache.
                const int64_t later = i + kTilesAhead * kTileRows;
                const Upcoming upcoming =
                    first > 0 ? Upcoming{sum, 0, sum, 0}
                              : Upcoming{x + later * depth, row_step, out + later * num_columns, out_step};
                tile<kTileVectors>(rows, width, x + i * depth, depth, 1, panels.at(first), depth, sum,
                                   upcoming);
                for (int64_t r = 0; r < rows; ++r) {
                    T* to = out + (i + r) * num_columns + first;
                    const T* from = sum + r * C;
                    if (accumulate) {
                        for (int64_t j = 0; j < width; ++j) to[j] += from[j];
                    } else if (bias != nullptr) {
                        for (int64_t j = 0; j < width; ++j) to[j] = from[j] + bias[first + j];
                    } else {
                        for (int64_t j = 0; j < width; ++j) to[j] = from[j];
                    }
                }
            }
        }
    };
    for_each_row(rounded_up(num_rows, kRowsAtOnce), num_rows * num_columns, rows_at_once);
}

// sums[i] += Σ_r a[r, i] for a [rows, G].
template <typename T>
inline void add_rows(const T* a, int64_t rows, int64_t num_a, T* sums) {
    for_each_tile<T, 1>(num_a, [&](int64_t first, int64_t done, auto width) {
        constexpr int W = decltype(width)::value;
        T sum[W] = {};
        for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
            for (int f = 0; f < W; ++f) sum[f] += a[r * num_a + first + f];
        }
        for (int64_t f = done; f < W; ++f) sums[first + f] += sum[f];
    });
}

// out[i, j] = Σ_r a[r, i] b[r, j] for a [n, G], b [n, K]: what weights get of a gradient; and what
// biases get, sums[i] = Σ_r a[r, i], unless null.
template <typename T>
void dense_weight_grad(const T* a, const T* b, T* out, T* sums, int64_t num_rows, int64_t num_a,
                       int64_t num_b) {
    constexpr int64_t C = tile_columns<T>();
    const int64_t segment = larger(1, rounded_up(rounded_up(num_rows, kSegments), kDepth)) * kDepth;
    const int64_t num_segments = larger(1, rounded_up(num_rows, segment));
    const int64_t size = num_a * (num_b + 1);
    const Scratch<T> partial(num_segments * size);
    for_each_row(num_segments, num_rows * num_a, [&](int64_t s) {
        T* into = partial.get() + s * size;
        T* into_sums = into + num_a * num_b;
        for (int64_t e = 0; e < size; ++e) into[e] = 0;
        Panels<T> panels(kDepth, num_b);
        const int64_t end = smaller(num_rows, (s + 1) * segment);
        for (int64_t row = s * segment; row < end; row += kDepth) {
            const int64_t depth = smaller(kDepth, end - row);
            if (sums) add_rows(a + row * num_a, depth, num_a, into_sums);
            panels.pack(b + row * num_b, num_b, 1, depth);
            for (int64_t first = 0; first < num_b; first += C) {
                const int64_t width = smaller(C, num_b - first);
                for (int64_t i = 0; i < num_a; i += kTileRows) {
                    T sum[kTileRows * C];
                    const int64_t rows = smaller(kTileRows, num_a - i);
                    const Upcoming upcoming = {  // the next rows, of some columns
                        b + (row + kDepth) * num_b + i * num_b / num_a, num_b * int64_t(sizeof(T)),
                        a + (row + kDepth) * num_a + i, num_a * int64_t(sizeof(T))};
                    tile<kTileVectors>(rows, width, a + row * num_a + i, 1, num_a, panels.at(first),
                                       depth, sum, upcoming);
                    for (int64_t r = 0; r < rows; ++r) {
                        T* to = into + (i + r) * num_b + first;
                        for (int64_t j = 0; j < width; ++j) to[j] += sum[r * C + j];
                    }
                }
            }
        }
    });
    const auto total = [&](int64_t element) {
        T sum = 0;
        for (int64_t s = 0; s < num_segments; ++s) sum += partial.get()[s * size + element];
        return sum;
    };
    for_each_row(num_a, num_segments * size, [&](int64_t i) {
        for (int64_t j = 0; j < num_b; ++j) out[i * num_b + j] = total(i * num_b + j);
        if (sums) sums[i] = total(num_a * num_b + i);
    });
}

}  // namespace fullgraph::FULLGRAPH_ISA
