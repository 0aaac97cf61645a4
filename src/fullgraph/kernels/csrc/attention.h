// Attention: a softmax over the edges into a row, which weighs what they bring.
//
// A softmax whose edges come in several lists is kept as the largest logit so far (top), the sum of
// exp(logit - top) (total), and the weighted mean of the values (out). Edges are taken in short
// runs, of one row or of several: the logits of a run go to a small buffer [edge][head], which is
// then worked on as one vector; the rows that gave the logits are still in the cache when they are
// summed.
//
// Edge cases: a row without edges, or whose logits are all -inf, gives 0. A logit that is +inf or
// NaN makes its row and head NaN. An edge's own logit is computed again in the gradients, perhaps
// rounded in another way: its coefficient is at most 1 / total, whatever it is.
#pragma once

#include "common.h"
#include "dropout.h"
#include "vectors.h"

namespace fullgraph {

constexpr int64_t kMaxHeads = 1024;

// Rows of `width` elements next to each other, `stride` elements apart.
template <typename X>
struct Rows {
    X* data;
    int64_t stride;
};

// heads * channels columns.
struct Heads {
    int64_t count, channels;
};

// [n, H C], [n, H], [n, H].
template <typename T>
struct Softmax {
    T* out;
    T* top;
    T* total;
};

// What gradients need of a target row: [n, width], of which 3 H are top, 1 / total, <dout, out>, and
// for gat H more, its logits; and dout [n, H C], or for gat [n, C], which all heads have then.
template <typename T>
struct Targets {
    const T* state;
    const T* dout;
    int64_t num_rows;
    int64_t dout_width;
};

// Dropout of coefficients; null ids: none. The first of the heads at hand is first_head of all.
struct CoefficientDropout {
    const int64_t* ids;
    uint64_t threshold;
    double scale;
    DropoutKey key;
    int64_t first_head;
};

// Lists by source: index[e] is where edge e is in arrays by target; null if there are none.
struct EdgesBySource {
    EdgeRanges ranges;
    const int64_t* index;
};

// In how many parts gatv2_grad_target sums over all rows.
constexpr int64_t kParts = 64;

namespace FULLGRAPH_ISA {

inline int64_t width_of(Heads heads) { return heads.count * heads.channels; }

// From the first range's beginning to the last one's end.
inline int64_t span_of(const EdgeRanges& edges) {
    return edges.num_rows ? edges.end[edges.num_rows - 1] - edges.begin[0] : 0;
}

// In how many parts gat_grad sums over all sources: each takes an array of the targets.
inline int64_t num_parts(const EdgeRanges& edges, int64_t num_targets) {
    int64_t parts = 1;
    while (parts < 16 && parts * 3 * num_targets <= span_of(edges)) parts *= 2;
    return parts;
}

// ---- Exponentials ----------------------------------------------------------------------------

// exp(x), at most 1, for x of at most 0 or so. Float: 2^k · exp(r), |r| <= ln 2 / 2, by a polynomial
// of degree 6 (error below 1e-8 there); what would be subnormal is 0.
inline float exp_below(float x) {
    constexpr float kShift = 12582912.0f;  // 1.5 · 2^23: adding it leaves the rounded number below
    const float least = -87.0f;
    const float bounded = x < least ? least : x;
    const float y = bounded > 0.0f ? 0.0f : bounded;
    const float shifted = y * 1.44269504088896341f + kShift;
    const float k = shifted - kShift;
    const float r = (y - k * 0.693359375f) + k * 2.12194440e-4f;  // ln 2 in two parts
    float p = 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 127) << 23;
    float scale;
    std::memcpy(&scale, &bits, sizeof scale);
    const float result = p * scale;
    return x < least ? 0.0f : result;
}

inline double exp_below(double x) { return x > 0 ? 1.0 : __builtin_exp(x); }

constexpr double kInfinity = __builtin_inf();

// What to subtract from logits below this maximum.
template <typename T>
inline T shift_of(T top) {
    return top == T(-kInfinity) ? T(0) : top;
}

template <typename T>
inline T inverse(T total) {
    return total == 0 ? T(0) : 1 / total;
}

// ---- Runs of edges ---------------------------------------------------------------------------

constexpr int64_t kRunBytes = 1 << 14;   // of rows, in the first-level cache
constexpr int64_t kBuffer = kMaxHeads;   // elements of a run's [edge][head]
constexpr int64_t kLongestRun = 64;      // edges
template <typename T>
struct Buffer {
    alignas(64) T at[kBuffer];
};

// Edges in a run.
template <typename X>
inline int64_t run_length(Heads heads) {
    const int64_t fit = kRunBytes / larger(1, width_of(heads) * int64_t(sizeof(X)));
    return larger(1, smaller(kBuffer / heads.count, larger(8, smaller(kLongestRun, fit))));
}

// Calls body(integral_constant<H>) with the number of heads, or 0 for one that is not common.
template <typename Body>
inline void with_heads(int64_t heads, Body body) {
    switch (heads) {
        case 1: return body(std::integral_constant<int, 1>{});
        case 2: return body(std::integral_constant<int, 2>{});
        case 4: return body(std::integral_constant<int, 4>{});
        case 8: return body(std::integral_constant<int, 8>{});
        case 16: return body(std::integral_constant<int, 16>{});
        default: return body(std::integral_constant<int, 0>{});
    }
}

// Calls body(0, integral_constant<fixed>), or, for a number of heads that is not fixed, one by one.
template <int fixed, typename Body>
inline __attribute__((always_inline)) void for_heads(int64_t heads, Body body) {
    if constexpr (fixed > 0) {
        body(int64_t(0), std::integral_constant<int, fixed>{});
    } else {
        for (int64_t h = 0; h < heads; ++h) body(h, std::integral_constant<int, 1>{});
    }
}

// keep[edge][head] = the scale or 0, for edges whose ids are id(0 .. num_edges - 1). Heads are those
// from drop.first_head on, which may lie anywhere in a block of four draws.
template <typename T, typename Id>
void draw_run(T* keep, int64_t num_edges, int64_t heads, const CoefficientDropout& drop, Id id) {
    const T scale = static_cast<T>(drop.scale);  // 0 for p = 1, the threshold of which is 2^32
    const uint32_t threshold = static_cast<uint32_t>(
        drop.threshold > 0xffffffffu ? 0xffffffffu : drop.threshold);
    const int64_t before = drop.first_head % 4, lowest = drop.first_head / 4;
    const int64_t num_blocks = (before + heads + 3) / 4;
    Counters c = {};
    uint32_t draws[4 * kLanes];
    T factor[4 * kLanes];
    int64_t edge = 0, block = 0;  // of the next counter
    for (int64_t left = num_edges * num_blocks; left > 0; left -= kLanes) {
        const int64_t used = smaller(left, kLanes);
        int64_t first_edge = edge, first_block = block;
        for (int64_t j = 0; j < used; ++j) {
            set_counter(c, j, id(edge), lowest + block, drop.key);
            if (++block == num_blocks) ++edge, block = 0;
        }
        philox(c, drop.key.seed, draws);
#pragma omp simd
        for (int k = 0; k < 4 * kLanes; ++k) factor[k] = draws[k] >= threshold ? scale : T(0);
        for (int64_t j = 0; j < used; ++j) {
            const int64_t head = 4 * first_block - before;  // of the block's first draw
            T* to = keep + first_edge * heads + head;
            const int64_t end = smaller(4, heads - head);
            for (int64_t k = larger(0, -head); k < end; ++k) to[k] = factor[4 * j + k];
            if (++first_block == num_blocks) ++first_edge, first_block = 0;
        }
    }
}

// A run's gradient. In: logits x, dropout factors keep (null: ones), and of each edge's target top,
// inverse total and mean; dweight = <dout, value>. Out: x, by which values are multiplied; dweight,
// the gradient of the logits.
template <typename T>
void softmax_grad(T* x, T* dweight, const T* keep, const T* top, const T* inverse_total,
                  const T* mean, int64_t count) {
    if (keep) {
#pragma omp simd
        for (int64_t k = 0; k < count; ++k) {
            const T coefficient = exp_below(x[k] - shift_of(top[k])) * inverse_total[k];
            x[k] = coefficient * keep[k];
            dweight[k] = coefficient * (keep[k] * dweight[k] - mean[k]);
        }
    } else {
#pragma omp simd
        for (int64_t k = 0; k < count; ++k) {
            const T coefficient = exp_below(x[k] - shift_of(top[k])) * inverse_total[k];
            x[k] = coefficient;
            dweight[k] = coefficient * (dweight[k] - mean[k]);
        }
    }
}

// ---- Heads to registers ----------------------------------------------------------------------

// Covers all columns by tiles of G heads and W channels: tile(first head, first channel, done, G, W)
// where G is 1, or 4 and W the number of channels. The first `done` channels must be left alone, as
// in for_each_tile.
template <typename T, int arrays, typename Tile>
inline void for_each_head_tile(Heads heads, Tile tile) {
    constexpr int widest = FULLGRAPH_TILE_BYTES / int(sizeof(T)) / arrays;
    using One = std::integral_constant<int, 1>;
    using Four = std::integral_constant<int, 4>;
    int64_t head = 0;
    const auto fours = [&](auto channels) {
        if constexpr (4 * decltype(channels)::value <= widest) {
            for (; head + 4 <= heads.count; head += 4) tile(head, 0, 0, Four{}, channels);
        }
    };
    if (heads.channels == 8) fours(std::integral_constant<int, 8>{});
    if (heads.channels == 16) fours(std::integral_constant<int, 16>{});
    if (heads.channels == 32) fours(std::integral_constant<int, 32>{});
    if (heads.channels == 64) fours(std::integral_constant<int, 64>{});
    for (; head < heads.count; ++head) {
        for_each_tile<T, arrays>(heads.channels, [&](int64_t first, int64_t done, auto width) {
            tile(head, first, done, One{}, width);
        });
    }
}

// ---- The rows of a run -----------------------------------------------------------------------

// Edge k's row of the other end.
template <typename X>
struct RunRows {
    const X* data;
    int64_t stride;
    const int32_t* cols;
    int64_t offset;
    const X* operator()(int64_t k) const { return data + (cols[k] - offset) * stride; }
};

// Edge k's own row; null data: none.
template <typename T>
struct RunEdges {
    T* data;
    const int64_t* index;  // null: in order
    int64_t width;
    T* operator()(int64_t k) const { return data + (index ? index[k] : k) * width; }
};

// From edge e on, in order.
template <typename T>
inline RunEdges<T> edges_at(T* data, int64_t e, int64_t width) {
    return {data ? data + e * width : nullptr, nullptr, width};
}

// What to ask for while an edge is worked on: rows of the edge that comes kAhead later.
struct Stream {
    const void* data;
    int64_t stride;   // bytes
    int64_t element;  // bytes of a column; 0: all of a row at once
    int64_t size;     // bytes of a row, if so
};

inline __attribute__((always_inline)) void ask(const Stream& of, int64_t row, int64_t first,
                                               int64_t size) {
    prefetch_row(static_cast<const uint8_t*>(of.data), row, of.stride, first, size);
}

// The rows to ask for beside some edges of a run; none by default.
struct Asks {
    const Stream* streams = nullptr;
    int num_streams = 0;
    const int64_t* rows = nullptr;

    // While the k-th is worked on, columns from `first` on.
    template <int width>
    inline __attribute__((always_inline)) void columns(int64_t k, int64_t first) const {
        for (int s = 0; s < num_streams; ++s) {
            const Stream& to = streams[s];
            if (to.element == sizeof(float)) {  // a number of lines that is known when compiling
                ask(to, rows[k], first * sizeof(float), width * sizeof(float));
            } else if (to.element) {
                ask(to, rows[k], first * to.element, width * to.element);
            } else if (first == 0) {
                ask(to, rows[k], 0, to.size);
            }
        }
    }
};

class Fetch {
public:
    // For runs of the edges of a row and of those after it.
    template <int N>
    Fetch(const EdgeRanges& edges, int64_t row, const Stream (&streams)[N]) : num_streams_(N) {
        for (int s = 0; s < N; ++s) streams_[s] = streams[s];
        ahead_ = ahead_of(edges, row, [&](int64_t at) __attribute__((always_inline)) {
            for (int s = 0; s < N; ++s) ask(streams[s], at, 0, streams[s].stride);
        });
    }

    // Before each run, in the order of edges.
    void next_run(int64_t num_edges) {
        for (int64_t k = 0; k < num_edges; ++k) rows_[k] = ahead_.next();
    }

    // For the run's edges from one on.
    Asks from(int64_t edge) const { return {streams_, num_streams_, rows_ + edge}; }

private:
    int num_streams_ = 0;
    Stream streams_[3] = {};
    EdgeCursor ahead_;
    int64_t rows_[kLongestRun] = {};
};

template <typename X>
inline Stream columns_of(const X* data, int64_t stride) {
    return {data, stride * int64_t(sizeof(X)), int64_t(sizeof(X)), 0};
}

template <typename X>
inline Stream whole_rows(const X* data, int64_t stride, int64_t width) {
    return {data, stride * int64_t(sizeof(X)), 0, width * int64_t(sizeof(X))};
}

constexpr Asks kNoFetch = {};

// What a sum goes to: a row that is written, or added to, first multiplied by `before` [H]; and then
// the whole by `after` [H]. Null: ones.
template <typename T>
struct Onto {
    bool add;
    const T* before;
    const T* after;
};
template <typename T>
constexpr Onto<T> kOnto = {true, nullptr, nullptr};

// to = (to · before + Σ over the run's edges k of weight[k] · (row(k) + edge(k))) · after, a head at a
// time.
template <bool has_edge, typename T, typename X>
__attribute__((noinline)) void add_run_of(Heads heads, int64_t num_edges, const T* weight,
                                          const Onto<T>& onto, T* to, const RunRows<X>& row,
                                          const RunEdges<const T>& edge, const Asks& fetch) {
    for_each_head_tile<T, 1>(heads, [&](int64_t head, int64_t first, int64_t done, auto g, auto w) {
        constexpr int G = decltype(g)::value, W = decltype(w)::value;
        constexpr int L = lanes_in<T, W>(), N = W / L;
        const int64_t at = head * heads.channels + first;
        Vector<T, L> sum[G * N] = {};
        for (int64_t k = 0; k < num_edges; ++k) {
            fetch.template columns<G * W>(k, at);
            const X* from = row(k) + at;
            const T* scale = weight + k * heads.count + head;
            const T* more = has_edge ? edge(k) + at : nullptr;
            unroll<G * N>([&](auto v) __attribute__((always_inline)) {
                auto x = load<L>(from + v * L);
                if constexpr (has_edge) x += load<L>(more + v * L);
                sum[v] += scale[v / N] * x;
            });
        }
        T before[G], after[G];
        for (int h = 0; h < G; ++h) before[h] = onto.before ? onto.before[head + h] : T(1);
        for (int h = 0; h < G; ++h) after[h] = onto.after ? onto.after[head + h] : T(1);
        T* out = to + at;
        if (done == 0) {
            unroll<G * N>([&](auto v) __attribute__((always_inline)) {
                if (onto.add) sum[v] += load<L>(out + v * L) * before[v / N];
                store<L>(out + v * L, sum[v] * after[v / N]);
            });
            return;
        }
        T sums[G * W];
        unroll<G * N>([&](auto v) { store<L>(sums + v * L, sum[v]); });
        for (int h = 0; h < G; ++h) {
            for (int64_t f = h * W + done; f < h * W + W; ++f) {
                out[f] = ((onto.add ? out[f] * before[h] : T(0)) + sums[f]) * after[h];
            }
        }
    });
}

template <typename T, typename X>
inline void add_run(Heads heads, int64_t num_edges, const T* weight, const Onto<T>& onto, T* to,
                    const RunRows<X>& row, const RunEdges<const T>& edge, const Asks& fetch) {
    const auto run = edge.data ? &add_run_of<true, T, X> : &add_run_of<false, T, X>;
    run(heads, num_edges, weight, onto, to, row, edge, fetch);
}

// The tile's part of x, as numbers; 0 where another tile has been.
template <typename T, typename X>
inline void load_tile(T* tile, const X* x, int64_t size, int64_t done) {
    for (int64_t f = 0; f < size; ++f) tile[f] = widen(x[f]);
    for (int64_t f = 0; f < done; ++f) tile[f] = 0;
}

// to = the sums of G vectors, one for each head; where another tile was before, which only tiles of
// one head have, added to.
template <int G, int L, typename T>
inline __attribute__((always_inline)) void put_sums(const Vector<T, L>* x, T* to, bool add) {
    if constexpr (G == 4) {
        store<4>(to, sums_of<L, T>(x));
    } else {
        static_assert(G == 1);
        const T sum = sum_of<L, T>(x[0]);
        *to = add ? *to + sum : sum;
    }
}

// dot[k] = <own, row(k) + edge(k)>, a head at a time, for the run's edges k.
template <bool has_edge, typename T, typename Own, typename X>
__attribute__((noinline)) void dot_run_of(Heads heads, int64_t num_edges, const Own* own, T* dot,
                                          const RunRows<X>& row, const RunEdges<const T>& edge,
                                          const Asks& fetch) {
    for_each_head_tile<T, 1>(heads, [&](int64_t head, int64_t first, int64_t done, auto g, auto w) {
        constexpr int G = decltype(g)::value, W = decltype(w)::value;
        constexpr int L = lanes_in<T, W>(), N = W / L;
        const int64_t at = head * heads.channels + first;
        Vector<T, L> mine[G * N];
        if (done == 0) {
            unroll<G * N>([&](auto v) { mine[v] = load<L>(own + at + v * L); });
        } else {
            T tile[G * W];
            load_tile(tile, own + at, G * W, done);
            unroll<G * N>([&](auto v) { mine[v] = load<L>(tile + v * L); });
        }
        for (int64_t k = 0; k < num_edges; ++k) {
            fetch.template columns<G * W>(k, at);
            const X* from = row(k) + at;
            const T* more = has_edge ? edge(k) + at : nullptr;
            Vector<T, L> sum[G] = {};
            unroll<G * N>([&](auto v) __attribute__((always_inline)) {
                auto x = load<L>(from + v * L);
                if constexpr (has_edge) x += load<L>(more + v * L);
                sum[v / N] += mine[v] * x;
            });
            put_sums<G, L>(sum, dot + k * heads.count + head, first > 0);
        }
    });
}

// Where there are no channels, no tile writes the sums.
template <typename T>
inline void clear_if_empty(Heads heads, int64_t num_edges, T* sums) {
    if (heads.channels) return;
    for (int64_t k = 0; k < num_edges * heads.count; ++k) sums[k] = 0;
}

template <typename T, typename Own, typename X>
inline void dot_run(Heads heads, int64_t num_edges, const Own* own, T* dot, const RunRows<X>& row,
                    const RunEdges<const T>& edge, const Asks& fetch) {
    clear_if_empty(heads, num_edges, dot);
    const auto run = edge.data ? &dot_run_of<true, T, Own, X> : &dot_run_of<false, T, Own, X>;
    run(heads, num_edges, own, dot, row, edge, fetch);
}

// ---- Passes over rows ------------------------------------------------------------------------

// The first row of a part, out of `parts` of about as many edges each.
inline int64_t first_of_part(const EdgeRanges& edges, int64_t part, int64_t parts) {
    if (part == 0 || part == parts) return part ? edges.num_rows : 0;
    const int64_t edge = edges.begin[0] + span_of(edges) / parts * part;
    int64_t low = 0, high = edges.num_rows;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (edges.begin[middle] < edge) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

// Calls body(part, first row, last row + 1) for all parts, on all threads: for sums over all rows,
// one for each part, which are then added in order, so that results do not depend on the threads.
template <typename Body>
inline void for_each_part(const EdgeRanges& edges, int64_t parts, int64_t work, Body body) {
#pragma omp parallel for schedule(dynamic) if (work > kSerial && parts > 1)
    for (int64_t part = 0; part < parts; ++part) {
        const int64_t last = edges.num_rows ? first_of_part(edges, part + 1, parts) : 0;
        body(part, edges.num_rows ? first_of_part(edges, part, parts) : 0, last);
    }
}

// Edges of a row that are worked on together; first and last: whether they are its first, its last.
struct Segment {
    int64_t row, edge, at, count;  // edges edge .. edge + count - 1, at .. of the run
    bool is_first, is_last;
};

// Edges of some rows, up to so many as fit the first-level cache, so that what is done for each edge
// by itself does not stop at every row.
struct Run {
    Segment segments[kLongestRun];
    int64_t num_segments = 0, num_edges = 0;
    int64_t edge[kLongestRun];
    int32_t col[kLongestRun], of[kLongestRun];  // the edge's column, its segment

    int64_t row_of(int64_t k) const { return segments[of[k]].row; }
    const Segment* begin() const { return segments; }
    const Segment* end() const { return segments + num_segments; }

    void add(const EdgeRanges& edges, int64_t row, int64_t first, int64_t count) {
        const int64_t stop = first + count;
        for (int64_t k = 0; k < count; ++k) {
            edge[num_edges + k] = first + k;
            col[num_edges + k] = edges.cols[first + k];
            of[num_edges + k] = static_cast<int32_t>(num_segments);
        }
        segments[num_segments++] = {row,   first, num_edges, count, first == edges.begin[row],
                                    stop == edges.end[row]};
        num_edges += count;
    }
};

// Calls body(run) for the edges of rows first .. last - 1, at most `longest` a run; rows without
// edges are in one, too, unless they are skipped. Where a row is cut depends on itself alone.
template <typename Body>
inline void for_each_run(const EdgeRanges& edges, int64_t first, int64_t last, int64_t longest,
                         bool skip_empty, Body body) {
    Run run;
    const auto flush = [&] {
        if (run.num_segments) body(static_cast<const Run&>(run));
        run.num_segments = run.num_edges = 0;
    };
    for (int64_t i = first; i < last; ++i) {
        int64_t e = edges.begin[i];
        const int64_t end = edges.end[i];
        if (e == end && skip_empty) continue;
        if (run.num_edges + (end - e) > longest || run.num_segments == longest) flush();
        for (; end - e > longest; e += longest) {
            run.add(edges, i, e, longest);
            flush();
        }
        run.add(edges, i, e, end - e);
    }
    flush();
}

// Calls row(i, fetch) for every row, with what asks for the streams of its edges, run by run.
template <int N, typename Row>
inline void for_each_fetching_row(const EdgeRanges& edges, int64_t width,
                                  const Stream (&streams)[N], Row row) {
    for_each_batch(edges.num_rows, edges.num_edges * width, [&](int64_t first, int64_t last) {
        Fetch fetch(edges, first, streams);
        for (int64_t i = first; i < last; ++i) row(i, fetch);
    });
}

// to = leaky(x). These take what they need by value: through a reference it could be written to
// meanwhile, and nothing would be done in vectors.
template <typename T>
inline void leaky_run(T* to, const T* x, int64_t count, T slope) {
#pragma omp simd
    for (int64_t k = 0; k < count; ++k) to[k] = x[k] * (x[k] > 0 ? T(1) : slope);
}

// d = d · leaky'(x).
template <typename T>
inline void leaky_grad_run(T* d, const T* x, int64_t count, T slope) {
#pragma omp simd
    for (int64_t k = 0; k < count; ++k) d[k] *= x[k] > 0 ? T(1) : slope;
}

// x = exp(x).
template <typename T>
inline void exp_run(T* x, int64_t count) {
#pragma omp simd
    for (int64_t k = 0; k < count; ++k) x[k] = exp_below(x[k]);
}

// Merges a run's logits x [edge][head] into s; they become exp(logit - top). before, after [segment]
// [head]: what the rows of s.out, as they are, are to be multiplied with, and what with the sum.
template <int fixed, typename T>
void merge_run_of(const EdgeRanges& edges, const Run& r, int64_t num_heads, bool accumulate, T* x,
                  Softmax<T> s, T* before, T* after) {
    const int64_t H = fixed ? fixed : num_heads;
    Buffer<T> shift;
    T best[fixed ? fixed : kMaxHeads], sum[fixed ? fixed : kMaxHeads];
    const auto is_new = [&](const Segment& q) { return q.is_first && !accumulate; };
    for (int64_t q = 0; q < r.num_segments; ++q) {
        const Segment& of = r.segments[q];
        T* top = s.top + target(edges, of.row) * H;
        const T* at = x + of.at * H;
        T* old = before + q * H;
        for (int64_t h = 0; h < H; ++h) old[h] = best[h] = is_new(of) ? T(-kInfinity) : top[h];
        for (int64_t k = 0; k < of.count; ++k) {
            for (int64_t h = 0; h < H; ++h) best[h] = at[k * H + h] > best[h] ? at[k * H + h] : best[h];
        }
        for (int64_t h = 0; h < H; ++h) {
            top[h] = best[h];
            shift.at[q * H + h] = shift_of(best[h]);
            old[h] -= shift.at[q * H + h];
        }
    }
    for (int64_t k = 0; k < r.num_edges; ++k) {
        const T* own = shift.at + r.of[k] * H;
        for (int64_t h = 0; h < H; ++h) x[k * H + h] -= own[h];
    }
    exp_run(x, r.num_edges * H);
    exp_run(before, r.num_segments * H);
    for (int64_t q = 0; q < r.num_segments; ++q) {
        const Segment& of = r.segments[q];
        T* total = s.total + target(edges, of.row) * H;
        const T* at = x + of.at * H;
        T* rescale = before + q * H;
        for (int64_t h = 0; h < H; ++h) sum[h] = 0;
        for (int64_t k = 0; k < of.count; ++k) {
            for (int64_t h = 0; h < H; ++h) sum[h] += at[k * H + h];
        }
        for (int64_t h = 0; h < H; ++h) {
            const T old = is_new(of) ? T(0) : total[h];
            total[h] = old * rescale[h] + sum[h];
            if (of.is_first) rescale[h] *= old;  // the row is a mean so far
            after[q * H + h] = of.is_last ? inverse(total[h]) : T(1);
        }
    }
}

// The forward pass: logits(run, buffer, fetch) fills [edge][head]; add(segment, its columns, weights,
// onto, row of out, asks) sums what they weigh. One of the two asks for the streams.
template <typename X, typename T, int N, typename Logits, typename Add>
void attend(const EdgeRanges& edges, Heads heads, const CoefficientDropout& drop, Softmax<T> s,
            bool accumulate, const Stream (&streams)[N], Logits logits, Add add) {
    const int64_t H = heads.count, width = width_of(heads), run = run_length<X>(heads);
    for_each_batch(edges.num_rows, edges.num_edges * width, [&](int64_t first, int64_t last) {
        Fetch fetch(edges, first, streams);
        for_each_run(edges, first, last, run, accumulate, [&](const Run& r) {
            Buffer<T> weight, keep, before, after;
            fetch.next_run(r.num_edges);
            logits(r, weight.at, fetch);
            with_heads(H, [&](auto fixed) {
                merge_run_of<decltype(fixed)::value>(edges, r, H, accumulate, weight.at, s,
                                                     before.at, after.at);
            });
            if (drop.ids) {
                draw_run(keep.at, r.num_edges, H, drop, [&](int64_t k) { return drop.ids[r.edge[k]]; });
                for (int64_t k = 0; k < r.num_edges * H; ++k) weight.at[k] *= keep.at[k];
            }
            for (int64_t q = 0; q < r.num_segments; ++q) {
                const Segment& of = r.segments[q];
                const bool is_new = of.is_first && !accumulate;
                const int64_t later = smaller(of.row + kRowsAhead, edges.num_rows - 1);
                prefetch_row(s.out, target(edges, later), width, 0, width);
                add(of, r.col + of.at, weight.at + of.at * H,
                    Onto<T>{!is_new, before.at + q * H, after.at + q * H},
                    s.out + target(edges, of.row) * width, fetch.from(of.at));
            }
        });
    });
}

// A run's buffers in a gradient. Of the edges' targets: top, inverse total, mean.
template <typename T>
struct Grads {
    Buffer<T> logit, dweight, keep, top, inverse, mean;
};

// Copies what state [n, width] has of the run's targets.
template <typename T, typename Target>
void stage_targets(Grads<T>& g, const T* state, int64_t width, int64_t heads, int64_t count,
                   Target target_of) {
    with_heads(heads, [&](auto fixed) {
        constexpr int F = decltype(fixed)::value;
        const int64_t H = F ? F : heads;
        for (int64_t k = 0; k < count; ++k) {
            const T* from = state + target_of(k) * width;
            for (int64_t h = 0; h < H; ++h) g.top.at[k * H + h] = from[h];
            for (int64_t h = 0; h < H; ++h) g.inverse.at[k * H + h] = from[H + h];
            for (int64_t h = 0; h < H; ++h) g.mean.at[k * H + h] = from[2 * H + h];
        }
    });
}

template <typename T, typename Id>
void finish_run(Grads<T>& g, int64_t count, int64_t heads, const CoefficientDropout& drop, Id id) {
    if (drop.ids) draw_run(g.keep.at, count, heads, drop, id);
    softmax_grad(g.logit.at, g.dweight.at, drop.ids ? g.keep.at : nullptr, g.top.at, g.inverse.at,
                 g.mean.at, count * heads);
}

// ---- gat -------------------------------------------------------------------------------------

// logit = leaky(source_logit[j] + target_logit[i] + edge_logit[e]), value = value[j].
template <typename X, typename T>
void gat(const EdgeRanges& edges, Heads heads, Rows<const X> value, Rows<const X> source_logit,
         const T* target_logit, const T* edge_logit, double slope, const CoefficientDropout& drop,
         Softmax<T> s, bool accumulate) {
    const int64_t H = heads.count;
    const T below = static_cast<T>(slope);
    attend<X>(
        edges, heads, drop, s, accumulate,
        {columns_of(value.data, value.stride), whole_rows(source_logit.data, source_logit.stride, H)},
        [&](const Run& r, T* logit, const Fetch&) {
            with_heads(H, [&](auto fixed) {
                constexpr int F = decltype(fixed)::value;
                const int64_t N = F ? F : H;
                for (int64_t k = 0; k < r.num_edges; ++k) {
                    const int64_t source = r.col[k] - edges.col_offset;
                    const X* theirs = source_logit.data + source * source_logit.stride;
                    const T* own = target_logit + target(edges, r.row_of(k)) * N;
                    const T* more = edge_logit ? edge_logit + r.edge[k] * N : nullptr;
                    for_heads<F>(N, [&](int64_t h, auto w) __attribute__((always_inline)) {
                        constexpr int W = decltype(w)::value;
                        auto sum = load<W>(theirs + h) + load<W>(own + h);
                        if (more) sum += load<W>(more + h);
                        store<W>(logit + k * N + h, sum);
                    });
                }
            });
            leaky_run(logit, logit, r.num_edges * H, below);
        },
        [&](const Segment& of, const int32_t* cols, const T* weight, const Onto<T>& onto, T* out,
            const Asks& asks) {
            add_run(heads, of.count, weight, onto, out,
                    RunRows<X>{value.data, value.stride, cols, edges.col_offset},
                    RunEdges<const T>{}, asks);
        });
}

// All gradients, by source. parts: [num_parts, n, H] to sum dtarget_logit in, if there is more than one.
template <typename X, typename T>
void gat_grad(const EdgesBySource& by_source, Heads heads, Rows<const X> value,
              Rows<const X> source_logit, const T* edge_logit, Targets<T> targets, double slope,
              const CoefficientDropout& drop, Rows<T> dvalue, Rows<T> dsource_logit,
              T* dtarget_logit, T* dedge_logit, T* parts, bool accumulate) {
    const EdgeRanges& edges = by_source.ranges;
    const int64_t H = heads.count, width = width_of(heads), run = run_length<T>(heads);
    const Heads one_head = {1, heads.channels};
    const bool shared = targets.dout_width < width;
    const T below = static_cast<T>(slope);
    const int64_t pieces = num_parts(edges, targets.num_rows);
    const int64_t size = targets.num_rows * H;
    for_each_part(edges, pieces, span_of(edges) * width, [&](int64_t part, int64_t first, int64_t last) {
        T* sums = pieces == 1 ? dtarget_logit : parts + part * size;
        for (int64_t k = 0; pieces > 1 && k < size; ++k) sums[k] = 0;
        if (first == last) return;
        Fetch fetch(edges, first, {columns_of(targets.dout, targets.dout_width),
                                   whole_rows(targets.state, 4 * H, 4 * H), whole_rows(sums, H, H)});
        for_each_run(edges, first, last, run, accumulate, [&](const Run& r) {
            Grads<T> g;
            Buffer<T> raw, own_sums;
            T of_head[kLongestRun];
            const int64_t count = r.num_edges;
            fetch.next_run(count);
            with_heads(H, [&](auto fixed) {
                constexpr int F = decltype(fixed)::value;
                const int64_t N = F ? F : H;
                for (int64_t k = 0; k < count; ++k) {
                    const T* theirs = targets.state + r.col[k] * 4 * N;
                    const X* mine = source_logit.data + r.row_of(k) * source_logit.stride;
                    const T* own = edge_logit ? edge_logit + by_source.index[r.edge[k]] * N : nullptr;
                    for_heads<F>(N, [&](int64_t h, auto w) __attribute__((always_inline)) {
                        constexpr int W = decltype(w)::value;
                        store<W>(g.top.at + k * N + h, load<W>(theirs + h));
                        store<W>(g.inverse.at + k * N + h, load<W>(theirs + N + h));
                        store<W>(g.mean.at + k * N + h, load<W>(theirs + 2 * N + h));
                        auto sum = load<W>(mine + h) + load<W>(theirs + 3 * N + h);
                        if (own) sum += load<W>(own + h);
                        store<W>(raw.at + k * N + h, sum);
                    });
                }
            });
            leaky_run(g.logit.at, raw.at, count * H, below);
            for (const Segment& s : r) {
                const X* own_value = value.data + s.row * value.stride;
                const int64_t later = smaller(s.row + kRowsAhead, edges.num_rows - 1);
                prefetch_row(value.data, later, value.stride, 0, width);
                prefetch_row(dvalue.data, later, dvalue.stride, 0, width);
                const RunRows<T> dout = {targets.dout, targets.dout_width, r.col + s.at, 0};
                if (!shared) {
                    dot_run(heads, s.count, own_value, g.dweight.at + s.at * H, dout,
                            RunEdges<const T>{}, fetch.from(s.at));
                }
                for (int64_t h = 0; shared && h < H; ++h) {
                    dot_run(one_head, s.count, own_value + h * heads.channels, of_head, dout,
                            RunEdges<const T>{}, h ? kNoFetch : fetch.from(s.at));
                    for (int64_t k = 0; k < s.count; ++k) {
                        g.dweight.at[(s.at + k) * H + h] = of_head[k];
                    }
                }
            }
            finish_run(g, count, H, drop, [&](int64_t k) {
                return drop.ids[by_source.index[r.edge[k]]];
            });
            for (const Segment& s : r) {
                T* own_dvalue = dvalue.data + s.row * dvalue.stride;
                const RunRows<T> dout = {targets.dout, targets.dout_width, r.col + s.at, 0};
                const Onto<T> onto = {accumulate || !s.is_first, nullptr, nullptr};
                if (!shared) {
                    add_run(heads, s.count, g.logit.at + s.at * H, onto, own_dvalue, dout,
                            RunEdges<const T>{}, kNoFetch);
                }
                for (int64_t h = 0; shared && h < H; ++h) {
                    for (int64_t k = 0; k < s.count; ++k) of_head[k] = g.logit.at[(s.at + k) * H + h];
                    add_run(one_head, s.count, of_head, onto, own_dvalue + h * heads.channels, dout,
                            RunEdges<const T>{}, kNoFetch);
                }
            }
            T* draw = g.dweight.at;
            leaky_grad_run(draw, raw.at, count * H, below);
            with_heads(H, [&](auto fixed) {
                constexpr int F = decltype(fixed)::value;
                const int64_t N = F ? F : H;
                for (int64_t k = 0; k < r.num_segments * N; ++k) own_sums.at[k] = 0;
                for (int64_t k = 0; k < count; ++k) {
                    T *theirs = sums + r.col[k] * N, *own = own_sums.at + r.of[k] * N;
                    T* edge = dedge_logit ? dedge_logit + by_source.index[r.edge[k]] * N : nullptr;
                    for_heads<F>(N, [&](int64_t h, auto w) __attribute__((always_inline)) {
                        constexpr int W = decltype(w)::value;
                        const auto more = load<W>(draw + k * N + h);
                        store<W>(theirs + h, load<W>(theirs + h) + more);
                        store<W>(own + h, load<W>(own + h) + more);
                        if (edge) store<W>(edge + h, load<W>(edge + h) + more);
                    });
                }
                for (int64_t q = 0; q < r.num_segments; ++q) {
                    T* own = dsource_logit.data + r.segments[q].row * dsource_logit.stride;
                    const bool add = accumulate || !r.segments[q].is_first;
                    for (int64_t h = 0; h < N; ++h) {
                        own[h] = (add ? own[h] : T(0)) + own_sums.at[q * N + h];
                    }
                }
            });
        });
    });
    if (pieces == 1) return;
    for_each_row((size + 63) / 64, size * pieces, [&](int64_t block) {
        const int64_t last = smaller(size, 64 * (block + 1));
        for (int64_t part = 0; part < pieces; ++part) {
            for (int64_t k = 64 * block; k < last; ++k) dtarget_logit[k] += parts[part * size + k];
        }
    });
}

// ---- gatv2 -----------------------------------------------------------------------------------

// logit[k] = Σ over channels of att · leaky(own + row(k) + edge(k)).
template <bool has_edge, typename T, typename Own, typename X>
__attribute__((noinline)) void gatv2_logits_of(Heads heads, int64_t num_edges, const Own* own,
                                               const T* att, T slope, T* logit, const RunRows<X>& row,
                                               const RunEdges<const T>& edge, const Asks& fetch) {
    for_each_head_tile<T, 2>(heads, [&](int64_t head, int64_t first, int64_t done, auto g, auto w) {
        constexpr int G = decltype(g)::value, W = decltype(w)::value;
        constexpr int L = lanes_in<T, W>(), N = W / L;
        const int64_t at = head * heads.channels + first;
        T tile[G * W];
        load_tile(tile, att + at, G * W, done);
        Vector<T, L> mine[G * N], scale[G * N];
        unroll<G * N>([&](auto v) { mine[v] = load<L>(own + at + v * L); });
        unroll<G * N>([&](auto v) { scale[v] = load<L>(tile + v * L); });
        for (int64_t k = 0; k < num_edges; ++k) {
            fetch.template columns<G * W>(k, at);
            const X* from = row(k) + at;
            const T* more = has_edge ? edge(k) + at : nullptr;
            Vector<T, L> sum[G] = {};
            unroll<G * N>([&](auto v) __attribute__((always_inline)) {
                auto x = mine[v] + load<L>(from + v * L);
                if constexpr (has_edge) x += load<L>(more + v * L);
                sum[v / N] += scale[v] * (x > T(0) ? x : x * slope);
            });
            put_sums<G, L>(sum, logit + k * heads.count + head, first > 0);
        }
    });
}

template <typename T, typename Own, typename X>
inline void gatv2_logits(Heads heads, int64_t num_edges, const Own* own, const T* att, T slope,
                         T* logit, const RunRows<X>& row, const RunEdges<const T>& edge,
                         const Asks& fetch) {
    clear_if_empty(heads, num_edges, logit);
    const auto run =
        edge.data ? &gatv2_logits_of<true, T, Own, X> : &gatv2_logits_of<false, T, Own, X>;
    run(heads, num_edges, own, att, slope, logit, row, edge, fetch);
}

// Given the gradients of a run's logits: dsum += Σ att · leaky' · dlogit, for the sum that goes
// through the leaky ReLU, and where datt is not null datt += Σ leaky · dlogit. dedge, where it is
// not null, gets what an edge adds to dsum.
template <bool has_edge, typename T, typename Own, typename X>
__attribute__((noinline)) void gatv2_grad_run_of(Heads heads, int64_t num_edges, const Own* own,
                                                 const T* att, T slope, const T* dlogit, T* dsum,
                                                 T* datt, const RunRows<X>& row,
                                                 const RunEdges<const T>& edge,
                                                 const RunEdges<T>& dedge) {
    for_each_head_tile<T, 2>(heads, [&](int64_t head, int64_t first, int64_t done, auto g, auto w) {
        constexpr int G = decltype(g)::value, W = decltype(w)::value;
        constexpr int L = lanes_in<T, W>(), N = W / L;
        const int64_t at = head * heads.channels + first;
        T tile[G * W];
        load_tile(tile, att + at, G * W, done);
        Vector<T, L> mine[G * N], of_sum[G * N] = {}, of_att[G * N] = {};
        unroll<G * N>([&](auto v) { mine[v] = load<L>(own + at + v * L); });
        for (int64_t k = 0; k < num_edges; ++k) {
            const X* from = row(k) + at;
            const T* d = dlogit + k * heads.count + head;
            const T* more = has_edge ? edge(k) + at : nullptr;
            T* of_edge = has_edge && dedge.data ? dedge(k) + at : nullptr;
            unroll<G * N>([&](auto v) __attribute__((always_inline)) {
                const Vector<T, L> above = d[v / N] + Vector<T, L>{};
                auto x = mine[v] + load<L>(from + v * L);
                if constexpr (has_edge) x += load<L>(more + v * L);
                const Vector<T, L> by = x > T(0) ? above : above * slope;
                of_sum[v] += by;
                of_att[v] += x * by;
                if (has_edge && of_edge) {
                    store<L>(of_edge + v * L,
                             load<L>(of_edge + v * L) + load<L>(tile + v * L) * by);
                }
            });
        }
        T sums[G * W], of_atts[G * W];
        unroll<G * N>([&](auto v) { store<L>(sums + v * L, of_sum[v]); });
        unroll<G * N>([&](auto v) { store<L>(of_atts + v * L, of_att[v]); });
        for (int h = 0; h < G; ++h) {
            for (int64_t f = h * W + done; f < h * W + W; ++f) dsum[at + f] += tile[f] * sums[f];
            if (!datt) continue;
            for (int64_t f = h * W + done; f < h * W + W; ++f) datt[at + f] += of_atts[f];
        }
    });
}

template <typename T, typename Own, typename X>
inline void gatv2_grad_run(Heads heads, int64_t num_edges, const Own* own, const T* att, T slope,
                           const T* dlogit, T* dsum, T* datt, const RunRows<X>& row,
                           const RunEdges<const T>& edge, const RunEdges<T>& dedge) {
    const auto run =
        edge.data ? &gatv2_grad_run_of<true, T, Own, X> : &gatv2_grad_run_of<false, T, Own, X>;
    run(heads, num_edges, own, att, slope, dlogit, dsum, datt, row, edge, dedge);
}

template <typename X, typename T>
void gatv2(const EdgeRanges& edges, Heads heads, Rows<const X> source, const T* target_x,
           const T* att, const T* edge, double slope, const CoefficientDropout& drop, Softmax<T> s,
           bool accumulate) {
    const int64_t width = width_of(heads);
    const auto rows_at = [&](const int32_t* cols) {
        return RunRows<X>{source.data, source.stride, cols, edges.col_offset};
    };
    attend<X>(
        edges, heads, drop, s, accumulate, {columns_of(source.data, source.stride)},
        [&](const Run& r, T* logit, const Fetch& fetch) {
            for (const Segment& of : r) {
                gatv2_logits(heads, of.count, target_x + target(edges, of.row) * width, att,
                             static_cast<T>(slope), logit + of.at * heads.count,
                             rows_at(r.col + of.at), edges_at(edge, of.edge, width),
                             fetch.from(of.at));
            }
        },
        [&](const Segment& of, const int32_t* cols, const T* weight, const Onto<T>& onto, T* out,
            const Asks&) {
            add_run(heads, of.count, weight, onto, out, rows_at(cols), RunEdges<const T>{}, kNoFetch);
        });
}

// dtarget, datt and dedge. parts: [kParts, H C] to sum datt in.
template <typename X, typename T>
void gatv2_grad_target(const EdgeRanges& edges, Heads heads, Rows<const X> source,
                       const T* target_x, const T* att, const T* edge, Targets<T> targets,
                       double slope, const CoefficientDropout& drop, T* dtarget, T* datt, T* dedge,
                       T* parts) {
    const int64_t H = heads.count, width = width_of(heads), run = run_length<X>(heads);
    const T below = static_cast<T>(slope);
    for_each_part(edges, kParts, edges.num_edges * width, [&](int64_t part, int64_t first,
                                                              int64_t last) {
        T* sums = parts + part * width;
        for (int64_t f = 0; f < width; ++f) sums[f] = 0;
        if (first == last) return;
        Fetch fetch(edges, first, {columns_of(source.data, source.stride)});
        for (int64_t i = first; i < last; ++i) {
            const int64_t t = target(edges, i);
            const T* mine = target_x + t * width;
            Grads<T> g;
            for (int64_t e = edges.begin[i]; e < edges.end[i]; e += run) {
                const int64_t count = smaller(run, edges.end[i] - e);
                stage_targets(g, targets.state, 3 * H, H, count, [&](int64_t) { return t; });
                const RunRows<X> row = {source.data, source.stride, edges.cols + e,
                                        edges.col_offset};
                const RunEdges<const T> more = edges_at(edge, e, width);
                fetch.next_run(count);
                gatv2_logits(heads, count, mine, att, below, g.logit.at, row, more, fetch.from(0));
                dot_run(heads, count, targets.dout + t * width, g.dweight.at, row,
                        RunEdges<const T>{}, kNoFetch);
                finish_run(g, count, H, drop, [&](int64_t k) { return drop.ids[e + k]; });
                gatv2_grad_run(heads, count, mine, att, below, g.dweight.at, dtarget + t * width,
                               sums, row, more, edges_at(dedge, e, width));
            }
        }
    });
    for (int64_t part = 0; part < kParts; ++part) {
        for (int64_t f = 0; f < width; ++f) datt[f] += parts[part * width + f];
    }
}

template <typename X, typename T>
void gatv2_grad_source(const EdgesBySource& by_source, Heads heads, Rows<const X> source,
                       const T* target_x, const T* att, const T* edge, Targets<T> targets,
                       double slope, const CoefficientDropout& drop, Rows<T> dsource) {
    const EdgeRanges& edges = by_source.ranges;
    const int64_t H = heads.count, width = width_of(heads), run = run_length<T>(heads);
    const T below = static_cast<T>(slope);
    const auto of_row = [&](int64_t i, Fetch& fetch) {
        const int64_t j = target(edges, i);
        const X* mine = source.data + j * source.stride;
        T* own = dsource.data + j * dsource.stride;
        Grads<T> g;
        for (int64_t e = edges.begin[i]; e < edges.end[i]; e += run) {
            const int64_t count = smaller(run, edges.end[i] - e);
            const int32_t* to = edges.cols + e;
            stage_targets(g, targets.state, 3 * H, H, count, [&](int64_t k) { return to[k]; });
            const RunRows<T> row = {target_x, width, to, 0}, dout = {targets.dout, width, to, 0};
            const RunEdges<const T> more = {edge, edge ? by_source.index + e : nullptr, width};
            fetch.next_run(count);
            gatv2_logits(heads, count, mine, att, below, g.logit.at, row, more, fetch.from(0));
            dot_run(heads, count, mine, g.dweight.at, dout, RunEdges<const T>{}, kNoFetch);
            finish_run(g, count, H, drop,
                       [&](int64_t k) { return drop.ids[by_source.index[e + k]]; });
            add_run(heads, count, g.logit.at, kOnto<T>, own, dout,
                    RunEdges<const T>{}, kNoFetch);
            gatv2_grad_run(heads, count, mine, att, below, g.dweight.at, own,
                           static_cast<T*>(nullptr), row, more, RunEdges<T>{});
        }
    };
    for_each_fetching_row(edges, width,
                          {columns_of(target_x, width), columns_of(targets.dout, width),
                           whole_rows(targets.state, 3 * H, 3 * H)},
                          of_row);
}

// ---- dot -------------------------------------------------------------------------------------

template <typename T>
inline T dot_scale(Heads heads) {
    return static_cast<T>(1 / __builtin_sqrt(static_cast<double>(larger(1, heads.channels))));
}

template <typename T>
inline void scale_run(T* x, int64_t count, T factor) {
#pragma omp simd
    for (int64_t k = 0; k < count; ++k) x[k] *= factor;
}

template <typename X, typename T>
void dot(const EdgeRanges& edges, Heads heads, Rows<const X> key, Rows<const X> value,
         const T* query, const T* edge, const CoefficientDropout& drop, Softmax<T> s,
         bool accumulate) {
    const int64_t width = width_of(heads);
    const T factor = dot_scale<T>(heads);
    attend<X>(
        edges, heads, drop, s, accumulate,
        {columns_of(key.data, key.stride), columns_of(value.data, value.stride)},
        [&](const Run& r, T* logit, const Fetch& fetch) {
            for (const Segment& of : r) {
                dot_run(heads, of.count, query + target(edges, of.row) * width,
                        logit + of.at * heads.count,
                        RunRows<X>{key.data, key.stride, r.col + of.at, edges.col_offset},
                        edges_at(edge, of.edge, width), fetch.from(of.at));
            }
            scale_run(logit, r.num_edges * heads.count, factor);
        },
        [&](const Segment& of, const int32_t* cols, const T* weight, const Onto<T>& onto, T* out,
            const Asks&) {
            add_run(heads, of.count, weight, onto, out,
                    RunRows<X>{value.data, value.stride, cols, edges.col_offset},
                    edges_at(edge, of.edge, width), kNoFetch);
        });
}

// dquery and dedge.
template <typename X, typename T>
void dot_grad_target(const EdgeRanges& edges, Heads heads, Rows<const X> key, Rows<const X> value,
                     const T* query, const T* edge, Targets<T> targets,
                     const CoefficientDropout& drop, T* dquery, T* dedge) {
    const int64_t H = heads.count, width = width_of(heads), run = run_length<X>(heads);
    const T factor = dot_scale<T>(heads);
    const auto of_row = [&](int64_t i, Fetch& fetch) {
        const int64_t t = target(edges, i);
        const T* q = query + t * width;
        const T* dout = targets.dout + t * width;
        Grads<T> g;
        for (int64_t e = edges.begin[i]; e < edges.end[i]; e += run) {
            const int64_t count = smaller(run, edges.end[i] - e);
            const int32_t* cols = edges.cols + e;
            stage_targets(g, targets.state, 3 * H, H, count, [&](int64_t) { return t; });
            const RunRows<X> keys = {key.data, key.stride, cols, edges.col_offset};
            const RunRows<X> values = {value.data, value.stride, cols, edges.col_offset};
            const RunEdges<const T> more = edges_at(edge, e, width);
            fetch.next_run(count);
            dot_run(heads, count, q, g.logit.at, keys, more, fetch.from(0));
            scale_run(g.logit.at, count * H, factor);
            dot_run(heads, count, dout, g.dweight.at, values, more, kNoFetch);
            finish_run(g, count, H, drop, [&](int64_t k) { return drop.ids[e + k]; });
            scale_run(g.dweight.at, count * H, factor);
            add_run(heads, count, g.dweight.at, kOnto<T>, dquery + t * width,
                    keys, more, kNoFetch);
            if (!dedge) continue;
            for (int64_t k = 0; k < count; ++k) {
                for (int64_t h = 0; h < H; ++h) {
                    const int64_t at = h * heads.channels;
                    const T of_query = g.dweight.at[k * H + h], of_dout = g.logit.at[k * H + h];
                    T* to = dedge + (e + k) * width + at;
#pragma omp simd
                    for (int64_t c = 0; c < heads.channels; ++c) {
                        to[c] += of_query * q[at + c] + of_dout * dout[at + c];
                    }
                }
            }
        }
    };
    for_each_fetching_row(
        edges, width, {columns_of(key.data, key.stride), columns_of(value.data, value.stride)}, of_row);
}

// In the inner products with query and dout the edge's row is added to the source's, as it is by
// target: a row of its own for every edge.
template <typename X, typename T>
void dot_grad_source(const EdgesBySource& by_source, Heads heads, Rows<const X> key,
                     Rows<const X> value, const T* query, const T* edge, Targets<T> targets,
                     const CoefficientDropout& drop, Rows<T> dkey, Rows<T> dvalue) {
    const EdgeRanges& edges = by_source.ranges;
    const int64_t H = heads.count, width = width_of(heads), run = run_length<T>(heads);
    const T factor = dot_scale<T>(heads);
    const auto of_row = [&](int64_t i, Fetch& fetch) {
        const int64_t j = target(edges, i);
        const X* own_key = key.data + j * key.stride;
        const X* own_value = value.data + j * value.stride;
        Grads<T> g;
        for (int64_t e = edges.begin[i]; e < edges.end[i]; e += run) {
            const int64_t count = smaller(run, edges.end[i] - e);
            const int32_t* to = edges.cols + e;
            stage_targets(g, targets.state, 3 * H, H, count, [&](int64_t k) { return to[k]; });
            fetch.next_run(count);
            const RunRows<T> queries = {query, width, to, 0}, dout = {targets.dout, width, to, 0};
            if (edge) {
                for (int64_t k = 0; k < count; ++k) {
                    const T* more = edge + by_source.index[e + k] * width;
                    const T *q = queries(k), *d = dout(k);
                    for (int64_t h = 0; h < H; ++h) {
                        T logit = 0, dweight = 0;
#pragma omp simd reduction(+ : logit, dweight)
                        for (int64_t f = h * heads.channels; f < (h + 1) * heads.channels; ++f) {
                            logit += q[f] * (widen(own_key[f]) + more[f]);
                            dweight += d[f] * (widen(own_value[f]) + more[f]);
                        }
                        g.logit.at[k * H + h] = logit;
                        g.dweight.at[k * H + h] = dweight;
                    }
                }
            } else {
                dot_run(heads, count, own_key, g.logit.at, queries, RunEdges<const T>{},
                        fetch.from(0));
                dot_run(heads, count, own_value, g.dweight.at, dout, RunEdges<const T>{}, kNoFetch);
            }
            scale_run(g.logit.at, count * H, factor);
            finish_run(g, count, H, drop,
                       [&](int64_t k) { return drop.ids[by_source.index[e + k]]; });
            scale_run(g.dweight.at, count * H, factor);
            add_run(heads, count, g.logit.at, kOnto<T>, dvalue.data + j * dvalue.stride, dout,
                    RunEdges<const T>{}, kNoFetch);
            add_run(heads, count, g.dweight.at, kOnto<T>, dkey.data + j * dkey.stride, queries,
                    RunEdges<const T>{}, kNoFetch);
        }
    };
    for_each_fetching_row(edges, width,
                          {columns_of(query, width), columns_of(targets.dout, width),
                           whole_rows(targets.state, 3 * H, 3 * H)},
                          of_row);
}

// out[i, h] = <x[i, h], y[i, h]>, or <x[i], y[i, h]> where x has the channels of one head.
template <typename X, typename T>
void head_dots(Heads heads, int64_t num_rows, const T* x, int64_t x_width, const X* y, Rows<T> out) {
    const int64_t step = x_width < width_of(heads) ? 0 : heads.channels;
    for_each_row(num_rows, num_rows * width_of(heads), [&](int64_t i) {
        for (int64_t h = 0; h < heads.count; ++h) {
            const T* own = x + i * x_width + h * step;
            const X* other = y + (i * heads.count + h) * heads.channels;
            T sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int64_t c = 0; c < heads.channels; ++c) sum += own[c] * widen(other[c]);
            out.data[i * out.stride + h] = sum;
        }
    });
}

}  // namespace FULLGRAPH_ISA
}  // namespace fullgraph
