#include "exchange.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "numpy.h"

namespace per::bridge {

namespace {

std::vector<std::byte> bytes_of(const py::handle& object) {
    const auto text = object.cast<std::string_view>();
    const auto* begin = reinterpret_cast<const std::byte*>(text.data());
    return {begin, begin + text.size()};
}

template <typename Function>
Function function_at(const py::dict& addresses, const char* name) {
    return reinterpret_cast<Function>(addresses[name].cast<uintptr_t>());
}

template <typename T>
T& at(std::vector<std::byte>& block, size_t offset) {
    return *reinterpret_cast<T*>(block.data() + offset);
}

// Shape of an output in a batch of this size.
Shape shape_of(const Output& output, int64_t batch_size) {
    Shape shape{static_cast<int>(output.shape.size()), {}};
    std::copy(output.shape.begin(), output.shape.end(), shape.axes);
    shape.axes[0] = batch_size;
    return shape;
}

// Empty if no memory can be allocated for such an array.
ArrayMemory::Owner take_memory(const Output& output, const Shape& shape) {
    size_t n_bytes = dlpack_type_of(output.dtype).bits / 8;
    for (int axis = 0; axis < shape.ndim; ++axis) {
        if (__builtin_mul_overflow(n_bytes, static_cast<size_t>(shape.axes[axis]), &n_bytes)) return nullptr;
    }
    return output.memory->take(n_bytes);
}

py::object copy_of(const py::object& dict) {
    auto copy = py::reinterpret_steal<py::object>(PyDict_Copy(dict.ptr()));
    if (!copy) throw py::error_already_set();
    return copy;
}

void set_item(const py::object& dict, const py::object& name, const py::object& value) {
    if (PyDict_SetItem(dict.ptr(), name.ptr(), value.ptr()) != 0) throw py::error_already_set();
}

// True if an array has no other references than these, no other object refers to its memory, and that is still the
// memory of ours that it was created with.
bool is_unused(PyObject* array, Py_ssize_t references) {
    if (!PyArray_CheckExact(array) || Py_REFCNT(array) != references) return false;
    PyObject* const base = PyArray_BASE(reinterpret_cast<PyArrayObject*>(array));
    const auto* weak_references =
        reinterpret_cast<PyObject**>(reinterpret_cast<char*>(array) + Py_TYPE(array)->tp_weaklistoffset);
    return base != nullptr && ArrayMemory::is_base(base) && Py_REFCNT(base) == 1 && *weak_references == nullptr;
}

}  // namespace

Exchange::Exchange(py::object plain, py::object handle, const py::dict& addresses, const py::dict& layout,
                   py::object check, py::object as_array, py::object make_batch)
    : plain_(std::move(plain)),
      handle_object_(std::move(handle)),
      handle_(reinterpret_cast<void*>(addresses["handle"].cast<uintptr_t>())),
      functions_{function_at<decltype(Functions::add)>(addresses, "per_replay_add"),
                 function_at<decltype(Functions::sample)>(addresses, "per_replay_sample"),
                 function_at<decltype(Functions::sample_mixture)>(addresses, "per_mixture_sample"),
                 function_at<decltype(Functions::update_priorities)>(addresses, "per_replay_update_priorities"),
                 function_at<decltype(Functions::update_mixture)>(addresses, "per_mixture_update_priorities"),
                 function_at<decltype(Functions::write)>(addresses, "per_writer_add")},
      check_(std::move(check)),
      make_batch_(std::move(make_batch)),
      batch_type_(layout["is_batch_type"].cast<bool>() ? reinterpret_cast<PyTypeObject*>(make_batch_.ptr()) : nullptr),
      types_(std::move(as_array)),
      n_fields_(layout["n_fields"].cast<int64_t>()),
      n_envs_(layout["n_envs"].cast<int64_t>()),
      sequence_steps_(layout["sequence_steps"][py::int_(0)].cast<int64_t>()),
      learned_steps_(layout["sequence_steps"][py::int_(1)].cast<int64_t>()),
      steps_block_(bytes_of(layout["steps"])),
      batch_block_(bytes_of(layout["batch"])),
      terminated_(offsetof(per_steps, terminated)),
      places_(layout["places"].cast<py::dict>()),
      is_on_device_(layout["is_on_device"].cast<bool>()),
      device_{static_cast<DLDeviceType>(layout["device"][py::int_(0)].cast<int32_t>()),
              layout["device"][py::int_(1)].cast<int32_t>()},
      tensors_(nullptr) {
    for (const py::handle pair : layout["step_arrays"]) {
        step_arrays_.emplace_back(pair[py::int_(0)], pair[py::int_(1)].cast<size_t>());
    }
    for (const py::handle row : layout["outputs"]) {
        auto shape = row[py::int_(1)].cast<std::vector<int64_t>>();
        shape.insert(shape.begin(), 0);
        if (shape.size() > max_axes) throw py::value_error("an array of a batch has too many axes");
        outputs_.arrays.push_back({row[py::int_(0)], std::move(shape), row[py::int_(2)].cast<int32_t>(),
                                   row[py::int_(3)], row[py::int_(4)].cast<size_t>(), SpareMemory::open()});
        outputs_.names[row[py::int_(0)]] = py::none();
    }
    const py::object tensor_type = layout["tensor_type"];
    if (!tensor_type.is_none()) {
        tensors_ = types_.exchange_api(reinterpret_cast<PyTypeObject*>(tensor_type.ptr()));
    } else {
        for (const Output& output : outputs_.arrays) output.memory->keep_nothing();  // `last` keeps it
    }
}

// Makes last[0] the arrays for a batch: those of the last batch if it is gone, else those of the one before. Batches of
// another size have none.
void Outputs::choose_last(int64_t batch_size) {
    if (std::exchange(size_of_last, batch_size) != batch_size) last = {};
    const auto is_gone = [](const py::object& arrays) {
        PyObject* first = nullptr;
        Py_ssize_t place = 0;
        return PyDict_Next(arrays.ptr(), &place, nullptr, &first) != 0 && is_unused(first, 1);
    };
    if (!last[0] || !is_gone(last[0])) std::swap(last[0], last[1]);
    if (!last[0]) last[0] = copy_of(names);
}

void Outputs::forget_arrays() {
    for (const Output& output : arrays) output.memory->keep_nothing();
    last = {};
}

void Exchange::close() {
    handle_object_ = py::none();
    outputs_.forget_arrays();
    for (Outputs& outputs : outputs_of_mixtures_) outputs.forget_arrays();
    plain_.attr("close")();
}

// A reference that keeps the buffer open during the call: another thread may close it meanwhile.
py::object Exchange::keep_open() const {
    if (handle_object_.is_none()) plain_.attr("handle")();
    return handle_object_;
}

void Exchange::check(per_status status) const {
    if (status != PER_OK) check_(static_cast<int>(status));
}

// The cudaStream_t of the user's stream, or by default the tensor library's current one.
void* Exchange::number_of(const py::object& stream) const {
    void* number = nullptr;
    if (!is_on_device_) return number;
    if (!stream.is_none()) return reinterpret_cast<void*>(plain_.attr("stream_number")(stream).cast<uintptr_t>());
    if (tensors_->current_work_stream(device_.device_type, device_.device_id, &number) != 0)
        throw py::error_already_set();
    return number;
}

// Reads the arrays of steps. Returns false if only Python can read one of them.
bool Exchange::read_steps(const py::tuple& step_arrays, const py::dict& fields, const py::object& env_ids, bool is_run,
                          Reader& reader, std::vector<std::byte>& block) const {
    for (size_t i = 0; i < step_arrays_.size(); ++i) {
        const auto& [name, offset] = step_arrays_[i];
        PyObject* source = PyTuple_GET_ITEM(step_arrays.ptr(), static_cast<Py_ssize_t>(i));
        if (!reader.read(source, name, at<per_array>(block, offset), where())) return false;
    }
    if (!read_fields(fields, reader, block)) return false;
    auto& steps = at<per_steps>(block, 0);
    if (!env_ids.is_none()) {
        per_array ids{};
        reader.read(env_ids.ptr(), py::str("env_ids"), ids);
        if (ids.dtype != PER_INT64 || ids.ndim != 1) return false;
        steps.env_ids = static_cast<const int64_t*>(ids.data);
        steps.n_envs = ids.shape[0];
    }
    if (is_run) {
        const per_array& terminated = steps.terminated;
        if (terminated.data == nullptr || terminated.ndim == 0) return false;
        steps.length = terminated.shape[0];
    }
    return steps.length * envs_of(steps) == 1 || !has_number(block);  // a number would apply to all rows
}

// True if a reward, flag or priority was given as a single number.
bool Exchange::has_number(std::vector<std::byte>& block) const {
    return std::any_of(step_arrays_.begin(), step_arrays_.end(), [&](const auto& named) {
        const auto& array = at<per_array>(block, named.second);
        return array.data != nullptr && array.ndim == 0;
    });
}

bool Exchange::read_fields(const py::dict& fields, Reader& reader, std::vector<std::byte>& block) const {
    const size_t first_next = sizeof(per_steps) + static_cast<size_t>(n_fields_) * sizeof(per_array);
    auto& steps = at<per_steps>(block, 0);
    steps.fields = &at<per_array>(block, sizeof(per_steps));
    steps.next_fields = nullptr;
    PyObject* name = nullptr;
    PyObject* source = nullptr;
    for (Py_ssize_t position = 0; PyDict_Next(fields.ptr(), &position, &name, &source);) {
        PyObject* place = PyDict_GetItemWithError(places_.ptr(), name);
        if (place == nullptr) {
            const py::object error = plain_.attr("unknown")(py::handle(name));
            PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
            throw py::error_already_set();
        }
        if (source == Py_None) continue;
        const size_t offset = PyLong_AsSize_t(place);
        if (offset >= first_next) steps.next_fields = &at<per_array>(block, first_next);
        if (!reader.read(source, name, at<per_array>(block, offset), where())) return false;
    }
    return true;
}

py::object Exchange::add(const py::tuple& step_arrays, const py::dict& fields, const py::object& env_ids, bool is_run,
                         const py::object& stream) {
    const py::object open = keep_open();
    const auto by_python = [&] { return plain_.attr("add")(step_arrays, fields, env_ids, is_run, stream); };
    std::vector<std::byte> block = steps_block_;
    auto& steps = at<per_steps>(block, 0);
    Reader reader(types_, device_);
    if (!is_for_us(stream) || !read_steps(step_arrays, fields, env_ids, is_run, reader, block)) return by_python();
    const int64_t n = envs_of(steps);
    const int64_t rows[2] = {steps.length, n};
    const per_array& terminated = steps.terminated;
    const int ndim = terminated.data != nullptr ? terminated.ndim : 0;
    int64_t flags = 1;
    for (int axis = 0; axis < ndim; ++axis) flags *= terminated.shape[axis];
    const bool as_flags = flags == steps.length * n;
    const int64_t* shape = as_flags ? terminated.shape : (is_run ? rows : rows + 1);
    int64_t* ids_out = nullptr;
    const py::object ids = new_ids(as_flags ? ndim : (is_run ? 2 : 1), shape, stream, &ids_out);
    if (!ids) return by_python();
    void* const queue = number_of(stream);
    per_status status;
    {
        const py::gil_scoped_release release;
        status = functions_.add(buffer(), &steps, ids_out, queue);
    }
    check(status);
    return ids;
}

int32_t Exchange::write(const py::tuple& step_arrays, const py::dict& fields, const py::object& env_ids, bool is_run,
                        int64_t timeout_ms) {
    const py::object open = keep_open();
    std::vector<std::byte> block = steps_block_;
    Reader reader(types_);
    if (!read_steps(step_arrays, fields, env_ids, is_run, reader, block))
        return plain_.attr("write")(step_arrays, fields, env_ids, is_run, timeout_ms).cast<int32_t>();
    const py::gil_scoped_release release;
    return functions_.write(static_cast<per_writer*>(handle_), &at<per_steps>(block, 0), timeout_ms);
}

// Empty if no memory can be allocated.
py::object Exchange::new_ids(int ndim, const int64_t* shape, const py::object& stream, int64_t** address) const {
    if (!is_on_device_) {
        auto* axes = reinterpret_cast<npy_intp*>(const_cast<int64_t*>(shape));
        auto ids = py::reinterpret_steal<py::object>(PyArray_SimpleNew(ndim, axes, NPY_INT64));
        if (!ids) {
            PyErr_Clear();
            return ids;
        }
        *address = static_cast<int64_t*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(ids.ptr())));
        return ids;
    }
    py::tuple axes(ndim);
    for (int axis = 0; axis < ndim; ++axis) axes[static_cast<size_t>(axis)] = shape[axis];
    py::object ids = plain_.attr("new_ids")(axes, stream);
    DLTensor tensor;
    if (tensors_->dltensor_from_py_object_no_sync(ids.ptr(), &tensor) != 0) throw py::error_already_set();
    *address = reinterpret_cast<int64_t*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
    return ids;
}

// Draws with call(batch, its size, stream) into the arrays of `out`, or into new ones, and returns them. Empty, without
// a draw, if only Python can make it.
template <class Call>
py::object Exchange::draw(Outputs& outputs, const py::object& batch_size, const py::object& out,
                          const py::object& stream, const Call& call) {
    const Py_ssize_t count = PyLong_Check(batch_size.ptr()) ? PyLong_AsSsize_t(batch_size.ptr()) : -1;
    if (count < 1 || !is_for_us(stream)) {
        PyErr_Clear();
        return {};
    }
    std::vector<std::byte> block = batch_block_;
    auto& batch = at<per_batch>(block, 0);
    batch.fields = &at<void*>(block, sizeof(per_batch));
    batch.next_fields = batch.fields + n_fields_;
    py::object arrays = out;
    if (!out.is_none()) {
        if (!reuse(outputs, out, count, block)) return {};
    } else if (!is_on_device_) {
        arrays = new_arrays(outputs, count, block);
        if (!arrays) return {};
    } else {
        arrays = plain_.attr("new_batch")(batch_size, stream);
        if (!reuse(outputs, arrays, count, block)) return {};
    }
    void* const queue = number_of(stream);
    per_status status;
    {
        const py::gil_scoped_release release;
        status = call(block, count, queue);
    }
    check(status);
    return arrays;
}

py::object Exchange::sample(const py::object& batch_size, uintptr_t options, const py::object& out,
                            const py::object& stream) {
    const py::object open = keep_open();
    const auto call = [&](std::vector<std::byte>& block, int64_t count, void* queue) {
        return functions_.sample(buffer(), reinterpret_cast<const per_sample_options*>(options), count,
                                 &at<per_batch>(block, 0), queue);
    };
    const py::object arrays = draw(outputs_, batch_size, out, stream, call);
    if (!arrays) return plain_.attr("sample")(batch_size, options, out, stream);
    return out.is_none() ? new_batch(arrays) : arrays;
}

py::object Exchange::sample_mixture(uintptr_t sources, int64_t n_sources, bool has_times_sampled,
                                    const py::object& batch_size, uintptr_t options, const py::object& out,
                                    const py::object& stream) {
    py::object arrays;
    if (!is_on_device_) {
        Outputs& outputs = outputs_of_mixture(has_times_sampled);
        const size_t place = outputs.arrays.back().offset;
        const auto call = [&](std::vector<std::byte>& block, int64_t count, void* queue) {
            return functions_.sample_mixture(reinterpret_cast<per_source*>(sources), n_sources,
                                             reinterpret_cast<const per_sample_options*>(options), count,
                                             &at<per_batch>(block, 0), at<int32_t*>(block, place), queue);
        };
        arrays = draw(outputs, batch_size, out, stream, call);
    }
    if (arrays) return arrays;
    return plain_.attr("sample_mixture")(sources, n_sources, has_times_sampled, batch_size, options, out, stream);
}

// The arrays of a batch of the buffer, perhaps without times_sampled, and `sources`. The address of the latter is the
// last in a block.
Outputs& Exchange::outputs_of_mixture(bool has_times_sampled) {
    Outputs& kept = outputs_of_mixtures_[has_times_sampled];
    if (!kept.arrays.empty()) return kept;
    const py::str name_of_times("times_sampled");
    Outputs outputs;
    const auto add = [&](const py::object& name, std::vector<int64_t> shape, int32_t dtype, const py::object& descr,
                         size_t offset) {
        outputs.arrays.push_back({name, std::move(shape), dtype, descr, offset, SpareMemory::open()});
        outputs.names[name] = py::none();
        if (tensors_ == nullptr) outputs.arrays.back().memory->keep_nothing();
    };
    for (const Output& output : outputs_.arrays)
        if (has_times_sampled || !output.name.equal(name_of_times))
            add(output.name, output.shape, output.dtype, output.descr, output.offset);
    const auto int32 = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyArray_DescrFromType(NPY_INT32)));
    add(py::str("sources"), {0}, PER_INT32, int32, batch_block_.size() - sizeof(void*));
    if (kept.arrays.empty()) kept = std::move(outputs);  // else another thread was first
    return kept;
}

// Arrays by name for the next batch. Empty if no memory can be allocated; the error is then Python's to raise.
//
// Arrays of an earlier batch that nobody else holds any more are used again, since creating one takes longer. An unused
// one has two references, those of the two dicts. While an array is created or dropped, other draws may run. If one of
// them replaced arrays, those of the two dicts differ, and the rest are all created.
py::object Exchange::new_arrays(Outputs& outputs, int64_t batch_size, std::vector<std::byte>& block) {
    if (tensors_ == nullptr) outputs.choose_last(batch_size);
    const py::object last = outputs.last[0];
    uint64_t n_replaced = outputs.n_replaced;
    const py::object arrays = copy_of(last ? last : outputs.names);
    Py_ssize_t place = 0;
    for (const Output& output : outputs.arrays) {
        PyObject* array = nullptr;
        PyDict_Next(arrays.ptr(), &place, nullptr, &array);
        void*& address = at<void*>(block, output.offset);
        const bool is_free = n_replaced == outputs.n_replaced && is_unused(array, 2);
        address = is_free ? address_of_target(array, output, batch_size) : nullptr;
        if (address != nullptr) continue;  // else it is held, or was changed
        const py::object created = new_array(output, batch_size, &address);
        if (!created) return {};
        set_item(arrays, output.name, created);
        if (!last) continue;
        ++n_replaced;
        ++outputs.n_replaced;  // before the array is dropped, since draws may then run
        set_item(last, output.name, created);
    }
    return arrays;
}

// make_batch(arrays). Calling the type would run Python code, which takes longer than all else here. The dict is set by
// name, since CPython 3.13.0 finds no attribute in one that PyObject_GenericSetDict() has set.
py::object Exchange::new_batch(const py::object& arrays) const {
    if (batch_type_ == nullptr) return make_batch_(arrays);
    static PyObject* const name = PyUnicode_InternFromString("__dict__");
    auto batch = py::reinterpret_steal<py::object>(batch_type_->tp_alloc(batch_type_, 0));
    if (!batch || PyObject_GenericSetAttr(batch.ptr(), name, arrays.ptr()) != 0) throw py::error_already_set();
    return batch;
}

// Empty if no memory can be allocated.
py::object Exchange::new_array(const Output& output, int64_t batch_size, void** address) const {
    Shape shape = shape_of(output, batch_size);
    ArrayMemory::Owner memory = take_memory(output, shape);
    if (!memory) return {};
    if (tensors_ != nullptr) {
        *address = memory->tensor_elements();
        DLManagedTensorVersioned* tensor =
            ArrayMemory::as_tensor(std::move(memory), shape, dlpack_type_of(output.dtype));
        void* object = nullptr;
        if (tensors_->managed_tensor_to_py_object_no_sync(tensor, &object) != 0) throw py::error_already_set();
        return py::reinterpret_steal<py::object>(static_cast<PyObject*>(object));
    }
    *address = memory->numpy_elements();
    const auto base = py::reinterpret_steal<py::object>(ArrayMemory::as_base(std::move(memory)));
    auto* descr = reinterpret_cast<PyArray_Descr*>(output.descr.inc_ref().ptr());
    auto array = py::reinterpret_steal<py::object>(PyArray_NewFromDescr(&PyArray_Type, descr, shape.ndim,
                                                                        reinterpret_cast<npy_intp*>(shape.axes),
                                                                        nullptr, *address, NPY_ARRAY_CARRAY, nullptr));
    if (!array) throw py::error_already_set();
    auto* owned = reinterpret_cast<PyArrayObject*>(array.ptr());
    if (PyArray_SetBaseObject(owned, base.inc_ref().ptr()) != 0) throw py::error_already_set();
    return array;
}

bool Exchange::reuse(const Outputs& outputs, const py::dict& out, int64_t batch_size, std::vector<std::byte>& block) {
    for (const Output& output : outputs.arrays) {
        PyObject* target = PyDict_GetItemWithError(out.ptr(), output.name.ptr());
        void* address = target != nullptr ? address_of_target(target, output, batch_size) : nullptr;
        if (address == nullptr) return false;
        at<void*>(block, output.offset) = address;
    }
    return true;
}

// Address of a batch array; NULL unless it is writable and has the output's dtype and shape.
void* Exchange::address_of_target(PyObject* target, const Output& output, int64_t batch_size) {
    const auto has_shape = [&](const int64_t* axes, int ndim) {
        return ndim == std::ssize(output.shape) && axes[0] == batch_size &&
               std::equal(output.shape.begin() + 1, output.shape.end(), axes + 1);
    };
    if (!is_on_device_ && PyArray_CheckExact(target)) {
        auto* array = reinterpret_cast<PyArrayObject*>(target);
        const auto* axes = reinterpret_cast<const int64_t*>(PyArray_DIMS(array));
        const bool fits = reinterpret_cast<PyObject*>(PyArray_DESCR(array)) == output.descr.ptr() &&
                          PyArray_ISCARRAY(array) && has_shape(axes, PyArray_NDIM(array));
        return fits ? PyArray_DATA(array) : nullptr;
    }
    DLTensor tensor;
    if (tensors_ == nullptr || types_.exchange_api(Py_TYPE(target)) != tensors_) return nullptr;
    if (!types_.find_tensor(target, tensor)) return nullptr;
    const bool fits = bridge::dtype_of(tensor.dtype) == static_cast<per_dtype>(output.dtype) &&
                      is_contiguous_on(device_, tensor) && has_shape(tensor.shape, tensor.ndim);
    return fits ? static_cast<char*>(tensor.data) + tensor.byte_offset : nullptr;
}

// Reads the arguments of an update. Returns false if only Python can read them.
bool Exchange::read_priorities(const py::object& ids, const py::object& values, bool are_priorities, Reader& reader,
                               per_priorities& priorities) const {
    per_array id{};
    per_array value{};
    const auto where = is_on_device_ ? Reader::Where::device : Reader::Where::host;
    if (!reader.read(ids.ptr(), py::str("ids"), id, where) ||
        !reader.read(values.ptr(), py::str(are_priorities ? "priorities" : "td_errors"), value, where))
        return false;
    const bool has_steps = sequence_steps_ > 0 && !are_priorities;
    const int count_axis = value.ndim - (has_steps ? 2 : 1);
    const bool has_critics = count_axis == 1 && !are_priorities;
    const int64_t n_steps = has_steps && count_axis >= 0 ? value.shape[count_axis + 1] : 0;
    priorities.struct_size = sizeof priorities;
    priorities.count = id.ndim == 1 ? id.shape[0] : 0;
    priorities.ids = static_cast<const int64_t*>(id.data);
    (are_priorities ? priorities.priorities : priorities.td_errors) = static_cast<const float*>(value.data);
    priorities.n_critics = has_critics ? value.shape[0] : 1;
    priorities.n_steps = n_steps;
    return id.dtype == PER_INT64 && id.ndim == 1 && value.dtype == PER_FLOAT32 && (count_axis == 0 || has_critics) &&
           value.shape[count_axis] == id.shape[0] &&
           (!has_steps || n_steps == sequence_steps_ || n_steps == learned_steps_) && value.data != nullptr &&
           id.data != nullptr;
}

void Exchange::update(const py::object& ids, const py::object& values, bool are_priorities, const py::object& stream) {
    const py::object open = keep_open();
    Reader reader(types_, device_);
    per_priorities priorities{};
    if (!is_for_us(stream) || !read_priorities(ids, values, are_priorities, reader, priorities)) {
        plain_.attr("update")(ids, values, are_priorities, stream);
        return;
    }
    void* const queue = number_of(stream);
    per_status status;
    {
        const py::gil_scoped_release release;
        status = functions_.update_priorities(buffer(), &priorities, queue);
    }
    check(status);
}

void Exchange::update_mixture(uintptr_t sources, int64_t n_sources, const py::object& ids, const py::object& source_of,
                              const py::object& values, bool are_priorities, const py::object& stream) {
    Reader reader(types_, device_);
    per_priorities priorities{};
    per_array of_ids{};
    const bool are_read = !is_on_device_ && stream.is_none() &&
                          read_priorities(ids, values, are_priorities, reader, priorities) &&
                          reader.read(source_of.ptr(), py::str("sources"), of_ids, Reader::Where::host) &&
                          of_ids.dtype == PER_INT32 && of_ids.ndim == 1 && of_ids.shape[0] == priorities.count;
    if (!are_read) {
        plain_.attr("update_mixture")(sources, n_sources, ids, source_of, values, are_priorities, stream);
        return;
    }
    per_status status;
    {
        const py::gil_scoped_release release;
        status = functions_.update_mixture(reinterpret_cast<const per_source*>(sources), n_sources, &priorities,
                                           static_cast<const int32_t*>(of_ids.data), nullptr);
    }
    check(status);
}

}  // namespace per::bridge
