// The kernels of one instruction set, as function pointers.
#pragma once

#include <cstdint>

#ifndef FULLGRAPH_ISA
#define FULLGRAPH_ISA declared
#endif
#include "attention.h"
#include "common.h"
#include "dropout.h"

namespace fullgraph {

template <typename X, typename T>
struct EdgeKernels {
    void (*spmm)(const EdgeRanges&, const X*, Weights<T>, T*, int64_t, bool);
    void (*sddmm)(const EdgeRanges&, const X*, const T*, T*, int64_t);
    void (*extremum)(const EdgeRanges&, const X*, Weights<T>, T*, int32_t*, int64_t, bool);
    void (*extremum_grad_source)(const EdgeRanges&, const X*, Weights<T>, const T*, const T*, T*,
                                 int64_t);
    void (*extremum_grad_weight)(const EdgeRanges&, const X*, const T*, const T*, const T*, T*,
                                 int64_t);
};

template <typename X>
struct RowKernels {
    void (*scatter_add_rows)(X*, const int32_t*, const X*, int64_t, int64_t);
    void (*dropout)(const X*, const int64_t*, X*, int64_t, int64_t, uint64_t, double, DropoutKey);
};

template <typename T>
struct DenseKernels {
    void (*dense)(const T*, const T*, int64_t, int64_t, const T*, T*, int64_t, int64_t, int64_t,
                  bool);
    void (*dense_weight_grad)(const T*, const T*, T*, T*, int64_t, int64_t, int64_t);
};

template <typename X, typename T>
struct AttentionKernels {
    using Sources = Rows<const X>;
    using Drop = const CoefficientDropout&;

    void (*gat)(const EdgeRanges&, Heads, Sources, Sources, const T*, const T*, double, Drop,
                Softmax<T>, bool);
    void (*gat_grad)(const EdgesBySource&, Heads, Sources, Sources, const T*, Targets<T>, double,
                     Drop, Rows<T>, Rows<T>, T*, T*, T*, bool);
    void (*gatv2)(const EdgeRanges&, Heads, Sources, const T*, const T*, const T*, double, Drop,
                  Softmax<T>, bool);
    void (*gatv2_grad_target)(const EdgeRanges&, Heads, Sources, const T*, const T*, const T*,
                              Targets<T>, double, Drop, T*, T*, T*, T*);
    void (*gatv2_grad_source)(const EdgesBySource&, Heads, Sources, const T*, const T*, const T*,
                              Targets<T>, double, Drop, Rows<T>);
    void (*dot)(const EdgeRanges&, Heads, Sources, Sources, const T*, const T*, Drop, Softmax<T>,
                bool);
    void (*dot_grad_target)(const EdgeRanges&, Heads, Sources, Sources, const T*, const T*,
                            Targets<T>, Drop, T*, T*);
    void (*dot_grad_source)(const EdgesBySource&, Heads, Sources, Sources, const T*, const T*,
                            Targets<T>, Drop, Rows<T>, Rows<T>);
    void (*head_dots)(Heads, int64_t, const T*, int64_t, const X*, Rows<T>);
};

struct Table {
    EdgeKernels<float, float> edges_f32;
    EdgeKernels<double, double> edges_f64;
    EdgeKernels<bf16, float> edges_bf16;
    AttentionKernels<float, float> attention_f32;
    AttentionKernels<double, double> attention_f64;
    AttentionKernels<bf16, float> attention_bf16;
    RowKernels<float> rows_f32;
    RowKernels<double> rows_f64;
    RowKernels<bf16> rows_bf16;
    DenseKernels<float> dense_f32;
    DenseKernels<double> dense_f64;
    void (*gather_rows)(const uint8_t*, const int32_t*, uint8_t*, int64_t, int64_t);
    void (*gather_rows_rounded)(const float*, const int32_t*, bf16*, int64_t, int64_t);
    void (*draws_of)(uint32_t*, int64_t, int64_t, const DropoutKey&);

    template <typename X>
    const auto& edges() const {
        if constexpr (std::is_same_v<X, float>) return edges_f32;
        else if constexpr (std::is_same_v<X, double>) return edges_f64;
        else return edges_bf16;
    }
    template <typename X>
    const auto& attention() const {
        if constexpr (std::is_same_v<X, float>) return attention_f32;
        else if constexpr (std::is_same_v<X, double>) return attention_f64;
        else return attention_bf16;
    }
    template <typename X>
    const auto& rows() const {
        if constexpr (std::is_same_v<X, float>) return rows_f32;
        else if constexpr (std::is_same_v<X, double>) return rows_f64;
        else return rows_bf16;
    }
    template <typename T>
    const auto& dense() const {
        if constexpr (std::is_same_v<T, float>) return dense_f32;
        else return dense_f64;
    }
};

namespace baseline { Table table(); }
namespace avx2 { Table table(); }
namespace avx512 { Table table(); }

}  // namespace fullgraph
