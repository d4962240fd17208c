//! Plain sockets over io_uring, on one thread.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use tokio::sync::Barrier;
use tokio_uring::buf::BoundedBuf;
use tokio_uring::net::TcpStream;

use super::BUCKET;
use crate::job::{Measured, Op, RunArgs, Stopwatch};

const HEAD_MAX: usize = 2048;

/// Measures.
pub fn run(args: &RunArgs) -> Result<Measured> {
    ensure!(!args.tls(), "raw-uring has no TLS");
    tokio_uring::start(async {
        let next = Rc::new(Cell::new(0));
        let ms = Rc::new(RefCell::new(Vec::new()));
        let barrier = Rc::new(Barrier::new(args.concurrency + 1));
        let mut workers = Vec::new();
        for _ in 0..args.concurrency {
            let args = args.clone();
            let next = Rc::clone(&next);
            let ms = Rc::clone(&ms);
            let barrier = Rc::clone(&barrier);
            workers
                .push(tokio_uring::spawn(async move { worker(&args, &next, &ms, &barrier).await }));
        }
        barrier.wait().await;
        let clock = Stopwatch::start();
        for worker in workers {
            worker.await.context("a worker panicked")??;
        }
        Ok(clock.stop(ms.take()))
    })
}

async fn worker(
    args: &RunArgs,
    next: &Cell<u64>,
    ms: &RefCell<Vec<f64>>,
    barrier: &Barrier,
) -> Result<()> {
    let ready = begin(args).await;
    // A worker that failed takes part too, since the others wait at the barrier.
    barrier.wait().await;
    let (tcp, mut memory, mut head) = ready?;
    loop {
        let n = next.get();
        if n >= args.count {
            return Ok(());
        }
        next.set(n + 1);
        let began = Instant::now();
        (memory, head) = one(&tcp, args, n, memory, head).await?;
        ms.borrow_mut().push(began.elapsed().as_secs_f64() * 1e3);
    }
}

/// Opens a connection, makes one request, and returns the memory for body and head.
async fn begin(args: &RunArgs) -> Result<(TcpStream, Vec<u8>, Vec<u8>)> {
    let tcp = TcpStream::connect(args.authority().parse()?).await?;
    tcp.set_nodelay(true)?;
    // The memory of a PUT holds its head too; all keys have the same length.
    let memory = match args.op {
        Op::Put => {
            [request(args, &args.key(0)).into_bytes(), crate::bytes::stream(args.size)].concat()
        }
        _ => crate::bytes::stream(args.size),
    };
    let (memory, head) = one(&tcp, args, 0, memory, vec![0; HEAD_MAX]).await?;
    Ok((tcp, memory, head))
}

fn request(args: &RunArgs, key: &str) -> String {
    let (method, length) = match args.op {
        Op::Get => ("GET", String::new()),
        Op::Put => ("PUT", format!("content-length: {}\r\n", args.size)),
        Op::Head | Op::Delete => ("HEAD", String::new()),
    };
    format!("{method} /{BUCKET}/{key} HTTP/1.1\r\nhost: {}\r\n{length}\r\n", args.authority())
}

async fn one(
    tcp: &TcpStream,
    args: &RunArgs,
    n: u64, mut memory: Vec<u8>, mut head: Vec<u8>) -> Result<(Vec<u8>, Vec<u8>)> {
    let request = request(args, &args.key(n)).into_bytes();
    if args.op == Op::Put {
        memory[..request.len()].copy_from_slice(&request);
        let (sent, back) = tcp.write_all(memory).await;
        sent?;
        memory = back;
    } else {
        tcp.write_all(request).await.0?;
    }
    let mut filled = 0;
    let start = loop {
        let (got, back) = tcp.read(head.slice(filled..)).await;
        head = back.into_inner();
        let got = got?;
        ensure!(got > 0, "the server closed");
        filled += got;
        if let Some(end) = head[..filled].windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
    };
    ensure!(head.starts_with(b"HTTP/1.1 20"), "the server refused");
    if args.op == Op::Get {
        let mut at = filled - start;
        memory[..at].copy_from_slice(&head[start..filled]);
        while at < memory.len() {
            let (got, back) = tcp.read(memory.slice(at..)).await;
            memory = back.into_inner();
            let got = got?;
            ensure!(got > 0, "the server closed");
            at += got;
        }
    }
    Ok((memory, head))
}
