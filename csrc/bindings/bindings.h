// One bind_* function per file of this folder; module.cpp calls them all.
#pragma once
#include <nanobind/nanobind.h>

#include <stdexcept>

#include "kernels/kernel_table.h"

namespace hotloop {

// Throws ValueError with the message unless it holds.
inline void check(bool holds, const char* message) {
  if (!holds) throw std::invalid_argument(message);
}

// Throws ValueError unless a matrix [rows, cols] has at least one row, of whole groups and superblocks.
void check_matrix_shape(WeightFormat format, int64_t rows, int64_t cols);

void bind_float_kernels(nanobind::module_& m);
void bind_linear_kernels(nanobind::module_& m);
void bind_program(nanobind::module_& m);
void bind_kernel_sets(nanobind::module_& m);
void bind_sampler(nanobind::module_& m);
void bind_runtime(nanobind::module_& m);
void bind_quantize(nanobind::module_& m);

}  // namespace hotloop
