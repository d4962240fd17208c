//! Serves the metrics of a stack for Prometheus, and prints what a scrape returns.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpStream;

use kvtier::config::Config;
use kvtier::metrics::MetricsServer;
use kvtier::{Blocking, Key, Namespace};

fn main() -> Result<(), Box<dyn Error>> {
    let stack = Config::new().with_host(1 << 20).with_host(16 << 20).open()?;
    let key = Key::from_name(&Namespace::from_name("example"), "chunk 0");
    stack.top.save_bytes(&key, vec![42; 4096])?;
    stack.top.load_bytes(&key)?;

    // Port 0 is any free port.
    let server = MetricsServer::start("127.0.0.1:0", stack.monitored().to_vec())?;
    let mut scrape = TcpStream::connect(server.address())?;
    write!(scrape, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let mut response = String::new();
    scrape.read_to_string(&mut response)?;
    let hits = response.lines().filter(|line| line.starts_with("kvtier_hits_total{"));
    let hits: Vec<&str> = hits.collect();
    println!("{}", hits.join("\n"));
    assert!(hits.contains(&r#"kvtier_hits_total{tier="host"} 1"#));
    Ok(())
}
