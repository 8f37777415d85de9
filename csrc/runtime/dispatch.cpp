#include "runtime/dispatch.h"

#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace hotloop {
namespace {

#if defined(__x86_64__)
[[maybe_unused]] bool has_f16c() {  // clang's __builtin_cpu_supports does not know the name
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
// The compiler's library also asks the operating system, whether it saves the wide registers.
[[maybe_unused]] bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}
[[maybe_unused]] bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
[[maybe_unused]] bool has_avx512vnni() { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }
#endif

#if defined(__aarch64__)
[[maybe_unused]] bool has_dot_product() {
#if defined(__linux__)
  constexpr unsigned long kDotProduct = 1ul << 20;  // HWCAP_ASIMDDP; old headers lack the name
  return (getauxval(AT_HWCAP) & kDotProduct) != 0;
#elif defined(__APPLE__)
  int present = 0;
  size_t size = sizeof present;
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &present, &size, nullptr, 0) == 0 && present != 0;
#else
  return false;
#endif
}
#endif

}  // namespace

std::vector<const KernelTable*> usable_kernels() {
  std::vector<const KernelTable*> tables;
#if defined(__x86_64__)
  __builtin_cpu_init();
#endif
#ifdef HOTLOOP_HAVE_AVX512VNNI
  if (has_avx512vnni()) tables.push_back(&avx512vnni_kernels());
#endif
#ifdef HOTLOOP_HAVE_AVX512
  if (has_avx512()) tables.push_back(&avx512_kernels());
#endif
#ifdef HOTLOOP_HAVE_AVX2
  if (has_avx2()) tables.push_back(&avx2_kernels());
#endif
#ifdef HOTLOOP_HAVE_NEON
  if (has_dot_product()) tables.push_back(&neon_kernels());
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

std::vector<std::string> experimental_kernels() { return {"neon"}; }

}  // namespace hotloop
