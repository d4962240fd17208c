//! Blocking sockets, with one thread per request in flight.

use std::io::{IoSlice, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::socket::{MsgFlags, recv};

use super::BUCKET;
use crate::job::{Measured, Op, RunArgs, Stopwatch};

const HEAD_MAX: usize = 2048;

/// Measures.
pub fn run(args: &RunArgs) -> Result<Measured> {
    ensure!(!args.tls(), "raw-blocking has no TLS");
    let next = AtomicU64::new(0);
    let ms = Mutex::new(Vec::new());
    let barrier = Barrier::new(args.concurrency + 1);
    let clock = std::thread::scope(|scope| {
        let work = || {
            worker(args, &next, &barrier)
                .map(|own| ms.lock().unwrap_or_else(PoisonError::into_inner).extend(own))
        };
        let workers: Vec<_> = (0..args.concurrency).map(|_| scope.spawn(work)).collect();
        barrier.wait();
        let clock = Stopwatch::start();
        for worker in workers {
            worker.join().unwrap_or_else(|_| bail!("a worker panicked"))?;
        }
        Ok::<_, anyhow::Error>(clock)
    })?;
    Ok(clock.stop(ms.into_inner().unwrap_or_else(PoisonError::into_inner)))
}

fn worker(args: &RunArgs, next: &AtomicU64, barrier: &Barrier) -> Result<Vec<f64>> {
    let began = || -> Result<_> {
        let mut memory = crate::bytes::stream(args.size);
        let tcp = TcpStream::connect(args.authority())?;
        tcp.set_nodelay(true)?;
        one(&tcp, args, &args.key(0), &mut memory)?;
        Ok((tcp, memory))
    };
    let ready = began();
    barrier.wait();
    let (tcp, mut memory) = ready?;
    let mut ms = Vec::new();
    loop {
        let n = next.fetch_add(1, Ordering::Relaxed);
        if n >= args.count {
            return Ok(ms);
        }
        let began = Instant::now();
        one(&tcp, args, &args.key(n), &mut memory)?;
        ms.push(began.elapsed().as_secs_f64() * 1e3);
    }
}

fn one(tcp: &TcpStream, args: &RunArgs, key: &str, memory: &mut [u8]) -> Result<()> {
    let (method, length, body) = match args.op {
        Op::Get => ("GET", String::new(), &[][..]),
        Op::Put => ("PUT", format!("content-length: {}\r\n", args.size), &*memory),
        Op::Head | Op::Delete => ("HEAD", String::new(), &[][..]),
    };
    let request =
        format!("{method} /{BUCKET}/{key} HTTP/1.1\r\nhost: {}\r\n{length}\r\n", args.authority());
    let mut sent = 0;
    let mut io = tcp;
    while sent < request.len() + body.len() {
        let rest = request.as_bytes().get(sent..).unwrap_or_default();
        sent += io.write_vectored(&[
            IoSlice::new(rest),
            IoSlice::new(&body[sent.saturating_sub(request.len())..]),
        ])?;
    }
    let mut head = [0; HEAD_MAX];
    let mut filled = 0;
    let start = loop {
        let got = recv(tcp.as_raw_fd(), &mut head[filled..], MsgFlags::empty())?;
        ensure!(got > 0, "the server closed");
        filled += got;
        if let Some(end) = head[..filled].windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
    };
    ensure!(head.starts_with(b"HTTP/1.1 20"), "the server refused");
    if args.op != Op::Get {
        return Ok(());
    }
    let early = &head[start..filled];
    memory.get_mut(..early.len()).context("more bytes than memory")?.copy_from_slice(early);
    let mut at = early.len();
    while at < memory.len() {
        let got = recv(tcp.as_raw_fd(), &mut memory[at..], MsgFlags::MSG_WAITALL)?;
        ensure!(got > 0, "the server closed");
        at += got;
    }
    Ok(())
}
