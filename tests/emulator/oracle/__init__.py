"""An independent statement of what every instruction does, and the kernels that hold the emulator
to it."""
