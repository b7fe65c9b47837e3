#include "api/given_fields.h"

#include <cinttypes>
#include <string>

#include "api/struct_size.h"

namespace per {

per_field read_field(const char* name, const per_field* fields, int64_t field_size, int64_t i) {
    const uint64_t size = static_cast<uint64_t>(field_size);  // a negative one is larger than any may be
    if (!is_struct_size<per_field>(size))
        throw Error(PER_ERROR_INVALID_ARGUMENT, "field_size is %" PRId64 ": must be %zu, sizeof(per_field)", field_size,
                    sizeof(per_field));
    return known_struct<per_field>(name, reinterpret_cast<const unsigned char*>(fields) + i * field_size, size);
}

std::vector<per_field> read_fields(const per_field* fields, int64_t n_fields, int64_t field_size) {
    std::vector<per_field> read;
    if (fields == nullptr || n_fields > max_n_fields) return read;
    for (int64_t i = 0; i < n_fields; ++i)
        read.push_back(read_field(("fields[" + std::to_string(i) + "]").c_str(), fields, field_size, i));
    return read;
}

GivenOptions::GivenOptions(const per_replay_options* given) : options(read_struct("options", given)) {
    fields = read_fields(options.fields, options.n_fields, options.field_size);
    if (fields.empty()) return;
    options.fields = fields.data();
    options.field_size = sizeof(per_field);
}

}  // namespace per
