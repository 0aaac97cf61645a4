// Vectors of a width that is known when compiling, where loops over arrays would not stay in
// registers: GNU vector types, which the compiler maps to whatever the instruction set has.
#pragma once

#include <utility>

#include "common.h"

namespace fullgraph::FULLGRAPH_ISA {

// Bytes of a vector register.
constexpr int kVectorBytes = FULLGRAPH_TILE_BYTES >= 1024 ? 64 : FULLGRAPH_TILE_BYTES >= 256 ? 32 : 16;

template <typename T, int N>
struct VectorOf {
    typedef T type __attribute__((vector_size(N * sizeof(T))));
};
template <typename T>
struct VectorOf<T, 1> {
    typedef T type;
};
template <typename T, int N>
using Vector = typename VectorOf<T, N>::type;

// Elements of the vectors that W of them are made of.
template <typename T, int W>
constexpr int lanes_in() {
    return W * int(sizeof(T)) < kVectorBytes ? W : kVectorBytes / int(sizeof(T));
}

// N elements from anywhere, as numbers that sums are made of.
template <int N, typename X>
inline __attribute__((always_inline)) auto load(const X* x) {
    using T = decltype(widen(X{}));
    if constexpr (std::is_same_v<X, bf16>) {
        if constexpr (N == 1) {
            return widen(*x);
        } else {
            Vector<uint16_t, N> bits;
            std::memcpy(&bits, x, sizeof bits);
            const auto wide = __builtin_convertvector(bits, Vector<uint32_t, N>) << 16;
            Vector<float, N> value;
            std::memcpy(&value, &wide, sizeof value);
            return value;
        }
    } else {
        Vector<T, N> value;
        std::memcpy(&value, x, sizeof value);
        return value;
    }
}

template <int N, typename T>
inline __attribute__((always_inline)) void store(T* x, const Vector<T, N>& value) {
    std::memcpy(x, &value, sizeof value);
}

// Calls body(integral_constant<0>) .. body(integral_constant<N - 1>).
template <int N, typename Body>
inline __attribute__((always_inline)) void unroll(Body&& body) {
    if constexpr (N > 0) {
        unroll<N - 1>(body);
        body(std::integral_constant<int, N - 1>{});
    }
}

// The sum of all elements, by halves.
template <int N, typename T>
inline __attribute__((always_inline)) T sum_of(Vector<T, N> x) {
    if constexpr (N == 1) {
        return x;
    } else {
        Vector<T, N / 2> low, high;
        std::memcpy(&low, &x, sizeof low);
        std::memcpy(&high, reinterpret_cast<const char*>(&x) + sizeof low, sizeof high);
        return sum_of<N / 2, T>(low + high);
    }
}

// Lane i is lane From::of(i) of a or, from the number of their lanes on, of b.
template <typename From, typename V, int... i>
inline __attribute__((always_inline)) auto shuffled(V a, V b, std::integer_sequence<int, i...>) {
    return __builtin_shufflevector(a, b, From::of(i)...);
}

// The sums of four vectors, each by halves, as in sum_of.
template <int N, typename T>
inline __attribute__((always_inline)) Vector<T, 4> sums_of(const Vector<T, N>* x) {
    if constexpr (N < 4) {
        return Vector<T, 4>{sum_of<N, T>(x[0]), sum_of<N, T>(x[1]), sum_of<N, T>(x[2]),
                            sum_of<N, T>(x[3])};
    } else {
        // Which lanes of two vectors are the lower, and the upper, halves of both; and of the four
        // halves that two such sums have in all.
        struct Lower2 { static constexpr int of(int i) { return i < N / 2 ? i : i + N / 2; } };
        struct Upper2 { static constexpr int of(int i) { return Lower2::of(i) + N / 2; } };
        struct Lower4 {
            static constexpr int of(int i) { return i / (N / 4) * (N / 2) + i % (N / 4); }
        };
        struct Upper4 { static constexpr int of(int i) { return Lower4::of(i) + N / 4; } };
        struct Firsts { static constexpr int of(int i) { return i * (N / 4); } };
        using Lanes = std::make_integer_sequence<int, N>;
        const auto halves = [](auto a, auto b) __attribute__((always_inline)) {
            return shuffled<Lower2>(a, b, Lanes{}) + shuffled<Upper2>(a, b, Lanes{});
        };
        const auto a = halves(x[0], x[1]), b = halves(x[2], x[3]);
        auto sums = shuffled<Lower4>(a, b, Lanes{}) + shuffled<Upper4>(a, b, Lanes{});
        unroll<2>([&](auto step) __attribute__((always_inline)) {
            constexpr int S = N / 8 >> decltype(step)::value;
            struct Swapped { static constexpr int of(int i) { return i ^ S; } };
            if constexpr (S > 0) sums += shuffled<Swapped>(sums, sums, Lanes{});
        });
        return shuffled<Firsts>(sums, sums, std::make_integer_sequence<int, 4>{});
    }
}

}  // namespace fullgraph::FULLGRAPH_ISA
