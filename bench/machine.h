#ifndef PER_BENCH_MACHINE_H
#define PER_BENCH_MACHINE_H

#include <nlohmann/json.hpp>
#include <string>

namespace bench {

/* The machine that the figures depend on. */
nlohmann::ordered_json machine_description();  // processor, cores, caches, memory, pages, system
std::string compiler_description();
std::string source_commit();

}  // namespace bench

#endif
