#include <csignal>

#include "bindings/bindings.h"

namespace nb = nanobind;

namespace {

// While the module is made, Python code runs in places where nanobind ends the process if it raises (that of enum, which makes
// the enumerations). So Ctrl-C waits until the module is there.
class InterruptsWait {
 public:
  InterruptsWait() : before_(PyOS_getsig(SIGINT)) {
    if (before_ == SIG_IGN) return;
    PyOS_setsig(SIGINT, [](int) { came_ = 1; });
    if (PyErr_CheckSignals() == 0) return;  // what had come before
    if (!PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {
      PyOS_setsig(SIGINT, before_);
      throw nb::python_error();
    }
    PyErr_Clear();
    came_ = 1;
  }

  ~InterruptsWait() {
    if (before_ == SIG_IGN) return;
    PyOS_setsig(SIGINT, before_);
    if (came_ != 0) PyErr_SetInterrupt();
    came_ = 0;
  }

  InterruptsWait(const InterruptsWait&) = delete;
  InterruptsWait& operator=(const InterruptsWait&) = delete;

 private:
  static inline volatile std::sig_atomic_t came_ = 0;
  const PyOS_sighandler_t before_;
};

}  // namespace

NB_MODULE(_native, m) {
  const InterruptsWait interrupts_wait;
  m.doc() = "hotloop's C++ core: kernels, thread team, step programs.";
  hotloop::bind_kernel_sets(m);
  hotloop::bind_runtime(m);
  hotloop::bind_linear_kernels(m);
  hotloop::bind_float_kernels(m);
  hotloop::bind_sampler(m);
  hotloop::bind_program(m);
  hotloop::bind_quantize(m);
}
