from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
import threading

import numpy
import pytest
import torch

import rdna_jit
from rdna_jit import ContractError, LaunchError, NoDeviceError, UnsupportedArchError, config
from rdna_jit.runtime import hip
from tests.runtime.kernels import TYPES, add

N = 300


@pytest.fixture
def operands():
    return torch.ones(N), torch.ones(N), torch.zeros(N)


def expected_bytes(x, bias, y, a, n):
    pointers = [0 if t is None else t.data_ptr() for t in (x, bias, y)]
    return struct.pack("<QQQfi", *pointers, a, n)


def test_first_launch_loads_then_every_launch_only_launches(card, stub, operands):
    x, bias, y = operands
    kernel = add()
    for _ in range(3):
        kernel.launch(3, 128, x, bias, y, 2.0, N)
    names = [call.name for call in stub.calls()]
    assert names == ["hipModuleLoadData", "hipModuleGetFunction", *["hipModuleLaunchKernel"] * 3]
    assert stub.calls("hipModuleLoadData")[0].data == kernel.code_object
    assert stub.calls("hipModuleGetFunction")[0].text == "add"


def test_slow_and_fast_launches_pass_the_same_bytes(card, stub, operands):
    x, bias, y = operands
    kernel = add()
    for _ in range(4):
        kernel.launch((3, 2), (64, 2), x, bias, y, 2.0, N, dynamic_lds=512)
        kernel.launch((3, 2), (64, 2), x, None, y, -1.5, -N, dynamic_lds=512)
    assert len(stub.launches) == 8
    for number, call in enumerate(stub.launches):
        other = (x, None, y, -1.5, -N) if number % 2 else (x, bias, y, 2.0, N)
        assert call.data == expected_bytes(*other)
        assert (call.grid, call.block, call.lds) == ((3, 2, 1), (64, 2, 1), 512)


def test_the_fast_launch_really_takes_over(card, stub, operands, monkeypatch):
    kernel = add()
    for _ in range(2):
        kernel.launch(3, 128, *operands, 2.0, N)
    loaded = next(iter(kernel._loaded.values()))
    monkeypatch.setattr(loaded, "launch", None)
    kernel.launch(3, 128, *operands, 2.0, N)
    kernel.launch(3, 128, *operands, 5, N)
    assert len(stub.launches) == 4


def test_all_types_byte_by_byte_on_the_fast_way(card, stub):
    p, q = torch.ones(1), torch.zeros(1, dtype=torch.float64)
    kernel = TYPES.specialise()
    values = [-5, 2.5, 200, -300, p, True, 0.5, -(1 << 40), 65535, 1 << 31, 1.25, 1 << 63, q]
    for _ in range(3):
        kernel.launch(1, 1, *values)
    want = kernel.program().signature.pack(values, lambda slot, tensor: tensor.data_ptr())
    assert [call.data for call in stub.launches] == [bytes(want)] * 3


def test_numbers_that_need_conversion_still_launch_after_the_fast_way_is_on(card, stub, operands):
    x, bias, y = operands
    kernel = add()
    for _ in range(3):
        kernel.launch(3, 128, x, bias, y, 2.0, N)
    kernel.launch(numpy.int64(3), [128], x, bias.data_ptr(), y, numpy.float32(0.5), numpy.int16(7))
    call = stub.launches[-1]
    assert call.data == expected_bytes(x, bias, y, 0.5, 7)
    assert (call.grid, call.block) == ((3, 1, 1), (128, 1, 1))


def test_the_pool_holds_no_more_buffers_than_launches_at_once(card, operands):
    x, bias, y = operands
    kernel = add()
    for n in range(20):
        kernel.launch(3, 128, x, bias, y, numpy.float32(0.5), n)
        kernel.launch(3, 128, x, bias, y, 2.0, n)
        kernel.launch(n + 1, 128, x, bias, y, 2.0, n)
    pool = kernel._fast.__globals__["pop"].__self__
    assert len(pool) == 1


def test_errors_carry_no_trace_of_the_fast_way(card, operands):
    kernel = add()
    for _ in range(2):
        kernel.launch(3, 128, *operands, 2.0, N)
    with pytest.raises(ValueError) as error:
        kernel.launch(3, 128, *operands, 2.0, 1 << 31)
    assert error.value.__context__ is None


@pytest.mark.parametrize("warm_first", [False, True])
def test_bad_arguments_raise_and_launch_nothing(card, stub, operands, warm_first):
    x, bias, y = operands
    kernel = add()
    if warm_first:
        for _ in range(2):
            kernel.launch(3, 128, x, bias, y, 2.0, N)
    done = len(stub.launches)
    bad = [
        (TypeError, (x, bias, y, 2.0)),
        (TypeError, (x, bias, y, 2.0, N, 1)),
        (TypeError, (x, bias, y, 2.0, 1.5)),
        (TypeError, (x, bias, y, "2.0", N)),
        (TypeError, (x, bias, y, 2.0, torch.ones(1, dtype=torch.int32))),
        (ValueError, (x, bias, y, 2.0, 1 << 31)),
        (ValueError, (x, bias, y, 1e39, N)),
        (ValueError, (torch.ones(4, device="meta"), bias, y, 2.0, N)),
        (ValueError, (x, bias, torch.ones(4, device="meta"), 2.0, N)),
    ]
    for kind, args in bad:
        with pytest.raises(kind, match=r"add\(const float\* x, const float\* bias") as error:
            kernel.launch(3, 128, *args)
        assert isinstance(error.value, ContractError)
    assert len(stub.launches) == done
    kernel.launch(3, 128, x, bias, y, 2.0, N)
    assert stub.launches[-1].data == expected_bytes(x, bias, y, 2.0, N)


@pytest.mark.parametrize(
    ("grid", "block", "lds", "message"),
    [
        (0, 128, 0, "at least 1"),
        ((3, 0), 128, 0, "at least 1"),
        (-1, 128, 0, "at least 1"),
        (3, 0, 0, "at least 1"),
        ((1, 2, 3, 4), 128, 0, "1 to 3 extents"),
        ((), 128, 0, "1 to 3 extents"),
        (1 << 31, 1, 0, "too large along x"),
        ((1 << 27, 1), 128, 0, "too large along x"),
        ((1, 65536), 128, 0, "too large along y"),
        ((1, 1, 65536), 128, 0, "too large along z"),
        (3, 129, 0, "__launch_bounds__ allow 128"),
        (3, (64, 2, 2), 0, "__launch_bounds__ allow 128"),
        (3, 128, 61441, "4096 bytes of static and 61441 of dynamic"),
        (3, 128, -1, "0..65536 bytes"),
    ],
)
def test_bad_geometry_is_refused(card, stub, operands, grid, block, lds, message):
    kernel = add()
    kernel.launch(3, 128, *operands, 2.0, N)
    kernel.launch(3, 128, *operands, 2.0, N)
    with pytest.raises(ContractError, match=message):
        kernel.launch(grid, block, *operands, 2.0, N, dynamic_lds=lds)
    assert len(stub.launches) == 2


@pytest.mark.parametrize("grid", [1.5, "3", None, True, (1.0, 2)])
def test_geometry_of_a_wrong_type_is_refused(card, operands, grid):
    with pytest.raises(TypeError, match="grid is an int or a tuple"):
        add().launch(grid, 128, *operands, 2.0, N)


def test_largest_lds_is_allowed(card, stub, operands):
    add().launch(3, 128, *operands, 2.0, N, dynamic_lds=61440)
    assert stub.launches[0].lds == 61440


def test_torchs_current_stream_of_the_moment_is_used(card, stub, operands):
    kernel = add()
    handles = [0, 0x7F00_1234_5678, 0x7F00_1234_5678, 0x7FFF_FFFF_FFF0, 0]
    for handle in handles:
        card.streams[0] = handle
        kernel.launch(3, 128, *operands, 2.0, N)
    assert [call.stream for call in stub.launches] == handles


def test_an_explicit_stream_wins(card, stub, operands):
    class Stream:
        cuda_stream = 0x7F00_0000_0001

    kernel = add()
    card.streams[0] = 5
    for _ in range(3):
        kernel.launch(3, 128, *operands, 2.0, N, stream=Stream())
        kernel.launch(3, 128, *operands, 2.0, N, stream=0x7F00_0000_0002)
    seen = [call.stream for call in stub.launches]
    assert seen == [0x7F00_0000_0001, 0x7F00_0000_0002] * 3


def test_two_devices_have_two_modules_and_the_callers_device_comes_back(cards, stub, operands):
    other = tuple(torch.ones(N) for _ in range(3))
    cards.placed = {id(tensor): 1 for tensor in other}
    kernel = add()
    for _ in range(3):
        kernel.launch(3, 128, *operands, 2.0, N)
        kernel.launch(3, 128, *other, 2.0, N)
    assert [(call.owner, call.device) for call in stub.launches] == [(0, 0), (1, 1)] * 3
    assert cards.current_device() == 0
    loads = stub.calls("hipModuleLoadData")
    assert [call.device for call in loads] == [0, 1]
    objects = [rdna_jit.CodeObject(call.data).arch for call in loads]
    assert objects == ["gfx1030", "gfx1031"]


def test_fast_launch_follows_a_switch_of_the_current_device(cards, stub, operands):
    kernel = add()
    for _ in range(2):
        kernel.launch(3, 128, *operands, 2.0, N)
    stub.library.hipSetDevice(1)
    try:
        kernel.launch(3, 128, *operands, 2.0, N)
        assert (stub.launches[-1].owner, stub.launches[-1].device) == (0, 0)
        assert cards.current_device() == 1
    finally:
        stub.library.hipSetDevice(0)


def test_tensors_of_two_devices_are_refused(cards, stub, operands):
    x, bias, y = operands
    cards.placed = {id(bias): 1}
    with pytest.raises(ContractError, match="bias must be a tensor on cuda:0, the device of this"):
        add().launch(3, 128, x, bias, y, 2.0, N)
    assert not stub.launches


def test_a_kernel_for_another_arch_is_refused(card, operands):
    kernel = add().__class__(
        name="add", source=add().source, values={}, arch="gfx1032", entry=None, options=()
    )
    with pytest.raises(UnsupportedArchError, match="compiled for gfx1032, device 0 is gfx1030"):
        kernel.launch(3, 128, *operands, 2.0, N)


def test_threads_never_share_an_argument_buffer(card, stub):
    kernel = add()
    shared = [torch.ones(8) for _ in range(3)]
    kernel.launch(1, 128, *shared, 0.0, 0)
    threads, rounds = 8, 200
    errors = []

    def work(number):
        own = [torch.full((8,), float(number)) for _ in range(3)]
        try:
            for turn in range(rounds):
                kernel.launch(number + 1, 128, *own, float(turn), number)
        except Exception as error:
            errors.append(error)
        tensors[number] = own

    tensors: dict[int, list[torch.Tensor]] = {}
    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not errors
    launches = stub.launches[1:]
    assert len(launches) == threads * rounds
    turns = dict.fromkeys(range(threads), 0)
    for call in launches:
        number = call.grid[0] - 1
        assert call.data == expected_bytes(*tensors[number], float(turns[number]), number)
        turns[number] += 1


def test_one_load_when_many_threads_launch_first(card, stub, operands):
    kernel, barrier = add(), threading.Barrier(6)

    def work():
        barrier.wait()
        kernel.launch(3, 128, *operands, 2.0, N)

    workers = [threading.Thread(target=work) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(stub.calls("hipModuleLoadData")) == 1
    assert len(stub.launches) == 6


def child_outcome(action):
    """What `action` raises in a forked child, as text; "" when it returns."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        text = ""
        try:
            action()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        outcome = pipe.read().decode()
    assert os.waitpid(child, 0)[1] == 0
    return outcome


def test_a_forked_child_is_told_instead_of_launching(card, stub, operands):
    kernel = add()
    for _ in range(2):
        kernel.launch(3, 128, *operands, 2.0, N)
    outcome = child_outcome(lambda: kernel.launch(3, 128, *operands, 2.0, N))
    assert outcome.startswith("NoDeviceError") and "spawn" in outcome
    kernel.launch(3, 128, *operands, 2.0, N)
    assert len(stub.launches) == 3


def test_a_fork_before_the_first_use_leaves_hip_to_the_child(card, stub, operands):
    kernel = add()
    assert child_outcome(lambda: kernel.launch(3, 128, *operands, 2.0, N)) == ""


@pytest.mark.parametrize("warm_first", [0, 3])
def test_a_failed_launch_raises_with_hips_name_and_text(card, stub, operands, warm_first):
    kernel = add()
    for _ in range(warm_first):
        kernel.launch(3, 128, *operands, 2.0, N)
    stub.fail("hipModuleLaunchKernel", 1)
    with pytest.raises(LaunchError, match=r"hipErrorInvalidValue .1.: text of error 1") as error:
        kernel.launch(3, 128, *operands, 2.0, N)
    assert (error.value.code, error.value.hip_name) == (1, "hipErrorInvalidValue")
    assert error.value.kernel == "add"
    assert stub.library.hipPeekAtLastError() == 0, "torch would find it at its next check"
    kernel.launch(3, 128, *operands, 2.0, N)


def test_an_error_left_by_someone_else_is_neither_ours_nor_taken(card, stub, operands):
    stub.library.stub_set_last(704)
    kernel = add()
    for _ in range(3):
        kernel.launch(3, 128, *operands, 2.0, N)
    assert stub.library.hipPeekAtLastError() == 704


def test_an_error_that_a_launch_cannot_cause_is_attributed_to_earlier_calls(card, stub, operands):
    stub.fail("hipModuleLaunchKernel", 704)
    with pytest.raises(LaunchError, match=r"PeerAccessAlreadyEnabled.*an earlier call"):
        add().launch(3, 128, *operands, 2.0, N)


def test_an_asynchronous_error_points_to_earlier_kernels(card, stub, operands):
    stub.fail("hipModuleLaunchKernel", 700, -1)
    with pytest.raises(LaunchError, match=r"IllegalAddress.*failed earlier.*AMD_SERIALIZE_KERNEL"):
        add().launch(3, 128, *operands, 2.0, N)


@pytest.mark.parametrize(
    ("call", "code"),
    [("hipModuleLoadData", 209), ("hipModuleLoadData", 2), ("hipModuleGetFunction", 500)],
)
def test_a_failed_load_raises_and_the_next_launch_tries_again(card, stub, operands, call, code):
    kernel = add()
    stub.fail(call, code)
    with pytest.raises(LaunchError, match=f"{call} failed for kernel add") as error:
        kernel.launch(3, 128, *operands, 2.0, N)
    assert error.value.code == code
    assert not stub.launches
    kernel.launch(3, 128, *operands, 2.0, N)
    assert len(stub.launches) == 1


def test_the_callers_device_comes_back_after_a_failed_load(cards, stub, operands):
    cards.placed = {id(tensor): 1 for tensor in operands}
    stub.fail("hipModuleLoadData", 209)
    with pytest.raises(LaunchError):
        add().launch(3, 128, *operands, 2.0, N)
    assert cards.current_device() == 0


def test_capture_of_a_cold_kernel_says_to_warm_it(card, stub, operands):
    kernel = add()
    card.capturing = True
    with pytest.raises(LaunchError, match=r"capturing a graph; call rdna_jit\.warm"):
        kernel.launch(3, 128, *operands, 2.0, N)
    assert not stub.calls()


def test_capture_of_a_warm_kernel_only_launches(card, stub, operands):
    kernel = add()
    rdna_jit.warm(kernel, *operands)
    before = [call.name for call in stub.calls()]
    assert before == ["hipModuleLoadData", "hipModuleGetFunction"]
    card.capturing = True
    kernel.launch(3, 128, *operands, 2.0, N)
    kernel.launch(3, 128, *operands, 2.0, N)
    assert [call.name for call in stub.calls()[2:]] == ["hipModuleLaunchKernel"] * 2


def test_the_backend_can_change_between_launches(card, stub, operands):
    kernel = add()
    for _ in range(3):
        kernel.launch(3, 128, *operands, 2.0, N)
    with config.scope(backend="emulator"):
        kernel.launch(3, 128, *operands, 2.0, N)
        assert len(stub.launches) == 3
    kernel.launch(3, 128, *operands, 2.0, N)
    assert len(stub.launches) == 4


def test_a_bound_method_kept_from_before_the_load_is_as_good(card, stub, operands):
    kernel = add()
    launch = kernel.launch
    for _ in range(3):
        launch(3, 128, *operands, 2.0, N)
    assert len(stub.launches) == 3


def test_time_measures_on_rotating_copies_and_leaves_the_operands(card, stub, monkeypatch):
    monkeypatch.setattr("rdna_jit.runtime.timing.WARM_SECONDS", 0.0)
    x, y = torch.ones(1 << 22)[::2], torch.zeros(1 << 21)
    timing = add().time(3, 128, x, None, y, 2.0, N, samples=5)
    nbytes = 2 * (4 << 21)
    assert timing.copies * nbytes >= 2 * (128 << 20)
    assert timing.samples_us == (1.0,) * 5 and timing.median_us == 1.0
    pointers = {struct.unpack_from("<Q", call.data)[0] for call in stub.launches}
    assert len(pointers) == 5 and x.data_ptr() not in pointers


def test_time_needs_a_card():
    with config.scope(backend="emulator"), pytest.raises(NoDeviceError, match="profile"):
        add().time(3, 128, torch.ones(1), None, torch.ones(1), 1.0, 1)


def test_device_names_the_card(card):
    device = rdna_jit.device()
    assert (device.arch, device.backend, device.index) == ("gfx1030", "hip", 0)
    assert device.compute_units == 72


def test_an_unknown_card_is_refused_with_the_list(card):
    card.archs = ("gfx1100",)
    with pytest.raises(UnsupportedArchError, match=r"gfx1100.*gfx1030"):
        rdna_jit.device()


def test_a_box_without_a_gpu_says_so(card):
    card.devices = 0
    with pytest.raises(NoDeviceError, match="torch sees no GPU"):
        rdna_jit.device()


@pytest.mark.parametrize("content", [None, b"not a library"])
def test_a_library_that_cannot_be_loaded_is_named(tmp_path, content):
    path = tmp_path / "libamdhip64.so"
    if content is not None:
        path.write_bytes(content)
    with (
        config.scope(backend="hip", hip_library=path),
        pytest.raises(NoDeviceError, match=f"{path} is no usable HIP library.*RDNA_JIT_HIP_LIBR"),
    ):
        rdna_jit.device()


def test_hip_without_a_rocm_torch_says_what_to_do():
    with config.scope(backend="hip"), pytest.raises(NoDeviceError, match="RDNA_JIT_BACKEND=emul"):
        rdna_jit.device()


def test_of_two_mapped_copies_torchs_own_is_used(stub_path, tmp_path, monkeypatch):
    """The process has mapped a stub; torch here is linked to a second one, elsewhere."""
    copy = shutil.copy(stub_path, tmp_path / "libamdhip64.so")
    torch_like = tmp_path / "torch"
    (torch_like / "lib").mkdir(parents=True)
    library = torch_like / "lib" / "libc10_hip.so"
    command = ["gcc", "-shared", "-o", library, "-Wl,--no-as-needed", copy]
    subprocess.run(command, check=True)
    monkeypatch.setattr(torch, "__file__", str(torch_like / "__init__.py"))
    found = hip.Library(hip.find_library())
    assert found.path == str(library)
    index = ctypes.c_int
    other = ctypes.CDLL(copy)
    other.hipSetDevice(index(1))
    try:
        assert found.get_device() == 1
        assert hip.Library(str(stub_path)).get_device() == 0
    finally:
        other.hipSetDevice(index(0))


def test_auto_takes_the_emulator_without_a_gpu_and_says_so_once(caplog, monkeypatch):
    monkeypatch.setattr("rdna_jit.runtime._announced", False)
    with config.scope(backend="auto"), caplog.at_level("INFO", logger="rdna_jit"):
        assert rdna_jit.device().backend == "emulator"
        assert rdna_jit.device().backend == "emulator"
    said = [r for r in caplog.records if "RDNA_JIT_BACKEND=auto" in r.getMessage()]
    assert len(said) == 1


def test_auto_takes_hip_when_torch_sees_a_gfx10(card, stub):
    with config.scope(backend="auto"):
        assert rdna_jit.device().backend == "hip"
