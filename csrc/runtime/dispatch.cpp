#include "runtime/dispatch.h"

#include <stdexcept>

namespace hotloop {

#if defined(HOTLOOP_HAVE_AVX512) || defined(HOTLOOP_HAVE_AVX512VNNI)
namespace {
bool has_avx512() {  // the compiler's library asks the operating system too, whether it saves the registers
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}
}  // namespace
#endif

std::vector<const KernelTable*> usable_kernels() {
  std::vector<const KernelTable*> tables;
#if defined(__x86_64__)
  __builtin_cpu_init();
#endif
#if defined(HOTLOOP_HAVE_AVX512) || defined(HOTLOOP_HAVE_AVX512VNNI)
  if (has_avx512()) {
#ifdef HOTLOOP_HAVE_AVX512VNNI
    if (__builtin_cpu_supports("avx512vnni")) tables.push_back(&avx512vnni_kernels());
#endif
#ifdef HOTLOOP_HAVE_AVX512
    tables.push_back(&avx512_kernels());
#endif
  }
#endif
#ifdef HOTLOOP_HAVE_AVX2
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
