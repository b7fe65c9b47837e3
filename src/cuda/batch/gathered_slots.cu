// Slots of a loader whose device copies the frames of large fields directly from the rows of a buffer in host memory.
#include <cinttypes>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "backend/batch.h"
#include "backend/create.h"
#include "backend/frame_gather.h"
#include "base/error.h"
#include "cuda/batch/copy_frames.h"
#include "cuda/runtime/device_slots.h"
#include "cuda/runtime/dialect.h"
#include "system/process_number.h"

namespace per::cuda {
namespace {

// An array of a batch, and the places of its frames.
struct PlacedFrames {
    const std::byte* const* places;  // [n_frames], each NULL for zeros
    std::byte* out;
    int64_t bytes;  // of a frame
    int64_t n_frames;
    int32_t piece_bytes;
    uint32_t n_pieces;  // of a frame
    uint32_t n_chunks;  // of a frame
    Divisor by_chunks = Divisor(1);
};

// The arrays of one launch.
struct PlacedArrays {
    PlacedFrames arrays[max_copies];
    int32_t n = 0;
    int64_t n_chunks = 0;
};

// A warp copies a chunk of a frame, with a load in flight for each of its pieces to hide the latency of host memory.
__global__ void __launch_bounds__(n_threads, 1) gather_kernel(const __grid_constant__ PlacedArrays placed) {
    const GridSpan span = warp_span();
    for (int64_t at = span.first; at < placed.n_chunks; at += span.step) {
        int64_t chunk = at;
        int a = 0;
        for (; a < placed.n - 1; ++a) {
            const int64_t n_chunks = placed.arrays[a].n_frames * placed.arrays[a].n_chunks;
            if (chunk < n_chunks) break;
            chunk -= n_chunks;
        }
        const PlacedFrames& array = placed.arrays[a];
        const int64_t frame = array.by_chunks.quotient(chunk);
        const FrameMove move = {array.places[frame], array.out + frame * array.bytes};
        copy_chunk_of_frame(array, move, static_cast<uint32_t>(chunk - frame * array.n_chunks));
    }
}

// An array of a batch that the device gathers.
struct GatheredArray {
    std::size_t out;      // its offset in the slot
    std::size_t places;   // the offset of its places
    PlacedFrames frames;  // without places and out, which depend on the slot
};

struct Extent {
    std::size_t first;
    std::size_t bytes;
};

// Calls visit(field, is_next) for each array of gathered frames in a batch, in the batch's order.
template <class Visit>
void for_each_gathered(const Fields& fields, const BatchShape& shape, const FrameArrays& rows, const Visit& visit) {
    for (int64_t i = 0; i < fields.count(); ++i) {
        const auto field = static_cast<std::size_t>(i);
        if (field >= rows.fields.size() || rows.fields[field].first == nullptr) continue;
        visit(i, false);
        if (fields[i].is_observation() && shape.steps == 0) visit(i, true);
    }
}

int64_t count_frames(const Field& field, const BatchShape& shape) {
    return shape.batch_size * length_of(field, shape) * field.stack;
}

std::size_t bytes_of_places(const Fields& fields, const BatchShape& shape, const FrameArrays& rows) {
    BatchArrays::n_bytes(fields, shape);  // throws before the number of frames could overflow
    std::size_t bytes = 0;
    for_each_gathered(fields, shape, rows, [&](int64_t i, bool) {
        bytes += static_cast<std::size_t>(count_frames(fields[i], shape)) * sizeof(std::byte*);
    });
    return whole_rows(bytes);
}

// A batch is drawn into the slot's pinned memory as in CopiedSlots, except for the gathered arrays. For these the
// drawing thread writes the addresses of the frames, their places, behind the batch. Then everything but the gathered
// arrays is copied to the device, and a kernel gathers these. All of this is queued while the buffer is locked, and the
// event `sent` is recorded behind it. Later calls may overwrite rows. If one overwrites a row whose frames the device
// may still have to read, it waits for `sent` before; see RowReads.
//
// If a CUDA call fails meanwhile, the buffer is still locked, so the host gathers the frames into pinned memory. Then
// the slot is one of CopiedSlots: send() copies all of it to the device, or hand_out() does if that fails.
class GatheredSlots final : public CopiedSlots, public FrameGather {
 public:
    GatheredSlots(int device, const Fields& fields, const BatchShape& shape, std::size_t n_slots,
                  const FrameArrays& rows)
        : CopiedSlots(device, fields, shape, n_slots, bytes_of_places(fields, shape, rows)),
          rows_(rows),
          index_(static_cast<std::size_t>(fields.count()), -1),
          next_index_(index_),
          numbers_(n_slots, 0) {
        load_kernels(gather_kernel);
        if (!reaches_pinned_pages())
            throw Error(PER_ERROR_UNSUPPORTED,
                        "gather_on_device is 1: CUDA device %d does not reach pinned memory by the host's addresses",
                        device);
        const per_batch& first = copies_[0].from.batch();
        std::size_t places = bytes_of_slot(fields, shape), copied = 0;
        for_each_gathered(fields, shape, rows, [&](int64_t i, bool is_next) {
            (is_next ? next_index_ : index_)[static_cast<std::size_t>(i)] = static_cast<int64_t>(arrays_.size());
            const void* const array = is_next ? first.next_fields[i] : first.fields[i];
            const auto out = static_cast<std::size_t>(static_cast<const std::byte*>(array) - host(0));
            const int64_t n_frames = count_frames(fields[i], shape);
            const auto [piece_bytes, n_pieces, n_chunks] = pieces_of(fields[i].bytes, memory(0) + out);
            if (n_pieces > UINT32_MAX)
                throw Error(PER_ERROR_UNSUPPORTED,
                            "gather_on_device is 1: a frame of %s has %" PRId64
                            " pieces of %d bytes: allowed are 2^32 - 1",
                            fields[i].name.c_str(), n_pieces, static_cast<int>(piece_bytes));
            arrays_.push_back({out,
                               places,
                               {nullptr, nullptr, fields[i].bytes, n_frames, piece_bytes,
                                static_cast<uint32_t>(n_pieces), static_cast<uint32_t>(n_chunks), Divisor(n_chunks)}});
            places += static_cast<std::size_t>(n_frames) * sizeof(std::byte*);
            if (out > copied) copied_.push_back({copied, out - copied});
            copied = out + static_cast<std::size_t>(n_frames * fields[i].bytes);
            copied = (copied + BatchArrays::alignment - 1) / BatchArrays::alignment * BatchArrays::alignment;
        });
        copied_.push_back({copied, places - copied});
    }

    // Waits until the device has stopped reading rows.
    ~GatheredSlots() override {
        if (process_number() == process_ && !pinned_.empty()) wait_for(stream_.get(), std::nothrow);
    }

    FrameGather* gather() override { return this; }

    OpenSlot open(std::size_t slot) override {
        open_ = slot;
        return {CopiedSlots::open(slot).batch, nullptr, nullptr, this};
    }

    void send(std::size_t slot) override {
        if (!copies_[slot].is_sent) CopiedSlots::send(slot);
    }

    void begin() override {
        const CurrentDevice current(device_);
        for (const std::vector<FrameArray>& arrays : {rows_.fields, rows_.next_fields})
            for (const FrameArray& array : arrays)
                if (array.first != nullptr)
                    pinned_.push_back(pin_pages(array.first, array.bytes, "gather_on_device is 1: pinning rows"));
    }

    void end() override {
        const CurrentDevice current(device_);
        try {
            for (std::size_t slot = 0; slot < slots_.size(); ++slot) wait_until_sent(slot);
        } catch (const Error&) {
            wait_for(stream_.get());
        }
        pinned_.clear();
    }

    uint64_t number() const override { return n_queued_ + 1; }

    const std::byte** places(int64_t field, bool is_next) const override {
        const int64_t index = (is_next ? next_index_ : index_)[static_cast<std::size_t>(field)];
        return index < 0 ? nullptr : places_of(open_, arrays_[static_cast<std::size_t>(index)]);
    }

    void queue() noexcept override {
        ++n_queued_;
        try {
            const CurrentDevice current(device_);
            await_release(open_);
            for (const Extent& extent : copied_)
                check(cudaMemcpyAsync(memory(open_) + extent.first, host(open_) + extent.first, extent.bytes,
                                      cudaMemcpyHostToDevice, stream_.get()),
                      "copying a batch");
            queue_kernels(open_);
            record_sent(open_);
            copies_[open_].is_sent = true;
            numbers_[open_] = n_queued_;
        } catch (const Error&) {
            wait_for(stream_.get(), std::nothrow);  // queued work reads the rows
            gather_on_host(open_);
        }
    }

    // Gathers run in order, so this waits for the latest gather in numbers_ that is not later than `number`. A gather
    // that is not in numbers_ needs no wait: it ended before its slot was reopened, or the host made it, or it was
    // never queued. In a forked child nothing waits: there the device reads the rows of the parent.
    void await(uint64_t number) override {
        if (process_number() != process_) return;
        std::size_t latest = 0;
        for (std::size_t slot = 0; slot < numbers_.size(); ++slot)
            if (numbers_[slot] <= number && (numbers_[latest] > number || numbers_[slot] > numbers_[latest]))
                latest = slot;
        if (numbers_[latest] > number) return;
        const CurrentDevice current(device_);
        wait_until_sent(latest);
    }

 private:
    const std::byte** places_of(std::size_t slot, const GatheredArray& array) const {
        return reinterpret_cast<const std::byte**>(host(slot) + array.places);
    }

    void queue_kernels(std::size_t slot) const {
        for (std::size_t i = 0; i < arrays_.size();) {
            PlacedArrays placed;
            for (; i < arrays_.size() && placed.n < max_copies; ++i) {
                PlacedFrames& frames = placed.arrays[placed.n++] = arrays_[i].frames;
                frames.places = reinterpret_cast<const std::byte* const*>(memory(slot) + arrays_[i].places);
                frames.out = memory(slot) + arrays_[i].out;
                placed.n_chunks += frames.n_frames * frames.n_chunks;
            }
            launch(stream_.get(), blocks_for(placed.n_chunks, n_warps), n_threads, gather_kernel, placed);
        }
    }

    void gather_on_host(std::size_t slot) const {
        for (const GatheredArray& array : arrays_) {
            const std::byte* const* const places = places_of(slot, array);
            const auto bytes = static_cast<std::size_t>(array.frames.bytes);
            std::byte* out = host(slot) + array.out;
            for (int64_t i = 0; i < array.frames.n_frames; ++i, out += bytes) {
                if (places[i] != nullptr)
                    std::memcpy(out, places[i], bytes);
                else
                    std::memset(out, 0, bytes);
            }
        }
    }

    const FrameArrays rows_;
    std::vector<PinnedPages> pinned_;
    std::vector<GatheredArray> arrays_;
    std::vector<int64_t> index_;  // by field, the index in arrays_; -1: it is not gathered
    std::vector<int64_t> next_index_;
    std::vector<Extent> copied_;  // of each slot, places included
    std::size_t open_ = 0;        // the slot that was opened last
    uint64_t n_queued_ = 0;
    std::vector<uint64_t> numbers_;  // by slot: the number of its last gather
};

}  // namespace

std::unique_ptr<LoaderSlots> create_gathered_slots(int32_t device_index, const Fields& fields, const BatchShape& shape,
                                                   std::size_t n_slots, const FrameArrays& rows) {
    require_device(device_index);
    const CurrentDevice current(device_index);
    const ApartFromCaptures apart;  // it loads a kernel
    return std::make_unique<GatheredSlots>(device_index, fields, shape, n_slots, rows);
}

}  // namespace per::cuda
