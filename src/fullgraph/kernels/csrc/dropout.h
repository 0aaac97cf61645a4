// Dropout with a mask from a counter: Philox4x32-10 (Salmon et al., "Parallel random numbers: as
// easy as 1, 2, 3", SC 2011), which gives four draws for each counter.
//
// Key: the seed. Counter: low 32 bits of the row's id; its next 16 bits, with the layer above them;
// column / 4; the step. The draw of column c is word c % 4.
#pragma once

#include "vectors.h"

namespace fullgraph {

struct DropoutKey {
    uint64_t seed;
    uint32_t step;
    uint32_t layer;
};

namespace FULLGRAPH_ISA {

// Counters are worked on this many at a time.
constexpr int kLanes = 16;

// How many such sets ahead the numbers that draws are for are asked for: the processor, busy with
// draws, does not get that far by itself.
constexpr int kSetsAhead = 16;

// Their four words, of 32 bits each.
struct Counters {
    uint64_t word[4][kLanes];
};

// Sets counter j to: the row with this id, columns 4 * block .. 4 * block + 3.
inline void set_counter(Counters& c, int64_t j, int64_t id, int64_t block, const DropoutKey& key) {
    c.word[0][j] = static_cast<uint32_t>(id);
    c.word[1][j] = static_cast<uint32_t>((id >> 32) & 0xffff) | key.layer << 16;
    c.word[2][j] = static_cast<uint32_t>(block);
    c.word[3][j] = key.step;
}

// draws[4 * j + k] = word k of what Philox gives for counter j.
inline void philox(const Counters& c, uint64_t seed, uint32_t* draws) {
    constexpr int L = kVectorBytes / 8, V = 2;  // lanes of a vector, and vectors worked on together
    using Words = Vector<uint64_t, L>;
    for (int first = 0; first < kLanes; first += V * L) {
        uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
        Words w[4][V];
        unroll<V>([&](auto v) {
            unroll<4>([&](auto k) {
                std::memcpy(&w[k][v], c.word[k] + first + v * L, sizeof(Words));
            });
        });
        for (int round = 0; round < 10; ++round) {
            unroll<V>([&](auto v) {
                const Words a = w[0][v] * 0xD2511F53u, b = w[2][v] * 0xCD9E8D57u;
                w[0][v] = b >> 32 ^ w[1][v] ^ key0;
                w[2][v] = a >> 32 ^ w[3][v] ^ key1;
                w[1][v] = b & 0xffffffffu;
                w[3][v] = a & 0xffffffffu;
            });
            key0 += 0x9E3779B9u;
            key1 += 0xBB67AE85u;
        }
        unroll<V>([&](auto v) {
            uint64_t low[L], high[L], both[2 * L];
            store<L>(low, Words(w[0][v] | w[1][v] << 32));
            store<L>(high, Words(w[2][v] | w[3][v] << 32));
#pragma omp simd
            for (int j = 0; j < L; ++j) {
                both[2 * j] = low[j];
                both[2 * j + 1] = high[j];
            }
            std::memcpy(draws + 4 * (first + v * L), both, sizeof both);
        });
    }
}

// The four draws of one counter, for tests against published values.
inline void draws_of(uint32_t* draws, int64_t id, int64_t block, const DropoutKey& key) {
    Counters c = {};
    uint32_t all[4 * kLanes];
    set_counter(c, 0, id, block, key);
    philox(c, key.seed, all);
    for (int k = 0; k < 4; ++k) draws[k] = all[k];
}

// out = x * scale where the draw is at least threshold (0 .. 2^32), else 0. out may be x.
// Narrow rows share a set of counters; wide ones take several.
template <typename X>
void dropout(const X* x, const int64_t* ids, X* out, int64_t num_rows, int64_t num_cols,
             uint64_t threshold, double scale, DropoutKey key) {
    using T = decltype(widen(X{}));
    const T factor = static_cast<T>(scale);
    const bool keeps_any = threshold <= 0xffffffffu;
    const uint32_t lowest = static_cast<uint32_t>(threshold);  // of the draws that are kept
    const auto mask = [=](const X* from, const uint32_t* draw, X* to, auto width) {
#pragma omp simd
        for (int64_t f = 0; f < width; ++f) {
            const T scaled = widen(from[f]) * factor;  // of every element: no branch
            to[f] = narrow<X>((draw[f] >= lowest) & keeps_any ? scaled : T(0));
        }
    };
    constexpr int kDraws = 4 * kLanes;
    const int64_t num_blocks = (num_cols + 3) / 4;
    const int64_t rows_at_once = larger(1, kLanes / larger(1, num_blocks));
    const int64_t num_groups = (num_rows + rows_at_once - 1) / rows_at_once;
    for_each_row(num_groups, num_rows * num_cols, [&](int64_t group) {
        const int64_t first_row = group * rows_at_once;
        const int64_t last_row = smaller(num_rows, first_row + rows_at_once);
        const int64_t id = ids[first_row];
        Counters c = {};
        uint32_t draws[kDraws];
        for (int64_t block = 0; block < num_blocks; block += kLanes) {
            const int64_t blocks = smaller(kLanes, num_blocks - block);
            if (rows_at_once == 1) {  // of all lanes, whether used or not
#pragma omp simd
                for (int j = 0; j < kLanes; ++j) set_counter(c, j, id, block + j, key);
            } else {
                for (int64_t i = first_row, j = 0; i < last_row; ++i) {
                    for (int64_t b = 0; b < blocks; ++b, ++j) set_counter(c, j, ids[i], b, key);
                }
            }
            philox(c, key.seed, draws);
            const int64_t width = smaller(4 * blocks, num_cols - 4 * block);
            for (int64_t i = first_row; i < last_row; ++i) {
                const uint32_t* draw = draws + (i - first_row) * 4 * blocks;
                const int64_t at = i * num_cols + 4 * block;
                prefetch_row(x, 0, 0, at + kSetsAhead * kDraws, width);
                if (width == kDraws) {
                    mask(x + at, draw, out + at, std::integral_constant<int64_t, kDraws>());
                } else {
                    mask(x + at, draw, out + at, width);
                }
            }
        }
    });
}

}  // namespace FULLGRAPH_ISA
}  // namespace fullgraph
