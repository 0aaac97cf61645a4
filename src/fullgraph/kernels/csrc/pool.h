// Memory of large tensors, kept for the next ones: pages that the system has to find and to clear
// cost more than what is then done with them, most of all where a host takes back what is free.
//
// The pool never holds more than has been in use at one moment: before it asks the system for more,
// it gives back what lies idle. So a process that takes all its large tensors here is as small as
// one that keeps nothing. A block is cut from any idle one that is large enough; idle neighbours
// become one again. Where none is large enough, the huge pages of several are moved to one place.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <map>
#include <mutex>
#include <new>

namespace fullgraph {

class OutOfMemory : public std::bad_alloc {
public:
    explicit OutOfMemory(size_t bytes) {
        std::snprintf(text_, sizeof text_, "can't allocate memory: tried to allocate %zu bytes",
                      bytes);
    }
    const char* what() const noexcept override { return text_; }

private:
    char text_[80];
};

class Pool {
public:
    static constexpr size_t page = size_t{1} << 12, huge_page = size_t{2} << 20;
    // Huge pages that were moved may each count as a mapping of the process, which may have 65,530.
    static constexpr size_t most_moved_among = size_t{1} << 14;

    // At least so many bytes, with any contents. Throws OutOfMemory.
    char* take(size_t bytes) {
        bytes = rounded(bytes);
        std::lock_guard<std::mutex> lock(mutex_);
        auto best = idle_.end();
        for (auto it = idle_.begin(); it != idle_.end(); ++it) {
            if (it->second >= bytes && (best == idle_.end() || it->second < best->second)) best = it;
        }
        char* block;
        if (best != idle_.end()) {
            block = best->first;
            const size_t left = best->second - bytes;
            idle_.erase(best);
            if (left) idle_[block + bytes] = left;
        } else {
            block = fresh(bytes);
            const size_t most = std::max(most_used_, used_ + bytes);
            held_ += bytes - move_idle_to(block, bytes);
            if (held_ > most) release(held_ - most);
        }
        used_ += bytes;
        most_used_ = std::max(most_used_, used_);
        return block;
    }

    // What `take` gave for so many bytes; by any thread.
    void give(char* block, size_t bytes) {
        bytes = rounded(bytes);
        std::lock_guard<std::mutex> lock(mutex_);
        used_ -= bytes;
        auto next = idle_.lower_bound(block);
        if (next != idle_.end() && block + bytes == next->first) {
            bytes += next->second;
            next = idle_.erase(next);
        }
        if (next != idle_.begin()) {
            auto before = std::prev(next);
            if (before->first + before->second == block) {
                before->second += bytes;
                return;
            }
        }
        idle_[block] = bytes;
    }

    // Gives all that is idle back to the system, and forgets how much was in use.
    void trim() {
        std::lock_guard<std::mutex> lock(mutex_);
        release(held_ - used_);
        most_used_ = used_;
    }

    size_t used() { return locked(used_); }
    size_t held() { return locked(held_); }

private:
    // To whole pages, and one at least: no two blocks begin at the same address.
    static size_t rounded(size_t bytes) {
        return std::max<size_t>(1, (bytes + page - 1) / page) * page;
    }

    size_t locked(const size_t& value) {
        std::lock_guard<std::mutex> lock(mutex_);
        return value;
    }

    // From the largest idle blocks, of which there are enough.
    void release(size_t bytes) {
        while (bytes && !idle_.empty()) {
            auto largest = std::max_element(
                idle_.begin(), idle_.end(),
                [](const auto& a, const auto& b) { return a.second < b.second; });
            const size_t part = std::min(bytes, largest->second);
            munmap(largest->first + largest->second - part, part);
            largest->second -= part;
            held_ -= part;
            bytes -= part;
            if (!largest->second) idle_.erase(largest);
        }
    }

    // Moves huge pages of idle blocks to a new one; what they held before is lost. Returns how many
    // bytes.
    size_t move_idle_to(char* block, size_t bytes) {
        size_t moved = 0;
#ifdef MREMAP_FIXED
        if (held_ / huge_page > most_moved_among) return 0;
        for (char* to = block; to + huge_page <= block + bytes && bytes >= huge_page;) {
            char* from = idle_huge_page();
            if (!from) break;
            const int how = MREMAP_MAYMOVE | MREMAP_FIXED;
            if (mremap(from, huge_page, huge_page, how, to) != MAP_FAILED) {
                to += huge_page;
                moved += huge_page;
                continue;
            }
            // It is of two mappings. What was at `to` may have gone.
            munmap(from, huge_page);
            held_ -= huge_page;
            if (mmap(to, huge_page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                     -1, 0) == MAP_FAILED) {
                throw OutOfMemory(bytes);
            }
        }
#endif
        return moved;
    }

    // One that is idle no longer, of the largest block that has some; null if there are none.
    char* idle_huge_page() {
        const auto last_in = [](const auto& block) -> char* {
            const auto start = reinterpret_cast<uintptr_t>(block.first);
            const uintptr_t at = (start + block.second) / huge_page * huge_page;
            return at >= start + huge_page ? reinterpret_cast<char*>(at - huge_page) : nullptr;
        };
        auto best = idle_.end();
        for (auto it = idle_.begin(); it != idle_.end(); ++it) {
            if (last_in(*it) && (best == idle_.end() || it->second > best->second)) best = it;
        }
        if (best == idle_.end()) return nullptr;
        char* found = last_in(*best);
        const size_t before = found - best->first, after = best->second - before - huge_page;
        if (after) idle_[found + huge_page] = after;
        if (before) {
            best->second = before;
        } else {
            idle_.erase(best);
        }
        return found;
    }

    // New memory, in huge pages where the system has some.
    static char* fresh(size_t bytes) {
        const size_t spare = bytes < huge_page ? 0 : huge_page;  // to begin at a huge page
        void* mapped = mmap(nullptr, bytes + spare, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) throw OutOfMemory(bytes);
        char* start = static_cast<char*>(mapped);
        if (!spare) return start;
        const size_t before = (spare - reinterpret_cast<uintptr_t>(start) % huge_page) % huge_page;
        if (before) munmap(start, before);
        munmap(start + before + bytes, spare - before);
#ifdef MADV_HUGEPAGE
        madvise(start + before, bytes, MADV_HUGEPAGE);
#endif
        return start + before;
    }

    std::mutex mutex_;
    std::map<char*, size_t> idle_;  // by address; no two are neighbours
    size_t used_ = 0, held_ = 0, most_used_ = 0;
};

// That of this process. Never destroyed: tensors may be freed while the process ends.
inline Pool& pool() {
    static Pool* const memory = new Pool;
    return *memory;
}

}  // namespace fullgraph
