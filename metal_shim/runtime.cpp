// Runs one dispatch of a Metal kernel on the CPU and checks every access. The kernel is a shared
// object, the argument of this program, which reads the request from stdin and writes the result to
// stdout; the two formats are those of `emulate.py`. A thread is a fiber, 32 of them are a
// SIMD-group; they switch at barriers and where lanes exchange values. -fsanitize=thread makes the
// kernel call __tsan_read4(address) and the like before each access. Those functions are defined
// here, no sanitizer library is linked, and look up each access in a shadow of the memory.
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unordered_map>
#include <vector>
#define MSL_TEXT(word) #word
#define MSL_NAME(word) MSL_TEXT(word) // a label's prefix is `_` on macOS

extern "C" {
struct MslThread { uint32_t tid[3], group[3], index, lane, simdgroup; };
struct MslDispatch { uint32_t grid[3], group[3], groups[3], current[3], threads, simdgroups; };
MslThread* msl_thread;
MslDispatch msl_dispatch;
}

namespace {
// Each array lies in the middle of a slot of addresses: an index of 32 bits stays in its slot, so
// that a finding names the array, however far outside of it.
#ifndef MSL_SLOT_BITS
#define MSL_SLOT_BITS 36 // qemu takes minutes for so many addresses
#endif
constexpr size_t STACK = 64 << 10, PAGE = 4096, SLOT = size_t(1) << MSL_SLOT_BITS, SLOTS = 128;
constexpr size_t ARENA = SLOT * SLOTS, MOST_BYTES = size_t(1) << 32;
constexpr size_t MOST_FOR_OTHERS = 1 << 20; // accesses of the first and last corner of a grid
enum Flags { WRITABLE = 1, INITIALISED = 2, SAME_VALUE = 4, FILLED = 8, EMPTY = 16 };
enum Atomic { LOAD, STORE, MODIFY, NO_ATOMIC };
enum Order { FORWARD, BACKWARD, ROTATED };
struct Request {
  uint32_t count, counting, groups_backward, order, unchecked, corners, grid[3], group[3];
  uint64_t threadgroup_limit, accesses;
};
struct BufferRequest { char name[40]; uint64_t bytes; uint32_t flags, element; };

enum Space : uint8_t { DEVICE, THREADGROUP };
const char* const SPACE[] = {"device", "threadgroup"};
// An access by a thread of a threadgroup (numbered from 1; 0 is none), with the barriers passed
// before it by that threadgroup and by its SIMD-group in that memory space.
struct Stamp {
  uint32_t group = 0, group_epoch = 0, simd_epoch = 0;
  uint16_t thread = 0, simdgroup = 0;
  void* pc = nullptr;
};
// Who read since the last write. With less, scratch memory of one SIMD-group would raise a false
// alarm, or the second of two readers would hide the first.
enum Readers : uint8_t { NOBODY, ONE, LANES, SIMDGROUPS, THREADGROUPS };
struct Cell {
  Stamp write, read, atomic; // atomics are apart: one may follow a plain write that others miss
  Readers readers = NOBODY, atomics = NOBODY;
  bool atomic_wrote = false, initialised = false, was_read = false, was_written = false;
};
struct Region {
  char *low, *high;
  char name[40];
  uint32_t element, shift, flags;
  Space space;
  int line; // of the declaration of a threadgroup variable
  std::vector<Cell> cells; // none of device memory that is addresses alone
  uint64_t read = 0, written = 0, sectors = 0;
};
enum State : uint8_t { READY, AT_BARRIER, EXCHANGING, DONE };
struct Fiber {
  MslThread ids;
  State state;
  uint32_t function, flags;
  int line;
  void* stack_pointer;
};
struct Simdgroup {
  unsigned char values[2][32][64];
  uint32_t turn, active, epoch[2], first, count;
};
struct Counts {
  uint64_t threads, barriers, exchanges, threadgroup_bytes, bank_rounds, accesses, narrow;
};
// Addresses that the lanes of a SIMD-group asked for at one instruction, by its executions.
struct Instruction {
  struct Execution { uint32_t lanes = 0; uint64_t offset[32]; };
  uint32_t executed[32] = {}, size = 0;
  int32_t region = 0;
  std::vector<Execution> executions;
};

Request request;
std::vector<BufferRequest> buffers;
std::vector<std::vector<char>> contents;
Fiber fibers[1024], *now;
Simdgroup simdgroups[32];
std::vector<Region> regions;
char *arena, *stacks;
uint32_t group_index, group_epoch[2];
bool failed, bytewise, running; // running: a fiber, and not the scheduler
bool beyond;                    // the first threadgroup of corners has ended
char finding[1000], uninitialised[1000]; // the second is reported if no thread writes there later
char undefined[1000]; // a value of an inactive lane: reported if the results depend on `fill`
int fill = 0xFF;      // the bytes of such a value, and of memory that nothing has written
Counts counts;
uint64_t accesses_left, addresses[64], base; // base: where the kernel was loaded
void (*entry)(uint64_t* buffers);           // the kernel's
std::unordered_map<void*, Instruction> instructions[32];

// Where a thread or a threadgroup lies, counted along x first.
void unravel(uint64_t i, const uint32_t* extents, uint32_t* at) {
  for (int k = 0; k < 3; i /= extents[k++]) at[k] = k < 2 ? i % extents[k] : i;
}

// A switch of our own: ucontext makes a system call in each, and takes ten times as long.
void* scheduler;
extern "C" void msl_switch(void** save, void* to);
#define MSL_LABEL MSL_NAME(__USER_LABEL_PREFIX__) "msl_switch"
#if defined(__aarch64__)
constexpr int SAVED = 20, RETURN = 11; // x19 to x29, x30, d8 to d15
#define MSL_REGISTERS(op) \
  op " x19, x20, [sp]\n" op " x21, x22, [sp, #16]\n" op " x23, x24, [sp, #32]\n" \
  op " x25, x26, [sp, #48]\n" op " x27, x28, [sp, #64]\n" op " x29, x30, [sp, #80]\n" \
  op " d8, d9, [sp, #96]\n" op " d10, d11, [sp, #112]\n" op " d12, d13, [sp, #128]\n" \
  op " d14, d15, [sp, #144]\n"
asm(".text\n.globl " MSL_LABEL "\n.p2align 2\n" MSL_LABEL ":\n"
    "sub sp, sp, #160\n" MSL_REGISTERS("stp") "mov x9, sp\n str x9, [x0]\n mov sp, x1\n"
    MSL_REGISTERS("ldp") "add sp, sp, #160\n ret\n");
#elif !defined(__x86_64__)
#error "fibers switch on x86-64 and ARM64 only"
#else
constexpr int SAVED = 7, RETURN = 6; // six registers, then the return address
asm(".text\n.globl " MSL_LABEL "\n" MSL_LABEL ":\n"
    "push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
    "mov %rsp,(%rdi)\n mov %rsi,%rsp\n"
    "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n");
#endif
void leave() { msl_switch(&now->stack_pointer, scheduler); }
void hop(void** from, Fiber* to) {
  now = to; msl_thread = &to->ids; msl_switch(from, to->stack_pointer); }

// Continue with the next lane of the SIMD-group that is ready, else with the scheduler.
void yield() {
  const Simdgroup& s = simdgroups[now->ids.simdgroup];
  for (uint32_t i = now->ids.index + 1; !failed && i < s.first + s.count; i++)
    if (fibers[i].state == READY) return hop(&now->stack_pointer, &fibers[i]);
  leave();
}

void run_thread() { entry(addresses); now->state = DONE; yield(); abort(); }

void start(Fiber& f, char* stack) {
  void** sp = (void**)(stack + STACK - 64) - 1 - SAVED; // which keeps the stack aligned
  if (SAVED % 2 == 0) sp++;
  memset(sp, 0, SAVED * sizeof(void*));
  sp[RETURN] = (void*)run_thread;
  f.stack_pointer = sp;
  f.state = READY;
}

// A place is the return address of a call in the kernel, or a line of its text with bit 62 set.
constexpr uint64_t LINE = uint64_t(1) << 62;
void* at_line(int line) { return line ? (void*)(LINE | line) : nullptr; }
uint64_t place(void* pc) {
  return !pc || (uint64_t)pc & LINE ? (uint64_t)pc : (uint64_t)pc - 1 - base; }

// Write a finding: `check place thread group group group sentence`, where `@place@` in the sentence
// is that of another access.
template <class... A>
void describe(char* to, const char* check, void* pc, const char* format, A... values) {
  MslThread none = {}; const MslThread& t = now ? now->ids : none;
  int n = snprintf(to, 200, "%s %llx %d %u %u %u ", check, (unsigned long long)place(pc),
                   now ? (int)t.index : -1, t.group[0], t.group[1], t.group[2]);
  snprintf(to + n, sizeof finding - n, format, values...);
}

// Keep the first finding and end the run.
template <class... A> void fail(const char* check, void* pc, const char* format, A... values) {
  if (!failed) describe(finding, check, pc, format, values...);
  failed = true;
  if (running) { now->state = DONE; leave(); }
}

// Keep what may be a fault and go on: a value of an inactive lane that nobody uses is none, and a
// read of memory that nothing has written is a race if a thread writes there before the barrier.
template <class... A>
void keep(char* to, const char* check, void* pc, const char* format, A... values) {
  if (!to[0] && !request.unchecked) describe(to, check, pc, format, values...);
}

template <class... A> [[noreturn]] void refuse(const char* format, A... values) {
  printf("error "); printf(format, values...); printf("\n"); exit(0);
}

constexpr int RESERVED = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
Region& add(const BufferRequest& b, Space space, int line) {
  uint64_t total = b.bytes;
  for (auto& r : regions) total += r.high - r.low;
  if (request.corners && b.bytes > SLOT / 2) refuse("a buffer takes more than 32 GiB");
  if (!request.corners && total > MOST_BYTES) refuse("the buffers take more than 4 GiB");
  if (regions.size() >= SLOTS) refuse("more than %zu buffers and threadgroup arrays", SLOTS);
  char* low = arena + regions.size() * SLOT + SLOT / 2;
  uint32_t shift = bytewise ? 0 : b.element >= 4 ? 2 : b.element == 2 ? 1 : 0;
  regions.push_back({low, low + b.bytes, {}, b.element, shift, b.flags, space, line});
  Region& r = regions.back();
  memcpy(r.name, b.name, sizeof r.name);
  if (b.flags & EMPTY) return r;
  r.cells.resize((b.bytes >> shift) + 1);
  if (b.flags & INITIALISED) for (Cell& c : r.cells) c.initialised = true;
  return r;
}

// Does a barrier, or the order within one thread, put that access before the present one?
bool ordered(const Region& r, const Stamp& that, Readers who) {
  const MslThread& me = now->ids;
  if (who == THREADGROUPS || that.group != group_index + 1) return false;
  if (who == ONE && that.thread == me.index) return true;
  if (that.group_epoch < group_epoch[r.space]) return true;
  return who != SIMDGROUPS && that.simdgroup == me.simdgroup &&
         that.simd_epoch < simdgroups[me.simdgroup].epoch[r.space];
}

void race(const Region& r, size_t cell, bool write, bool they_write, const Stamp& that, void* pc) {
  if (request.unchecked) return;
  uint32_t g[3];
  unravel(that.group - 1, msl_dispatch.groups, g);
  bool same = that.group - 1 == group_index;
  fail("racecheck", pc,
       "race on %s memory %s[%zu]: %s here, and thread %u of threadgroup %u,%u,%u %s it%s%s@%llx@",
       SPACE[r.space], r.name, (cell << r.shift) / r.element, write ? "written" : "read",
       that.thread, g[0], g[1], g[2], they_write ? "wrote" : "read",
       same ? ", with no barrier of mem_" : "; nothing orders two threadgroups",
       same ? (r.space == DEVICE ? "device between" : "threadgroup between") : "",
       (unsigned long long)place(that.pc));
}

// Enter an access into those since the last write: by whom they were, and the latest of them.
void join(const Region& r, Stamp& last, Readers& who, const Stamp& me) {
  if (!who || ordered(r, last, who)) who = ONE;
  else if (last.group != me.group) who = THREADGROUPS;
  else if (who < SIMDGROUPS) who = last.simdgroup == me.simdgroup ? LANES : SIMDGROUPS;
  last = me;
}

void access_cell(Region& r, size_t k, const Stamp& me, bool write, Atomic atomic, void* pc) {
  Cell& c = r.cells[k];
  bool plain = atomic == NO_ATOMIC, shared = plain && write && r.flags & SAME_VALUE;
  if (c.write.group && !shared && !ordered(r, c.write, ONE))
    return race(r, k, write, true, c.write, pc);
  if (plain && c.atomics && (write || c.atomic_wrote) && !ordered(r, c.atomic, c.atomics))
    return race(r, k, write, c.atomic_wrote, c.atomic, pc);
  if (write && c.readers && !ordered(r, c.read, c.readers))
    return race(r, k, true, false, c.read, pc);
  if ((!write || atomic == MODIFY) && !c.initialised && !(r.flags & INITIALISED))
    keep(uninitialised, "initcheck", pc, "read of %s memory %s[%zu], which nothing has written",
         SPACE[r.space], r.name, (k << r.shift) / r.element);
  if (!plain) {
    bool anew = !c.atomics || ordered(r, c.atomic, c.atomics);
    c.atomic_wrote = write || (c.atomic_wrote && !anew);
    join(r, c.atomic, c.atomics, me);
  } else if (write) {
    c.write = me; c.readers = c.atomics = NOBODY;
  } else join(r, c.read, c.readers, me);
  if (write) c.initialised = c.was_written = true; else c.was_read = true;
}

void note(Region& r, char* p, uint32_t n, void* pc) {
  Instruction& s = instructions[now->ids.simdgroup][pc];
  uint32_t lane = now->ids.lane, k = s.executed[lane]++;
  s.size = n; s.region = &r - regions.data();
  if (k >= s.executions.size()) s.executions.resize(k + 1);
  s.executions[k].lanes |= 1u << lane; s.executions[k].offset[lane] = p - arena;
}

// Count the sectors of 32 bytes that each instruction of a SIMD-group asked for, and rounds of
// threadgroup memory if that has 32 banks of 4 bytes, which Apple does not publish.
void count(uint32_t simdgroup) {
  for (auto& [pc, s] : instructions[simdgroup]) {
    Region& r = regions[s.region];
    uint64_t unit = r.space == DEVICE ? 32 : 4;
    for (auto& x : s.executions) {
      uint64_t seen[64]; uint32_t n = 0, bank[32] = {}, most = 0;
      for (uint32_t l = 0; l < 32; l++)
        for (uint64_t u = x.offset[l] / unit;
             (x.lanes >> l & 1) && u <= (x.offset[l] + s.size - 1) / unit; u++)
          if (n < 64 && std::find(seen, seen + n, u) == seen + n) {
            seen[n++] = u; most = std::max(most, ++bank[u % 32]); }
      if (r.space == DEVICE) r.sectors += n;
      else { counts.bank_rounds += most; counts.accesses++; }
    }
  }
  instructions[simdgroup].clear();
}

void outside(char* p, uint32_t n, bool write, void* pc, const Region& r) {
  int64_t bytes = p - r.low, size = r.element, at = bytes < 0 ? (bytes - size + 1) / size : bytes / size;
  char wrapped[60] = "";
  if (at >= (int64_t(1) << 31) && at < int64_t(1) << 32)
    snprintf(wrapped, sizeof wrapped, ", which is %lld as an int", (long long)(int32_t)at);
  fail("memcheck", pc, "%s of %u bytes outside %s memory %s: at index %lld of %lld%s",
       write ? "write" : "read", n, SPACE[r.space], r.name, (long long)at,
       (long long)((r.high - r.low) / size), wrapped);
}

// Is it the kernel's own constants, or what the runtime shares with it?
bool in_an_object(char* p) {
  static uintptr_t pages[64]; // asked before; as numbers, since a pointer may be taken to be none
  uintptr_t page = (uintptr_t)p / PAGE, &last = pages[page % 64];
  if (page < 16) return false;
  Dl_info about;
  if (last != page && (!dladdr(p, &about) || p < about.dli_fbase)) return false;
  last = page; return true;
}

void access(void* address, uint32_t n, bool write, void* pc, Atomic atomic = NO_ATOMIC) {
  char *p = (char*)address, *own = stacks + now->ids.index * STACK;
  const char* verb = write ? "write" : "read";
  size_t id = size_t(p - arena) / SLOT;
  if (id >= regions.size()) {
    if ((p >= own && p < own + STACK) || in_an_object(p)) return;
    return fail("memcheck", pc, p >= stacks && p < stacks + 1024 * STACK
                ? "%s beyond the thread's own arrays"
                : "%s at an address far from every buffer", verb);
  }
  if (failed) return;
  if (--accesses_left == 0)
    return fail("synccheck", pc, "no end after the permitted number of accesses");
  Region& r = regions[id];
  if (p < r.low || p + n > r.high) return outside(p, n, write, pc, r);
  if (write && !(r.flags & WRITABLE))
    return fail("memcheck", pc, "write to the input %s", r.name);
  if (r.flags & EMPTY) return;
  (write ? r.written : r.read) += n;
  if (request.counting && atomic == NO_ATOMIC) note(r, p, n, pc);
  size_t offset = p - r.low, mask = (size_t(1) << r.shift) - 1;
  if (n <= mask || offset & mask) { counts.narrow++; return; } // see `main`
  const MslThread& t = now->ids;
  Stamp me = {group_index + 1, group_epoch[r.space], simdgroups[t.simdgroup].epoch[r.space],
              uint16_t(t.index), uint16_t(t.simdgroup), pc};
  for (size_t k = offset >> r.shift; k <= (offset + n - 1) >> r.shift && !failed; k++)
    access_cell(r, k, me, write, atomic, pc);
}

// Lanes that wait at the same function go on; `false` where none waits.
bool exchange(Simdgroup& s) {
  Fiber *first = &fibers[s.first], *end = first + s.count, *head = nullptr;
  for (Fiber* f = first; f < end && !head; f++) if (f->state == EXCHANGING) head = f;
  if (!head) return false;
  s.active = 0;
  s.turn ^= 1; // who goes on may give the next value before others have taken this one
  for (Fiber* f = first; f < end; f++) {
    if (f->state != EXCHANGING) continue;
    if (f->function == head->function && f->line == head->line) {
      s.active |= 1u << f->ids.lane; f->state = READY;
    } else memcpy(s.values[s.turn][f->ids.lane], s.values[s.turn ^ 1][f->ids.lane], 64);
  }
  if (head->function & 0x8000) {
    uint32_t reached = __builtin_popcount(s.active);
    if (reached != s.count) {
      for (Fiber* f = first; f < end; f++) if (!(s.active >> f->ids.lane & 1)) now = f;
      fail("synccheck", at_line(head->line), "simdgroup_barrier reached by %u of %u lanes",
           reached, s.count); }
    for (int space = 0; space < 2; space++) s.epoch[space] += head->function >> space & 1;
  }
  if (request.counting) count(&s - simdgroups);
  return true;
}

// Run a SIMD-group until all its lanes have returned or wait at a barrier of the threadgroup.
void run_simdgroup(Simdgroup& s) {
  do {
    for (uint32_t i = s.first; i < s.first + s.count && !failed; i++)
      if (fibers[i].state == READY) { running = true; hop(&scheduler, &fibers[i]); running = false; }
    now = nullptr;
  } while (!failed && exchange(s));
}

// Let the threads go on from a barrier. Returns false where all have returned.
bool pass_barrier() {
  uint32_t waiting = 0, flags = 3;
  Fiber *at = nullptr, *apart = nullptr, *returned = nullptr;
  for (Fiber* f = fibers; f < fibers + msl_dispatch.threads; f++) {
    if (f->state != AT_BARRIER) { returned = f; continue; }
    if (!at) at = f;
    if (f->line != at->line) apart = f;
    flags &= f->flags; waiting++;
  }
  if (!waiting || failed) return false;
  if (returned)
    fail("synccheck", at_line(at->line),
         "threadgroup_barrier reached by %u of %u threads; thread %u has returned", waiting,
         msl_dispatch.threads, returned->ids.index);
  else if (apart)
    fail("synccheck", at_line(at->line),
         "thread %u waits at this barrier and thread %u at another one@%llx@", at->ids.index,
         apart->ids.index, (unsigned long long)place(at_line(apart->line)));
  for (int space = 0; space < 2; space++)
    if (flags >> space & 1) {
      group_epoch[space]++;
      for (Simdgroup& s : simdgroups) s.epoch[space]++; }
  for (Fiber* f = fibers; f < fibers + msl_dispatch.threads; f++) f->state = READY;
  return !failed;
}

void run_group(uint64_t g) {
  MslDispatch& d = msl_dispatch;
  uint32_t n = 1, at[3];
  unravel(g, d.groups, at);
  for (int k = 0; k < 3; k++)
    n *= d.current[k] = std::min(d.group[k], d.grid[k] - at[k] * d.group[k]);
  group_index = g; d.threads = n; d.simdgroups = (n + 31) / 32; counts.threads += n;
  group_epoch[DEVICE] = group_epoch[THREADGROUP] = 1;
  regions.erase(regions.begin() + buffers.size(), regions.end());
  for (uint32_t t = 0; t < n; t++) {
    fibers[t].ids = {{}, {at[0], at[1], at[2]}, t, t % 32, t / 32};
    unravel(t, d.current, fibers[t].ids.tid);
    start(fibers[t], stacks + t * STACK);
  }
  for (uint32_t s = 0; s < d.simdgroups; s++) {
    simdgroups[s].first = s * 32; simdgroups[s].count = std::min(32u, n - s * 32);
    simdgroups[s].turn = 0;
    simdgroups[s].epoch[DEVICE] = simdgroups[s].epoch[THREADGROUP] = 1;
  }
  uint32_t m = d.simdgroups, round = 0;
  do {
    for (uint32_t i = 0; i < m && !failed; i++)
      run_simdgroup(simdgroups[request.order == BACKWARD ? m - 1 - i
                               : request.order == ROTATED ? (i + 1 + round) % m : i]);
    round++;
  } while (pass_barrier());
  for (uint32_t s = 0; s < m && request.counting && !failed; s++) count(s);
}

void check_written() {
  if (request.unchecked || request.corners) return;
  for (size_t i = 0; i < buffers.size() && !failed; i++) {
    size_t holes = 0, first = 0, n = regions[i].high - regions[i].low;
    for (size_t k = 0; k < n >> regions[i].shift; k++)
      if (!regions[i].cells[k].initialised && !holes++) first = k;
    if (holes)
      fail("initcheck", nullptr, "output %s[%zu] was never written, nor %zu other elements",
           buffers[i].name, (first << regions[i].shift) / regions[i].element,
           ((holes << regions[i].shift) / regions[i].element) - 1);
  }
}

void run() {
  failed = false; finding[0] = uninitialised[0] = undefined[0] = 0; counts = {}; now = nullptr;
  accesses_left = request.accesses;
  regions.clear();
  for (size_t i = 0; i < buffers.size(); i++) {
    Region& r = add(buffers[i], DEVICE, 0);
    addresses[i] = (uint64_t)r.low;
    if (buffers[i].flags & EMPTY) continue;
    if (buffers[i].flags & INITIALISED) memcpy(r.low, contents[i].data(), buffers[i].bytes);
    else memset(r.low, 0xA5, buffers[i].bytes); }
  MslDispatch& d = msl_dispatch;
  uint64_t groups = 1;
  for (int k = 0; k < 3; k++) {
    d.grid[k] = request.grid[k]; d.group[k] = request.group[k];
    d.groups[k] = (d.grid[k] + d.group[k] - 1) / d.group[k];
    groups *= d.groups[k]; }
  if (request.corners) {
    uint64_t size[3] = {1, d.groups[0], uint64_t(d.groups[0]) * d.groups[1]};
    for (uint32_t i = 0; i < 8 && !failed; i++) { // the first, and then the last before others
      uint32_t corner = i ? 8 - i : 0; uint64_t g = 0;
      bool again = i > 1 && request.accesses - accesses_left > MOST_FOR_OTHERS;
      beyond = i > 0;
      for (int k = 0; k < 3; k++)
        if (corner >> k & 1) { g += (d.groups[k] - 1) * size[k]; again |= d.groups[k] == 1; }
      if (!again) run_group(g); }
  } else for (uint64_t i = 0; i < groups && !failed; i++)
    run_group(request.groups_backward ? groups - 1 - i : i);
  now = nullptr;
  check_written();
}

std::vector<char> results() {
  std::vector<char> all(finding, finding + strlen(finding));
  for (size_t i = 0; i < buffers.size(); i++)
    if (buffers[i].flags & WRITABLE && !request.corners)
      all.insert(all.end(), regions[i].low, regions[i].high);
  return all;
}

// Run, and where a value was undefined run again with another: it is a fault if the results differ.
void settle() {
  fill = 0xFF;
  run();
  if (!undefined[0]) return;
  char first[sizeof undefined]; memcpy(first, undefined, sizeof first);
  auto before = results();
  fill = 0x41;
  run();
  if (results() == before) return;
  memcpy(finding, first, sizeof first); uninitialised[0] = 0; failed = true;
}

template <class T> void receive(T* to, size_t n = 1) {
  if (fread(to, sizeof(T), n, stdin) != n) refuse("the request ends early"); }

void reply() {
  bool ordered = !strncmp(finding, "synccheck", 9) || !strncmp(finding, "racecheck", 9);
  if (uninitialised[0] && !ordered) { printf("finding %s\n", uninitialised); return; }
  if (failed) { printf("finding %s\n", finding); return; }
  printf("counts %lu %lu %lu %lu %lu %lu\n", counts.threads, counts.barriers, counts.exchanges,
         counts.threadgroup_bytes, counts.bank_rounds, counts.accesses);
  for (size_t i = 0; i < buffers.size() && !request.corners; i++) {
    const Region& r = regions[i]; uint64_t read = 0, written = 0;
    for (const Cell& c : r.cells) { read += c.was_read; written += c.was_written; }
    printf("buffer %s %lu %lu %lu %lu %lu\n", r.name, r.read, r.written, read << r.shift,
           written << r.shift, r.sectors); }
  printf("end\n");
  const auto contents = results(); // without a finding these are the outputs alone
  fwrite(contents.data(), 1, contents.size(), stdout);
}
} // namespace

extern "C" {
void msl_barrier(uint32_t flags, int line) {
  counts.barriers++;
  now->state = AT_BARRIER; now->flags = flags; now->line = line; yield();
}
const void* msl_exchange(const void* value, uint32_t n, uint32_t function, int line,
                         uint32_t* active) {
  Simdgroup& s = simdgroups[now->ids.simdgroup];
  memcpy(s.values[s.turn][now->ids.lane], value, n);
  counts.exchanges++;
  now->state = EXCHANGING; now->function = function; now->line = line; yield();
  *active = s.active; return s.values[s.turn ^ 1];
}
void msl_require_all(uint32_t active, int line) {
  if (active != 0xffffffffu)
    fail("synccheck", at_line(line), "a simdgroup_matrix function was reached by %d of 32 lanes",
         __builtin_popcount(active));
}
// The value of an inactive lane is undefined, and may be: see `settle`.
void msl_inactive(uint32_t lane, int line, void* value, uint32_t n) {
  memset(value, fill, n);
  keep(undefined, "synccheck", at_line(line),
       "a value is taken from lane %u, which is not active here", lane);
}
uint64_t msl_allocate(const char* name, int line, uint64_t bytes, uint32_t element) {
  uint64_t used = bytes;
  for (size_t i = buffers.size(); i < regions.size(); i++) {
    Region& r = regions[i];
    if (r.line == line && !strcmp(r.name, name)) return (uint64_t)r.low;
    used += r.high - r.low; }
  counts.threadgroup_bytes = std::max(counts.threadgroup_bytes, used);
  if (used > request.threadgroup_limit)
    fail("memcheck", at_line(line),
         "%lu bytes of threadgroup memory with %s; a threadgroup has %lu", (unsigned long)used,
         name, (unsigned long)request.threadgroup_limit);
  BufferRequest b = {{}, bytes, WRITABLE, element};
  snprintf(b.name, sizeof b.name, "%s", name);
  Region& r = add(b, THREADGROUP, line);
  memset(r.low, fill, bytes); // NaN at first
  return (uint64_t)r.low;
}
#define PC __builtin_return_address(0)
void msl_atomic(uint64_t at, uint32_t n, uint32_t kind, int line) {
  access((void*)at, n, kind != LOAD, at_line(line), Atomic(kind));
}

// Rounds to bfloat16 where the compiler's own library has no such function. Declared as float: the
// bits are in the same register, and with __bf16 the optimiser would make it call itself.
__attribute__((weak)) float __truncsfbf2(float x) {
  uint32_t b; memcpy(&b, &x, 4);
  b = x != x ? 0x7FC0 : (b + 0x7FFF + (b >> 16 & 1)) >> 16;
  memcpy(&x, &b, 4); return x;
}

void aligned(void* p, int n, bool write, void* pc) {
  if ((uintptr_t)p % n)
    fail("memcheck", pc, "%s of %d bytes at an address that is not a multiple of %d",
         write ? "write" : "read", n, n);
  access(p, n, write, pc);
}
#define HOOKS(n) \
  void __tsan_read##n(void* p) { aligned(p, n, false, PC); } \
  void __tsan_write##n(void* p) { aligned(p, n, true, PC); } \
  void __tsan_unaligned_read##n(void* p) { access(p, n, false, PC); } \
  void __tsan_unaligned_write##n(void* p) { access(p, n, true, PC); } \
  void __tsan_read_write##n(void* p) { access(p, n, false, PC); access(p, n, true, PC); }
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
void __tsan_read_range(void* p, unsigned long n) { access(p, n, false, PC); }
void __tsan_write_range(void* p, unsigned long n) { access(p, n, true, PC); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void* __tsan_memcpy(void* to, const void* from, unsigned long n) {
  access((void*)from, n, false, PC); access(to, n, true, PC); return memcpy(to, from, n); }
void* __tsan_memset(void* to, int c, unsigned long n) {
  access(to, n, true, PC); return memset(to, c, n); }

struct Source { const char* file; uint32_t line, column; };
struct TypeName { uint16_t kind, info; char name[1]; };
struct OutOfBounds { Source at; TypeName *array, *index; };
void __ubsan_handle_out_of_bounds(OutOfBounds* b, uint64_t index) {
  fail("memcheck", at_line(b->at.line), "index %ld is outside an array %s", (long)index,
       b->array->name); }
#define UNDEFINED(name, text) \
  void __ubsan_handle_##name(Source* at) { fail("memcheck", at_line(at->line), text); }
UNDEFINED(shift_out_of_bounds, "shift by as many bits as the number has, or more, or fewer than 0")
UNDEFINED(divrem_overflow, "division of an integer by zero")
// An unsigned integer may wrap. It is an index at the true size if the number that it should be is
// one into an array here, were its elements bits, and if the first threadgroup does not wrap there,
// too: the numbers of a hash are larger than any array.
void wraps(unsigned __int128 meant, uint32_t line, const void* at, const char* text) {
  static std::vector<const void*> intended;
  bool known = std::find(intended.begin(), intended.end(), at) != intended.end(), indexes = false;
  for (auto& b : buffers) indexes |= meant < 8 * b.bytes;
  if (!beyond && !known) intended.push_back(at);
  if (beyond && !known && indexes) fail("memcheck", at_line(line), text);
}
struct Overflow { Source at; TypeName* type; };
#define OVERFLOW(name, what, meant) \
  void __ubsan_handle_##name##_overflow(Overflow* o, uint64_t a, uint64_t b) { \
    if (o->type->info & 1) \
      fail("memcheck", at_line(o->at.line), "a " what " overflows a signed integer"); \
    else wraps(meant, o->at.line, o, "a " what " of unsigned integers wraps at this size"); }
OVERFLOW(add, "sum", (unsigned __int128)a + b) OVERFLOW(mul, "product", (unsigned __int128)a * b)
constexpr unsigned __int128 NO_INDEX = ~(unsigned __int128)0;
OVERFLOW(sub, "difference", NO_INDEX) OVERFLOW(negate, "negation", NO_INDEX)
struct Conversion { Source at; TypeName *from, *to; };
void __ubsan_handle_implicit_conversion(Conversion* c, uint64_t from) {
  wraps(from, c->at.line, c, "an integer loses its upper bits as it is assigned at this size"); }
void msl_narrowed(uint64_t from, int line) {
  wraps(from, line, at_line(line), "an integer loses its upper bits in a cast at this size"); }
void __ubsan_handle_load_invalid_value(Source* at) { // locals are filled with 0xAA
  if (!request.unchecked) fail("initcheck", at_line(at->line), "read of a bool that was never set"); }
UNDEFINED(float_cast_overflow, "a float is outside the range of the integer that it becomes")

int main(int, char** arguments) {
  dlopen("libm.so.6", RTLD_NOW | RTLD_GLOBAL); // kernels call it, and zig links what is called here
  void* kernel = dlopen(arguments[1], RTLD_NOW);
  Dl_info about;
  if (!kernel) refuse("%s", dlerror());
  entry = (void (*)(uint64_t*))dlsym(kernel, "msl_entry");
  dladdr((void*)entry, &about); base = (uint64_t)about.dli_fbase;
  receive(&request);
  buffers.resize(request.count); contents.resize(request.count);
  receive(buffers.data(), request.count);
  auto element = (uint64_t(*)(uint32_t))dlsym(kernel, "msl_element");
  auto fields = (void (*)(uint32_t, void*))dlsym(kernel, "msl_fill");
  for (uint32_t i = 0; i < request.count; i++) {
    BufferRequest& b = buffers[i];
    b.element = std::max<uint64_t>(element(i), 1);
    if (b.flags & INITIALISED && !(b.flags & EMPTY)) {
      contents[i].resize(b.bytes + 1); receive(contents[i].data(), b.bytes); }
    if (b.flags & FILLED) {
      b.bytes = b.element; contents[i].assign(b.bytes + 1, 0); fields(i, contents[i].data()); }
  }
  // Addresses that are set aside are no memory in use, but a limit of the caller counts them.
  rlimit limit;
  if (!getrlimit(RLIMIT_DATA, &limit) && limit.rlim_cur != RLIM_INFINITY) {
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, limit.rlim_cur + ARENA + 1024 * STACK);
    setrlimit(RLIMIT_DATA, &limit); }
  arena = (char*)mmap(nullptr, ARENA, PROT_READ | PROT_WRITE, RESERVED, -1, 0);
  stacks = (char*)mmap(nullptr, 1024 * STACK, PROT_READ | PROT_WRITE, RESERVED, -1, 0);
  if (arena == MAP_FAILED || stacks == MAP_FAILED)
    refuse("the system gives no address space (%s): raise ulimit -v and -d", strerror(errno));
  regions.reserve(request.count + 64);
  settle();
  // Accesses narrower than an element: the race of two of them shows in cells of one byte.
  if (!failed && !uninitialised[0] && counts.narrow) { bytewise = true; settle(); }
  reply();
  return 0;
}
}
