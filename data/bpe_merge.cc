#include "data/bpe_merge.h"

#include <queue>
#include <utility>

namespace loqal {
namespace {

/// Two neighbours that may merge. It is stale if, when its turn comes, the pair that begins at
/// `left` has another rank: symbols only grow, so the same rank at the same place is the same pair.
struct Candidate {
  int32_t rank, left;
  bool operator<(const Candidate& o) const {  // priority_queue has the largest on top
    return rank != o.rank ? rank > o.rank : left > o.left;
  }
};

struct Symbol {
  int32_t id;  // -1: merged into the one before
  int32_t previous, next;
};

}  // namespace

void BpeMerges::apply(std::vector<int32_t>* ids) const {
  const int32_t n = int32_t(ids->size());
  std::vector<Symbol> symbols(ids->size());
  for (int32_t i = 0; i < n; i++) symbols[size_t(i)] = {(*ids)[size_t(i)], i - 1, i + 1};
  std::vector<int32_t>().swap(*ids);  // memory counts where a document is one word
  const auto at = [&](int32_t i) -> Symbol& { return symbols[size_t(i)]; };
  const auto merge_at = [&](int32_t left) -> const Merge* {
    if (left < 0 || at(left).id < 0 || at(left).next >= n) return nullptr;
    const auto found = merges_.find(key(at(left).id, at(at(left).next).id));
    return found == merges_.end() ? nullptr : &found->second;
  };

  std::vector<Candidate> room;
  room.reserve(2 * symbols.size());  // each merge takes one and adds two at most: it never moves
  std::priority_queue<Candidate> queue({}, std::move(room));
  const auto consider = [&](int32_t left) {
    if (const Merge* merge = merge_at(left)) queue.push({merge->rank, left});
  };
  for (int32_t i = 0; i < n; i++) consider(i);
  while (!queue.empty()) {
    const Candidate c = queue.top();
    queue.pop();
    const Merge* merge = merge_at(c.left);
    if (!merge || merge->rank != c.rank) continue;
    Symbol& left = at(c.left);
    left.id = merge->merged;
    Symbol& right = at(left.next);
    right.id = -1;
    left.next = right.next;
    if (left.next < n) at(left.next).previous = c.left;
    consider(left.previous);
    consider(c.left);
  }
  ids->clear();
  for (int32_t i = 0; i < n; i = at(i).next) ids->push_back(at(i).id);
}

}  // namespace loqal
