#include "report.h"

#include <per.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <stdexcept>

#include "machine.h"

namespace bench {

void print_heading(Caches caches) {
    const nlohmann::ordered_json machine = machine_description();
    std::printf("%s, %d cores, %s; %s; libper %s, commit %s\n", machine["processor"].get<std::string>().c_str(),
                machine["cores"].get<int>(), machine["system"].get<std::string>().c_str(),
                compiler_description().c_str(), per_version(), source_commit().c_str());
    std::printf("ns of an element of the batch, %s caches\n\n", name_of(caches));
    std::printf("%-20s %-9s %10s %6s  %-20s %12s %12s %10s\n", "case", "isa", "capacity", "batch", "variant", "median",
                "best", "/ libper");
}

void print(const Measurement& measurement) {
    const double libper = measurement.timings.front().median_ns;
    for (const Timing& timing : measurement.timings) {
        std::printf("%-20s %-9s %10lld %6lld  %-20s %12.2f %12.2f %10.2f\n", measurement.case_name.c_str(),
                    measurement.isa.c_str(), static_cast<long long>(measurement.capacity),
                    static_cast<long long>(measurement.batch), timing.variant.c_str(), timing.median_ns, timing.best_ns,
                    timing.median_ns / libper);
    }
    std::printf("\n");
    std::fflush(stdout);
}

nlohmann::ordered_json entries_of(const Measurement& measurement) {
    nlohmann::ordered_json entries = nlohmann::ordered_json::array();
    for (const Timing& timing : measurement.timings) {
        entries.push_back({{"case", measurement.case_name},
                           {"variant", timing.variant},
                           {"isa", measurement.isa},
                           {"capacity", measurement.capacity},
                           {"batch", measurement.batch},
                           {"caches", name_of(measurement.caches)},
                           {"ns_per_element", timing.median_ns},
                           {"best_ns_per_element", timing.best_ns},
                           {"batches", timing.batches}});
    }
    return entries;
}

void write_report(const std::string& path, const nlohmann::ordered_json& results) {
    const nlohmann::ordered_json report = {{"machine", machine_description()},
                                           {"compiler", compiler_description()},
                                           {"libper", per_version()},
                                           {"commit", source_commit()},
                                           {"results", results}};
    std::ofstream file(path);
    file << report.dump(1) << '\n';
    if (!file.flush()) throw std::runtime_error(path + ": cannot be written");
}

}  // namespace bench
