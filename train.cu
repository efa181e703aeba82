// ./train: parse options, build the parts, run. No math, no kernels.
#include <cstdio>
#include <exception>
#include <new>

#include "async/options.h"
#include "async/training_run.h"
#include "core/error.h"

namespace {

int run(int argc, char** argv) {
  loqal::Options options;
  if (!loqal::parse_options(argc, argv, options)) return 0;
  if (options.dry_run) return loqal::dry_run(options);
  if (options.sampling()) return loqal::sample_text(options);
  if (options.eval_only) return loqal::evaluate_only(options);
  if (options.exporting()) return loqal::export_only(options);
  return loqal::train(options);
}

int report(const char* message, const char* hint, loqal::Exit code) {
  std::fflush(stdout);
  std::fprintf(stderr, "train: error: %s\n", message);
  if (*hint) std::fprintf(stderr, "  hint: %s\n", hint);
  return int(code);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const loqal::Error& e) {
    return report(e.what(), e.hint.c_str(), e.exit_code);
  } catch (const std::bad_alloc&) {
    return report("out of memory", "--dry-run prints what a run needs", loqal::Exit::failure);
  } catch (const std::exception& e) {
    return report(e.what(), "this is a mistake in loqal; please report it with the command",
                  loqal::Exit::failure);
  }
}
