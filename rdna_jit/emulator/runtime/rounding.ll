; The host's own floating-point mode, and double precision in other rounding modes.

; Rounding to nearest, denormals kept, no traps: what translated code takes for granted, whatever
; the process has set for itself.
define void @own_float_mode(ptr %saved) alwaysinline nounwind {
  %own = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %saved)
  store i32 8064, ptr %own
  call void @llvm.x86.sse.ldmxcsr(ptr %own)
  ret void
}

; Runs one wave to its next stop, for callers outside of `run`.
define i32 @run_wave(ptr %function, ptr %state, ptr %env) nounwind {
  %saved = alloca i32
  call void @own_float_mode(ptr %saved)
  %status = call i32 %function(ptr %state, ptr %env)
  call void @llvm.x86.sse.ldmxcsr(ptr %saved)
  ret i32 %status
}

; out = x + y (operation 0), x * y (1) or x * y + z (2), rounded as `rounding` says: 0 to nearest,
; 1 down, 2 up, 3 toward zero, as the host numbers them.
define void @round_f64(ptr %x.p, ptr %y.p, ptr %z.p, ptr %out, i32 %operation, i32 %rounding) noinline nounwind strictfp {
entry:
  %saved = alloca i32
  %chosen = alloca i32
  %x = load <32 x double>, ptr %x.p, align 8
  %y = load <32 x double>, ptr %y.p, align 8
  call void @llvm.x86.sse.stmxcsr(ptr %saved) strictfp
  %field = shl i32 %rounding, 13
  %mode = or i32 %field, 8064
  store i32 %mode, ptr %chosen
  call void @llvm.x86.sse.ldmxcsr(ptr %chosen) strictfp
  switch i32 %operation, label %multiply.add [ i32 0, label %add  i32 1, label %multiply ]
add:
  %sum = call <32 x double> @llvm.experimental.constrained.fadd.v32f64(<32 x double> %x, <32 x double> %y, metadata !"round.dynamic", metadata !"fpexcept.ignore") strictfp
  br label %done
multiply:
  %product = call <32 x double> @llvm.experimental.constrained.fmul.v32f64(<32 x double> %x, <32 x double> %y, metadata !"round.dynamic", metadata !"fpexcept.ignore") strictfp
  br label %done
multiply.add:
  %z = load <32 x double>, ptr %z.p, align 8
  %total = call <32 x double> @llvm.experimental.constrained.fma.v32f64(<32 x double> %x, <32 x double> %y, <32 x double> %z, metadata !"round.dynamic", metadata !"fpexcept.ignore") strictfp
  br label %done
done:
  %result = phi <32 x double> [ %sum, %add ], [ %product, %multiply ], [ %total, %multiply.add ]
  call void @llvm.x86.sse.ldmxcsr(ptr %saved) strictfp
  store <32 x double> %result, ptr %out, align 8
  ret void
}

declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
declare <32 x double> @llvm.experimental.constrained.fadd.v32f64(<32 x double>, <32 x double>, metadata, metadata)
declare <32 x double> @llvm.experimental.constrained.fmul.v32f64(<32 x double>, <32 x double>, metadata, metadata)
declare <32 x double> @llvm.experimental.constrained.fma.v32f64(<32 x double>, <32 x double>, <32 x double>, metadata, metadata)
