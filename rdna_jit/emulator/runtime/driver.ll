; Workgroups, and the waves in them.

; Registers of a wave at its start; all that the hardware does not set holds a poison pattern.
define void @start_wave(ptr %grid, ptr %state, i64 %wave, i64 %x, i64 %y, i64 %z) nounwind {
entry:
  call void @llvm.memset.p0.i64(ptr %state, i8 -3, i64 512, i1 false)
  %rest = getelementptr %State, ptr %state, i32 0, i32 1
  %clock.size = ptrtoint ptr getelementptr (%Clock, ptr null, i32 1) to i64
  %rest.size = add i64 %clock.size, 32
  call void @llvm.memset.p0.i64(ptr %rest, i8 0, i64 %rest.size, i1 false)
  %pending.p = getelementptr %State, ptr %state, i32 0, i32 5, i32 3
  store i64 -1, ptr %pending.p
  %leading.p = getelementptr %State, ptr %state, i32 0, i32 5, i32 4
  store i64 -1, ptr %leading.p
  %wide.p = getelementptr %State, ptr %state, i32 0, i32 5, i32 5
  store i64 -1, ptr %wide.p
  %steps.from = getelementptr %Grid, ptr %grid, i32 0, i32 13
  %steps = load i64, ptr %steps.from
  %steps.p = getelementptr %State, ptr %state, i32 0, i32 3
  store i64 %steps, ptr %steps.p
  %vgprs = getelementptr %State, ptr %state, i32 0, i32 9
  %vgpr.bytes.p = getelementptr %Grid, ptr %grid, i32 0, i32 2
  %vgpr.bytes = load i64, ptr %vgpr.bytes.p
  call void @llvm.memset.p0.i64(ptr align 64 %vgprs, i8 -3, i64 %vgpr.bytes, i1 false)
  %ids.p = getelementptr %Grid, ptr %grid, i32 0, i32 9
  %ids = load ptr, ptr %ids.p
  %wave.ids = getelementptr [96 x i32], ptr %ids, i64 %wave
  call void @llvm.memcpy.p0.p0.i64(ptr align 64 %vgprs, ptr %wave.ids, i64 384, i1 false)
  %user.p = getelementptr %Grid, ptr %grid, i32 0, i32 6
  %user = load ptr, ptr %user.p
  %count.p = getelementptr %Grid, ptr %grid, i32 0, i32 7
  %count = load i64, ptr %count.p
  %user.bytes = shl i64 %count, 2
  call void @llvm.memcpy.p0.p0.i64(ptr %state, ptr %user, i64 %user.bytes, i1 false)
  %mask.p = getelementptr %Grid, ptr %grid, i32 0, i32 8
  %mask = load i64, ptr %mask.p
  ; each id is written where the next one goes, and kept if it is wanted
  %want.x = and i64 %mask, 1
  %at.y = add i64 %count, %want.x
  %mask.y = lshr i64 %mask, 1
  %want.y = and i64 %mask.y, 1
  %at.z = add i64 %at.y, %want.y
  %x.32 = trunc i64 %x to i32
  %y.32 = trunc i64 %y to i32
  %z.32 = trunc i64 %z to i32
  %x.p = getelementptr i32, ptr %state, i64 %count
  store i32 %x.32, ptr %x.p
  %y.p = getelementptr i32, ptr %state, i64 %at.y
  store i32 %y.32, ptr %y.p
  %z.p = getelementptr i32, ptr %state, i64 %at.z
  store i32 %z.32, ptr %z.p
  %scratch.at.p = getelementptr %Grid, ptr %grid, i32 0, i32 10
  %scratch.at = load i64, ptr %scratch.at.p
  %no.scratch = icmp slt i64 %scratch.at, 0
  br i1 %no.scratch, label %mask.lanes, label %scratch
scratch:
  %scratch.bytes.p = getelementptr %Grid, ptr %grid, i32 0, i32 11
  %scratch.bytes = load i64, ptr %scratch.bytes.p
  %scratch.offset = mul i64 %scratch.bytes, %wave
  %scratch.32 = trunc i64 %scratch.offset to i32
  %scratch.p = getelementptr i32, ptr %state, i64 %scratch.at
  store i32 %scratch.32, ptr %scratch.p
  br label %mask.lanes
mask.lanes:
  %exec = call i32 @first_exec(ptr %grid, i64 %wave)
  %null.p = getelementptr i32, ptr %state, i64 125
  store i32 0, ptr %null.p
  %exec.p = getelementptr i32, ptr %state, i64 126
  store i32 %exec, ptr %exec.p
  %exec.hi.p = getelementptr i32, ptr %state, i64 127
  store i32 0, ptr %exec.hi.p
  ret void
}

; Runs workgroups first .. last - 1 (x fastest). Returns 0, or 1 after a fault.
define i32 @run(ptr %grid, ptr %env, i64 %first, i64 %last) nounwind {
entry:
  %float.mode = alloca i32
  call void @own_float_mode(ptr %float.mode)
  %grid.x.p = getelementptr %Grid, ptr %grid, i32 0, i32 4
  %grid.x = load i64, ptr %grid.x.p
  %grid.y.p = getelementptr %Grid, ptr %grid, i32 0, i32 5
  %grid.y = load i64, ptr %grid.y.p
  %workgroup.p = getelementptr %Env, ptr %env, i32 0, i32 14
  br label %next
next:
  %n = phi i64 [ %first, %entry ], [ %n1, %more ]
  %all = icmp sge i64 %n, %last
  br i1 %all, label %done, label %body
body:
  store i64 %n, ptr %workgroup.p
  %row = udiv i64 %n, %grid.x
  %x = urem i64 %n, %grid.x
  %z = udiv i64 %row, %grid.y
  %y = urem i64 %row, %grid.y
  %bad = call i32 @run_workgroup(ptr %grid, ptr %env, i64 %x, i64 %y, i64 %z)
  %fine = icmp eq i32 %bad, 0
  br i1 %fine, label %more, label %failed
more:
  %n1 = add i64 %n, 1
  br label %next
done:
  br label %leave
failed:
  br label %leave
leave:
  %result = phi i32 [ 0, %done ], [ 1, %failed ]
  call void @llvm.x86.sse.ldmxcsr(ptr %float.mode)
  ret i32 %result
}

; A wave at a barrier: are there lanes that an earlier barrier did without? Lanes that are off at a
; barrier may have ended; those that come back have not, and left it out.
define i1 @note_barrier(ptr %grid, ptr %state, i64 %wave) nounwind {
  %exec.p = getelementptr i32, ptr %state, i64 126
  %exec = load i32, ptr %exec.p
  %absent.p = getelementptr %State, ptr %state, i32 0, i32 7
  %absent = load i32, ptr %absent.p
  %all = call i32 @first_exec(ptr %grid, i64 %wave)
  %off = xor i32 %exec, -1
  %missing = and i32 %all, %off
  %absent.now = or i32 %absent, %missing
  store i32 %absent.now, ptr %absent.p
  %back = and i32 %absent, %exec
  %late = icmp ne i32 %back, 0
  ret i1 %late
}

; The lanes that a wave starts with.
define i32 @first_exec(ptr %grid, i64 %wave) alwaysinline nounwind {
  %waves.p = getelementptr %Grid, ptr %grid, i32 0, i32 3
  %waves = load i64, ptr %waves.p
  %wave.1 = add i64 %wave, 1
  %is.last = icmp eq i64 %wave.1, %waves
  %exec.last.p = getelementptr %Grid, ptr %grid, i32 0, i32 12
  %exec.last = load i32, ptr %exec.last.p
  %exec = select i1 %is.last, i32 %exec.last, i32 -1
  ret i32 %exec
}

; Waves take turns from barrier to barrier until all have ended.
define i32 @run_workgroup(ptr %grid, ptr %env, i64 %x, i64 %y, i64 %z) nounwind {
entry:
  %function.p = getelementptr %Grid, ptr %grid, i32 0, i32 0
  %function = load ptr, ptr %function.p
  %states.p = getelementptr %Grid, ptr %grid, i32 0, i32 1
  %states = load ptr, ptr %states.p
  %waves.p = getelementptr %Grid, ptr %grid, i32 0, i32 3
  %waves = load i64, ptr %waves.p
  %descending.p = getelementptr %Grid, ptr %grid, i32 0, i32 14
  %descending = load i64, ptr %descending.p
  %is.descending = icmp ne i64 %descending, 0
  %strict.p = getelementptr %Grid, ptr %grid, i32 0, i32 15
  %strict = load i64, ptr %strict.p
  %is.strict = icmp ne i64 %strict, 0
  %lds.p = getelementptr %Env, ptr %env, i32 0, i32 5
  %lds = load ptr, ptr %lds.p
  %lds.bytes.p = getelementptr %Env, ptr %env, i32 0, i32 6
  %lds.bytes = load i64, ptr %lds.bytes.p
  call void @llvm.memset.p0.i64(ptr %lds, i8 -3, i64 %lds.bytes, i1 false)
  %epoch.p = getelementptr %Env, ptr %env, i32 0, i32 15
  %epoch.0 = load i64, ptr %epoch.p
  %epoch.1 = add i64 %epoch.0, 1
  %epoch.first.p = getelementptr %Env, ptr %env, i32 0, i32 16
  store i64 %epoch.1, ptr %epoch.first.p
  %steps.p = getelementptr %Env, ptr %env, i32 0, i32 7
  %wave.p = getelementptr %Env, ptr %env, i32 0, i32 13
  %state.p = getelementptr %Env, ptr %env, i32 0, i32 17
  %scratch.p = getelementptr %Grid, ptr %grid, i32 0, i32 17
  %scratch = load i64, ptr %scratch.p
  %scratch.bytes.p = getelementptr %Grid, ptr %grid, i32 0, i32 11
  %scratch.bytes = load i64, ptr %scratch.bytes.p
  %private.p = getelementptr %Env, ptr %env, i32 0, i32 26
  br label %start
start:
  %s = phi i64 [ 0, %entry ], [ %s1, %start ]
  %start.state = getelementptr %State, ptr %states, i64 %s
  call void @start_wave(ptr %grid, ptr %start.state, i64 %s, i64 %x, i64 %y, i64 %z)
  %s1 = add i64 %s, 1
  %started = icmp eq i64 %s1, %waves
  br i1 %started, label %round, label %start
round:
  %epoch = load i64, ptr %epoch.p
  %epoch.next = add i64 %epoch, 1
  store i64 %epoch.next, ptr %epoch.p
  br label %turn
turn:
  %k = phi i64 [ 0, %round ], [ %k1, %after ]
  %waiting = phi i64 [ 0, %round ], [ %waiting.1, %after ]
  %ended = phi i64 [ 0, %round ], [ %ended.1, %after ]
  %where = phi i32 [ 0, %round ], [ %where.1, %after ]
  %k.down.0 = sub i64 %waves, %k
  %k.down = sub i64 %k.down.0, 1
  %w = select i1 %is.descending, i64 %k.down, i64 %k
  %state = getelementptr %State, ptr %states, i64 %w
  %ended.p = getelementptr %State, ptr %state, i32 0, i32 4
  %was.ended = load i64, ptr %ended.p
  %skip = icmp ne i64 %was.ended, 0
  br i1 %skip, label %is.ended, label %go
go:
  store i64 %w, ptr %wave.p
  store ptr %state, ptr %state.p
  %left.p = getelementptr %State, ptr %state, i32 0, i32 3
  %left = load i64, ptr %left.p
  store i64 %left, ptr %steps.p
  %scratch.offset = mul i64 %scratch.bytes, %w
  %private = add i64 %scratch, %scratch.offset
  store i64 %private, ptr %private.p
  %status = call i32 %function(ptr %state, ptr %env)
  %left.now = load i64, ptr %steps.p
  store i64 %left.now, ptr %left.p
  switch i32 %status, label %failed [ i32 0, label %ends  i32 1, label %waits ]
ends:
  store i64 1, ptr %ended.p
  call void @sum_clock(ptr %grid, ptr %env, ptr %state)
  br label %is.ended
is.ended:
  %ended.more = add i64 %ended, 1
  br label %after
waits:
  %resume.p = getelementptr %State, ptr %state, i32 0, i32 2
  %resume = load i32, ptr %resume.p
  %is.first = icmp eq i64 %waiting, 0
  %is.same = icmp eq i32 %resume, %where
  %agrees = or i1 %is.first, %is.same
  %strict.split = xor i1 %agrees, true
  %late = call i1 @note_barrier(ptr %grid, ptr %state, i64 %w)
  %apart = or i1 %strict.split, %late
  %split = and i1 %apart, %is.strict
  %waiting.more = add i64 %waiting, 1
  br i1 %split, label %diverged, label %after
after:
  %waiting.1 = phi i64 [ %waiting, %is.ended ], [ %waiting.more, %waits ]
  %ended.1 = phi i64 [ %ended.more, %is.ended ], [ %ended, %waits ]
  %where.1 = phi i32 [ %where, %is.ended ], [ %resume, %waits ]
  %k1 = add i64 %k, 1
  %turned = icmp eq i64 %k1, %waves
  br i1 %turned, label %end.round, label %turn
end.round:
  %over = icmp eq i64 %waiting.1, 0
  br i1 %over, label %done, label %again
again:
  %some.ended = icmp ne i64 %ended.1, 0
  %left.behind = and i1 %some.ended, %is.strict
  br i1 %left.behind, label %diverged.end, label %round
diverged:
  %at = zext i32 %resume to i64
  br label %report
diverged.end:
  %at.end = zext i32 %where.1 to i64
  br label %report
report:
  %site = phi i64 [ %at, %diverged ], [ %at.end, %diverged.end ]
  %f = call i32 @fault(ptr %env, i32 4, i64 %site, i32 -1, i64 0)
  ret i32 1
failed:
  ret i32 1
done:
  ret i32 0
}
