// Quantizes a run of weights with the thread team.
#pragma once
#include <cstdint>

#include "formats/quantize.h"
#include "runtime/thread_team.h"

namespace hotloop {

struct QuantizeFault {
  QuantizeError error = QuantizeError::None;
  int64_t element = 0;  // the first that cannot be quantized, or the first of its superblock
};

// src: `count` elements, whole superblocks of `format`, in source_format F32, F16 or BF16 (any alignment). dst: as in a file.
QuantizeFault quantize_weights(WeightFormat format, WeightFormat source_format, const uint8_t* src, int64_t count, uint8_t* dst,
                               ThreadTeam& team);

}  // namespace hotloop
