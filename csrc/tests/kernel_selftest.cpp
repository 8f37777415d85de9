// Kernel tests without Python: for an emulator, for sanitizers, for a machine that has only a compiler. Compares every
// kernel set this machine can run with the scalar one over random inputs and extents, and checks that the comparison
// finds a kernel that is wrong in one bit. The digests are of all scalar results and of quantized weights: the same on every
// machine.
//   kernel_selftest [ROUNDS] [SET]   rounds of random extents per set (default 20); only this set, which must be usable
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "formats/quantize.h"
#include "runtime/dispatch.h"
#include "runtime/float_environment.h"
#include "runtime/self_check.h"

namespace hotloop {
namespace {

CheckExtents extents_of(uint64_t round) {
  if (round == 0) return {};
  const auto draw = [round](uint64_t salt, uint64_t limit) {  // 1 .. limit
    return static_cast<int64_t>((round * 0x9e3779b97f4a7c15u ^ salt * 0xbf58476d1ce4e5b9u) >> 33) % static_cast<int64_t>(limit) + 1;
  };
  CheckExtents e;
  e.row_blocks = draw(1, 13);
  e.cols = 256 * draw(2, 4);
  for (uint64_t i = 0; i < 3; ++i) e.tokens[i] = draw(3 + i, 36);
  e.floats = draw(6, 2100) + 1;  // log_sum_exp's input has at least two elements
  e.first_position = draw(7, 600);
  return e;
}

bool check(const KernelTable& kernels, uint64_t rounds) {
  for (uint64_t round = 0; round < rounds; ++round) {
    const std::string differs = differing_kernel(kernels, scalar_kernels(), round + 1, extents_of(round));
    if (!differs.empty()) {
      std::printf("%s: differs from scalar in %s (round %llu)\n", kernels.name, differs.c_str(),
                  static_cast<unsigned long long>(round));
      return false;
    }
  }
  std::printf("%s: equals scalar to the bit, %llu rounds\n", kernels.name, static_cast<unsigned long long>(rounds));
  return true;
}

bool finds_broken_kernels(const KernelTable& kernels) {
  for (const char* name : {"linear", "rms_norm", "exp"}) {
    const std::string differs = differing_kernel(broken_copy(kernels, name), scalar_kernels());
    if (differs.rfind(name, 0) != 0) {
      std::printf("%s: a broken %s was reported as '%s'\n", kernels.name, name, differs.c_str());
      return false;
    }
  }
  return true;
}

// The yardsticks compute nothing of use, but they must run, and do the operations that they count.
bool peaks_count_their_operations(const KernelTable& kernels) {
  constexpr int64_t kRounds = 5, kLanes = 16;
  alignas(64) float sink[kLanes];
  const int64_t int8_ops = kernels.peak_int8(kRounds, sink);
  const int64_t f32_ops = kernels.peak_f32(kRounds, sink);
  // Each chain goes from 1 to 2 - 2^-rounds by x / 2 + 1; the sum of the chains says how many there were.
  const float chains = sink[0] / (2.0f - 1.0f / (1 << kRounds));
  bool good = int8_ops > 0 && kernels.peak_int8(2 * kRounds, sink) == 2 * int8_ops;
  good = good && f32_ops == static_cast<int64_t>(chains) * kLanes * 2 * kRounds;
  if (!good) std::printf("%s: peak_int8 or peak_f32 does not do the operations that it counts\n", kernels.name);
  return good;
}

bool check_all(const KernelTable& kernels, uint64_t rounds) {
  return check(kernels, rounds) && finds_broken_kernels(kernels) && peaks_count_their_operations(kernels);
}

// Of all quantized formats of weights that are uniform, with a magnitude of its own for each group of 32.
uint64_t quantizers_digest() {
  const FloatEnvironment environment;
  std::vector<float> x(256 * 256);
  uint64_t state = 1, digest = 0xcbf29ce484222325u;
  for (size_t i = 0; i < x.size(); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const float uniform = static_cast<float>(static_cast<int32_t>(state >> 40)) / 8388608.0f - 1.0f;
    x[i] = uniform / static_cast<float>(uint64_t{1} << i / 32 % 40);
  }
  for (const WeightFormat format : {WeightFormat::F16, WeightFormat::BF16, WeightFormat::Q4_0, WeightFormat::Q4_1,
                                    WeightFormat::Q5_0, WeightFormat::Q5_1, WeightFormat::Q8_0, WeightFormat::Q4_K,
                                    WeightFormat::Q5_K, WeightFormat::Q6_K}) {
    const int64_t count = static_cast<int64_t>(x.size()) / superblock_elements(format);
    std::vector<uint8_t> out(count * superblock_bytes(format));
    if (quantize_superblocks(format, x.data(), count, out.data()) != QuantizeError::None) return 0;
    for (const uint8_t byte : out) digest = (digest ^ byte) * 0x100000001b3u;
  }
  return digest;
}

int run(uint64_t rounds, const std::string& only) {
  std::printf("scalar: digest %016llx\n", static_cast<unsigned long long>(digest(scalar_kernels())));
  std::printf("quantizers: digest %016llx\n", static_cast<unsigned long long>(quantizers_digest()));
  bool good = true;
  if (!only.empty()) return check_all(select_kernels(only), rounds) ? 0 : 1;
  for (const KernelTable* kernels : usable_kernels()) good = check_all(*kernels, rounds) && good;
  return good ? 0 : 1;
}

}  // namespace
}  // namespace hotloop

int main(int argc, char** argv) {
  try {
    return hotloop::run(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 20, argc > 2 ? argv[2] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
