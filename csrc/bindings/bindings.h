// One bind_* function per file of this folder; module.cpp calls them all.
#pragma once
#include <nanobind/nanobind.h>

namespace hotloop {

void bind_float_kernels(nanobind::module_& m);
void bind_linear_kernels(nanobind::module_& m);
void bind_program(nanobind::module_& m);
void bind_kernel_sets(nanobind::module_& m);
void bind_sampler(nanobind::module_& m);
void bind_runtime(nanobind::module_& m);

}  // namespace hotloop
