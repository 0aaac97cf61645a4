// Dropout with a mask from a counter: Philox4x32-10 (Salmon et al., "Parallel random numbers: as
// easy as 1, 2, 3", SC 2011), which gives four draws for each counter.
//
// Key: the seed. Counter: low 32 bits of the row's id; its next 16 bits, with the layer above them;
// column / 4; the step. The draw of column c is word c % 4.
#pragma once

#include "common.h"

namespace fullgraph {

struct DropoutKey {
    uint64_t seed;
    uint32_t step;
    uint32_t layer;
};

namespace FULLGRAPH_ISA {

// Counters are worked on this many at a time, for the compiler to vectorise.
constexpr int kLanes = 16;

struct Counters {
    uint32_t word[4][kLanes];
};

inline void philox(Counters& c, uint64_t seed) {
    uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
#pragma omp simd
        for (int j = 0; j < kLanes; ++j) {
            const uint64_t a = uint64_t(c.word[0][j]) * 0xD2511F53u;
            const uint64_t b = uint64_t(c.word[2][j]) * 0xCD9E8D57u;
            c.word[0][j] = static_cast<uint32_t>(b >> 32) ^ c.word[1][j] ^ key0;
            c.word[2][j] = static_cast<uint32_t>(a >> 32) ^ c.word[3][j] ^ key1;
            c.word[1][j] = static_cast<uint32_t>(b);
            c.word[3][j] = static_cast<uint32_t>(a);
        }
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}

// Sets counter j to: the row with this id, columns 4 * block .. 4 * block + 3.
inline void set_counter(Counters& c, int64_t j, int64_t id, int64_t block, const DropoutKey& key) {
    c.word[0][j] = static_cast<uint32_t>(id);
    c.word[1][j] = static_cast<uint32_t>((id >> 32) & 0xffff) | key.layer << 16;
    c.word[2][j] = static_cast<uint32_t>(block);
    c.word[3][j] = key.step;
}

// The four draws of one counter, for tests against published values.
inline void draws_of(uint32_t* draws, int64_t id, int64_t block, const DropoutKey& key) {
    Counters c = {};
    set_counter(c, 0, id, block, key);
    philox(c, key.seed);
    for (int k = 0; k < 4; ++k) draws[k] = c.word[k][0];
}

// out = x * scale where the draw is at least threshold (0 .. 2^32), else 0. out may be x.
// Narrow rows share a set of counters; wide ones take several.
template <typename X>
void dropout(const X* x, const int64_t* ids, X* out, int64_t num_rows, int64_t num_cols,
             uint64_t threshold, double scale, DropoutKey key) {
    using T = decltype(widen(X{}));
    const T factor = static_cast<T>(scale);
    const int64_t num_blocks = (num_cols + 3) / 4;
    const int64_t rows_at_once = larger(1, kLanes / larger(1, num_blocks));
    const int64_t num_groups = (num_rows + rows_at_once - 1) / rows_at_once;
    for_each_row(num_groups, num_rows * num_cols, [&](int64_t group) {
        const int64_t first_row = group * rows_at_once;
        const int64_t last_row = smaller(num_rows, first_row + rows_at_once);
        Counters c = {};
        uint32_t draws[4 * kLanes];
        for (int64_t block = 0; block < num_blocks; block += kLanes) {
            const int64_t blocks = smaller(kLanes, num_blocks - block);
            for (int64_t i = first_row, j = 0; i < last_row; ++i) {
                for (int64_t b = block; b < block + blocks; ++b, ++j) {
                    set_counter(c, j, ids[i], b, key);
                }
            }
            philox(c, key.seed);
            for (int j = 0; j < kLanes; ++j) {
                for (int k = 0; k < 4; ++k) draws[4 * j + k] = c.word[k][j];
            }
            const int64_t width = smaller(4 * blocks, num_cols - 4 * block);
            for (int64_t i = first_row; i < last_row; ++i) {
                const uint32_t* draw = draws + (i - first_row) * 4 * blocks;
                const X* from = x + i * num_cols + 4 * block;
                X* to = out + i * num_cols + 4 * block;
#pragma omp simd
                for (int64_t f = 0; f < width; ++f) {
                    to[f] = narrow<X>(draw[f] >= threshold ? widen(from[f]) * factor : T(0));
                }
            }
        }
    });
}

}  // namespace FULLGRAPH_ISA
}  // namespace fullgraph
