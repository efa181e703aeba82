// Fibers: stacks that one OS thread switches between. Each CUDA thread that waits at a barrier is
// one. On x86-64 a switch is fifteen instructions (about 10 ns), elsewhere it is ucontext's.
//
// AddressSanitizer and ThreadSanitizer are told of every switch. For TSan a fiber is a thread of
// its own, and a switch orders nothing: only release() and acquire() do. Fibers are kept and
// started again, because TSan would give a new one the identity of one that ended, and miss their
// races.
#pragma once
#include <cstddef>
#include <memory>

#if defined(__SANITIZE_ADDRESS__)
#define LOQAL_EMULATION_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LOQAL_EMULATION_ASAN 1
#endif
#endif

namespace loqal::emulation {

/// Whether this build's kernels run under a sanitizer. The runtime itself is compiled without TSan,
/// so the Makefile says it by this macro.
#ifdef LOQAL_EMULATION_TSAN
constexpr bool kTsan = true;
#else
constexpr bool kTsan = false;
#endif
#ifdef LOQAL_EMULATION_ASAN
constexpr bool kAsan = true;
#else
constexpr bool kAsan = false;
#endif

class Fiber {
 public:
  static constexpr size_t kStackBytes = 64 << 10;

  Fiber();  ///< with a stack of its own, not started
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// The calling OS thread's own stack, as something to switch back to.
  static std::unique_ptr<Fiber> of_this_thread();

  /// Makes the next switch_to() call body(argument) on a fresh stack. The body never returns: it
  /// ends by switching away for good.
  void start(void (*body)(void*), void* argument);
  void switch_to(Fiber& to);

  /// Throws if the stack was too small for what ran on it.
  void check_stack() const;

  /// For TSan: what was written before release(tag) is seen after acquire(tag).
  static void release(void* tag);
  static void acquire(void* tag);

 private:
  explicit Fiber(bool own_stack);
  static void enter();
  static void after_switch(Fiber* from);

  char* stack_ = nullptr;  // null: the OS thread's own
  void* sp_ = nullptr;     // the stack pointer while it is not running, or a ucontext_t
  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;
  // What the sanitizers want to know.
  [[maybe_unused]] const void* bottom_ = nullptr;
  [[maybe_unused]] size_t bytes_ = 0;
  [[maybe_unused]] void* fake_stack_ = nullptr;
  [[maybe_unused]] void* tsan_ = nullptr;
};

}  // namespace loqal::emulation
