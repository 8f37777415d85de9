#include "bindings/bindings.h"

NB_MODULE(_native, m) {
  m.doc() = "hotloop's C++ core: kernels, thread team, step programs.";
  hotloop::bind_kernel_sets(m);
  hotloop::bind_runtime(m);
  hotloop::bind_linear_kernels(m);
  hotloop::bind_float_kernels(m);
  hotloop::bind_sampler(m);
  hotloop::bind_program(m);
  hotloop::bind_quantize(m);
}
