#ifndef PER_BENCH_REPORT_H
#define PER_BENCH_REPORT_H

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "measure.h"

namespace bench {

/* The timings of one case at one capacity and batch size. */
struct Measurement {
    std::string case_name;
    std::string isa;
    int64_t capacity;
    int64_t batch;
    Caches caches;
    std::vector<Timing> timings;
};

void print_heading(Caches caches);
void print(const Measurement& measurement);

/* Entries of "results". */
nlohmann::ordered_json entries_of(const Measurement& measurement);

void write_report(const std::string& path, const nlohmann::ordered_json& results);

}  // namespace bench

#endif
