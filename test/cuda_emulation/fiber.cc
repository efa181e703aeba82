#include "test/cuda_emulation/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <new>
#include <stdexcept>

#ifndef __x86_64__
#include <ucontext.h>
#endif
#ifdef LOQAL_EMULATION_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef LOQAL_EMULATION_TSAN
#include <sanitizer/tsan_interface.h>
#endif

#ifdef __x86_64__
// Saves what the System V ABI lets a callee rely on, swaps the stack pointer, and returns on the
// other stack to where it was left.
extern "C" void loqal_switch_stack(void** save, void* load);
asm(R"(
.text
.type loqal_switch_stack,@function
loqal_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size loqal_switch_stack,.-loqal_switch_stack
)");
#endif

namespace loqal::emulation {

namespace {
thread_local Fiber* running = nullptr;  // of this OS thread
thread_local Fiber* switched_from = nullptr;
constexpr uint64_t kCanary = 0x5caf0171d00dfeedu;
}  // namespace

Fiber::Fiber() : Fiber(true) {}

Fiber::Fiber(bool own_stack) {
  if (own_stack) {
    void* memory =
        mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    stack_ = static_cast<char*>(memory);
    std::memcpy(stack_, &kCanary, sizeof kCanary);
    bottom_ = stack_;
    bytes_ = kStackBytes;
  }
#ifdef LOQAL_EMULATION_TSAN
  tsan_ = own_stack ? __tsan_create_fiber(0) : __tsan_get_current_fiber();
#endif
#ifndef __x86_64__
  sp_ = new ucontext_t;
#endif
}

Fiber::~Fiber() {
#ifdef LOQAL_EMULATION_TSAN
  if (stack_) __tsan_destroy_fiber(tsan_);
#endif
#ifdef LOQAL_EMULATION_ASAN
  // An abandoned fiber leaves its frames' red zones behind; the address may be mapped again.
  if (stack_) ASAN_UNPOISON_MEMORY_REGION(stack_, kStackBytes);
#endif
  if (stack_) munmap(stack_, kStackBytes);
#ifndef __x86_64__
  delete static_cast<ucontext_t*>(sp_);
#endif
}

std::unique_ptr<Fiber> Fiber::of_this_thread() { return std::unique_ptr<Fiber>(new Fiber(false)); }

void Fiber::start(void (*body)(void*), void* argument) {
  body_ = body;
  argument_ = argument;
#ifdef __x86_64__
  // Six zeroed registers, then the address that `ret` takes; a function starts at 16 n + 8.
  void** top = reinterpret_cast<void**>(stack_ + kStackBytes) - 8;
  std::memset(top, 0, 8 * sizeof(void*));
  top[6] = reinterpret_cast<void*>(&Fiber::enter);
  sp_ = top;
#else
  auto* context = static_cast<ucontext_t*>(sp_);
  getcontext(context);
  context->uc_stack.ss_sp = stack_;
  context->uc_stack.ss_size = kStackBytes;
  context->uc_link = nullptr;
  makecontext(context, &Fiber::enter, 0);
#endif
}

void Fiber::after_switch([[maybe_unused]] Fiber* from) {
#ifdef LOQAL_EMULATION_ASAN
  const void* bottom = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(running->fake_stack_, &bottom, &bytes);
  if (!from->stack_) from->bottom_ = bottom, from->bytes_ = bytes;  // an OS thread's: learned here
#endif
}

void Fiber::enter() {
  after_switch(switched_from);
  running->body_(running->argument_);
  __builtin_trap();  // bodies switch away for good
}

void Fiber::switch_to(Fiber& to) {
  switched_from = this;
  running = &to;
#ifdef LOQAL_EMULATION_ASAN
  __sanitizer_start_switch_fiber(&fake_stack_, to.bottom_, to.bytes_);
#endif
#ifdef LOQAL_EMULATION_TSAN
  __tsan_switch_to_fiber(to.tsan_, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef __x86_64__
  loqal_switch_stack(&sp_, to.sp_);
#else
  swapcontext(static_cast<ucontext_t*>(sp_), static_cast<ucontext_t*>(to.sp_));
#endif
  after_switch(switched_from);
}

void Fiber::check_stack() const {
  if (stack_ && std::memcmp(stack_, &kCanary, sizeof kCanary) != 0)
    throw std::runtime_error("a kernel's local variables need more than the 64 KiB of a fiber");
}

void Fiber::release([[maybe_unused]] void* tag) {
#ifdef LOQAL_EMULATION_TSAN
  __tsan_release(tag);
#endif
}

void Fiber::acquire([[maybe_unused]] void* tag) {
#ifdef LOQAL_EMULATION_TSAN
  __tsan_acquire(tag);
#endif
}

}  // namespace loqal::emulation
