#include "data/sha256.h"

#include <gtest/gtest.h>

namespace loqal {
namespace {

std::string hash_of(std::string_view text) {
  Sha256 hash;
  hash.update(text);
  return to_hex(hash.digest());
}

// The examples of FIPS 180-4 / NIST's CSRC "SHA256.pdf", and the empty message.
TEST(Sha256, KnownAnswers) {
  EXPECT_EQ(hash_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hash_of(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesDoNotMatter) {
  const std::string text(300, 'x');
  for (const size_t step : {1u, 7u, 63u, 64u, 65u}) {
    Sha256 hash;
    for (size_t i = 0; i < text.size(); i += step) hash.update(text.substr(i, step));
    EXPECT_EQ(to_hex(hash.digest()), hash_of(text)) << step;
  }
}

}  // namespace
}  // namespace loqal
