// Copies the frames of rows into the arrays of a batch, in pieces of up to 16 bytes.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "cuda/tree/sum_tree.h"
#include "rules/divisor.h"
#include "rules/row_frames.h"
#include "rules/sequence.h"

namespace per::cuda {

// Where the frames of a drawn sequence lie.
struct SequenceRow {
    int64_t env;
    int64_t slot;           // of the start; -1: no sequence
    int64_t frames_before;  // older frames of its stack that belong to its episode
    int64_t n_steps;        // see SequenceSpan
    int64_t n_transitions;
    int32_t n_step;  // of its returns
    bool repeats_last;
};

__device__ __forceinline__ void place_nothing(GatherRow& row) {
    row = {0, -1, -1, 0, 0, false};
}
__device__ __forceinline__ void place_nothing(SequenceRow& row) {
    row = {0, -1, 0, 0, 0, 0, false};
}

// An array of a batch that frames are copied to, of shape [rows, length, stack, bytes].
struct FrameCopy {
    const std::byte* frames;
    const std::byte* next_frames;  // with store_next_observation, of an observation; else NULL
    std::byte* out;
    int64_t bytes;   // of a frame
    int64_t length;  // entries of a row: of a sequence, or 1
    int32_t stack;
    int32_t piece_bytes;  // 16, 8, 4, 2 or 1: divides the bytes of a frame, and all addresses
    uint32_t n_pieces;    // of a frame; all frames of a row have fewer than 2^32
    uint32_t n_chunks;    // of a frame
    uint32_t end_piece;   // of a row: the pieces of this array, and of those before it
    bool is_observation;
    bool is_next;
    bool pads_with_zeros;
};

inline constexpr int max_copies = 16;

// The bytes of the largest pieces in which frames can be copied to or from an array.
inline int32_t piece_bytes_of(int64_t frame_bytes, const void* array) {
    const uint64_t both = static_cast<uint64_t>(frame_bytes) | reinterpret_cast<uintptr_t>(array);
    return int32_t{1} << std::min(std::countr_zero(both), 4);
}

// The arrays of one launch.
struct FrameCopies {
    FrameCopy copies[max_copies];
    int32_t n = 0;
    int64_t n_pieces = 0;  // of a row
    int64_t n_chunks = 0;  // of a row
    Divisor by_chunks = Divisor(1);
};

// The frame that is `age` steps older than that of the entry; NULL if it is all zero.
__device__ __forceinline__ const std::byte* find_frame(const FrameCopy& copy, const WindowRules& rules,
                                                       const GatherRow& row, uint32_t, uint32_t age) {
    if (row.slot < 0 || (copy.pads_with_zeros && is_padding(row, copy.is_next, age))) return nullptr;
    const FramePlace place = frame_place(rules.ring, row, copy.is_next, age);
    return (place.is_next_array ? copy.next_frames : copy.frames) + place.slot * copy.bytes;
}

__device__ __forceinline__ const std::byte* find_frame(const FrameCopy& copy, const WindowRules& rules,
                                                       const SequenceRow& row, uint32_t entry_of_row, uint32_t age_of) {
    int64_t entry = entry_of_row;
    int64_t age = age_of;
    const SequenceSpan span = {row.n_steps, row.n_transitions, 0, row.repeats_last};
    const bool is_there = copy.is_observation ? has_observation(span, entry, row.n_step) : entry < row.n_steps;
    if (row.slot < 0 || !is_there) return nullptr;
    if (copy.is_observation && entry == row.n_transitions) {
        // The observation after the last transition. In these two cases it is not that of the following row.
        if (row.repeats_last) {
            --entry;
        } else if (rules.store_next_observation) {
            --entry;
            const int64_t last_slot = rules.ring.moved(row.env, row.slot, entry);
            if (age == 0) return copy.next_frames + last_slot * copy.bytes;
            --age;
        }
    }
    const int64_t reach = row.frames_before + entry;
    if (age > reach) {
        if (copy.pads_with_zeros) return nullptr;
        age = reach;
    }
    return copy.frames + rules.ring.moved(row.env, row.slot, entry - age) * copy.bytes;
}

// ---- pieces

// 16 bytes at an address that is a multiple of 16.
struct alignas(16) Piece {
    uint64_t words[2];

    __device__ __forceinline__ bool operator==(const Piece& other) const {
        return words[0] == other.words[0] && words[1] == other.words[1];
    }
};

template <class Word>
__device__ __forceinline__ uint64_t read_word(const std::byte* from) {
    return *reinterpret_cast<const Word*>(from);
}
template <class Word>
__device__ __forceinline__ void write_word(std::byte* to, uint64_t word) {
    *reinterpret_cast<Word*>(to) = static_cast<Word>(word);
}

// The order of the tests is that of the likelihood. They are not for equality, which would make them a switch.
__device__ __forceinline__ Piece read_piece(const std::byte* from, int32_t bytes) {
    if (bytes >= 16) return *reinterpret_cast<const Piece*>(from);
    return {{bytes >= 8   ? read_word<uint64_t>(from)
             : bytes >= 4 ? read_word<uint32_t>(from)
             : bytes >= 2 ? read_word<uint16_t>(from)
                          : read_word<uint8_t>(from),
             0}};
}

__device__ __forceinline__ void write_piece(std::byte* to, int32_t bytes, const Piece& piece) {
    if (bytes >= 16)
        *reinterpret_cast<Piece*>(to) = piece;
    else if (bytes >= 8)
        write_word<uint64_t>(to, piece.words[0]);
    else if (bytes >= 4)
        write_word<uint32_t>(to, piece.words[0]);
    else if (bytes >= 2)
        write_word<uint16_t>(to, piece.words[0]);
    else
        write_word<uint8_t>(to, piece.words[0]);
}

// Where a frame is copied from, and its place in the batch. The frames of a row of the batch are numbered entry by
// entry, and in each entry from the oldest on.
struct FrameMove {
    const std::byte* from;  // NULL: zeros
    std::byte* to;
};

template <class Row>
__device__ __forceinline__ FrameMove move_of_frame(const FrameCopy& copy, const WindowRules& rules, const Row& row,
                                                   int64_t i, uint32_t frame) {
    const uint32_t stack = static_cast<uint32_t>(copy.stack);
    const uint32_t entry = stack == 1 ? frame : frame / stack;
    const uint32_t age = stack - 1 - (frame - entry * stack);
    return {find_frame(copy, rules, row, entry, age), copy.out + (i * copy.length * copy.stack + frame) * copy.bytes};
}

__device__ __forceinline__ uint32_t frames_of_row(const FrameCopy& copy) {
    return static_cast<uint32_t>(copy.length) * static_cast<uint32_t>(copy.stack);
}

// ---- rows of few pieces: a warp copies a whole row, each thread some pieces of any array

inline constexpr uint32_t max_pieces_of_small_row = 128;

// The array with a piece of a row. `piece` becomes its number in the array.
__device__ __forceinline__ const FrameCopy& array_of_piece(const FrameCopies& copies, uint32_t& piece) {
    int c = 0;
    uint32_t first = 0;
    for (; piece >= copies.copies[c].end_piece; ++c) first = copies.copies[c].end_piece;
    piece -= first;
    return copies.copies[c];
}

template <class Row>
__device__ __forceinline__ void copy_small_row(const FrameCopies& copies, const WindowRules& rules, const Row& row,
                                               int64_t i) {
    constexpr int n_each = max_pieces_of_small_row / warp_size;
    Piece pieces[n_each];
    std::byte* to[n_each];
    int32_t bytes[n_each];
    // All loads are issued before the first result is used.
    for (int k = 0; k < n_each; ++k) {
        uint32_t piece = lane_of_thread() + k * warp_size;
        to[k] = nullptr;
        if (piece >= copies.n_pieces) continue;
        // Threads look for their arrays apart, and go on together.
        const FrameCopy& copy = array_of_piece(copies, piece);
        const uint32_t frame = frames_of_row(copy) == 1 ? 0 : piece / copy.n_pieces;
        const int64_t at = static_cast<int64_t>(piece - frame * copy.n_pieces) * copy.piece_bytes;
        const FrameMove move = move_of_frame(copy, rules, row, i, frame);
        bytes[k] = copy.piece_bytes;
        to[k] = move.to + at;
        pieces[k] = {{0, 0}};
        if (move.from != nullptr) pieces[k] = read_piece(move.from + at, bytes[k]);
    }
    for (int k = 0; k < n_each; ++k)
        if (to[k] != nullptr) write_piece(to[k], bytes[k], pieces[k]);
}

// The same for a row of at most warp_size pieces, each array of which has one frame, and no padding.
__device__ __forceinline__ void copy_single_frames(const FrameCopies& copies, const GatherRow& row, int64_t i) {
    uint32_t piece = lane_of_thread();
    if (piece >= copies.n_pieces) return;
    const FrameCopy& copy = array_of_piece(copies, piece);
    const std::byte* const frames = copy.is_next && row.next_is_own_array ? copy.next_frames : copy.frames;
    const int64_t slot = copy.is_next ? row.next_slot : row.slot;
    const int64_t at = static_cast<int64_t>(piece) * copy.piece_bytes;
    write_piece(copy.out + i * copy.bytes + at, copy.piece_bytes,
                read_piece(frames + slot * copy.bytes + at, copy.piece_bytes));
}

// ---- other rows: a warp copies a chunk of a frame

inline constexpr int chunk_pieces_each = 8;
inline constexpr uint32_t max_chunk_pieces = chunk_pieces_each * warp_size;

// How a frame is divided into pieces, and the pieces into chunks.
struct FramePieces {
    int32_t bytes;
    int64_t n;
    int64_t n_chunks;
};

inline FramePieces pieces_of(int64_t frame_bytes, const void* array) {
    const int32_t bytes = piece_bytes_of(frame_bytes, array);
    const int64_t n = frame_bytes / bytes;
    return {bytes, n, (n + max_chunk_pieces - 1) / max_chunk_pieces};
}

template <class Word>
__device__ __forceinline__ void copy_words(const FrameMove& move, uint32_t first, uint32_t end) {
    Word words[chunk_pieces_each];
    for (int k = 0; k < chunk_pieces_each; ++k) {
        const uint32_t i = first + lane_of_thread() + k * warp_size;
        words[k] = {};
        if (move.from != nullptr && i < end) words[k] = reinterpret_cast<const Word*>(move.from)[i];
    }
    for (int k = 0; k < chunk_pieces_each; ++k) {
        const uint32_t i = first + lane_of_thread() + k * warp_size;
        if (i < end) reinterpret_cast<Word*>(move.to)[i] = words[k];
    }
}

// Copies chunk number `chunk` of a frame of the array, whose frames all have the same pieces and chunks.
template <class Array>
__device__ __forceinline__ void copy_chunk_of_frame(const Array& array, const FrameMove& move, uint32_t chunk) {
    const uint32_t n_each = (array.n_pieces + array.n_chunks - 1) / array.n_chunks;
    const uint32_t first = chunk * n_each;
    const uint32_t end = first + n_each < array.n_pieces ? first + n_each : array.n_pieces;
    if (array.piece_bytes == 16)
        copy_words<Piece>(move, first, end);
    else if (array.piece_bytes == 8)
        copy_words<uint64_t>(move, first, end);
    else if (array.piece_bytes == 4)
        copy_words<uint32_t>(move, first, end);
    else if (array.piece_bytes == 2)
        copy_words<uint16_t>(move, first, end);
    else
        copy_words<uint8_t>(move, first, end);
}

// Copies chunk number `chunk` of row i.
template <class Row>
__device__ __forceinline__ void copy_chunk(const FrameCopies& copies, const WindowRules& rules, const Row& row,
                                           int64_t i, uint32_t chunk) {
    int c = 0;
    for (; c < copies.n - 1; ++c) {
        const uint32_t n_chunks = frames_of_row(copies.copies[c]) * copies.copies[c].n_chunks;
        if (chunk < n_chunks) break;
        chunk -= n_chunks;
    }
    const FrameCopy& copy = copies.copies[c];
    const uint32_t frame = chunk / copy.n_chunks;
    copy_chunk_of_frame(copy, move_of_frame(copy, rules, row, i, frame), chunk - frame * copy.n_chunks);
}

// Copies all chunks of n rows. Each chunk is copied by a warp.
template <class Row>
__device__ __forceinline__ void copy_rows(const FrameCopies& copies, const WindowRules& rules, const Row* rows,
                                          int64_t n) {
    if (copies.n == 0) return;
    const int64_t n_chunks = n * copies.by_chunks.value();
    const GridSpan span = warp_span();
    for (int64_t at = span.first; at < n_chunks; at += span.step) {
        const int64_t i = copies.by_chunks.quotient(at);
        copy_chunk(copies, rules, rows[i], i, static_cast<uint32_t>(at - i * copies.by_chunks.value()));
    }
}

}  // namespace per::cuda
