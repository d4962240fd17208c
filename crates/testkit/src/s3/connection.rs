//! What happens on a connection: requests come, answers go, and both break as a rule says.

use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::fault::{CLOG, Fault};
use super::server::{ServerState, lock};
use super::wire::{Response, WireRequest};

/// How long what was written has to get away before the connection is reset.
const FLUSH: Duration = Duration::from_millis(20);

/// How long the client may send nothing of the rest of a body before it is taken to be gone.
const EARLY_REST: Duration = Duration::from_secs(60);

/// Takes nothing, until the client goes away.
fn hold(socket: &TcpStream) -> io::Result<()> {
    let begun = Instant::now();
    // `peek` notices that the client went away without reading its body, so that the window stays
    // full.
    socket.set_read_timeout(Some(Duration::from_millis(10)))?;
    while begun.elapsed() < CLOG {
        match socket.peek(&mut [0]) {
            Ok(0) => return Ok(()),
            Ok(_) => thread::sleep(Duration::from_millis(10)),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

impl ServerState {
    /// Serves a connection on a thread of its own.
    pub(super) fn serve(self: &Arc<Self>, socket: TcpStream) {
        self.accepted.fetch_add(1, Ordering::SeqCst);
        self.open.fetch_add(1, Ordering::SeqCst);
        let shared = Arc::clone(self);
        // Small answers would wait for the client's acknowledgement otherwise, some 40 ms each.
        socket.set_nodelay(true).ok();
        if let Ok(clone) = socket.try_clone() {
            // A handle for `disconnect`, which cuts all connections at once.
            lock(&self.sockets).push(clone);
        }
        thread::spawn(move || {
            let spoken = if shared.http2 {
                shared.converse_http2(&socket)
            } else {
                shared.converse(&socket)
            };
            // A client that goes away is no news.
            match spoken {
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => shared.reset(socket),
                _ => drop(socket.shutdown(Shutdown::Both)),
            }
            shared.open.fetch_sub(1, Ordering::SeqCst);
        });
    }

    /// Closes a connection so that what the client has not read is lost.
    fn reset(&self, socket: TcpStream) {
        // With a linger time of 0 the kernel sends a reset in place of the orderly end.
        let at_once = nix::libc::linger { l_onoff: 1, l_linger: 0 };
        let _ = nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::Linger, &at_once);
        // It is closed when its last reference is dropped.
        let peer = socket.peer_addr().ok();
        lock(&self.sockets).retain(|other| other.peer_addr().ok() != peer);
    }

    #[cfg(feature = "http2")]
    fn converse_http2(self: &Arc<Self>, socket: &TcpStream) -> io::Result<()> {
        super::http2::converse(self, socket)
    }

    #[cfg(not(feature = "http2"))]
    fn converse_http2(self: &Arc<Self>, _: &TcpStream) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn converse(&self, socket: &TcpStream) -> io::Result<()> {
        let mut from = BufReader::new(socket.try_clone()?);
        let mut to = socket.try_clone()?;
        while let Some(request) = WireRequest::read(&mut from)? {
            let fault = self.fault(&request);
            // Before the body is read: a store may refuse a request by its head alone.
            if let Some(Fault::Early(status, code)) = fault {
                return self.refuse_early(&request, &mut to, status, code);
            }
            if matches!(fault, Some(Fault::Clog)) {
                self.note_stalled(&request);
                return hold(socket);
            }
            let body = request.body(&mut from)?;
            if matches!(fault, Some(Fault::Hangup | Fault::Refuse)) {
                return Ok(());
            }
            let response = self.answer(&request, body, fault.as_ref());
            self.note(&request, response.status);
            if !self.send(&request, response, fault, &mut to)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Answers without reading the body, lingers a little so that the answer is not lost, and
    /// closes.
    fn refuse_early(
        &self,
        request: &WireRequest,
        to: &mut TcpStream,
        status: u16,
        code: &str,
    ) -> io::Result<()> {
        self.note(request, status);
        self.dated(Response::error(status, code)).with("connection", "close").write(to, false)?;
        to.flush()?;
        // The client may still send its body. If the socket closed with unread bytes, the kernel
        // would send a reset, which can destroy the answer before the client reads it. So the rest
        // is read until the client closes, which it does when it has the answer.
        to.shutdown(Shutdown::Write)?;
        to.set_read_timeout(Some(EARLY_REST))?;
        let mut sink = [0; 4096];
        while to.read(&mut sink).is_ok_and(|got| got > 0) {}
        Ok(())
    }

    fn send(
        &self,
        request: &WireRequest,
        mut response: Response,
        fault: Option<Fault>,
        to: &mut TcpStream,
    ) -> io::Result<bool> {
        response = self.dated(response);
        let bodiless = request.method == "HEAD";
        let len = response.body.len();
        match fault {
            Some(Fault::Cut(at) | Fault::EndEarly(at)) => {
                to.write_all(response.head().as_bytes())?;
                to.write_all(&response.body[..at.min(len)])?;
                return Ok(false);
            }
            Some(Fault::Reset(at)) => {
                to.write_all(response.head().as_bytes())?;
                to.write_all(&response.body[..at.min(len)])?;
                // A reset overtakes bytes that the client has not read yet. They must arrive first.
                thread::sleep(FLUSH);
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            Some(Fault::Drip(bytes, pause)) => {
                to.write_all(response.head().as_bytes())?;
                for piece in response.body.chunks(bytes) {
                    to.write_all(piece)?;
                    thread::sleep(pause);
                }
                return Ok(true);
            }
            _ => response.distort(fault.as_ref()),
        }
        match &self.link {
            Some(link) => link.write(&response.to_bytes(bodiless), to)?,
            None => response.write(to, bodiless)?,
        }
        Ok(!matches!(fault, Some(Fault::CloseAfter)))
    }
}
