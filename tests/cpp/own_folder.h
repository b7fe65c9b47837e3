// Folders for the files of a test.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <stdexcept>
#include <string>

namespace per::test {

// A new empty folder, removed with this object.
class OwnFolder {
 public:
    OwnFolder() : path_((std::filesystem::temp_directory_path() / "per_test_XXXXXX").string()) {
        if (mkdtemp(path_.data()) == nullptr) throw std::runtime_error("no directory " + path_);
    }
    ~OwnFolder() { std::filesystem::remove_all(path_); }
    OwnFolder(const OwnFolder&) = delete;
    OwnFolder& operator=(const OwnFolder&) = delete;

    const char* path() const { return path_.c_str(); }

 private:
    std::string path_;
};

inline std::string contents(const std::filesystem::path& file) {
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
}

inline void write_file(const std::filesystem::path& file, const std::string& bytes) {
    std::ofstream(file, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// A test with a temporary folder.
class FolderTest : public ::testing::Test {
    const OwnFolder own_;

 protected:
    std::string path(const std::string& name = "buffer.per") const { return (folder_ / name).string(); }

    std::set<std::string> names() const {
        std::set<std::string> names;
        for (const auto& entry : std::filesystem::directory_iterator(folder_))
            names.insert(entry.path().filename().string());
        return names;
    }

    const std::filesystem::path folder_ = own_.path();
};

}  // namespace per::test
