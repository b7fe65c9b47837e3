#include "translation.h"

#include <dlfcn.h>
#include <elf.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>

namespace simulator {

namespace {

constexpr GridFunctions functions_of_grid = {[]() -> const Place& {
                                                 if (place == nullptr) fail("a kernel was called outside of a grid");
                                                 return *place;
                                             },
                                             block_barrier,
                                             exchange,
                                             shared_memory,
                                             wait_for_others,
                                             [](const char* what) { fail(what); }};

// NULL if the environment names none.
const Translation* load_translation() {
    const char* const path = std::getenv("PER_SIMULATOR_KERNELS");
    if (path == nullptr || *path == '\0') return nullptr;
    void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) fail(dlerror());
    auto* const get = reinterpret_cast<GetTranslation*>(dlsym(library, "per_translation"));
    if (get == nullptr) fail("PER_SIMULATOR_KERNELS names a library without translated kernels");
    return get(&functions_of_grid);
}

const Translation* translation() {
    static const Translation* const loaded = load_translation();
    return loaded;
}

// The functions of a program or library by their offset, including those that it does not export.
std::map<uintptr_t, std::string> functions_of(const char* path) {
    std::ifstream file(path, std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(file), {});
    std::map<uintptr_t, std::string> found;
    if (bytes.size() < sizeof(Elf64_Ehdr)) fail("cannot read the program whose kernels are to be replaced");
    const auto* const header = reinterpret_cast<const Elf64_Ehdr*>(bytes.data());
    const auto* const sections = reinterpret_cast<const Elf64_Shdr*>(bytes.data() + header->e_shoff);
    for (int i = 0; i < header->e_shnum; ++i) {
        if (sections[i].sh_type != SHT_SYMTAB) continue;
        const auto* const symbols = reinterpret_cast<const Elf64_Sym*>(bytes.data() + sections[i].sh_offset);
        const char* const names = bytes.data() + sections[sections[i].sh_link].sh_offset;
        for (std::size_t k = 0; k < sections[i].sh_size / sizeof *symbols; ++k)
            if (ELF64_ST_TYPE(symbols[k].st_info) == STT_FUNC && symbols[k].st_shndx != SHN_UNDEF)
                found.emplace(symbols[k].st_value, names + symbols[k].st_name);
    }
    return found;
}

const TranslatedKernel* find_translation(const void* kernel) {
    Dl_info object;
    if (dladdr(kernel, &object) == 0) fail("a kernel lies in no program or library");
    static std::map<std::string, std::map<uintptr_t, std::string>> functions_by_path;
    auto [functions, is_new] = functions_by_path.try_emplace(object.dli_fname);
    if (is_new) functions->second = functions_of(object.dli_fname);
    const uintptr_t base = reinterpret_cast<uintptr_t>(object.dli_fbase);
    const auto named = functions->second.find(reinterpret_cast<uintptr_t>(kernel) - base);
    if (named == functions->second.end()) fail("a kernel has no name: its program or library is stripped");
    for (const TranslatedKernel& candidate : translation()->kernels)
        if (named->second == candidate.name) return &candidate;
    if (named->second.starts_with("_ZN3per4cuda")) {
        std::fprintf(stderr, "simulator: %s: ", named->second.c_str());
        fail("PER_SIMULATOR_KERNELS names a library that lacks this kernel of libper");
    }
    return nullptr;  // defined by a test
}

}  // namespace

int translated_architecture() {
    return translation() == nullptr ? 0 : translation()->architecture;
}

uint64_t take_instructions() {
    const bool counts = translation() != nullptr && translation()->take_instructions != nullptr;
    return counts ? translation()->take_instructions() : 0;
}

const TranslatedKernel* translation_of(const void* kernel) {
    if (translation() == nullptr) return nullptr;
    static std::mutex mutex;
    const std::lock_guard<std::mutex> guard(mutex);
    static std::unordered_map<const void*, const TranslatedKernel*> known;
    const auto [entry, is_new] = known.try_emplace(kernel, nullptr);
    if (is_new) entry->second = find_translation(kernel);
    return entry->second;
}

}  // namespace simulator
