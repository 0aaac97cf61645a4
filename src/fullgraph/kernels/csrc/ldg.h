// Parts of nodes, by linear deterministic greedy (Stanton, Kliot, "Streaming graph partitioning for
// large distributed graphs", KDD 2012), streamed again and again (Nishimura, Ugander, KDD 2013),
// first over clusters of nodes and last over single ones.
//
// Clusters come of label propagation under a limit of weight (Meyerhenke, Sanders, Schulz,
// "Partitioning complex networks via size-constrained clustering", SEA 2014). A coarse graph is not
// made: what a cluster is next to is read from the edges of its nodes, so that beside the adjacency
// memory is O(N).
//
// Sequential and in integers, since each step looks at the ones before it and is to be the same on
// any machine.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "libra.h"

namespace fullgraph {

constexpr int kWeights = 3;        // of a node; each is balanced
constexpr int64_t kGrowth = 4;     // how much heavier clusters may be, level by level
constexpr int64_t kPerPart = 8;    // how many of the heaviest clusters a part has room for at least
constexpr int kClusterPasses = 2;  // over the clusters of a level, to join them
constexpr int kPartPasses = 3;     // over the clusters of a level, to move them
constexpr int64_t kStill = 100;    // the passes of a level end when not one in so many moves
constexpr int64_t kLabelsAhead = 16;  // how many entries ahead a label is asked for
constexpr int kRoomBits = 20, kOverflowBits = 40;  // of shares in fixed point

using Weight = std::array<int64_t, kWeights>;

// Whether as many edges lead from u to v as from v to u, for all u and v: equal sums of hashes.
template <typename Id>
bool is_symmetric(const Id* src, const Id* dst, int64_t num_edges) {
    constexpr int64_t all = std::numeric_limits<int64_t>::max();
    uint64_t there = 0, back = 0;
    for (int64_t e = 0; e < num_edges; ++e) {
        const auto u = uint64_t(src[e]), v = uint64_t(dst[e]);
        there += uint64_t(draw(u, v, all));
        back += uint64_t(draw(v, u, all));
    }
    return there == back;
}

// offsets [N + 1]: of the neighbours of each node, its sources and, with `both`, its targets too;
// loops left out. Returns -1, or where an id is outside of 0 .. N - 1, plus E if that is in dst.
template <typename Id>
int64_t count_neighbours(const Id* src, const Id* dst, int64_t num_edges, int64_t num_nodes,
                         bool both, int64_t* offsets) {
    std::fill(offsets, offsets + num_nodes + 1, 0);
    for (int64_t e = 0; e < num_edges; ++e) {
        if (src[e] < 0 || src[e] >= num_nodes) return e;
        if (dst[e] < 0 || dst[e] >= num_nodes) return num_edges + e;
        if (src[e] == dst[e]) continue;
        ++offsets[dst[e] + 1];
        if (both) ++offsets[src[e] + 1];
    }
    std::partial_sum(offsets, offsets + num_nodes + 1, offsets);
    return -1;
}

// neighbours [offsets[N]], those of a node in the order of the edges.
template <typename Id>
void fill_neighbours(const Id* src, const Id* dst, int64_t num_edges, int64_t num_nodes, bool both,
                     const int64_t* offsets, int32_t* neighbours) {
    std::vector<int64_t> at(offsets, offsets + num_nodes);
    for (int64_t e = 0; e < num_edges; ++e) {
        if (src[e] == dst[e]) continue;
        neighbours[at[dst[e]]++] = int32_t(src[e]);
        if (both) neighbours[at[src[e]]++] = int32_t(dst[e]);
    }
}

// weights [N, kWeights], not negative.
struct WeightedGraph {
    int64_t num_nodes;
    const int64_t* offsets;
    const int32_t* neighbours;
    const int64_t* weights;
};

// The nodes of cluster c are nodes[first[c]] .. nodes[first[c + 1] - 1].
struct Clusters {
    std::vector<int64_t> first;
    std::vector<int32_t> nodes;

    explicit Clusters(int64_t num_nodes) : first(num_nodes + 1), nodes(num_nodes) {
        std::iota(first.begin(), first.end(), 0);
        std::iota(nodes.begin(), nodes.end(), 0);
    }

    // Nodes with one label together, labels ascending.
    explicit Clusters(const std::vector<int32_t>& label) : nodes(label.size()) {
        std::vector<int64_t> at(label.size() + 1);
        for (const int32_t l : label) ++at[l + 1];
        first.push_back(0);
        for (size_t l = 0; l < label.size(); ++l) {
            at[l + 1] += at[l];
            if (at[l + 1] > at[l]) first.push_back(at[l + 1]);
        }
        for (size_t v = 0; v < label.size(); ++v) nodes[at[label[v]]++] = int32_t(v);
    }

    int64_t size() const { return int64_t(first.size()) - 1; }

    template <typename Visit>
    void each_node(int64_t c, Visit visit) const {
        for (int64_t i = first[c]; i < first[c + 1]; ++i) visit(nodes[i]);
    }

    Weight weight(const WeightedGraph& graph, int64_t c) const {
        Weight sum{};
        each_node(c, [&](int64_t v) {
            for (int w = 0; w < kWeights; ++w) sum[w] += graph.weights[v * kWeights + w];
        });
        return sum;
    }

    // Calls visit(label) for the neighbours of a cluster that have one, -1 being none.
    template <typename Visit>
    void each_label(const WeightedGraph& graph, const std::vector<int32_t>& label, int64_t c,
                    Visit visit) const {
        const int64_t last = graph.offsets[graph.num_nodes] - 1;
        each_node(c, [&](int64_t v) {
            for (int64_t a = graph.offsets[v]; a < graph.offsets[v + 1]; ++a) {
                __builtin_prefetch(&label[graph.neighbours[std::min(a + kLabelsAhead, last)]]);
                const int32_t l = label[graph.neighbours[a]];
                if (l >= 0) visit(l);
            }
        });
    }
};

inline void add(Weight& sum, const Weight& weight, int64_t sign) {
    for (int w = 0; w < kWeights; ++w) sum[w] += sign * weight[w];
}

// 0 .. count - 1, shuffled; each turn has draws of its own.
class Shuffles {
  public:
    Shuffles(uint64_t seed, int64_t num_nodes) : seed_(seed), num_nodes_(num_nodes) {}

    std::vector<int32_t> next(int64_t count) {
        std::vector<int32_t> order(count);
        std::iota(order.begin(), order.end(), 0);
        for (int64_t i = count - 1; i > 0; --i) {
            std::swap(order[i], order[draw(seed_, turn_ * num_nodes_ + i, i + 1)]);
        }
        ++turn_;
        return order;
    }

  private:
    uint64_t seed_;
    int64_t num_nodes_, turn_ = 0;
};

// Larger clusters: each joins, of those that stay within `most`, the one with which it shares the
// most edges, of equals the one with the fewest nodes, else it stays.
inline Clusters join(const WeightedGraph& graph, const Clusters& clusters, const Weight& most,
                     Shuffles& shuffles) {
    std::vector<int32_t> label(graph.num_nodes), edges(clusters.size()), seen;
    std::vector<Weight> load(clusters.size());
    const auto put = [&](int64_t c, int32_t l) {
        clusters.each_node(c, [&](int64_t v) { label[v] = l; });
    };
    for (int64_t c = 0; c < clusters.size(); ++c) {
        put(c, int32_t(c));
        load[c] = clusters.weight(graph, c);
    }
    for (int pass = 0; pass < kClusterPasses; ++pass) {
        for (const int32_t c : shuffles.next(clusters.size())) {
            const int32_t own = label[clusters.nodes[clusters.first[c]]];
            const Weight weight = clusters.weight(graph, c);
            put(c, -1);  // so that edges within the cluster do not count
            add(load[own], weight, -1);
            clusters.each_label(graph, label, c, [&](int32_t l) {
                if (edges[l]++ == 0) seen.push_back(l);
            });
            int32_t best = own;
            for (const int32_t l : seen) {
                bool fits = true;
                for (int w = 0; w < kWeights; ++w) {
                    fits = fits && (weight[w] == 0 || load[l][w] + weight[w] <= most[w]);
                }
                if (fits && std::make_pair(edges[l], -load[l][0]) >
                                std::make_pair(edges[best], -load[best][0])) {
                    best = l;
                }
            }
            for (const int32_t l : seen) edges[l] = 0;
            seen.clear();
            put(c, best);
            add(load[best], weight, 1);
        }
    }
    return Clusters(label);
}

// What each part has, and how much more it is to take.
class PartLoads {
  public:
    PartLoads(const WeightedGraph& graph, int64_t num_parts) : load_(num_parts), room_(num_parts) {
        Weight heaviest{};
        for (int64_t v = 0; v < graph.num_nodes; ++v) {
            for (int w = 0; w < kWeights; ++w) {
                const int64_t weight = graph.weights[v * kWeights + w];
                total_[w] += weight;
                heaviest[w] = std::max(heaviest[w], weight);
            }
        }
        for (int w = 0; w < kWeights; ++w) {
            const int64_t mean = (total_[w] + num_parts - 1) / num_parts;
            limit_[w] = std::max({total_[w] * 21 / (20 * num_parts), mean + heaviest[w] - 1,
                                  int64_t(1)});
            share_[w] = (int64_t(1) << kOverflowBits) / std::max(total_[w], int64_t(1));
        }
        for (int64_t k = 0; k < num_parts; ++k) add_to(k, {}, 1);
    }

    const Weight& total() const { return total_; }

    // The share that is free of the weight that has the least, of 2^kRoomBits.
    int64_t room(int64_t k) const { return room_[k]; }

    // How much more a part would be above its limits, summed over weights, of 2^kOverflowBits.
    int64_t overflow(int64_t k, const Weight& weight) const {
        int64_t sum = 0;
        for (int w = 0; w < kWeights; ++w) {
            const int64_t above = load_[k][w] - limit_[w];
            sum += (std::max<int64_t>(above + weight[w], 0) - std::max<int64_t>(above, 0)) *
                   share_[w];
        }
        return sum;
    }

    void add_to(int64_t k, const Weight& weight, int64_t sign) {
        add(load_[k], weight, sign);
        room_[k] = std::numeric_limits<int64_t>::max();
        for (int w = 0; w < kWeights; ++w) {
            const int64_t free = std::max<int64_t>(limit_[w] - load_[k][w], 0);
            room_[k] = std::min(room_[k], (free << kRoomBits) / limit_[w]);
        }
    }

  private:
    std::vector<Weight> load_;
    std::vector<int64_t> room_;
    Weight total_{}, limit_{}, share_{};
};

// Each cluster in turn to the part where it adds the least above a limit; of those, to the one with
// which it shares the most edges (edges times room where it has no part yet); of those, to its own,
// else to the one with the most room, the first of equals.
inline void move(const WeightedGraph& graph, const Clusters& clusters, int64_t num_parts,
                 Shuffles& shuffles, PartLoads& loads, std::vector<int32_t>& part) {
    std::vector<int64_t> edges(num_parts);
    for (int pass = 0; pass < kPartPasses; ++pass) {
        int64_t moved = 0;
        for (const int32_t c : shuffles.next(clusters.size())) {
            const int32_t own = part[clusters.nodes[clusters.first[c]]];
            const bool placed = own >= 0;
            const Weight weight = clusters.weight(graph, c);
            if (placed) loads.add_to(own, weight, -1);
            clusters.each_node(c, [&](int64_t v) { part[v] = -1; });
            std::fill(edges.begin(), edges.end(), 0);
            clusters.each_label(graph, part, c, [&](int32_t k) { ++edges[k]; });
            const auto merit = [&](int64_t k) {
                return std::make_tuple(-loads.overflow(k, weight),
                                       placed ? edges[k] : edges[k] * loads.room(k), k == own,
                                       loads.room(k));
            };
            int32_t best = 0;
            auto highest = merit(0);
            for (int64_t k = 1; k < num_parts; ++k) {
                const auto found = merit(k);
                if (found > highest) {
                    best = int32_t(k);
                    highest = found;
                }
            }
            clusters.each_node(c, [&](int64_t v) { part[v] = best; });
            loads.add_to(best, weight, 1);
            moved += best != own;
        }
        if (moved * kStill <= clusters.size()) break;
    }
}

// part [N], values in 0 .. num_parts - 1.
inline void ldg(const WeightedGraph& graph, int64_t num_parts, uint64_t seed, int32_t* part) {
    const int64_t num_nodes = graph.num_nodes;
    PartLoads loads(graph, num_parts);
    Shuffles shuffles(seed, num_nodes);
    std::vector<Clusters> levels(1, Clusters(num_nodes));
    for (int64_t size = kGrowth; size * kPerPart * num_parts <= num_nodes; size *= kGrowth) {
        Weight most;
        for (int w = 0; w < kWeights; ++w) most[w] = loads.total()[w] * size / num_nodes + 1;
        Clusters larger = join(graph, levels.back(), most, shuffles);
        if (larger.size() == levels.back().size()) break;
        levels.push_back(std::move(larger));
    }
    std::vector<int32_t> found(num_nodes, -1);
    for (; !levels.empty(); levels.pop_back()) {
        move(graph, levels.back(), num_parts, shuffles, loads, found);
    }
    std::copy(found.begin(), found.end(), part);
}

}  // namespace fullgraph
