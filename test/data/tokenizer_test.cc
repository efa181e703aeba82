#include "data/tokenizer.h"

#include <nlohmann/json.hpp>

#include <map>
#include <sstream>

#include "core/philox.h"
#include "data/sha256.h"
#include "data/shard.h"
#include "data/text_reader.h"
#include "data/tokenize.h"
#include "test/data/data_test_util.h"

namespace loqal {
namespace {

using Ids = std::vector<int32_t>;

class Gpt2Test : public DataTest {
 protected:
  /// A tokenizer with ids 0..255 for the bytes, then one per merge, then <|endoftext|>.
  std::unique_ptr<Tokenizer> make(const std::vector<std::pair<std::string, std::string>>& merges) {
    nlohmann::json vocabulary;
    for (int b = 0; b < 256; b++) vocabulary[spelling(b)] = b;
    std::string lines = "#version: 0.2\n";
    int next = 256;
    for (const auto& [left, right] : merges) {
      if (!vocabulary.contains(left + right)) vocabulary[left + right] = next++;
      lines += left + " " + right + "\n";
    }
    vocabulary["<|endoftext|>"] = next;
    write("encoder.json", vocabulary.dump());
    write("vocab.bpe", lines);
    return load_tokenizer(dir_.string());
  }
};

TEST_F(Gpt2Test, MergesInOrderOfRank) {
  const auto t = make({{"l", "o"}, {"lo", "w"}, {spelling(' '), "lo"}, {"o", "w"}});
  EXPECT_EQ(t->vocab_size(), 261);
  EXPECT_EQ(t->encode("low"), (Ids{257}));
  EXPECT_EQ(t->encode("ow"), (Ids{259}));
  EXPECT_EQ(t->encode(" low"), (Ids{' ', 257}));  // "lo w" ranks before "_ lo"
  EXPECT_EQ(t->encode(" lol"), (Ids{258, 'l'}));
  EXPECT_EQ(t->encode("lolow"), (Ids{256, 257}));
  EXPECT_EQ(t->encode(""), Ids{});
  EXPECT_EQ(t->eos(), 260);
  EXPECT_TRUE(t->eos_goes_before());
  EXPECT_EQ(t->files().size(), 2u);
  Sha256 both;
  both.update(read("encoder.json"));
  both.update(read("vocab.bpe"));
  EXPECT_EQ(to_hex(t->hash()), to_hex(both.digest()).substr(0, 16));
}

// D17: text never becomes a control id, and every byte survives.
TEST_F(Gpt2Test, TextIsOnlyText) {
  const auto t = make({});
  const std::string text("<|endoftext|> a\n\n\tb\0\x7f \xc3\xa9\xf0\x9f\x98\x80\xe3\x80\x80.", 33);
  const Ids ids = t->encode(text);
  EXPECT_EQ(ids.size(), text.size());
  EXPECT_EQ(std::count(ids.begin(), ids.end(), t->eos()), 0);
  EXPECT_EQ(t->decode(ids), text);
  EXPECT_ERROR(t->encode("a\xff"), "UTF-8", "byte 1");
  EXPECT_ERROR(t->decode(Ids{257}), "257");
}

// The words of GPT-2's pattern, seen through merges that would join across their borders.
TEST_F(Gpt2Test, WordsAreGpt2s) {
  const std::string blank = spelling(' '), newline = spelling('\n');
  const auto t = make({{blank, blank},
                       {blank, "a"},
                       {"a", "1"},
                       {"a", "a"},
                       {newline, newline},
                       {newline, "a"},
                       {"'", "s"},
                       {"s", "a"},
                       {"'", "S"}});
  EXPECT_EQ(t->encode("a1"), (Ids{'a', '1'}));            // letters and digits part
  EXPECT_EQ(t->encode("   a"), (Ids{256, 257}));          // the last blank belongs to the word
  EXPECT_EQ(t->encode("a   "), (Ids{'a', 256, ' '}));     // unless nothing follows
  EXPECT_EQ(t->encode("\n\na"), (Ids{'\n', '\n', 'a'}));  // \s+(?!\S) leaves one, \s+ takes it
  EXPECT_EQ(t->encode("a'sa"), (Ids{'a', 262, 'a'}));     // contractions are words
  EXPECT_EQ(t->encode("'Sa"), (Ids{'\'', 'S', 'a'}));     // in lower case only
}

/// The published algorithm as it reads: find the pair of lowest rank, merge it everywhere, repeat.
Ids naive_merge(Ids word, const std::map<std::pair<int, int>, std::pair<int, int>>& merges) {
  for (;;) {
    const std::pair<const std::pair<int, int>, std::pair<int, int>>* best = nullptr;
    for (size_t i = 0; i + 1 < word.size(); i++) {
      const auto found = merges.find({word[i], word[i + 1]});
      if (found != merges.end() && (!best || found->second.first < best->second.first))
        best = &*found;
    }
    if (!best) return word;
    Ids merged;
    for (size_t i = 0; i < word.size(); i++) {
      const bool pair =
          i + 1 < word.size() && word[i] == best->first.first && word[i + 1] == best->first.second;
      merged.push_back(pair ? best->second.second : word[i]);
      i += pair;
    }
    word = merged;
  }
}

TEST_F(Gpt2Test, HeapAgreesWithThePublishedLoop) {
  const PhiloxStream random(7, Purpose::test);
  uint64_t draw = 0;
  std::vector<std::string> pieces = {"a", "b", "c"};
  std::vector<std::pair<std::string, std::string>> merges;
  std::map<std::pair<int, int>, std::pair<int, int>> table;
  std::map<std::string, int> id = {{"a", 'a'}, {"b", 'b'}, {"c", 'c'}};
  while (merges.size() < 40) {
    const std::string left = pieces[random.bits(draw++) % pieces.size()];
    const std::string right = pieces[random.bits(draw++) % pieces.size()];
    if (id.count(left + right)) continue;  // a merge list makes each piece once
    id[left + right] = 256 + int(merges.size());
    table[{id[left], id[right]}] = {int(merges.size()), id[left + right]};
    merges.emplace_back(left, right);
    pieces.push_back(left + right);
  }
  const auto t = make(merges);
  for (int i = 0; i < 500; i++) {
    std::string word;
    for (uint32_t n = 1 + random.bits(draw++) % 60; n > 0; n--)
      word += char('a' + random.bits(draw++) % 3);
    EXPECT_EQ(t->encode(word), naive_merge(Ids(word.begin(), word.end()), table)) << word;
  }
}

// A document without a blank is one word: a quadratic merge would take minutes here.
TEST_F(Gpt2Test, AVeryLongWordIsNotQuadratic) {
  const auto t = make({{"a", "a"}, {"aa", "aa"}});
  EXPECT_EQ(t->encode(std::string(1 << 20, 'a')).size(), size_t(1 << 18));
}

// Small vocabularies lack bytes that their text did not have: an error for text that has them, and
// for no other.
TEST_F(Gpt2Test, AMissingByteIsAnErrorWhereItIsNeeded) {
  write("vocab.json", R"({"a":0,"b":1,"ab":2,"\u0120":3,"<|endoftext|>":4})");  // U+0120: a blank
  write("merges.txt", "#version: 0.2\na b\n");
  const auto t = load_tokenizer(dir_.string());
  EXPECT_EQ(t->encode("ab ba"), (Ids{2, 3, 1, 0}));
  EXPECT_EQ(t->decode(Ids{2, 3, 1}), "ab b");
  EXPECT_ERROR(t->encode("a\xc3\xa9"), "vocab.json", "no piece for byte 195", "\"a\xc3\xa9\"");
  EXPECT_EQ(t->encode("ba"), (Ids{1, 0})) << "the error leaves nothing behind";
}

TEST_F(Gpt2Test, BrokenFilesAreNamed) {
  make({{"a", "b"}});
  write("vocab.bpe", "#version: 0.2\na b\na zz\n");
  EXPECT_ERROR(load_tokenizer(dir_.string()), "vocab.bpe:3", "a zz");
  write("encoder.json", "{\"a\":0}");
  EXPECT_ERROR(load_tokenizer(dir_.string()), "vocab.bpe:2", "a b");
  write("encoder.json", "{\"a\":0,\"b\":7}");
  EXPECT_ERROR(load_tokenizer(dir_.string()), "encoder.json", "id 7", "0 to 1");
  write("encoder.json", "<html>");
  EXPECT_ERROR(load_tokenizer(dir_.string()), "encoder.json", "JSON");
  std::filesystem::remove(path("vocab.bpe"));
  EXPECT_ERROR(load_tokenizer(dir_.string()), "expected tokenizer.model", "vocab.bpe");
  EXPECT_ERROR(load_tokenizer(path("none")), "no such tokenizer");
}

#if LOQAL_SENTENCEPIECE

class SpmTest : public DataTest {
 protected:
  std::string train(const std::string& text, int vocab, const std::string& type,
                    const std::string& name) {
    std::ostringstream log;
    train_spm({{write("in.txt", text)}, path(name), vocab, type, {}}, log);
    log_ = log.str();
    return path(name + ".model");
  }
  static std::string some_text() {
    const PhiloxStream random(3, Purpose::test);
    const char* syllables[] = {"the", "ca", "sat", "on", "a",  "ma",  "whi", "rai",
                               "fe",  "so", "ly",  "no", "bo", "was", "re",  "19"};
    const char* ends[] = {" ", " ", " ", "", "", ".\n\n", "  ", ", "};
    std::string text;
    for (uint64_t i = 0; text.size() < 30000; i++)
      text += std::string(syllables[random.bits(2 * i) % 16]) + ends[random.bits(2 * i + 1) % 8];
    return text;
  }
  std::string log_;
};

// D13, D16, D17: text survives, long documents are split and not dropped, ids are as documented.
TEST_F(SpmTest, TrainedModelsKeepText) {
  for (const char* type : {"unigram", "bpe"}) {
    const auto t = load_tokenizer(train(some_text(), 320, type, type));
    EXPECT_NE(log_.find("pieces     8 of 8"), std::string::npos) << log_;  // 30 kB in pieces of 4
    EXPECT_EQ(t->vocab_size(), 320);
    EXPECT_EQ(t->unk(), 0);
    EXPECT_EQ(t->bos(), 1);
    EXPECT_EQ(t->eos(), 2);
    EXPECT_EQ(t->pad(), -1);
    for (const std::string text : {"the  cat\n\n\tsat", " leading", "trailing ", "</s><s><unk>",
                                   "\xef\xb8\xb0 \xef\xac\x81 caf\xc3\xa9 \xf0\x9f\x98\x80"}) {
      const Ids ids = t->encode(text);
      EXPECT_EQ(t->decode(ids), text) << type;
      EXPECT_TRUE(t->restores(ids, text)) << text;
      EXPECT_FALSE(t->restores(ids, text + "x")) << text;
      for (const int32_t id : ids) EXPECT_GT(id, 2) << text;
    }
    EXPECT_ERROR(t->decode(Ids{320}), "id 320", "has 320");
  }
}

TEST_F(SpmTest, TrainingIsDeterministic) {
  train(some_text(), 320, "unigram", "one");
  train(some_text(), 320, "unigram", "two");
  EXPECT_EQ(read("one.model"), read("two.model"));
}

// D14: the limits are numbers that work, and no model file is left.
TEST_F(SpmTest, ImpossibleVocabulariesSayWhatIsPossible) {
  const std::string text = "Twelve small sentences. They say very little. One is odd.";
  const std::string high = error_of([&] { train(text, 32000, "unigram", "m"); });
  const std::string low = error_of([&] { train(text, 10, "unigram", "m"); });
  EXPECT_NE(high.find("32000"), std::string::npos) << high;
  EXPECT_EQ(names(), (std::vector<std::string>{"in.txt"}));
  for (const std::string& message : {high, low}) {
    const size_t at = message.rfind("--vocab ");
    ASSERT_NE(at, std::string::npos) << message;
    EXPECT_NO_THROW(train(text, std::atoi(message.c_str() + at + 8), "unigram", "m")) << message;
  }
}

TEST_F(SpmTest, DamagedModelsAreRefused) {
  const std::string model = train(some_text(), 320, "unigram", "m");
  write("cut.model", read("m.model").substr(0, 2000));
  EXPECT_ERROR(load_tokenizer(path("cut.model")), "cut.model", "not a SentencePiece model");
  EXPECT_ERROR(load_tokenizer(write("html.model", "<html>")), "HTML");
  EXPECT_ERROR(load_tokenizer(write("empty.model", "")), "empty");
}

#endif

}  // namespace
}  // namespace loqal
