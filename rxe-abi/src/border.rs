//! The border between C and Rust. Here pointers from C become references, and results become what C expects. No panic gets out to C.
//!
//! Functions that C programs call take `Option<&T>` where the header has a pointer. It has the same bits, and null is `None`.
//! The program guarantees that the pointer is one that we gave it (or one to a structure of its own), has that type, and is not
//! destroyed, as with every libibverbs. Other kinds of pointers are the types of this file. They cannot be made in Rust:
//! they come from a program's call.

use core::sync::atomic::{AtomicPtr, Ordering};
use core::{
    ffi::{c_int, c_void},
    mem::MaybeUninit,
    panic::AssertUnwindSafe,
    ptr, slice,
};
use rxe_cancel::{Shield, cancellation_point};
use rxe_verbs::{
    AddressError, CreateError, EventError, Forked, ModifyQpError, OpenError, PostError, PostListError,
    RegisterError, post_errno,
};
use std::{
    collections::HashMap,
    hash::Hash,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    os::fd::BorrowedFd,
    panic::catch_unwind,
    sync::Mutex,
};

/// A number for `errno`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Errno(pub(crate) c_int);

pub(crate) type Result<T> = core::result::Result<T, Errno>;

pub(crate) const INVALID: Errno = Errno(libc::EINVAL);
pub(crate) const FAULT: Errno = Errno(libc::EFAULT);
pub(crate) const UNSUPPORTED: Errno = Errno(libc::EOPNOTSUPP);

macro_rules! numbered {
    ($($error:ty),*) => {$(
        impl From<$error> for Errno {
            fn from(error: $error) -> Self {
                rxe_verbs::tell(&error);
                Self(error.errno())
            }
        }
    )*};
}

numbered!(AddressError, CreateError, Forked, ModifyQpError, RegisterError, PostListError);

impl From<PostError> for Errno {
    fn from(error: PostError) -> Self {
        rxe_verbs::tell(&error);
        Self(post_errno(&error))
    }
}

impl From<EventError> for Errno {
    fn from(error: EventError) -> Self {
        Self(error.errno())
    }
}

impl From<OpenError> for Errno {
    /// Also prints the error, because programs that cannot open a device hardly ever say why.
    fn from(error: OpenError) -> Self {
        eprintln!("rxe: {error}");
        Self(error.errno())
    }
}

/// An argument that must not be null: EINVAL if it is.
pub(crate) fn given<T>(value: Option<T>) -> Result<T> {
    value.ok_or(INVALID)
}

/// ENOENT unless an object still has the number that it was given. A kernel finds objects by that number, and gives the same error
/// if the program has overwritten it.
pub(crate) const fn known(handle: u32, number: u32) -> Result<()> {
    if handle == number { Ok(()) } else { Err(Errno(libc::ENOENT)) }
}

pub(crate) fn set_errno(errno: Errno) {
    nix::errno::Errno::set_raw(errno.0);
}

/// Runs a verb. If our code panics the result is EIO.
fn run<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let _shield = Shield::new();
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Errno(libc::EIO)))
}

/// For functions that return 0 or an `errno` value.
pub(crate) fn code(work: impl FnOnce() -> Result<()>) -> c_int {
    match run(work) {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            errno.0
        }
    }
}

/// For functions that return a value, or -1 and set `errno`.
pub(crate) fn value(work: impl FnOnce() -> Result<c_int>) -> c_int {
    run(work).unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

/// For functions that return a number of bytes, or -1 and set `errno`, and may wait. See [`waiting_value`].
pub(crate) fn waiting_size(work: impl FnOnce() -> Result<usize>) -> isize {
    cancellation_point(|| {
        run(work).map_or_else(
            |errno| {
                set_errno(errno);
                -1
            },
            |size| size as isize,
        )
    })
}

/// The same for functions that wait, which are cancellation points. The thread may end here. So the callers are
/// `extern "C-unwind"`, and hold nothing that has a destructor.
pub(crate) fn waiting_value(work: impl FnOnce() -> Result<c_int>) -> c_int {
    cancellation_point(|| value(work))
}

/// For functions that return a pointer, or null and set `errno`.
pub(crate) fn pointer<T>(work: impl FnOnce() -> Result<*mut T>) -> *mut T {
    run(work).unwrap_or_else(|errno| {
        set_errno(errno);
        ptr::null_mut()
    })
}

/// For functions that return nothing.
pub(crate) fn quietly(work: impl FnOnce()) {
    let _ = run(|| {
        work();
        Ok(())
    });
}

/// A file descriptor of the program. `None` if it is negative.
pub(crate) fn descriptor<'a>(fd: c_int) -> Option<BorrowedFd<'a>> {
    // SAFETY: it is not -1. If it is not open, the system call that uses it fails. The program keeps it open during the call.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// A place where C wants a value to be written. It may be uninitialised.
pub(crate) type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// An object that C gives back to be destroyed.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Owned<T>(*mut T);

impl<T> Owned<T> {
    pub(crate) fn get(&self) -> Result<&T> {
        // SAFETY: it comes from a program, which passes what we gave it and has not destroyed it (see the top).
        given(unsafe { self.0.as_ref() })
    }

    /// Destroys the object.
    pub(crate) fn free(self) {
        if !self.0.is_null() {
            // SAFETY: made by `Box::into_raw`, and given up by the program.
            drop(unsafe { Box::from_raw(self.0) });
        }
    }
}

/// The start of an array in C.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct List<T>(*const T);

impl<T> List<T> {
    /// Made from a pointer that a program wrote into a structure.
    pub(crate) const fn new(start: *const T) -> Self {
        Self(start)
    }

    /// Its elements. C says that there are `count`. A null pointer has none.
    pub(crate) fn elements(&self, count: usize) -> &[T] {
        if self.0.is_null() || count == 0 || count > isize::MAX as usize / size_of::<T>() {
            return &[];
        }
        // SAFETY: the program promises `count` elements that stay for this call.
        unsafe { slice::from_raw_parts(self.0, count) }
    }

    /// The same, but a null pointer to some is EFAULT, as in a system call.
    pub(crate) fn all(&self, count: usize) -> Result<&[T]> {
        if self.0.is_null() && count > 0 { Err(FAULT) } else { Ok(self.elements(count)) }
    }

    /// Copies of its elements, which need not be aligned: programs such as libiscsi keep scatter elements in packed structures.
    pub(crate) fn copies(&self, count: usize) -> impl ExactSizeIterator<Item = T>
    where
        T: Copy,
    {
        let count = if self.0.is_null() || count > isize::MAX as usize / size_of::<T>() { 0 } else { count };
        let start = self.0;
        // SAFETY: the program promises `count` elements that stay for this call.
        (0..count).map(move |index| unsafe { start.add(index).read_unaligned() })
    }
}

/// Bytes of the program, which may change them at any time.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Bytes(*const c_void);

impl Bytes {
    /// The bytes at an address that a program wrote into a scatter element.
    pub(crate) fn at(address: u64) -> Self {
        Self(ptr::with_exposed_provenance(address as usize))
    }

    /// Appends `len` of these bytes to `out`.
    pub(crate) fn append_to(self, out: &mut smallvec::SmallVec<[u8; 512]>, len: usize) {
        if len == 0 || self.0.is_null() {
            return;
        }
        let start = out.len();
        out.resize(start + len, 0);
        // SAFETY: the program promises that `len` bytes can be read there (it asked for inline data); `out` has room.
        unsafe { ptr::copy_nonoverlapping(self.0.cast::<u8>(), out.as_mut_ptr().add(start), len) };
    }

    /// Copies `len` of these bytes to our memory.
    pub(crate) fn copy_to(self, to: *mut u8, len: usize) -> Result<()> {
        if self.0.is_null() {
            return Err(INVALID);
        }
        // SAFETY: the program promises `len` bytes here, and the caller as many there.
        unsafe { ptr::copy_nonoverlapping(self.0.cast(), to, len) };
        Ok(())
    }

    /// The first eight bytes.
    pub(crate) fn eight(self) -> Result<[u8; 8]> {
        let mut out = smallvec::SmallVec::new();
        self.append_to(&mut out, 8);
        out[..].try_into().map_err(|_| INVALID)
    }
}

/// The start of an array in C that is changed in place.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct ListMut<T>(*mut T);

impl<T> ListMut<T> {
    /// Its elements. C says that there are `count`. A null pointer has none.
    pub(crate) fn elements(&mut self, count: usize) -> &mut [T] {
        if self.0.is_null() || count == 0 || count > isize::MAX as usize / size_of::<T>() {
            return &mut [];
        }
        // SAFETY: the program promises `count` elements that nobody else uses during this call. They are numbers, for which any
        // bits are a value.
        unsafe { slice::from_raw_parts_mut(self.0, count) }
    }

    /// The same, but a null pointer to some is EFAULT, as in a system call.
    pub(crate) fn all(&mut self, count: usize) -> Result<&mut [T]> {
        if self.0.is_null() && count > 0 { Err(FAULT) } else { Ok(self.elements(count)) }
    }

    pub(crate) const fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// The pointer itself.
    pub(crate) fn address(&self) -> usize {
        self.0.expose_provenance()
    }
}

/// The start of an array that C wants filled.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct OutList<T>(*mut MaybeUninit<T>);

impl<T> OutList<T> {
    /// Its places, of which C says there are `count`.
    pub(crate) fn places(&mut self, count: usize) -> &mut [MaybeUninit<T>] {
        if self.0.is_null() || count > isize::MAX as usize / size_of::<T>() {
            return &mut [];
        }
        // SAFETY: the program promises room for `count` elements that nobody else uses during this call.
        unsafe { slice::from_raw_parts_mut(self.0, count) }
    }
}

/// Writes the first `size` bytes of `value` to a structure in C. The structure may be one of another release. If it is shorter than
/// ours, the rest is left out. If it is longer, its rest is filled with zeroes.
pub(crate) fn write_sized<T: Copy>(out: *mut c_void, size: usize, value: &T) -> Result<()> {
    if out.is_null() {
        return Err(INVALID);
    }
    let common = size.min(size_of::<T>());
    // SAFETY: the program promises `size` bytes at `out`; `common` is at most that and at most what `value` has. All of
    // our structures are plain numbers; their padding is copied as it is.
    unsafe {
        ptr::copy_nonoverlapping((&raw const *value).cast::<u8>(), out.cast::<u8>(), common);
        ptr::write_bytes(out.cast::<u8>().add(common), 0, size - common);
    }
    Ok(())
}

/// The C objects that events refer to, by the name that we use for them. An entry is removed before its object is destroyed.
/// A forked child finds nothing in its parent's registers, and changes nothing: a thread of the parent may have held the lock at the fork.
#[derive(Debug)]
pub(crate) struct Register<K, T> {
    entries: Mutex<HashMap<K, AtomicPtr<T>>>,
    /// The process that made it, by [`rxe_verbs::forks`].
    maker: u32,
}

impl<T> Register<u32, T> {
    /// Adds the object that `make` makes with a name that is not in use. In a forked child the name is 0.
    pub(crate) fn enter_new(&self, make: impl FnOnce(u32) -> *mut T) -> *mut T {
        let Some(mut entries) = self.lock() else { return make(0) };
        let name = (1..).find(|name| !entries.contains_key(name)).unwrap_or_default();
        let object = make(name);
        entries.insert(name, object.into());
        object
    }
}

impl<K: Eq + Hash, T> Register<K, T> {
    pub(crate) fn new() -> Self {
        Self { entries: Mutex::default(), maker: rxe_verbs::forks() }
    }

    /// Adds a new object.
    pub(crate) fn enter(&self, name: K, object: *mut T) {
        if let Some(mut entries) = self.lock() {
            entries.insert(name, object.into());
        }
    }

    pub(crate) fn remove(&self, name: &K) {
        if let Some(mut entries) = self.lock() {
            entries.remove(name);
        }
    }

    /// Calls `use_it` with the object, and returns its address for C. `None` if it has been removed.
    pub(crate) fn find(&self, name: &K, use_it: impl FnOnce(&T)) -> Option<*const T> {
        let entries = self.lock()?;
        let object = entries.get(name)?.load(Ordering::Relaxed);
        // SAFETY: it is in the register, so it is not destroyed. Its removal waits for the lock.
        use_it(unsafe { &*object });
        Some(object)
    }

    fn lock(&self) -> Option<std::sync::MutexGuard<'_, HashMap<K, AtomicPtr<T>>>> {
        let here = self.maker == rxe_verbs::forks();
        here.then(|| self.entries.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

impl From<rxe_rsocket::SocketError> for Errno {
    /// Also prints the error: always if a device cannot be opened, and not at all if a program expects it (the call would wait, for
    /// instance). Others are printed if `RXE_LOG` is set.
    fn from(error: rxe_rsocket::SocketError) -> Self {
        use rxe_rsocket::SocketError as E;
        match error {
            E::Cm(error) => error.into(),
            E::WouldBlock | E::InProgress | E::Already | E::Interrupted => Self(error.errno()),
            error => {
                rxe_verbs::tell(&error);
                Self(error.errno())
            }
        }
    }
}

impl From<rxe_cm::CmError> for Errno {
    /// Also prints the error: always if a device cannot be opened, otherwise if `RXE_LOG` is set.
    fn from(error: rxe_cm::CmError) -> Self {
        match error {
            rxe_cm::CmError::Open(error) => error.into(),
            error => {
                rxe_verbs::tell(&error);
                Self(error.errno())
            }
        }
    }
}

/// A `struct sockaddr` of the program. It may be null.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Address(*const libc::sockaddr);

impl Address {
    pub(crate) const fn new(address: *const libc::sockaddr) -> Self {
        Self(address)
    }

    /// The address, if there is one. Families other than IPv4 and IPv6 are refused.
    pub(crate) fn read(self) -> Result<Option<SocketAddr>> {
        if self.0.is_null() {
            return Ok(None);
        }
        // SAFETY: the program promises a `sockaddr` of the family that it begins with; the pointer may be to one that is
        // not aligned for what we read.
        unsafe {
            match c_int::from(ptr::addr_of!((*self.0).sa_family).read_unaligned()) {
                libc::AF_INET => {
                    let v4 = self.0.cast::<libc::sockaddr_in>().read_unaligned();
                    let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                    Ok(Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into()))
                }
                libc::AF_INET6 => {
                    let v6 = self.0.cast::<libc::sockaddr_in6>().read_unaligned();
                    let (ip, port) = (Ipv6Addr::from(v6.sin6_addr.s6_addr), u16::from_be(v6.sin6_port));
                    let flow = u32::from_be(v6.sin6_flowinfo);
                    Ok(Some(SocketAddrV6::new(ip, port, flow, v6.sin6_scope_id).into()))
                }
                // The error that librdmacm gives.
                _ => Err(INVALID),
            }
        }
    }
}

/// An address in the form of C: the bytes of a `sockaddr_in` or `sockaddr_in6`.
pub(crate) fn sockaddr_bytes(address: SocketAddr) -> smallvec::SmallVec<[u8; 28]> {
    let mut out = smallvec::SmallVec::new();
    let family = |number: c_int| (number as u16).to_ne_bytes();
    match address {
        SocketAddr::V4(v4) => {
            out.extend(family(libc::AF_INET));
            out.extend(v4.port().to_be_bytes());
            out.extend(v4.ip().octets());
            out.extend([0; 8]);
        }
        SocketAddr::V6(v6) => {
            out.extend(family(libc::AF_INET6));
            out.extend(v6.port().to_be_bytes());
            out.extend(v6.flowinfo().to_be_bytes());
            out.extend(v6.ip().octets());
            out.extend(v6.scope_id().to_ne_bytes());
        }
    }
    out
}

/// The place for an address, and how many bytes it has there. Either may be null.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct AddressOut(*mut libc::sockaddr);

impl AddressOut {
    pub(crate) const fn new(place: *mut libc::sockaddr) -> Self {
        Self(place)
    }

    /// Writes as much of the address as there is room for, and its full length, as `getsockname(2)` does.
    pub(crate) fn write(&self, room: Option<&mut libc::socklen_t>, address: SocketAddr) {
        let Some(room) = room else { return };
        let bytes = sockaddr_bytes(address);
        if !self.0.is_null() {
            let len = bytes.len().min(*room as usize);
            // SAFETY: the program promises so much room here.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.cast::<u8>(), len) };
        }
        *room = bytes.len() as libc::socklen_t;
    }
}

/// Pieces of memory (`struct iovec`) from which a program sends.
pub(crate) fn pieces(list: &[libc::iovec]) -> Result<smallvec::SmallVec<[&[u8]; 8]>> {
    let piece = |piece: &libc::iovec| List(piece.iov_base.cast_const().cast::<u8>());
    let bytes = |one: &libc::iovec| {
        let all = piece(one);
        let elements = all.all(one.iov_len)?;
        // SAFETY: the program promises that the pieces can be read, and stay for this call.
        Ok(unsafe { slice::from_raw_parts(elements.as_ptr(), elements.len()) })
    };
    list.iter().map(bytes).collect()
}

/// The same for what is received, with their lengths.
pub(crate) fn places(list: &[libc::iovec]) -> smallvec::SmallVec<[(ListMut<u8>, usize); 8]> {
    list.iter().map(|one| (ListMut(one.iov_base.cast()), one.iov_len)).collect()
}

/// A string of the program. It may be null.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Text(*const core::ffi::c_char);

impl Text {
    pub(crate) const fn is_null(&self) -> bool {
        self.0.is_null()
    }
}

/// A copy of a value, made by malloc, which C frees. Null if there is no memory.
pub(crate) fn allocate<T: Copy>(values: &[T]) -> *mut T {
    let size = size_of_val(values).max(1);
    // SAFETY: the memory has the size of what is copied. malloc's alignment is enough for every structure in C.
    unsafe {
        let place = libc::malloc(size).cast::<T>();
        if !place.is_null() {
            ptr::copy_nonoverlapping(values.as_ptr(), place, values.len());
        }
        place
    }
}

/// Frees a value that [`allocate`] has made, or that the program has made by malloc, and returns it. `None` for null.
pub(crate) fn release<T: Copy>(place: *mut T) -> Option<T> {
    if place.is_null() {
        return None;
    }
    // SAFETY: it was made by malloc, has that type, and the program does not use it any more.
    unsafe {
        let value = place.read();
        libc::free(place.cast());
        Some(value)
    }
}

/// An address that getaddrinfo(3) has found, and the host's proper name if that was asked for.
pub(crate) type Found = (SocketAddr, Option<std::ffi::CString>);

/// All addresses of a host and service, by getaddrinfo(3).
///
/// # Errors
/// The error number of getaddrinfo(3) (`EAI_*`, below zero).
pub(crate) fn look_up(
    node: Text,
    service: Text,
    hints: &libc::addrinfo,
) -> core::result::Result<Vec<Found>, c_int> {
    let mut list = ptr::null_mut();
    // SAFETY: strings of the program's or null, hints, and a place for the list.
    let code = unsafe { libc::getaddrinfo(node.0, service.0, hints, &raw mut list) };
    if code != 0 {
        return Err(code);
    }
    let mut found: Vec<Found> = Vec::new();
    let mut next = list;
    // SAFETY: the list is getaddrinfo's and stays until it is freed.
    while let Some(one) = unsafe { next.as_ref() } {
        next = one.ai_next;
        let Ok(Some(address)) = Address::new(one.ai_addr).read() else { continue };
        if found.iter().all(|(other, _)| *other != address) {
            let name = (!one.ai_canonname.is_null())
                // SAFETY: a string of the list's.
                .then(|| unsafe { core::ffi::CStr::from_ptr(one.ai_canonname) }.to_owned());
            found.push((address, name));
        }
    }
    // SAFETY: not used any more.
    unsafe { libc::freeaddrinfo(list) };
    if found.is_empty() { Err(libc::EAI_NONAME) } else { Ok(found) }
}

impl Bytes {
    /// A copy of `len` of these bytes. Null has none.
    pub(crate) fn read(self, len: usize) -> Vec<u8> {
        let mut out = smallvec::SmallVec::new();
        self.append_to(&mut out, len);
        out.into_vec()
    }

    /// Made from a pointer that a program wrote into a structure.
    pub(crate) const fn new(address: *const c_void) -> Self {
        Self(address)
    }
}

impl<T> Owned<T> {
    /// An object that we made, and destroy ourselves.
    pub(crate) const fn ours(object: *mut T) -> Self {
        Self(object)
    }
}

/// The object that a pointer in one of our own objects refers to.
pub(crate) fn object<'a, T, U>(pointer: &AtomicPtr<T>) -> Option<&'a U> {
    // SAFETY: callers name the type of our object that begins with the structure which C sees. The object still exists: a program that
    // tried to destroy it got the error that it is in use, or has not kept to the contract (see the top).
    unsafe { pointer.load(Ordering::Acquire).cast::<U>().as_ref() }
}
