#pragma once

#include <cstddef>

#include "file/row_file.h"

namespace per::test {

// The file of a buffer that starts without rows.
class NewRowFile : public RowFile {
 public:
    NewRowFile(const char* folder, std::size_t bytes, bool is_preallocated) : RowFile(folder, bytes) {
        create(is_preallocated);
    }
};

}  // namespace per::test
