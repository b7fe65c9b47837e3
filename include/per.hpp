/*
 * per.hpp - prioritized experience replay for C++17 and later: per.h with owning handles, sized arrays, fields by name,
 * and exceptions.
 *
 * This header is a thin layer; programs link libper.so as in C. Structs and constants are those of per.h. Everything
 * that per.h documents about a function (meaning, shapes, dtypes, errors, the state after them, cost, threads, streams)
 * also holds for the method that calls it. Comments here describe only what a method adds. For every method:
 *
 * Errors.   Any status other than PER_OK is thrown as a per::Error. Errors that only this layer can detect, such as a
 *           wrong size of a span, are thrown as per::InvalidArgument before the library is called.
 * Handles.  SumTree, ReplayBuffer, Epochs, Save, Coordinator, Loader, Channel, Writer, SharedLoader and Reader own a
 *           handle of per.h, and are movable but not copyable. get() lends the handle to functions of per.h, release()
 *           gives up ownership. A moved-from or released object has the handle NULL, which the library refuses.
 * Options.  ReplayOptions and similar types are the structs of per.h, filled by their _init functions.
 * Arrays.   A span refers to the caller's memory for the duration of the call; an empty span is NULL where that is
 *           allowed. For handles on PER_CUDA it refers to device memory: Span(pointer, size). A per::Batch allocated by
 *           this layer is in host memory, for buffers on PER_CPU. Every method that fills a Batch has an overload for
 *           the caller's own per_batch, whose arrays the caller must have allocated.
 * Streams.  `stream` is the last parameter of methods whose function in per.h has one, and NULL by default.
 *
 *     #include <per.hpp>
 *
 *     #include <array>
 *     #include <iostream>
 *
 *     int main() {
 *         per::ReplayOptions options;
 *         options.capacity = 10000;
 *         per::ReplayBuffer buffer(options, {per::field<float>("observation"), per::field<int32_t>("action")});
 *
 *         std::array<float, 1> observation{}, next_observation{}, reward{};
 *         std::array<int32_t, 1> action{};
 *         std::array<bool, 1> terminated{}, truncated{};
 *         per::Steps step = buffer.steps(); // where add() finds each step
 *         step.fields["observation"] = observation;
 *         step.fields["action"] = action;
 *         step.next_fields["observation"] = next_observation;
 *         step.reward = reward;
 *         step.terminated = terminated;
 *         step.truncated = truncated;
 *         for (int t = 0; t < 100; t++) { // episodes of ten steps, at the end of which there is a reward
 *             observation[0] = static_cast<float>(t % 10);
 *             next_observation[0] = observation[0] + 1;
 *             terminated[0] = t % 10 == 9;
 *             reward[0] = terminated[0] ? 1.0f : 0.0f;
 *             buffer.add(step);
 *         }
 *
 *         per::Batch batch = buffer.sample(4);
 *         for (int i = 0; i < 4; i++)
 *             std::cout << batch.field<float>("observation")[i] << " -> " << batch.next_field<float>("observation")[i]
 *                       << ", reward " << batch.reward()[i] << ", weight " << batch.weights()[i] << "\n";
 *         buffer.update_priorities(batch.ids(), batch.reward()); // a learner's TD errors take the place of rewards here
 *     }
 */
#ifndef PER_HPP
#define PER_HPP

#include "per.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <initializer_list>
#include <istream>
#include <iterator>
#include <list>
#include <memory>
#include <optional>
#include <ostream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace per {
// The library has internal classes of the same names, which must stay distinct in a program that links it statically.
inline namespace hpp {

/* ----------------------------------------------------------------- version */

/* The version of the loaded library, such as "0.1.0", and of its interface. */
inline std::string version() {
    return per_version();
}
inline int32_t abi_version() {
    return per_abi_version();
}

/* ------------------------------------------------------------------ errors */

/* Base class of this layer's exceptions: what() is the message of per_last_error(), status() the per_status. */
class Error : public std::runtime_error {
 public:
    Error(per_status status, const std::string& message) : std::runtime_error(message), status_(status) {}

    per_status status() const noexcept { return status_; }
    /* For example, "PER_ERROR_EMPTY". */
    const char* status_name() const noexcept { return per_status_name(status_); }

 private:
    per_status status_;
};

/* The exception type of one status. */
template <per_status Status>
class ErrorOf : public Error {
 public:
    explicit ErrorOf(const std::string& message) : Error(Status, message) {}
};

using InvalidArgument = ErrorOf<PER_ERROR_INVALID_ARGUMENT>;
using OutOfMemory = ErrorOf<PER_ERROR_OUT_OF_MEMORY>;
using Empty = ErrorOf<PER_ERROR_EMPTY>;
using Full = ErrorOf<PER_ERROR_FULL>;
using Busy = ErrorOf<PER_ERROR_BUSY>;
using Unsupported = ErrorOf<PER_ERROR_UNSUPPORTED>;
using NoDevice = ErrorOf<PER_ERROR_NO_DEVICE>;
using CudaError = ErrorOf<PER_ERROR_CUDA>;
using IoError = ErrorOf<PER_ERROR_IO>;
using CorruptFile = ErrorOf<PER_ERROR_CORRUPT_FILE>;
using InternalError = ErrorOf<PER_ERROR_INTERNAL>;
using CallbackError = ErrorOf<PER_ERROR_CALLBACK>;

namespace detail {
template <per_status... Statuses>
[[noreturn]] void fail(per_status status, const std::string& message) {
    ((status == Statuses ? throw ErrorOf<Statuses>(message) : void()), ...);
    throw Error(status, message);
}
}  // namespace detail

/* Throws the error of a status, a plain Error for a status known only to a newer per.h. Does nothing for PER_OK. */
inline void check(per_status status) {
    if (status == PER_OK) return;
    detail::fail<PER_ERROR_INVALID_ARGUMENT, PER_ERROR_OUT_OF_MEMORY, PER_ERROR_EMPTY, PER_ERROR_FULL, PER_ERROR_BUSY,
                 PER_ERROR_UNSUPPORTED, PER_ERROR_NO_DEVICE, PER_ERROR_CUDA, PER_ERROR_IO, PER_ERROR_CORRUPT_FILE,
                 PER_ERROR_INTERNAL, PER_ERROR_CALLBACK>(status, per_last_error());
}

/* ----------------------------------------------------------------- options */

/* A struct of per.h, filled by its _init function. */
template <class Struct, per_status (*Init)(Struct*, uint64_t)>
struct Initialized : Struct {
    Initialized() { check(Init(this, sizeof(Struct))); }
};

using TreeOptions = Initialized<per_tree_options, per_tree_options_init>;
using ReplayOptions = Initialized<per_replay_options, per_replay_options_init>;
using SaveOptions = Initialized<per_save_options, per_save_options_init>;
using LoadOptions = Initialized<per_load_options, per_load_options_init>;
using SampleOptions = Initialized<per_sample_options, per_sample_options_init>;
using HindsightOptions = Initialized<per_hindsight_options, per_hindsight_options_init>;
using Priorities = Initialized<per_priorities, per_priorities_init>;
using LoaderOptions = Initialized<per_loader_options, per_loader_options_init>;
using ChannelOptions = Initialized<per_channel_options, per_channel_options_init>;
using SharedLoaderOptions = Initialized<per_shared_loader_options, per_shared_loader_options_init>;
using Settings = Initialized<per_replay_settings, per_replay_settings_init>;

/* Structs that calls fill. */
using TreeDescription = per_tree_description;
using Statistics = per_replay_statistics;
using ShardSummary = per_shard_summary;
using CoordinatorState = per_coordinator_state;
using ChannelStatistics = per_channel_statistics;
using SharedLoaderStatistics = per_shared_loader_statistics;

/* ------------------------------------------------------------------ arrays */

namespace detail {

/* The range type through which a parameter Range&& is read: elements of a temporary are const, unless it is a view. */
template <class Range>
using Source = std::conditional_t<std::is_lvalue_reference_v<Range>, Range, const Range&>;
template <class Range>
using Element = std::remove_reference_t<decltype(*std::data(std::declval<Source<Range>>()))>;

/* True if a Span can be made of a T. */
template <class T, class = void>
struct IsRange : std::false_type {};
template <class T>
struct IsRange<T, std::void_t<Element<T&>, decltype(std::size(std::declval<T&>()))>> : std::true_type {};

}  // namespace detail

/* A pointer and a number of elements, like std::span of C++20. A Span of const T also accepts temporaries and lists. */
template <class T>
class Span {
 public:
    using element_type = T;
    using value_type = std::remove_cv_t<T>;

    constexpr Span() noexcept = default;
    constexpr Span(T* data, std::size_t size) noexcept : data_(data), size_(size) {}
    /* From std::vector, std::array, C arrays, std::span, and anything else that std::data() and std::size() accept. */
    template <class Range, class = std::enable_if_t<std::is_convertible_v<detail::Element<Range> (*)[], T (*)[]>>>
    constexpr Span(Range&& range)
        : data_(std::data(static_cast<detail::Source<Range>>(range))), size_(std::size(range)) {}
    template <class U = T, class = std::enable_if_t<std::is_const_v<U>>>
    constexpr Span(const std::initializer_list<value_type>& list) : data_(std::data(list)), size_(list.size()) {}

    constexpr T* data() const noexcept { return data_; }
    constexpr std::size_t size() const noexcept { return size_; }
    constexpr bool empty() const noexcept { return size_ == 0; }
    constexpr T* begin() const noexcept { return data_; }
    constexpr T* end() const noexcept { return data_ + size_; }
    constexpr T& operator[](std::size_t i) const noexcept { return data_[i]; }

 private:
    T* data_ = nullptr;
    std::size_t size_ = 0;
};
template <class Range>
Span(Range&&) -> Span<detail::Element<Range>>;

/* Dtype<T>::value is the per_dtype of elements of type T. Specialise it for your type of 16-bit floats. */
template <class T, class = void>
struct Dtype;
template <>
struct Dtype<bool> : std::integral_constant<per_dtype, PER_BOOL> {
    static_assert(sizeof(bool) == 1, "flags are bytes");
};
template <>
struct Dtype<float> : std::integral_constant<per_dtype, PER_FLOAT32> {};
template <>
struct Dtype<double> : std::integral_constant<per_dtype, PER_FLOAT64> {};
template <class T>
struct Dtype<T, std::enable_if_t<std::is_integral_v<T>>>
    : std::integral_constant<per_dtype, sizeof(T) == 1   ? (std::is_signed_v<T> ? PER_INT8 : PER_UINT8)
                                        : sizeof(T) == 2 ? (std::is_signed_v<T> ? PER_INT16 : PER_UINT16)
                                        : sizeof(T) == 4 ? (std::is_signed_v<T> ? PER_INT32 : PER_UINT32)
                                                         : (std::is_signed_v<T> ? PER_INT64 : PER_UINT64)> {};

namespace detail {

inline int64_t count(std::size_t size) {
    return static_cast<int64_t>(size);
}

inline std::size_t product(const std::vector<int64_t>& shape) {
    std::size_t result = 1;
    for (const int64_t length : shape) result *= static_cast<std::size_t>(length);
    return result;
}

inline std::size_t size_of(int32_t dtype) {
    constexpr std::size_t sizes[] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8};
    return sizes[dtype];
}

/* True if size == a * b * c, computed without overflow. */
inline bool is_product(int64_t size, int64_t a, int64_t b, int64_t c) {
    if (a <= 0 || b <= 0 || c <= 0) return size == 0;
    return size % c == 0 && size / c % b == 0 && size / c / b == a;
}

/* `unit`: plural noun for the things counted. */
inline void require_size(const char* name, std::size_t size, int64_t a, int64_t b = 1, int64_t c = 1,
                         const char* unit = "elements") {
    if (is_product(count(size), a, b, c)) return;
    std::string expected = std::to_string(a);
    for (const int64_t factor : {b, c}) {
        if (factor != 1) expected += " * " + std::to_string(factor);
    }
    throw InvalidArgument(std::string(name) + " has " + std::to_string(size) + " " + unit + ": expected are " +
                          expected);
}

/* Common number of elements of two arrays, which must be equal. */
template <class T, class Other>
int64_t common_count(Span<T> array, const char* other_name, Span<Other> other) {
    require_size(other_name, other.size(), count(array.size()));
    return count(array.size());
}

/* sequence_steps is that of the layout, n_steps that of per_priorities. */
inline Priorities given_td_errors(Span<const int64_t> ids, Span<const float> td_errors, int64_t n_critics,
                                  int64_t n_steps, int64_t sequence_steps) {
    if (n_critics < 1) throw InvalidArgument("n_critics is " + std::to_string(n_critics) + ": must be at least 1");
    Priorities given;
    given.count = count(ids.size());
    require_size("td_errors", td_errors.size(), n_critics, given.count,
                 n_steps != 0 ? n_steps : std::max<int64_t>(sequence_steps, 1));
    given.ids = ids.data();
    given.td_errors = td_errors.data();
    given.n_critics = n_critics;
    given.n_steps = n_steps;
    return given;
}

inline Priorities given_priorities(Span<const int64_t> ids, Span<const float> priorities) {
    Priorities given;
    given.count = common_count(ids, "priorities", priorities);
    given.ids = ids.data();
    given.priorities = priorities.data();
    return given;
}

/* The pointer of an optional array: NULL for an empty span. */
template <class T>
T* optional_array(const char* name, Span<T> array, int64_t a, int64_t b = 1) {
    if (array.empty()) return nullptr;
    require_size(name, array.size(), a, b);
    return array.data();
}

/* A non-NULL pointer even for an empty span, where NULL has another meaning. */
template <class T>
const T* given_array(Span<const T> array) {
    static const T none{};
    return array.data() != nullptr ? array.data() : &none;
}

/* The value that a function of per.h writes to its last parameter. */
template <class T, class... Parameters, class... Arguments>
T value_of(per_status (*function)(Parameters...), Arguments... arguments) {
    T value{};
    check(function(arguments..., &value));
    return value;
}

/* The struct that a function of per.h fills; its last parameters are the struct and its size. */
template <class Struct, class... Parameters, class... Arguments>
Struct filled_by(per_status (*function)(Parameters...), Arguments... arguments) {
    Struct filled{};
    check(function(arguments..., &filled, sizeof filled));
    return filled;
}

/* Adapts a function of the caller for the library, which calls run() with `this` as the context. Exceptions of the
   function are kept out of the library, and rethrown by check(). */
template <class Result, class... Parameters>
class Callback {
 public:
    explicit Callback(const std::function<Result(Parameters...)>& function) : function_(function) {}

    static Result run(void* context, Parameters... parameters) {
        Callback* const callback = static_cast<Callback*>(context);
        try {
            return callback->function_(parameters...);
        } catch (...) {
            callback->thrown_ = std::current_exception();
            if (!callback->thrown_) throw; /* not a C++ exception: the function ends its thread */
            return -1;
        }
    }
    /* Rethrows the function's exception, or checks the status of the library's call. */
    void check(per_status status) const {
        if (thrown_) std::rethrow_exception(thrown_);
        per::check(status);
    }

 private:
    const std::function<Result(Parameters...)>& function_;
    std::exception_ptr thrown_;
};

template <class C, void (*Free)(C*)>
class Handle {
 public:
    C* get() const noexcept { return handle_.get(); }
    C* release() noexcept { return handle_.release(); }

 protected:
    explicit Handle(C* handle) noexcept : handle_(handle) {}

 private:
    struct Deleter {
        void operator()(C* handle) const noexcept { Free(handle); }
    };
    std::unique_ptr<C, Deleter> handle_;
};

}  // namespace detail

/* ------------------------------------------------------------------ fields */

/* A per_field that owns its name and shape. Unset members are 0, the library's default. */
struct Field : per_field {
    std::string name;
    std::vector<int64_t> shape;

    Field() : per_field() {}
    /* A copy without the default_value. */
    explicit Field(const per_field& field)
        : per_field(field), name(field.name), shape(field.shape, field.shape + field.ndim) {
        default_value = nullptr;
    }

    /* Sets one number as the default_value of all elements. To use an array, set default_value itself; the array must
       stay valid until the buffer is created. */
    template <class T>
    Field& set_default(T number) {
        static_assert(sizeof number <= sizeof default_number);
        std::memcpy(&default_number, &number, sizeof number);
        default_dtype = Dtype<T>::value;
        return *this;
    }
    /* Lets a row have any number of values of this shape, from 0 to `length`; see Array and Ragged. */
    Field& set_max_length(int64_t length) {
        max_length = length;
        return *this;
    }
    /* Throws the error of per_field_check(), if any. An empty name is not checked. */
    inline void check() const;

    uint64_t default_number = 0;            /* bytes of the number */
    std::optional<per_dtype> default_dtype; /* dtype of the number, if set */
};

/* A field with elements of type T: field<float>("observation", {84, 84}), field<int64_t>("action"). */
template <class T>
Field field(std::string name, std::vector<int64_t> shape = {}) {
    Field result;
    result.name = std::move(name);
    result.shape = std::move(shape);
    result.dtype = Dtype<T>::value;
    return result;
}

namespace detail {

inline const char* c_path(const std::string& path) {
    if (path.find('\0') != std::string::npos)  // C would end the path there
        throw InvalidArgument("path has a NUL in it");
    return path.c_str();
}

/* Fields in the form of per.h. They point into the Field objects, which must outlive the list. */
class FieldList {
 public:
    explicit FieldList(Span<const Field> fields) : fields_(fields.begin(), fields.end()), defaults_(fields.size()) {
        static constexpr int64_t no_axis = 0;
        for (std::size_t i = 0; i < fields.size(); ++i) {
            const Field& field = fields[i];
            if (field.name.find('\0') != std::string::npos)  // C would end the name there
                throw InvalidArgument("name of fields[" + std::to_string(i) + "] has a NUL in it");
            fields_[i].name = field.name.c_str();
            fields_[i].shape = field.shape.data();
            fields_[i].ndim = static_cast<int32_t>(field.shape.size());
            if (field.default_dtype) {
                defaults_[i] = {&field.default_number, &no_axis, 0, *field.default_dtype, nullptr};
                fields_[i].default_value = &defaults_[i];
            }
        }
    }
    per_field& operator[](std::size_t i) { return fields_[i]; }
    /* The options with these fields. */
    per_replay_options in(per_replay_options options) const {
        options.fields = fields_.data();
        options.n_fields = count(fields_.size());
        options.field_size = sizeof(per_field);
        return options;
    }

 private:
    std::vector<per_field> fields_;
    std::vector<per_array> defaults_;
};

/* The name of a per_dtype in messages. */
inline const char* dtype_name(int32_t dtype) {
    constexpr const char* names[] = {"bool",   "uint8", "int8",    "uint16",   "int16",   "uint32", "int32",
                                     "uint64", "int64", "float16", "bfloat16", "float32", "float64"};
    constexpr int32_t n_names = sizeof names / sizeof *names;
    return dtype >= 0 && dtype < n_names ? names[dtype] : "one of a later libper";
}

/* The fields of described options. They are in the library's layout: field_size bytes apart. */
inline std::vector<Field> fields_of(const per_replay_options& options) {
    std::vector<Field> fields;
    const unsigned char* const bytes = reinterpret_cast<const unsigned char*>(options.fields);
    const std::size_t size = static_cast<std::size_t>(options.field_size);
    for (std::size_t i = 0; i < static_cast<std::size_t>(options.n_fields); ++i) {
        per_field field{};
        std::memcpy(&field, bytes + i * size, std::min(size, sizeof field));
        fields.emplace_back(field);
    }
    return fields;
}

/* The constant properties of a buffer. Objects made for the buffer share its layout, which identifies the buffer. */
struct Layout {
    explicit Layout(const per_replay_options& options)
        : fields(fields_of(options)),
          n_envs(options.n_envs),
          sequence_steps(options.sequence_length == 0 ? 0 : options.burn_in + options.sequence_length),
          has_times_sampled(options.keep_times_sampled != 0) {}

    std::vector<Field> fields;
    int64_t n_envs;
    int64_t sequence_steps; /* T of per.h; 0: single transitions are drawn */
    bool has_times_sampled;

    std::size_t number(std::string_view name) const {
        std::string names;
        for (std::size_t i = 0; i < fields.size(); ++i) {
            if (fields[i].name == name) return i;
            names += (i == 0 ? "" : ", ") + fields[i].name;
        }
        throw InvalidArgument("\"" + std::string(name) + "\" is no field: there are " + names);
    }
    template <class T>
    void require_dtype(std::size_t number) const {
        if (fields[number].dtype == Dtype<T>::value) return;
        throw InvalidArgument("dtype of \"" + fields[number].name + "\" is " + dtype_name(fields[number].dtype) +
                              ": asked for was " + dtype_name(Dtype<T>::value));
    }
    /* Throws unless the field has rows of any length, or of one length if is_ragged is false. */
    void require_ragged(std::size_t number, bool is_ragged) const {
        if ((fields[number].max_length != 0) == is_ragged) return;
        throw InvalidArgument("\"" + fields[number].name + "\" has rows of " +
                              (is_ragged ? "one length: use field()" : "any length: use ragged()"));
    }
};
using SharedLayout = std::shared_ptr<const Layout>;

}  // namespace detail

/* -------------------------------------------------------------------- steps */

namespace detail {

/* Arrays of fields in the form of per.h, and memory that this layer made for them. A move leaves it in place. */
struct GivenArrays {
    GivenArrays() = default;
    GivenArrays(GivenArrays&&) = default;
    GivenArrays& operator=(GivenArrays&&) = default;

    std::vector<per_array> arrays;
    std::vector<std::vector<int64_t>> numbers;      /* shapes and offsets */
    std::vector<std::vector<unsigned char>> values; /* packed rows */
};

/* Rows in one array, one after the other. */
struct PackedRows {
    std::vector<unsigned char> values;
    std::vector<int64_t> offsets = {0}; /* in elements */
};
template <class Row>
PackedRows packed(const void* rows, std::size_t n_rows) {
    using T = std::remove_cv_t<Element<const Row&>>;
    PackedRows packed;
    packed.values.reserve(sizeof(uint64_t)); /* not NULL, even if all rows are empty */
    for (std::size_t i = 0; i < n_rows; ++i) {
        const Span<const T> row(static_cast<const Row*>(rows)[i]);
        const unsigned char* const bytes = reinterpret_cast<const unsigned char*>(row.data());
        packed.values.insert(packed.values.end(), bytes, bytes + row.size() * sizeof(T));
        packed.offsets.push_back(packed.offsets.back() + count(row.size()));
    }
    return packed;
}

}  // namespace detail

/*
 * An array passed to a call: a view of a range, which must outlive the call; a vector therefore cannot be a temporary.
 * Array() means not given. Its elements are assumed to have the full shape that the call expects. To pass another
 * shape, such as that of stacked frames, use a per_array.
 *
 * A field with max_length takes rows of any length, in one of these forms:
 *
 *   values             a single row: [length, shape of the field]
 *   {values, offsets}  [total, shape], the values of all rows, and [rows + 1], the offsets of per_array
 *   rows               a range of ranges, such as a std::vector of vectors, each [length, shape]. The call copies them
 *                      into one array
 *
 * Row k n + j is that of step k of environment j; in set(), row i is that of ids[i]. An Array keeps the address and the
 * size of its range, so assign the range again after a change of its size. The rows of a range of ranges, however, may
 * change their sizes until the call.
 */
class Array {
 public:
    Array() = default;
    Array(const per_array& array) : array_(array) {}
    template <class T>
    Array(Span<T> elements)
        : array_{detail::given_array(Span<const T>(elements)), nullptr, 0, Dtype<std::remove_cv_t<T>>::value, nullptr},
          size_(detail::count(elements.size())) {}
    template <class Range, class T = detail::Element<Range&>, std::enable_if_t<!detail::IsRange<T>::value, int> = 0>
    Array(Range& elements) : Array(Span<T>(elements)) {}
    template <class Range, class T = detail::Element<const Range&>>
    Array(const Range&&) = delete;
    template <class T, class U, std::enable_if_t<std::is_convertible_v<Span<U>, Span<const int64_t>>, int> = 0>
    Array(Span<T> values, Span<U> offsets) : Array(values) {
        array_.offsets = detail::given_array(Span<const int64_t>(offsets));
        n_rows_ = std::max<int64_t>(detail::count(offsets.size()) - 1, 0);
    }
    template <class Range, class Offsets, class T = detail::Element<Range&>>
    Array(Range& values, Offsets& offsets) : Array(Span<T>(values), Span<const int64_t>(offsets)) {}
    template <class Range, class Row = detail::Element<Range&>, class T = detail::Element<const Row&>>
    Array(Range& rows)
        : array_{std::data(rows), nullptr, 0, Dtype<std::remove_cv_t<T>>::value, nullptr},
          n_rows_(detail::count(std::size(rows))),
          packed_(detail::packed<std::remove_cv_t<Row>>) {}

    /* The array as one of a * b * c elements. If it has another number, its shape is [number], stored in this object;
       the library refuses it and names the shapes that it would accept. */
    per_array get(int64_t a, int64_t b = 1, int64_t c = 1) const { return get("the array", a, b, c); }

 private:
    friend class FieldArrays;
    /* `name` is that of errors. */
    per_array get(const std::string& name, int64_t a, int64_t b, int64_t c) const {
        if (packed_ != nullptr)
            throw InvalidArgument(name + " is a range of rows: only fields with max_length take one");
        per_array array = array_;
        if (size_ < 0 || detail::is_product(size_, a, b, c)) return array;
        array.shape = &size_;
        array.ndim = 1;
        return array;
    }
    /* The array as length * n_envs rows of a field with max_length. */
    per_array get_rows(const std::string& name, const Field& field, int64_t length, int64_t n_envs,
                       detail::GivenArrays& given) const {
        per_array array = array_;
        if (n_rows_ >= 0)
            detail::require_size(name.c_str(), static_cast<std::size_t>(n_rows_), length, n_envs, 1, "rows");
        const int64_t row_size = detail::count(detail::product(field.shape));
        int64_t size = size_;
        if (packed_ != nullptr) {
            detail::PackedRows rows = packed_(array_.data, static_cast<std::size_t>(n_rows_));
            size = rows.offsets.back();
            for (std::size_t i = 1; i < rows.offsets.size(); ++i) {
                if (rows.offsets[i] % row_size != 0)
                    throw InvalidArgument(name + ": row " + std::to_string(i - 1) +
                                          " has a number of elements that is no multiple of " +
                                          std::to_string(row_size));
                rows.offsets[i] /= row_size;
            }
            array.data = given.values.emplace_back(std::move(rows.values)).data();
            array.offsets = given.numbers.emplace_back(std::move(rows.offsets)).data();
        } else if (size < 0) {
            return array; /* given by array_ */
        }
        std::vector<int64_t> shape = {size};
        if (size % row_size == 0) {
            shape = field.shape;
            shape.insert(shape.begin(), size / row_size);
        }
        array.ndim = static_cast<int32_t>(shape.size());
        array.shape = given.numbers.emplace_back(std::move(shape)).data();
        return array;
    }

    per_array array_ = {};
    int64_t size_ = -1;   /* -1: given by array_ or packed_ */
    int64_t n_rows_ = -1; /* -1: neither offsets nor a range of rows were given */
    detail::PackedRows (*packed_)(const void* rows, std::size_t n_rows) = nullptr; /* of a range of rows */
};

/* An array for each field of a buffer, by name: ReplayBuffer::field_arrays(). */
class FieldArrays {
 public:
    /* `prefix` precedes the names of fields in errors. */
    explicit FieldArrays(detail::SharedLayout layout, const char* prefix = "")
        : layout_(std::move(layout)), prefix_(prefix), arrays_(layout_->fields.size()) {}

    /* Throws InvalidArgument if there is no field of this name, or for next_fields no observation. */
    Array& operator[](std::string_view name) {
        if (!layout_) throw InvalidArgument("the steps were moved from");
        const std::size_t number = layout_->number(name);
        if (*prefix_ != '\0' && layout_->fields[number].role != PER_ROLE_OBSERVATION)
            throw InvalidArgument(prefix_ + layout_->fields[number].name + " is given; allowed: " + prefix_ +
                                  "x for observations x");
        return arrays_[number];
    }

    /* The arrays, each as [length, n_envs, shape of the field], or length * n_envs rows with max_length. */
    detail::GivenArrays get(int64_t length, int64_t n_envs = 1) const {
        detail::GivenArrays given;
        given.arrays.reserve(arrays_.size());
        for (const Array& array : arrays_) {
            const Field& field = layout_->fields[given.arrays.size()];
            given.arrays.push_back(
                field.max_length != 0
                    ? array.get_rows(prefix_ + field.name, field, length, n_envs, given)
                    : array.get(prefix_ + field.name, length, n_envs, detail::count(detail::product(field.shape))));
        }
        return given;
    }

 private:
    friend class ReplayBuffer;
    friend class Writer;
    detail::SharedLayout layout_;
    const char* prefix_;
    std::vector<Array> arrays_;
};

/* The environments of steps: those of a range, which must outlive the call; EnvIds() means all. */
class EnvIds {
 public:
    EnvIds() = default;
    template <class T, std::enable_if_t<std::is_convertible_v<Span<T>, Span<const int64_t>>, int> = 0>
    EnvIds(Span<T> ids) : ids_(ids), is_given_(true) {}
    template <class Range, std::enable_if_t<std::is_convertible_v<Range&, Span<const int64_t>>, int> = 0>
    EnvIds(Range& ids) : EnvIds(Span<const int64_t>(ids)) {}
    template <class Range, std::enable_if_t<std::is_convertible_v<const Range&, Span<const int64_t>>, int> = 0>
    EnvIds(const Range&&) = delete;

    const int64_t* get() const { return is_given_ ? detail::given_array(ids_) : nullptr; }
    /* n_envs: of all environments. */
    int64_t count(int64_t n_envs) const noexcept { return is_given_ ? detail::count(ids_.size()) : n_envs; }

 private:
    Span<const int64_t> ids_;
    bool is_given_ = false;
};

/* Steps to add: ReplayBuffer::steps(). Members are those of per_steps. */
struct Steps {
    explicit Steps(const detail::SharedLayout& layout) : fields(layout), next_fields(layout, "next_") {}

    int64_t length = Initialized<per_steps, per_steps_init>().length;
    EnvIds env_ids;
    FieldArrays fields, next_fields;
    Array reward, terminated, truncated, mask, next_mask, priorities, td_errors;
};

namespace detail {
/* Steps in the form of per.h, for a handle of n_envs environments. */
struct GivenSteps {
    GivenSteps(const Steps& given, int64_t n_envs)
        : fields(given.fields.get(given.length, given.env_ids.count(n_envs))),
          next_fields(given.next_fields.get(given.length, given.env_ids.count(n_envs))) {
        const int64_t length = given.length, n = given.env_ids.count(n_envs);
        steps.length = length;
        steps.n_envs = n;
        steps.env_ids = given.env_ids.get();
        steps.fields = fields.arrays.data();
        steps.next_fields = next_fields.arrays.data();
        steps.reward = given.reward.get(length, n);
        steps.terminated = given.terminated.get(length, n);
        steps.truncated = given.truncated.get(length, n);
        steps.mask = given.mask.get(length, n);
        steps.next_mask = given.next_mask.get(length, n);
        steps.priorities = given.priorities.get(length, n);
        steps.td_errors = given.td_errors.get(length, n);
    }

    GivenArrays fields, next_fields;
    Initialized<per_steps, per_steps_init> steps;
};
}  // namespace detail

/* ----------------------------------------------------------------- batches */

/* Rows of any length in a batch: a view of a per_ragged whose values have type T. */
template <class T>
class Ragged {
 public:
    Ragged() noexcept = default;
    /* n_rows rows, whose values have row_size elements each: the product of the field's shape. The values and the
       offsets must have been written, and must outlive this object. */
    Ragged(const per_ragged& rows, std::size_t n_rows, std::size_t row_size) noexcept
        : values_(static_cast<T*>(rows.values)),
          offsets_(rows.offsets, n_rows + 1),
          row_size_(row_size),
          padded_length_(static_cast<std::size_t>(rows.padded_length)) {}

    /* The number of rows. */
    std::size_t size() const noexcept { return offsets_.empty() ? 0 : offsets_.size() - 1; }
    /* The number of values in row i. */
    std::size_t length(std::size_t i) const noexcept { return static_cast<std::size_t>(offsets_[i + 1] - offsets_[i]); }
    /* The number of values in all rows. */
    std::size_t total() const noexcept { return offsets_.empty() ? 0 : static_cast<std::size_t>(offsets_[size()]); }
    /* Row i: [length(i), shape of the field]. */
    Span<T> operator[](std::size_t i) const noexcept {
        const std::size_t first = is_padded() ? i * padded_length_ : static_cast<std::size_t>(offsets_[i]);
        return {values_ + first * row_size_, length(i) * row_size_};
    }
    /* All rows: [total(), shape], or, if they are padded, [size(), padded_length(), shape]. */
    Span<T> values() const noexcept { return {values_, (is_padded() ? size() * padded_length_ : total()) * row_size_}; }
    /* [size() + 1] sums of lengths, the first is 0. */
    Span<const int64_t> offsets() const noexcept { return offsets_; }
    /* The distance of rows in values(), in values; 0: rows are packed. */
    std::size_t padded_length() const noexcept { return padded_length_; }

 private:
    bool is_padded() const noexcept { return padded_length_ != 0; }

    T* values_ = nullptr;
    Span<const int64_t> offsets_;
    std::size_t row_size_ = 1;
    std::size_t padded_length_ = 0;
};

namespace detail {
/* Room for rows of any length, in memory that grows. */
class RaggedRoom {
 public:
    RaggedRoom(std::size_t n_rows, std::size_t value_bytes) : offsets_(n_rows + 1), value_bytes_(value_bytes) {
        rows_.offsets = offsets_.data();
        set_capacity(1); /* NULL would ask for lengths only */
    }

    per_ragged* get() noexcept { return &rows_; }
    /* Makes room for the rows of the last call. Returns false if that cannot help: they have room, or are padded. */
    bool grow() {
        if (rows_.padded_length > 0 || rows_.total <= rows_.capacity) return false;
        set_capacity(rows_.total + rows_.total / 4); /* so that later batches, a little larger, fit as well */
        return true;
    }
    /* Empties all rows. Later calls pad them to this length; 0: rows are packed. */
    void pad(int64_t length) {
        set_capacity(std::max(rows_.capacity, length * (count(offsets_.size()) - 1)));
        rows_.padded_length = length;
        std::fill(offsets_.begin(), offsets_.end(), 0);
    }

 private:
    void set_capacity(int64_t capacity) {
        values_.resize(static_cast<std::size_t>(capacity) * value_bytes_);
        rows_.values = values_.data();
        rows_.capacity = capacity;
    }

    per_ragged rows_ = {};
    std::vector<unsigned char> values_;
    std::vector<int64_t> offsets_;
    std::size_t value_bytes_;
};

/* True if T is a class that holds a Batch: a Slot or ReadBatch. */
template <class Batch, class T>
inline constexpr bool is_held = std::is_base_of_v<Batch, std::decay_t<T>> && !std::is_same_v<Batch, std::decay_t<T>>;
}  // namespace detail

/*
 * The arrays of a batch, in its own memory or in the slot of a loader, with the shapes documented at per_batch. Spans
 * are valid as long as the batch, and empty for arrays that it does not have. The spans of a const batch are writable
 * too.
 *
 * A batch makes room for rows of any length: if the rows that a call found do not fit, it repeats the call with more
 * memory, which the batch keeps. A Ragged is valid until a later call fills the batch, or until pad().
 */
class Batch {
 public:
    /* A batch that was moved from is empty. */
    Batch(Batch&& other) noexcept : Batch() { swap(other); }
    Batch& operator=(Batch&& other) noexcept {
        Batch moved(std::move(other));
        swap(moved);
        return *this;
    }
    /* Not from a Slot or ReadBatch: the batch would outlive the slot in which its arrays are. */
    template <class Held, class = std::enable_if_t<detail::is_held<Batch, Held>>>
    Batch(Held&&) = delete;
    template <class Held, class = std::enable_if_t<detail::is_held<Batch, Held>>>
    Batch& operator=(Held&&) = delete;

    /* B: the number of transitions or sequences. */
    int64_t size() const noexcept { return size_; }
    Span<float> reward() const noexcept { return span(arrays_.reward, steps()); }
    Span<float> discount() const noexcept { return span(arrays_.discount, steps()); }
    Span<int32_t> n_steps() const noexcept { return span(arrays_.n_steps, steps()); }
    Span<uint8_t> terminated() const noexcept { return span(arrays_.terminated, steps()); }
    Span<uint8_t> truncated() const noexcept { return span(arrays_.truncated, steps()); }
    Span<float> weights() const noexcept { return span(arrays_.weights); }
    Span<int64_t> ids() const noexcept { return span(arrays_.ids); }
    Span<float> priorities() const noexcept { return span(arrays_.priorities); }
    Span<float> probabilities() const noexcept { return span(arrays_.probabilities); }
    Span<uint8_t> mask() const noexcept { return span(arrays_.mask, steps()); }
    Span<float> gamma_m() const noexcept { return span(arrays_.gamma_m, steps()); }
    Span<int32_t> times_sampled() const noexcept { return span(arrays_.times_sampled); }
    /* The index of each row's source, in batches of a Mixture. */
    Span<int32_t> sources() const noexcept { return span(sources_); }

    /*
     * A field by name. Throws InvalidArgument unless a field of this name with elements of type T exists, without
     * max_length. next_field() of a field that is not an observation is empty.
     */
    template <class T>
    Span<T> field(std::string_view name) const {
        return elements<T>(arrays_.fields, name);
    }
    template <class T>
    Span<T> next_field(std::string_view name) const {
        return elements<T>(arrays_.next_fields, name);
    }
    /*
     * A field with max_length by name, otherwise like field() and next_field(). It has B rows. For sequences it has
     * B * T rows, or B * (T + n_step) for an observation: first those of all steps of sequence 0, then those of
     * sequence 1, and so on. Rows in the padding of a sequence are empty.
     */
    template <class T>
    Ragged<T> ragged(std::string_view name) const {
        return rows<T>(arrays_.fields, name);
    }
    template <class T>
    Ragged<T> next_ragged(std::string_view name) const {
        return rows<T>(arrays_.next_fields, name);
    }
    /*
     * Makes later calls pad the rows of a field, and of its next observations, with zeros to the given length, 0 ..
     * max_length; 0: rows are packed. The rows are empty until the next call. A call that finds a longer row throws
     * Full.
     */
    void pad(std::string_view name, int64_t length) {
        if (memory_.empty()) throw InvalidArgument("batch was not made by ReplayBuffer::batch()");
        const std::size_t number = layout_->number(name);
        layout_->require_ragged(number, true);
        const int64_t max_length = layout_->fields[number].max_length;
        if (length < 0 || length > max_length)
            throw InvalidArgument("length is " + std::to_string(length) + ": allowed are 0 .. " +
                                  std::to_string(max_length));
        for (detail::RaggedRoom& room : ragged_)
            if (room.get() == fields_[number] || room.get() == next_fields_[number]) room.pad(length);
    }
    /* The shape of a field in this batch, B first; with max_length the axes of its rows: [B], or [B, T]. */
    std::vector<int64_t> shape(std::string_view name) const {
        if (!layout_) return {};
        std::vector<int64_t> shape = shape_of_one(layout_->fields[layout_->number(name)]);
        shape.insert(shape.begin(), size_);
        return shape;
    }
    /* The arrays as a per_batch, for functions of per.h. */
    const per_batch& get() const noexcept { return arrays_; }

 protected:
    Batch() = default;

 private:
    friend class ReplayBuffer;
    friend class Epochs;
    friend class Loader;
    friend class Reader;
    friend class Mixture;
    /* A drawn batch; rows with one frame each, as per_replay_get() writes them; single steps with stacks. */
    enum class Kind { drawn, rows, steps };

    Batch(detail::SharedLayout layout, Kind kind, int64_t size, int64_t n_step)
        : layout_(std::move(layout)), kind_(kind), size_(size), n_step_(n_step) {}
    /* A batch without memory for draws from this buffer. The library refuses an invalid n_step. */
    Batch(detail::SharedLayout layout, per_replay* replay, int64_t size, const per_sample_options* options)
        : Batch(std::move(layout), Kind::drawn, size, 0) {
        if (!is_of_sequences()) return;
        ReplayOptions described;
        check(per_replay_describe(replay, &described));
        n_step_ = described.n_step;
        if (options != nullptr && options->n_step > 0) n_step_ = std::min(n_step_, options->n_step);
    }

    void swap(Batch& other) noexcept {
        std::swap(layout_, other.layout_);
        std::swap(kind_, other.kind_);
        std::swap(size_, other.size_);
        std::swap(n_step_, other.n_step_);
        std::swap(arrays_, other.arrays_);
        std::swap(sources_, other.sources_);
        std::swap(memory_, other.memory_);
        std::swap(ragged_, other.ragged_);
        std::swap(fields_, other.fields_);
        std::swap(next_fields_, other.next_fields_);
    }

    /* Sequences are drawn with the n_step that the batch was made for. */
    SampleOptions options_for_draw(const per_sample_options* options) const {
        SampleOptions given;
        if (options != nullptr) static_cast<per_sample_options&>(given) = *options;
        if (is_of_sequences() && given.n_step == 0) given.n_step = n_step_;
        if (is_of_sequences() && given.n_step != n_step_)
            throw InvalidArgument("n_step is " + std::to_string(given.n_step) + ": the batch was made for " +
                                  std::to_string(n_step_));
        return given;
    }
    /* Refuses a size that the library would refuse, before it is allocated. */
    static int64_t checked_size(int64_t batch_size) {
        constexpr int64_t max_size = int64_t{1} << 24;
        if (batch_size >= 1 && batch_size <= max_size) return batch_size;
        throw InvalidArgument("batch_size is " + std::to_string(batch_size) + ": allowed are 1 .. " +
                              std::to_string(max_size));
    }
    void allocate(bool with_next_fields = true) {
        for (const Field& field : layout_->fields) {
            const bool has_next = with_next_fields && field.role == PER_ROLE_OBSERVATION && !is_of_sequences();
            fields_.push_back(room_of(field));
            next_fields_.push_back(has_next ? room_of(field) : nullptr);
        }
        arrays_.fields = fields_.data();
        arrays_.next_fields = next_fields_.data();
        arrays_.reward = room<float>(steps());
        arrays_.discount = room<float>(steps());
        arrays_.n_steps = room<int32_t>(steps());
        arrays_.terminated = room<uint8_t>(steps());
        arrays_.truncated = room<uint8_t>(steps());
        arrays_.ids = room<int64_t>();
        arrays_.priorities = room<float>();
        arrays_.gamma_m = room<float>(steps());
        if (layout_->has_times_sampled) arrays_.times_sampled = room<int32_t>();
        if (kind_ != Kind::drawn) return;
        arrays_.weights = room<float>();
        arrays_.probabilities = room<float>();
        if (is_of_sequences()) arrays_.mask = room<uint8_t>(steps());
    }
    std::size_t n_rows() const noexcept { return static_cast<std::size_t>(size_); }
    template <class T>
    T* room(std::size_t n = 1) {
        return reinterpret_cast<T*>(memory_.emplace_back(n_rows() * n * sizeof(T)).data());
    }
    void* room_of(const Field& field) {
        const std::size_t n = detail::product(shape_of_one(field));
        if (field.max_length == 0) return room<unsigned char>(n * detail::size_of(field.dtype));
        return ragged_.emplace_back(n_rows() * n, detail::product(field.shape) * detail::size_of(field.dtype)).get();
    }
    /* The status of a call that fills this batch. Repeats it while rows of any length need more room. */
    template <class Call>
    per_status filled_by(const Call& call) {
        for (;;) {
            const per_status status = call();
            if (status != PER_ERROR_FULL || !grow()) return status;
        }
    }
    /* Returns false if nothing needs more room. */
    bool grow() {
        bool has_grown = false;
        for (detail::RaggedRoom& room : ragged_) has_grown = room.grow() || has_grown;
        return has_grown;
    }
    template <class T>
    Span<T> span(T* array, std::size_t n = 1) const noexcept {
        return array != nullptr ? Span<T>(array, n_rows() * n) : Span<T>();
    }
    template <class T>
    Span<T> elements(void* const* arrays, std::string_view name) const {
        if (!layout_) return {};
        const std::size_t number = layout_->number(name);
        layout_->require_dtype<T>(number);
        layout_->require_ragged(number, false);
        return span(arrays != nullptr ? static_cast<T*>(arrays[number]) : nullptr,
                    detail::product(shape_of_one(layout_->fields[number])));
    }
    template <class T>
    Ragged<T> rows(void* const* arrays, std::string_view name) const {
        if (!layout_) return {};
        const std::size_t number = layout_->number(name);
        layout_->require_dtype<T>(number);
        layout_->require_ragged(number, true);
        if (arrays == nullptr || arrays[number] == nullptr) return {};
        const Field& field = layout_->fields[number];
        return {*static_cast<const per_ragged*>(arrays[number]), n_rows() * detail::product(shape_of_one(field)),
                detail::product(field.shape)};
    }

    bool is_of_sequences() const noexcept { return kind_ == Kind::drawn && layout_ && layout_->sequence_steps > 0; }
    std::size_t steps() const noexcept {
        return is_of_sequences() ? static_cast<std::size_t>(layout_->sequence_steps) : 1;
    }
    /* With max_length the shape of its rows. */
    std::vector<int64_t> shape_of_one(const Field& field) const {
        std::vector<int64_t> shape;
        if (is_of_sequences() && field.role != PER_ROLE_RECURRENT_STATE)
            shape.push_back(layout_->sequence_steps + (field.role == PER_ROLE_OBSERVATION ? n_step_ : 0));
        if (field.max_length != 0) return shape;
        if (field.stack > 1 && kind_ != Kind::rows) shape.push_back(field.stack);
        shape.insert(shape.end(), field.shape.begin(), field.shape.end());
        return shape;
    }

    detail::SharedLayout layout_;
    Kind kind_ = Kind::drawn;
    int64_t size_ = 0;
    int64_t n_step_ = 0; /* of sequences */
    Initialized<per_batch, per_batch_init> arrays_;
    int32_t* sources_ = nullptr; /* of a mixture */
    std::vector<std::vector<unsigned char>> memory_;
    std::list<detail::RaggedRoom> ragged_; /* a list, since fields_ and next_fields_ point into it */
    std::vector<void*> fields_, next_fields_;
};

/* Epochs over a buffer: ReplayBuffer::epochs(). */
class Epochs : public detail::Handle<per_epochs, per_epochs_free> {
 public:
    /* Writes the next minibatch to batch(). Returns false after the last epoch. */
    bool next() {
        allocate();
        int64_t n = 0;
        check(batch_.filled_by([&] { return per_epochs_next(get(), &batch_.arrays_, &n, nullptr); }));
        batch_.size_ = n;
        return n > 0;
    }
    const Batch& batch() const noexcept { return batch_; }
    /* Batch::pad() of batch(). */
    void pad(std::string_view name, int64_t length) {
        allocate();
        batch_.pad(name, length);
    }
    /* Writes the next minibatch to the caller's arrays, and returns its number of transitions. */
    int64_t next(const per_batch& batch, void* stream = nullptr) {
        int64_t n = 0;
        check(per_epochs_next(get(), &batch, &n, stream));
        return n;
    }

 private:
    friend class ReplayBuffer;
    Epochs(per_epochs* handle, Batch batch) : Handle(handle), batch_(std::move(batch)) {}
    void allocate() {
        if (!batch_.layout_ || !batch_.memory_.empty()) return;
        Batch allocated(batch_.layout_, batch_.kind_, batch_.size_, batch_.n_step_);
        allocated.allocate();
        batch_ = std::move(allocated);
    }

    Batch batch_;
};

/* A batch that a loader has handed out. Its destructor releases the slot, and must run before the loader's. */
class Slot : public Batch {
 public:
    Slot(Slot&& other) noexcept : Batch(static_cast<Batch&&>(other)), loader_(std::move(other.loader_)) {}
    Slot& operator=(Slot&& other) noexcept {
        Batch::operator=(static_cast<Batch&&>(other));
        loader_ = std::move(other.loader_);
        return *this;
    }
    /* Releases the slot now. The destructor uses the stream on which the slot was taken. */
    void release(void* stream = nullptr) {
        check(per_loader_release(loader_.get(), loader_.get_deleter().slot, stream));
        loader_.release();
        *this = Slot();
    }

 private:
    friend class Loader;
    struct Release {
        int64_t slot;
        void* stream;
        void operator()(per_loader* loader) const noexcept { per_loader_release(loader, slot, stream); }
    };
    Slot() = default;
    Slot(Batch batch, per_loader* loader, Release release) : Batch(std::move(batch)), loader_(loader, release) {}

    std::unique_ptr<per_loader, Release> loader_;
};

/* Batches drawn ahead: ReplayBuffer::loader(). Must be destroyed before its buffer. */
class Loader : public detail::Handle<per_loader, per_loader_free> {
 public:
    using Timeout = std::chrono::milliseconds;

    /*
     * Waits for the next batch, and for the rate limiter to allow it. Deadlocks if this thread holds all slots. In
     * `slot = loader.take()` the old slot is held until the new one arrives: release() it first, or use more slots.
     */
    Slot take(void* stream = nullptr) { return std::move(take(Timeout(-1), stream).value()); }
    Slot take(int) = delete; /* 0 would be a stream: take(std::chrono::milliseconds(0)) */
    /* Waits at most `timeout`. Returns nullopt if there is no batch then. */
    std::optional<Slot> take(Timeout timeout, void* stream = nullptr) {
        const auto begin = std::chrono::steady_clock::now();
        const auto left = [&] {
            if (timeout.count() <= 0) return timeout;
            const auto gone = std::chrono::steady_clock::now() - begin;
            return std::max(timeout - std::chrono::duration_cast<Timeout>(gone), Timeout(0));
        };
        for (;;) {
            std::optional<Slot> slot = next(left(), stream);
            if (slot || left().count() == 0) return slot;
            const per_status status = per_replay_wait_to_sample(replay_, empty_.size_, left().count());
            if (status == PER_ERROR_BUSY && timeout.count() >= 0) return std::nullopt;
            check(status);
        }
    }
    void stop() { check(per_loader_stop(get())); }

 private:
    friend class ReplayBuffer;
    Loader(per_loader* handle, per_replay* replay, Batch empty)
        : Handle(handle), replay_(replay), empty_(std::move(empty)) {}

    std::optional<Slot> next(Timeout timeout, void* stream) {
        Batch batch(empty_.layout_, empty_.kind_, empty_.size_, empty_.n_step_);
        int64_t slot = -1;
        const per_status status = per_loader_next(get(), timeout.count(), &batch.arrays_, &slot, stream);
        if (status == PER_ERROR_BUSY) return std::nullopt;
        check(status);
        return Slot(std::move(batch), get(), {slot, stream});
    }

    per_replay* replay_;
    Batch empty_; /* has the shapes of the slots */
};

/* Hindsight goals and their reward function: ReplayBuffer::hindsight(). */
class Hindsight {
 public:
    HindsightOptions options; /* to change strategy and fraction */

    /*
     * Computes rewards [count], and may change `terminated` [count], from the achieved and pursued goals, both [count,
     * shape of the field]. sample() rethrows its exceptions.
     */
    template <class T>
    using Reward =
        std::function<void(Span<const T> achieved, Span<const T> goals, Span<float> rewards, Span<uint8_t> terminated)>;

 private:
    friend class ReplayBuffer;
    detail::SharedLayout layout_;
    std::function<int32_t(int64_t, const void*, const void*, float*, uint8_t*)> reward_;
};

/* A save that a thread of the library writes: ReplayBuffer::start_save(). It continues if this object is destroyed. */
class Save : public detail::Handle<per_save, per_save_free> {
 public:
    /* Waits until the file is in place. Throws if the save fails. */
    void wait() const { check(per_save_wait(get(), -1, nullptr, nullptr)); }
    /* Waits at most `timeout`. Returns true if the file is in place. */
    bool wait_for(std::chrono::milliseconds timeout) const {
        const per_status status = per_save_wait(get(), timeout.count(), nullptr, nullptr);
        if (status == PER_ERROR_BUSY) return false;
        check(status);
        return true;
    }
    /* Bytes of rows, also for a failed save. */
    struct Progress {
        int64_t written = -1;
        int64_t total = -1;
    };
    Progress progress() const {
        Progress progress;
        const per_status status = per_save_wait(get(), 0, &progress.written, &progress.total);
        if (progress.total < 0) check(status);
        return progress;
    }

 private:
    friend class ReplayBuffer;
    explicit Save(per_save* save) : Handle(save) {}
};

/* The receiving end of a channel: ReplayBuffer::channel(). Must be destroyed before its buffer. */
class Channel : public detail::Handle<per_channel, per_channel_free> {
 public:
    /* The address for Writer, also in another process: a path, or a descriptor. */
    std::string path() const {
        const char* path = nullptr;
        check(per_channel_get_address(get(), &path, nullptr));
        return path;
    }
    int32_t descriptor() const { return detail::value_of<int32_t>(per_channel_get_address, get(), nullptr); }
    /* Waits until all written steps are in the buffer. */
    void flush() { check(per_channel_flush(get(), -1)); }
    void flush(std::chrono::milliseconds timeout) { check(per_channel_flush(get(), timeout.count())); }
    /* With PER_MOVED_BY_CALLS: moves at most max_steps available steps into the buffer. Returns their number. */
    int64_t move(int64_t max_steps = INT64_MAX) {
        return detail::value_of<int64_t>(per_channel_move, get(), max_steps);
    }
    ChannelStatistics stats() const {
        return detail::filled_by<per_channel_statistics>(per_channel_get_statistics, get());
    }

 private:
    friend class ReplayBuffer;
    explicit Channel(per_channel* channel) : Handle(channel) {}
};

/* The writing end of a channel. Calls without a timeout wait without limit. */
class Writer : public detail::Handle<per_writer, per_writer_free> {
 public:
    using Timeout = std::chrono::milliseconds;

    explicit Writer(const std::string& path) : Writer(attach(detail::c_path(path), -1)) {}
    /* The buffer must have these fields. */
    Writer(const std::string& path, Span<const Field> fields) : Writer(attach(detail::c_path(path), -1, fields)) {}
    /* Attaches by a descriptor, which the caller keeps. */
    explicit Writer(int32_t descriptor) : Writer(attach(nullptr, descriptor)) {}

    ReplayOptions describe() const {
        ReplayOptions options;
        check(per_writer_describe(get(), &options));
        return options;
    }
    /* Steps to fill in for add(), like ReplayBuffer::steps(); environments are those of the channel. */
    Steps steps() const { return Steps(layout()); }
    void add(const Steps& steps, Timeout timeout = Timeout(-1)) {
        if (steps.fields.layout_ != layout() || steps.next_fields.layout_ != layout())
            throw InvalidArgument("an argument was made for another writer");
        const detail::GivenSteps given(steps, layout_->n_envs);
        check(per_writer_add(get(), &given.steps, timeout.count()));
    }
    void cut(Timeout timeout = Timeout(-1)) { check(per_writer_cut(get(), 0, nullptr, timeout.count())); }
    void cut(Span<const int64_t> env_ids, Timeout timeout = Timeout(-1)) {
        check(per_writer_cut(get(), detail::count(env_ids.size()), detail::given_array(env_ids), timeout.count()));
    }
    void flush(Timeout timeout = Timeout(-1)) { check(per_writer_flush(get(), timeout.count())); }

 private:
    explicit Writer(per_writer* writer) : Handle(writer), layout_(std::make_shared<const detail::Layout>(describe())) {}
    /* A moved-from writer has no layout; describe() then throws the library's error for its handle. */
    detail::SharedLayout layout() const {
        return layout_ ? layout_ : std::make_shared<const detail::Layout>(describe());
    }
    static per_writer* attach(const char* path, int32_t descriptor) {
        return detail::value_of<per_writer*>(per_writer_attach, path, descriptor, nullptr, 0, 0);
    }
    static per_writer* attach(const char* path, int32_t descriptor, Span<const Field> fields) {
        const detail::FieldList list(fields);
        const per_replay_options given = list.in(ReplayOptions());
        return detail::value_of<per_writer*>(per_writer_attach, path, descriptor, given.fields, given.n_fields,
                                             given.field_size);
    }

    detail::SharedLayout layout_;
};

/* A loader for readers in other processes: ReplayBuffer::shared_loader(). Must be destroyed before its buffer. */
class SharedLoader : public detail::Handle<per_shared_loader, per_shared_loader_free> {
 public:
    /* The address for Reader, also in another process: a path, or a descriptor. */
    std::string path() const {
        const char* path = nullptr;
        check(per_shared_loader_get_address(get(), &path, nullptr));
        return path;
    }
    int32_t descriptor() const { return detail::value_of<int32_t>(per_shared_loader_get_address, get(), nullptr); }
    SharedLoaderStatistics stats() const {
        return detail::filled_by<per_shared_loader_statistics>(per_shared_loader_get_statistics, get());
    }

 private:
    friend class ReplayBuffer;
    explicit SharedLoader(per_shared_loader* loader) : Handle(loader) {}
};

/* A batch held by a reader. Its destructor releases the slot, and must run before the reader's. */
class ReadBatch : public Batch {
 public:
    ReadBatch(ReadBatch&& other) noexcept : Batch(static_cast<Batch&&>(other)), reader_(std::move(other.reader_)) {}
    ReadBatch& operator=(ReadBatch&& other) noexcept {
        Batch::operator=(static_cast<Batch&&>(other));
        reader_ = std::move(other.reader_);
        return *this;
    }
    /* Releases the slot now. */
    void release() {
        check(per_reader_release(reader_.get(), reader_.get_deleter().slot));
        reader_.release();
        *this = ReadBatch();
    }

 private:
    friend class Reader;
    struct Release {
        int64_t slot;
        void operator()(per_reader* reader) const noexcept { per_reader_release(reader, slot); }
    };
    ReadBatch() = default;
    ReadBatch(Batch batch, per_reader* reader, Release release) : Batch(std::move(batch)), reader_(reader, release) {}

    std::unique_ptr<per_reader, Release> reader_;
};

/* The reading end of a shared loader. Calls without a timeout wait without limit. */
class Reader : public detail::Handle<per_reader, per_reader_free> {
 public:
    using Timeout = std::chrono::milliseconds;

    explicit Reader(const std::string& path)
        : Reader(detail::value_of<per_reader*>(per_reader_attach, detail::c_path(path), -1)) {}
    /* Attaches by a descriptor, which the caller keeps. */
    explicit Reader(int32_t descriptor)
        : Reader(detail::value_of<per_reader*>(per_reader_attach, nullptr, descriptor)) {}

    ReplayOptions describe() const { return described().options; }
    int64_t batch_size() const noexcept { return batch_size_; }
    /* Waits for the next batch. */
    ReadBatch take() { return take(Timeout(-1)).value(); }
    /* Returns nullopt on PER_ERROR_BUSY. */
    std::optional<ReadBatch> take(Timeout timeout) {
        Batch batch(layout_, Batch::Kind::drawn, batch_size_, n_step_);
        int64_t slot = -1;
        const per_status status = per_reader_next(get(), timeout.count(), &batch.arrays_, &slot);
        if (status == PER_ERROR_BUSY) return std::nullopt;
        check(status);
        return ReadBatch(std::move(batch), get(), {slot});
    }

    /* Like the methods of the buffer, but applied asynchronously. */
    void update_priorities(Span<const int64_t> ids, Span<const float> td_errors, int64_t n_critics = 1,
                           Timeout timeout = Timeout(-1)) {
        update_sequences(ids, 0, td_errors, n_critics, timeout);
    }
    void update_sequences(Span<const int64_t> ids, int64_t n_steps, Span<const float> td_errors, int64_t n_critics = 1,
                          Timeout timeout = Timeout(-1)) {
        const int64_t sequence_steps = layout_ ? layout_->sequence_steps : described().options.sequence_length;
        const Priorities given = detail::given_td_errors(ids, td_errors, n_critics, n_steps, sequence_steps);
        check(per_reader_update_priorities(get(), &given, timeout.count()));
    }
    void set_priorities(Span<const int64_t> ids, Span<const float> priorities, Timeout timeout = Timeout(-1)) {
        const Priorities given = detail::given_priorities(ids, priorities);
        check(per_reader_update_priorities(get(), &given, timeout.count()));
    }
    /* Waits until all sent priorities are in the buffer. */
    void flush(Timeout timeout = Timeout(-1)) { check(per_reader_flush(get(), timeout.count())); }
    void stop() { check(per_reader_stop(get())); }

 private:
    struct Described {
        ReplayOptions options;
        int64_t batch_size = 0;
    };
    explicit Reader(per_reader* reader) : Handle(reader) {
        const Described made = described();
        layout_ = std::make_shared<const detail::Layout>(made.options);
        batch_size_ = made.batch_size;
        n_step_ = made.options.n_step;
    }
    Described described() const {
        Described described;
        check(per_reader_describe(get(), &described.options, &described.batch_size));
        return described;
    }

    detail::SharedLayout layout_;
    int64_t batch_size_ = 0;
    int64_t n_step_ = 0;
};

/* -------------------------------------------------------------------- tree */

/* Priorities, and indices drawn in proportion to them: per_tree. */
class SumTree : public detail::Handle<per_tree, per_tree_free> {
 public:
    explicit SumTree(const per_tree_options& options)
        : Handle(detail::value_of<per_tree*>(per_tree_create, &options)) {}
    /* Takes ownership of a handle. */
    explicit SumTree(per_tree* tree) : Handle(tree) {}

    void update(Span<const int64_t> indices, Span<const float> priorities, void* stream = nullptr) {
        const int64_t n = detail::common_count(indices, "priorities", priorities);
        check(per_update(get(), n, indices.data(), priorities.data(), stream));
    }
    /* Draws as many indices as indices_out has elements. The other two arrays may be empty. */
    void sample(per_scheme scheme, float beta, Span<int64_t> indices_out, Span<float> priorities_out,
                Span<float> weights_out, void* stream = nullptr) {
        const int64_t n = detail::count(indices_out.size());
        float* const priorities = detail::optional_array("priorities_out", priorities_out, n);
        float* const weights = detail::optional_array("weights_out", weights_out, n);
        check(per_sample(get(), n, scheme, beta, indices_out.data(), priorities, weights, stream));
    }
    void find(Span<const double> prefix_sums, Span<int64_t> indices_out, void* stream = nullptr) {
        const int64_t n = detail::common_count(prefix_sums, "indices_out", indices_out);
        check(per_tree_find(get(), n, prefix_sums.data(), indices_out.data(), stream));
    }
    void find_mass(Span<const uint64_t> units, Span<int64_t> indices_out, void* stream = nullptr) {
        const int64_t n = detail::common_count(units, "indices_out", indices_out);
        check(per_tree_find_mass(get(), n, units.data(), indices_out.data(), stream));
    }
    void priorities(Span<const int64_t> indices, Span<float> priorities_out, void* stream = nullptr) {
        const int64_t n = detail::common_count(indices, "priorities_out", priorities_out);
        check(per_tree_get_priorities(get(), n, detail::given_array(indices), priorities_out.data(), stream));
    }
    /* Priorities of all leaves. */
    void priorities(Span<float> priorities_out, void* stream = nullptr) {
        const int64_t n = detail::count(priorities_out.size());
        check(per_tree_get_priorities(get(), n, nullptr, priorities_out.data(), stream));
    }
    /* Capacity, total and masses. */
    TreeDescription describe() const { return detail::filled_by<per_tree_description>(per_tree_describe, get()); }
    void reset(void* stream = nullptr) { check(per_tree_reset(get(), stream)); }
    void synchronize(void* stream = nullptr) { check(per_tree_synchronize(get(), stream)); }
};

/* ------------------------------------------------------------------ replay */

/* A replay buffer: per_replay. */
class ReplayBuffer : public detail::Handle<per_replay, per_replay_free> {
 public:
    /* Uses these fields instead of those of the options. */
    ReplayBuffer(const per_replay_options& options, Span<const Field> fields)
        : ReplayBuffer(detail::FieldList(fields).in(options)) {}
    explicit ReplayBuffer(const per_replay_options& options)
        : ReplayBuffer(detail::value_of<per_replay*>(per_replay_create, &options)) {}
    /* Takes ownership of a handle. */
    explicit ReplayBuffer(per_replay* replay)
        : Handle(replay), layout_(std::make_shared<const detail::Layout>(describe())) {}

    static ReplayBuffer load(const std::string& path, const per_load_options& options = LoadOptions()) {
        return ReplayBuffer(detail::value_of<per_replay*>(per_replay_load, detail::c_path(path), &options));
    }
    void save(const std::string& path, const per_save_options& options = SaveOptions()) {
        check(per_replay_save(get(), detail::c_path(path), &options));
    }
    /* Writes the changes since the last checkpoint in the directory; load() reads it. Returns the bytes written. */
    int64_t checkpoint(const std::string& directory, const per_save_options& options = SaveOptions()) {
        return detail::value_of<int64_t>(per_replay_checkpoint, get(), detail::c_path(directory), &options);
    }
    Save start_save(const std::string& path, const per_save_options& options = SaveOptions()) {
        return Save(detail::value_of<per_save*>(per_replay_save_start, get(), detail::c_path(path), &options));
    }
    /* Load from and save to byte streams. These methods set read, write and context of the options. If a stream fails,
       they throw CallbackError, or the stream's own exception. */
    static ReplayBuffer load(std::istream& from, per_load_options options = LoadOptions()) {
        const std::function<int64_t(void*, int64_t)> read = [&](void* bytes_out, int64_t size) -> int64_t {
            if (from.fail() && !from.eof()) return -1; /* such as a file that could not be opened */
            from.read(static_cast<char*>(bytes_out), size);
            return from.bad() ? -1 : from.gcount();
        };
        detail::Callback callback(read);
        options.read = callback.run;
        options.context = &callback;
        per_replay* replay = nullptr;
        callback.check(per_replay_load(nullptr, &options, &replay));
        return ReplayBuffer(replay);
    }
    void save(std::ostream& to, per_save_options options = SaveOptions()) {
        const std::function<int64_t(const void*, int64_t)> write = [&](const void* bytes, int64_t size) {
            return to.write(static_cast<const char*>(bytes), size) ? size : -1;
        };
        detail::Callback callback(write);
        options.write = callback.run;
        options.context = &callback;
        callback.check(per_replay_save(get(), nullptr, &options));
    }

    static int64_t capacity_for(const per_replay_options& options, Span<const Field> fields, int64_t transitions,
                                int64_t episode_length) {
        const detail::FieldList list(fields);
        const per_replay_options given = list.in(options);
        return detail::value_of<int64_t>(per_replay_compute_capacity, &given, transitions, episode_length);
    }
    ReplayOptions describe() const {
        ReplayOptions options;
        check(per_replay_describe(get(), &options));
        return options;
    }
    Statistics stats() const { return detail::filled_by<per_replay_statistics>(per_replay_get_statistics, get()); }
    /* The index of a field, for structs of per.h. */
    int32_t field_number(std::string_view name) const { return static_cast<int32_t>(layout()->number(name)); }

    /* Steps to fill in for add(). They refer to arrays: fill them in once if later steps are written to the same
       arrays. */
    Steps steps() const { return Steps(layout()); }
    /* ids_out may be empty. */
    void add(const Steps& steps, Span<int64_t> ids_out = {}, void* stream = nullptr) {
        require_own("steps", steps.fields.layout_);
        require_own("steps", steps.next_fields.layout_);
        const detail::GivenSteps given(steps, layout_->n_envs);
        int64_t* const ids = detail::optional_array("ids_out", ids_out, given.steps.length, given.steps.n_envs);
        check(per_replay_add(get(), &given.steps, ids, stream));
    }
    void cut(void* stream = nullptr) { check(per_replay_cut(get(), 0, nullptr, stream)); }
    /* Without these two, {0} and 0 would be a stream. */
    void cut(int env_id) = delete; /* cut({env_id}) */
    void cut(std::initializer_list<int64_t> env_ids, void* stream = nullptr) {
        cut(Span<const int64_t>(env_ids), stream);
    }
    void cut(Span<const int64_t> env_ids, void* stream = nullptr) {
        check(per_replay_cut(get(), detail::count(env_ids.size()), detail::given_array(env_ids), stream));
    }

    /* A reusable batch for sample(). Sequences are drawn with the n_step of its creation: that of the options, or the
       buffer's at that time. */
    Batch batch(int64_t batch_size, const per_sample_options* options = nullptr) const {
        return allocated_batch(Batch::checked_size(batch_size), options);
    }
    void sample(Batch& batch, const per_sample_options* options = nullptr, const Hindsight* hindsight = nullptr) {
        require_own("batch", batch.layout_);
        if (batch.kind_ != Batch::Kind::drawn || batch.memory_.empty())
            throw InvalidArgument("batch was not made by ReplayBuffer::batch()");
        std::optional<SampleOptions> of_sequences;
        if (batch.is_of_sequences()) options = &of_sequences.emplace(batch.options_for_draw(options));
        with_hindsight(hindsight, options, [&](const per_sample_options* given) {
            return batch.filled_by(
                [&] { return per_replay_sample(get(), given, batch.size_, &batch.arrays_, nullptr); });
        });
    }
    Batch sample(int64_t batch_size, const per_sample_options* options = nullptr,
                 const Hindsight* hindsight = nullptr) {
        Batch batch = this->batch(batch_size, options);
        sample(batch, options, hindsight);
        return batch;
    }
    void sample(int64_t batch_size, const per_batch& batch, const per_sample_options* options = nullptr,
                const Hindsight* hindsight = nullptr, void* stream = nullptr) {
        with_hindsight(hindsight, options, [&](const per_sample_options* given) {
            return per_replay_sample(get(), given, batch_size, &batch, stream);
        });
    }
    /* Hindsight for sample(): the names of the fields with the goals, whose elements have type T. */
    template <class T>
    Hindsight hindsight(std::string_view achieved_field, std::string_view goal_field,
                        Hindsight::Reward<T> reward) const {
        Hindsight hindsight;
        hindsight.layout_ = layout();
        hindsight.options.achieved_field = field_number(achieved_field);
        hindsight.options.goal_field = field_number(goal_field);
        layout_->require_dtype<T>(layout_->number(goal_field));
        const std::size_t n = detail::product(layout_->fields[layout_->number(goal_field)].shape);
        hindsight.reward_ = [n, reward = std::move(reward)](int64_t count, const void* achieved, const void* goals,
                                                            float* rewards, uint8_t* terminated) {
            const auto steps = static_cast<std::size_t>(count);
            reward({static_cast<const T*>(achieved), steps * n}, {static_cast<const T*>(goals), steps * n},
                   {rewards, steps}, {terminated, steps});
            return 0;
        };
        return hindsight;
    }

    void update_priorities(Span<const int64_t> ids, Span<const float> td_errors, int64_t n_critics = 1,
                           void* stream = nullptr) {
        update_sequences(ids, 0, td_errors, n_critics, stream);
    }
    /* n_steps is that of per_priorities. */
    void update_sequences(Span<const int64_t> ids, int64_t n_steps, Span<const float> td_errors, int64_t n_critics = 1,
                          void* stream = nullptr) {
        const Priorities given = detail::given_td_errors(ids, td_errors, n_critics, n_steps, layout()->sequence_steps);
        check(per_replay_update_priorities(get(), &given, stream));
    }
    void set_priorities(Span<const int64_t> ids, Span<const float> priorities, void* stream = nullptr) {
        const Priorities given = detail::given_priorities(ids, priorities);
        check(per_replay_update_priorities(get(), &given, stream));
    }
    void priorities(Span<const int64_t> ids, Span<float> priorities_out, void* stream = nullptr) {
        const int64_t n = detail::common_count(ids, "priorities_out", priorities_out);
        check(per_replay_get_priorities(get(), n, ids.data(), priorities_out.data(), stream));
    }

    Batch get_windows(Span<const int64_t> ids, int32_t on_invalid = PER_INVALID_ERROR,
                      const per_sample_options* options = nullptr, const Hindsight* hindsight = nullptr) {
        Batch batch = allocated_batch(detail::count(ids.size()), options);
        const SampleOptions of_batch = batch.options_for_draw(options);
        with_hindsight(hindsight, &of_batch, [&](const per_sample_options* given) {
            return batch.filled_by([&] {
                return per_replay_get_windows(get(), given, on_invalid, batch.size_, ids.data(), &batch.arrays_,
                                              nullptr);
            });
        });
        return batch;
    }
    void get_windows(Span<const int64_t> ids, const per_batch& batch, int32_t on_invalid = PER_INVALID_ERROR,
                     const per_sample_options* options = nullptr, const Hindsight* hindsight = nullptr,
                     void* stream = nullptr) {
        const int64_t n = detail::count(ids.size());
        with_hindsight(hindsight, options, [&](const per_sample_options* given) {
            return per_replay_get_windows(get(), given, on_invalid, n, ids.data(), &batch, stream);
        });
    }

    /* masses_out and first_units_out may be empty. */
    Batch get_units(Span<const int64_t> units, Span<uint64_t> masses_out, Span<uint64_t> first_units_out,
                    const per_sample_options* options = nullptr) {
        Batch batch = allocated_batch(detail::count(units.size()), options);
        const SampleOptions given = batch.options_for_draw(options);
        const int64_t n = batch.size_;
        uint64_t* const masses = detail::optional_array("masses_out", masses_out, n);
        uint64_t* const first_units = detail::optional_array("first_units_out", first_units_out, n);
        check(batch.filled_by([&] {
            return per_replay_get_units(get(), &given, n, units.data(), &batch.arrays_, masses, first_units, nullptr);
        }));
        return batch;
    }
    void get_units(Span<const int64_t> units, const per_batch& batch, Span<uint64_t> masses_out,
                   Span<uint64_t> first_units_out, const per_sample_options* options = nullptr,
                   void* stream = nullptr) {
        const int64_t n = detail::count(units.size());
        uint64_t* const masses = detail::optional_array("masses_out", masses_out, n);
        uint64_t* const first_units = detail::optional_array("first_units_out", first_units_out, n);
        check(per_replay_get_units(get(), options, n, units.data(), &batch, masses, first_units, stream));
    }
    /* The summary for a coordinator's draws. If a scale is given, masses are also measured at that scale. */
    ShardSummary summarize(int32_t measured_scale = PER_SCALE_AUTOMATIC, int64_t measured_reference = 0) const {
        return detail::filled_by<per_shard_summary>(per_replay_summarize, get(), measured_scale, measured_reference);
    }
    void set_scale(int32_t scale, int64_t reference = 0) { check(per_replay_set_scale(get(), scale, reference)); }
    void raise_max_priority(float priority, void* stream = nullptr) {
        check(per_replay_raise_max_priority(get(), priority, stream));
    }

    using Handle::get;
    Batch get(Span<const int64_t> ids, bool with_next_fields = true) {
        Batch batch(layout(), Batch::Kind::rows, detail::count(ids.size()), 0);
        batch.allocate(with_next_fields);
        check(batch.filled_by([&] { return per_replay_get(get(), batch.size_, ids.data(), &batch.arrays_, nullptr); }));
        return batch;
    }
    void get(Span<const int64_t> ids, const per_batch& batch, void* stream = nullptr) {
        check(per_replay_get(get(), detail::count(ids.size()), ids.data(), &batch, stream));
    }
    /* Arrays to fill in for set(). A field without an array is unchanged. */
    FieldArrays field_arrays() const { return FieldArrays(layout()); }
    void set(Span<const int64_t> ids, const FieldArrays& fields, void* stream = nullptr) {
        require_own("fields", fields.layout_);
        const int64_t n = detail::count(ids.size());
        check(per_replay_set(get(), n, ids.data(), fields.get(n).arrays.data(), stream));
    }
    void clear(void* stream = nullptr) { check(per_replay_clear(get(), stream)); }
    /* Changes several settings at once: all or none. */
    void change_settings(const per_replay_settings& settings, void* stream = nullptr) {
        check(per_replay_change_settings(get(), &settings, stream));
    }
    void set_alpha(double alpha, void* stream = nullptr) {
        change("alpha", "finite and >= 0", &per_replay_settings::alpha, alpha, stream);
    }
    void set_beta(double beta, void* stream = nullptr) {
        change("beta", "finite and >= 0", &per_replay_settings::beta, beta, stream);
    }
    void set_gamma(double gamma, void* stream = nullptr) {
        change("gamma", "0 to 1", &per_replay_settings::gamma, gamma, stream);
    }
    void set_n_step(int64_t n_step, void* stream = nullptr) {
        change("n_step", "at least 1", &per_replay_settings::n_step, n_step, stream);
    }
    void set_version(int64_t version, void* stream = nullptr) {
        change("version", "at least the current one", &per_replay_settings::version, version, stream);
    }
    void set_save_compression(int32_t value) {
        change("save_compression", "0 to 22", &per_replay_settings::save_compression, value, nullptr);
    }
    /* Wait until the rate limiter allows the add or draw; by default without limit. */
    void wait_to_add(int64_t count, std::chrono::milliseconds timeout = std::chrono::milliseconds(-1)) {
        check(per_replay_wait_to_add(get(), count, timeout.count()));
    }
    void wait_to_sample(int64_t batch_size, std::chrono::milliseconds timeout = std::chrono::milliseconds(-1)) {
        check(per_replay_wait_to_sample(get(), batch_size, timeout.count()));
    }
    void stop_limiting() { check(per_replay_stop_limiting(get())); }
    void synchronize(void* stream = nullptr) { check(per_replay_synchronize(get(), stream)); }

    int64_t live() const { return detail::value_of<int64_t>(per_replay_get_live_ids, get(), 0, nullptr); }
    std::vector<int64_t> live_ids() const {
        std::vector<int64_t> ids;
        int64_t n = live();
        do {
            ids.resize(static_cast<std::size_t>(n));
            check(per_replay_get_live_ids(get(), detail::count(ids.size()), ids.data(), &n));
        } while (n > detail::count(ids.size()));
        ids.resize(static_cast<std::size_t>(n));
        return ids;
    }

    Epochs epochs(int64_t n_epochs, int64_t batch_size, bool drop_last = false, void* stream = nullptr) {
        Batch batch = drawn_batch(batch_size, nullptr);
        return {detail::value_of<per_epochs*>(per_epochs_create, get(), n_epochs, batch_size, drop_last, stream),
                std::move(batch)};
    }
    Channel channel(const per_channel_options& options = ChannelOptions()) {
        return Channel(detail::value_of<per_channel*>(per_channel_create, get(), &options));
    }
    SharedLoader shared_loader(const per_shared_loader_options& options) {
        return SharedLoader(detail::value_of<per_shared_loader*>(per_shared_loader_create, get(), &options));
    }
    Loader loader(const per_loader_options& options) {
        Batch empty = drawn_batch(options.batch_size, options.sample);
        return {detail::value_of<per_loader*>(per_loader_create, get(), &options), get(), std::move(empty)};
    }

    /* All bootstraps. */
    Batch bootstraps() {
        for (int64_t n = bootstraps(0, nullptr);;) {
            Batch batch(layout(), Batch::Kind::steps, n, 0);
            batch.allocate();
            check(batch.filled_by(
                [&] { return per_replay_get_bootstraps(get(), batch.size_, &batch.arrays_, &n, nullptr); }));
            if (n > batch.size_) continue;
            batch.size_ = n;
            return batch;
        }
    }
    int64_t bootstraps(int64_t capacity, const per_batch* batch, void* stream = nullptr) {
        int64_t n = 0;
        check(per_replay_get_bootstraps(get(), capacity, batch, &n, stream));
        return n;
    }
    /* Fields are given by name. An empty return_field writes no returns. */
    void advantages(std::string_view value_field, std::string_view advantage_field, std::string_view return_field,
                    double lambda, Span<const int64_t> ids, Span<const float> bootstrap_values,
                    void* stream = nullptr) {
        const int32_t value = field_number(value_field), advantage = field_number(advantage_field);
        const int32_t returns = return_field.empty() ? -1 : field_number(return_field);
        const int64_t n = detail::common_count(ids, "bootstrap_values", bootstrap_values);
        check(per_replay_compute_advantages(get(), value, advantage, returns, lambda, n, ids.data(),
                                            bootstrap_values.data(), stream));
    }

 private:
    /* Makes a call with `options`, and with the hindsight unless it is NULL. */
    template <class Call>
    void with_hindsight(const Hindsight* hindsight, const per_sample_options* options, const Call& call) const {
        if (hindsight == nullptr) return check(call(options));
        require_own("hindsight", hindsight->layout_);
        detail::Callback callback(hindsight->reward_);
        per_hindsight_options of_call = hindsight->options;
        of_call.reward = callback.run;
        of_call.context = &callback;
        SampleOptions given;
        if (options != nullptr) static_cast<per_sample_options&>(given) = *options;
        given.hindsight = &of_call;
        callback.check(call(&given));
    }
    /* A moved-from buffer has no layout; describe() then throws the library's error for its handle. */
    detail::SharedLayout layout() const {
        return layout_ ? layout_ : std::make_shared<const detail::Layout>(describe());
    }
    void require_own(const char* name, const detail::SharedLayout& layout) const {
        if (layout != this->layout())
            throw InvalidArgument(std::string(name) + " was made for another buffer, or was moved from");
    }
    /* Changes one setting. The value that means "unchanged" is refused. */
    template <class T>
    void change(const char* name, const char* allowed, T per_replay_settings::*member, T value, void* stream) {
        Settings settings;
        if (value != value || value == settings.*member)
            throw InvalidArgument(std::string(name) + " is " + std::to_string(value) + ": must be " + allowed);
        settings.*member = value;
        change_settings(settings, stream);
    }
    Batch drawn_batch(int64_t batch_size, const per_sample_options* options) const {
        return {layout(), get(), batch_size, options};
    }
    Batch allocated_batch(int64_t batch_size, const per_sample_options* options) const {
        Batch batch = drawn_batch(batch_size, options);
        batch.allocate();
        return batch;
    }

    detail::SharedLayout layout_;
};

/* ------------------------------------------------------------- many as one */

/* Draws from several buffers as if they were one with all their lanes: per_coordinator. */
class Coordinator : public detail::Handle<per_coordinator, per_coordinator_free> {
 public:
    /* If a state is given, the coordinator resumes from it. */
    Coordinator(const per_replay_options& options, int64_t n_shards, const per_coordinator_state* state = nullptr)
        : Handle(detail::value_of<per_coordinator*>(per_coordinator_create, &options, n_shards, state)) {}

    struct Shard {
        int64_t capacity;
        int64_t n_envs;
        int64_t first_env;
    };
    Shard shard(int64_t shard) const {
        Shard made = {};
        check(per_coordinator_describe_shard(get(), shard, &made.capacity, &made.n_envs, &made.first_env));
        return made;
    }
    void report(int64_t shard, const ShardSummary& summary) { check(per_coordinator_report(get(), shard, &summary)); }
    void report_gone(int64_t shard) { check(per_coordinator_report(get(), shard, nullptr)); }
    struct ScaleRequest {
        int32_t todo; /* a per_scale_request */
        int32_t scale;
        int64_t reference;
    };
    ScaleRequest agree_on_scale(bool chooses_anew = false) {
        ScaleRequest request = {};
        check(per_coordinator_agree_on_scale(get(), chooses_anew, &request.todo, &request.scale, &request.reference));
        return request;
    }

    /* Returns the number of units of the first round. */
    int64_t draw(int64_t batch_size, const per_sample_options* options = nullptr) {
        return detail::value_of<int64_t>(per_coordinator_draw, get(), options, batch_size);
    }
    void units(Span<int64_t> shards_out, Span<int64_t> units_out) {
        const int64_t n = detail::common_count(shards_out, "units_out", units_out);
        check(per_coordinator_get_units(get(), n, shards_out.data(), units_out.data()));
    }
    /* Returns the number of units of the next round; 0: call finish() next. first_units may be empty with
       replacement. */
    int64_t submit(Span<const int64_t> ids, Span<const uint64_t> masses, Span<const uint64_t> first_units = {}) {
        const int64_t n = detail::common_count(ids, "masses", masses);
        const uint64_t* const firsts = detail::optional_array("first_units", first_units, n);
        return detail::value_of<int64_t>(per_coordinator_submit, get(), n, ids.data(), masses.data(), firsts);
    }
    /* Finishes the batch. weights_out and probabilities_out may be empty. */
    void finish(Span<int64_t> ids_out, Span<float> weights_out = {}, Span<float> probabilities_out = {}) {
        const int64_t n = detail::count(ids_out.size());
        float* const weights = detail::optional_array("weights_out", weights_out, n);
        float* const probabilities = detail::optional_array("probabilities_out", probabilities_out, n);
        check(per_coordinator_finish(get(), n, ids_out.data(), weights, probabilities));
    }

    void locate(Span<const int64_t> ids, Span<int64_t> shards_out, Span<int64_t> shard_ids_out) const {
        const int64_t n = detail::common_count(ids, "shards_out", shards_out);
        detail::require_size("shard_ids_out", shard_ids_out.size(), n);
        check(per_coordinator_locate(get(), n, ids.data(), shards_out.data(), shard_ids_out.data()));
    }
    void ids(int64_t shard, Span<const int64_t> shard_ids, Span<int64_t> ids_out) const {
        const int64_t n = detail::common_count(shard_ids, "ids_out", ids_out);
        check(per_coordinator_get_ids(get(), shard, n, shard_ids.data(), ids_out.data()));
    }

    CoordinatorState state() const {
        return detail::filled_by<per_coordinator_state>(per_coordinator_get_state, get());
    }
};

/*
 * Draws batches from several buffers, in fixed shares: per_mixture_sample(). Here half of each batch comes from
 * demonstrations:
 *
 *     per::Mixture mixture({{online, 1}, {demonstrations, 1}});
 *     per::Batch batch = mixture.sample(256);
 *     mixture.update_priorities(batch.ids(), batch.sources(), td_errors);
 *
 * A mixture borrows the handles of its buffers, which must outlive it. The ReplayBuffer objects may be moved, and used
 * by themselves. The state of a mixture is the shares and carries of sources(): save them together with the buffers to
 * continue later. Copies have separate states. One call at a time may run in a mixture.
 */
class Mixture {
 public:
    /* A buffer and its share of each batch. Give a carry only to continue from a saved one. */
    struct Source {
        ReplayBuffer& buffer;
        double share;
        int64_t carry = 0;
        int32_t when_empty = PER_EMPTY_ERROR; /* a per_when_empty */
    };

    /* 1 to 32 sources. Throws if their buffers, shares or carries are not allowed. */
    explicit Mixture(Span<const Source> sources) {
        for (const Source& source : sources)
            sources_.push_back({source.buffer.get(), source.share, source.carry, source.when_empty, 0});
        require_allowed(sources_);
        ReplayOptions options;
        check(per_replay_describe(sources_[0].replay, &options));
        auto layout = std::make_shared<detail::Layout>(options);
        for (const per_source& source : sources_) {
            check(per_replay_describe(source.replay, &options));
            layout->has_times_sampled = layout->has_times_sampled && options.keep_times_sampled != 0;
        }
        layout_ = std::move(layout);
    }

    /* The sources with their present carries, and the shares as they were given. Valid as long as the mixture. */
    Span<const per_source> sources() const noexcept { return sources_; }
    /* Changes the shares: one for each source, in order. If it throws, all shares are unchanged. */
    void set_shares(Span<const double> shares) {
        detail::require_size("shares", shares.size(), n_sources());
        std::vector<per_source> changed = sources_;
        for (std::size_t k = 0; k < changed.size(); ++k) changed[k].share = shares[k];
        require_allowed(changed);
        std::copy(changed.begin(), changed.end(), sources_.begin());
    }

    /* A reusable batch for sample(), like ReplayBuffer::batch(). It has times_sampled if all buffers keep them. */
    Batch batch(int64_t batch_size, const per_sample_options* options = nullptr) const {
        if (sources_.empty()) require_allowed(sources_); /* a moved-from mixture */
        if (layout_->sequence_steps > 0 && (options == nullptr || options->n_step == 0)) require_one_n_step();
        Batch batch(layout_, sources_[0].replay, Batch::checked_size(batch_size), options);
        batch.allocate();
        batch.sources_ = batch.room<int32_t>();
        return batch;
    }
    void sample(Batch& batch, const per_sample_options* options = nullptr) {
        if (batch.layout_ != layout_) throw InvalidArgument("batch was not made by batch() of this mixture");
        const SampleOptions given = batch.options_for_draw(options);
        check(batch.filled_by([&] {
            return per_mixture_sample(sources_.data(), n_sources(), &given, batch.size_, &batch.arrays_, batch.sources_,
                                      nullptr);
        }));
    }
    Batch sample(int64_t batch_size, const per_sample_options* options = nullptr) {
        Batch batch = this->batch(batch_size, options);
        sample(batch, options);
        return batch;
    }
    /* sources_out [batch_size] may be empty. */
    void sample(int64_t batch_size, const per_batch& batch, Span<int32_t> sources_out,
                const per_sample_options* options = nullptr, void* stream = nullptr) {
        int32_t* const sources = detail::optional_array("sources_out", sources_out, batch_size);
        check(per_mixture_sample(sources_.data(), n_sources(), options, batch_size, &batch, sources, stream));
    }

    /* Like the methods of the buffer. source_of [count of ids] is the index of each id's source: Batch::sources(). */
    void update_priorities(Span<const int64_t> ids, Span<const int32_t> source_of, Span<const float> td_errors,
                           int64_t n_critics = 1, void* stream = nullptr) {
        update_sequences(ids, source_of, 0, td_errors, n_critics, stream);
    }
    void update_sequences(Span<const int64_t> ids, Span<const int32_t> source_of, int64_t n_steps,
                          Span<const float> td_errors, int64_t n_critics = 1, void* stream = nullptr) {
        const int64_t sequence_steps = layout_ ? layout_->sequence_steps : 0;
        update(detail::given_td_errors(ids, td_errors, n_critics, n_steps, sequence_steps), source_of, stream);
    }
    void set_priorities(Span<const int64_t> ids, Span<const int32_t> source_of, Span<const float> priorities,
                        void* stream = nullptr) {
        update(detail::given_priorities(ids, priorities), source_of, stream);
    }

 private:
    int64_t n_sources() const noexcept { return detail::count(sources_.size()); }
    void update(const Priorities& given, Span<const int32_t> source_of, void* stream) {
        detail::require_size("source_of", source_of.size(), given.count);
        check(per_mixture_update_priorities(sources_.data(), n_sources(), &given, source_of.data(), stream));
    }
    /* An update of no priorities checks the sources only. */
    static void require_allowed(const std::vector<per_source>& sources) {
        const Priorities none;
        check(per_mixture_update_priorities(sources.data(), detail::count(sources.size()), &none, nullptr, nullptr));
    }

    /* Without an explicit n_step the first buffer's would hold for all. */
    void require_one_n_step() const {
        int64_t first = 0;
        for (std::size_t k = 0; k < sources_.size(); ++k) {
            ReplayOptions described;
            check(per_replay_describe(sources_[k].replay, &described));
            if (k == 0) first = described.n_step;
            if (described.n_step != first)
                throw InvalidArgument("n_step of sources[" + std::to_string(k) + "] is " +
                                      std::to_string(described.n_step) + ", and of sources[0] " +
                                      std::to_string(first) + ": sequences need the same, or n_step in the options");
        }
    }

    std::vector<per_source> sources_;
    detail::SharedLayout layout_; /* that of all buffers, and of no other batches */
};

inline void Field::check() const {
    detail::FieldList list({this, 1});
    if (name.empty()) list[0].name = nullptr;
    per::check(per_field_check(&list[0], sizeof(per_field)));
}

}  // namespace hpp
}  // namespace per

#if defined(__cpp_lib_ranges)
template <class T>
inline constexpr bool std::ranges::enable_borrowed_range<per::Span<T>> = true;
#endif

#endif /* PER_HPP */
