#ifndef PER_BRIDGE_EXCHANGE_H
#define PER_BRIDGE_EXCHANGE_H

#include <array>
#include <string>
#include <vector>

#include "batch_memory.h"
#include "reader.h"

namespace per::bridge {

/* An array of a batch: its description, the offset of its address in a block of per_batch, and memory for tensors. */
struct Output {
    py::object name;
    std::vector<int64_t> shape; /* with room for the batch's axis in front */
    int32_t dtype;
    py::object descr; /* numpy's dtype */
    size_t offset;
    SpareMemory::Owner memory;
};

/*
 * The arrays of a batch, and dicts of them by name, in this order: copying a dict is faster than growing one. `names`
 * has None in place of arrays. `last` has numpy's arrays of the last two batches, which are given out again once nobody
 * else holds them: a learner holds one batch while it draws the next.
 */
struct Outputs {
    std::vector<Output> arrays;
    py::dict names;
    std::array<py::object, 2> last;
    int64_t size_of_last = 0;
    uint64_t n_replaced = 0; /* arrays of `last` */

    void choose_last(int64_t batch_size);
    void forget_arrays();
};

/*
 * Calls of a buffer or a writer that take or return many arrays: per._exchange.Exchange in a single step from Python.
 * It is not linked to libper: handle and functions are addresses from cffi.
 *
 * For a buffer on CUDA, arrays are those of a tensor library with DLPack's C functions, on the buffer's device.
 *
 * A block is per_steps followed by one per_array for each field and next field, or per_batch followed by one pointer
 * for each; offsets count from its start. Arrays that cannot be read here are left to `plain`, the exchange in Python.
 */
class Exchange {
 public:
    struct Functions {
        decltype(&per_replay_add) add;
        decltype(&per_replay_sample) sample;
        decltype(&per_mixture_sample) sample_mixture;
        decltype(&per_replay_update_priorities) update_priorities;
        decltype(&per_mixture_update_priorities) update_mixture;
        decltype(&per_writer_add) write;
    };

    Exchange(py::object plain, py::object handle, const py::dict& addresses, const py::dict& layout, py::object check,
             py::object as_array, py::object make_batch);

    py::object add(const py::tuple& step_arrays, const py::dict& fields, const py::object& env_ids, bool is_run,
                   const py::object& stream);
    /* Returns the result of per_writer_add(), for an exchange whose handle is a per_writer. */
    int32_t write(const py::tuple& step_arrays, const py::dict& fields, const py::object& env_ids, bool is_run,
                  int64_t timeout_ms);
    py::object sample(const py::object& batch_size, uintptr_t options, const py::object& out, const py::object& stream);
    /*
     * per_mixture_sample() of buffers with these arrays, one of which is the exchange's. `sources` is the address of
     * n_sources per_source. If not all of them count draws, has_times_sampled is false.
     */
    py::object sample_mixture(uintptr_t sources, int64_t n_sources, bool has_times_sampled,
                              const py::object& batch_size, uintptr_t options, const py::object& out,
                              const py::object& stream);
    void update(const py::object& ids, const py::object& values, bool are_priorities, const py::object& stream);
    /* per_mixture_update_priorities() for the sources of sample_mixture(). */
    void update_mixture(uintptr_t sources, int64_t n_sources, const py::object& ids, const py::object& source_of,
                        const py::object& values, bool are_priorities, const py::object& stream);
    void close();

 private:
    py::object keep_open() const;
    /* A stream given to a buffer in host memory is left to Python, which decides what it means. */
    bool is_for_us(const py::object& stream) const { return is_on_device_ || stream.is_none(); }
    /* The possible locations of the arrays of steps. */
    Reader::Where where() const { return is_on_device_ ? Reader::Where::both : Reader::Where::host; }
    void check(per_status status) const;
    void* number_of(const py::object& stream) const;
    bool read_steps(const py::tuple& step_arrays, const py::dict& fields, const py::object& env_ids, bool is_run,
                    Reader& reader, std::vector<std::byte>& block) const;
    bool has_number(std::vector<std::byte>& block) const;
    int64_t envs_of(const per_steps& steps) const { return steps.env_ids != nullptr ? steps.n_envs : n_envs_; }
    per_replay* buffer() const { return static_cast<per_replay*>(handle_); }
    bool read_fields(const py::dict& fields, Reader& reader, std::vector<std::byte>& block) const;
    py::object new_ids(int ndim, const int64_t* shape, const py::object& stream, int64_t** address) const;
    py::object new_array(const Output& output, int64_t batch_size, void** address) const;
    py::object new_arrays(Outputs& outputs, int64_t batch_size, std::vector<std::byte>& block);
    py::object new_batch(const py::object& arrays) const;
    bool reuse(const Outputs& outputs, const py::dict& out, int64_t batch_size, std::vector<std::byte>& block);
    template <class Call>
    py::object draw(Outputs& outputs, const py::object& batch_size, const py::object& out, const py::object& stream,
                    const Call& call);
    Outputs& outputs_of_mixture(bool has_times_sampled);
    bool read_priorities(const py::object& ids, const py::object& values, bool are_priorities, Reader& reader,
                         per_priorities& priorities) const;
    void* address_of_target(PyObject* target, const Output& output, int64_t batch_size);

    py::object plain_;
    py::object handle_object_; /* keeps the handle alive; None once closed */
    void* handle_;             /* a per_replay or a per_writer */
    Functions functions_;
    py::object check_;
    py::object make_batch_;
    PyTypeObject* batch_type_; /* make_batch_, if that is a type whose attributes are the arrays; else NULL */
    ArrayTypes types_;
    int64_t n_fields_;
    int64_t n_envs_;
    int64_t sequence_steps_;             /* length of a sequence; 0: single transitions */
    int64_t learned_steps_;              /* steps of a sequence after the burn-in */
    std::vector<std::byte> steps_block_; /* as initialised by per_steps_init() */
    std::vector<std::byte> batch_block_;
    std::vector<std::pair<py::object, size_t>> step_arrays_; /* names and offsets */
    size_t terminated_;                                      /* its offset */
    py::dict places_;                                        /* offset by name of a field or next field */
    Outputs outputs_;
    std::array<Outputs, 2> outputs_of_mixtures_; /* by has_times_sampled, with the sources of rows; empty until used */
    bool is_on_device_;                          /* otherwise in host memory */
    DLDevice device_;                            /* of the arrays of batches */
    const DLPackExchangeAPI* tensors_;           /* of the library that creates them; NULL: numpy */
};

}  // namespace per::bridge

#endif  // PER_BRIDGE_EXCHANGE_H
