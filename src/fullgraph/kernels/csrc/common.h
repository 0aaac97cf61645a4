// What every kernel family shares: element types, edge ranges, and how rows go to threads.
//
// Everything but the plain structs lives in a namespace of the instruction set it is compiled for,
// and no template of the standard library is called from there: the linker keeps one copy of a
// template, and it must not be one that another machine cannot run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace fullgraph {

// A bfloat16 number as its bits.
struct bf16 {
    uint16_t bits;
};

// Ranges of edges, one for each of num_rows rows i: cols[begin[i] .. end[i]).
// rows maps i to the row of the other operand; null is the identity.
struct EdgeRanges {
    const int64_t* begin;
    const int64_t* end;
    const int32_t* cols;
    const int32_t* rows;
    int64_t num_rows;
    int64_t num_edges;   // length of cols
    int64_t col_offset;  // subtracted from every column
};

// A weight for each edge: values[e], or values[index[e]]; null values are ones.
template <typename T>
struct Weights {
    const T* values;
    const int64_t* index;
};

// Of the pool of this process (pool.h), with any contents, at the start of a page.
char* take_memory(size_t bytes);
void give_memory(char* block, size_t bytes);

namespace FULLGRAPH_ISA {

// Memory for so many numbers; not initialised.
template <typename T>
class Scratch {
public:
    explicit Scratch(int64_t size) : bytes_(size * sizeof(T)), block_(take_memory(bytes_)) {}
    ~Scratch() { give_memory(block_, bytes_); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    T* get() const { return reinterpret_cast<T*>(block_); }

private:
    size_t bytes_;
    char* block_;
};

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a < b ? b : a; }

inline float widen(float x) { return x; }
inline double widen(double x) { return x; }
inline float widen(bf16 x) {
    uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

template <typename X, typename T>
inline X narrow(T x) {
    if constexpr (std::is_same_v<X, bf16>) {  // to nearest, ties to even; NaN stays NaN
        uint32_t bits;
        std::memcpy(&bits, &x, sizeof bits);
        const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
        return bf16{static_cast<uint16_t>(x != x ? 0x7fc0 : rounded)};
    } else {
        return x;
    }
}

inline int64_t target(const EdgeRanges& edges, int64_t i) {
    return edges.rows ? edges.rows[i] : i;
}

// Calls body(weight), weight(e) being the weight of edge e, once compiled for each kind of weights.
template <typename T, typename Body>
inline void with_weight(const Weights<T>& w, Body body) {
    if (!w.values) {
        body([](int64_t) { return T(1); });
    } else if (!w.index) {
        body([values = w.values](int64_t e) { return values[e]; });
    } else {
        body([values = w.values, index = w.index](int64_t e) { return values[index[e]]; });
    }
}

// ---- Prefetch --------------------------------------------------------------------------------

// How many edges ahead the row of an edge is asked for, and how many rows ahead that of a result.
constexpr int64_t kAhead = 40, kRowsAhead = 8;

// Goes through the edges of all ranges, which need not lie one after the other, from a row's on.
class EdgeCursor {
public:
    EdgeCursor() = default;
    EdgeCursor(const EdgeRanges& edges, int64_t row)
        : edges_(&edges), row_(row), edge_(edges.begin[row]), end_(edges.end[row]),
          col_(edges.col_offset) {}

    // The row that the next edge leads to; after the last, its again.
    int64_t next() {
        while (edge_ == end_ && row_ + 1 < edges_->num_rows) {
            ++row_;
            edge_ = edges_->begin[row_];
            end_ = edges_->end[row_];
        }
        if (edge_ < end_) col_ = edges_->cols[edge_++];
        return col_ - edges_->col_offset;
    }

private:
    const EdgeRanges* edges_ = nullptr;
    int64_t row_ = 0, edge_ = 0, end_ = 0, col_ = 0;
};

// The edges that come kAhead later than those from a row on. Those before are given to ask(row).
template <typename Ask>
inline EdgeCursor ahead_of(const EdgeRanges& edges, int64_t row, Ask ask) {
    EdgeCursor cursor(edges, row);
    for (int64_t k = 0; k < kAhead; ++k) ask(cursor.next());
    return cursor;
}

// Asks for columns first .. first + width - 1 of a row, into the second-level cache: more lines can be
// under way to it than to the first. x may have no rows: a prefetch cannot fault.
template <typename X>
inline void prefetch_row(const X* x, int64_t row, int64_t num_cols, int64_t first, int64_t width) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(x) + (row * num_cols + first) * sizeof(X);
    const int64_t size = width * sizeof(X);
    // A function that only prefetches counts as one without effect, and GCC drops calls of it.
    asm volatile("" : : "r"(at));
    for (int64_t k = 0; k < size; k += 64) {
        __builtin_prefetch(reinterpret_cast<const void*>(at + k), 0, 2);
    }
    // Unless aligned, one more.
    __builtin_prefetch(reinterpret_cast<const void*>(at + size - 1), 0, 2);
}

// Edges that are summed before their sum goes to the output: the rounding errors of a row of 100,000
// edges in one accumulator of float32 would show in the fourth digit.
constexpr int64_t kRun = 512;

// ---- Rows to threads -------------------------------------------------------------------------

// Less work than this (elements touched) is not worth waking threads for.
constexpr int64_t kSerial = 1 << 13;

// Calls batch(first, last + 1) for runs of the rows 0 .. num_rows - 1, on all threads, small ones, to
// whichever is free: rows differ by orders of magnitude in edges. A row is done by one thread in a
// fixed order, so that results do not depend on the number of threads.
template <typename Batch>
inline void for_each_batch(int64_t num_rows, int64_t work, Batch batch) {
    const int64_t size = larger(1, smaller(256, num_rows / 64));
    const int64_t num_batches = (num_rows + size - 1) / size;
#pragma omp parallel for schedule(dynamic) if (work > kSerial && num_batches > 1)
    for (int64_t k = 0; k < num_batches; ++k) {
        batch(k * size, smaller(num_rows, (k + 1) * size));
    }
}

// Calls row(i) for i of 0 .. num_rows - 1, in such batches.
template <typename Row>
inline void for_each_row(int64_t num_rows, int64_t work, Row row) {
    for_each_batch(num_rows, work, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) row(i);
    });
}

// ---- Columns to registers --------------------------------------------------------------------

// Bytes of accumulators that stay in registers, with room for operands.
#ifndef FULLGRAPH_TILE_BYTES
#define FULLGRAPH_TILE_BYTES 128
#endif

template <int W, typename Tile>
inline void tile_of_width(int64_t width, int64_t first, int64_t done, Tile& tile) {
    if (width == W) {
        tile(first, done, std::integral_constant<int, W>{});
    } else if constexpr (W > 1) {
        tile_of_width<W / 2>(width, first, done, tile);
    }
}

// Covers num_cols columns by tiles: tile(first, done, integral_constant<width>), compiled for each
// width, a power of two. The last tile may reach back into columns that an earlier tile has done,
// rather than a tail of ever narrower tiles, each with a pass over the edges: its first `done`
// columns must then be left alone. `arrays` is how many accumulators a column has.
template <typename T, int arrays, typename Tile>
inline void for_each_tile(int64_t num_cols, Tile tile) {
    constexpr int widest = FULLGRAPH_TILE_BYTES / int(sizeof(T)) / arrays;
    for (int64_t first = 0; first < num_cols;) {
        const int64_t left = num_cols - first;
        int64_t width = 1;
        while (width < left && width < widest) width *= 2;
        if (width > num_cols) width /= 2;
        const int64_t done = larger(0, width - left);
        tile_of_width<widest>(width, first - done, done, tile);
        first += width - done;
    }
}

}  // namespace FULLGRAPH_ISA
}  // namespace fullgraph
