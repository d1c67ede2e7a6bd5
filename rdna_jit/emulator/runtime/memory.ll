; Bounds checks, and addresses that may point anywhere.

; Records a fault; always returns 1. Kinds: 1 memory, 2 unsupported, 3 steps, 4 divergent barrier,
; 5 race, 6 uninitialised, 7 misaligned, 8 bad branch, 9 trap, 10 generic access across dwords of private
; memory, 11 foreign buffer descriptor, 12 access by a lane that left out a barrier.
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
  %checks.p = getelementptr %Env, ptr %env, i32 0, i32 21
  %checks = load i64, ptr %checks.p
  %misaligned = and i64 %checks, 4
  %aligning = icmp ne i64 %misaligned, 0
  %atomic = icmp uge i32 %kind, 2
  %align = or i1 %aligning, %atomic
  br i1 %align, label %alignment, label %aligned
alignment:
  %crooked = call i32 @check_alignment(ptr %env, i32 %exec, i64 %site, i64 %bytes, i1 %lds, i1 %atomic)
  %is.crooked = icmp ne i32 %crooked, 0
  br i1 %is.crooked, label %out, label %aligned
aligned:
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
  %lines.moved = call i64 @count_lines(ptr %env, i32 %exec, i64 %site, i64 %bytes)
  %is.load = icmp eq i32 %kind, 0
  %returns = icmp eq i32 %kind, 3
  %awaited = or i1 %is.load, %returns
  br i1 %awaited, label %issue, label %check
issue:
  call void @clock_issue(ptr %env, i64 %bytes, i64 %lines.moved)
  br label %check
check:
  %shadow.checks = and i64 %checks, 3
  %checking = icmp ne i64 %shadow.checks, 0
  br i1 %checking, label %note, label %ok
note:
  %r = call i32 @note_access(ptr %env, i32 %exec, i64 %site, i64 %bytes, i1 %lds, i32 %kind)
  ret i32 %r
out:
  ret i32 1
ok:
  ret i32 0
}

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
