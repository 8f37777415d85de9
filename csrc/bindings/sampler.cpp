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
#include "runtime/dry.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hotloop {
namespace {

using Logits = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;
using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Mask = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
// row; banned, barred, bias ids, bias, seen ids, counts, dry ids, dry, mask
using Edits = std::tuple<int64_t, Ids, Ids, Ids, Floats, Ids, Ids, Ids, Floats, std::optional<Mask>>;

using Top = std::vector<std::pair<int64_t, float>>;
using Logprobs = std::tuple<int64_t, float, int64_t, Top>;  // row; logprob, rank, top
using Fault = std::tuple<int64_t, DrawResult::Status, int64_t>;
using Mu = std::pair<int64_t, double>;  // row; of the next token
using Results = std::tuple<std::vector<int64_t>, std::vector<Logprobs>, std::vector<Mu>, std::vector<Fault>>;

int64_t checked_vocab_size(const Logits& logits) {
  const int64_t vocab_size = static_cast<int64_t>(logits.shape(1));
  check(vocab_size > 0 && vocab_size < int64_t{1} << 31, "draw: the vocabulary's size");
  check(logits.stride(1) == 1 || vocab_size == 1, "draw: the logits of a row must lie side by side");
  return vocab_size;
}

RowEdits::Array<int32_t> checked_ids(const Ids& ids, int64_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) check(ids.data()[i] >= 0 && ids.data()[i] < vocab_size, "an id outside the vocabulary");
  return {ids.data(), static_cast<int64_t>(ids.size())};
}

RowEdits row_edits(const Edits& edits, int64_t vocab_size) {
  const auto& [row, banned, barred, bias_ids, bias, seen_ids, counts, dry_ids, dry, mask] = edits;
  check(bias.size() == bias_ids.size() && counts.size() == seen_ids.size() && dry.size() == dry_ids.size(), "edits: sizes differ");
  check(!mask || static_cast<int64_t>(mask->size()) == (vocab_size + 31) / 32, "edits: the mask's size");
  RowEdits result;
  if (mask) result.mask = mask->data();
  result.banned = checked_ids(banned, vocab_size);
  result.barred = checked_ids(barred, vocab_size);
  result.bias_ids = checked_ids(bias_ids, vocab_size);
  result.bias = bias.data();
  result.seen_ids = checked_ids(seen_ids, vocab_size);
  result.counts = counts.data();
  result.dry_ids = checked_ids(dry_ids, vocab_size);
  result.dry = dry.data();
  return result;
}

Results draw(Sampler& sampler, const Logits& logits, const std::vector<const DrawParams*>& params,
             const std::vector<int64_t>& logits_rows, const std::vector<uint32_t>& positions, const std::vector<double>& mirostat_mus,
             const std::vector<Edits>& edits) {
  const int64_t vocab_size = checked_vocab_size(logits);
  check(logits_rows.size() == params.size() && positions.size() == params.size() && mirostat_mus.size() == params.size(),
        "draw: numbers of rows differ");
  std::vector<DrawRow> rows;
  for (size_t i = 0; i < params.size(); ++i) {
    check(params[i] != nullptr, "draw: no parameters");
    check(logits_rows[i] >= 0 && logits_rows[i] < static_cast<int64_t>(logits.shape(0)), "draw: no such row of logits");
    rows.push_back({logits.data() + logits_rows[i] * logits.stride(0), params[i], -1, positions[i], mirostat_mus[i], {}});
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
  auto& [token_ids, logprobs, mus, faults] = results;
  for (size_t i = 0; i < drawn.size(); ++i) {
    DrawResult& result = drawn[i];
    const auto row = static_cast<int64_t>(i);
    token_ids.push_back(result.token_id);
    if (result.status != DrawResult::Status::Drawn) {
      faults.emplace_back(row, result.status, result.token_id);
      continue;
    }
    if (params[i]->num_logprobs >= 0) logprobs.emplace_back(row, result.logprob, result.rank, std::move(result.top));
    if (params[i]->mirostat) mus.emplace_back(row, result.mirostat_mu);
  }
  return results;
}

std::vector<std::tuple<DrawResult::Status, int64_t, float, int64_t, Top>> logprobs(Sampler& sampler, const Logits& logits,
                                                                                   const Ids& token_ids, int32_t num_top) {
  const int64_t vocab_size = checked_vocab_size(logits);
  check(token_ids.size() == logits.shape(0) && num_top >= 0, "logprobs: extents");
  checked_ids(token_ids, vocab_size);
  DrawParams params;
  params.num_logprobs = num_top;
  std::vector<DrawRow> rows;
  for (size_t i = 0; i < token_ids.size(); ++i) {
    rows.push_back({logits.data() + static_cast<int64_t>(i) * logits.stride(0), &params, token_ids.data()[i], 0, 0, {}});
  }
  std::vector<DrawResult> scored;
  {
    const nb::gil_scoped_release release;
    scored = sampler.draw(rows, vocab_size);
  }
  std::vector<std::tuple<DrawResult::Status, int64_t, float, int64_t, Top>> results;
  for (DrawResult& r : scored) results.emplace_back(r.status, r.token_id, r.logprob, r.rank, std::move(r.top));
  return results;
}

}  // namespace

void bind_sampler(nb::module_& m) {
  nb::class_<DrawParams>(m, "DrawParams", "What drawing needs to know of a request, the same for all its tokens.")
      .def("__init__", [](DrawParams* self,
                          double temperature, double top_n_sigma, double min_p, int64_t top_k, double top_p,
                          double typical_p, double xtc_probability, double xtc_threshold, bool mirostat,
                          double mirostat_tau, double mirostat_eta, double repetition_penalty, double presence_penalty,
                          double frequency_penalty, uint64_t seed, uint32_t choice, int32_t num_logprobs,
                          bool processed_logprobs) {
        new (self) DrawParams{
                              temperature, top_n_sigma, min_p, top_k, top_p, typical_p, xtc_probability, xtc_threshold,
                              mirostat, mirostat_tau, mirostat_eta, repetition_penalty, presence_penalty,
                              frequency_penalty, seed, choice, num_logprobs, processed_logprobs};
      }, nb::kw_only(),
         "temperature"_a, "top_n_sigma"_a = 0.0, "min_p"_a = 0.0, "top_k"_a = 0, "top_p"_a = 1.0, "typical_p"_a = 1.0,
         "xtc_probability"_a = 0.0, "xtc_threshold"_a = 0.1, "mirostat"_a = false, "mirostat_tau"_a = 5.0,
         "mirostat_eta"_a = 0.1, "repetition_penalty"_a = 1.0, "presence_penalty"_a = 0.0, "frequency_penalty"_a = 0.0,
         "seed"_a = 0, "choice"_a = 0, "num_logprobs"_a = -1, "processed_logprobs"_a = false)
      .def_ro("temperature", &DrawParams::temperature)
      .def_ro("top_n_sigma", &DrawParams::top_n_sigma)
      .def_ro("min_p", &DrawParams::min_p)
      .def_ro("top_k", &DrawParams::top_k)
      .def_ro("top_p", &DrawParams::top_p)
      .def_ro("typical_p", &DrawParams::typical_p)
      .def_ro("xtc_probability", &DrawParams::xtc_probability)
      .def_ro("xtc_threshold", &DrawParams::xtc_threshold)
      .def_ro("mirostat", &DrawParams::mirostat)
      .def_ro("mirostat_tau", &DrawParams::mirostat_tau)
      .def_ro("mirostat_eta", &DrawParams::mirostat_eta)
      .def_ro("repetition_penalty", &DrawParams::repetition_penalty)
      .def_ro("presence_penalty", &DrawParams::presence_penalty)
      .def_ro("frequency_penalty", &DrawParams::frequency_penalty)
      .def_ro("seed", &DrawParams::seed)
      .def_ro("choice", &DrawParams::choice)
      .def_ro("num_logprobs", &DrawParams::num_logprobs)
      .def_ro("processed_logprobs", &DrawParams::processed_logprobs);
  nb::enum_<DrawResult::Status>(m, "DrawStatus")
      .value("drawn", DrawResult::Status::Drawn)
      .value("broken_logits", DrawResult::Status::BrokenLogits)
      .value("nothing_left", DrawResult::Status::NothingLeft)
      .value("no_memory", DrawResult::Status::NoMemory);
  nb::class_<Sampler>(m, "Sampler")
      .def("__init__", [](Sampler* self, const std::string& isa, std::shared_ptr<ThreadTeam> team) {
        new (self) Sampler(select_kernels(isa), std::move(team));
      }, "isa"_a, "team"_a.none() = nb::none())
      .def("draw", &draw, "logits"_a, "params"_a, "logits_rows"_a, "positions"_a, "mirostat_mus"_a, "edits"_a,
           "Token ids of all rows; (row, logprob, rank, top) of those that want logprobs; (row, next mu) of mirostat's; "
           "(row, what is wrong, token id). edits: (row, banned, barred, bias ids, bias, seen ids, counts, dry ids, dry, mask).")
      .def("logprobs", &logprobs, "logits"_a, "token_ids"_a, "num_top"_a,
           "Of a given token per row: (what is wrong, token id, raw logprob, rank, top).");
  m.def("dry_penalties", [](const Ids& ids, double multiplier, double base, int64_t allowed_length, int64_t max_length) {
    return dry_penalties({multiplier, base, allowed_length}, ids.data(), static_cast<int64_t>(ids.size()), max_length);
  }, "ids"_a, "multiplier"_a, "base"_a, "allowed_length"_a, "max_length"_a,
     "(token id, what to subtract from its logit), ids ascending.");
}

}  // namespace hotloop
