#include "runtime/dispatch.h"

#include <stdexcept>

namespace hotloop {

std::vector<const KernelTable*> usable_kernels() {
  std::vector<const KernelTable*> tables;
#ifdef HOTLOOP_HAVE_AVX2
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    tables.push_back(&avx2_kernels());
  }
#endif
  tables.push_back(&scalar_kernels());
  return tables;
}

const KernelTable& select_kernels(const std::string& name) {
  const auto tables = usable_kernels();
  if (name.empty()) return *tables.front();
  std::string known;
  for (const auto* table : tables) {
    if (name == table->name) return *table;
    known += (known.empty() ? "" : ", ") + std::string(table->name);
  }
  throw std::invalid_argument("instruction set '" + name + "' is not usable on this machine; usable: " + known);
}

}  // namespace hotloop
