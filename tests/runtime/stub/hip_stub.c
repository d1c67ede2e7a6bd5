// A libamdhip64 that has no GPU behind it: it hands out handles, records every call, and returns
// any error that a test asks for. The record is read through the stub_* functions.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int hipError_t;
typedef struct module { uint64_t magic; int device; size_t nbytes; char* data; } module;
typedef struct function { uint64_t magic; module* owner; char name[128]; } function;
typedef struct call {
  char name[32];
  char text[128];           // kernel's name, or the symbol that was looked up
  unsigned grid[3], block[3], lds;
  uint64_t stream, thread;
  int device;               // the calling thread's current device
  int owner;                // the device whose module the kernel is from
  uint64_t nbytes;
  unsigned char* bytes;     // argument buffer, or the code object
} call;

enum { kMagic = 0x70697268, kLimit = 65536 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static call calls[kLimit];
static int count, recording = 1, devices = 2;
static __thread int device;
static __thread hipError_t last;
static struct { char name[32]; hipError_t code; int times; } plan[16];

static call* record(const char* name) {
  if (!recording || count == kLimit) return 0;
  call* c = &calls[count++];
  free(c->bytes);
  memset(c, 0, sizeof *c);
  snprintf(c->name, sizeof c->name, "%s", name);
  c->thread = (uint64_t)pthread_self();
  c->device = device;
  return c;
}

static void keep(call* c, const void* data, uint64_t nbytes) {
  c->bytes = malloc(nbytes ? nbytes : 1);
  c->nbytes = nbytes;
  memcpy(c->bytes, data, nbytes);
}

static hipError_t finish(const char* name, hipError_t code) {
  for (int i = 0; i < 16; ++i)
    if (plan[i].times && !strcmp(plan[i].name, name)) {
      if (plan[i].times > 0) --plan[i].times;
      code = plan[i].code;
      break;
    }
  if (code) last = code;
  return code;
}

static uint64_t code_object_size(const unsigned char* elf) {
  uint64_t table, end;
  uint16_t entry, entries;
  memcpy(&table, elf + 0x28, 8);
  memcpy(&entry, elf + 0x3A, 2);
  memcpy(&entries, elf + 0x3C, 2);
  end = table + (uint64_t)entry * entries;
  return end;
}

hipError_t hipModuleLoadData(module** out, const void* image) {
  pthread_mutex_lock(&lock);
  hipError_t code = finish("hipModuleLoadData", memcmp(image, "\177ELF", 4) ? 98 : 0);
  call* c = record("hipModuleLoadData");
  if (!code) {
    if (c) keep(c, image, code_object_size(image));
    module* m = calloc(1, sizeof *m);
    m->magic = kMagic;
    m->device = device;
    *out = m;
  }
  pthread_mutex_unlock(&lock);
  return code;
}

hipError_t hipModuleUnload(module* m) {
  pthread_mutex_lock(&lock);
  record("hipModuleUnload");
  hipError_t code = finish("hipModuleUnload", m && m->magic == kMagic ? 0 : 400);
  if (!code) { m->magic = 0; free(m); }
  pthread_mutex_unlock(&lock);
  return code;
}

hipError_t hipModuleGetFunction(function** out, module* m, const char* name) {
  pthread_mutex_lock(&lock);
  call* c = record("hipModuleGetFunction");
  if (c) snprintf(c->text, sizeof c->text, "%s", name);
  hipError_t code = finish("hipModuleGetFunction", m && m->magic == kMagic ? 0 : 400);
  if (!code) {
    function* f = calloc(1, sizeof *f);
    f->magic = kMagic;
    f->owner = m;
    snprintf(f->name, sizeof f->name, "%s", name);
    *out = f;
  }
  pthread_mutex_unlock(&lock);
  return code;
}

hipError_t hipModuleLaunchKernel(function* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                 unsigned by, unsigned bz, unsigned lds, void* stream,
                                 void** parameters, void** extra) {
  if (!recording) return 0;
  pthread_mutex_lock(&lock);
  hipError_t code = !f || f->magic != kMagic ? 400 : 0;
  call* c = record("hipModuleLaunchKernel");
  if (c && !code) {
    unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
    memcpy(c->grid, grid, sizeof grid);
    memcpy(c->block, block, sizeof block);
    c->lds = lds;
    c->stream = (uint64_t)stream;
    c->owner = f->owner->device;
    snprintf(c->text, sizeof c->text, "%s", f->name);
    if (parameters || extra[0] != (void*)1 || extra[2] != (void*)2 || extra[4] != (void*)3)
      code = 1;
    else
      keep(c, extra[1], *(uint64_t*)extra[3]);
  }
  code = finish("hipModuleLaunchKernel", code);
  pthread_mutex_unlock(&lock);
  return code;
}

hipError_t hipGetDeviceCount(int* out) { *out = devices; return finish("hipGetDeviceCount", 0); }
hipError_t hipGetDevice(int* out) { *out = device; return finish("hipGetDevice", 0); }

hipError_t hipSetDevice(int index) {
  pthread_mutex_lock(&lock);
  hipError_t code = finish("hipSetDevice", index < 0 || index >= devices ? 101 : 0);
  if (!code) device = index;
  record("hipSetDevice");
  pthread_mutex_unlock(&lock);
  return code;
}

hipError_t hipGetLastError(void) {
  hipError_t code = last;
  last = 0;
  return code;
}

hipError_t hipPeekAtLastError(void) { return last; }

const char* hipGetErrorName(hipError_t code) {
  switch (code) {
    case 1: return "hipErrorInvalidValue";
    case 2: return "hipErrorOutOfMemory";
    case 98: return "hipErrorInvalidDeviceFunction";
    case 101: return "hipErrorInvalidDevice";
    case 209: return "hipErrorNoBinaryForGpu";
    case 400: return "hipErrorInvalidHandle";
    case 500: return "hipErrorNotFound";
    case 700: return "hipErrorIllegalAddress";
    case 704: return "hipErrorPeerAccessAlreadyEnabled";
    case 719: return "hipErrorLaunchFailure";
    case 900: return "hipErrorStreamCaptureUnsupported";
    default: return "hipErrorUnknown";
  }
}

const char* hipGetErrorString(hipError_t code) {
  static __thread char text[64];
  snprintf(text, sizeof text, "text of error %d", code);
  return text;
}

void stub_reset(void) {
  pthread_mutex_lock(&lock);
  count = 0;
  recording = 1;
  devices = 2;
  last = 0;
  memset(plan, 0, sizeof plan);
  pthread_mutex_unlock(&lock);
}

void stub_record(int on) { recording = on; }
void stub_devices(int number) { devices = number; }
void stub_set_last(hipError_t code) { last = code; }
int stub_count(void) { return count; }
call* stub_call(int index) { return &calls[index]; }

// Let the next `times` calls of `name` return `code`; a negative number means all of them.
void stub_fail(const char* name, hipError_t code, int times) {
  for (int i = 0; i < 16; ++i)
    if (!plan[i].times) {
      snprintf(plan[i].name, sizeof plan[i].name, "%s", name);
      plan[i].code = code;
      plan[i].times = times;
      return;
    }
}
