// The bare SentencePiece library: encodes documents that lie in memory, on N threads, and nothing
// else. spm_bench MODEL THREADS FILE... prints the megabytes of text a second.
#include <sentencepiece_processor.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "data/text_reader.h"

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  sentencepiece::SentencePieceProcessor processor;
  if (!processor.Load(argv[1]).ok()) return 1;
  std::vector<std::string> documents;
  size_t bytes = 0;
  for (int i = 3; i < argc; i++) {
    loqal::SkipReport skipped;
    loqal::TextReader reader(argv[i], {}, &skipped);
    for (std::string document; reader.next(&document);) {
      bytes += document.size();
      documents.push_back(document);
    }
  }
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    std::vector<int> ids;
    for (size_t i; (i = next++) < documents.size();)
      if (!processor.Encode(documents[i], &ids).ok()) std::abort();
  };
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (int i = 0; i < std::atoi(argv[2]); i++) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf("%.4f\n", double(bytes) / seconds.count() / 1e6);
}
