#include "data/document_encoder.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace loqal {
namespace {

constexpr std::pair<const char*, int64_t Counts::*> kCounts[] = {
    {"documents", &Counts::documents},
    {"empty", &Counts::empty},
    {"changed", &Counts::changed},
    {"cut", &Counts::cut},
    {"bytes", &Counts::bytes},
    {"encoded", &Counts::encoded},
    {"text_tokens", &Counts::text_tokens},
    {"unknown", &Counts::unknown},
    {"separators", &Counts::separators},
    {"padding", &Counts::padding},
};

}  // namespace

void Counts::add(const Counts& more) {
  for (const auto& [name, member] : kCounts) this->*member += more.*member;
}

Json Counts::to_json() const {
  Json json;
  for (const auto& [name, member] : kCounts) json[name] = this->*member;
  return json;
}

Counts Counts::from_json(const Json& json, const std::string& where) {
  Counts counts;
  for (const auto& [name, member] : kCounts) counts.*member = get<int64_t>(json, name, where);
  return counts;
}

Layout choose_layout(const Tokenizer& tokenizer, const std::string& tokenizer_path, std::string bos,
                     std::string eos, int row_length) {
  if (bos.empty() && eos.empty()) {
    if (tokenizer.eos() >= 0) eos = tokenizer.eos_goes_before() ? "before" : "after";
    else if (tokenizer.bos() >= 0) bos = "before";
  }
  if (bos.empty()) bos = "none";
  if (eos.empty()) eos = "none";
  const auto need = [&](const std::string& option, const std::string& value, int id) {
    if (value != "none" && id < 0)
      fail_usage(cat(option, " ", value, ": the tokenizer ", tokenizer_path, " has no ",
                     option.substr(2), " id"),
                 cat("give ", option, " none, or take another tokenizer"));
  };
  need("--bos", bos, tokenizer.bos());
  need("--eos", eos, tokenizer.eos());
  Layout layout;
  if (bos == "before") layout.bos_before = tokenizer.bos();
  if (eos == "before") layout.eos_before = tokenizer.eos();
  if (eos == "after") layout.eos_after = tokenizer.eos();
  const auto id_text = [](const std::string& place, int id) {
    return place == "none" ? place : cat(place, " (id ", id, ")");
  };
  layout.description =
      cat("bos ", id_text(bos, tokenizer.bos()), ", eos ", id_text(eos, tokenizer.eos()));
  layout.row_length = row_length;
  layout.pad = tokenizer.pad();
  if (row_length > 0 && layout.pad < 0) {
    layout.pad = layout.eos_after;
    if (layout.pad < 0)
      fail_usage(cat("--pad-to ", row_length, ": the tokenizer ", tokenizer_path,
                     " has no pad id, and no eos ends the documents that could stand for it"),
                 "give --eos after");
  }
  return layout;
}

void DocumentEncoder::append(const std::string& document, std::vector<int32_t>* ids,
                             Counts* counts) {
  counts->bytes += int64_t(document.size());
  const std::vector<int32_t> text = tokenizer_->encode(document);
  counts->encoded += int64_t(text.size());
  counts->changed += !tokenizer_->restores(text, document);
  if (text.empty()) {
    counts->empty++;
    return;
  }
  const size_t begin = ids->size();
  for (const int id : {layout_.bos_before, layout_.eos_before})
    if (id >= 0) ids->push_back(id);
  const int64_t separators = int64_t(ids->size() - begin) + (layout_.eos_after >= 0);
  const int64_t room = layout_.row_length > 0 ? layout_.row_length - separators : INT64_MAX;
  const int64_t kept = std::min(int64_t(text.size()), room);
  ids->insert(ids->end(), text.begin(), text.begin() + kept);
  if (layout_.eos_after >= 0) ids->push_back(layout_.eos_after);
  if (layout_.row_length > 0) {
    counts->padding += room - kept;
    ids->resize(begin + size_t(layout_.row_length), layout_.pad);
  }
  counts->documents++;
  counts->cut += kept < int64_t(text.size());
  counts->separators += separators;
  counts->text_tokens += kept;
  if (const int unk = tokenizer_->unk(); unk >= 0)
    counts->unknown += std::count(text.begin(), text.begin() + kept, unk);
}

}  // namespace loqal
