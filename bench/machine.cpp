#include "machine.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>

#include "commit.h"

namespace bench {
namespace {

std::string processor() {
    std::ifstream cpuinfo("/proc/cpuinfo");
    for (std::string line; std::getline(cpuinfo, line);) {
        const size_t colon = line.find(": ");
        if (line.rfind("model name", 0) == 0 && colon != std::string::npos) return line.substr(colon + 2);
    }
    return "unknown";
}

std::string first_line(const char* path) {
    std::ifstream file(path);
    std::string line;
    return std::getline(file, line) ? line : "unknown";
}

bool is_virtual() {
    std::ifstream cpuinfo("/proc/cpuinfo");
    for (std::string word; cpuinfo >> word;) {
        if (word == "hypervisor") return true;
    }
    return false;
}

}  // namespace

nlohmann::ordered_json machine_description() {
    utsname system = {};
    uname(&system);
    constexpr int64_t kib = 1024;
    return {{"processor", processor()},
            {"architecture", system.machine},
            {"virtual", is_virtual()},
            {"cores", sysconf(_SC_NPROCESSORS_ONLN)},
            {"l1d_kib", sysconf(_SC_LEVEL1_DCACHE_SIZE) / kib},
            {"l2_kib", sysconf(_SC_LEVEL2_CACHE_SIZE) / kib},
            {"l3_kib", sysconf(_SC_LEVEL3_CACHE_SIZE) / kib},
            {"memory_mib", sysconf(_SC_PHYS_PAGES) * (sysconf(_SC_PAGESIZE) / kib) / kib},
            {"huge_pages", first_line("/sys/kernel/mm/transparent_hugepage/enabled")},
            {"system", std::string(system.sysname) + " " + system.release}};
}

std::string compiler_description() {
#if defined(__clang__)
    return std::string("clang ") + __clang_version__;
#else
    return std::string("g++ ") + __VERSION__;
#endif
}

std::string source_commit() {
    return PER_BENCH_COMMIT;
}

}  // namespace bench
