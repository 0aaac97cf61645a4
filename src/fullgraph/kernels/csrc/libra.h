// The vertex cut of Libra, as DistGNN (Md et al., SC 2021) has it, and owners for its nodes.
//
// A set of parts is `words` words of 64 bits, part k being bit k % 64 of word k / 64; `holders` has
// the set of each node. Sequential, since each edge looks at where the ones before it went.
#pragma once

#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

namespace fullgraph {

inline int64_t words_of(int64_t num_parts) { return (num_parts + 63) / 64; }

// Output i of splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
// OOPSLA 2014) for a seed, brought to 0 .. count - 1.
inline int64_t draw(uint64_t seed, uint64_t i, int64_t count) {
    uint64_t z = seed + (i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return int64_t((unsigned __int128)(z ^ (z >> 31)) * uint64_t(count) >> 64);
}

// Calls visit(k) for the parts of a set, ascending; word(w) is its word w.
template <typename Word, typename Visit>
inline void for_each_part(int64_t words, Word word, Visit visit) {
    for (int64_t w = 0; w < words; ++w) {
        for (uint64_t bits = word(w); bits; bits &= bits - 1) {
            visit(64 * w + __builtin_ctzll(bits));
        }
    }
}

template <typename Word>
inline bool any_part(int64_t words, Word word) {
    for (int64_t w = 0; w < words; ++w) {
        if (word(w)) return true;
    }
    return false;
}

inline void add_part(uint64_t* set, int64_t k) { set[k / 64] |= uint64_t(1) << k % 64; }

// How many edges each part has, and which parts can take another.
class Loads {
  public:
    Loads(int64_t num_parts, int64_t max_edges)
        : edges_(num_parts), open_(words_of(num_parts)), ties_(num_parts), max_edges_(max_edges) {
        for (int64_t k = 0; max_edges > 0 && k < num_parts; ++k) add_part(open_.data(), k);
    }

    uint64_t open(int64_t w) const { return open_[w]; }

    // The part with the fewest edges among the open ones of a set, tie number i of the seed deciding
    // between equals; -1 where none of them is open.
    template <typename Word>
    int64_t least(Word word, uint64_t seed, uint64_t i) {
        int64_t fewest = std::numeric_limits<int64_t>::max(), count = 0;
        const auto open_ones = [&](int64_t w) { return word(w) & open_[w]; };
        for_each_part(int64_t(open_.size()), open_ones, [&](int64_t k) {
            if (edges_[k] < fewest) {
                fewest = edges_[k];
                count = 0;
            }
            if (edges_[k] == fewest) ties_[count++] = k;
        });
        if (count < 2) return count ? ties_[0] : -1;
        return ties_[draw(seed, i, count)];
    }

    void add_edge(int64_t k) {
        if (++edges_[k] == max_edges_) open_[k / 64] &= ~(uint64_t(1) << k % 64);
    }

  private:
    std::vector<int64_t> edges_;
    std::vector<uint64_t> open_;
    std::vector<int64_t> ties_;
    int64_t max_edges_;
};

// How many edges ahead the set of a source is asked for.
constexpr int64_t kSetsAhead = 8;

// src [E]; order [E]: edges by destination, those into v being order[offsets[v]] ..
// order[offsets[v + 1] - 1]. Fills edge_part [E], with -1 for loops, and holders [N, words], which
// is 0 before. Parts can take all edges but loops (num_parts * max_edges is as large as that).
// Returns the position of a source outside of 0 .. N - 1, or -1.
//
// Draws 0 .. N - 1 of the seed shuffle the nodes, draw N + e decides ties at edge e.
template <typename Id>
int64_t libra(const Id* src, const int64_t* offsets, const int64_t* order, int64_t num_nodes,
              int64_t num_parts, uint64_t seed, int64_t max_edges, int32_t* edge_part,
              uint64_t* holders) {
    const int64_t num_edges = offsets[num_nodes], words = words_of(num_parts);
    std::vector<int64_t> degree(num_nodes), nodes(num_nodes);
    for (int64_t e = 0; e < num_edges; ++e) {
        if (src[e] < 0 || src[e] >= num_nodes) return e;
        ++degree[src[e]];
    }
    for (int64_t v = 0; v < num_nodes; ++v) degree[v] += offsets[v + 1] - offsets[v];
    std::iota(nodes.begin(), nodes.end(), 0);
    for (int64_t i = num_nodes - 1; i > 0; --i) std::swap(nodes[i], nodes[draw(seed, i, i + 1)]);

    Loads loads(num_parts, max_edges);
    for (const int64_t v : nodes) {
        uint64_t* const b = holders + v * words;
        for (int64_t at = offsets[v]; at < offsets[v + 1]; ++at) {
            const int64_t e = order[at], u = src[e];
            if (at + kSetsAhead < offsets[v + 1]) {
                __builtin_prefetch(holders + src[order[at + kSetsAhead]] * words);
            }
            if (u == v) {
                edge_part[e] = -1;
                continue;
            }
            uint64_t* const a = holders + u * words;
            const bool a_placed = any_part(words, [&](int64_t w) { return a[w]; });
            const bool b_placed = any_part(words, [&](int64_t w) { return b[w]; });
            const auto both = [&](int64_t w) { return a[w] & b[w]; };
            const auto open = [&](int64_t w) { return loads.open(w); };
            const uint64_t tie = uint64_t(num_nodes + e);
            int64_t k = -1;
            if (a_placed && b_placed) {
                const uint64_t* const lower = degree[u] < degree[v] ? a : b;
                k = any_part(words, both)
                        ? loads.least(both, seed, tie)
                        : loads.least([&](int64_t w) { return lower[w]; }, seed, tie);
            } else if (a_placed || b_placed) {
                k = loads.least([&](int64_t w) { return a[w] | b[w]; }, seed, tie);
            }
            if (k < 0) k = loads.least(open, seed, tie);
            edge_part[e] = int32_t(k);
            loads.add_edge(k);
            add_part(a, k);
            add_part(b, k);
        }
    }
    return -1;
}

// Which of its holders owns a node, where it has several the one with the fewest nodes so far, or,
// for a node that is labelled, the fewest labelled nodes, then nodes; a node without holders may go
// to any part. The first of equals. Nodes with the least choice come first, labelled before others.
inline void choose_owners(const uint64_t* holders, const uint8_t* labelled, int64_t num_nodes,
                          int64_t num_parts, int32_t* owner) {
    const int64_t words = words_of(num_parts);
    std::vector<uint64_t> all(words);
    for (int64_t k = 0; k < num_parts; ++k) add_part(all.data(), k);
    std::vector<std::pair<int64_t, int64_t>> count(num_parts);  // labelled nodes, nodes
    for (int turn = 0; turn < 5; ++turn) {
        for (int64_t v = 0; v < num_nodes; ++v) {
            const uint64_t* set = holders + v * words;
            int64_t size = 0;
            for (int64_t w = 0; w < words; ++w) size += __builtin_popcountll(set[w]);
            const int its_turn = size == 1 ? 0 : (labelled[v] ? 1 : 3) + (size == 0);
            if (its_turn != turn) continue;
            if (size == 0) set = all.data();
            int64_t best = -1;
            for_each_part(words, [&](int64_t w) { return set[w]; }, [&](int64_t k) {
                const bool fewer = best >= 0 && (labelled[v] ? count[k] < count[best]
                                                             : count[k].second < count[best].second);
                if (best < 0 || fewer) best = k;
            });
            owner[v] = int32_t(best);
            count[best].first += labelled[v];
            ++count[best].second;
        }
    }
}

}  // namespace fullgraph
