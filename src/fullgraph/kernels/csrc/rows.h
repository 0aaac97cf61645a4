// Moving rows: gathering those that another rank needs, and adding what comes back.
#pragma once

#include "common.h"

namespace fullgraph::FULLGRAPH_ISA {

// out[i, :] = x[index[i], :], of whatever type, as bytes.
inline void gather_rows(const uint8_t* x, const int32_t* index, uint8_t* out, int64_t num_rows,
                        int64_t num_bytes) {
    for_each_row(num_rows, num_rows * num_bytes, [&](int64_t i) {
        if (i + kAhead < num_rows) prefetch_row(x, index[i + kAhead], num_bytes, 0, num_bytes);
        if (num_bytes) std::memcpy(out + i * num_bytes, x + index[i] * num_bytes, num_bytes);
    });
}

// out[i, :] = x[index[i], :], rounded to bfloat16.
inline void gather_rows_rounded(const float* x, const int32_t* index, bf16* out, int64_t num_rows,
                                int64_t num_cols) {
    for_each_row(num_rows, num_rows * num_cols, [&](int64_t i) {
        if (i + kAhead < num_rows) prefetch_row(x, index[i + kAhead], num_cols, 0, num_cols);
        const float* from = x + index[i] * num_cols;
        bf16* to = out + i * num_cols;
#pragma omp simd
        for (int64_t f = 0; f < num_cols; ++f) to[f] = narrow<bf16>(from[f]);
    });
}

// out[index[i], :] += x[i, :]. The indices are distinct, so no two threads write one row.
template <typename X>
void scatter_add_rows(X* out, const int32_t* index, const X* x, int64_t num_rows,
                      int64_t num_cols) {
    for_each_row(num_rows, num_rows * num_cols, [&](int64_t i) {
        if (i + kAhead < num_rows) prefetch_row(out, index[i + kAhead], num_cols, 0, num_cols);
        X* to = out + index[i] * num_cols;
        const X* from = x + i * num_cols;
#pragma omp simd
        for (int64_t f = 0; f < num_cols; ++f) to[f] = narrow<X>(widen(to[f]) + widen(from[f]));
    });
}

}  // namespace fullgraph::FULLGRAPH_ISA
