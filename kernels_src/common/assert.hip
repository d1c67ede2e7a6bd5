// assert(condition) for kernels. A failing lane traps: on a card the process gets HIP's launch
// failure, on the emulator an error with the source line, the lane and the condition. The texts are
// data that the kernel never reads. With NDEBUG defined the condition is not evaluated.

#undef assert
#ifdef NDEBUG
#define assert(...) ((void)0)
#elif defined(__NVPTX__)
#define assert(...) ((__VA_ARGS__) ? (void)0 : __builtin_trap())
#else
#define RDNA_JIT_TEXT(x) RDNA_JIT_TEXT_OF(x)
#define RDNA_JIT_TEXT_OF(x) #x
#define assert(...)                                                                        \
  do {                                                                                     \
    if (__builtin_expect(!(__VA_ARGS__), 0)) {                                             \
      static const __attribute__((constant, used, section(".rdna_jit.assert"))) char       \
          assertion[] = __FILE__ ":" RDNA_JIT_TEXT(__LINE__) "\t" #__VA_ARGS__;            \
      __builtin_trap();                                                                    \
    }                                                                                      \
  } while (0)
#endif
