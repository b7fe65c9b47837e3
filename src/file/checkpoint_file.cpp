#include "file/checkpoint_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace per {
namespace {

// Like PNG's: no text file begins with these bytes, and a transfer that changes line ends or drops the eighth bit is
// noticed.
constexpr unsigned char magic[8] = {0x89, 'P', 'E', 'R', '\r', '\n', 0x1a, '\n'};

constexpr std::size_t buffer_bytes = std::size_t{1} << 16;

// How the content of a section is stored.
constexpr uint32_t as_it_is = 0;
constexpr uint32_t as_zstd = 1;
constexpr uint32_t in_rows = 2;  // in the file of the rows

}  // namespace

// --------------------------------------------------------------------------------------------------------- writing

CheckpointWriter::CheckpointWriter(Write write, int32_t compression) : write_(std::move(write)), buffer_(buffer_bytes) {
    if (compression > 0) {
        compression_ = std::make_unique<Compression>(max_piece_bytes, compression);
        piece_.resize(max_piece_bytes);
        packed_.resize(compression_->max_packed());
    }
    store(magic, sizeof magic);
    store_number(checkpoint_version);
    store_number(uint32_t{0});
}

CheckpointWriter::CheckpointWriter(const char* path, int32_t compression)
    : CheckpointWriter([this](const void* data, std::size_t size) { file_->write(data, size); }, compression) {
    file_.emplace(path);
}

CheckpointWriter::CheckpointWriter(FolderWriter& folder)
    : CheckpointWriter([this](const void* data, std::size_t size) { folder_->write(data, size); }) {
    folder_ = &folder;
}

void CheckpointWriter::begin(std::string_view section, uint64_t size) {
    begin(section, size, compression_ != nullptr ? as_zstd : as_it_is);
}

void CheckpointWriter::leave_in_rows(std::string_view section, uint64_t size, uint64_t place, uint64_t record_bytes) {
    begin(section, size, in_rows);
    folder_->leave_in_rows(place, record_bytes);
    end();
}

void CheckpointWriter::begin(std::string_view section, uint64_t size, uint32_t kind) {
    checksum_.reset();
    store_number(static_cast<uint32_t>(section.size()));
    store(section.data(), section.size());
    store_number(kind);
    store_number(size);
    cuts_.clear();
    next_cut_ = 0;
    n_of_section_ = 0;
}

void CheckpointWriter::cut_at(std::vector<uint64_t> places) {
    cuts_ = std::move(places);
}

void CheckpointWriter::bytes(const void* data, std::size_t size) {
    const char* bytes = static_cast<const char*>(data);
    for (; next_cut_ < cuts_.size() && cuts_[next_cut_] - n_of_section_ <= size; ++next_cut_) {
        const std::size_t n = static_cast<std::size_t>(cuts_[next_cut_] - n_of_section_);
        store(bytes, n);
        flush();
        folder_->cut();
        bytes += n;
        size -= n;
        n_of_section_ += n;
    }
    n_of_section_ += size;
    if (compression_ == nullptr) return store(bytes, size);
    while (size > 0) {
        const std::size_t n = std::min(size, piece_.size() - n_in_piece_);
        std::memcpy(piece_.data() + n_in_piece_, bytes, n);
        n_in_piece_ += n;
        bytes += n;
        size -= n;
        if (n_in_piece_ == piece_.size()) store_piece();
    }
}

void CheckpointWriter::store_piece() {
    const std::size_t n = compression_->pack(packed_.data(), piece_.data(), n_in_piece_);
    store_number(static_cast<uint32_t>(n));
    store(packed_.data(), n);
    n_in_piece_ = 0;
}

void CheckpointWriter::end() {
    if (n_in_piece_ > 0) store_piece();
    const uint64_t seal = checksum_.value();
    checksum_of_seals_.add(&seal, sizeof seal);
    store_number(seal);
}

void CheckpointWriter::put_off(uint64_t size) {
    flush();
    turns_.push_back({n_stored_, std::move(checksum_)});
    checksum_ = Checksum();
    n_stored_ += size + sizeof(uint64_t);
    file_->go_to(n_stored_);
}

void CheckpointWriter::take_turn(std::size_t t, const void* data, std::size_t size) {
    Turn& turn = turns_[t];
    turn.checksum.add(data, size);
    file_->go_to(turn.place);
    file_->write(data, size);
    turn.place += size;
}

void CheckpointWriter::end_turns() {
    for (std::size_t t = 0; t < turns_.size(); ++t) {
        const uint64_t seal = turns_[t].checksum.value();
        checksum_of_seals_.add(&seal, sizeof seal);
        take_turn(t, &seal, sizeof seal);
    }
    turns_.clear();
    file_->go_to(n_stored_);
}

void CheckpointWriter::write(std::string_view section, const SectionContent& content) {
    begin(section, content.bytes().size(), as_it_is);
    store(content.bytes().data(), content.bytes().size());
    end();
}

void CheckpointWriter::store(const void* data, std::size_t size) {
    checksum_.add(data, size);
    n_stored_ += size;
    if (size > buffer_.size() - n_buffered_) flush();
    if (size >= buffer_.size()) return write_(data, size);
    std::memcpy(buffer_.data() + n_buffered_, data, size);
    n_buffered_ += size;
}

void CheckpointWriter::flush() {
    write_(buffer_.data(), n_buffered_);
    n_buffered_ = 0;
}

void CheckpointWriter::commit() {
    SectionContent content;
    content.number(checksum_of_seals_.value());
    write("end", content);
    flush();
    if (file_) file_->commit();
    if (folder_ != nullptr) folder_->commit();
}

// --------------------------------------------------------------------------------------------------------- reading

CheckpointReader::CheckpointReader(Read read) : read_(std::move(read)), shown_("the stream") {
    check_version();
}

CheckpointReader::CheckpointReader(const char* path, int64_t timeout_ms) : shown_("path " + shown_path(path)) {
    if (is_folder(path)) {
        folder_.emplace(path, timeout_ms);
        read_ = [this](void* data, std::size_t size) { return folder_->read(data, size); };
    } else {
        file_.emplace(path);
        read_ = [this](void* data, std::size_t size) { return file_->read(data, size); };
    }
    check_version();
}

// There is only one format yet. Files of older formats will be recognised here.
void CheckpointReader::check_version() {
    unsigned char found[sizeof magic] = {};
    if (read_(found, sizeof found) != sizeof found || std::memcmp(found, magic, sizeof magic) != 0)
        refuse("it is not a file of libper, as per_replay_save() writes them");
    const uint32_t version = load_number<uint32_t>();
    if (version > checkpoint_version)
        throw Error(PER_ERROR_UNSUPPORTED, "%s has format %u: this libper reads up to %u", shown_.c_str(), version,
                    checkpoint_version);
    if (version == 0) refuse("its format is 0");
    if (load_number<uint32_t>() != 0) refuse("a number in it is out of range");
}

void CheckpointReader::begin_compression() {
    if (!has_zstd()) refuse_compression();
    compression_ = std::make_unique<Compression>(max_piece_bytes, 1);
    piece_.resize(max_piece_bytes);
    packed_.resize(compression_->max_packed());
}

// A corrupt bit can make a section look compressed. Only the checksum detects that, so the whole section is read.
void CheckpointReader::refuse_compression() {
    std::vector<char> packed(max_piece_bytes);
    for (uint64_t n_left = load_number<uint64_t>(); n_left > 0; n_left -= std::min<uint64_t>(n_left, max_piece_bytes)) {
        for (uint32_t n_packed = load_number<uint32_t>(); n_packed > 0;) {
            const uint32_t n = std::min(n_packed, static_cast<uint32_t>(packed.size()));
            load(packed.data(), n);
            n_packed -= n;
        }
    }
    end();
    throw Error(PER_ERROR_UNSUPPORTED, "%s is compressed by zstd: this libper was built without it", shown_.c_str());
}

void CheckpointReader::begin(std::string_view section) {
    begin(section, false);
}

void CheckpointReader::begin(std::string_view section, uint64_t size) {
    begin(section, true);
    if (latest_.n_left != size) refuse("its size is wrong");
    if (is_in_rows_) latest_.n_left = 0;
}

void CheckpointReader::begin_any_size(std::string_view section) {
    begin(section, true);
    if (is_in_rows_) refuse("it is not in the file of the rows");
}

void CheckpointReader::begin(std::string_view section, bool is_array) {
    section_ = &latest_;
    latest_.name = section;
    is_in_rows_ = false;
    latest_.checksum.reset();
    const bool has_size = load_number<uint32_t>() == section.size();
    std::string name(section.size(), '\0');
    if (has_size) load(name.data(), name.size());
    if (name != section) refuse("its header is damaged, or is that of another section");
    const uint32_t kind = load_number<uint32_t>();
    if (is_array && !has_begun_arrays_) {
        has_begun_arrays_ = true;
        if (kind == as_zstd && !folder_) begin_compression();
    }
    is_compressed_ = is_array && compression_ != nullptr;
    is_in_rows_ = is_array && kind == in_rows && folder_with_rows() != nullptr;
    if (is_in_rows_ && ++n_arrays_in_rows_ > folder_->rows()->arrays.size()) refuse("it is in no file");
    if (!is_in_rows_ && kind != (is_compressed_ ? as_zstd : as_it_is)) refuse("a number in it is out of range");
    latest_.n_left = load_number<uint64_t>();
}

void CheckpointReader::put_off() {
    latest_.place = file_->place();
    if (!file_->skip(latest_.n_left + sizeof(uint64_t))) refuse("it ends early");
    put_off_.push_back(std::exchange(latest_, {}));
}

RowReader& CheckpointReader::row_reader() {
    if (row_reader_ == nullptr) row_reader_ = std::make_unique<RowReader>(folder_->folder(), *folder_->rows());
    return *row_reader_;
}

void CheckpointReader::require(uint64_t size) const {
    if (size > section_->n_left) refuse("it is too short");
}

void CheckpointReader::bytes(void* data, std::size_t size) {
    require(size);
    if (is_compressed_) return unpack(static_cast<char*>(data), size);
    section_->n_left -= size;
    load(data, size);
}

// A piece that is requested as a whole is unpacked directly to `data`.
void CheckpointReader::unpack(char* data, std::size_t size) {
    while (size > 0) {
        if (n_left_of_piece_ == 0) {
            n_left_of_piece_ = static_cast<std::size_t>(std::min<uint64_t>(section_->n_left, piece_.size()));
            const bool is_wanted_whole = n_left_of_piece_ <= size;
            load_piece(is_wanted_whole ? data : piece_.data() + piece_.size() - n_left_of_piece_, n_left_of_piece_);
            if (is_wanted_whole) {
                data += n_left_of_piece_;
                size -= n_left_of_piece_;
                section_->n_left -= n_left_of_piece_;
                n_left_of_piece_ = 0;
                continue;
            }
        }
        const std::size_t n = std::min(size, n_left_of_piece_);
        std::memcpy(data, piece_.data() + piece_.size() - n_left_of_piece_, n);
        n_left_of_piece_ -= n;
        section_->n_left -= n;
        data += n;
        size -= n;
    }
}

void CheckpointReader::load_piece(void* piece_out, std::size_t size) {
    const uint32_t n = load_number<uint32_t>();
    if (n > packed_.size()) refuse("a number in it is out of range");
    load(packed_.data(), n);
    if (!compression_->unpack(piece_out, size, packed_.data(), n)) refuse("it cannot be decompressed");
}

void CheckpointReader::load(void* data, std::size_t size) {
    const std::size_t n = section_->place ? file_->read_at(*section_->place, data, size) : read_(data, size);
    if (n != size) refuse("it ends early");
    if (section_->place) *section_->place += n;
    section_->checksum.add(data, size);
}

void CheckpointReader::end() {
    if (section_->n_left != 0) refuse("it is too long");
    const uint64_t expected = section_->checksum.value();
    checksum_of_seals_.add(&expected, sizeof expected);
    if (load_number<uint64_t>() != expected) refuse("the checksum is wrong");
}

void CheckpointReader::finish() {
    const uint64_t expected = checksum_of_seals_.value();
    begin("end");
    if (number<uint64_t>() != expected) refuse("sections of another file are among those before it");
    end();
    section_->name.clear();
    char more;
    if ((file_ || folder_) && read_(&more, 1) != 0) refuse("it goes on after its end");
}

void CheckpointReader::refuse_option(const char* reason) const {
    throw Error(PER_ERROR_UNSUPPORTED, "%s cannot be loaded: %s", shown_.c_str(), reason);
}

void CheckpointReader::refuse(const char* reason) const {
    if (section_->name.empty()) throw Error(PER_ERROR_CORRUPT_FILE, "%s is damaged: %s", shown_.c_str(), reason);
    throw Error(PER_ERROR_CORRUPT_FILE, "%s is damaged in the section '%s': %s", shown_.c_str(), section_->name.c_str(),
                reason);
}

}  // namespace per
