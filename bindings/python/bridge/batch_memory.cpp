#include "batch_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <vector>

namespace per::bridge {

namespace {

constexpr size_t line = 64;
constexpr size_t page = 4096;
constexpr size_t huge_page = size_t{2} << 20;

constexpr size_t whole_lines(size_t n_bytes) {
    return (n_bytes + line - 1) / line * line;
}

PyTypeObject memory_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

// SpareMemory of closed buffers, to be reused by later buffers. These objects are never freed, since threads may return
// memory to them until the process ends.
std::vector<SpareMemory*>& unused() {
    static auto& those = *new std::vector<SpareMemory*>;
    return those;
}

void release(ArrayMemory* memory) {
    memory->~ArrayMemory();
    std::free(memory);
}

}  // namespace

ArrayMemory::ArrayMemory(SpareMemory& home, size_t n_bytes)
    : PyObject{}, home_(home), n_bytes_(n_bytes), tensor_{}, shape_{}, strides_{} {}

bool ArrayMemory::prepare_type() {
    if ((memory_type.tp_flags & Py_TPFLAGS_READY) != 0) return true;
    memory_type.tp_name = "per._bridge.ArrayMemory";
    memory_type.tp_doc = "The memory of an array of a batch.";
    memory_type.tp_basicsize = sizeof(ArrayMemory);
    memory_type.tp_flags = Py_TPFLAGS_DEFAULT;
    memory_type.tp_dealloc = [](PyObject* self) { GiveBack()(static_cast<ArrayMemory*>(self)); };
    return PyType_Ready(&memory_type) == 0;
}

void* ArrayMemory::tensor_elements() {
    return reinterpret_cast<std::byte*>(this) + whole_lines(sizeof(ArrayMemory));
}

void* ArrayMemory::numpy_elements() {
    return static_cast<std::byte*>(tensor_elements()) + line / 2;
}

bool ArrayMemory::is_base(PyObject* object) {
    return Py_IS_TYPE(object, &memory_type);
}

PyObject* ArrayMemory::as_base(Owner memory) {
    return PyObject_Init(memory.release(), &memory_type);
}

DLManagedTensorVersioned* ArrayMemory::as_tensor(Owner owner, const Shape& shape, DLDataType type) {
    ArrayMemory* memory = owner.release();
    std::copy(shape.axes, shape.axes + shape.ndim, memory->shape_);
    int64_t stride = 1;
    for (int axis = shape.ndim - 1; axis >= 0; --axis) {
        memory->strides_[axis] = stride;
        stride *= shape.axes[axis];
    }
    DLTensor elements{memory->tensor_elements(), {kDLCPU, 0}, shape.ndim, type, memory->shape_, memory->strides_, 0};
    const auto give_back = [](DLManagedTensorVersioned* self) {
        GiveBack()(static_cast<ArrayMemory*>(self->manager_ctx));
    };
    memory->tensor_ = {{1, 0}, memory, give_back, 0, elements};
    return &memory->tensor_;
}

void ArrayMemory::GiveBack::operator()(ArrayMemory* memory) const {
    memory->home_.give_back(memory);
}

SpareMemory::Owner SpareMemory::open() {
    if (unused().empty()) unused().push_back(new SpareMemory);
    Owner memory(unused().back());
    unused().pop_back();
    memory->keeps_ = true;
    return memory;
}

void SpareMemory::Close::operator()(SpareMemory* memory) const {
    memory->keep_nothing();
    unused().push_back(memory);
}

void SpareMemory::keep_nothing() {
    keeps_ = false;
    for (std::atomic<ArrayMemory*>& place : places_) {
        if (ArrayMemory* memory = place.exchange(nullptr); memory != nullptr) release(memory);
    }
}

// If another thread closes this object meanwhile, the memory may still be kept; a later buffer then uses it.
void SpareMemory::give_back(ArrayMemory* memory) {
    for (std::atomic<ArrayMemory*>& place : places_) {
        ArrayMemory* nothing = nullptr;
        if (keeps_ && place.compare_exchange_strong(nothing, memory)) return;
    }
    release(memory);
}

ArrayMemory::Owner SpareMemory::take(size_t element_bytes) {
    constexpr size_t before = whole_lines(sizeof(ArrayMemory)) + line / 2;
    if (element_bytes > PTRDIFF_MAX - before - line) return nullptr;
    const size_t n_bytes = whole_lines(before + element_bytes);
    for (std::atomic<ArrayMemory*>& place : places_) {
        ArrayMemory* memory = place.exchange(nullptr);
        if (memory == nullptr) continue;
        if (memory->n_bytes_ == n_bytes) return ArrayMemory::Owner(memory);
        release(memory);  // it belonged to a batch of another size
    }
    void* place = std::aligned_alloc(line, n_bytes);
    if (place == nullptr) return nullptr;
    if (n_bytes >= 2 * huge_page) {  // as numpy does; otherwise the kernel might map small pages one by one
        const uintptr_t begin = (reinterpret_cast<uintptr_t>(place) + page - 1) / page * page;
        madvise(reinterpret_cast<void*>(begin), reinterpret_cast<uintptr_t>(place) + n_bytes - begin, MADV_HUGEPAGE);
    }
    return ArrayMemory::Owner(new (place) ArrayMemory(*this, n_bytes));
}

}  // namespace per::bridge
