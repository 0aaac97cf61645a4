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

// How many edges ahead the row of an edge is asked for.
constexpr int64_t kAhead = 40;

// The edges that come after those of one row: what is next is often another row's.
class Ahead {
  public:
    Ahead(const EdgeRanges& edges, int64_t i)
        : end_(edges.end[i]),
          skip_(i + 1 < edges.num_rows ? edges.begin[i + 1] - end_ : edges.num_edges),
          num_edges_(edges.num_edges) {}

    // The edge that comes kAhead after edge e of this row; at the end of all, the last.
    int64_t of(int64_t e) const {
        int64_t ahead = e + kAhead;
        if (ahead >= end_) ahead += skip_;
        return smaller(ahead, num_edges_ - 1);
    }

  private:
    int64_t end_, skip_, num_edges_;
};

// Asks for columns first .. first + width - 1 of a row. The row may lie outside of x (a short range
// leads to edges of another chunk): a prefetch cannot fault.
template <typename X>
inline void prefetch_row(const X* x, int64_t row, int64_t num_cols, int64_t first, int64_t width) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(x) + (row * num_cols + first) * sizeof(X);
    const int64_t size = width * sizeof(X);
    for (int64_t k = 0; k < size; k += 64) {
        __builtin_prefetch(reinterpret_cast<const void*>(at + k), 0, 2);
    }
    __builtin_prefetch(reinterpret_cast<const void*>(at + size - 1), 0, 2);  // unless aligned, one more
}

// Edges that are summed before their sum goes to the output: the rounding errors of a row of 100,000
// edges in one accumulator of float32 would show in the fourth digit.
constexpr int64_t kRun = 512;

// ---- Rows to threads -------------------------------------------------------------------------

// Less work than this (elements touched) is not worth waking threads for.
constexpr int64_t kSerial = 1 << 13;

// Calls row(i) for i of 0 .. num_rows - 1, on all threads, in small batches to whichever is free:
// rows differ by orders of magnitude in edges. A row is done by one thread in a fixed order, so
// that results do not depend on the number of threads.
template <typename Row>
inline void for_each_row(int64_t num_rows, int64_t work, Row row) {
    const int64_t size = larger(1, smaller(64, num_rows / 64));
    const int64_t num_batches = (num_rows + size - 1) / size;
#pragma omp parallel for schedule(dynamic) if (work > kSerial && num_batches > 1)
    for (int64_t batch = 0; batch < num_batches; ++batch) {
        const int64_t last = smaller(num_rows, (batch + 1) * size);
        for (int64_t i = batch * size; i < last; ++i) row(i);
    }
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
