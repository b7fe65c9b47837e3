// Kernels of another compiler run on the simulated GPU in place of those of the same name: nvcc's, whose PTX tests/ptx
// translates. They are in a shared library named by the environment's PER_SIMULATOR_KERNELS, so every program for the
// simulated GPU can run them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "grid.h"

namespace simulator {

// The simulator as passed to the library, as programs do not export its functions. They are those of grid.h.
struct GridFunctions {
    const Place& (*place)();
    void (*block_barrier)();
    void (*exchange)(const char* kind, unsigned mask, uint64_t value, uint64_t (&values_out)[32]);
    void* (*shared_memory)(const void* key, std::size_t bytes);
    void (*wait_for_others)();
    void (*fail)(const char* what);
};

struct TranslatedKernel {
    const char* name;  // mangled, as the C++ compiler does it
    void (*run)(const unsigned char* parameters);
    std::size_t parameter_bytes;
};

struct Translation {
    int architecture;  // that of its PTX, such as 90; one for all kernels
    std::vector<TranslatedKernel> kernels;
    uint64_t (*take_instructions)();  // see the function below; NULL if the library does not count them
};

// The library has a C function of this type with the name per_translation.
using GetTranslation = const Translation*(const GridFunctions* grid);

// The architecture of the translation named in the environment, or 0.
int translated_architecture();

// The number of different instructions that translated kernels have executed since the last call, those of the functions
// that they call included; 0 without a library that counts them.
uint64_t take_instructions();

// The kernel to run in place of this one; NULL: this one. The program ends if the translation lacks a kernel of libper.
const TranslatedKernel* translation_of(const void* kernel);

// The parameters of a launch as passed to the device: in order, each aligned as its type.
template <class... Parameters>
class ParameterBlock {
 public:
    explicit ParameterBlock(const Parameters&... parameters) {
        std::size_t end = 0;
        [[maybe_unused]] const auto append = [&](const auto& parameter) {
            end = place_after(end, alignof(decltype(parameter)));
            std::memcpy(bytes_.data() + end, &parameter, sizeof parameter);
            end += sizeof parameter;
        };
        (append(parameters), ...);
    }

    static constexpr std::size_t n_bytes() {
        std::size_t end = 0;
        ((end = place_after(end, alignof(Parameters)) + sizeof(Parameters)), ...);
        return end;
    }

    const unsigned char* bytes() const { return bytes_.data(); }

 private:
    static constexpr std::size_t place_after(std::size_t end, std::size_t alignment) {
        return (end + alignment - 1) / alignment * alignment;
    }

    alignas(16) std::array<unsigned char, n_bytes() + 1> bytes_ = {};
};

}  // namespace simulator
