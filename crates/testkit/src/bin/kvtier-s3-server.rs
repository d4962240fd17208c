//! The S3 server of the tests as a program, for tests that are not written in Rust.
//!
//! `kvtier-s3-server [--bucket NAME] [--port N]` prints its address, then serves until standard
//! input ends. Each line of standard input is a command: `requests` prints the requests since the
//! last time (method, target, status), `keys` the names of all objects, `stall MS TIMES` lets the
//! next requests wait and `stall-heads MS TIMES` the next HEADs, and
//! `deny-heads WORD` refuses HEADs of objects whose names contain the word; an empty line closes each answer.
//! Its key pair is that of [`Setup::default`].
#![forbid(unsafe_code)]

use std::io::{self, BufRead, Write};
use std::time::Duration;

use kvtier_testkit::s3::{Fault, Rule, Server, Setup};

fn main() -> io::Result<()> {
    let mut setup = Setup::default();
    // LMCache's client sends the names of uploads as they come.
    setup.plain_uploads = true;
    let mut args = std::env::args().skip(1);
    while let (Some(name), Some(value)) = (args.next(), args.next()) {
        match name.as_str() {
            "--bucket" => setup.bucket = value,
            "--port" => setup.port = value.parse().map_err(io::Error::other)?,
            other => return Err(io::Error::other(format!("no option {other}"))),
        }
    }
    let server = Server::start(setup)?;
    let mut out = io::stdout().lock();
    let mut reported = 0;
    // The program that starts it reads the port from this line.
    writeln!(out, "{}", server.address())?;
    out.flush()?;
    // The end of the input ends the server, also where its parent was killed.
    for line in io::stdin().lock().lines() {
        for line in answer(&server, &line?, &mut reported)? {
            writeln!(out, "{line}")?;
        }
        // An empty line ends each answer, whatever its length.
        writeln!(out)?;
        out.flush()?;
    }
    Ok(())
}

fn answer(server: &Server, line: &str, reported: &mut usize) -> io::Result<Vec<String>> {
    let number = |word: &str| word.parse::<u32>().map_err(io::Error::other);
    match line.split(' ').collect::<Vec<_>>()[..] {
        ["requests"] => {
            let seen = server.seen().split_off(*reported);
            *reported += seen.len();
            Ok(seen
                .iter()
                .map(|seen| format!("{} {} {}", seen.method, seen.target, seen.status))
                .collect())
        }
        ["keys"] => Ok(server.keys("")),
        ["stall", ms, times] => {
            let stall = Fault::Stall(Duration::from_millis(number(ms)?.into()));
            server.script(Rule::next(stall).times(number(times)?));
            Ok(Vec::new())
        }
        ["stall-heads", ms, times] => {
            let stall = Fault::Stall(Duration::from_millis(number(ms)?.into()));
            server.script(Rule::next(stall).method("HEAD").times(number(times)?));
            Ok(Vec::new())
        }
        ["deny-heads", word] => {
            // For as long as the server runs, as the rule itself.
            let word: &'static str = word.to_owned().leak();
            let deny = Rule::next(Fault::Error(403, "AccessDenied")).method("HEAD");
            server.script(deny.containing(word).times(u32::MAX));
            Ok(Vec::new())
        }
        _ => Err(io::Error::other(format!("no command {line:?}"))),
    }
}
