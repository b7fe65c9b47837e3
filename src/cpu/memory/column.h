// Columns: the values of one kind, one for each slot, a fixed number of bytes apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace per::cpu {

// The value of slot i lies i * stride bytes after that of slot 0. If the stride is the size of a value, the column is
// an array; otherwise values of other columns lie in between. Frames of any size are a column of std::byte.
template <class Value>
struct Column {
    using Byte = std::conditional_t<std::is_const_v<Value>, const std::byte, std::byte>;

    Byte* first = nullptr;
    int64_t stride = 0;

    Value* at(int64_t slot) const { return reinterpret_cast<Value*>(first + slot * stride); }
    Value& operator[](int64_t slot) const { return *at(slot); }
    // Returns the column that starts at a slot of this one.
    Column from(int64_t slot) const { return {first + slot * stride, stride}; }
    Column<Byte> as_bytes() const { return {first, stride}; }
    operator Column<const Value>() const requires(!std::is_const_v<Value>) { return {first, stride}; }
};

// Notified before values of the rows change.
class ChangeListener {
 public:
    // Slots first .. first + n - 1 of the array with index `part` are about to change.
    virtual void will_change(std::size_t part, int64_t first, int64_t n) noexcept = 0;

 protected:
    ~ChangeListener() = default;
};

// A column of the rows of a buffer. A save in the background may still need the values, so only to_write() makes them
// writable, and it calls the listener first.
template <class Value>
class RowColumn : public Column<const Value> {
 public:
    RowColumn() = default;
    // `listener` is read at each change; it may be NULL.
    RowColumn(const Column<Value>& values, std::size_t part, ChangeListener* const& listener)
        : Column<const Value>{values.first, values.stride}, part_(part), listener_(&listener) {}

    // Use the result at once: a listener that is set later is not notified of writes through it.
    Value& to_write(int64_t slot) const { return to_write(slot, 1)[0]; }
    // Returns slots first .. first + n - 1 as a column.
    Column<Value> to_write(int64_t first, int64_t n) const {
        if (*listener_ != nullptr) [[unlikely]]
            (*listener_)->will_change(part_, first, n);
        return writable().from(first);
    }
    // Returns the whole column. The caller may write these slots only.
    Column<Value> to_write(std::span<const int64_t> slots) const {
        if (*listener_ != nullptr) [[unlikely]]
            for (const int64_t slot : slots) (*listener_)->will_change(part_, slot, 1);
        return writable();
    }
    RowColumn<std::byte> as_bytes() const { return {writable().as_bytes(), part_, *listener_}; }

 private:
    Column<Value> writable() const { return {const_cast<std::byte*>(this->first), this->stride}; }

    std::size_t part_ = 0;
    ChangeListener* const* listener_ = nullptr;
};

}  // namespace per::cpu
