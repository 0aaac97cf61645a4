// Stable counting sort, from which the edge lists by destination and by source are built. No memory
// beyond the results: offsets serve as the write positions meanwhile.
#pragma once

#include <cstdint>

namespace fullgraph {

// offsets [num_groups + 1]: where the run of each key starts. order [num_keys]: positions by key,
// equal keys in their order. Returns the position of a key outside of 0 .. num_groups - 1 (what is
// written is then of no use), or -1.
template <typename K>
int64_t group_by(const K* keys, int64_t num_keys, int64_t* offsets, int64_t num_groups,
                 int64_t* order) {
    for (int64_t g = 0; g <= num_groups; ++g) offsets[g] = 0;
    for (int64_t e = 0; e < num_keys; ++e) {
        if (keys[e] < 0 || keys[e] >= num_groups) return e;
        ++offsets[keys[e] + 1];
    }
    for (int64_t g = 0; g < num_groups; ++g) offsets[g + 1] += offsets[g];
    for (int64_t e = 0; e < num_keys; ++e) order[offsets[keys[e]]++] = e;
    for (int64_t g = num_groups; g > 0; --g) offsets[g] = offsets[g - 1];  // each is at its end now
    offsets[0] = 0;
    return -1;
}

}  // namespace fullgraph
