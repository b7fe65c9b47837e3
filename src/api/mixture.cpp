// The functions of per.h that draw from several buffers at once.
#include "core/mixture.h"

#include <algorithm>
#include <string>
#include <vector>

#include "api/replay_handle.h"
#include "api/struct_size.h"
#include "backend/replay_options.h"
#include "base/arguments.h"
#include "rules/limits.h"

using namespace per;

namespace {

std::vector<Replay*> replays_of(const per_source* sources, int64_t n_sources, void* stream) {
    check_range("n_sources", n_sources, 1, max_sources);
    require_array("sources", sources);
    std::vector<Replay*> replays;
    for (int64_t k = 0; k < n_sources; ++k) {
        require_pointer(("sources[" + std::to_string(k) + "].replay").c_str(), sources[k].replay);
        replays.push_back(&object_of(sources[k].replay, stream));
    }
    return replays;
}

}  // namespace

per_status per_mixture_sample(per_source* sources, int64_t n_sources, const per_sample_options* options,
                              int64_t batch_size, const per_batch* batch, int32_t* sources_out, void* stream) {
    return guarded([&] {
        const std::vector<Replay*> replays = replays_of(sources, n_sources, stream);
        const per_sample_options given = read_struct_or(default_sample_options, "options", options);
        const per_batch known = read_struct("batch", batch);
        check_aligned("sources_out", sources_out);
        std::vector<int64_t> carries(replays.size());
        Mixture({sources, replays.size()}, replays).sample(given, batch_size, known, sources_out, carries, stream);
        for (std::size_t k = 0; k < carries.size(); ++k) sources[k].carry = carries[k];
    });
}

per_status per_mixture_update_priorities(const per_source* sources, int64_t n_sources, const per_priorities* priorities,
                                         const int32_t* source_of, void* stream) {
    return guarded([&] {
        const std::vector<Replay*> replays = replays_of(sources, n_sources, stream);
        const per_priorities known = read_struct("priorities", priorities);
        check_aligned("source_of", source_of);
        Mixture({sources, replays.size()}, replays).update(known, source_of, stream);
    });
}
