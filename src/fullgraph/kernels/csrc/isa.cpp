// All kernels, compiled once for each instruction set: FULLGRAPH_ISA is baseline, avx2 or avx512.
#include "table.h"

#include "attention.h"
#include "dense.h"
#include "extremum.h"
#include "rows.h"
#include "spmm.h"

namespace fullgraph::FULLGRAPH_ISA {

template <typename X, typename T>
EdgeKernels<X, T> edge_kernels() {
    return {&spmm<X, T>, &sddmm<X, T>, &extremum<X, T>, &extremum_grad_source<X, T>,
            &extremum_grad_weight<X, T>};
}

template <typename X, typename T>
AttentionKernels<X, T> attention_kernels() {
    return {&gat<X, T>,
            &gat_grad<X, T>,
            &gatv2<X, T>,
            &gatv2_grad_target<X, T>,
            &gatv2_grad_source<X, T>,
            &dot<X, T>,
            &dot_grad_target<X, T>,
            &dot_grad_source<X, T>,
            &head_dots<X, T>};
}

template <typename X>
RowKernels<X> row_kernels() {
    return {&scatter_add_rows<X>, &dropout<X>};
}

Table table() {
    return {edge_kernels<float, float>(),
            edge_kernels<double, double>(),
            edge_kernels<bf16, float>(),
            attention_kernels<float, float>(),
            attention_kernels<double, double>(),
            attention_kernels<bf16, float>(),
            row_kernels<float>(),
            row_kernels<double>(),
            row_kernels<bf16>(),
            {&dense<float>, &dense_weight_grad<float>},
            {&dense<double>, &dense_weight_grad<double>},
            &gather_rows,
            &gather_rows_rounded,
            &draws_of};
}

}  // namespace fullgraph::FULLGRAPH_ISA
