// The functions of per.h that draw from several buffers at once.
#include "core/mixture.h"

#include <array>
#include <cstddef>
#include <cstdint>

#include "api/replay_handle.h"
#include "api/struct_size.h"
#include "backend/replay_options.h"
#include "base/arguments.h"
#include "rules/limits.h"

using namespace per;

namespace {

// The buffers of the sources, for a span of n_sources.
std::array<Replay*, max_sources> replays_of(const per_source* sources, int64_t n_sources, void* stream) {
    check_range("n_sources", n_sources, 1, max_sources);
    require_array("sources", sources);
    std::array<Replay*, max_sources> replays;
    for (std::size_t k = 0; k < static_cast<std::size_t>(n_sources); ++k) {
        if (sources[k].replay == nullptr) throw Error(PER_ERROR_INVALID_ARGUMENT, "sources[%zu].replay is NULL", k);
        replays[k] = &object_of(sources[k].replay, stream);
    }
    return replays;
}

}  // namespace

per_status per_mixture_sample(per_source* sources, int64_t n_sources, const per_sample_options* options,
                              int64_t batch_size, const per_batch* batch, int32_t* sources_out, void* stream) {
    return guarded([&] {
        const std::array<Replay*, max_sources> replays = replays_of(sources, n_sources, stream);
        const std::size_t n = static_cast<std::size_t>(n_sources);
        const per_sample_options given = read_struct_or(default_sample_options, "options", options);
        const per_batch known = read_struct("batch", batch);
        check_aligned("sources_out", sources_out);
        std::array<int64_t, max_sources> carries;
        Mixture({sources, n}, {replays.data(), n})
            .sample(given, batch_size, known, sources_out, {carries.data(), n}, stream);
        for (std::size_t k = 0; k < n; ++k) sources[k].carry = carries[k];
    });
}

per_status per_mixture_update_priorities(const per_source* sources, int64_t n_sources, const per_priorities* priorities,
                                         const int32_t* source_of, void* stream) {
    return guarded([&] {
        const std::array<Replay*, max_sources> replays = replays_of(sources, n_sources, stream);
        const std::size_t n = static_cast<std::size_t>(n_sources);
        const per_priorities known = read_struct("priorities", priorities);
        check_aligned("source_of", source_of);
        Mixture({sources, n}, {replays.data(), n}).update(known, source_of, stream);
    });
}
