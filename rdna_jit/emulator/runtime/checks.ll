; Alignment; races and uninitialised reads, seen through a shadow of every byte.

; Whether every active lane of env.addresses is at a multiple of what the aligned mode asks for: the
; size up to a dword, in LDS up to 16 bytes (12 bytes need 16); of atomics always the size.
define i32 @check_alignment(ptr %env, i32 %exec, i64 %site, i64 %bytes, i1 %lds, i1 %atomic) nounwind {
  %addresses.p = getelementptr %Env, ptr %env, i32 0, i32 18
  %addresses = load <32 x i64>, ptr %addresses.p, align 8
  %at.most.4 = call i64 @llvm.umin.i64(i64 %bytes, i64 4)
  %whole = or i1 %lds, %atomic
  %size = select i1 %whole, i64 %bytes, i64 %at.most.4
  %is.12 = icmp eq i64 %size, 12
  %alignment = select i1 %is.12, i64 16, i64 %size
  %low = sub i64 %alignment, 1
  %low.0 = insertelement <32 x i64> poison, i64 %low, i32 0
  %low.v = shufflevector <32 x i64> %low.0, <32 x i64> poison, <32 x i32> zeroinitializer
  %rest = and <32 x i64> %addresses, %low.v
  %off = icmp ne <32 x i64> %rest, zeroinitializer
  %bits = bitcast <32 x i1> %off to i32
  %bad = and i32 %bits, %exec
  %fine = icmp eq i32 %bad, 0
  br i1 %fine, label %ok, label %out
out:
  %lane = call i32 @llvm.cttz.i32(i32 %bad, i1 true)
  %lane.64 = zext i32 %lane to i64
  %address.p = getelementptr i64, ptr %addresses.p, i64 %lane.64
  %address = load i64, ptr %address.p
  %r = call i32 @fault(ptr %env, i32 7, i64 %site, i32 %lane, i64 %address)
  ret i32 %r
ok:
  ret i32 0
}

; The shadow of [address, ...) in its buffer, or null.
define ptr @shadow_of(ptr %env, i64 %address) nounwind {
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
  %inside = icmp ult i64 %offset, %size
  br i1 %inside, label %found, label %more
more:
  %i1 = add i64 %i, 1
  br label %next
found:
  %shadow.p = getelementptr %Buffer, ptr %buffer, i32 0, i32 3
  %shadow = load ptr, ptr %shadow.p
  %private = icmp eq ptr %shadow, null
  br i1 %private, label %none, label %place
place:
  %cell = getelementptr i32, ptr %shadow, i64 %offset
  ret ptr %cell
none:
  ret ptr null
}

; A scalar load of bytes that nobody has written?
define i32 @check_written(ptr %env, i64 %site, i32 %lane, i64 %address, i64 %bytes) nounwind {
entry:
  %checks.p = getelementptr %Env, ptr %env, i32 0, i32 21
  %checks = load i64, ptr %checks.p
  %uninitialised = and i64 %checks, 2
  %off = icmp eq i64 %uninitialised, 0
  br i1 %off, label %ok, label %find
find:
  %cells = call ptr @shadow_of(ptr %env, i64 %address)
  %private = icmp eq ptr %cells, null
  br i1 %private, label %ok, label %next
next:
  %i = phi i64 [ 0, %find ], [ %i1, %more ]
  %cell.p = getelementptr i32, ptr %cells, i64 %i
  %cell = load i32, ptr %cell.p
  %unwritten = icmp eq i32 %cell, 0
  br i1 %unwritten, label %out, label %more
more:
  %i1 = add i64 %i, 1
  %over = icmp eq i64 %i1, %bytes
  br i1 %over, label %ok, label %next
out:
  %r = call i32 @fault(ptr %env, i32 6, i64 %site, i32 %lane, i64 %address)
  ret i32 %r
ok:
  ret i32 0
}

; One byte of global memory. Returns 0, or the fault kind 5 (race) or 6 (uninitialised).
define i32 @note_global(ptr %env, ptr %cell.p, i32 %kind) alwaysinline nounwind {
  %checks.p = getelementptr %Env, ptr %env, i32 0, i32 21
  %checks = load i64, ptr %checks.p
  %races = trunc i64 %checks to i1
  %checks.1 = lshr i64 %checks, 1
  %uninitialised = trunc i64 %checks.1 to i1
  %workgroup.p = getelementptr %Env, ptr %env, i32 0, i32 14
  %workgroup = load i64, ptr %workgroup.p
  %workgroup.32 = trunc i64 %workgroup to i32
  %me = add i32 %workgroup.32, 2
  %cell = load i32, ptr %cell.p
  %is.store = icmp eq i32 %kind, 1
  br i1 %is.store, label %write, label %read
write:
  %by.kernel = icmp ugt i32 %cell, 1
  %by.other = icmp ne i32 %cell, %me
  %race.0 = and i1 %by.kernel, %by.other
  %race = and i1 %race.0, %races
  store i32 %me, ptr %cell.p
  %r.write = select i1 %race, i32 5, i32 0
  ret i32 %r.write
read:
  %unwritten = icmp eq i32 %cell, 0
  %bad = and i1 %unwritten, %uninitialised
  %r.read = select i1 %bad, i32 6, i32 0
  ret i32 %r.read
}

; One byte of LDS. A tag is epoch << 8 | wave, with bit 7 for atomics and 127 for several waves.
define i32 @note_lds(ptr %env, ptr %cell, i32 %kind) alwaysinline nounwind {
  %checks.p = getelementptr %Env, ptr %env, i32 0, i32 21
  %checks = load i64, ptr %checks.p
  %races = trunc i64 %checks to i1
  %checks.1 = lshr i64 %checks, 1
  %uninitialised = trunc i64 %checks.1 to i1
  %wave.p = getelementptr %Env, ptr %env, i32 0, i32 13
  %wave = load i64, ptr %wave.p
  %epoch.p = getelementptr %Env, ptr %env, i32 0, i32 15
  %epoch = load i64, ptr %epoch.p
  %epoch.first.p = getelementptr %Env, ptr %env, i32 0, i32 16
  %epoch.first = load i64, ptr %epoch.first.p
  %epoch.tag = shl i64 %epoch, 8
  %tag = or i64 %epoch.tag, %wave
  %read.p = getelementptr i64, ptr %cell, i64 1
  %written = load i64, ptr %cell
  %read = load i64, ptr %read.p
  %written.epoch = lshr i64 %written, 8
  %written.now = icmp eq i64 %written.epoch, %epoch
  %written.wave = and i64 %written, 127
  %written.other.0 = icmp ne i64 %written.wave, %wave
  %written.other = and i1 %written.now, %written.other.0
  %atomic.bit = and i64 %written, 128
  %written.plain = icmp eq i64 %atomic.bit, 0
  %read.epoch = lshr i64 %read, 8
  %read.now = icmp eq i64 %read.epoch, %epoch
  %read.wave = and i64 %read, 127
  %read.other.0 = icmp ne i64 %read.wave, %wave
  %read.other = and i1 %read.now, %read.other.0
  %stale = icmp ult i64 %written.epoch, %epoch.first
  %unwritten = and i1 %stale, %uninitialised
  switch i32 %kind, label %atomic [ i32 0, label %load  i32 1, label %store ]
load:
  %several = or i64 %epoch.tag, 127
  %read.tag = select i1 %read.other, i64 %several, i64 %tag
  store i64 %read.tag, ptr %read.p
  %load.race = and i1 %written.other, %races
  %r.load.0 = select i1 %load.race, i32 5, i32 0
  %r.load = select i1 %unwritten, i32 6, i32 %r.load.0
  ret i32 %r.load
store:
  store i64 %tag, ptr %cell
  %clash = or i1 %written.other, %read.other
  %store.race = and i1 %clash, %races
  %r.store = select i1 %store.race, i32 5, i32 0
  ret i32 %r.store
atomic:
  %mine = or i64 %tag, 128
  %shared = or i64 %epoch.tag, 255
  %atomic.tag = select i1 %written.other, i64 %shared, i64 %mine
  store i64 %atomic.tag, ptr %cell
  %plain.clash = and i1 %written.other, %written.plain
  %atomic.clash = or i1 %plain.clash, %read.other
  %atomic.race = and i1 %atomic.clash, %races
  %r.atomic.0 = select i1 %atomic.race, i32 5, i32 0
  %r.atomic = select i1 %unwritten, i32 6, i32 %r.atomic.0
  ret i32 %r.atomic
}

; Every byte of a lane-wise access.
define i32 @note_access(ptr %env, i32 %exec, i64 %site, i64 %bytes, i1 %lds, i32 %kind) nounwind {
entry:
  %lds.p = getelementptr %Env, ptr %env, i32 0, i32 5
  %lds.base = load i64, ptr %lds.p
  %lds.shadow.p = getelementptr %Env, ptr %env, i32 0, i32 12
  %lds.shadow = load ptr, ptr %lds.shadow.p
  %addresses = getelementptr %Env, ptr %env, i32 0, i32 18
  %state.p = getelementptr %Env, ptr %env, i32 0, i32 17
  %state = load ptr, ptr %state.p
  %absent.p = getelementptr %State, ptr %state, i32 0, i32 7
  %absent = load i32, ptr %absent.p
  %checks.p = getelementptr %Env, ptr %env, i32 0, i32 21
  %checks = load i64, ptr %checks.p
  %races = trunc i64 %checks to i1
  %back.0 = and i32 %absent, %exec
  %back = select i1 %races, i32 %back.0, i32 0
  %some.back = icmp ne i32 %back, 0
  %none = icmp eq i32 %exec, 0
  br i1 %none, label %ok, label %look
look:
  br i1 %some.back, label %left.out, label %next
left.out:
  %back.lane = call i32 @llvm.cttz.i32(i32 %back, i1 true)
  %f.back = call i32 @fault(ptr %env, i32 12, i64 %site, i32 %back.lane, i64 0)
  ret i32 1
next:
  %left = phi i32 [ %exec, %look ], [ %rest, %lane.done ]
  %lane = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %lane.64 = zext i32 %lane to i64
  %address.p = getelementptr i64, ptr %addresses, i64 %lane.64
  %address = load i64, ptr %address.p
  %offset = sub i64 %address, %lds.base
  br i1 %lds, label %byte, label %find
find:
  %cells = call ptr @shadow_of(ptr %env, i64 %address)
  %private = icmp eq ptr %cells, null
  br i1 %private, label %lane.done, label %byte
byte:
  %i = phi i64 [ 0, %next ], [ 0, %find ], [ %i1, %fine ]
  %global.cells = phi ptr [ null, %next ], [ %cells, %find ], [ %global.cells, %fine ]
  br i1 %lds, label %local, label %global
local:
  %at = add i64 %offset, %i
  %pair = shl i64 %at, 1
  %local.cell = getelementptr i64, ptr %lds.shadow, i64 %pair
  %r.local = call i32 @note_lds(ptr %env, ptr %local.cell, i32 %kind)
  br label %judge
global:
  %global.cell = getelementptr i32, ptr %global.cells, i64 %i
  %r.global = call i32 @note_global(ptr %env, ptr %global.cell, i32 %kind)
  br label %judge
judge:
  %r = phi i32 [ %r.local, %local ], [ %r.global, %global ]
  %bad = icmp ne i32 %r, 0
  br i1 %bad, label %out, label %fine
fine:
  %i1 = add i64 %i, 1
  %over = icmp eq i64 %i1, %bytes
  br i1 %over, label %lane.done, label %byte
lane.done:
  %less = sub i32 %left, 1
  %rest = and i32 %left, %less
  %last = icmp eq i32 %rest, 0
  br i1 %last, label %ok, label %next
out:
  %bad.address = add i64 %address, %i
  %f = call i32 @fault(ptr %env, i32 %r, i64 %site, i32 %lane, i64 %bad.address)
  ret i32 %f
ok:
  ret i32 0
}
