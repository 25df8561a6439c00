//! Access to application memory by a copy routine whose faults become an error return (x86-64).

use core::arch::x86_64::_rdtsc;
use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::sync::OnceLock;

use super::{Atomic, Fault};

/// Copies `rdx` bytes from `rsi` to `rdi`, for any alignment, and advances both by that length. Uses `rax`, `rcx`, `r8` and `xmm0` to
/// `xmm3`. If the length is no multiple of a step, the last steps overlap.
///
/// Most payloads lie behind a header of 12 or 28 bytes. There `rep movsq` reaches a fifth of its speed between aligned addresses.
/// (`rep movsb` is faster on processors that are good at it, and reaches a twentieth on emulated ones.)
macro_rules! copy {
    () => {
        "
        cmp rdx, 64
        jb 23f
        movdqu xmm0, [rsi]
        movdqu [rdi], xmm0
        lea rcx, [rdi + 16]
        and rcx, -16
        sub rcx, rdi
        add rdi, rcx
        add rsi, rcx
        sub rdx, rcx
        mov rcx, rdx
        shr rcx, 6
        je 22f
        .p2align 4
        21:
        movdqu xmm0, [rsi]
        movdqu xmm1, [rsi + 16]
        movdqu xmm2, [rsi + 32]
        movdqu xmm3, [rsi + 48]
        movdqa [rdi], xmm0
        movdqa [rdi + 16], xmm1
        movdqa [rdi + 32], xmm2
        movdqa [rdi + 48], xmm3
        add rsi, 64
        add rdi, 64
        dec rcx
        jne 21b
        22:
        and edx, 63
        je 28f
        add rsi, rdx
        add rdi, rdx
        movdqu xmm0, [rsi - 64]
        movdqu xmm1, [rsi - 48]
        movdqu xmm2, [rsi - 32]
        movdqu xmm3, [rsi - 16]
        movdqu [rdi - 64], xmm0
        movdqu [rdi - 48], xmm1
        movdqu [rdi - 32], xmm2
        movdqu [rdi - 16], xmm3
        jmp 28f
        23:
        add rsi, rdx
        add rdi, rdx
        mov rcx, rdx
        neg rcx
        cmp edx, 32
        jae 27f
        cmp edx, 16
        jae 26f
        cmp edx, 8
        jae 25f
        test edx, edx
        je 28f
        24:
        mov al, [rsi + rcx]
        mov [rdi + rcx], al
        inc rcx
        jne 24b
        jmp 28f
        25:
        mov rax, [rsi + rcx]
        mov r8, [rsi - 8]
        mov [rdi + rcx], rax
        mov [rdi - 8], r8
        jmp 28f
        26:
        movdqu xmm0, [rsi + rcx]
        movdqu xmm1, [rsi - 16]
        movdqu [rdi + rcx], xmm0
        movdqu [rdi - 16], xmm1
        jmp 28f
        27:
        movdqu xmm0, [rsi + rcx]
        movdqu xmm1, [rsi + rcx + 16]
        movdqu xmm2, [rsi - 32]
        movdqu xmm3, [rsi - 16]
        movdqu [rdi + rcx], xmm0
        movdqu [rdi + rcx + 16], xmm1
        movdqu [rdi - 32], xmm2
        movdqu [rdi - 16], xmm3
        28:
        "
    };
}

// Every routine keeps its values in registers, uses no stack, and returns with `edx` = 0. The instructions that may fault lie
// between the symbols `begin` and `end`. After a fault the handler continues at `fault`, which returns to the routine's caller
// with `edx` = 1.
core::arch::global_asm!(
    ".pushsection .text.rxe_usercopy, \"ax\", @progbits",
    ".p2align 4",
    ".hidden rxe_usercopy_begin",
    ".globl rxe_usercopy_begin",
    "rxe_usercopy_begin:",
    // (to rdi, from rsi, length rdx): copies.
    ".hidden rxe_usercopy_copy",
    ".globl rxe_usercopy_copy",
    ".type rxe_usercopy_copy, @function",
    "rxe_usercopy_copy:",
    ".cfi_startproc",
    copy!(),
    "xor edx, edx",
    "ret",
    ".cfi_endproc",
    // (to rdi, from rsi, length rdx, tail rcx = 1 or 8): copies length bytes, then tail bytes by one store.
    ".p2align 4",
    ".hidden rxe_usercopy_place",
    ".globl rxe_usercopy_place",
    ".type rxe_usercopy_place, @function",
    "rxe_usercopy_place:",
    ".cfi_startproc",
    "mov r9, rcx",
    copy!(),
    "cmp r9, 8",
    "jne 2f",
    "mov rax, [rsi]",
    "mov [rdi], rax",
    "xor edx, edx",
    "ret",
    "2:",
    "mov al, [rsi]",
    "mov [rdi], al",
    "xor edx, edx",
    "ret",
    ".cfi_endproc",
    // (word rdi, expected rsi, new rdx): old value in rax.
    ".p2align 4",
    ".hidden rxe_usercopy_compare_swap",
    ".globl rxe_usercopy_compare_swap",
    ".type rxe_usercopy_compare_swap, @function",
    "rxe_usercopy_compare_swap:",
    ".cfi_startproc",
    "mov rax, rsi",
    "lock cmpxchg [rdi], rdx",
    "xor edx, edx",
    "ret",
    ".cfi_endproc",
    // (word rdi, addend rsi): old value in rax.
    ".p2align 4",
    ".hidden rxe_usercopy_fetch_add",
    ".globl rxe_usercopy_fetch_add",
    ".type rxe_usercopy_fetch_add, @function",
    "rxe_usercopy_fetch_add:",
    ".cfi_startproc",
    "mov rax, rsi",
    "lock xadd [rdi], rax",
    "xor edx, edx",
    "ret",
    ".cfi_endproc",
    // (word rdi, new rsi): old value in rax.
    ".p2align 4",
    ".hidden rxe_usercopy_swap",
    ".globl rxe_usercopy_swap",
    ".type rxe_usercopy_swap, @function",
    "rxe_usercopy_swap:",
    ".cfi_startproc",
    "mov rax, rsi",
    "xchg [rdi], rax",
    "xor edx, edx",
    "ret",
    ".cfi_endproc",
    ".hidden rxe_usercopy_end",
    ".globl rxe_usercopy_end",
    "rxe_usercopy_end:",
    ".hidden rxe_usercopy_fault",
    ".globl rxe_usercopy_fault",
    ".type rxe_usercopy_fault, @function",
    "rxe_usercopy_fault:",
    ".cfi_startproc",
    "mov edx, 1",
    "ret",
    ".cfi_endproc",
    ".popsection",
);

/// What a routine returns: two registers.
#[repr(C)]
struct Outcome {
    value: u64,
    fault: u64,
}

impl Outcome {
    const fn result(&self) -> Result<u64, Fault> {
        if self.fault == 0 { Ok(self.value) } else { Err(Fault) }
    }
}

unsafe extern "C" {
    static rxe_usercopy_begin: u8;
    static rxe_usercopy_end: u8;
    static rxe_usercopy_fault: u8;
    fn rxe_usercopy_copy(to: usize, from: usize, len: usize) -> Outcome;
    fn rxe_usercopy_place(to: usize, from: usize, len: usize, tail: usize) -> Outcome;
    fn rxe_usercopy_compare_swap(word: usize, expected: u64, new: u64) -> Outcome;
    fn rxe_usercopy_fetch_add(word: usize, value: u64) -> Outcome;
    fn rxe_usercopy_swap(word: usize, value: u64) -> Outcome;
}

/// See [`super::read`].
pub(super) unsafe fn read(address: usize, out: &mut [u8]) -> Result<(), Fault> {
    // SAFETY: writes `out`; faults on the application's side come back as an outcome.
    unsafe { rxe_usercopy_copy(out.as_mut_ptr() as usize, address, out.len()) }.result().map(drop)
}

/// See [`super::write`]; `tail` is 1 or 8 and at most `data.len()`.
pub(super) unsafe fn write(address: usize, data: &[u8], tail: usize) -> Result<(), Fault> {
    // SAFETY: reads `data`; writes where the caller may; faults there come back as an outcome.
    unsafe { rxe_usercopy_place(address, data.as_ptr() as usize, data.len() - tail, tail) }.result().map(drop)
}

/// See [`super::atomic`].
pub(super) unsafe fn atomic(address: usize, operation: Atomic) -> Result<u64, Fault> {
    // SAFETY: an aligned word the caller may change; faults come back as an outcome.
    unsafe {
        match operation {
            Atomic::CompareSwap { expected, new } => rxe_usercopy_compare_swap(address, expected, new),
            Atomic::FetchAdd(value) => rxe_usercopy_fetch_add(address, value),
            Atomic::Swap(value) => rxe_usercopy_swap(address, value),
        }
    }
    .result()
}

/// Time-stamp counter ticks for which a thread relies on its last check: about a millisecond, never more than two.
const BELIEF: u64 = 1 << 21;

thread_local! {
    /// When the next check is due, and the result of the last one.
    static BELIEVED: Cell<(u64, bool)> = const { Cell::new((0, false)) };
}

/// Whether a fault in this thread, now, would reach our handler.
pub(super) fn usable() -> bool {
    // SAFETY: every x86-64 processor has the counter.
    let now = unsafe { _rdtsc() };
    BELIEVED
        .try_with(|believed| {
            let (until, usable) = believed.get();
            // If `until` is further ahead than that, the thread has moved to a processor whose counter is behind: check again.
            if until.wrapping_sub(now).wrapping_sub(1) < BELIEF {
                return usable;
            }
            let usable = handlers_are_ours() && signals_are_open();
            believed.set((now + BELIEF, usable));
            usable
        })
        .unwrap_or(false)
}

const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// The handlers that ours have replaced. Null until installed, and never changed after that.
static PREVIOUS: [AtomicPtr<libc::sigaction>; 2] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 2];
static INSTALLED: OnceLock<bool> = OnceLock::new();

fn current(signal: c_int) -> Option<libc::sigaction> {
    let mut action = MaybeUninit::zeroed();
    // SAFETY: asks only; on success the kernel has filled the structure, for which zeroes are valid besides.
    unsafe {
        (libc::sigaction(signal, core::ptr::null(), action.as_mut_ptr()) == 0).then(|| action.assume_init())
    }
}

fn install() -> bool {
    if crate::variable("RXE_USERCOPY").is_some_and(|value| value == "kernel") {
        return false;
    }
    // Blocked, so that a signal for this thread comes only after `PREVIOUS` is set.
    let open = block_signals();
    let installed = SIGNALS.into_iter().zip(&PREVIOUS).all(|(signal, previous)| take_over(signal, previous));
    if let Some(mask) = open {
        // SAFETY: the mask from before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, core::ptr::null_mut()) };
    }
    installed
}

/// Blocks the two signals in this thread, and returns the mask from before.
fn block_signals() -> Option<libc::sigset_t> {
    let mut before = MaybeUninit::uninit();
    // SAFETY: sets of our own; on success the call has filled `before`.
    unsafe {
        let mut two: libc::sigset_t = core::mem::zeroed();
        for signal in SIGNALS {
            libc::sigaddset(&raw mut two, signal);
        }
        let blocked = libc::pthread_sigmask(libc::SIG_BLOCK, &raw const two, before.as_mut_ptr()) == 0;
        blocked.then(|| before.assume_init())
    }
}

/// Installs our handler. The same system call returns the handler that it replaces, because another thread may install one at any
/// time.
fn take_over(signal: c_int, previous: &AtomicPtr<libc::sigaction>) -> bool {
    let mut replaced = Box::new(MaybeUninit::<libc::sigaction>::zeroed());
    // SAFETY: a valid action; the handler touches nothing but registers and what is kept below.
    let installed = unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        // On the alternative stack: the previous handler may be one for stack overflows.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(signal, &raw const action, replaced.as_mut_ptr()) == 0
    };
    if installed {
        previous.store(Box::into_raw(replaced).cast(), Ordering::Release);
    }
    installed
}

/// The action that ours has replaced. Another thread may get a signal between the installation and the store of `PREVIOUS`. It spins
/// for these few instructions.
fn previous(signal: c_int) -> &'static libc::sigaction {
    let place = &PREVIOUS[usize::from(signal == libc::SIGBUS)];
    loop {
        // SAFETY: null, or filled by the kernel, and kept for good.
        match unsafe { place.load(Ordering::Acquire).as_ref() } {
            Some(previous) => return previous,
            None => core::hint::spin_loop(),
        }
    }
}

/// The handler that ours has replaced.
#[cfg(test)]
pub(super) fn replaced(signal: c_int) -> usize {
    previous(signal).sa_sigaction
}

/// Installs the handlers, if that has not been done. This is called early, before several threads could do it. If one thread
/// installed them while another one forked, the child would wait for the first for ever.
pub(super) fn prepare() {
    INSTALLED.get_or_init(install);
}

fn handlers_are_ours() -> bool {
    *INSTALLED.get_or_init(install)
        && SIGNALS.into_iter().all(|signal| {
            current(signal).is_some_and(|action| action.sa_sigaction == on_fault as *const () as usize)
        })
}

fn signals_are_open() -> bool {
    // SAFETY: asks for the thread's mask only, which the call fills.
    unsafe {
        let mut mask = core::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, core::ptr::null(), &raw mut mask) == 0
            && SIGNALS.into_iter().all(|signal| libc::sigismember(&raw const mask, signal) == 0)
    }
}

/// The kernel's own faults have a positive code; `kill` and `sigqueue` do not.
const fn is_fault(info: *const libc::siginfo_t) -> bool {
    // SAFETY: the kernel passes a valid structure.
    unsafe { (*info).si_code > 0 }
}

/// If a routine of ours faulted, continues it at its error return. Any other signal goes to the previous handler.
extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let range = (&raw const rxe_usercopy_begin) as usize..(&raw const rxe_usercopy_end) as usize;
    // SAFETY: SA_SIGINFO handlers get a `ucontext_t` and may change the registers in it.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let instruction = &mut registers[libc::REG_RIP as usize];
    if is_fault(info) && range.contains(&(*instruction as usize)) {
        *instruction = (&raw const rxe_usercopy_fault) as libc::greg_t;
        return;
    }
    pass_on(previous(signal), signal, info, context);
}

/// Handles a signal as `previous` would.
fn pass_on(previous: &libc::sigaction, signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    match previous.sa_sigaction {
        // The kernel never ignores a fault.
        libc::SIG_IGN if !is_fault(info) => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: async-signal-safe calls. The fault repeats at return, or the signal is delivered again, and takes
            // the default action with the right cause.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                if !is_fault(info) {
                    libc::raise(signal);
                }
            }
        }
        handler => {
            // SAFETY: the program installed this handler, for a signal with these arguments and this mask.
            unsafe {
                if previous.sa_flags & libc::SA_RESETHAND != 0 {
                    // The handler may rely on it: when it returns, the fault repeats and ends the process.
                    libc::signal(signal, libc::SIG_DFL);
                }
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const previous.sa_mask, core::ptr::null_mut());
                if previous.sa_flags & libc::SA_NODEFER != 0 {
                    let mut own: libc::sigset_t = core::mem::zeroed();
                    libc::sigaddset(&raw mut own, signal);
                    libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const own, core::ptr::null_mut());
                }
                if previous.sa_flags & libc::SA_SIGINFO == 0 {
                    let handler: extern "C" fn(c_int) = core::mem::transmute(handler);
                    handler(signal);
                } else {
                    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                        core::mem::transmute(handler);
                    handler(signal, info, context);
                }
            }
        }
    }
}
