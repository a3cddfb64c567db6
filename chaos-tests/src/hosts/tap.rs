//! A TAP device: a network interface whose other end is a file.
//!
//! Owns the one system call of the harness that the standard library and `nix` have no safe form for.

#![expect(unsafe_code, reason = "attaching to a TAP device is an ioctl with a pointer")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use nix::libc;

/// `struct ifreq` as TUNSETIFF reads it: 40 bytes, all of them set.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: libc::c_short,
    rest: [u8; 22],
}

nix::ioctl_write_ptr_bad!(
    /// Attaches an open `/dev/net/tun` to an interface, which it makes.
    tunsetiff,
    nix::request_code_write!(b'T', 202, size_of::<libc::c_int>()),
    Request
);

/// Makes the interface `name` in the network namespace of the calling thread. Each read takes a frame
/// and each write gives one; neither waits. The interface lives as long as the file.
pub(super) fn open(name: &str) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")?;
    let flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    let mut request = Request { name: [0; 16], flags, rest: [0; 22] };
    // The last byte stays zero: the kernel wants an end.
    for (to, from) in request.name[..15].iter_mut().zip(name.bytes()) {
        *to = from;
    }
    // SAFETY: the file is open, and `request` has the kernel's layout and outlives the call.
    unsafe { tunsetiff(file.as_raw_fd(), &request) }?;
    Ok(file)
}
