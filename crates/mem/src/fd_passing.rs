//! A shared arena over a Unix socket: its file descriptor, and a line that says what it is.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr, recvmsg, sendmsg};

use crate::{Arena, Attached, Error, ErrorKind};

/// The bytes beside the descriptor: a name and a version.
const GREETING: [u8; 8] = *b"kvtmem\0\x01";

/// The most descriptors that the kernel lets one message have: with space for all of them, none is cut
/// off and leaks.
const FDS_MAX: usize = 253;

impl Arena {
    /// Passes a shared arena on to the process at the other end, which
    /// [receives](Attached::receive) it. Waits while the socket is full, as long as its own
    /// timeout says. `Unsupported` unless it is a memfd arena: a named one is opened by its name.
    /// See [`Arena::fd`] for the trust that this implies.
    pub fn send(&self, to: &UnixStream) -> Result<(), Error> {
        let Some(fd) = self.fd().filter(|_| self.name().is_none()) else {
            let what = "only memory whose size is sealed can be passed on; make the arena with ArenaConfig::memfd";
            return Err(Error::new(ErrorKind::Unsupported, what));
        };
        let fds = [fd.as_raw_fd()];
        let greeting = [IoSlice::new(&GREETING)];
        let rights = [ControlMessage::ScmRights(&fds)];
        let sent = again(|| {
            sendmsg::<UnixAddr>(to.as_raw_fd(), &greeting, &rights, MsgFlags::MSG_NOSIGNAL, None)
        });
        match sent {
            Ok(n) if n == GREETING.len() => Ok(()),
            Ok(_) => Err(failed("send", io::ErrorKind::WriteZero.into())),
            Err(e) => Err(failed("send", e.into())),
        }
    }
}

impl Attached {
    /// Receives an arena that the process at the other end [sent](Arena::send), and maps it. Waits
    /// as long as the socket's timeout says.
    pub fn receive(from: &UnixStream) -> Result<Self, Error> {
        let mut greeting = [0; GREETING.len()];
        let (n, fds) = receive(from, &mut greeting).map_err(|e| failed("receive", e))?;
        // All received descriptors are owned from here on, so those of a message that is refused
        // are closed.
        let mut fds = fds.into_iter();
        match (n, fds.next(), fds.next()) {
            (0, ..) => Err(failed("receive", io::ErrorKind::UnexpectedEof.into())),
            // Exactly one descriptor and the whole greeting. `new` checks the seals itself, since
            // the sender may be any process.
            (_, Some(fd), None) if greeting == GREETING => Self::new(fd),
            _ => Err(Error::new(
                ErrorKind::Invalid,
                "the received message is not an arena; send it with Arena::send",
            )),
        }
    }
}

/// One message and the descriptors in it, which are ours from then on.
fn receive(from: &UnixStream, into: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = nix::cmsg_space!([RawFd; FDS_MAX]);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = again(|| {
        let mut parts = [IoSliceMut::new(into)];
        let message = recvmsg::<UnixAddr>(from.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
        let mut fds = Vec::new();
        for part in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(raw) = part {
                // SAFETY: the kernel made these descriptors for us just now, and nothing else has
                // them.
                fds.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        Ok((message.bytes, fds))
    });
    Ok(message?)
}

/// Repeats the call while signals interrupt it.
fn again<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            done => return done,
        }
    }
}

fn failed(what: &str, e: io::Error) -> Error {
    let error = Error::new(ErrorKind::Io, format!("cannot {what} an arena over a socket"));
    error.with_cause(e, "see whether the process at the other end lives")
}
