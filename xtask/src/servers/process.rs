//! The servers' processes. Each carries its directory in its environment: so they are found again,
//! with all that they forked, and no other process is ever taken for one of them.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::START_MAX;
use crate::sh::Cmd;

const MARK: &str = "KVTIER_S3_SERVER";
/// How long a process may take to end before it is killed.
const END_MAX: Duration = Duration::from_secs(5);
/// And how long that may take: a large one on a busy machine is not gone at once.
const KILL_MAX: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);

/// Starts a process that outlives us; what it prints goes to `NAME.log`.
pub fn spawn(dir: &Path, name: &str, command: &mut Command) -> Result<Child> {
    let log = File::create(dir.join(format!("{name}.log"))).context("cannot make a log")?;
    command.env(MARK, dir).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    // A group of its own: Ctrl-C at the terminal is not meant for it.
    command.process_group(0).spawn().with_context(|| format!("cannot start {name}"))
}

/// The processes of the server in this directory.
pub fn ours(dir: &Path) -> Vec<u32> {
    let mark = format!("{MARK}={}", dir.display());
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let marked = |pid: &u32| {
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environ.split(|byte| *byte == 0).any(|pair| pair == mark.as_bytes())
    };
    pids.filter(marked).collect()
}

/// A process in a line.
pub fn describe(pid: u32) -> Result<String> {
    let line =
        Cmd::new("ps --no-headers -o pid,rss,etime,args -p").arg(pid.to_string()).try_read()?.1;
    Ok(line.trim_end().to_owned())
}

/// Ends the server's processes.
pub fn kill(dir: &Path) -> Result<()> {
    for (signal, end_max) in [("TERM", END_MAX), ("KILL", KILL_MAX)] {
        let began = Instant::now();
        let pids = ours(dir);
        if pids.is_empty() {
            return Ok(());
        }
        // One that ended by itself meanwhile is no failure.
        Cmd::new("kill -s").arg(signal).args(pids.iter().map(ToString::to_string)).try_read()?;
        while began.elapsed() < end_max && !ours(dir).is_empty() {
            sleep(PAUSE);
        }
    }
    match ours(dir).first() {
        Some(pid) => bail!("process {pid} of {} does not end", dir.display()),
        None => Ok(()),
    }
}

/// Ends the server and removes what it had.
pub fn stop(dir: &Path) -> Result<()> {
    kill(dir)?;
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("cannot remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}

/// Ports without a listener now.
pub fn ports<const N: usize>() -> Result<[u16; N]> {
    let listeners = [(); N].map(|()| TcpListener::bind(("127.0.0.1", 0)));
    let mut ports = [0; N];
    for (port, listener) in ports.iter_mut().zip(listeners) {
        *port = listener.context("no free port")?.local_addr()?.port();
    }
    Ok(ports)
}

/// Waits until something that speaks HTTP answers.
pub fn await_http(port: u16, server: &mut Child, dir: &Path) -> Result<()> {
    await_that(server, dir, || {
        let Ok(mut socket) = TcpStream::connect(("127.0.0.1", port)) else { return false };
        let asked = socket.set_read_timeout(Some(Duration::from_secs(5))).and_then(|()| {
            socket.write_all(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
        });
        let mut answer = [0; 5];
        asked.is_ok() && socket.read_exact(&mut answer).is_ok() && &answer == b"HTTP/"
    })
}

/// Waits until it is so, while the process lives.
pub fn await_that(server: &mut Child, dir: &Path, mut is_so: impl FnMut() -> bool) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < START_MAX {
        if is_so() {
            return Ok(());
        }
        if let Some(status) = server.try_wait()? {
            bail!("it ended ({status}); see the logs in {}", dir.display());
        }
        sleep(PAUSE);
    }
    bail!("no answer within {} s; see the logs in {}", START_MAX.as_secs(), dir.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_marked_processes_are_ours_and_they_end() {
        let dir = std::env::temp_dir().join(format!("kvtier-servers-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let mut unrelated = Command::new("sleep").arg("60").spawn().unwrap();
        let mut own = spawn(&dir, "sleep", Command::new("sleep").arg("60")).unwrap();
        while ours(&dir).is_empty() {
            sleep(Duration::from_millis(5));
        }
        assert_eq!(ours(&dir), [own.id()]);
        assert!(describe(own.id()).unwrap().contains("sleep"));
        stop(&dir).unwrap();
        assert!(own.wait().unwrap().code().is_none() && !dir.exists());
        assert!(unrelated.try_wait().unwrap().is_none());
        unrelated.kill().unwrap();
        unrelated.wait().unwrap();
    }

    #[test]
    fn a_server_that_ends_is_not_waited_for() {
        let dir = std::env::temp_dir();
        let mut child = Command::new("true").spawn().unwrap();
        let error = await_that(&mut child, &dir, || false).unwrap_err();
        assert!(error.to_string().contains("it ended"));
        child.wait().unwrap();
    }

    #[test]
    fn ports_differ() {
        let [a, b] = ports().unwrap();
        assert_ne!(a, b);
    }
}
