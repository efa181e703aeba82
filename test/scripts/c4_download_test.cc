// scripts/c4_download.sh: whatever the server does, the end is right data or an error that
// explains, and a final name means complete contents.
#include "test/scripts/c4_hub.h"

namespace loqal {
namespace {

TEST_F(C4Test, AMisbehavingServerCostsTriesOnly) {
  for (const char* mode : {"truncate", "reset", "norange", "status-500-2", "status-503-3",
                           "status-403-1", "status-408-1", "status-429-2", "crc-1"}) {
    SCOPED_TRACE(mode);
    remove_tree(here / "tokens");
    remove_tree(here / "c4");
    const Result result = run(command(mode, "--keep"));
    EXPECT_EQ(result.status, 0) << result.output;
    EXPECT_CONTAINS(result.output, "try 2 of ");
    EXPECT_TRUE(read_file(download(0)) == read_file(hub() + kTrain + cat(0, kOf)));
    EXPECT_FALSE(fs::exists(download(0) + ".part"));
    expect_train_tokens(0);
  }
}

TEST_F(C4Test, ErrorsExplain) {
  const std::pair<const char*, const char*> cases[] = {
      {"status-401-99", "HTTP 401, the server wants a login"},
      {"status-403-99", "given up after 3 tries: HTTP 403, access refused"},
      {"status-418-99", "HTTP 418, not expected"},
      {"status-429-99", "given up after 8 tries: HTTP 429, too many requests"},
      {"status-429-99-after-7200", "the server asks to wait 7200 s"},
      {"status-500-99", "given up after 8 tries: HTTP 500, trouble at the server"},
      {"html", "the answer is a web page, not gzip: Content-Type text/html"},
      {"htmlgzip", "the answer is a web page, not gzip: it starts with \"<!DOCTYPE html>"},
      {"empty", "the answer is empty"},
      {"stuck", "(2000 of "},
      {"long", "given up after 8 tries: "},
      {"short", "given up after 8 tries: damaged: unexpected end of file ("},
      {"crc-99", "given up after 8 tries: damaged: "},
      {"hub-sha", "given up after 8 tries: sha256 is not 0000000"}};
  for (const auto& [mode, message] : cases) {
    SCOPED_TRACE(mode);
    const Result result = run(command(mode, ""));
    EXPECT_EQ(result.status, 1) << result.output;
    EXPECT_CONTAINS(result.output, message);
    EXPECT_CONTAINS(result.output, "c4: not finished; what is complete is kept");
    expect_nothing_final();
    remove_tree(here / "c4");
  }
  const Result missing = run(command("ok", "--shards 7"));
  EXPECT_EQ(missing.status, 1);
  EXPECT_CONTAINS(missing.output,
                  "/ok/en/c4-train.00007-of-01024.json.gz: HTTP 404, there is no such file");
  // Port 1 is one that nobody listens to.
  const Result refused =
      run("no_proxy=127.0.0.1 C4_WAIT=0 C4_URL=http://127.0.0.1:1 " + script(""));
  EXPECT_EQ(refused.status, 1);
  EXPECT_CONTAINS(refused.output, "given up after 8 tries: Failed to connect");
  // Files of 4 KB at most: a disk that is full after those.
  const Result full = run("trap '' XFSZ; ulimit -f 8; " + command("ok", ""));
  EXPECT_EQ(full.status, 1);
  EXPECT_CONTAINS(full.output, ".part: cannot write: ");
  expect_nothing_final();
}

TEST_F(C4Test, APageInTheMiddleLosesNothing) {
  const Result result = run(command("late-html", ""));
  EXPECT_EQ(result.status, 1);
  EXPECT_CONTAINS(result.output, "the answer is a web page");
  const auto half = fs::file_size(hub() + kTrain + cat(0, kOf)) / 2;
  EXPECT_EQ(fs::file_size(download(0) + ".part"), half - 1);
  EXPECT_EQ(run(command("ok", "")).status, 0);
  EXPECT_CONTAINS(requests(), cat("ok ", kTrain, 0, kOf, " bytes=", half - 2, "-"));
  expect_train_tokens(0);
}

TEST_F(C4Test, WaitsDoubleAndTheServersOwnCountsMore) {
  const std::string path = fake("sleep", "echo $1 >> " + here / "waits");
  const auto waits = [&](const std::string& mode) {
    fs::remove(here / "waits");
    std::string line = command(mode, "");
    run(path + line.replace(line.find("C4_WAIT=0 "), 10, ""));
    return read_file(here / "waits");
  };
  EXPECT_EQ(waits("status-502-99"), "5\n10\n20\n40\n80\n160\n320\n");
  EXPECT_EQ(waits("status-429-98-after-45"), "45\n45\n45\n45\n80\n160\n320\n");
  EXPECT_NEAR(std::atoi(waits("status-503-1-after-date").c_str()), 100, 5);
}

TEST_F(C4Test, GoesOnFromWhatIsThere) {
  const std::string whole = read_file(hub() + kTrain + cat(0, kOf));
  const std::string size = cat(whole.size());
  const std::pair<std::string, std::string> cases[] = {
      {whole.substr(0, 5000), "bytes=4999-"},                  // cut
      {whole, cat("bytes=", whole.size() - 1, "-")},           // complete but for its name
      {whole + "more", cat("bytes=", whole.size() + 3, "-")},  // another file's: 416, then anew
      {"<html>", ""},                                          // not even gzip
      {"\x1f", ""}};
  for (const auto& [part, range] : cases) {
    remove_tree(here / "tokens");
    create_directories(here / "c4/en");
    write_file_atomic(download(0) + ".part", part);
    write_file_atomic(*dir_ / "requests", "");
    const Result result = run(command("ok", ""));
    EXPECT_EQ(result.status, 0) << result.output;
    EXPECT_EQ(requests().substr(0, requests().find('\n')), cat("ok ", kTrain, 0, kOf, " ", range));
    expect_train_tokens(0);
  }
}

}  // namespace
}  // namespace loqal
