// The Python module: picks the instruction set, and hands tensors to the kernels as buffers.
//
// Shapes and index ranges are the caller's to check (kernels/__init__.py); dtype, contiguity and
// device are checked here too, because nothing is ever converted.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <omp.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "group_by.h"
#include "ldg.h"
#include "libra.h"
#include "pool.h"
#include "table.h"

namespace nb = nanobind;
using namespace nb::literals;

template <>
struct nb::detail::dtype_traits<fullgraph::bf16> {
    static constexpr dlpack::dtype value{static_cast<uint8_t>(dlpack::dtype_code::Bfloat), 16, 1};
    static constexpr auto name = const_name("bfloat16");
};

namespace fullgraph {

#ifdef __SANITIZE_ADDRESS__  // which sees what is read beyond memory of its own
char* take_memory(size_t bytes) { return static_cast<char*>(::operator new(bytes)); }
void give_memory(char* block, size_t) { ::operator delete(block); }
#else
char* take_memory(size_t bytes) { return pool().take(bytes); }
void give_memory(char* block, size_t bytes) { pool().give(block, bytes); }
#endif

namespace {

template <typename T>
using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Strided = nb::ndarray<T, nb::ndim<2>, nb::device::cpu>;  // elements of a row are adjacent
template <typename T>
using Maybe = std::optional<T>;
using Ids = Vector<const int64_t>;
using Cols = Vector<const int32_t>;

std::vector<std::string> available_isas() {
    std::vector<std::string> names{"baseline"};
#ifdef FULLGRAPH_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("bmi2")) {
        names.push_back("avx2");
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
            names.push_back("avx512");
        }
    }
#endif
    return names;
}

std::string chosen = "baseline";
Table kernels = baseline::table();

void use_isa(const std::string& name) {
    for (const std::string& available : available_isas()) {
        if (available != name) continue;
        chosen = name;
        if (name == "baseline") kernels = baseline::table();
#ifdef FULLGRAPH_X86
        if (name == "avx2") kernels = avx2::table();
        if (name == "avx512") kernels = avx512::table();
#endif
        return;
    }
    throw std::invalid_argument("instruction set '" + name + "' is not available on this machine");
}

EdgeRanges ranges(const Vector<const int64_t>& begin, const Vector<const int64_t>& end,
                  const Vector<const int32_t>& cols, const Maybe<Vector<const int32_t>>& rows,
                  int64_t col_offset) {
    return {begin.data(), end.data(), cols.data(), rows ? rows->data() : nullptr,
            int64_t(begin.size()), int64_t(cols.size()), col_offset};
}

template <typename T>
Weights<T> weights(const Maybe<Vector<const T>>& values, const Maybe<Vector<const int64_t>>& index) {
    return {values ? values->data() : nullptr, index ? index->data() : nullptr};
}

template <typename X, typename T>
void bind_edge_kernels(nb::module_& m) {
    m.def(
        "spmm",
        [](Ids begin, Ids end, Cols cols, Maybe<Cols> rows, int64_t col_offset, Matrix<const X> x,
           Maybe<Vector<const T>> weight, Maybe<Ids> weight_index, Matrix<T> out, bool accumulate) {
            nb::gil_scoped_release release;
            kernels.edges<X>().spmm(ranges(begin, end, cols, rows, col_offset), x.data(),
                                    weights(weight, weight_index), out.data(),
                                    int64_t(x.shape(1)), accumulate);
        },
        "begin"_a.noconvert(), "end"_a.noconvert(), "cols"_a.noconvert(),
        "rows"_a.noconvert().none(), "col_offset"_a, "x"_a.noconvert(),
        "weight"_a.noconvert().none(), "weight_index"_a.noconvert().none(), "out"_a.noconvert(),
        "accumulate"_a);
    m.def(
        "sddmm",
        [](Ids begin, Ids end, Cols cols, Maybe<Cols> rows, int64_t col_offset, Matrix<const X> x,
           Matrix<const T> grad, Vector<T> out) {
            nb::gil_scoped_release release;
            kernels.edges<X>().sddmm(ranges(begin, end, cols, rows, col_offset), x.data(),
                                     grad.data(), out.data(), int64_t(x.shape(1)));
        },
        "begin"_a.noconvert(), "end"_a.noconvert(), "cols"_a.noconvert(),
        "rows"_a.noconvert().none(), "col_offset"_a, "x"_a.noconvert(), "grad"_a.noconvert(),
        "out"_a.noconvert());
    m.def(
        "extremum",
        [](Ids begin, Ids end, Cols cols, Maybe<Cols> rows, int64_t col_offset, Matrix<const X> x,
           Maybe<Vector<const T>> weight, Matrix<T> out, Matrix<int32_t> count, bool largest) {
            nb::gil_scoped_release release;
            kernels.edges<X>().extremum(ranges(begin, end, cols, rows, col_offset), x.data(),
                                        weights<T>(weight, std::nullopt), out.data(), count.data(),
                                        int64_t(x.shape(1)), largest);
        },
        "begin"_a.noconvert(), "end"_a.noconvert(), "cols"_a.noconvert(),
        "rows"_a.noconvert().none(), "col_offset"_a, "x"_a.noconvert(),
        "weight"_a.noconvert().none(), "out"_a.noconvert(), "count"_a.noconvert(), "largest"_a);
    m.def(
        "extremum_grad_source",
        [](Ids begin, Ids end, Cols cols, Matrix<const X> x, Maybe<Vector<const T>> weight,
           Maybe<Ids> weight_index, Matrix<const T> extremum, Matrix<const T> share, Matrix<T> dx) {
            nb::gil_scoped_release release;
            kernels.edges<X>().extremum_grad_source(
                ranges(begin, end, cols, std::nullopt, 0), x.data(), weights(weight, weight_index),
                extremum.data(), share.data(), dx.data(), int64_t(x.shape(1)));
        },
        "begin"_a.noconvert(), "end"_a.noconvert(), "cols"_a.noconvert(), "x"_a.noconvert(),
        "weight"_a.noconvert().none(), "weight_index"_a.noconvert().none(),
        "extremum"_a.noconvert(), "share"_a.noconvert(), "dx"_a.noconvert());
    m.def(
        "extremum_grad_weight",
        [](Ids begin, Ids end, Cols cols, Maybe<Cols> rows, int64_t col_offset, Matrix<const X> x,
           Vector<const T> weight, Matrix<const T> extremum, Matrix<const T> share, Vector<T> out) {
            nb::gil_scoped_release release;
            kernels.edges<X>().extremum_grad_weight(
                ranges(begin, end, cols, rows, col_offset), x.data(), weight.data(),
                extremum.data(), share.data(), out.data(), int64_t(x.shape(1)));
        },
        "begin"_a.noconvert(), "end"_a.noconvert(), "cols"_a.noconvert(),
        "rows"_a.noconvert().none(), "col_offset"_a, "x"_a.noconvert(), "weight"_a.noconvert(),
        "extremum"_a.noconvert(), "share"_a.noconvert(), "out"_a.noconvert());
}

template <typename T>
void bind_dense_kernels(nb::module_& m) {
    m.def(
        "dense",
        [](Matrix<const T> x, nb::ndarray<const T, nb::ndim<2>, nb::device::cpu> w,
           Maybe<Vector<const T>> bias, Matrix<T> out, bool accumulate) {
            nb::gil_scoped_release release;
            kernels.dense<T>().dense(x.data(), w.data(), w.stride(0), w.stride(1),
                                     bias ? bias->data() : nullptr, out.data(),
                                     int64_t(x.shape(0)), int64_t(x.shape(1)),
                                     int64_t(out.shape(1)), accumulate);
        },
        "x"_a.noconvert(), "w"_a.noconvert(), "bias"_a.noconvert().none(), "out"_a.noconvert(),
        "accumulate"_a);
    m.def(
        "dense_weight_grad",
        [](Matrix<const T> grad, Matrix<const T> x, Matrix<T> out, Maybe<Vector<T>> sums) {
            nb::gil_scoped_release release;
            kernels.dense<T>().dense_weight_grad(
                grad.data(), x.data(), out.data(), sums ? sums->data() : nullptr,
                int64_t(x.shape(0)), int64_t(grad.shape(1)), int64_t(x.shape(1)));
        },
        "grad"_a.noconvert(), "x"_a.noconvert(), "out"_a.noconvert(), "sums"_a.noconvert().none());
}

// ---- Attention -------------------------------------------------------------------------------

template <typename T>
Rows<T> rows_of(const Strided<T>& x) {
    return {x.data(), x.stride(0)};
}

template <typename T>
T* data_of(const Maybe<Matrix<T>>& x) {
    return x ? x->data() : nullptr;
}

template <typename A, typename B>
Heads heads_of(const A& columns, const B& heads) {  // [*, H C] and [*, H]
    const int64_t count = int64_t(heads.shape(1));
    return {count, int64_t(columns.shape(1)) / count};
}

template <typename T>
Heads heads_of_att(const Matrix<T>& att) {  // [H, C]
    return {int64_t(att.shape(0)), int64_t(att.shape(1))};
}

template <typename T>
Heads heads_of_state(const Matrix<const T>& dout, const Matrix<const T>& state) {  // [*, 3 H]
    const int64_t count = int64_t(state.shape(1)) / 3;
    return {count, int64_t(dout.shape(1)) / count};
}

template <typename T>
Targets<T> targets_of(const Matrix<const T>& state, const Matrix<const T>& dout) {
    return {state.data(), dout.data(), int64_t(dout.shape(0)), int64_t(dout.shape(1))};
}

EdgesBySource by_source(const Ids& begin, const Ids& end, const Cols& cols,
                        const Maybe<Cols>& rows, const Maybe<Ids>& index) {
    return {ranges(begin, end, cols, rows, 0), index ? index->data() : nullptr};
}

// layer: 16 bits, and above them the first head.
CoefficientDropout drop_of(const Maybe<Ids>& ids, uint64_t threshold, double scale, uint64_t seed,
                           uint32_t step, uint32_t layer) {
    const int64_t first_head = layer >> 16;
    return {ids ? ids->data() : nullptr, threshold, scale, {seed, step, layer & 0xffff},
            first_head};
}

template <typename X, typename T>
void bind_attention_kernels(nb::module_& m) {
    m.def(
        "gat",
        [](Ids begin, Ids end, Cols cols, Maybe<Cols> rows, int64_t col_offset,
           Strided<const X> value, Strided<const X> source_logit, Matrix<const T> target_logit,
           Maybe<Matrix<const T>> edge_logit, double slope, Maybe<Ids> ids, uint64_t threshold,
           double scale, uint64_t seed, uint32_t step, uint32_t layer, Matrix<T> out,
           Matrix<T> top, Matrix<T> total, bool accumulate) {
            nb::gil_scoped_release release;
            kernels.attention<X>().gat(
                ranges(begin, end, cols, rows, col_offset), heads_of(out, top), rows_of(value),
                rows_of(source_logit), target_logit.data(), data_of(edge_logit), slope,
                drop_of(ids, threshold, scale, seed, step, layer),
                {out.data(), top.data(), total.data()}, accumulate);
        },
        "begin"_a.noconvert(), "end"_a.noconvert(), "cols"_a.noconvert(),
        "rows"_a.noconvert().none(), "col_offset"_a, "value"_a.noconvert(),
        "source_logit"_a.noconvert(), "target_logit"_a.noconvert(),
        "edge_logit"_a.noconvert().none(), "slope"_a, "ids"_a.noconvert().none(), "threshold"_a,
        "scale"_a, "seed"_a, "step"_a, "layer"_a, "out"_a.noconvert(), "top"_a.noconvert(),
        "total"_a.noconvert(), "accumulate"_a);
    m.def(
        "gat_grad",
        [](Ids begin, Ids end, Cols cols, Maybe<Ids> index, Strided<const X> value,
           Strided<const X> source_logit, Maybe<Matrix<const T>> edge_logit,
           Matrix<const T> state, Matrix<const T> dout, double slope, Maybe<Ids> ids,
           uint64_t threshold, double scale, uint64_t seed, uint32_t step, uint32_t layer,
           Strided<T> dvalue, Strided<T> dsource_logit, Matrix<T> dtarget_logit,
           Maybe<Matrix<T>> dedge_logit, bool accumulate) {
            nb::gil_scoped_release release;
            const EdgesBySource edges = by_source(begin, end, cols, std::nullopt, index);
            const int64_t num_parts = declared::num_parts(edges.ranges, dout.shape(0));
            const declared::Scratch<T> parts(num_parts > 1 ? num_parts * dtarget_logit.size() : 0);
            kernels.attention<X>().gat_grad(
                edges, heads_of(value, dtarget_logit), rows_of(value), rows_of(source_logit),
                data_of(edge_logit), targets_of<T>(state, dout), slope,
                drop_of(ids, threshold, scale, seed, step, layer), rows_of(dvalue),
                rows_of(dsource_logit), dtarget_logit.data(), data_of(dedge_logit), parts.get(),
                accumulate);
        },
        "begin"_a.noconvert(), "end"_a.noconvert(), "cols"_a.noconvert(),
        "index"_a.noconvert().none(), "value"_a.noconvert(), "source_logit"_a.noconvert(),
        "edge_logit"_a.noconvert().none(), "state"_a.noconvert(), "dout"_a.noconvert(), "slope"_a,
        "ids"_a.noconvert().none(), "threshold"_a, "scale"_a, "seed"_a, "step"_a, "layer"_a,
        "dvalue"_a.noconvert(), "dsource_logit"_a.noconvert(), "dtarget_logit"_a.noconvert(),
        "dedge_logit"_a.noconvert().none(), "accumulate"_a);
    m.def(
        "gatv2",
        [](Ids begin, Ids end, Cols cols, Maybe<Cols> rows, int64_t col_offset,
           Strided<const X> source, Matrix<const T> target, Matrix<const T> att,
           Maybe<Matrix<const T>> edge, double slope, Maybe<Ids> ids, uint64_t threshold,
           double scale, uint64_t seed, uint32_t step, uint32_t layer, Matrix<T> out,
           Matrix<T> top, Matrix<T> total, bool accumulate) {
            nb::gil_scoped_release release;
            kernels.attention<X>().gatv2(
                ranges(begin, end, cols, rows, col_offset), heads_of_att(att), rows_of(source),
                target.data(), att.data(), data_of(edge), slope,
                drop_of(ids, threshold, scale, seed, step, layer),
                {out.data(), top.data(), total.data()}, accumulate);
        },
        "begin"_a.noconvert(), "end"_a.noconvert(), "cols"_a.noconvert(),
        "rows"_a.noconvert().none(), "col_offset"_a, "source"_a.noconvert(),
        "target"_a.noconvert(), "att"_a.noconvert(), "edge"_a.noconvert().none(), "slope"_a,
        "ids"_a.noconvert().none(), "threshold"_a, "scale"_a, "seed"_a, "step"_a, "layer"_a,
        "out"_a.noconvert(), "top"_a.noconvert(), "total"_a.noconvert(), "accumulate"_a);
    m.def(
        "gatv2_grad_target",
        [](Ids begin, Ids end, Cols cols, Maybe<Cols> rows, int64_t col_offset,
           Strided<const X> source, Matrix<const T> target, Matrix<const T> att,
           Maybe<Matrix<const T>> edge, Matrix<const T> state, Matrix<const T> dout, double slope,
           Maybe<Ids> ids, uint64_t threshold, double scale, uint64_t seed, uint32_t step,
           uint32_t layer, Matrix<T> dtarget, Matrix<T> datt, Maybe<Matrix<T>> dedge) {
            nb::gil_scoped_release release;
            const declared::Scratch<T> parts(kParts * int64_t(att.size()));
            kernels.attention<X>().gatv2_grad_target(
                ranges(begin, end, cols, rows, col_offset), heads_of_att(att), rows_of(source),
                target.data(), att.data(), data_of(edge), targets_of<T>(state, dout), slope,
                drop_of(ids, threshold, scale, seed, step, layer), dtarget.data(), datt.data(),
                data_of(dedge), parts.get());
        },
        "begin"_a.noconvert(), "end"_a.noconvert(), "cols"_a.noconvert(),
        "rows"_a.noconvert().none(), "col_offset"_a, "source"_a.noconvert(),
        "target"_a.noconvert(), "att"_a.noconvert(), "edge"_a.noconvert().none(),
        "state"_a.noconvert(), "dout"_a.noconvert(), "slope"_a, "ids"_a.noconvert().none(),
        "threshold"_a, "scale"_a, "seed"_a, "step"_a, "layer"_a, "dtarget"_a.noconvert(),
        "datt"_a.noconvert(), "dedge"_a.noconvert().none());
    m.def(
        "gatv2_grad_source",
        [](Ids begin, Ids end, Cols cols, Maybe<Cols> rows, Maybe<Ids> index,
           Strided<const X> source, Matrix<const T> target, Matrix<const T> att,
           Maybe<Matrix<const T>> edge, Matrix<const T> state, Matrix<const T> dout, double slope,
           Maybe<Ids> ids, uint64_t threshold, double scale, uint64_t seed, uint32_t step,
           uint32_t layer, Strided<T> dsource) {
            nb::gil_scoped_release release;
            kernels.attention<X>().gatv2_grad_source(
                by_source(begin, end, cols, rows, index), heads_of_att(att), rows_of(source),
                target.data(), att.data(), data_of(edge), targets_of<T>(state, dout), slope,
                drop_of(ids, threshold, scale, seed, step, layer), rows_of(dsource));
        },
        "begin"_a.noconvert(), "end"_a.noconvert(), "cols"_a.noconvert(),
        "rows"_a.noconvert().none(), "index"_a.noconvert().none(), "source"_a.noconvert(),
        "target"_a.noconvert(), "att"_a.noconvert(), "edge"_a.noconvert().none(),
        "state"_a.noconvert(), "dout"_a.noconvert(), "slope"_a, "ids"_a.noconvert().none(),
        "threshold"_a, "scale"_a, "seed"_a, "step"_a, "layer"_a, "dsource"_a.noconvert());
    m.def(
        "dot",
        [](Ids begin, Ids end, Cols cols, Maybe<Cols> rows, int64_t col_offset,
           Strided<const X> key, Strided<const X> value, Matrix<const T> query,
           Maybe<Matrix<const T>> edge, Maybe<Ids> ids, uint64_t threshold, double scale,
           uint64_t seed, uint32_t step, uint32_t layer, Matrix<T> out, Matrix<T> top,
           Matrix<T> total, bool accumulate) {
            nb::gil_scoped_release release;
            kernels.attention<X>().dot(
                ranges(begin, end, cols, rows, col_offset), heads_of(out, top), rows_of(key),
                rows_of(value), query.data(), data_of(edge),
                drop_of(ids, threshold, scale, seed, step, layer),
                {out.data(), top.data(), total.data()}, accumulate);
        },
        "begin"_a.noconvert(), "end"_a.noconvert(), "cols"_a.noconvert(),
        "rows"_a.noconvert().none(), "col_offset"_a, "key"_a.noconvert(), "value"_a.noconvert(),
        "query"_a.noconvert(), "edge"_a.noconvert().none(), "ids"_a.noconvert().none(),
        "threshold"_a, "scale"_a, "seed"_a, "step"_a, "layer"_a, "out"_a.noconvert(),
        "top"_a.noconvert(), "total"_a.noconvert(), "accumulate"_a);
    m.def(
        "dot_grad_target",
        [](Ids begin, Ids end, Cols cols, Maybe<Cols> rows, int64_t col_offset,
           Strided<const X> key, Strided<const X> value, Matrix<const T> query,
           Maybe<Matrix<const T>> edge, Matrix<const T> state, Matrix<const T> dout,
           Maybe<Ids> ids, uint64_t threshold, double scale, uint64_t seed, uint32_t step,
           uint32_t layer, Matrix<T> dquery, Maybe<Matrix<T>> dedge) {
            nb::gil_scoped_release release;
            kernels.attention<X>().dot_grad_target(
                ranges(begin, end, cols, rows, col_offset), heads_of_state<T>(dout, state),
                rows_of(key), rows_of(value), query.data(), data_of(edge),
                targets_of<T>(state, dout), drop_of(ids, threshold, scale, seed, step, layer),
                dquery.data(), data_of(dedge));
        },
        "begin"_a.noconvert(), "end"_a.noconvert(), "cols"_a.noconvert(),
        "rows"_a.noconvert().none(), "col_offset"_a, "key"_a.noconvert(), "value"_a.noconvert(),
        "query"_a.noconvert(), "edge"_a.noconvert().none(), "state"_a.noconvert(),
        "dout"_a.noconvert(), "ids"_a.noconvert().none(), "threshold"_a, "scale"_a, "seed"_a,
        "step"_a, "layer"_a, "dquery"_a.noconvert(), "dedge"_a.noconvert().none());
    m.def(
        "dot_grad_source",
        [](Ids begin, Ids end, Cols cols, Maybe<Cols> rows, Maybe<Ids> index,
           Strided<const X> key, Strided<const X> value, Matrix<const T> query,
           Maybe<Matrix<const T>> edge, Matrix<const T> state, Matrix<const T> dout,
           Maybe<Ids> ids, uint64_t threshold, double scale, uint64_t seed, uint32_t step,
           uint32_t layer, Strided<T> dkey, Strided<T> dvalue) {
            nb::gil_scoped_release release;
            kernels.attention<X>().dot_grad_source(
                by_source(begin, end, cols, rows, index), heads_of_state<T>(dout, state),
                rows_of(key), rows_of(value), query.data(), data_of(edge),
                targets_of<T>(state, dout), drop_of(ids, threshold, scale, seed, step, layer),
                rows_of(dkey), rows_of(dvalue));
        },
        "begin"_a.noconvert(), "end"_a.noconvert(), "cols"_a.noconvert(),
        "rows"_a.noconvert().none(), "index"_a.noconvert().none(), "key"_a.noconvert(),
        "value"_a.noconvert(), "query"_a.noconvert(), "edge"_a.noconvert().none(),
        "state"_a.noconvert(), "dout"_a.noconvert(), "ids"_a.noconvert().none(), "threshold"_a,
        "scale"_a, "seed"_a, "step"_a, "layer"_a, "dkey"_a.noconvert(), "dvalue"_a.noconvert());
    m.def(
        "head_dots",
        [](Matrix<const T> x, Matrix<const X> y, Strided<T> out) {
            nb::gil_scoped_release release;
            kernels.attention<X>().head_dots(heads_of(y, out), int64_t(x.shape(0)), x.data(),
                                             int64_t(x.shape(1)), y.data(), rows_of(out));
        },
        "x"_a.noconvert(), "y"_a.noconvert(), "out"_a.noconvert());
}

template <typename X>
void bind_row_kernels(nb::module_& m) {
    m.def(
        "scatter_add_rows",
        [](Matrix<X> out, Vector<const int32_t> index, Matrix<const X> x) {
            nb::gil_scoped_release release;
            kernels.rows<X>().scatter_add_rows(out.data(), index.data(), x.data(),
                                               int64_t(index.size()), int64_t(x.shape(1)));
        },
        "out"_a.noconvert(), "index"_a.noconvert(), "x"_a.noconvert());
    m.def(
        "dropout",
        [](Matrix<const X> x, Vector<const int64_t> ids, Matrix<X> out, uint64_t threshold,
           double scale, uint64_t seed, uint32_t step, uint32_t layer) {
            nb::gil_scoped_release release;
            kernels.rows<X>().dropout(x.data(), ids.data(), out.data(), int64_t(ids.size()),
                                      int64_t(x.shape(1)), threshold, scale, {seed, step, layer});
        },
        "x"_a.noconvert(), "ids"_a.noconvert(), "out"_a.noconvert(), "threshold"_a, "scale"_a,
        "seed"_a, "step"_a, "layer"_a);
}

template <typename K>
void bind_group_by(nb::module_& m) {
    m.def(
        "group_by",
        [](Vector<const K> keys, Vector<int64_t> offsets, Vector<int64_t> order) {
            nb::gil_scoped_release release;
            return group_by(keys.data(), int64_t(keys.size()), offsets.data(),
                            int64_t(offsets.size()) - 1, order.data());
        },
        "keys"_a.noconvert(), "offsets"_a.noconvert(), "order"_a.noconvert());
}

template <typename Id>
void bind_libra(nb::module_& m) {
    m.def(
        "libra",
        [](Vector<const Id> src, Ids offsets, Ids order, int64_t num_parts, uint64_t seed,
           int64_t max_edges, Vector<int32_t> edge_part, Matrix<int64_t> holders) {
            nb::gil_scoped_release release;
            return libra(src.data(), offsets.data(), order.data(), int64_t(holders.shape(0)),
                         num_parts, seed, max_edges, edge_part.data(),
                         reinterpret_cast<uint64_t*>(holders.data()));
        },
        "src"_a.noconvert(), "offsets"_a.noconvert(), "order"_a.noconvert(), "num_parts"_a,
        "seed"_a, "max_edges"_a, "edge_part"_a.noconvert(), "holders"_a.noconvert());
}

void bind_choose_owners(nb::module_& m) {
    m.def(
        "choose_owners",
        [](Matrix<const int64_t> holders, Vector<const uint8_t> labelled, int64_t num_parts,
           Vector<int32_t> owner) {
            nb::gil_scoped_release release;
            choose_owners(reinterpret_cast<const uint64_t*>(holders.data()), labelled.data(),
                          int64_t(holders.shape(0)), num_parts, owner.data());
        },
        "holders"_a.noconvert(), "labelled"_a.noconvert(), "num_parts"_a, "owner"_a.noconvert());
}

template <typename Id>
void bind_neighbours(nb::module_& m) {
    m.def(
        "is_symmetric",
        [](Vector<const Id> src, Vector<const Id> dst) {
            nb::gil_scoped_release release;
            return is_symmetric(src.data(), dst.data(), int64_t(src.size()));
        },
        "src"_a.noconvert(), "dst"_a.noconvert());
    m.def(
        "count_neighbours",
        [](Vector<const Id> src, Vector<const Id> dst, bool both, Vector<int64_t> offsets) {
            nb::gil_scoped_release release;
            return count_neighbours(src.data(), dst.data(), int64_t(src.size()),
                                    int64_t(offsets.size()) - 1, both, offsets.data());
        },
        "src"_a.noconvert(), "dst"_a.noconvert(), "both"_a, "offsets"_a.noconvert());
    m.def(
        "fill_neighbours",
        [](Vector<const Id> src, Vector<const Id> dst, bool both, Ids offsets,
           Vector<int32_t> neighbours) {
            nb::gil_scoped_release release;
            fill_neighbours(src.data(), dst.data(), int64_t(src.size()),
                            int64_t(offsets.size()) - 1, both, offsets.data(), neighbours.data());
        },
        "src"_a.noconvert(), "dst"_a.noconvert(), "both"_a, "offsets"_a.noconvert(),
        "neighbours"_a.noconvert());
}

void bind_ldg(nb::module_& m) {
    m.def(
        "ldg",
        [](Ids offsets, Cols neighbours, Matrix<const int64_t> weights, int64_t num_parts,
           uint64_t seed, Vector<int32_t> part) {
            nb::gil_scoped_release release;
            ldg({int64_t(part.size()), offsets.data(), neighbours.data(), weights.data()},
                num_parts, seed, part.data());
        },
        "offsets"_a.noconvert(), "neighbours"_a.noconvert(), "weights"_a.noconvert(),
        "num_parts"_a, "seed"_a, "part"_a.noconvert());
}

void bind_gather_rows(nb::module_& m) {
    m.def(
        "gather_rows",
        [](Matrix<const uint8_t> x, Vector<const int32_t> index, Matrix<uint8_t> out) {
            nb::gil_scoped_release release;
            kernels.gather_rows(x.data(), index.data(), out.data(), int64_t(index.size()),
                                int64_t(x.shape(1)));
        },
        "x"_a.noconvert(), "index"_a.noconvert(), "out"_a.noconvert());
    m.def(
        "gather_rows",
        [](Matrix<const float> x, Vector<const int32_t> index, Matrix<bf16> out) {
            nb::gil_scoped_release release;
            kernels.gather_rows_rounded(x.data(), index.data(), out.data(), int64_t(index.size()),
                                        int64_t(x.shape(1)));
        },
        "x"_a.noconvert(), "index"_a.noconvert(), "out"_a.noconvert());
}

// DLPack's DLManagedTensor, with memory of the pool. Whoever has it frees it without Python.
struct Pooled {
    nb::dlpack::dltensor tensor;
    void* context = nullptr;
    void (*deleter)(Pooled*) = [](Pooled* self) {
        pool().give(static_cast<char*>(self->tensor.data), self->bytes);
        delete self;
    };
    size_t bytes = 0;
    std::vector<int64_t> shape;
};

// A DLPack capsule of a new array, with any contents.
nb::object pooled(std::vector<int64_t> shape, int code, int bits) {
    auto made = std::make_unique<Pooled>();
    made->shape = std::move(shape);
    size_t bytes = size_t(bits) / 8;
    for (int64_t size : made->shape) bytes *= size_t(size);
    made->tensor.data = pool().take(bytes);
    made->bytes = bytes;
    made->tensor.device = {nb::device::cpu::value, 0};
    made->tensor.ndim = int32_t(made->shape.size());
    made->tensor.dtype = {uint8_t(code), uint8_t(bits), 1};
    made->tensor.shape = made->shape.data();
    PyObject* capsule = PyCapsule_New(made.get(), "dltensor", [](PyObject* self) {
        if (!PyCapsule_IsValid(self, "dltensor")) return;  // somebody has taken it
        auto* left = static_cast<Pooled*>(PyCapsule_GetPointer(self, "dltensor"));
        left->deleter(left);
    });
    if (!capsule) {
        pool().give(static_cast<char*>(made->tensor.data), bytes);
        throw nb::python_error();
    }
    made.release();
    return nb::steal(capsule);
}

std::vector<uint32_t> philox_draws(int64_t id, int64_t block, uint64_t seed, uint32_t step,
                                   uint32_t layer) {
    std::vector<uint32_t> draws(4);
    kernels.draws_of(draws.data(), id, block, {seed, step, layer});
    return draws;
}

int max_threads() {
    int count = 0;
#pragma omp parallel
#pragma omp single
    count = omp_get_num_threads();
    return count;
}

}  // namespace
}  // namespace fullgraph

NB_MODULE(_native, m) {
    using namespace fullgraph;
    bind_edge_kernels<float, float>(m);
    bind_edge_kernels<double, double>(m);
    bind_edge_kernels<bf16, float>(m);
    bind_attention_kernels<float, float>(m);
    bind_attention_kernels<double, double>(m);
    bind_attention_kernels<bf16, float>(m);
    bind_row_kernels<float>(m);
    bind_row_kernels<double>(m);
    bind_row_kernels<bf16>(m);
    bind_dense_kernels<float>(m);
    bind_dense_kernels<double>(m);
    bind_gather_rows(m);
    bind_group_by<int32_t>(m);
    bind_group_by<int64_t>(m);
    bind_libra<int32_t>(m);
    bind_libra<int64_t>(m);
    bind_choose_owners(m);
    bind_neighbours<int32_t>(m);
    bind_neighbours<int64_t>(m);
    bind_ldg(m);
    m.def("philox_draws", &philox_draws, "id"_a, "block"_a, "seed"_a, "step"_a, "layer"_a);
    m.def("pooled", &pooled, "shape"_a, "code"_a, "bits"_a);
    m.def("trim_pool", [] { pool().trim(); });
    m.def("pool_bytes", [] { return std::make_pair(pool().used(), pool().held()); });
    m.def("available_isas", &available_isas);
    m.def("use_isa", &use_isa, "name"_a);
    m.def("isa", [] { return chosen; });
    m.def("max_threads", &max_threads, "Threads of a parallel region, as the runtime grants them.");
}
