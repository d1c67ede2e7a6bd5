// Weights in rows along K, any form of common/rows.hip, for the tile engine (common/tile.hip).
//
// A thread fetches octets of K of one column, neighbours in memory: two with 256 threads, four with
// 128. Scales per group, a few bytes of every row, go through LDS: one thread per column fetches
// and converts them, all waves read them. Zero points stay with the thread that decodes.
#include "common/rows.hip"
#include "common/tile.hip"
#include "common/words.hip"

// The rows of the matrix that the column slots of a workgroup stand for. Lane l of the sums has the
// columns 4l..4l+3 of the tile,
template <u32 N>
struct TileColumns {
  u32 first;
  MEMBER u32 row(u32 plane, u32 slot) const {
    const u32 n = first + slot * LANE_COLUMNS + plane;
    return N % TILE_COLUMNS == 0 || n < N ? n : N - 1;
  }
};

// or gate and up of the channels 2l and 2l+1: gate on planes 0 and 1, up, N rows further, on 2 and 3.
template <u32 N>
struct TileChannels {
  u32 first;
  MEMBER u32 row(u32 plane, u32 slot) const {
    const u32 n = first + slot * 2 + plane % 2;
    return (N % (TILE_COLUMNS / 2) == 0 || n < N ? n : N - 1) + plane / 2 * N;
  }
};

// Scales of two groups: waves still read one while the next is written.
struct TileScaleTable {
  __attribute__((aligned(16))) float of[2][TILE_COLUMNS];
};

// Form: of common/rows.hip; GROUP a multiple of 32, or K. ALIGN: of the rows, in bytes.
template <int ROWS, class Form, class Columns, int ALIGN>
struct TileWeightRows {
  static constexpr bool SCALED = Form::SCALE_BYTES > 0;
  static constexpr u32 GROUP_STEPS = Form::GROUPS == 1 ? 0 : Form::GROUP / TILE_K;
  static constexpr u32 THREADS = tile_threads(ROWS);
  static constexpr u32 PARTS = THREADS > TILE_COLUMNS ? THREADS / TILE_COLUMNS : 1;  // per column
  static constexpr u32 ITEMS = PARTS > 1 ? 1 : TILE_COLUMNS / THREADS;  // columns of a thread
  static constexpr u32 OCTETS = 4 / PARTS;
  static constexpr u32 OCTET_WORDS = OCTET<Form::FORMAT>;
  static constexpr u32 K = Form::K;
  static_assert(PARTS <= 2 && K % 8 == 0, "a thread has two octets or more");
  static_assert(Form::GROUPS == 1 || Form::GROUP % TILE_K == 0, "a step has one group");
  struct Piece {
    u32 words[ITEMS][OCTETS * OCTET_WORDS];
    typename StoredScale<Form::SCALE_BYTES>::Type scale[ITEMS];
    u8 zeros[ITEMS];
  };
  struct Scales {
    Vec<float, 4> of;
  };

  GlobalBytes words, scales, zeros;  // of the expert
  TileScaleTable& table;
  Columns columns;
  u32 last = 1;  // the table's half that was written last
  u32 word_lane[ITEMS], scale_lane[ITEMS], zero_lane[ITEMS], zero_shift[ITEMS];
  Int4Zero zero[ITEMS];

  MEMBER u32 part() const { return thread_x() % PARTS; }

  // Neighbouring lanes hold the parts of a column, so that a line is asked for once. With two
  // parts, lines 0 1 4 5 2 3 6 7 follow each other: 8 lanes then write to all banks.
  MEMBER u32 slot(u32 item) const {
    const u32 index = thread_x() / PARTS + item * THREADS;
    if constexpr (PARTS == 1) return index;
    return (index & ~6u) | (index & 2) << 1 | (index & 4) >> 1;
  }

  MEMBER TileWeightRows(const WeightMatrix& matrix, u32 expert, Columns columns_, TileScaleTable& t)
      : table(t), columns(columns_) {
    constexpr u32 SCALE_LINES = ceil_div(Form::EXPERT_ROWS, Form::SCALE_ROWS);
    constexpr u64 ROW_COUNT = Form::EXPERT_ROWS;
    words = global_bytes(matrix.weights) + expert * (ROW_COUNT * Form::ROW_BYTES);
    scales = global_bytes(matrix.scales) +
             expert * ((u64)SCALE_LINES * Form::SCALE_LINE);
    zeros = global_bytes(matrix.zeros) + expert * (ROW_COUNT / 2 * Form::GROUPS);
#pragma unroll
    for (u32 i = 0; i < ITEMS; ++i) {
      const u32 row = columns.row(slot(i) / 32, slot(i) % 32);
      word_lane[i] = row * Form::ROW_BYTES + part() * (OCTETS * OCTET_WORDS * 4);
      scale_lane[i] = row / Form::SCALE_ROWS * Form::SCALE_LINE;
      zero_lane[i] = row / 2 * Form::GROUPS;
      zero_shift[i] = row % 2 * 4;
    }
  }

  MEMBER static u32 group_of(u32 step) {
    if constexpr (GROUP_STEPS == 0) return 0;
    return step / (GROUP_STEPS == 0 ? 1 : GROUP_STEPS);
  }

  MEMBER void fetch(u32 step, bool fresh, Piece& piece) {
    const GlobalBytes from = launder_base(words + step * (4 * OCTET_WORDS * 4));
#pragma unroll
    for (u32 i = 0; i < ITEMS; ++i) {
      launder_lane(word_lane[i]);
      if constexpr (K % TILE_K == 0) {
        load_words<OCTETS * OCTET_WORDS, ALIGN>(from, word_lane[i], piece.words[i]);
      } else {
        fetch_octets(from, step, i, piece.words[i]);
      }
    }
    if (!fresh) return;
    const u32 group = group_of(step);
    if constexpr (GROUP_STEPS > 0 && SCALED) {
      const GlobalBytes at = launder_base(scales + group * Form::SCALE_BYTES);
#pragma unroll
      for (u32 i = 0; i < ITEMS; ++i) {
        launder_lane(scale_lane[i]);
        using Stored = typename StoredScale<Form::SCALE_BYTES>::Type;
        piece.scale[i] = *(const GLOBAL Stored*)(at + scale_lane[i]);
      }
    }
    if constexpr (Form::HAS_ZEROS) {
      const GlobalBytes at = launder_base(zeros + group);
#pragma unroll
      for (u32 i = 0; i < ITEMS; ++i) {
        launder_lane(zero_lane[i]);
        piece.zeros[i] = *(const GLOBAL u8*)(at + zero_lane[i]);
      }
    }
  }

  // Zeros past the end of a row.
  MEMBER void fetch_octets(GlobalBytes from, u32 step, u32 i, u32 (&out)[OCTETS * OCTET_WORDS]) {
#pragma unroll
    for (u32 o = 0; o < OCTETS; ++o) {
      u32 octet[OCTET_WORDS] = {};
      if (step * TILE_K + (part() * OCTETS + o) * 8 < K) {
        load_words<OCTET_WORDS, ALIGN>(from, word_lane[i] + o * (OCTET_WORDS * 4), octet);
      }
#pragma unroll
      for (u32 j = 0; j < OCTET_WORDS; ++j) out[o * OCTET_WORDS + j] = octet[j];
    }
  }

  MEMBER void put(const Piece& piece, bool fresh, u32x4* image) {
    if (fresh) {
      if constexpr (Form::HAS_ZEROS) {
#pragma unroll
        for (u32 i = 0; i < ITEMS; ++i) {
          zero[i] = int4_zero(__builtin_amdgcn_ubfe(piece.zeros[i], zero_shift[i], 4), 0);
        }
      }
      if constexpr (GROUP_STEPS > 0 && SCALED) {
        last ^= 1;
#pragma unroll
        for (u32 i = 0; i < ITEMS; ++i) {
          const u32 at = slot(i) % 32 * LANE_COLUMNS + slot(i) / 32;
          if (part() == 0) table.of[last][at] = scale_value<Form::SCALE_BYTES>(piece.scale[i]);
        }
      }
    }
#pragma unroll
    for (u32 i = 0; i < ITEMS; ++i) {
      const u32 line = tile_line(slot(i) / 32, slot(i) % 32) + part() * OCTETS;
#pragma unroll
      for (u32 o = 0; o < OCTETS; ++o) {
        u32 pairs[4];
        if constexpr (Form::FORMAT == Format::int4) {
          int4_decode(piece.words[i][o], Form::HAS_ZEROS ? zero[i] : int4_zero(8, 0), pairs);
        } else {
          decode_octet<Form::FORMAT, Form::NAN_CODES>(piece.words[i] + o * OCTET_WORDS, pairs);
        }
        image[line + o] = u32x4{pairs[0], pairs[1], pairs[2], pairs[3]};
      }
    }
  }

  MEMBER static void arrange(u32 (&pairs)[4]) {
    if constexpr (Form::FORMAT == Format::int4) pairs_of_natural(pairs);
  }

  MEMBER void fetch_scales(u32, Scales& s) {
    if constexpr (GROUP_STEPS > 0) {
      s.of = *(const Vec<float, 4>*)&table.of[last][lane_id() * LANE_COLUMNS];
    } else {
#pragma unroll
      for (u32 n = 0; n < LANE_COLUMNS; ++n) {
        using Stored = typename StoredScale<Form::SCALE_BYTES>::Type;
        u32 lane = columns.row(n, lane_id()) / Form::SCALE_ROWS * Form::SCALE_LINE;
        launder_lane(lane);
        s.of[n] = scale_value<Form::SCALE_BYTES>(*(const GLOBAL Stored*)(scales + lane));
      }
    }
  }
  MEMBER static float scale(const Scales& s, int n) { return s.of[n]; }
};
