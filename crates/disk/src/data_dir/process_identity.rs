//! Identifies a process across forks, containers and reboots, so that a peer can check whether it
//! still runs.

use std::fs;

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

/// The prefix of a line that names a process.
const HEAD: &str = "process: ";

/// A process, identified so that its number cannot be mistaken for another's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    /// When it started, in clock ticks since the machine did: the number alone may be reused.
    pub started_ticks: u64,
    /// The namespaces in which the number and the ticks are valid.
    pub namespaces: String,
    /// The boot id of the machine.
    pub boot: String,
}

/// The kernel's record of a process.
struct Stat {
    state: char,
    threads: u64,
    started_ticks: u64,
}

impl Process {
    /// This process; `None` where `/proc` cannot be read.
    pub fn this() -> Option<Self> {
        // Locks decide alone between simulated processes.
        if kvtier_os::is_simulated() {
            return None;
        }
        let of = |kind: &str| {
            fs::read_link(format!("/proc/self/ns/{kind}")).ok()?.into_os_string().into_string().ok()
        };
        // Older kernels have no time namespaces.
        let namespaces = [of("pid")?, of("time").unwrap_or_default()];
        Some(Process {
            pid: std::process::id(),
            started_ticks: stat("self")?.started_ticks,
            namespaces: namespaces.concat(),
            boot: fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned(),
        })
    }

    /// The process as a line of text.
    pub fn text(&self) -> String {
        format!("{HEAD}{} {} {} {}", self.pid, self.started_ticks, self.namespaces, self.boot)
    }

    /// Parses such a line; `None` for any other.
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix(HEAD)?.splitn(4, ' ');
        let pid = words.next()?.parse().ok()?;
        let started_ticks = words.next()?.parse().ok()?;
        let namespaces = words.next()?.to_owned();
        let boot = words.next()?.to_owned();
        Some(Process { pid, started_ticks, namespaces, boot })
    }

    /// Whether the process has certainly ended. `false` for a process of another machine or
    /// container, whose state is unknown here.
    pub fn is_gone(&self) -> bool {
        let is_near = |us: &Process| us.boot == self.boot && us.namespaces == self.namespaces;
        if !Process::this().as_ref().is_some_and(is_near) {
            return false;
        }
        match stat(&self.pid.to_string()) {
            // A zombie: its parent has not collected it.
            Some(stat) => {
                stat.started_ticks != self.started_ticks
                    || (matches!(stat.state, 'Z' | 'X') && stat.threads <= 1)
            }
            // `/proc` may hide the processes of other users.
            None => i32::try_from(self.pid)
                .is_ok_and(|pid| kill(Pid::from_raw(pid), None) == Err(Errno::ESRCH)),
        }
    }
}

fn stat(pid: &str) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The fields follow the name in parentheses, which may contain anything.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        threads: fields.get(17)?.parse().ok()?,
        started_ticks: fields.get(19)?.parse().ok()?,
    })
}
