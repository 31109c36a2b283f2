"""The table of misbehaving kernels: what each does, and what its record must say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

from longca.manifests import Direction
from longca_bench.measuring.status import Status

__all__ = ["MISBEHAVING", "Misbehaviour"]

_OK, _WRONG, _ERROR, _OOM = Status.OK, Status.WRONG, Status.ERROR, Status.OOM
_CRASHED, _TIMEOUT, _SUSPECT = Status.CRASHED, Status.TIMEOUT, Status.SUSPECT


@dataclass(frozen=True)
class Misbehaviour:
    """A kernel that misbehaves in one respect and in one direction, and is right otherwise.

    Attributes:
        module: The module of `longca_bench.conformance.misbehaving` that has the kernel. An empty text if
            `misbehaving_plugins` writes a module for it.
        name: The kernel's name. It ends with `_backward` if the backward is the direction.
        what: One sentence about the kernel. Its subject is the kernel.
        status: The status of its record.
        says: A regular expression that is found in the message of its record.
        seconds: The least time that its record may have. 0 for no such bound.
        device: The kind of device on which it misbehaves: `cpu` or `cuda`, or an empty text for both.
    """

    module: str
    name: str
    what: str
    status: Status
    says: str = ""
    seconds: float = 0.0
    device: str = ""

    @property
    def kernel(self) -> str:
        """The import string of the kernel's class."""
        if self.module == "":
            return f"misbehaving_{self.name}:Kernel"
        return f"{__package__}.{self.module}:{re.sub('(?:^|_)(.)', lambda found: found[1].upper(), self.name)}"

    @property
    def distribution(self) -> str:
        """The distribution that provides it.

        A kernel that patches its process has one of its own. A harness may have one process for a distribution, and
        what such a kernel does to it says nothing about another kernel.
        """
        part = self.name if self.module in ("late", "sly") else self.module or "import"
        return f"longca-misbehaving-{part.replace('_', '-')}"

    @property
    def direction(self) -> Direction:
        """The direction in which it misbehaves."""
        return Direction.BACKWARD if self.name.endswith("_backward") else Direction.FORWARD

    def runs_on(self, kind: str) -> bool:
        """Whether it misbehaves on a kind of device."""
        return self.device in ("", kind)

    def holds(self, status: str, message: str, seconds: float | None = None) -> bool:
        """Whether a record says what it must say.

        Args:
            status: The record's status.
            message: The record's message.
            seconds: The record's median, or None without a time.
        """
        slow = seconds is None or seconds >= self.seconds
        return status == self.status and bool(re.search(self.says, message)) and slow


_fast, _late, _sly, _odd, _state, _ends, _import = (
    partial(Misbehaviour, module) for module in ("fast", "late", "sly", "odd", "state", "ends", "")
)
_cuda = partial(Misbehaviour, "cuda", device="cuda")


def _state_of(name: str, what: str, state: str) -> Misbehaviour:
    """A kernel that changes a global state, which its record names."""
    return _state(name, what, _WRONG, f"changes global state: .*{state}")


_OUT, _LSE, _GRADS = r"\b(out|lse|counts)\b", r"\b(lse|counts)\b", r"\bd[qkv]\b"  # counts are of lse
_TUPLE, _TENSOR, _CONTRACT = "instead of a tuple", "instead of a tensor", "is the contract"

#: Every misbehaving kernel.
MISBEHAVING: tuple[Misbehaviour, ...] = (
    # It computes nothing.
    _fast("zeros", "It returns zeros.", _WRONG, _OUT),
    _fast("zeros_backward", "It returns zeros.", _WRONG, _GRADS),
    _fast("garbage", "It returns numbers between -2 and 2.", _WRONG, _OUT),
    _fast("unwritten", "It returns memory to which it did not write.", _WRONG, _OUT),
    _fast("unwritten_backward", "It returns memory to which it did not write.", _WRONG, _GRADS),
    _fast("leaves_buffers", "It returns the caller's buffers, and writes nothing to them.", _WRONG, _OUT),
    _fast("input_as_output", "It returns q as its output.", _WRONG, _OUT),
    _fast("inputs_as_gradients_backward", "It returns q, k and v as their gradients.", _WRONG, _GRADS),
    # It gives an earlier answer.
    _fast("cached_by_pointer", "It computes once for each triple of addresses.", _WRONG, _OUT),
    _fast("cached_by_pointer_backward", "It computes once for each tuple of addresses.", _WRONG, _GRADS),
    _fast("cached_by_version", "It computes once for each triple of addresses and versions.", _WRONG, _OUT),
    _fast("cached_by_shape", "It computes once for each triple of shapes.", _WRONG, _OUT),
    _fast("cached_by_shape_backward", "It computes once for each tuple of shapes.", _WRONG, _GRADS),
    _fast("cached_by_plan", "It computes once for each plan.", _WRONG, _OUT),
    _fast("cached_by_first_element", "It computes once for each triple of magnitudes of first elements.", _WRONG, _OUT),
    _fast("cached_by_queries", "It computes once for the content of q, and ignores new k and v.", _WRONG, _OUT),
    _fast("cached_by_keys", "It computes once for the content of k, and ignores new q and v.", _WRONG, _OUT),
    _fast("cached_by_norms", "It computes once for the norms of q, k and v.", _WRONG, _OUT),
    _fast("cached_by_norms_backward", "It computes once for the norms of all inputs.", _WRONG, _GRADS),
    _fast("one_in_three", "Its results are off by 1 in every third call.", _WRONG, _OUT),
    # On a CUDA device few of its wrong calls are timed ones. One case of ten has none.
    _fast("one_in_seven", "Its results are off by 1 in every seventh call.", _WRONG, _OUT, device="cpu"),
    _fast("every_second", "It computes in every second call, and else repeats itself.", _WRONG, _OUT),
    _fast("until_the_sixth", "It computes in five calls, and then repeats itself.", _WRONG, _OUT),
    _fast("into_buffers_only", "It computes if it gets buffers, and else repeats itself.", _WRONG, _OUT),
    _fast("into_poison_only", "It computes if its buffer holds NaN, and else repeats itself.", _WRONG, _OUT),
    _fast("into_new_memory_only", "It computes if it gets no buffer, and else repeats itself.", _WRONG, _OUT),
    _fast("one_late", "It returns the results of the call before.", _WRONG, _OUT),
    _fast("one_late_backward", "It returns the gradients of the call before.", _WRONG, _GRADS),
    _fast("stale_lse", "It computes out, and repeats its first lse.", _WRONG, _LSE),
    _fast("stale_dk_backward", "It computes dq and dv, and repeats its first dk.", _WRONG, r"\bdk\b"),
    _fast("stale_dv_backward", "It computes dq and dk, and repeats its first dv.", _WRONG, r"\bdv\b"),
    # It looks at the harness.
    _fast("for_counts_only", "It computes if q is 0.", _WRONG, _OUT),
    _fast("when_verified_only", "It computes if a caller's name begins with check or verify.", _WRONG, _OUT),
    _fast("guesses_in_plan", "It computes with tensors that it finds when it plans.", _WRONG, _OUT),
    _late("copies_reference", "It copies the reference of the harness.", _WRONG, _OUT),
    _odd("plans_less", "Its plan is for half of the keys.", _WRONG, "plan"),
    _odd("shrinks_problem", "It hides half of the keys of the problem that it plans for.", _WRONG, _OUT),
    _odd("plans_forward_backward", "Its plan for a backward is for a forward.", _WRONG, "plan"),
    # It leaves a part out.
    _fast("writes_nan", "It writes NaN to one element.", _WRONG, _OUT),
    _fast("skips_last_head", "It leaves the last head at zero.", _WRONG, _OUT),
    _fast("skips_inner_heads", "It computes the first and the last head.", _WRONG, _OUT),
    _fast("skips_last_row", "It leaves the last query at zero.", _WRONG, _OUT),
    _fast("skips_last_element", "It leaves one element at zero.", _WRONG, _OUT),
    _fast("skips_a_tile", "It leaves 16 queries at zero.", _WRONG, _OUT),
    _fast("every_seventh_row", "It computes each seventh query.", _WRONG, _OUT),
    _fast("repeats_half", "It computes half of the queries, and returns them twice.", _WRONG, _OUT),
    _fast("skips_dq_row_backward", "It leaves dq of the last query at zero.", _WRONG, r"\bdq\b"),
    _fast("skips_dk_tile_backward", "It leaves dk of 16 keys at zero.", _WRONG, r"\bdk\b"),
    _fast("skips_dv_head_backward", "It leaves dv of the last head at zero.", _WRONG, r"\bdv\b"),
    _fast("skips_last_keys", "It ignores the last 16 keys.", _WRONG, _OUT),
    _fast("skips_last_keys_backward", "It ignores the last 16 keys.", _WRONG, _GRADS),
    _fast("ignores_mask", "It attends to all keys.", _WRONG, _OUT),
    _fast("slightly_off", "Its output is too large by a thousandth.", _WRONG, _OUT),
    _fast("slightly_off_lse", "Its lse is too large by a thousandth.", _WRONG, _LSE),
    _fast("slightly_off_dk_backward", "Its dk is too large by a thousandth.", _WRONG, r"\bdk\b"),
    _fast("in_bfloat16", "It rounds its inputs to bfloat16.", _WRONG, _OUT),
    _fast("in_float16", "It rounds its inputs to float16.", _WRONG, _OUT),
    _fast("in_bfloat16_backward", "It rounds its inputs to bfloat16.", _WRONG, _GRADS),
    # It returns before it is done.
    _late("late_thread", "A thread writes its results after it returned.", _WRONG, f"{_OUT}|threads"),
    _late("late_thread_backward", "A thread writes its results after it returned.", _WRONG, f"{_GRADS}|threads"),
    _late("late_process", "A process writes its results after it returned.", _WRONG, _OUT, device="cpu"),
    _cuda("side_stream", "A stream for which it does not wait writes its results.", _WRONG, _OUT),
    _cuda("side_stream_backward", "A stream for which it does not wait writes them.", _WRONG, _GRADS),
    _cuda("late_host_copy", "Its results come from pinned memory after it returned.", _WRONG, _OUT),
    _cuda("graph_of_old_inputs", "It replays a CUDA graph of its first inputs.", _WRONG, _OUT),
    # It changes clocks and checks.
    _late("hides_from_perf_counter", "It sleeps 20 ms and sets perf_counter back.", _SUSPECT, "disagree", device="cpu"),
    _late("hides_from_monotonic", "It sleeps 20 ms and sets the monotonic clock back.", _OK, seconds=0.02),
    _late("hides_from_all_clocks", "It sleeps 20 ms and sets all clocks back.", _SUSPECT, "disagree", device="cpu"),
    _late("stops_perf_counter", "It sleeps 20 ms, and perf_counter stands still.", _SUSPECT, "disagree", device="cpu"),
    _late("patches_timer", "It sleeps 20 ms, and LongCA's timer says a hundredth.", _SUSPECT, "clocks disagree"),
    _late("ends_before_it_begins", "It says that it has ended, and then sleeps 20 ms.", _SUSPECT, "disagree|its end"),
    _late("patches_median", "It sleeps 20 ms and makes each median a nanosecond.", _OK, seconds=0.02),
    _late("patches_work", "It makes the area and the FLOPs of each problem larger, and masks alike.", _OK),
    _late("patches_verification", "It returns zeros, and LongCA's findings pass in its process.", _WRONG, _OUT),
    _late("patches_equal", "It returns zeros, and torch.equal says yes.", _WRONG, _OUT),
    _late("patches_allclose", "It returns zeros, and torch.allclose says yes.", _WRONG, _OUT),
    _late("patches_norm", "It returns zeros, and each norm is 0.", _WRONG, _OUT),
    _late("patches_isfinite", "It returns nothing, and each value is finite.", _WRONG, _OUT),
    _late("patches_subtraction", "It returns zeros, and each difference is 0.", _WRONG, _OUT),
    _cuda("once_for_the_same_inputs", "It repeats itself for the inputs of its last call.", _OK, seconds=0.02),
    _cuda("once_for_the_same_inputs_backward", "It repeats itself for the last inputs.", _OK, seconds=0.02),
    _cuda("hides_from_events", "It takes 10 ms more, and events say a thousandth.", _SUSPECT, "disagree"),
    # It knows the harness.
    _sly("recognises_heads", "It knows each head, and repeats its results.", _SUSPECT, "new"),
    _sly("recognises_heads_backward", "It knows each head, and repeats its results.", _SUSPECT, "new"),
    _sly("ends_early_on_new_heads", "It does so, and says at once that a call on new ones has ended.", _SUSPECT, "new"),
    _sly("only_outer_heads", "It knows each head, and computes two heads of new inputs.", _WRONG, f"{_OUT}.* new"),
    _sly("only_outer_heads_backward", "It knows each head, and computes two of new inputs.", _WRONG, f"{_GRADS}.* new"),
    _sly("ahead_in_forward_backward", "Its forward computes the gradients to come.", _SUSPECT, "new"),
    _sly("keeps_by_keys", "It keeps a part of its work for each head of k.", _SUSPECT, "new"),
    _sly("keeps_by_lse_backward", "It keeps a part of its work for each lse.", _SUSPECT, "new"),
    _sly("skips_bursts", "It hides 1 ms of each call, but repeats its results in a burst.", _WRONG, _OUT, device="cpu"),
    _sly("hides_in_most_calls", "It hides 20 ms in two of three calls.", _SUSPECT, "disagree", device="cpu"),
    _sly("computes_when_copied", "It computes when its results are copied.", _SUSPECT, "disagree", device="cpu"),
    _sly("scales_when_timed", "It doubles q in timed calls.", _WRONG, "q of a timed call: the kernel changed"),
    _sly("wrong_in_warm_up", "It is off by 1 in the second timed call, which warms up.", _WRONG, f"{_OUT} of a timed"),
    _sly(
        "hides_behind_threads", "It hides 40 ms while its threads keep it waiting.", _SUSPECT, "disagree", device="cpu"
    ),
    _sly(
        "hides_behind_processes",
        "It hides 40 ms while its processes keep it waiting.",
        _SUSPECT,
        "disagree",
        device="cpu",
    ),
    # Its results are odd.
    _odd("returns_none", "It returns None.", _WRONG, _TUPLE),
    _odd("returns_generator", "It returns a generator.", _WRONG, _TUPLE),
    _odd("returns_list", "It returns a list.", _WRONG, _TUPLE),
    _odd("returns_dict", "It returns a dict.", _WRONG, _TUPLE),
    _odd("returns_text", "It returns a text.", _WRONG, _TUPLE),
    _odd("out_alone", "It returns out alone.", _WRONG, _TUPLE),
    _odd("too_short", "It returns a tuple of out.", _WRONG, "instead of 2"),
    _odd("too_long", "It returns three tensors.", _WRONG, "instead of 2"),
    _odd("gradients_too_short_backward", "It returns two gradients.", _WRONG, "instead of 3"),
    _odd("out_twice", "It returns out in the place of lse.", _WRONG, _LSE),
    _odd("swapped", "It returns lse and then out.", _WRONG, _OUT),
    _odd("lazy_tensor", "It returns tensors that compute when they are read.", _WRONG, _TENSOR),
    _odd("lying_tensor", "It returns zeros that are equal to anything.", _WRONG, _TENSOR),
    _odd("numpy_array", "It returns arrays of numpy.", _WRONG, _TENSOR),
    _odd("duck_tensor", "It returns an object with the attributes of a tensor.", _WRONG, _TENSOR),
    _odd("float64_out", "It returns out in float64.", _WRONG, _CONTRACT),
    _odd("bfloat16_out", "It returns out in bfloat16.", _WRONG, _CONTRACT),
    _odd("complex_out", "It returns out as complex numbers.", _WRONG, _CONTRACT),
    _odd("half_lse", "It returns lse in float16.", _WRONG, _CONTRACT),
    _odd("float64_dq_backward", "It returns dq in float64.", _WRONG, _CONTRACT),
    _odd("flat_out", "It returns out as a matrix.", _WRONG, _CONTRACT),
    _odd("batched_out", "It returns out with a dimension more.", _WRONG, _CONTRACT),
    _odd("transposed_lse", "It returns lse as [Tq, Hq].", _WRONG, _CONTRACT),
    _odd("base2_lse", "It returns lse to base 2.", _WRONG, _LSE),
    _odd("expanded_out", "It returns the first row of out for all rows, with a stride of 0.", _WRONG, _OUT),
    _odd("meta_out", "It returns out without memory.", _WRONG, _OUT),
    _odd("sparse_out", "It returns out as a sparse tensor.", _WRONG, _OUT),
    _odd("out_with_grad", "It returns an out that requires gradients.", _WRONG, _OUT),
    _odd("out_is_queries", "It returns out in the memory of q.", _WRONG, r"\bq\b"),
    _cuda("cpu_results", "It returns tensors on the CPU.", _WRONG, _OUT),
    _odd("changes_queries", "It doubles q.", _WRONG, r"q: the kernel changed this input"),
    _odd("changes_values", "It doubles v.", _WRONG, r"v: the kernel changed this input"),
    _odd("changes_dout_backward", "It doubles dout.", _WRONG, r"dout: the kernel changed this input"),
    # Its plan is odd.
    _odd("no_plan", "Its plan is None.", _WRONG, "plan"),
    _odd("dict_plan", "Its plan is a dict.", _WRONG, "plan"),
    _odd("wrong_form", "Its plan is in a form that no offer has.", _WRONG, "form"),
    _odd("unknown_form", "Its plan is in a form that does not exist.", _WRONG, "form"),
    _odd("long_backend", "Its backend is a text of 10 MB.", _OK),
    _odd("backend_with_escapes", "Its backend has control characters and half a surrogate pair.", _OK),
    _odd("number_as_backend", "Its backend is a number.", _WRONG, "backend"),
    _odd("negative_bytes", "Its metadata takes -1 bytes.", _WRONG, "metadata_bytes"),
    _odd("huge_bytes", "Its metadata takes 10³⁰ bytes.", _WRONG, "metadata_bytes"),
    _odd("nan_bytes", "Its metadata takes NaN bytes.", _WRONG, "metadata_bytes"),
    _odd("text_as_bytes", "Its metadata takes a text as bytes.", _WRONG, "metadata_bytes"),
    _odd("bytes_raise", "Its metadata_bytes raises.", _ERROR, "does not know its size"),
    # It changes the state of its process.
    _state_of("default_dtype", "It makes float64 the default dtype.", "default dtype"),
    _state_of("default_dtype_backward", "It makes float64 the default dtype.", "default dtype"),
    _state_of("changes_in_plan", "It makes float64 the default dtype when it plans.", "default dtype"),
    _state_of("default_device", "It makes meta the default device.", "default device"),
    _state_of("threads", "It gives torch one thread more.", "threads of torch"),
    _state_of("grad_mode", "It switches gradients on or off.", "grad mode"),
    _state_of("inference_mode", "It enters inference mode.", "grad mode"),
    _state_of("deterministic", "It switches deterministic algorithms on or off.", "deterministic algorithms"),
    _state_of("matmul_precision", "It lowers the precision of products.", "float32 precision"),
    _state_of("one_precision", "It lowers the precision of products on CPUs alone.", "float32 precision"),
    _state_of("seeds_torch", "It seeds torch.", "random state of torch"),
    _state_of("draws_from_torch", "It draws a random number of torch.", "random state of torch"),
    _state_of("seeds_random", "It seeds the module random.", "random state of random"),
    _state_of("seeds_numpy", "It seeds numpy.", "random state of numpy"),
    _state_of("threads_variable", "It sets OMP_NUM_THREADS.", "environment: OMP_NUM_THREADS"),
    _state_of("native_variable", "It sets OMP_NUM_THREADS without Python.", "environment: OMP_NUM_THREADS"),
    _state_of("devices_variable", "It sets CUDA_VISIBLE_DEVICES.", "environment: CUDA_VISIBLE_DEVICES"),
    _state_of("many_variables", "It sets 100 variables with long names.", "environment: 000.*and 60 more"),
    _state_of("drops_path", "It unsets PATH.", "environment: PATH"),
    _state_of("working_directory", "It changes the working directory.", "working directory"),
    _state_of("removes_folders", "It removes the working directory and the one above.", "working directory"),
    _state_of("resource_limits", "It lowers the limit of processor time.", "resource limits"),
    _state_of("blocked_signals", "It blocks SIGUSR1.", "blocked signals"),
    _state_of("scheduling_policy", "It asks for the policy of batch jobs.", "scheduling policy"),
    _state_of("attention_backends", "It switches a backend of torch's attention on or off.", "backends of attention"),
    _state_of("torch_backends", "It switches oneDNN on or off.", "backends of torch"),
    _state_of("integer_digits", "It raises the limit of digits of integers.", "digits of integers"),
    _state_of("interrupt_handler", "It handles SIGINT.", "signal handlers"),
    _state_of("alarm_handler", "It handles SIGALRM.", "signal handlers"),
    _state_of("slows_thread", "It lowers the priority of another thread.", "priority of a thread"),
    _state_of("collector_thresholds", "It changes when garbage is collected.", "garbage collector"),
    _state_of("autocast_dtype", "It changes the dtype of autocast.", "autocast"),
    _state_of("affinity", "It binds its process to one core.", "affinity"),
    _state_of("dispatch_mode", "It leaves a dispatch mode of torch on.", "dispatch modes"),
    _state_of("umask", "It forbids all access to new files.", "umask"),
    _state_of("recursion_limit", "It raises the limit of recursion.", "recursion limit"),
    _state_of("module_path", "It puts a folder before all others on sys.path.", "sys.path"),
    _state_of("collector_off", "It switches the garbage collector off.", "garbage collector"),
    _state_of("leaves_thread", "It leaves a thread that waits.", "threads"),
    _state_of("leaves_busy_thread", "It leaves a thread that never rests.", "threads"),
    _import("dtype_at_import", "Its module makes float64 the default dtype.", _WRONG, "import .*: default dtype"),
    _import("threads_at_import", "Its module gives torch one thread more.", _WRONG, "import .*: threads of torch"),
    _cuda("current_stream", "It makes a new stream the current one.", _WRONG, "current stream"),
    _cuda("tensor_float32", "It switches TF32 on or off.", _WRONG, "precision"),
    # It raises.
    _ends("raises", "It raises an exception.", _ERROR, "RuntimeError: no such tile"),
    _ends("raises_backward", "It raises an exception.", _ERROR, "RuntimeError: no such tile"),
    _ends("raises_in_plan", "It raises a BaseException when it plans.", _ERROR, "Bare: no plan"),
    _ends("raises_bare", "It raises a BaseException.", _ERROR, "Bare: not an Exception"),
    _ends("raises_system_exit", "It calls sys.exit(0).", _ERROR, "SystemExit"),
    _ends("raises_interrupt", "It raises KeyboardInterrupt.", _ERROR, "KeyboardInterrupt"),
    _ends("raises_generator_exit", "It raises GeneratorExit.", _ERROR, "GeneratorExit"),
    _ends("raises_stop_iteration", "It raises StopIteration.", _ERROR, "StopIteration"),
    _ends("raises_eof", "It raises EOFError.", _ERROR, "EOFError"),
    _ends("raises_group", "It raises a group of exceptions.", _ERROR, "BaseExceptionGroup"),
    _ends("raises_unprintable", "It raises an exception whose text raises.", _ERROR, "UnprintableError"),
    _ends("raises_exits_when_printed", "It raises an exception whose text ends the process.", _CRASHED, "code 0"),
    _ends("raises_long_message", "It raises an exception with a text of 10 MB.", _ERROR, "ValueError: long"),
    _ends("raises_of_compiler", "Its compiler fails and prints 5 MB.", _ERROR, 'error: identifier "tile" is unknown'),
    _ends("raises_escapes", "It raises an exception with escapes in its text.", _ERROR, "ValueError"),
    _ends("raises_unpicklable", "It raises an exception that holds a lock.", _ERROR, "UnpicklableError"),
    _ends("raises_odd_name", "It raises an exception with a line break in its name.", _ERROR, "odd"),
    _ends("raises_memory_error", "It raises MemoryError.", _OOM, "no memory for the tile"),
    _ends("recurses", "It calls itself until Python stops it.", _ERROR, "RecursionError"),
    _ends("takes_all_memory", "It asks for a petabyte.", _OOM, "memory"),
    _cuda("takes_all_gpu_memory", "It fills the device's memory.", _OOM, "memory"),
    # Its process ends.
    _ends("exits", "It ends its process with code 0.", _CRASHED, "code 0"),
    _ends("exits_backward", "It ends its process with code 0.", _CRASHED, "code 0"),
    _ends("exits_with3", "It ends its process with code 3.", _CRASHED, "code 3"),
    _import("exits_at_import", "Its module ends the process at its import.", _CRASHED, "code 0"),
    _import("raises_at_import", "Its module raises SystemExit at its import.", _ERROR, "SystemExit"),
    _ends("aborts", "It aborts its process.", _CRASHED, "SIGABRT"),
    _ends("segfaults", "It reads address 0.", _CRASHED, "SIGSEGV"),
    _ends("kills_itself", "It sends SIGKILL to its process.", _CRASHED, "SIGKILL"),
    _ends("terminates_itself", "It sends SIGTERM to its process.", _CRASHED, "SIGTERM"),
    _ends("kills_its_parent", "It sends SIGKILL to the process that started its own.", _CRASHED),
    _ends("closes_files", "It closes all files of its process.", _CRASHED),
    _ends("writes_to_all_files", "It writes to all open files of its process.", _CRASHED),
    _ends(
        "cuts_shared_memory", "It cuts the memory that other processes read.", _ERROR, "PermissionError", device="cpu"
    ),
    _cuda("loses_context", "It reads behind a tensor, and the device stops.", _ERROR, "device-side assert"),
    # It does not end.
    _import("hangs_at_import", "Its module never ends its import.", _TIMEOUT, "load"),
    _ends("hangs_in_plan", "It never plans.", _TIMEOUT, "plan"),
    _ends("hangs_later", "It hangs in the sixth call.", _TIMEOUT, "phase"),
    _ends("sends_half_an_answer", "It sends the beginning of an answer, and then hangs.", _TIMEOUT, "phase"),
    _ends("spins", "It loops forever.", _TIMEOUT, "phase"),
    _ends("stops_itself", "It sends SIGSTOP to its process.", _TIMEOUT, "phase"),
    _ends("ignores_signals", "It sleeps forever, and ignores signals.", _TIMEOUT, "phase"),
    _cuda("never_done", "Its work on the device never ends.", _TIMEOUT, "phase"),
    _ends("waits_for_child", "It waits for a child that sleeps for a day.", _TIMEOUT, "phase"),
    # It leaves something behind, which must be gone after the run.
    _ends("leaves_no_descriptor", "It lets its process open no more files.", _WRONG, "resource limits"),
    _ends("forks", "It forks, and both processes return, the copy later.", _OK),
    _ends("leaves_daemon", "It leaves `sleep 86397` in a session of its own.", _OK),
    _ends("leaves_stopped_daemon", "It leaves a stopped process, with 86396 in its command line.", _OK),
    _ends("prints_much", "It prints 100 MB.", _OK),
)
