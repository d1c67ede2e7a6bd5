; Bounds checks and lane-wise copies.

; Records a fault; always returns 1. Kinds: 1 memory, 2 unsupported, 3 steps, 4 divergent barrier,
; 5 race, 6 uninitialised, 7 misaligned, 8 bad branch, 9 trap, 10 generic access across dwords of private
; memory, 11 foreign buffer descriptor.
define i32 @fault(ptr %env, i32 %kind, i64 %where, i32 %lane, i64 %address) cold noinline nounwind {
  %kind.p = getelementptr %Env, ptr %env, i32 0, i32 8
  store i32 %kind, ptr %kind.p
  %lane.p = getelementptr %Env, ptr %env, i32 0, i32 9
  store i32 %lane, ptr %lane.p
  %where.p = getelementptr %Env, ptr %env, i32 0, i32 10
  store i64 %where, ptr %where.p
  %address.p = getelementptr %Env, ptr %env, i32 0, i32 11
  store i64 %address, ptr %address.p
  ret i32 1
}

; Points a slot at the buffer that holds [address, address + bytes). Returns 1 if there is none.
; The fast limit stays 0 while every access is observed (profile, checks).
define i32 @find_buffer(ptr %env, ptr %slot, i64 %address, i64 %bytes, i64 %fast.bytes) noinline nounwind {
entry:
  %buffers.p = getelementptr %Env, ptr %env, i32 0, i32 0
  %buffers = load ptr, ptr %buffers.p
  %count.p = getelementptr %Env, ptr %env, i32 0, i32 1
  %count = load i64, ptr %count.p
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i1, %more ]
  %end = icmp eq i64 %i, %count
  br i1 %end, label %none, label %test
test:
  %buffer = getelementptr %Buffer, ptr %buffers, i64 %i
  %first = load i64, ptr %buffer
  %size.p = getelementptr %Buffer, ptr %buffer, i32 0, i32 1
  %size = load i64, ptr %size.p
  %offset = sub i64 %address, %first
  ; both differences are formed so that nothing can wrap around
  %fits = icmp uge i64 %size, %bytes
  %room = sub i64 %size, %bytes
  %below = icmp ule i64 %offset, %room
  %inside = and i1 %fits, %below
  br i1 %inside, label %found, label %more
more:
  %i1 = add i64 %i, 1
  br label %next
found:
  store i64 %first, ptr %slot
  %lane.limit = add i64 %room, 1
  %lane.p = getelementptr %Slot, ptr %slot, i32 0, i32 1
  store i64 %lane.limit, ptr %lane.p
  %observed = call i1 @observed(ptr %env)
  %fast.fits = icmp uge i64 %size, %fast.bytes
  %fast.room = sub i64 %size, %fast.bytes
  %fast.room1 = add i64 %fast.room, 1
  %fast.some = select i1 %fast.fits, i64 %fast.room1, i64 0
  %fast.limit = select i1 %observed, i64 0, i64 %fast.some
  %fast.p = getelementptr %Slot, ptr %slot, i32 0, i32 2
  store i64 %fast.limit, ptr %fast.p
  %map.p = getelementptr %Buffer, ptr %buffer, i32 0, i32 2
  %map = load ptr, ptr %map.p
  %slotmap.p = getelementptr %Slot, ptr %slot, i32 0, i32 3
  store ptr %map, ptr %slotmap.p
  ret i32 0
none:
  ret i32 1
}

; True when profile or checks want to see every access.
define i1 @observed(ptr %env) alwaysinline nounwind {
  %traffic.p = getelementptr %Env, ptr %env, i32 0, i32 4
  %traffic = load ptr, ptr %traffic.p
  %checks.p = getelementptr %Env, ptr %env, i32 0, i32 21
  %checks = load i64, ptr %checks.p
  %profiled = icmp ne ptr %traffic, null
  %checked = icmp ne i64 %checks, 0
  %r = or i1 %profiled, %checked
  ret i1 %r
}

; One scalar load. Returns 1 after recording a fault.
define i32 @access_scalar(ptr %env, i64 %site, i64 %address, i64 %bytes) cold noinline nounwind {
  %slots.p = getelementptr %Env, ptr %env, i32 0, i32 2
  %slots = load ptr, ptr %slots.p
  %slot = getelementptr %Slot, ptr %slots, i64 %site
  %missing = call i32 @find_buffer(ptr %env, ptr %slot, i64 %address, i64 %bytes, i64 %bytes)
  %bad = icmp ne i32 %missing, 0
  br i1 %bad, label %out, label %profile
profile:
  %traffic.p = getelementptr %Env, ptr %env, i32 0, i32 4
  %traffic = load ptr, ptr %traffic.p
  %counting = icmp ne ptr %traffic, null
  br i1 %counting, label %count, label %check
count:
  call void @count_block(ptr %env, i64 %site, i64 %address, i64 %bytes)
  br label %check
check:
  %r = call i32 @check_written(ptr %env, i64 %site, i32 -1, i64 %address, i64 %bytes)
  ret i32 %r
out:
  %f = call i32 @fault(ptr %env, i32 1, i64 %site, i32 -1, i64 %address)
  ret i32 %f
}

; Every active lane of env.addresses. `lds` accesses may not leave the slot (it is the LDS).
define i32 @check_lanes(ptr %env, i32 %exec, i64 %site, i64 %bytes, i1 %lds) nounwind {
entry:
  %fast.bytes = mul i64 %bytes, 32
  %slots.p = getelementptr %Env, ptr %env, i32 0, i32 2
  %slots = load ptr, ptr %slots.p
  %slot = getelementptr %Slot, ptr %slots, i64 %site
  %addresses.p = getelementptr %Env, ptr %env, i32 0, i32 18
  %addresses = load <32 x i64>, ptr %addresses.p, align 8
  %first = load i64, ptr %slot
  %limit.p = getelementptr %Slot, ptr %slot, i32 0, i32 1
  %limit = load i64, ptr %limit.p
  %first.0 = insertelement <32 x i64> poison, i64 %first, i32 0
  %first.v = shufflevector <32 x i64> %first.0, <32 x i64> poison, <32 x i32> zeroinitializer
  %limit.0 = insertelement <32 x i64> poison, i64 %limit, i32 0
  %limit.v = shufflevector <32 x i64> %limit.0, <32 x i64> poison, <32 x i32> zeroinitializer
  %offset = sub <32 x i64> %addresses, %first.v
  %outside = icmp uge <32 x i64> %offset, %limit.v
  %mask = bitcast i32 %exec to <32 x i1>
  %bad = and <32 x i1> %outside, %mask
  %bits = bitcast <32 x i1> %bad to i32
  %fine = icmp eq i32 %bits, 0
  br i1 %fine, label %ok, label %next
next:
  %left = phi i32 [ %bits, %entry ], [ %rest, %inside ]
  %lane = call i32 @llvm.cttz.i32(i32 %left, i1 false)
  %lane.64 = zext i32 %lane to i64
  %lane.p = getelementptr i64, ptr %addresses.p, i64 %lane.64
  %address = load i64, ptr %lane.p
  br i1 %lds, label %out, label %look
look:
  ; an earlier lane may have moved the slot to this lane's buffer
  %now.first = load i64, ptr %slot
  %now.limit = load i64, ptr %limit.p
  %now.offset = sub i64 %address, %now.first
  %now.inside = icmp ult i64 %now.offset, %now.limit
  br i1 %now.inside, label %inside, label %search
search:
  %missing = call i32 @find_buffer(ptr %env, ptr %slot, i64 %address, i64 %bytes, i64 %fast.bytes)
  %none = icmp ne i32 %missing, 0
  br i1 %none, label %out, label %inside
inside:
  %less = sub i32 %left, 1
  %rest = and i32 %left, %less
  %done = icmp eq i32 %rest, 0
  br i1 %done, label %ok, label %next
out:
  %r = call i32 @fault(ptr %env, i32 1, i64 %site, i32 %lane, i64 %address)
  ret i32 %r
ok:
  ret i32 0
}

; A lane-wise access: bounds, and what profile and checks want to know of it.
; `kind`: 0 load, 1 store, 2 atomic, 3 atomic with return. Returns 1 after recording a fault.
define i32 @access(ptr %env, i32 %exec, i64 %site, i64 %bytes, i1 %lds, i32 %kind) noinline nounwind {
  %bad = call i32 @check_lanes(ptr %env, i32 %exec, i64 %site, i64 %bytes, i1 %lds)
  %is.bad = icmp ne i32 %bad, 0
  br i1 %is.bad, label %out, label %look
look:
  %observed = call i1 @observed(ptr %env)
  br i1 %observed, label %profile, label %ok
profile:
  %traffic.p = getelementptr %Env, ptr %env, i32 0, i32 4
  %traffic = load ptr, ptr %traffic.p
  %counting = icmp ne ptr %traffic, null
  br i1 %counting, label %count, label %check
count:
  br i1 %lds, label %banks, label %lines
banks:
  call void @count_banks(ptr %env, i32 %exec, i64 %site, i64 %bytes)
  br label %check
lines:
  call void @count_lines(ptr %env, i32 %exec, i64 %site, i64 %bytes)
  %is.load = icmp eq i32 %kind, 0
  %returns = icmp eq i32 %kind, 3
  %awaited = or i1 %is.load, %returns
  br i1 %awaited, label %issue, label %check
issue:
  call void @clock_issue(ptr %env, i64 %bytes)
  br label %check
check:
  %checks.p = getelementptr %Env, ptr %env, i32 0, i32 21
  %checks = load i64, ptr %checks.p
  %checking = icmp ne i64 %checks, 0
  br i1 %checking, label %note, label %ok
note:
  %r = call i32 @note_access(ptr %env, i32 %exec, i64 %site, i64 %bytes, i1 %lds, i32 %kind)
  ret i32 %r
out:
  ret i32 1
ok:
  ret i32 0
}

define void @copy_1(ptr %to, ptr %from) alwaysinline nounwind {
  %x = load i8, ptr %from, align 1
  store i8 %x, ptr %to, align 1
  ret void
}
define void @copy_2(ptr %to, ptr %from) alwaysinline nounwind {
  %x = load i16, ptr %from, align 1
  store i16 %x, ptr %to, align 1
  ret void
}
define void @copy_4(ptr %to, ptr %from) alwaysinline nounwind {
  %x = load i32, ptr %from, align 1
  store i32 %x, ptr %to, align 1
  ret void
}
define void @copy_8(ptr %to, ptr %from) alwaysinline nounwind {
  %x = load i64, ptr %from, align 1
  store i64 %x, ptr %to, align 1
  ret void
}
define void @copy_12(ptr %to, ptr %from) alwaysinline nounwind {
  call void @copy_8(ptr %to, ptr %from)
  %to.8 = getelementptr i8, ptr %to, i64 8
  %from.8 = getelementptr i8, ptr %from, i64 8
  call void @copy_4(ptr %to.8, ptr %from.8)
  ret void
}
define void @copy_16(ptr %to, ptr %from) alwaysinline nounwind {
  %x = load <4 x i32>, ptr %from, align 1
  store <4 x i32> %x, ptr %to, align 1
  ret void
}

define void @copy(ptr %to, ptr %from, i64 %bytes) alwaysinline nounwind {
  switch i64 %bytes, label %b1 [ i64 2, label %b2  i64 4, label %b4  i64 8, label %b8  i64 12, label %b12  i64 16, label %b16 ]
b1:
  call void @copy_1(ptr %to, ptr %from)
  ret void
b2:
  call void @copy_2(ptr %to, ptr %from)
  ret void
b4:
  call void @copy_4(ptr %to, ptr %from)
  ret void
b8:
  call void @copy_8(ptr %to, ptr %from)
  ret void
b12:
  call void @copy_12(ptr %to, ptr %from)
  ret void
b16:
  call void @copy_16(ptr %to, ptr %from)
  ret void
}

; Copies between env.packed and the active lanes' addresses, in ascending order of lanes.
define void @move_lanes(ptr %env, i32 %exec, i64 %bytes, i1 %store) alwaysinline nounwind {
entry:
  %addresses = getelementptr %Env, ptr %env, i32 0, i32 18
  %packed = getelementptr %Env, ptr %env, i32 0, i32 20
  %none = icmp eq i32 %exec, 0
  br i1 %none, label %done, label %next
next:
  %left = phi i32 [ %exec, %entry ], [ %rest, %next ]
  %lane = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %lane.64 = zext i32 %lane to i64
  %address.p = getelementptr i64, ptr %addresses, i64 %lane.64
  %address = load i64, ptr %address.p
  %there = inttoptr i64 %address to ptr
  %offset = mul i64 %lane.64, %bytes
  %here = getelementptr i8, ptr %packed, i64 %offset
  %to = select i1 %store, ptr %there, ptr %here
  %from = select i1 %store, ptr %here, ptr %there
  call void @copy(ptr %to, ptr %from, i64 %bytes)
  %less = sub i32 %left, 1
  %rest = and i32 %left, %less
  %last = icmp eq i32 %rest, 0
  br i1 %last, label %done, label %next
done:
  ret void
}

define void @move(ptr %env, i32 %exec, i64 %bytes, i1 %store) alwaysinline nounwind {
  %consecutive = call i1 @is_consecutive(ptr %env, i32 %exec, i64 %bytes)
  br i1 %consecutive, label %block, label %lanes
block:
  %addresses = getelementptr %Env, ptr %env, i32 0, i32 18
  %first = load i64, ptr %addresses
  %there = inttoptr i64 %first to ptr
  %packed = getelementptr %Env, ptr %env, i32 0, i32 20
  %to = select i1 %store, ptr %there, ptr %packed
  %from = select i1 %store, ptr %packed, ptr %there
  %size = shl i64 %bytes, 5
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %size, i1 false)
  ret void
lanes:
  switch i64 %bytes, label %b1 [ i64 2, label %b2  i64 4, label %b4  i64 8, label %b8  i64 12, label %b12  i64 16, label %b16 ]
b1:
  call void @move_lanes(ptr %env, i32 %exec, i64 1, i1 %store)
  ret void
b2:
  call void @move_lanes(ptr %env, i32 %exec, i64 2, i1 %store)
  ret void
b4:
  call void @move_lanes(ptr %env, i32 %exec, i64 4, i1 %store)
  ret void
b8:
  call void @move_lanes(ptr %env, i32 %exec, i64 8, i1 %store)
  ret void
b12:
  call void @move_lanes(ptr %env, i32 %exec, i64 12, i1 %store)
  ret void
b16:
  call void @move_lanes(ptr %env, i32 %exec, i64 16, i1 %store)
  ret void
}

; Loads for code that has the fast way inline: data of lane i at env.packed + i * bytes.
define i32 @gather(ptr %env, i32 %exec, i64 %site, i64 %bytes, i1 %lds) noinline nounwind {
  %bad = call i32 @access(ptr %env, i32 %exec, i64 %site, i64 %bytes, i1 %lds, i32 0)
  %fine = icmp eq i32 %bad, 0
  br i1 %fine, label %go, label %out
go:
  call void @move(ptr %env, i32 %exec, i64 %bytes, i1 false)
  ret i32 0
out:
  ret i32 1
}

define i32 @scatter(ptr %env, i32 %exec, i64 %site, i64 %bytes, i1 %lds) noinline nounwind {
  %bad = call i32 @access(ptr %env, i32 %exec, i64 %site, i64 %bytes, i1 %lds, i32 1)
  %fine = icmp eq i32 %bad, 0
  br i1 %fine, label %go, label %out
go:
  call void @move(ptr %env, i32 %exec, i64 %bytes, i1 true)
  ret i32 0
out:
  ret i32 1
}

; True when all lanes are active and at consecutive addresses.
define i1 @is_consecutive(ptr %env, i32 %exec, i64 %bytes) alwaysinline nounwind {
  %full = icmp eq i32 %exec, -1
  %addresses.p = getelementptr %Env, ptr %env, i32 0, i32 18
  %first = load i64, ptr %addresses.p
  %addresses = load <32 x i64>, ptr %addresses.p, align 8
  %first.0 = insertelement <32 x i64> poison, i64 %first, i32 0
  %first.v = shufflevector <32 x i64> %first.0, <32 x i64> poison, <32 x i32> zeroinitializer
  %bytes.0 = insertelement <32 x i64> poison, i64 %bytes, i32 0
  %bytes.v = shufflevector <32 x i64> %bytes.0, <32 x i64> poison, <32 x i32> zeroinitializer
  %steps = mul <32 x i64> %bytes.v, <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7, i64 8, i64 9, i64 10, i64 11, i64 12, i64 13, i64 14, i64 15, i64 16, i64 17, i64 18, i64 19, i64 20, i64 21, i64 22, i64 23, i64 24, i64 25, i64 26, i64 27, i64 28, i64 29, i64 30, i64 31>
  %expected = add <32 x i64> %first.v, %steps
  %different = xor <32 x i64> %addresses, %expected
  %any = call i64 @llvm.vector.reduce.or.v32i64(<32 x i64> %different)
  %in.order = icmp eq i64 %any, 0
  %r = and i1 %full, %in.order
  ret i1 %r
}

; True when such an access also lies inside the slot's buffer, and nobody observes it.
define i1 @is_block(ptr %env, i32 %exec, i64 %site, i64 %bytes) alwaysinline nounwind {
  %slots.p = getelementptr %Env, ptr %env, i32 0, i32 2
  %slots = load ptr, ptr %slots.p
  %slot = getelementptr %Slot, ptr %slots, i64 %site
  %start = load i64, ptr %slot
  %limit.p = getelementptr %Slot, ptr %slot, i32 0, i32 2
  %limit = load i64, ptr %limit.p
  %addresses.p = getelementptr %Env, ptr %env, i32 0, i32 18
  %first = load i64, ptr %addresses.p
  %offset = sub i64 %first, %start
  %inside = icmp ult i64 %offset, %limit
  %consecutive = call i1 @is_consecutive(ptr %env, i32 %exec, i64 %bytes)
  %r = and i1 %inside, %consecutive
  ret i1 %r
}

; Four dwords of eight lanes, lane by lane <-> dword by dword. Both are transpositions of 4x4
; blocks; lanes n and n + 4 share a vector.
define void @transpose_4(ptr %to, ptr %from) alwaysinline nounwind {
  %from.1 = getelementptr i8, ptr %from, i64 16
  %from.2 = getelementptr i8, ptr %from, i64 32
  %from.3 = getelementptr i8, ptr %from, i64 48
  %from.4 = getelementptr i8, ptr %from, i64 64
  %from.5 = getelementptr i8, ptr %from, i64 80
  %from.6 = getelementptr i8, ptr %from, i64 96
  %from.7 = getelementptr i8, ptr %from, i64 112
  %l0 = load <4 x i32>, ptr %from, align 1
  %l1 = load <4 x i32>, ptr %from.1, align 1
  %l2 = load <4 x i32>, ptr %from.2, align 1
  %l3 = load <4 x i32>, ptr %from.3, align 1
  %l4 = load <4 x i32>, ptr %from.4, align 1
  %l5 = load <4 x i32>, ptr %from.5, align 1
  %l6 = load <4 x i32>, ptr %from.6, align 1
  %l7 = load <4 x i32>, ptr %from.7, align 1
  %a = shufflevector <4 x i32> %l0, <4 x i32> %l4, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>
  %b = shufflevector <4 x i32> %l1, <4 x i32> %l5, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>
  %c = shufflevector <4 x i32> %l2, <4 x i32> %l6, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>
  %d = shufflevector <4 x i32> %l3, <4 x i32> %l7, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>
  %ab.low = shufflevector <8 x i32> %a, <8 x i32> %b, <8 x i32> <i32 0, i32 8, i32 1, i32 9, i32 4, i32 12, i32 5, i32 13>
  %ab.high = shufflevector <8 x i32> %a, <8 x i32> %b, <8 x i32> <i32 2, i32 10, i32 3, i32 11, i32 6, i32 14, i32 7, i32 15>
  %cd.low = shufflevector <8 x i32> %c, <8 x i32> %d, <8 x i32> <i32 0, i32 8, i32 1, i32 9, i32 4, i32 12, i32 5, i32 13>
  %cd.high = shufflevector <8 x i32> %c, <8 x i32> %d, <8 x i32> <i32 2, i32 10, i32 3, i32 11, i32 6, i32 14, i32 7, i32 15>
  %d0 = shufflevector <8 x i32> %ab.low, <8 x i32> %cd.low, <8 x i32> <i32 0, i32 1, i32 8, i32 9, i32 4, i32 5, i32 12, i32 13>
  %d1 = shufflevector <8 x i32> %ab.low, <8 x i32> %cd.low, <8 x i32> <i32 2, i32 3, i32 10, i32 11, i32 6, i32 7, i32 14, i32 15>
  %d2 = shufflevector <8 x i32> %ab.high, <8 x i32> %cd.high, <8 x i32> <i32 0, i32 1, i32 8, i32 9, i32 4, i32 5, i32 12, i32 13>
  %d3 = shufflevector <8 x i32> %ab.high, <8 x i32> %cd.high, <8 x i32> <i32 2, i32 3, i32 10, i32 11, i32 6, i32 7, i32 14, i32 15>
  %to.1 = getelementptr i8, ptr %to, i64 128
  %to.2 = getelementptr i8, ptr %to, i64 256
  %to.3 = getelementptr i8, ptr %to, i64 384
  store <8 x i32> %d0, ptr %to, align 4
  store <8 x i32> %d1, ptr %to.1, align 4
  store <8 x i32> %d2, ptr %to.2, align 4
  store <8 x i32> %d3, ptr %to.3, align 4
  ret void
}
define void @transpose_back_4(ptr %to, ptr %from) alwaysinline nounwind {
  %from.1 = getelementptr i8, ptr %from, i64 128
  %from.2 = getelementptr i8, ptr %from, i64 256
  %from.3 = getelementptr i8, ptr %from, i64 384
  %d0 = load <8 x i32>, ptr %from, align 4
  %d1 = load <8 x i32>, ptr %from.1, align 4
  %d2 = load <8 x i32>, ptr %from.2, align 4
  %d3 = load <8 x i32>, ptr %from.3, align 4
  %d01.low = shufflevector <8 x i32> %d0, <8 x i32> %d1, <8 x i32> <i32 0, i32 8, i32 1, i32 9, i32 4, i32 12, i32 5, i32 13>
  %d01.high = shufflevector <8 x i32> %d0, <8 x i32> %d1, <8 x i32> <i32 2, i32 10, i32 3, i32 11, i32 6, i32 14, i32 7, i32 15>
  %d23.low = shufflevector <8 x i32> %d2, <8 x i32> %d3, <8 x i32> <i32 0, i32 8, i32 1, i32 9, i32 4, i32 12, i32 5, i32 13>
  %d23.high = shufflevector <8 x i32> %d2, <8 x i32> %d3, <8 x i32> <i32 2, i32 10, i32 3, i32 11, i32 6, i32 14, i32 7, i32 15>
  %l04 = shufflevector <8 x i32> %d01.low, <8 x i32> %d23.low, <8 x i32> <i32 0, i32 1, i32 8, i32 9, i32 4, i32 5, i32 12, i32 13>
  %l15 = shufflevector <8 x i32> %d01.low, <8 x i32> %d23.low, <8 x i32> <i32 2, i32 3, i32 10, i32 11, i32 6, i32 7, i32 14, i32 15>
  %l26 = shufflevector <8 x i32> %d01.high, <8 x i32> %d23.high, <8 x i32> <i32 0, i32 1, i32 8, i32 9, i32 4, i32 5, i32 12, i32 13>
  %l37 = shufflevector <8 x i32> %d01.high, <8 x i32> %d23.high, <8 x i32> <i32 2, i32 3, i32 10, i32 11, i32 6, i32 7, i32 14, i32 15>
  %l01 = shufflevector <8 x i32> %l04, <8 x i32> %l15, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 8, i32 9, i32 10, i32 11>
  %l23 = shufflevector <8 x i32> %l26, <8 x i32> %l37, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 8, i32 9, i32 10, i32 11>
  %l45 = shufflevector <8 x i32> %l04, <8 x i32> %l15, <8 x i32> <i32 4, i32 5, i32 6, i32 7, i32 12, i32 13, i32 14, i32 15>
  %l67 = shufflevector <8 x i32> %l26, <8 x i32> %l37, <8 x i32> <i32 4, i32 5, i32 6, i32 7, i32 12, i32 13, i32 14, i32 15>
  %to.1 = getelementptr i8, ptr %to, i64 32
  %to.2 = getelementptr i8, ptr %to, i64 64
  %to.3 = getelementptr i8, ptr %to, i64 96
  store <8 x i32> %l01, ptr %to, align 1
  store <8 x i32> %l23, ptr %to.1, align 1
  store <8 x i32> %l45, ptr %to.2, align 1
  store <8 x i32> %l67, ptr %to.3, align 1
  ret void
}
define void @transpose_2(ptr %to, ptr %from) alwaysinline nounwind {
  %x = load <16 x i32>, ptr %from, align 1
  %d0 = shufflevector <16 x i32> %x, <16 x i32> poison, <8 x i32> <i32 0, i32 2, i32 4, i32 6, i32 8, i32 10, i32 12, i32 14>
  %d1 = shufflevector <16 x i32> %x, <16 x i32> poison, <8 x i32> <i32 1, i32 3, i32 5, i32 7, i32 9, i32 11, i32 13, i32 15>
  %to.1 = getelementptr i8, ptr %to, i64 128
  store <8 x i32> %d0, ptr %to, align 4
  store <8 x i32> %d1, ptr %to.1, align 4
  ret void
}
define void @transpose_back_2(ptr %to, ptr %from) alwaysinline nounwind {
  %from.1 = getelementptr i8, ptr %from, i64 128
  %d0 = load <8 x i32>, ptr %from, align 4
  %d1 = load <8 x i32>, ptr %from.1, align 4
  %x = shufflevector <8 x i32> %d0, <8 x i32> %d1, <16 x i32> <i32 0, i32 8, i32 1, i32 9, i32 2, i32 10, i32 3, i32 11, i32 4, i32 12, i32 5, i32 13, i32 6, i32 14, i32 7, i32 15>
  store <16 x i32> %x, ptr %to, align 1
  ret void
}
define void @transpose_3(ptr %to, ptr %from) alwaysinline nounwind {
  %x = load <24 x i32>, ptr %from, align 1
  %d0 = shufflevector <24 x i32> %x, <24 x i32> poison, <8 x i32> <i32 0, i32 3, i32 6, i32 9, i32 12, i32 15, i32 18, i32 21>
  %d1 = shufflevector <24 x i32> %x, <24 x i32> poison, <8 x i32> <i32 1, i32 4, i32 7, i32 10, i32 13, i32 16, i32 19, i32 22>
  %d2 = shufflevector <24 x i32> %x, <24 x i32> poison, <8 x i32> <i32 2, i32 5, i32 8, i32 11, i32 14, i32 17, i32 20, i32 23>
  %to.1 = getelementptr i8, ptr %to, i64 128
  %to.2 = getelementptr i8, ptr %to, i64 256
  store <8 x i32> %d0, ptr %to, align 4
  store <8 x i32> %d1, ptr %to.1, align 4
  store <8 x i32> %d2, ptr %to.2, align 4
  ret void
}
define void @transpose_back_3(ptr %to, ptr %from) alwaysinline nounwind {
  %from.1 = getelementptr i8, ptr %from, i64 128
  %from.2 = getelementptr i8, ptr %from, i64 256
  %d0 = load <8 x i32>, ptr %from, align 4
  %d1 = load <8 x i32>, ptr %from.1, align 4
  %d2 = load <8 x i32>, ptr %from.2, align 4
  %d01 = shufflevector <8 x i32> %d0, <8 x i32> %d1, <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>
  %d2.wide = shufflevector <8 x i32> %d2, <8 x i32> poison, <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 poison, i32 poison, i32 poison, i32 poison, i32 poison, i32 poison, i32 poison, i32 poison>
  %x = shufflevector <16 x i32> %d01, <16 x i32> %d2.wide, <24 x i32> <i32 0, i32 8, i32 16, i32 1, i32 9, i32 17, i32 2, i32 10, i32 18, i32 3, i32 11, i32 19, i32 4, i32 12, i32 20, i32 5, i32 13, i32 21, i32 6, i32 14, i32 22, i32 7, i32 15, i32 23>
  store <24 x i32> %x, ptr %to, align 1
  ret void
}

; 32 elements of `bytes` each: packed[lane] -> split[dword][lane], or the other way round.
define void @unpack(ptr %split, ptr %packed, i64 %bytes, i1 %back) noinline nounwind {
entry:
  %narrow = icmp ult i64 %bytes, 8
  br i1 %narrow, label %plain, label %next
plain:
  %size = mul i64 %bytes, 32
  %to = select i1 %back, ptr %packed, ptr %split
  %from = select i1 %back, ptr %split, ptr %packed
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %size, i1 false)
  ret void
next:
  %group = phi i64 [ 0, %entry ], [ %group.1, %more ]
  %split.at = shl i64 %group, 5
  %packed.step = shl i64 %bytes, 3
  %packed.at = mul i64 %group, %packed.step
  %s = getelementptr i8, ptr %split, i64 %split.at
  %p = getelementptr i8, ptr %packed, i64 %packed.at
  br i1 %back, label %pack, label %open
open:
  switch i64 %bytes, label %open.2 [ i64 12, label %open.3  i64 16, label %open.4 ]
open.2:
  call void @transpose_2(ptr %s, ptr %p)
  br label %more
open.3:
  call void @transpose_3(ptr %s, ptr %p)
  br label %more
open.4:
  call void @transpose_4(ptr %s, ptr %p)
  br label %more
pack:
  switch i64 %bytes, label %pack.2 [ i64 12, label %pack.3  i64 16, label %pack.4 ]
pack.2:
  call void @transpose_back_2(ptr %p, ptr %s)
  br label %more
pack.3:
  call void @transpose_back_3(ptr %p, ptr %s)
  br label %more
pack.4:
  call void @transpose_back_4(ptr %p, ptr %s)
  br label %more
more:
  %group.1 = add i64 %group, 1
  %done = icmp eq i64 %group.1, 4
  br i1 %done, label %end, label %next
end:
  ret void
}

; A load as one call: data in env.split, dword by dword (or as 32 bytes, or 32 words).
define i32 @load(ptr %env, i32 %exec, i64 %site, i64 %bytes, i1 %lds) noinline nounwind {
  %split = getelementptr %Env, ptr %env, i32 0, i32 19
  %packed = getelementptr %Env, ptr %env, i32 0, i32 20
  %block = call i1 @is_block(ptr %env, i32 %exec, i64 %site, i64 %bytes)
  br i1 %block, label %direct, label %lanes
direct:
  %addresses = getelementptr %Env, ptr %env, i32 0, i32 18
  %first = load i64, ptr %addresses
  %source = inttoptr i64 %first to ptr
  call void @unpack(ptr %split, ptr %source, i64 %bytes, i1 false)
  ret i32 0
lanes:
  %bad = call i32 @gather(ptr %env, i32 %exec, i64 %site, i64 %bytes, i1 %lds)
  %fine = icmp eq i32 %bad, 0
  br i1 %fine, label %go, label %out
go:
  call void @unpack(ptr %split, ptr %packed, i64 %bytes, i1 false)
  ret i32 0
out:
  ret i32 1
}

; A store as one call, from env.split.
define i32 @store(ptr %env, i32 %exec, i64 %site, i64 %bytes, i1 %lds) noinline nounwind {
  %split = getelementptr %Env, ptr %env, i32 0, i32 19
  %packed = getelementptr %Env, ptr %env, i32 0, i32 20
  %block = call i1 @is_block(ptr %env, i32 %exec, i64 %site, i64 %bytes)
  br i1 %block, label %direct, label %lanes
direct:
  %addresses = getelementptr %Env, ptr %env, i32 0, i32 18
  %first = load i64, ptr %addresses
  %target = inttoptr i64 %first to ptr
  call void @unpack(ptr %split, ptr %target, i64 %bytes, i1 true)
  ret i32 0
lanes:
  call void @unpack(ptr %split, ptr %packed, i64 %bytes, i1 true)
  %bad = call i32 @scatter(ptr %env, i32 %exec, i64 %site, i64 %bytes, i1 %lds)
  ret i32 %bad
}

; Fills the lane addresses with base + offset, for the 32-bit env.offsets.
define void @spread_offsets(ptr %env, i64 %base) noinline nounwind {
  %offsets.p = getelementptr %Env, ptr %env, i32 0, i32 23
  %addresses.p = getelementptr %Env, ptr %env, i32 0, i32 18
  %offsets = load <32 x i32>, ptr %offsets.p, align 4
  %wide = zext <32 x i32> %offsets to <32 x i64>
  %base.0 = insertelement <32 x i64> poison, i64 %base, i32 0
  %base.v = shufflevector <32 x i64> %base.0, <32 x i64> poison, <32 x i32> zeroinitializer
  %addresses = add <32 x i64> %wide, %base.v
  store <32 x i64> %addresses, ptr %addresses.p, align 8
  ret void
}
define i32 @load_at(ptr %env, i32 %exec, i64 %site, i64 %bytes, i1 %lds, i64 %base) noinline nounwind {
  call void @spread_offsets(ptr %env, i64 %base)
  %bad = call i32 @load(ptr %env, i32 %exec, i64 %site, i64 %bytes, i1 %lds)
  ret i32 %bad
}
define i32 @store_at(ptr %env, i32 %exec, i64 %site, i64 %bytes, i1 %lds, i64 %base) noinline nounwind {
  call void @spread_offsets(ptr %env, i64 %base)
  %bad = call i32 @store(ptr %env, i32 %exec, i64 %site, i64 %bytes, i1 %lds)
  ret i32 %bad
}

; --------------------------------------------------------------------------- generic addresses

; Turns LDS and private addresses among env.addresses (by their top 16 bits) into host addresses.
; Private memory has the dwords of the 32 lanes next to each other, so one access may not cross a
; dword: fault kind 10.
define i32 @flat_resolve(ptr %env, i32 %exec, i64 %site, i64 %bytes) noinline nounwind {
entry:
  %addresses = getelementptr %Env, ptr %env, i32 0, i32 18
  %lds.p = getelementptr %Env, ptr %env, i32 0, i32 5
  %lds = load i64, ptr %lds.p
  %lds.bytes.p = getelementptr %Env, ptr %env, i32 0, i32 6
  %lds.bytes = load i64, ptr %lds.bytes.p
  %private.p = getelementptr %Env, ptr %env, i32 0, i32 26
  %private.base = load i64, ptr %private.p
  %private.bytes.p = getelementptr %Env, ptr %env, i32 0, i32 27
  %private.bytes = load i64, ptr %private.bytes.p
  %none = icmp eq i32 %exec, 0
  br i1 %none, label %ok, label %next
next:
  %left = phi i32 [ %exec, %entry ], [ %rest, %lane.done ]
  %lane = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %lane.64 = zext i32 %lane to i64
  %address.p = getelementptr i64, ptr %addresses, i64 %lane.64
  %address = load i64, ptr %address.p
  %top = lshr i64 %address, 48
  switch i64 %top, label %lane.done [ i64 4096, label %shared  i64 8192, label %private ]
shared:
  %offset = and i64 %address, 281474976710655
  %fits = icmp uge i64 %lds.bytes, %bytes
  %room = sub i64 %lds.bytes, %bytes
  %below = icmp ule i64 %offset, %room
  %inside = and i1 %fits, %below
  br i1 %inside, label %convert, label %out
convert:
  %host = add i64 %lds, %offset
  store i64 %host, ptr %address.p
  br label %lane.done
lane.done:
  %less = sub i32 %left, 1
  %rest = and i32 %left, %less
  %last = icmp eq i32 %rest, 0
  br i1 %last, label %ok, label %next
private:
  %private.offset = and i64 %address, 281474976710655
  %private.end = add i64 %private.offset, %bytes
  %private.inside = icmp ule i64 %private.end, %private.bytes
  br i1 %private.inside, label %dword, label %out
dword:
  %byte = and i64 %private.offset, 3
  %byte.end = add i64 %byte, %bytes
  %one.dword = icmp ule i64 %byte.end, 4
  br i1 %one.dword, label %swizzle, label %crossing
swizzle:
  %dword.index = lshr i64 %private.offset, 2
  %row = shl i64 %dword.index, 7
  %column = shl i64 %lane.64, 2
  %at.0 = add i64 %row, %column
  %at = add i64 %at.0, %byte
  %private.host = add i64 %private.base, %at
  store i64 %private.host, ptr %address.p
  br label %lane.done
crossing:
  %f.private = call i32 @fault(ptr %env, i32 10, i64 %site, i32 %lane, i64 %address)
  ret i32 1
out:
  %f = call i32 @fault(ptr %env, i32 1, i64 %site, i32 %lane, i64 %address)
  ret i32 1
ok:
  ret i32 0
}
