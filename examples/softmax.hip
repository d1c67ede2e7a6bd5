constexpr int N = ${N};              // columns of a row
constexpr int THREADS = ${THREADS};  // per workgroup, a power of two
using T = ${T};                      // type of x and y
static_assert((THREADS & (THREADS - 1)) == 0, "the reduction halves the threads");

// y[row, :] = softmax(x[row, :] * scale): one workgroup per row, arithmetic in fp32.
//
// A thread keeps its columns (thread, thread + THREADS, ...) in registers, so x is read once. The
// maximum and the sum over the row go through LDS in the same order every time.
constexpr int PER_THREAD = (N + THREADS - 1) / THREADS;
constexpr float LOG2_E = 1.44269504f;

template <class Op>
__device__ float reduce(float value, float* scratch, Op op) {
  const int thread = threadIdx.x;
  __syncthreads();
  scratch[thread] = value;
  for (int half = THREADS / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) scratch[thread] = op(scratch[thread], scratch[thread + half]);
  }
  __syncthreads();
  return scratch[0];
}

extern "C" __global__ __launch_bounds__(THREADS) void softmax(const T* x, T* y, float scale) {
  __shared__ float scratch[THREADS];
  const int thread = threadIdx.x;
  const unsigned long row = (unsigned long)blockIdx.x * N;

  float values[PER_THREAD], largest = -__builtin_inff();
  for (int i = 0; i < PER_THREAD; ++i) {
    const int column = thread + i * THREADS;
    values[i] = column < N ? (float)x[row + column] * (scale * LOG2_E) : -__builtin_inff();
    largest = __builtin_fmaxf(largest, values[i]);
  }
  largest = reduce(largest, scratch, [](float a, float b) { return __builtin_fmaxf(a, b); });

  float sum = 0;
  for (int i = 0; i < PER_THREAD; ++i) {
    values[i] = __builtin_exp2f(values[i] - largest);
    sum += values[i];
  }
  sum = reduce(sum, scratch, [](float a, float b) { return a + b; });

  for (int i = 0; i < PER_THREAD; ++i) {
    const int column = thread + i * THREADS;
    if (column < N) y[row + column] = (T)(values[i] / sum);
  }
}
