// Structs of callers built with an older or newer header than the library: an invented struct with three sizes. Each
// lies at the end of a page, so that accesses beyond it fault.
#include "api/struct_size.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace per {
namespace {

struct First {
    uint64_t struct_size;
    int64_t capacity;
};

struct Second {
    uint64_t struct_size;
    int64_t capacity;
    int64_t limit;
    double share;
};

// The struct that the library knows.
struct Invented {
    uint64_t struct_size;
    int64_t capacity;
    int64_t limit;
    double share;
    int64_t latest;
};

struct Newer {
    Invented known;
    uint64_t unknown;
};

constexpr Invented defaults = {sizeof(Invented), 7, 0, 0.5, 11};

}  // namespace

template <>
inline constexpr uint64_t struct_sizes<Invented>[] = {sizeof(First), sizeof(Second), sizeof(Invented)};

namespace {

// The last bytes of a page, each 0xAA. The next page is not accessible.
class EndOfPage {
 public:
    explicit EndOfPage(std::size_t size) : page_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))), size_(size) {
        pages_ = static_cast<unsigned char*>(
            mmap(nullptr, 2 * page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        if (pages_ == MAP_FAILED || mprotect(pages_ + page_, page_, PROT_NONE) != 0) std::abort();
        std::memset(pages_, 0xAA, page_);
    }
    ~EndOfPage() { munmap(pages_, 2 * page_); }
    EndOfPage(const EndOfPage&) = delete;
    EndOfPage& operator=(const EndOfPage&) = delete;

    Invented* given() { return reinterpret_cast<Invented*>(bytes()); }

    template <class Struct>
    Struct as() {
        Struct value;
        std::memcpy(&value, bytes(), sizeof value);
        return value;
    }

    template <class Struct>
    void put(const Struct& value) {
        std::memcpy(bytes(), &value, sizeof value);
    }

    unsigned char* bytes() { return pages_ + page_ - size_; }
    unsigned char byte_before() { return bytes()[-1]; }

 private:
    std::size_t page_, size_;
    unsigned char* pages_;
};

per_status status_of_size(uint64_t size) {
    try {
        check_struct_size<Invented>("options", size);
        return PER_OK;
    } catch (const Error& error) {
        EXPECT_NE(std::strstr(error.what(), "options.struct_size is "), nullptr) << error.what();
        return error.status();
    }
}

TEST(StructSize, sizes_that_a_header_has_had_or_a_newer_one_may_have_are_taken) {
    for (uint64_t size = 0; size < sizeof(Invented); ++size)
        EXPECT_EQ(status_of_size(size), size == 16 || size == 32 ? PER_OK : PER_ERROR_INVALID_ARGUMENT) << size;
    for (uint64_t size = sizeof(Invented); size <= 4096; ++size)
        EXPECT_EQ(status_of_size(size), size % 8 == 0 ? PER_OK : PER_ERROR_INVALID_ARGUMENT) << size;
    EXPECT_EQ(status_of_size(4104), PER_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(status_of_size(UINT64_MAX - 7), PER_ERROR_INVALID_ARGUMENT);
}

TEST(StructSize, init_fills_the_fields_that_the_caller_has) {
    EndOfPage first(sizeof(First)), second(sizeof(Second)), newer(sizeof(Newer));
    initialize_struct("options", first.given(), sizeof(First), defaults);
    EXPECT_EQ(first.as<First>().struct_size, sizeof(First));
    EXPECT_EQ(first.as<First>().capacity, 7);
    EXPECT_EQ(first.byte_before(), 0xAA);
    initialize_struct("options", second.given(), sizeof(Second), defaults);
    EXPECT_EQ(second.as<Second>().struct_size, sizeof(Second));
    EXPECT_EQ(second.as<Second>().share, 0.5);
    initialize_struct("options", newer.given(), sizeof(Newer), defaults);
    EXPECT_EQ(newer.as<Newer>().known.struct_size, sizeof(Newer));
    EXPECT_EQ(newer.as<Newer>().known.latest, 11);
    EXPECT_EQ(newer.as<Newer>().unknown, 0u);
}

// Fields that an older struct lacks are not set to defaults: an appended field has no effect if it is zero.
TEST(StructSize, fields_that_an_older_struct_does_not_have_are_read_as_zero) {
    EndOfPage first(sizeof(First)), second(sizeof(Second));
    first.put(First{sizeof(First), 3});
    const Invented of_first = read_struct("options", first.given());
    EXPECT_EQ(of_first.capacity, 3);
    EXPECT_EQ(of_first.limit, 0);
    EXPECT_EQ(of_first.share, 0.0);
    EXPECT_EQ(of_first.latest, 0);
    second.put(Second{sizeof(Second), 3, 4, 0.25});
    const Invented of_second = read_struct("options", second.given());
    EXPECT_EQ(of_second.limit, 4);
    EXPECT_EQ(of_second.share, 0.25);
    EXPECT_EQ(of_second.latest, 0);
}

TEST(StructSize, a_newer_struct_is_read_if_what_is_unknown_is_zero) {
    EndOfPage newer(sizeof(Newer));
    newer.put(Newer{{sizeof(Newer), 3, 4, 0.25, 5}, 0});
    EXPECT_EQ(read_struct("options", newer.given()).latest, 5);
    for (std::size_t i = sizeof(Invented); i < sizeof(Newer); ++i) {
        newer.bytes()[i] = 1;
        try {
            read_struct("options", newer.given());
            ADD_FAILURE() << "byte " << i;
        } catch (const Error& error) {
            EXPECT_EQ(error.status(), PER_ERROR_UNSUPPORTED);
        }
        newer.bytes()[i] = 0;
    }
}

TEST(StructSize, nothing_is_written_beyond_what_the_caller_has) {
    const Invented value = {sizeof(Invented), 3, 4, 0.25, 5};
    EndOfPage first(sizeof(First)), second(sizeof(Second)), newer(sizeof(Newer));
    first.put(First{sizeof(First), 0});
    write_struct("out", first.given(), value);
    EXPECT_EQ(first.as<First>().struct_size, sizeof(First));
    EXPECT_EQ(first.as<First>().capacity, 3);
    second.put(Second{sizeof(Second), 0, 0, 0});
    write_struct("out", second.given(), value);
    EXPECT_EQ(second.as<Second>().struct_size, sizeof(Second));
    EXPECT_EQ(second.as<Second>().share, 0.25);
    newer.put(Newer{{sizeof(Newer), 0, 0, 0, 0}, 0});
    write_struct("out", newer.given(), value);
    EXPECT_EQ(newer.as<Newer>().known.struct_size, sizeof(Newer));
    EXPECT_EQ(newer.as<Newer>().known.latest, 5);
    EXPECT_EQ(newer.as<Newer>().unknown, 0u);
}

TEST(StructSize, of_a_struct_that_is_refused_no_more_than_its_size_is_read) {
    EndOfPage none(sizeof(uint64_t));
    none.put(uint64_t{8});
    EXPECT_THROW(read_struct("options", none.given()), Error);
    EXPECT_THROW(write_struct("out", none.given(), defaults), Error);
    EXPECT_EQ(none.as<uint64_t>(), 8u);
    EXPECT_THROW(initialize_struct("options", none.given(), 8, defaults), Error);
}

}  // namespace
}  // namespace per
