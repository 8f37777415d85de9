// The sampler of whole steps: rows of logits in, token ids out, in one call without the GIL.
#include "runtime/sampler.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <tuple>

#include "bindings/bindings.h"
#include "runtime/dispatch.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hotloop {
namespace {

using Logits = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;
using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Mask = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
// row; barred, bias ids, bias, seen ids, counts, mask
using Edits = std::tuple<int64_t, Ids, Ids, Floats, Ids, Ids, std::optional<Mask>>;

using Top = std::vector<std::pair<int64_t, float>>;
using Logprobs = std::tuple<int64_t, float, int64_t, Top>;  // row; logprob, rank, top
using Fault = std::tuple<int64_t, DrawResult::Status, int64_t>;
using Results = std::tuple<std::vector<int64_t>, std::vector<Logprobs>, std::vector<Fault>>;

int64_t length(const Ids& ids) { return static_cast<int64_t>(ids.size()); }

void check_ids(const Ids& ids, int64_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) check(ids.data()[i] >= 0 && ids.data()[i] < vocab_size, "edits: an id outside the vocabulary");
}

RowEdits row_edits(const Edits& edits, int64_t vocab_size) {
  const auto& [row, barred, bias_ids, bias, seen_ids, counts, mask] = edits;
  check(bias.size() == bias_ids.size() && counts.size() == seen_ids.size(), "edits: sizes differ");
  for (const Ids* ids : {&barred, &bias_ids, &seen_ids}) check_ids(*ids, vocab_size);
  check(!mask || static_cast<int64_t>(mask->size()) == (vocab_size + 31) / 32, "edits: the mask's size");
  return {mask ? mask->data() : nullptr, barred.data(), length(barred), bias_ids.data(), bias.data(), length(bias_ids),
          seen_ids.data(), counts.data(), length(seen_ids)};
}

Results draw(Sampler& sampler, const Logits& logits, const std::vector<const DrawParams*>& params,
             const std::vector<int64_t>& logits_rows, const std::vector<uint32_t>& positions, const std::vector<Edits>& edits) {
  const int64_t vocab_size = static_cast<int64_t>(logits.shape(1));
  check(vocab_size > 0 && vocab_size < int64_t{1} << 31, "draw: the vocabulary's size");
  check(logits.stride(1) == 1 || vocab_size == 1, "draw: the logits of a row must lie side by side");
  check(logits_rows.size() == params.size() && positions.size() == params.size(), "draw: numbers of rows differ");
  std::vector<DrawRow> rows;
  for (size_t i = 0; i < params.size(); ++i) {
    check(params[i] != nullptr, "draw: no parameters");
    check(logits_rows[i] >= 0 && logits_rows[i] < static_cast<int64_t>(logits.shape(0)), "draw: no such row of logits");
    rows.push_back({logits.data() + logits_rows[i] * logits.stride(0), params[i], positions[i], {}});
  }
  for (const Edits& e : edits) {
    const int64_t row = std::get<0>(e);
    check(row >= 0 && row < static_cast<int64_t>(rows.size()), "draw: edits of no row");
    rows[static_cast<size_t>(row)].edits = row_edits(e, vocab_size);
  }
  std::vector<DrawResult> drawn;
  {
    const nb::gil_scoped_release release;
    drawn = sampler.draw(rows, vocab_size);
  }
  Results results;
  auto& [token_ids, logprobs, faults] = results;
  for (size_t i = 0; i < drawn.size(); ++i) {
    DrawResult& result = drawn[i];
    const auto row = static_cast<int64_t>(i);
    token_ids.push_back(result.token_id);
    if (result.status != DrawResult::Status::Drawn) {
      faults.emplace_back(row, result.status, result.token_id);
    } else if (params[i]->num_logprobs >= 0) {
      logprobs.emplace_back(row, result.logprob, result.rank, std::move(result.top));
    }
  }
  return results;
}

}  // namespace

void bind_sampler(nb::module_& m) {
  nb::class_<DrawParams>(m, "DrawParams", "What drawing needs to know of a request, the same for all its tokens.")
      .def("__init__", [](DrawParams* self, double temperature, int64_t top_k, double top_p, double min_p,
                          double repetition_penalty, double presence_penalty, double frequency_penalty, uint64_t seed,
                          uint32_t choice, int32_t num_logprobs) {
        new (self) DrawParams{temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty,
                              seed, choice, num_logprobs};
      }, nb::kw_only(), "temperature"_a, "top_k"_a = 0, "top_p"_a = 1.0, "min_p"_a = 0.0, "repetition_penalty"_a = 1.0,
         "presence_penalty"_a = 0.0, "frequency_penalty"_a = 0.0, "seed"_a = 0, "choice"_a = 0, "num_logprobs"_a = -1)
      .def_ro("temperature", &DrawParams::temperature)
      .def_ro("top_k", &DrawParams::top_k)
      .def_ro("top_p", &DrawParams::top_p)
      .def_ro("min_p", &DrawParams::min_p)
      .def_ro("repetition_penalty", &DrawParams::repetition_penalty)
      .def_ro("presence_penalty", &DrawParams::presence_penalty)
      .def_ro("frequency_penalty", &DrawParams::frequency_penalty)
      .def_ro("seed", &DrawParams::seed)
      .def_ro("choice", &DrawParams::choice)
      .def_ro("num_logprobs", &DrawParams::num_logprobs);
  nb::enum_<DrawResult::Status>(m, "DrawStatus")
      .value("drawn", DrawResult::Status::Drawn)
      .value("broken_logits", DrawResult::Status::BrokenLogits)
      .value("nothing_left", DrawResult::Status::NothingLeft)
      .value("no_memory", DrawResult::Status::NoMemory);
  nb::class_<Sampler>(m, "Sampler")
      .def("__init__", [](Sampler* self, const std::string& isa, std::shared_ptr<ThreadTeam> team) {
        new (self) Sampler(select_kernels(isa), std::move(team));
      }, "isa"_a, "team"_a.none() = nb::none())
      .def("draw", &draw, "logits"_a, "params"_a, "logits_rows"_a, "positions"_a, "edits"_a,
           "Token ids of all rows; (row, logprob, rank, top) of those that want logprobs; (row, what is wrong, token id). "
           "edits: (row, barred, bias ids, bias, seen ids, counts, mask).");
}

}  // namespace hotloop
