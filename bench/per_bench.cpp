/*
 * per_bench - compares the cost of libper's calls with plain structures and with the machine's floor.
 *
 * README.md describes the method and the cases.
 */
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/memory/prefetch.h"
#include "measure.h"
#include "replay_cases.h"
#include "report.h"
#include "tree_cases.h"
#include "variant.h"

namespace bench {
namespace {

struct Options {
    std::vector<std::string> cases;
    std::vector<int64_t> capacities{1'000'000};
    std::vector<int64_t> batches{256};
    std::vector<std::string> isas{"auto"};
    double seconds = 3;
    Caches caches = Caches::neutral;
    std::string json_path;
    bool check = false;
};

constexpr const char* isa_variable = "PER_ISA";
constexpr int checks = 3;

/* True if a run of added steps fits; a batch of half the capacity is unrealistic. Reports a skipped size. */
bool fits(const std::string& case_name, int64_t capacity, int64_t batch) {
    if (batch <= capacity / 2) return true;
    std::printf("%s at capacity %lld: a batch of %lld is more than half of it, and left out\n\n", case_name.c_str(),
                static_cast<long long>(capacity), static_cast<long long>(batch));
    return false;
}

void check_or_measure(const Options& options, const std::string& isa, const std::string& case_name, int64_t capacity,
                      int64_t batch, std::vector<Variant> variants, nlohmann::ordered_json& results) {
    const std::string place =
        case_name + " at capacity " + std::to_string(capacity) + ", batch " + std::to_string(batch);
    try {
        for (int i = 0; options.check && i < checks; ++i) {
            for (const Variant& variant : variants) variant.verify();
        }
        const Measurement measurement{
            case_name, isa, capacity, batch, options.caches, measure(variants, batch, options.seconds, options.caches)};
        if (options.check) {
            std::printf("%s (%s): right\n", place.c_str(), isa.c_str());
            return;
        }
        print(measurement);
        for (auto& entry : entries_of(measurement)) results.push_back(std::move(entry));
    } catch (const std::exception& error) {
        throw std::runtime_error(place + ": " + error.what());
    }
}

void run_tree_cases(const Options& options, const std::string& isa, int64_t capacity, nlohmann::ordered_json& results) {
    TreeStage stage(capacity);
    for (const std::string& name : options.cases) {
        const std::vector<std::string>& names = tree_case_names();
        if (std::find(names.begin(), names.end(), name) == names.end()) continue;
        for (const int64_t batch : options.batches) {
            if (!fits(name, capacity, batch)) continue;
            check_or_measure(options, isa, name, capacity, batch, tree_case(name, stage, batch), results);
        }
    }
}

void run_replay_case(const Options& options, const std::string& isa, const std::string& name,
                     nlohmann::ordered_json& results) {
    std::set<int64_t> capacities;
    for (const int64_t capacity : options.capacities) capacities.insert(replay_capacity(name, capacity));
    for (const int64_t capacity : capacities) {
        ReplayStage stage(name, capacity);
        for (const int64_t batch : options.batches) {
            if (!fits(name, capacity, batch)) continue;
            check_or_measure(options, isa, name, capacity, batch, replay_case(name, stage, batch), results);
        }
    }
}

nlohmann::ordered_json run(const Options& options, const std::string& isa) {
    nlohmann::ordered_json results = nlohmann::ordered_json::array();
    for (const int64_t capacity : options.capacities) run_tree_cases(options, isa, capacity, results);
    for (const std::string& name : options.cases) {
        const std::vector<std::string>& names = replay_case_names();
        if (std::find(names.begin(), names.end(), name) != names.end()) run_replay_case(options, isa, name, results);
    }
    return results;
}

/* libper chooses its kernels once per process: each isa runs in a child process, which sends its results back. */
nlohmann::ordered_json run_in_child(const Options& options, const std::string& isa) {
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("no pipe");
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child < 0) throw std::runtime_error("no child process");
    if (child == 0) {
        close(ends[0]);
        try {
            if (isa != "auto") setenv(isa_variable, isa.c_str(), 1);
            const std::string text = run(options, isa).dump();
            FILE* const out = fdopen(ends[1], "w");
            const bool sent = out != nullptr && std::fwrite(text.data(), 1, text.size(), out) == text.size();
            std::fflush(nullptr);
            _exit(sent ? 0 : 1);
        } catch (const std::exception& error) {
            std::fflush(stdout);
            std::fprintf(stderr, "per_bench: isa %s: %s\n", isa.c_str(), error.what());
            _exit(1);
        }
    }
    close(ends[1]);
    std::string text;
    char part[4096];
    for (ssize_t n = 0; (n = read(ends[0], part, sizeof part)) > 0;) text.append(part, static_cast<size_t>(n));
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) throw std::runtime_error("isa " + isa + " was not measured");
    return nlohmann::ordered_json::parse(text);
}

/* "1e6" is a number of leaves too. */
std::vector<int64_t> whole_numbers(const std::vector<double>& numbers, const char* option) {
    std::vector<int64_t> result;
    for (const double number : numbers) {
        const auto whole = static_cast<int64_t>(number);
        if (static_cast<double>(whole) != number || whole < 1) {
            throw CLI::ValidationError(option, "must be whole numbers of at least 1");
        }
        result.push_back(whole);
    }
    return result;
}

Options parse(int argc, char** argv) {
    Options options;
    std::vector<double> capacities;
    std::vector<double> batches;
    bool sweep = false;

    std::vector<std::string> names = tree_case_names();
    names.insert(names.end(), replay_case_names().begin(), replay_case_names().end());
    CLI::App app("What libper's calls cost, beside plain structures and the machine's floor.");
    app.add_option("--case", options.cases, "what to measure; all of them if not given")->check(CLI::IsMember(names));
    app.add_option("--capacity", capacities, "leaves or rows, such as 1e6 (the default)");
    app.add_option("--batch", batches, "elements of a batch; 256 if not given");
    app.add_option("--isa", options.isas, "kernels that libper is made to use (PER_ISA), each in a process of its own")
        ->check(CLI::IsMember({"auto", "baseline", "v3", "v4"}));
    app.add_option("--seconds", options.seconds, "for each case, capacity and batch")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    app.add_option("--json", options.json_path, "file to write the results to");
    app.add_flag("--sweep", sweep, "capacities 1e3 to 1e8 and batches 32, 256, 1024, 4096, where none are given");
    app.add_flag_callback(
        "--cold", [&] { options.caches = Caches::cold; }, "nothing of a variant's in the caches before each batch");
    app.add_flag("--check", options.check, "compare what every case does with naive models, at small capacities");
    try {
        app.parse(argc, argv);
        if (sweep) {
            options.capacities = {1'000, 10'000, 100'000, 1'000'000, 10'000'000, 100'000'000};
            options.batches = {32, 256, 1024, 4096};
        }
        if (options.check) {
            options.capacities = {603, 9001};
            options.batches = {1, 32, 257};
            options.seconds = 0;
        }
        if (!capacities.empty()) options.capacities = whole_numbers(capacities, "--capacity");
        if (!batches.empty()) options.batches = whole_numbers(batches, "--batch");
    } catch (const CLI::ParseError& error) {
        std::exit(app.exit(error));
    }
    if (options.cases.empty()) options.cases = names;
    return options;
}

int main_of(int argc, char** argv) {
    per::cpu::choose_fetch_policy();
    const Options options = parse(argc, argv);
    if (!options.check) print_heading(options.caches);
    nlohmann::ordered_json results = nlohmann::ordered_json::array();
    for (const std::string& isa : options.isas) {
        for (auto& entry : run_in_child(options, isa)) results.push_back(std::move(entry));
    }
    if (!options.json_path.empty()) write_report(options.json_path, results);
    return 0;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
    try {
        return bench::main_of(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "per_bench: %s\n", error.what());
        return 1;
    }
}
