; The emulated machine around a wave: memory checks, lane-wise copies, workgroup driver, profile.
;
; A translated kernel is one function `i32 wave(ptr state, ptr env)` that runs a wave until it
; ends (0), reaches a barrier (1) or faults (2). Everything slow or shared that it needs is here.
; layout.py mirrors the types with ctypes; each translated kernel begins with the same type lines.
; The files of this folder are joined into one module.
;
; For a lane-wise access the caller puts 32 lane addresses into env.addresses, or 32-bit offsets
; from one base into env.offsets. Data is either `packed`, all of lane 0 before all of lane 1, or
; `split`, the first dword of every lane before the second dword of every lane.

; A registered range of memory: first address, bytes, one byte per 128-byte line touched (profile),
; one i32 per byte (checks): 0 never written, 1 written by the host, 2 + n by workgroup n.
%Buffer = type { i64, i64, ptr, ptr }
; Bounds cache of one static memory instruction, for the buffer found last: an access at `address`
; is fine for one lane when address - first < lane limit, and for the whole inline access (32 lanes,
; or one scalar) when it is < fast limit. first, lane limit, fast limit, line map
%Slot = type { i64, i64, i64, ptr }
; Profile of one static memory instruction: bytes, lines (or LDS cycles), LDS conflict cycles.
%Traffic = type { i64, i64, i64 }
; Per host thread: 0 buffers, 1 their number, 2 slots, 3 block counts, 4 traffic (or null), 5 lds,
; 6 lds bytes, 7 steps left, 8 fault kind, 9 fault lane, 10 fault site or pc, 11 fault address,
; 12 LDS shadow of the checked build (or null): per byte the last write and the last read,
; 13 wave, 14 workgroup, 15 epoch (counts barrier intervals), 16 first epoch of this workgroup,
; 17 state of the running wave, 18 lane addresses, 19 split data, 20 packed data,
; 21 checks: 1 races, 2 uninitialised, 4 misaligned; 22 host address of code object address 0; 23 lane offsets,
; 24 latency of a vector load in ns, 25 of a scalar load once the wave has started,
; 26 private memory of the running wave, 27 its bytes per lane, 28 ps that a line of a load takes
%Env = type { ptr, i64, ptr, ptr, ptr, ptr, i64, i64, i32, i32, i64, i64, ptr, i64, i64, i64, i64, ptr, [32 x i64], [512 x i8], [512 x i8], i64, i64, [32 x i32], i64, i64, i64, i64, i64 }
; Per wave: 0 scalar registers (126 is exec), 1 scc, 2 resume point, 3 steps left, 4 has ended,
; 5 latency clock (see below), 6 MODE[9:0] xor what the kernel starts with, 7 lanes that a barrier
; did without, 8 padding, 9 vector registers
%State = type { [128 x i32], i32, i32, i64, i64, %Clock, i32, i32, [134 x i64], [256 x <32 x i32>] }
; The time a profiled wave has spent waiting for loads: 0 now (ns), 1 vector loads issued, 2 of them
; awaited, 3 issue time of the pending scalar load (or -1), 4 the time at which the first wide load
; had returned (or -1), 5 first wide load (or -1), 6 when the last 64 vector loads return
%Clock = type { i64, i64, i64, i64, i64, i64, [64 x i64] }
; A launch on one thread: 0 wave function, 1 states, 2 bytes of vector registers in use, 3 waves per
; workgroup, 4 grid x, 5 grid y, 6 user SGPRs, 7 their number, 8 mask of the workgroup ids wanted in
; SGPRs, 9 work-item ids [wave][3][32], 10 SGPR of the scratch offset (or -1), 11 scratch bytes per
; wave, 12 exec of the last wave, 13 steps per wave, 14 run waves in descending order,
; 15 insist on one barrier for all waves, 16 sums over waves: ns waited, ns until the first wide load;
; 17 private memory of all waves
%Grid = type { ptr, ptr, i64, i64, i64, i64, ptr, i64, i64, ptr, i64, i64, i32, i64, i64, i64, [2 x i64], i64 }

declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i32 @llvm.cttz.i32(i32, i1)
declare i32 @llvm.ctpop.i32(i32)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.vector.reduce.or.v32i64(<32 x i64>)
