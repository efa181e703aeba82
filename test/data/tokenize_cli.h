// ./tokenize as the user runs it: exit codes, messages, files. The binary is in $LOQAL_BIN_DIR [.].
#pragma once
#include <sys/wait.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "core/philox.h"
#include "data/shard.h"
#include "test/core/files.h"
#include "test/data/data_test_util.h"

namespace loqal {

struct TokenizeResult {
  int exit_code;
  std::string output;  // stdout and stderr
};

class TokenizeCli : public DataTest {
 protected:
  /// The test's folder holds gpt2/, a byte-level tokenizer: ids 0..255, <|endoftext|> 256.
  TokenizeCli() {
    std::filesystem::create_directory(path("gpt2"));
    nlohmann::json vocabulary = {{"<|endoftext|>", 256}};
    for (int b = 0; b < 256; b++) vocabulary[spelling(b)] = b;
    write("gpt2/encoder.json", vocabulary.dump());
    write("gpt2/vocab.bpe", "#version: 0.2\n");
  }

  TokenizeResult run(const std::string& arguments, const std::string& before = "") {
    const char* folder = std::getenv("LOQAL_BIN_DIR");
    const auto binary = std::filesystem::absolute(folder ? folder : ".") / "tokenize";
    EXPECT_TRUE(std::filesystem::exists(binary)) << binary;
    const std::string command =
        cat("cd ", dir_.string(), " && ", before, " ", binary.string(), " ", arguments, " 2>&1");
    FILE* pipe = popen(command.c_str(), "r");
    TokenizeResult result;
    char buffer[4096];
    while (const size_t n = fread(buffer, 1, sizeof buffer, pipe)) result.output.append(buffer, n);
    const int status = pclose(pipe);
    result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return result;
  }

  void expect(const std::string& arguments, int exit_code, const std::vector<std::string>& parts) {
    const TokenizeResult r = run(arguments);
    EXPECT_EQ(r.exit_code, exit_code) << arguments << "\n" << r.output;
    for (const std::string& part : parts)
      EXPECT_NE(r.output.find(part), std::string::npos) << part << " in:\n" << r.output;
  }

  /// `documents` lines of C4's form with words drawn from 2000, a few to a few hundred of them.
  static std::string json_lines(uint64_t seed, int documents) {
    const PhiloxStream random(seed, Purpose::test);
    uint64_t draw = 0;
    std::string out;
    for (int d = 0; d < documents; d++) {
      out += "{\"text\":\"";
      for (uint32_t n = 3 + random.bits(draw++) % (d % 50 == 7 ? 3000 : 150); n > 0; n--) {
        for (uint32_t word = random.bits(draw++) % 2000 + 1; word > 0; word /= 13)
          out += char('a' + word % 13);
        out += n % 20 == 0 ? "\\n" : " ";
      }
      out += cat("\",\"timestamp\":\"2019-04-25T12:57:54Z\",\"url\":\"https://x/", d, "\"}\n");
    }
    return out;
  }

  std::vector<int32_t> ids(const std::string& name) const {
    const Shard shard(path(name), 0);
    std::vector<int32_t> out(size_t(shard.header().tokens));
    shard.read(0, int64_t(out.size()), out.data());
    return out;
  }
};

}  // namespace loqal
