//! When a command is killed: after it stood still, or used up its CPU time. The clock alone kills
//! nothing, so that a busy machine costs time and no failure.

use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a command may neither print anything nor use [`STEP`] of CPU time.
pub const STILL_MAX: Duration = Duration::from_secs(900);

/// The CPU time that counts as progress. A program that only wakes up to see that nothing happened
/// uses less in [`STILL_MAX`].
const STEP: Duration = Duration::from_secs(10);

/// How often a command is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How long a command has between being asked to end and being killed.
const END_MAX: Duration = Duration::from_secs(10);

/// The kernel's unit of CPU time, the same on all Linux systems of today: 1/100 s.
const TICK: Duration = Duration::from_millis(10);

/// What a command may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// CPU time, of all its processes together.
    pub cpu: Duration,
    /// How long it may stand still.
    pub still: Duration,
}

/// Why a command was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Killed {
    Still,
    Cpu,
}

/// What is known of a command from outside.
#[derive(Debug, Default)]
pub struct Seen {
    bytes: AtomicU64,
    ended: AtomicBool,
}

impl Seen {
    /// Adds bytes that it printed.
    pub fn printed(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// It has ended.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

/// When a command last got on, and how far it was then.
#[derive(Debug)]
struct Progress {
    limits: Limits,
    since: Instant,
    bytes: u64,
    cpu: Duration,
    cpu_most: Duration,
}

impl Progress {
    fn new(limits: Limits, now: Instant) -> Progress {
        Progress { limits, since: now, bytes: 0, cpu: Duration::ZERO, cpu_most: Duration::ZERO }
    }

    /// Notes how far the command is by now. Why it is to be killed, if it is.
    fn look(&mut self, now: Instant, bytes: u64, cpu: Duration) -> Option<Killed> {
        // What a process used is missing between its end and its parent's taking notice.
        self.cpu_most = self.cpu_most.max(cpu);
        if bytes != self.bytes || self.cpu_most >= self.cpu + STEP {
            (self.since, self.bytes, self.cpu) = (now, bytes, self.cpu_most);
        }
        match (
            self.cpu_most > self.limits.cpu,
            now.saturating_duration_since(self.since) > self.limits.still,
        ) {
            (true, _) => Some(Killed::Cpu),
            (_, true) => Some(Killed::Still),
            _ => None,
        }
    }
}

/// Watches a process until it [ended](Seen::end), or kills it and all that it started.
pub fn watch(pid: u32, limits: Limits, seen: &Seen) -> Option<Killed> {
    let mut progress = Progress::new(limits, Instant::now());
    while !seen.has_ended() {
        sleep(LOOK_EVERY);
        let processes = processes_of(pid);
        let cpu = TICK * processes.iter().map(|process| process.ticks as u32).sum();
        let killed = progress.look(Instant::now(), seen.bytes.load(Ordering::Relaxed), cpu);
        if killed.is_some() {
            kill(pid, &processes, seen);
            return killed;
        }
    }
    None
}

/// Ends these processes, and the group of the first if it has one of its own.
fn kill(pid: u32, processes: &[Process], seen: &Seen) {
    let all: Vec<String> = processes.iter().map(|process| process.pid.to_string()).collect();
    for signal in ["-TERM", "-KILL"] {
        let quiet = |args: &[String]| {
            let mut kill = Command::new("kill");
            _ = kill
                .args([signal, "--"])
                .args(args)
                .stdin(Stdio::null())
                .stderr(Stdio::null())
                .status();
        };
        quiet(&[format!("-{pid}")]);
        quiet(&all);
        let asked = Instant::now();
        while asked.elapsed() < END_MAX && !seen.has_ended() {
            sleep(LOOK_EVERY);
        }
        if seen.has_ended() {
            return;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: u32,
    parent: u32,
    /// Its own CPU time and that of its children that ended.
    ticks: u64,
}

/// The process and all that it started, itself first.
fn processes_of(pid: u32) -> Vec<Process> {
    let mut found = Vec::new();
    let mut by_parent = HashMap::<u32, Vec<Process>>::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(own) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        match parse(own, &stat) {
            Some(process) if own == pid => found.push(process),
            Some(process) => by_parent.entry(process.parent).or_default().push(process),
            None => {}
        }
    }
    let mut at = 0;
    while let Some(process) = found.get(at) {
        found.extend(by_parent.remove(&process.pid).unwrap_or_default());
        at += 1;
    }
    found
}

/// The CPU time of what this process started and what has ended.
pub fn cpu_of_children() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let own = |fields| ticks_of(&stat, fields).unwrap_or_default() as u32;
    TICK * own(13..15)
}

/// What `/proc/PID/stat` says; the name in brackets may contain anything.
fn parse(pid: u32, stat: &str) -> Option<Process> {
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let parent = fields.get(1)?.parse().ok()?;
    Some(Process { pid, parent, ticks: ticks_of(stat, 11..15)? })
}

/// Fields 11 and 12 after the name are a process's own CPU time, 13 and 14 that of its children that ended.
fn ticks_of(stat: &str, fields: Range<usize>) -> Option<u64> {
    let all: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    Some(all.get(fields)?.iter().filter_map(|ticks| ticks.parse::<u64>().ok()).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn progress() -> (Progress, Instant) {
        let now = Instant::now();
        (Progress::new(Limits { cpu: 2400 * S, still: 900 * S }, now), now)
    }

    #[test]
    fn who_gets_on_is_not_killed_however_long_it_takes() {
        let (mut progress, began) = progress();
        // A tenth of a core for five hours, without a word.
        assert!((0..18_000).all(|at| progress.look(began + S * at, 0, S * at / 10).is_none()));
        let (mut progress, began) = self::progress();
        // A line every ten minutes for a day, by a program that waits for another.
        assert!((0..1440).all(|minute| {
            progress.look(began + 60 * S * minute, u64::from(minute / 10), S).is_none()
        }));
    }

    #[test]
    fn who_stands_still_or_goes_round_in_circles_is_killed() {
        let (mut progress, began) = progress();
        assert_eq!(progress.look(began + 900 * S, 0, S), None);
        assert_eq!(progress.look(began + 901 * S, 0, S), Some(Killed::Still));
        let (mut progress, began) = self::progress();
        // It only wakes up to look, a hundredth of a second each second.
        let killed = (0..2000).find_map(|at| progress.look(began + S * at, 0, S * at / 100));
        assert_eq!(killed, Some(Killed::Still));
        let (mut progress, began) = self::progress();
        assert_eq!(progress.look(began + S, 0, 2400 * S), None);
        assert_eq!(progress.look(began + S, 1, 2401 * S), Some(Killed::Cpu));
    }

    #[test]
    fn processes_are_found_with_what_they_started() {
        let stat = "7 (a) (b c)) S 3 7 7 0 -1 4194560 100 200 0 0 11 22 33 44 20 0 1 0 5";
        assert_eq!(parse(7, stat), Some(Process { pid: 7, parent: 3, ticks: 110 }));
        let mut shell = Command::new("sh").args(["-c", "sleep 600 & wait"]).spawn().unwrap();
        let all = || processes_of(shell.id());
        while all().len() < 2 {
            sleep(Duration::from_millis(1));
        }
        assert_eq!(all()[1].parent, shell.id());
        kill(shell.id(), &all(), &{
            let seen = Seen::default();
            seen.end();
            seen
        });
        assert!(!shell.wait().unwrap().success());
    }
}
