// Attention: a softmax over the edges into a row, which weighs what they bring.
//
// A softmax whose edges come in several lists is kept as the largest logit so far (top), the sum of
// exp(logit - top) (total), and the weighted mean of the values (out). Edges are taken in short
// runs: the logits of a run go to a small buffer [edge][head], which is then worked on as one
// vector; the rows that gave the logits are still in the cache when they are summed.
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

template <typename T>
inline T leaky(T x, T slope) {
    return x > 0 ? x : x * slope;
}

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

constexpr int64_t kRunBytes = 1 << 14;                // of rows, in the first-level cache
constexpr int64_t kBuffer = 1024;                     // elements of a run's [edge][head]
constexpr int64_t kLongestRun = 64;                   // edges
constexpr int64_t kRowsAhead = 8;                     // that a row of results is asked for
constexpr int64_t kSlack = kMaxHeads;                 // to fill up the last lanes
template <typename T>
struct Buffer {
    alignas(64) T at[kBuffer + kSlack];
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

// The least multiple of the number of heads that fills a vector; of common ones it is this.
constexpr int kFixedLanes = 16;
inline int64_t lanes_of(int64_t heads) {
    return heads >= kFixedLanes ? heads : ((kFixedLanes - 1) / heads + 1) * heads;
}

// Folds lanes [.., head] to one for each head: into[l] = fold(into[l], into[l + w]) for halves w.
template <int fixed, typename T, typename Fold>
inline void fold_lanes(T* into, int64_t heads, int64_t lanes, Fold fold) {
    if constexpr (fixed > 0) {
#pragma GCC unroll 4
        for (int width = kFixedLanes / 2; width >= fixed; width /= 2) {
#pragma omp simd
            for (int l = 0; l < width; ++l) into[l] = fold(into[l], into[l + width]);
        }
    } else {
        for (int64_t l = heads; l < lanes; ++l) {
            into[l % heads] = fold(into[l % heads], into[l]);
        }
    }
}

// Merges a run's logits x [edge][head] into top and total; they become exp(logit - top). What was
// summed before has to be multiplied by rescale [H]. fixed: the number of heads, or 0.
template <int fixed, typename T>
void merge_run_of(T* x, int64_t num_edges, int64_t num_heads, T* top, T* total, T* rescale) {
    const int64_t heads = fixed ? fixed : num_heads, count = num_edges * heads;
    const int64_t lanes = fixed ? kFixedLanes : lanes_of(heads);
    constexpr int64_t most = fixed ? kFixedLanes : kMaxHeads;
    const int64_t padded = (count + lanes - 1) / lanes * lanes;
    for (int64_t k = count; k < padded; ++k) x[k] = T(-kInfinity);
    T lane[most], sum[most];
    for (int64_t l = 0; l < lanes; ++l) lane[l] = x[l];
    for (int64_t k = lanes; k < padded; k += lanes) {
#pragma omp simd
        for (int64_t l = 0; l < lanes; ++l) lane[l] = x[k + l] > lane[l] ? x[k + l] : lane[l];
    }
    fold_lanes<fixed>(lane, heads, lanes, [](T a, T b) { return b > a ? b : a; });
    for (int64_t h = 0; h < heads; ++h) {
        const T best = lane[h] > top[h] ? lane[h] : top[h];
        rescale[h] = exp_below(top[h] - shift_of(best));
        top[h] = best;
    }
    for (int64_t l = 0; l < lanes; ++l) lane[l] = shift_of(top[l % heads]);
    for (int64_t l = 0; l < lanes; ++l) sum[l] = 0;
    for (int64_t k = 0; k < padded; k += lanes) {
#pragma omp simd
        for (int64_t l = 0; l < lanes; ++l) {
            const T weight = exp_below(x[k + l] - lane[l]);
            x[k + l] = weight;
            sum[l] += weight;
        }
    }
    fold_lanes<fixed>(sum, heads, lanes, [](T a, T b) { return a + b; });
    for (int64_t h = 0; h < heads; ++h) total[h] = total[h] * rescale[h] + sum[h];
}

template <typename T>
inline void merge_run(T* x, int64_t num_edges, int64_t heads, T* top, T* total, T* rescale) {
    with_heads(heads, [&](auto fixed) {
        merge_run_of<decltype(fixed)::value>(x, num_edges, heads, top, total, rescale);
    });
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

class Fetch {
public:
    Fetch() = default;  // asks for nothing

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

    // While edge k of the run is worked on, columns from `first` on. Inlined as in ahead_of.
    inline __attribute__((always_inline)) void operator()(int64_t k, int64_t first,
                                                          int64_t width) const {
        for (int s = 0; s < num_streams_; ++s) {
            const Stream& to = streams_[s];
            if (to.element == 0 && first > 0) continue;
            ask(to, rows_[k], first * to.element, to.element ? width * to.element : to.size);
        }
    }

private:
    static inline __attribute__((always_inline)) void ask(const Stream& of, int64_t row,
                                                          int64_t first, int64_t size) {
        prefetch_row(static_cast<const uint8_t*>(of.data), row, of.stride, first, size);
    }

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

constexpr Fetch kNoFetch = {};

// to = to · rescale + Σ over the run's edges k of weight[k] · (row(k) + edge(k)), a head at a time.
// rescale null: ones.
template <bool has_edge, typename T, typename X>
__attribute__((noinline)) void add_run_of(Heads heads, int64_t num_edges, const T* weight,
                                          const T* rescale, T* to, RunRows<X> row,
                                          RunEdges<const T> edge, const Fetch& fetch) {
    for_each_head_tile<T, 1>(heads, [&](int64_t head, int64_t first, int64_t done, auto g, auto w) {
        constexpr int G = decltype(g)::value, W = decltype(w)::value;
        constexpr int L = lanes_in<T, W>(), N = W / L;
        const int64_t at = head * heads.channels + first;
        Vector<T, L> sum[G * N] = {};
        for (int64_t k = 0; k < num_edges; ++k) {
            fetch(k, at, G * W);
            const X* from = row(k) + at;
            const T* scale = weight + k * heads.count + head;
            const T* more = has_edge ? edge(k) + at : nullptr;
            unroll<G * N>([&](auto v) __attribute__((always_inline)) {
                auto x = load<L>(from + v * L);
                if constexpr (has_edge) x += load<L>(more + v * L);
                sum[v] += scale[v / N] * x;
            });
        }
        T sums[G * W];
        unroll<G * N>([&](auto v) { store<L>(sums + v * L, sum[v]); });
        T* out = to + at;
        for (int h = 0; h < G; ++h) {
            const T factor = rescale ? rescale[head + h] : T(1);
            for (int64_t f = h * W + done; f < h * W + W; ++f) out[f] = out[f] * factor + sums[f];
        }
    });
}

template <typename T, typename X>
inline void add_run(Heads heads, int64_t num_edges, const T* weight, const T* rescale, T* to,
                    RunRows<X> row, RunEdges<const T> edge, const Fetch& fetch) {
    const auto run = edge.data ? &add_run_of<true, T, X> : &add_run_of<false, T, X>;
    run(heads, num_edges, weight, rescale, to, row, edge, fetch);
}

// The tile's part of x, as numbers; 0 where another tile has been.
template <typename T, typename X>
inline void load_tile(T* tile, const X* x, int64_t size, int64_t done) {
    for (int64_t f = 0; f < size; ++f) tile[f] = widen(x[f]);
    for (int64_t f = 0; f < done; ++f) tile[f] = 0;
}

// dot[k] = <own, row(k) + edge(k)>, a head at a time, for the run's edges k.
template <bool has_edge, typename T, typename Own, typename X>
__attribute__((noinline)) void dot_run_of(Heads heads, int64_t num_edges, const Own* own, T* dot,
                                          RunRows<X> row, RunEdges<const T> edge,
                                          const Fetch& fetch) {
    for_each_head_tile<T, 1>(heads, [&](int64_t head, int64_t first, int64_t done, auto g, auto w) {
        constexpr int G = decltype(g)::value, W = decltype(w)::value;
        constexpr int L = lanes_in<T, W>(), N = W / L;
        const int64_t at = head * heads.channels + first;
        T tile[G * W];
        load_tile(tile, own + at, G * W, done);
        Vector<T, L> mine[G * N];
        unroll<G * N>([&](auto v) { mine[v] = load<L>(tile + v * L); });
        for (int64_t k = 0; k < num_edges; ++k) {
            fetch(k, at, G * W);
            const X* from = row(k) + at;
            T* to = dot + k * heads.count + head;
            const T* more = has_edge ? edge(k) + at : nullptr;
            unroll<G>([&](auto h) __attribute__((always_inline)) {
                Vector<T, L> sum = {};
                unroll<N>([&](auto v) __attribute__((always_inline)) {
                    auto x = load<L>(from + h * W + v * L);
                    if constexpr (has_edge) x += load<L>(more + h * W + v * L);
                    sum += mine[h * N + v] * x;
                });
                const T total = sum_of<L, T>(sum);
                to[h] = first ? to[h] + total : total;
            });
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
inline void dot_run(Heads heads, int64_t num_edges, const Own* own, T* dot, RunRows<X> row,
                    RunEdges<const T> edge, const Fetch& fetch) {
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

// Calls row(i, fetch) for every row, with what asks for the streams of its edges, run by run.
template <int N, typename Row>
inline void for_each_fetching_row(const EdgeRanges& edges, int64_t width,
                                  const Stream (&streams)[N], Row row) {
    for_each_batch(edges.num_rows, edges.num_edges * width, [&](int64_t first, int64_t last) {
        Fetch fetch(edges, first, streams);
        for (int64_t i = first; i < last; ++i) row(i, fetch);
    });
}

// The forward pass: logits(target, first edge, how many, buffer, fetch) fills [edge][head];
// add(first edge, how many, weights, rescale, row of out, fetch) sums what they weigh. One of the two
// asks for the streams.
template <typename X, typename T, int N, typename Logits, typename Add>
void attend(const EdgeRanges& edges, Heads heads, const CoefficientDropout& drop, Softmax<T> s,
            bool accumulate, const Stream (&streams)[N], Logits logits, Add add) {
    const int64_t H = heads.count, width = width_of(heads), run = run_length<X>(heads);
    for_each_fetching_row(edges, width, streams, [&](int64_t i, Fetch& fetch) {
        const int64_t begin = edges.begin[i], end = edges.end[i];
        if (begin == end && accumulate) return;
        const int64_t t = target(edges, i);
        T* out = s.out + t * width;
        T* top = s.top + t * H;
        T* total = s.total + t * H;
        Buffer<T> weight, keep;
        T before[kMaxHeads], rescale[kMaxHeads];  // what out is to be multiplied with
        if (accumulate) {
            const int64_t next = target(edges, smaller(i + kRowsAhead, edges.num_rows - 1));
            prefetch_row(s.out, next, width, 0, width);
            for (int64_t h = 0; h < H; ++h) before[h] = total[h];
        } else {
            for (int64_t f = 0; f < width; ++f) out[f] = 0;
            for (int64_t h = 0; h < H; ++h) top[h] = T(-kInfinity), total[h] = 0, before[h] = 1;
        }
        for (int64_t e = begin; e < end; e += run) {
            const int64_t count = smaller(run, end - e);
            fetch.next_run(count);
            logits(t, e, count, weight.at, fetch);
            merge_run(weight.at, count, H, top, total, rescale);
            if (drop.ids) {
                draw_run(keep.at, count, H, drop, [&](int64_t k) { return drop.ids[e + k]; });
                for (int64_t k = 0; k < count * H; ++k) weight.at[k] *= keep.at[k];
            }
            for (int64_t h = 0; h < H; ++h) rescale[h] *= before[h], before[h] = 1;
            add(e, count, weight.at, rescale, out, fetch);
        }
        for (int64_t h = 0; h < H; ++h) {
            const T scale = inverse(total[h]);
            for (int64_t c = 0; c < heads.channels; ++c) out[h * heads.channels + c] *= scale;
        }
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
    const auto source = [&](int64_t e) { return edges.cols[e] - edges.col_offset; };
    attend<X>(
        edges, heads, drop, s, accumulate,
        {columns_of(value.data, value.stride), whole_rows(source_logit.data, source_logit.stride, H)},
        [&](int64_t t, int64_t e, int64_t count, T* logit, const Fetch&) {
            with_heads(H, [&](auto fixed) {
                constexpr int F = decltype(fixed)::value;
                const int64_t N = F ? F : H;
                for (int64_t k = 0; k < count; ++k) {
                    const X* from = source_logit.data + source(e + k) * source_logit.stride;
                    for (int64_t h = 0; h < N; ++h) {
                        logit[k * N + h] = widen(from[h]) + target_logit[t * N + h];
                    }
                }
                if (edge_logit) {
                    for (int64_t k = 0; k < count * N; ++k) logit[k] += edge_logit[e * N + k];
                }
            });
#pragma omp simd
            for (int64_t k = 0; k < count * H; ++k) logit[k] = leaky(logit[k], below);
        },
        [&](int64_t e, int64_t count, const T* weight, const T* rescale, T* out, const Fetch& fetch) {
            add_run(heads, count, weight, rescale, out,
                    RunRows<X>{value.data, value.stride, edges.cols + e, edges.col_offset},
                    RunEdges<const T>{}, fetch);
        });
}

// All gradients, by source. parts: [num_parts, n, H] to sum dtarget_logit in.
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
        T* sums = parts + part * size;
        for (int64_t k = 0; k < size; ++k) sums[k] = 0;
        if (first == last) return;
        Fetch fetch(edges, first, {columns_of(targets.dout, targets.dout_width),
                                   whole_rows(targets.state, 4 * H, 4 * H), whole_rows(sums, H, H)});
        for (int64_t j = first; j < last; ++j) {
            Grads<T> g;
            Buffer<T> raw;
            T of_head[kLongestRun];
            const X* mine = source_logit.data + j * source_logit.stride;
            const X* own_value = value.data + j * value.stride;
            T* own_dvalue = dvalue.data + j * dvalue.stride;
            T* own_dlogit = dsource_logit.data + j * dsource_logit.stride;
            if (!accumulate) {
                for (int64_t f = 0; f < width; ++f) own_dvalue[f] = 0;
                for (int64_t h = 0; h < H; ++h) own_dlogit[h] = 0;
            }
            for (int64_t e = edges.begin[j]; e < edges.end[j]; e += run) {
                const int64_t count = smaller(run, edges.end[j] - e);
                const int32_t* to = edges.cols + e;
                stage_targets(g, targets.state, 4 * H, H, count, [&](int64_t k) { return to[k]; });
                with_heads(H, [&](auto fixed) {
                    constexpr int F = decltype(fixed)::value;
                    const int64_t N = F ? F : H;
                    for (int64_t k = 0; k < count; ++k) {
                        const T* theirs = targets.state + to[k] * 4 * N + 3 * N;
                        for (int64_t h = 0; h < N; ++h) {
                            raw.at[k * N + h] = widen(mine[h]) + theirs[h];
                        }
                        if (edge_logit) {
                            const T* own = edge_logit + by_source.index[e + k] * N;
                            for (int64_t h = 0; h < N; ++h) raw.at[k * N + h] += own[h];
                        }
                    }
                });
#pragma omp simd
                for (int64_t k = 0; k < count * H; ++k) g.logit.at[k] = leaky(raw.at[k], below);
                const RunRows<T> dout = {targets.dout, targets.dout_width, to, 0};
                fetch.next_run(count);
                if (!shared) {
                    dot_run(heads, count, own_value, g.dweight.at, dout, RunEdges<const T>{}, fetch);
                }
                for (int64_t h = 0; shared && h < H; ++h) {
                    dot_run(one_head, count, own_value + h * heads.channels, of_head, dout,
                            RunEdges<const T>{}, h ? kNoFetch : fetch);
                    for (int64_t k = 0; k < count; ++k) g.dweight.at[k * H + h] = of_head[k];
                }
                finish_run(g, count, H, drop, [&](int64_t k) {
                    return drop.ids[by_source.index[e + k]];
                });
                const T* as_it_is = nullptr;
                if (!shared) {
                    add_run(heads, count, g.logit.at, as_it_is, own_dvalue, dout,
                            RunEdges<const T>{}, kNoFetch);
                }
                for (int64_t h = 0; shared && h < H; ++h) {
                    for (int64_t k = 0; k < count; ++k) of_head[k] = g.logit.at[k * H + h];
                    add_run(one_head, count, of_head, as_it_is, own_dvalue + h * heads.channels, dout,
                            RunEdges<const T>{}, kNoFetch);
                }
                T* draw = g.dweight.at;
#pragma omp simd
                for (int64_t k = 0; k < count * H; ++k) draw[k] *= raw.at[k] > 0 ? T(1) : below;
                with_heads(H, [&](auto fixed) {
                    constexpr int F = decltype(fixed)::value;
                    const int64_t N = F ? F : H;
                    for (int64_t k = 0; k < count; ++k) {
                        T* theirs = sums + to[k] * N;
                        for (int64_t h = 0; h < N; ++h) theirs[h] += draw[k * N + h];
                        for (int64_t h = 0; h < N; ++h) own_dlogit[h] += draw[k * N + h];
                        if (dedge_logit) {
                            T* of_edge = dedge_logit + by_source.index[e + k] * N;
                            for (int64_t h = 0; h < N; ++h) of_edge[h] += draw[k * N + h];
                        }
                    }
                });
            }
        }
    });
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
                                               const T* att, T slope, T* logit, RunRows<X> row,
                                               RunEdges<const T> edge, const Fetch& fetch) {
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
            fetch(k, at, G * W);
            const X* from = row(k) + at;
            T* to = logit + k * heads.count + head;
            const T* more = has_edge ? edge(k) + at : nullptr;
            unroll<G>([&](auto h) __attribute__((always_inline)) {
                Vector<T, L> sum = {};
                unroll<N>([&](auto v) __attribute__((always_inline)) {
                    auto x = mine[h * N + v] + load<L>(from + h * W + v * L);
                    if constexpr (has_edge) x += load<L>(more + h * W + v * L);
                    sum += scale[h * N + v] * (x > T(0) ? x : x * slope);
                });
                const T total = sum_of<L, T>(sum);
                to[h] = first ? to[h] + total : total;
            });
        }
    });
}

template <typename T, typename Own, typename X>
inline void gatv2_logits(Heads heads, int64_t num_edges, const Own* own, const T* att, T slope,
                         T* logit, RunRows<X> row, RunEdges<const T> edge, const Fetch& fetch) {
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
                                                 T* datt, RunRows<X> row, RunEdges<const T> edge,
                                                 RunEdges<T> dedge) {
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
                           const T* dlogit, T* dsum, T* datt, RunRows<X> row,
                           RunEdges<const T> edge, RunEdges<T> dedge) {
    const auto run =
        edge.data ? &gatv2_grad_run_of<true, T, Own, X> : &gatv2_grad_run_of<false, T, Own, X>;
    run(heads, num_edges, own, att, slope, dlogit, dsum, datt, row, edge, dedge);
}

template <typename X, typename T>
void gatv2(const EdgeRanges& edges, Heads heads, Rows<const X> source, const T* target_x,
           const T* att, const T* edge, double slope, const CoefficientDropout& drop, Softmax<T> s,
           bool accumulate) {
    const int64_t width = width_of(heads);
    const auto rows_at = [&](int64_t e) {
        return RunRows<X>{source.data, source.stride, edges.cols + e, edges.col_offset};
    };
    attend<X>(
        edges, heads, drop, s, accumulate, {columns_of(source.data, source.stride)},
        [&](int64_t t, int64_t e, int64_t count, T* logit, const Fetch& fetch) {
            gatv2_logits(heads, count, target_x + t * width, att, static_cast<T>(slope), logit,
                         rows_at(e), edges_at(edge, e, width), fetch);
        },
        [&](int64_t e, int64_t count, const T* weight, const T* rescale, T* out, const Fetch&) {
            add_run(heads, count, weight, rescale, out, rows_at(e), RunEdges<const T>{}, kNoFetch);
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
                gatv2_logits(heads, count, mine, att, below, g.logit.at, row, more, fetch);
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
            gatv2_logits(heads, count, mine, att, below, g.logit.at, row, more, fetch);
            dot_run(heads, count, mine, g.dweight.at, dout, RunEdges<const T>{}, kNoFetch);
            finish_run(g, count, H, drop,
                       [&](int64_t k) { return drop.ids[by_source.index[e + k]]; });
            add_run(heads, count, g.logit.at, static_cast<const T*>(nullptr), own, dout,
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
        [&](int64_t t, int64_t e, int64_t count, T* logit, const Fetch& fetch) {
            dot_run(heads, count, query + t * width, logit,
                    RunRows<X>{key.data, key.stride, edges.cols + e, edges.col_offset},
                    edges_at(edge, e, width), fetch);
            scale_run(logit, count * heads.count, factor);
        },
        [&](int64_t e, int64_t count, const T* weight, const T* rescale, T* out, const Fetch&) {
            add_run(heads, count, weight, rescale, out,
                    RunRows<X>{value.data, value.stride, edges.cols + e, edges.col_offset},
                    edges_at(edge, e, width), kNoFetch);
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
            dot_run(heads, count, q, g.logit.at, keys, more, fetch);
            scale_run(g.logit.at, count * H, factor);
            dot_run(heads, count, dout, g.dweight.at, values, more, kNoFetch);
            finish_run(g, count, H, drop, [&](int64_t k) { return drop.ids[e + k]; });
            scale_run(g.dweight.at, count * H, factor);
            add_run(heads, count, g.dweight.at, static_cast<const T*>(nullptr), dquery + t * width,
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
                dot_run(heads, count, own_key, g.logit.at, queries, RunEdges<const T>{}, fetch);
                dot_run(heads, count, own_value, g.dweight.at, dout, RunEdges<const T>{}, kNoFetch);
            }
            scale_run(g.logit.at, count * H, factor);
            finish_run(g, count, H, drop,
                       [&](int64_t k) { return drop.ids[by_source.index[e + k]]; });
            scale_run(g.dweight.at, count * H, factor);
            const T* as_it_is = nullptr;
            add_run(heads, count, g.logit.at, as_it_is, dvalue.data + j * dvalue.stride, dout,
                    RunEdges<const T>{}, kNoFetch);
            add_run(heads, count, g.dweight.at, as_it_is, dkey.data + j * dkey.stride, queries,
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
