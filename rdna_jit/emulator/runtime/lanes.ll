; Loads and stores of 32 lanes: one block where it can be, lane by lane where not.

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
