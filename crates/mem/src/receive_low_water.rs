//! An option of sockets that no safe library has. It is here because the crates that use sockets
//! forbid `unsafe`.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;

/// Sets `SO_RCVLOWAT` of a socket: a task that waits for the socket to become readable is woken
/// when `bytes` bytes can be read, or when the connection ends. The kernel lowers a mark that is
/// above half of the largest receive buffer. Bytes that wait below the mark wake the task when the
/// mark is lowered.
///
/// # Errors
///
/// The kernel's error where the descriptor is no socket, or the socket does not have the option.
pub fn set_receive_low_water(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open for as long as it is borrowed, and the value is an integer of
    // the length that is passed.
    let result = unsafe {
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, (&raw const bytes).cast(), len)
    };
    Ok(Errno::result(result).map(drop)?)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    #[test]
    fn a_socket_is_readable_at_the_mark() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let reader = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut writer = listener.accept().unwrap().0;
        let readable = |wait: PollTimeout| {
            poll(&mut [PollFd::new(reader.as_fd(), PollFlags::POLLIN)], wait).unwrap() == 1
        };
        set_receive_low_water(&reader, 1000).unwrap();
        writer.write_all(&[7; 600]).unwrap();
        assert!(!readable(PollTimeout::ZERO));
        writer.write_all(&[7; 400]).unwrap();
        assert!(readable(PollTimeout::MAX));
        set_receive_low_water(&reader, 5000).unwrap();
        assert!(!readable(PollTimeout::ZERO));
        set_receive_low_water(&reader, 1).unwrap();
        assert!(readable(PollTimeout::MAX));
        set_receive_low_water(&reader, 5000).unwrap();
        drop(writer);
        assert!(readable(PollTimeout::MAX), "the end of a connection is always seen");
    }

    #[test]
    fn a_file_without_socket_options_is_refused() {
        assert!(set_receive_low_water(std::fs::File::open("/dev/null").unwrap(), 1).is_err());
    }
}
