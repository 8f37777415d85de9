// Which kernel sets this build has, which this machine can run, and which one to use.
#pragma once
#include <string>
#include <vector>

#include "kernels/kernel_table.h"

namespace hotloop {

// Kernel sets this machine can run, best first; "scalar" is always the last.
std::vector<const KernelTable*> usable_kernels();
// The set called `name`, or the best one if name is empty. Throws std::invalid_argument that lists the usable ones.
const KernelTable& select_kernels(const std::string& name);
// Kernel sets that pass their tests in an emulator and have never run on real hardware.
std::vector<std::string> experimental_kernels();

}  // namespace hotloop
