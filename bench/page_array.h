#ifndef PER_BENCH_PAGE_ARRAY_H
#define PER_BENCH_PAGE_ARRAY_H

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include "cpu/memory/prefetch.h"

namespace bench {

enum class Pages { huge, small };

/*
 * Prefetches a line shortly before its use, into the cache level that libper chooses on this processor.
 */
inline void fetch_line(const void* address) {
    per::cpu::prefetch_to_read(address);
}
inline void fetch_line_to_write(const void* address) {
    per::cpu::prefetch_to_write(address);
}

/*
 * Zeroed memory, on huge pages if available and if it is large enough to miss the TLB otherwise, so that baselines need
 * no more page walks than libper. Move-only.
 */
template <class T>
class PageArray {
 public:
    explicit PageArray(int64_t count, Pages pages = Pages::huge) : count_(count) {
        const auto bytes = static_cast<size_t>(count) * sizeof(T);
        const size_t whole_pages = (bytes + huge_page_bytes - 1) / huge_page_bytes * huge_page_bytes;
        reserved_bytes_ = whole_pages + huge_page_bytes;
        reserved_ = mmap(nullptr, reserved_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (reserved_ == MAP_FAILED) throw std::bad_alloc();
        const auto first = reinterpret_cast<uintptr_t>(reserved_);
        const uintptr_t aligned = (first + huge_page_bytes - 1) / huge_page_bytes * huge_page_bytes;
        data_ = reinterpret_cast<T*>(aligned);
        // Only a hint: failure changes no result.
        if (pages == Pages::small) madvise(data_, whole_pages, MADV_NOHUGEPAGE);
        if (pages == Pages::huge && bytes >= huge_page_bytes / 4) madvise(data_, whole_pages, MADV_HUGEPAGE);
    }
    PageArray(PageArray&& other) noexcept
        : count_(other.count_),
          data_(other.data_),
          reserved_(std::exchange(other.reserved_, nullptr)),
          reserved_bytes_(other.reserved_bytes_) {}
    PageArray& operator=(PageArray&&) = delete;
    ~PageArray() {
        if (reserved_ != nullptr) munmap(reserved_, reserved_bytes_);
    }

    T* data() { return data_; }
    const T* data() const { return data_; }
    T& operator[](int64_t i) { return data_[i]; }
    const T& operator[](int64_t i) const { return data_[i]; }
    int64_t size() const { return count_; }

 private:
    static constexpr size_t huge_page_bytes = size_t{2} << 20;

    int64_t count_;
    T* data_;
    void* reserved_;
    size_t reserved_bytes_;
};

}  // namespace bench

#endif
