; What a profiled run counts at every memory access.

; Adds to the traffic of a site.
define void @add_traffic(ptr %env, i64 %site, i64 %bytes, i64 %units, i64 %conflicts) alwaysinline nounwind {
  %traffic.p = getelementptr %Env, ptr %env, i32 0, i32 4
  %traffic = load ptr, ptr %traffic.p
  %bytes.p = getelementptr %Traffic, ptr %traffic, i64 %site, i32 0
  %bytes.0 = load i64, ptr %bytes.p
  %bytes.1 = add i64 %bytes.0, %bytes
  store i64 %bytes.1, ptr %bytes.p
  %units.p = getelementptr %Traffic, ptr %traffic, i64 %site, i32 1
  %units.0 = load i64, ptr %units.p
  %units.1 = add i64 %units.0, %units
  store i64 %units.1, ptr %units.p
  %conflicts.p = getelementptr %Traffic, ptr %traffic, i64 %site, i32 2
  %conflicts.0 = load i64, ptr %conflicts.p
  %conflicts.1 = add i64 %conflicts.0, %conflicts
  store i64 %conflicts.1, ptr %conflicts.p
  ret void
}

; Lines are counted from the start of their buffer, as if that were aligned, so that counts do not
; depend on where the host put it. The name of a line is the address of its byte in the line map;
; private memory has no map and its lines are named from 0.

; Marks the lines `name.first` to `name.last` as touched.
define void @mark_lines(ptr %slot, i64 %name.first, i64 %name.last) alwaysinline nounwind {
  %map.p = getelementptr %Slot, ptr %slot, i32 0, i32 3
  %map = load ptr, ptr %map.p
  %private = icmp eq ptr %map, null
  br i1 %private, label %done, label %mark
mark:
  %count.0 = sub i64 %name.last, %name.first
  %count = add i64 %count.0, 1
  %from = inttoptr i64 %name.first to ptr
  call void @llvm.memset.p0.i64(ptr %from, i8 1, i64 %count, i1 false)
  br label %done
done:
  ret void
}

; The name of the line that holds `address`, for a slot that points at its buffer.
define i64 @line_name(ptr %slot, i64 %address) alwaysinline nounwind {
  %start = load i64, ptr %slot
  %map.p = getelementptr %Slot, ptr %slot, i32 0, i32 3
  %map = load i64, ptr %map.p
  %offset = sub i64 %address, %start
  %index = lshr i64 %offset, 7
  %name = add i64 %map, %index
  ret i64 %name
}

; A scalar load: its lines, and the clock's pending load unless it reads private memory.
define void @count_block(ptr %env, i64 %site, i64 %address, i64 %bytes) nounwind {
  %slots.p = getelementptr %Env, ptr %env, i32 0, i32 2
  %slots = load ptr, ptr %slots.p
  %slot = getelementptr %Slot, ptr %slots, i64 %site
  %first = call i64 @line_name(ptr %slot, i64 %address)
  %end = add i64 %address, %bytes
  %final = sub i64 %end, 1
  %last = call i64 @line_name(ptr %slot, i64 %final)
  call void @mark_lines(ptr %slot, i64 %first, i64 %last)
  %lines.0 = sub i64 %last, %first
  %lines = add i64 %lines.0, 1
  call void @add_traffic(ptr %env, i64 %site, i64 %bytes, i64 %lines, i64 0)
  %map.p = getelementptr %Slot, ptr %slot, i32 0, i32 3
  %map = load ptr, ptr %map.p
  %private = icmp eq ptr %map, null
  br i1 %private, label %done, label %pending
pending:
  %state.p = getelementptr %Env, ptr %env, i32 0, i32 17
  %state = load ptr, ptr %state.p
  %now.p = getelementptr %State, ptr %state, i32 0, i32 5, i32 0
  %now = load i64, ptr %now.p
  %pending.p = getelementptr %State, ptr %state, i32 0, i32 5, i32 3
  store i64 %now, ptr %pending.p
  br label %done
done:
  ret void
}

; Distinct lines of one lane-wise access; returns their number.
define i64 @count_lines(ptr %env, i32 %exec, i64 %site, i64 %bytes) nounwind {
entry:
  %seen = alloca [64 x i64], align 64
  %slots.p = getelementptr %Env, ptr %env, i32 0, i32 2
  %slots = load ptr, ptr %slots.p
  %slot = getelementptr %Slot, ptr %slots, i64 %site
  %limit.p = getelementptr %Slot, ptr %slot, i32 0, i32 1
  %addresses = getelementptr %Env, ptr %env, i32 0, i32 18
  %fast.bytes = mul i64 %bytes, 32
  %none = icmp eq i32 %exec, 0
  br i1 %none, label %add, label %whole
whole:
  ; the common case at once: one block inside one buffer
  %block.first = load i64, ptr %addresses
  %block.end = add i64 %block.first, %fast.bytes
  %block.final = sub i64 %block.end, 1
  %block.last = sub i64 %block.end, %bytes
  %block.start = load i64, ptr %slot
  %block.limit = load i64, ptr %limit.p
  %offset.first = sub i64 %block.first, %block.start
  %offset.last = sub i64 %block.last, %block.start
  %inside.first = icmp ult i64 %offset.first, %block.limit
  %inside.last = icmp ult i64 %offset.last, %block.limit
  %consecutive = call i1 @is_consecutive(ptr %env, i32 %exec, i64 %bytes)
  %block.0 = and i1 %inside.first, %inside.last
  %block = and i1 %block.0, %consecutive
  br i1 %block, label %count.block, label %next
count.block:
  %name.first = call i64 @line_name(ptr %slot, i64 %block.first)
  %name.last = call i64 @line_name(ptr %slot, i64 %block.final)
  call void @mark_lines(ptr %slot, i64 %name.first, i64 %name.last)
  %block.lines.0 = sub i64 %name.last, %name.first
  %block.lines = add i64 %block.lines.0, 1
  br label %add
next:
  %left = phi i32 [ %exec, %whole ], [ %rest, %lane.done ]
  %n = phi i64 [ 0, %whole ], [ %n.lane, %lane.done ]
  %previous = phi i64 [ -1, %whole ], [ %line.last, %lane.done ]
  %lane = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %lane.64 = zext i32 %lane to i64
  %address.p = getelementptr i64, ptr %addresses, i64 %lane.64
  %address = load i64, ptr %address.p
  %slot.first = load i64, ptr %slot
  %limit = load i64, ptr %limit.p
  %offset = sub i64 %address, %slot.first
  %inside = icmp ult i64 %offset, %limit
  br i1 %inside, label %name, label %search
search:
  ; lanes of one access may be in several buffers
  %found = call i32 @find_buffer(ptr %env, ptr %slot, i64 %address, i64 %bytes, i64 %fast.bytes)
  br label %name
name:
  %end = add i64 %address, %bytes
  %final = sub i64 %end, 1
  %line.first = call i64 @line_name(ptr %slot, i64 %address)
  %line.last = call i64 @line_name(ptr %slot, i64 %final)
  %same = icmp eq i64 %line.first, %previous
  %one = icmp eq i64 %line.first, %line.last
  %nothing.new = and i1 %same, %one
  br i1 %nothing.new, label %lane.done, label %mark
mark:
  call void @mark_lines(ptr %slot, i64 %line.first, i64 %line.last)
  br label %line
line:
  %l = phi i64 [ %line.first, %mark ], [ %l1, %line.done ]
  %n.line = phi i64 [ %n, %mark ], [ %n.after, %line.done ]
  br label %compare
compare:
  %j = phi i64 [ %n.line, %line ], [ %j1, %test ]
  %new = icmp eq i64 %j, 0
  br i1 %new, label %append, label %test
test:
  %j1 = sub i64 %j, 1
  %known.p = getelementptr i64, ptr %seen, i64 %j1
  %known = load i64, ptr %known.p
  %hit = icmp eq i64 %known, %l
  br i1 %hit, label %line.done, label %compare
append:
  %slot.new = getelementptr i64, ptr %seen, i64 %n.line
  store i64 %l, ptr %slot.new
  %n.more = add i64 %n.line, 1
  br label %line.done
line.done:
  %n.after = phi i64 [ %n.line, %test ], [ %n.more, %append ]
  %l1 = add i64 %l, 1
  %lines.over = icmp ugt i64 %l1, %line.last
  br i1 %lines.over, label %lane.done, label %line
lane.done:
  %n.lane = phi i64 [ %n, %name ], [ %n.after, %line.done ]
  %less = sub i32 %left, 1
  %rest = and i32 %left, %less
  %over = icmp eq i32 %rest, 0
  br i1 %over, label %add, label %next
add:
  %lines = phi i64 [ 0, %entry ], [ %block.lines, %count.block ], [ %n.lane, %lane.done ]
  %active = call i32 @llvm.ctpop.i32(i32 %exec)
  %active.64 = zext i32 %active to i64
  %moved = mul i64 %active.64, %bytes
  call void @add_traffic(ptr %env, i64 %site, i64 %moved, i64 %lines, i64 0)
  ret i64 %lines
}

; LDS cycles: lanes are served in passes of 32 (up to 4 bytes), 16 (8 bytes) or 8 (more); a pass
; takes as many cycles as the busiest of the 32 banks has distinct dwords to give.
define void @count_banks(ptr %env, i32 %exec, i64 %site, i64 %bytes) nounwind {
entry:
  %busy = alloca [32 x i32], align 64
  %seen = alloca [32 x [32 x i64]], align 64
  %lds.p = getelementptr %Env, ptr %env, i32 0, i32 5
  %lds = load i64, ptr %lds.p
  %addresses = getelementptr %Env, ptr %env, i32 0, i32 18
  %round.up = add i64 %bytes, 3
  %dwords = lshr i64 %round.up, 2
  %is.8 = icmp eq i64 %dwords, 2
  %is.wide = icmp ugt i64 %dwords, 2
  %lanes.8 = select i1 %is.8, i32 16, i32 32
  %lanes = select i1 %is.wide, i32 8, i32 %lanes.8
  br label %pass
pass:
  %start = phi i32 [ 0, %entry ], [ %start.next, %pass.done ]
  %cycles = phi i64 [ 0, %entry ], [ %cycles.next, %pass.done ]
  %conflicts = phi i64 [ 0, %entry ], [ %conflicts.next, %pass.done ]
  %shifted = lshr i32 %exec, %start
  %keep.0 = sub i32 32, %lanes
  %keep = lshr i32 -1, %keep.0
  %active = and i32 %shifted, %keep
  %idle = icmp eq i32 %active, 0
  br i1 %idle, label %pass.done, label %clear
clear:
  call void @llvm.memset.p0.i64(ptr %busy, i8 0, i64 128, i1 false)
  br label %lane
lane:
  %left = phi i32 [ %active, %clear ], [ %rest, %lane.done ]
  %worst = phi i32 [ 0, %clear ], [ %worst.dword, %lane.done ]
  %bit = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %index = add i32 %start, %bit
  %index.64 = zext i32 %index to i64
  %address.p = getelementptr i64, ptr %addresses, i64 %index.64
  %address = load i64, ptr %address.p
  %offset = sub i64 %address, %lds
  %word.first = lshr i64 %offset, 2
  br label %dword
dword:
  %d = phi i64 [ 0, %lane ], [ %d1, %dword.done ]
  %worst.in = phi i32 [ %worst, %lane ], [ %worst.dword, %dword.done ]
  %word = add i64 %word.first, %d
  %bank = and i64 %word, 31
  %busy.p = getelementptr i32, ptr %busy, i64 %bank
  %count = load i32, ptr %busy.p
  %bank.seen = getelementptr [32 x i64], ptr %seen, i64 %bank
  br label %compare
compare:
  %j = phi i32 [ %count, %dword ], [ %j1, %test ]
  %new = icmp eq i32 %j, 0
  br i1 %new, label %append, label %test
test:
  %j1 = sub i32 %j, 1
  %j1.64 = zext i32 %j1 to i64
  %known.p = getelementptr i64, ptr %bank.seen, i64 %j1.64
  %known = load i64, ptr %known.p
  %hit = icmp eq i64 %known, %word
  br i1 %hit, label %dword.done, label %compare
append:
  %count.64 = zext i32 %count to i64
  %new.p = getelementptr i64, ptr %bank.seen, i64 %count.64
  store i64 %word, ptr %new.p
  %count.1 = add i32 %count, 1
  store i32 %count.1, ptr %busy.p
  %is.worse = icmp ugt i32 %count.1, %worst.in
  %worse = select i1 %is.worse, i32 %count.1, i32 %worst.in
  br label %dword.done
dword.done:
  %worst.dword = phi i32 [ %worst.in, %test ], [ %worse, %append ]
  %d1 = add i64 %d, 1
  %dwords.over = icmp uge i64 %d1, %dwords
  br i1 %dwords.over, label %lane.done, label %dword
lane.done:
  %less = sub i32 %left, 1
  %rest = and i32 %left, %less
  %lanes.over = icmp eq i32 %rest, 0
  br i1 %lanes.over, label %pass.count, label %lane
pass.count:
  %worst.64 = zext i32 %worst.dword to i64
  %extra = sub i64 %worst.64, 1
  br label %pass.done
pass.done:
  %cycles.pass = phi i64 [ 0, %pass ], [ %worst.64, %pass.count ]
  %extra.pass = phi i64 [ 0, %pass ], [ %extra, %pass.count ]
  %cycles.next = add i64 %cycles, %cycles.pass
  %conflicts.next = add i64 %conflicts, %extra.pass
  %start.next = add i32 %start, %lanes
  %over = icmp uge i32 %start.next, 32
  br i1 %over, label %add, label %pass
add:
  %population = call i32 @llvm.ctpop.i32(i32 %exec)
  %population.64 = zext i32 %population to i64
  %moved = mul i64 %population.64, %bytes
  call void @add_traffic(ptr %env, i64 %site, i64 %moved, i64 %cycles.next, i64 %conflicts.next)
  ret void
}

; The clock: a vector load is issued now. Its data is there a latency later, and not before its
; lines have followed those of the load before it. 8 bytes a lane and more count as wide.
define void @clock_issue(ptr %env, i64 %bytes, i64 %lines) alwaysinline nounwind {
  %state.p = getelementptr %Env, ptr %env, i32 0, i32 17
  %state = load ptr, ptr %state.p
  %now.p = getelementptr %State, ptr %state, i32 0, i32 5, i32 0
  %now = load i64, ptr %now.p
  %issued.p = getelementptr %State, ptr %state, i32 0, i32 5, i32 1
  %issued = load i64, ptr %issued.p
  %at = and i64 %issued, 63
  %time.p = getelementptr %State, ptr %state, i32 0, i32 5, i32 6, i64 %at
  %latency.p = getelementptr %Env, ptr %env, i32 0, i32 24
  %latency = load i64, ptr %latency.p
  %alone = add i64 %now, %latency
  %line.ps.p = getelementptr %Env, ptr %env, i32 0, i32 28
  %line.ps = load i64, ptr %line.ps.p
  %moving.ps = mul i64 %lines, %line.ps
  %moving = udiv i64 %moving.ps, 1000
  %before.0 = sub i64 %issued, 1
  %before = and i64 %before.0, 63
  %before.p = getelementptr %State, ptr %state, i32 0, i32 5, i32 6, i64 %before
  %returned = load i64, ptr %before.p
  %behind = add i64 %returned, %moving
  %ready = call i64 @llvm.smax.i64(i64 %alone, i64 %behind)
  store i64 %ready, ptr %time.p
  %issued.1 = add i64 %issued, 1
  store i64 %issued.1, ptr %issued.p
  %wide.p = getelementptr %State, ptr %state, i32 0, i32 5, i32 5
  %wide = load i64, ptr %wide.p
  %unset = icmp slt i64 %wide, 0
  %is.wide = icmp uge i64 %bytes, 8
  %is.first = and i1 %unset, %is.wide
  %wide.new = select i1 %is.first, i64 %issued, i64 %wide
  store i64 %wide.new, ptr %wide.p
  ret void
}

; Moves the clock to a time at which awaited data is there.
define void @clock_reach(ptr %state, i64 %ready) alwaysinline nounwind {
  %now.p = getelementptr %State, ptr %state, i32 0, i32 5, i32 0
  %now = load i64, ptr %now.p
  %later = call i64 @llvm.smax.i64(i64 %now, i64 %ready)
  store i64 %later, ptr %now.p
  ret void
}

; Waits until at most `allowed` vector loads are outstanding.
define void @clock_wait(ptr %env, ptr %state, i64 %allowed) nounwind {
  %issued.p = getelementptr %State, ptr %state, i32 0, i32 5, i32 1
  %issued = load i64, ptr %issued.p
  %awaited.p = getelementptr %State, ptr %state, i32 0, i32 5, i32 2
  %awaited = load i64, ptr %awaited.p
  %target = sub i64 %issued, %allowed
  %waits = icmp sgt i64 %target, %awaited
  br i1 %waits, label %wait, label %done
wait:
  %last = sub i64 %target, 1
  %at = and i64 %last, 63
  %time.p = getelementptr %State, ptr %state, i32 0, i32 5, i32 6, i64 %at
  %ready = load i64, ptr %time.p
  call void @clock_reach(ptr %state, i64 %ready)
  store i64 %target, ptr %awaited.p
  %wide.p = getelementptr %State, ptr %state, i32 0, i32 5, i32 5
  %wide = load i64, ptr %wide.p
  %leading.p = getelementptr %State, ptr %state, i32 0, i32 5, i32 4
  %leading = load i64, ptr %leading.p
  %waited.p = getelementptr %State, ptr %state, i32 0, i32 5, i32 0
  %now.waited = load i64, ptr %waited.p
  %wide.at = and i64 %wide, 63
  %wide.time.p = getelementptr %State, ptr %state, i32 0, i32 5, i32 6, i64 %wide.at
  %wide.time = load i64, ptr %wide.time.p
  %waited = call i64 @llvm.umin.i64(i64 %now.waited, i64 %wide.time)
  %has.wide = icmp sge i64 %wide, 0
  %returned = icmp sgt i64 %target, %wide
  %unset = icmp slt i64 %leading, 0
  %first.0 = and i1 %has.wide, %returned
  %first = and i1 %first.0, %unset
  %leading.now = select i1 %first, i64 %waited, i64 %leading
  store i64 %leading.now, ptr %leading.p
  br label %done
done:
  ret void
}

; Waits for the pending scalar load, if there is one. Until the first wide load has returned its
; data is as far away as any; later it is in the scalar cache.
define void @clock_wait_scalar(ptr %env, ptr %state) nounwind {
  %pending.p = getelementptr %State, ptr %state, i32 0, i32 5, i32 3
  %pending = load i64, ptr %pending.p
  %none = icmp slt i64 %pending, 0
  br i1 %none, label %done, label %wait
wait:
  %leading.p = getelementptr %State, ptr %state, i32 0, i32 5, i32 4
  %leading = load i64, ptr %leading.p
  %starting = icmp slt i64 %leading, 0
  %cold.p = getelementptr %Env, ptr %env, i32 0, i32 24
  %cold = load i64, ptr %cold.p
  %warm.p = getelementptr %Env, ptr %env, i32 0, i32 25
  %warm = load i64, ptr %warm.p
  %latency = select i1 %starting, i64 %cold, i64 %warm
  %ready = add i64 %pending, %latency
  call void @clock_reach(ptr %state, i64 %ready)
  store i64 -1, ptr %pending.p
  br label %done
done:
  ret void
}

; Adds a finished wave's clock to the launch. Without a wide load, its first wait leads.
define void @sum_clock(ptr %grid, ptr %env, ptr %state) nounwind {
  %now.p = getelementptr %State, ptr %state, i32 0, i32 5, i32 0
  %now = load i64, ptr %now.p
  %leading.p = getelementptr %State, ptr %state, i32 0, i32 5, i32 4
  %leading = load i64, ptr %leading.p
  %unset = icmp slt i64 %leading, 0
  %latency.p = getelementptr %Env, ptr %env, i32 0, i32 24
  %latency = load i64, ptr %latency.p
  %at.most.one = call i64 @llvm.umin.i64(i64 %now, i64 %latency)
  %lead = select i1 %unset, i64 %at.most.one, i64 %leading
  %sum.p = getelementptr %Grid, ptr %grid, i32 0, i32 16, i32 0
  %sum = load i64, ptr %sum.p
  %sum.1 = add i64 %sum, %now
  store i64 %sum.1, ptr %sum.p
  %lead.p = getelementptr %Grid, ptr %grid, i32 0, i32 16, i32 1
  %lead.sum = load i64, ptr %lead.p
  %lead.sum.1 = add i64 %lead.sum, %lead
  store i64 %lead.sum.1, ptr %lead.p
  ret void
}
