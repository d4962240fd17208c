//! A second process over the same directory that loads and verifies the keys that it gets.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kvtier::TierExt;
use kvtier::config::LmcacheMode;
use kvtier::core::{Ctx, Load, Loaded};
use kvtier::file::{FileConfig, FileTier};
use kvtier::mem::{Arena, ArenaConfig, Lease};

use super::block_keys::Keys;
use super::block_on::{BATCH_MAX, wait};
use super::content;

/// What a peer process is started with.
#[derive(clap::Args)]
pub struct ReplayPeerArgs {
    #[arg(long)]
    path: PathBuf,
    #[arg(long)]
    bytes: String,
    #[arg(long)]
    chunk: usize,
}

/// The other end of a peer process. Questions are lines of JSON with block ids, answers one entry
/// an id: null for a miss, else the number of wrong bytes.
pub struct Peer {
    child: Child,
    ask: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts the process.
    pub fn start(dir: &Path, bytes: u64, chunk: usize) -> Result<Self> {
        // A process of its own, since what is to be proven is that processes share a directory.
        let this = std::env::current_exe().context("cannot find this program to start it again")?;
        let mut child = Command::new(this)
            .args([
                "replay-peer",
                "--bytes",
                &bytes.to_string(),
                "--chunk",
                &chunk.to_string(),
                "--path",
            ])
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the peer process")?;
        let ask = child.stdin.take();
        let answers = child.stdout.take().context("the peer has no output")?;
        Ok(Peer { child, ask, answers: BufReader::new(answers) })
    }

    /// Has the blocks loaded and verified.
    pub fn load(&mut self, ids: &[u64]) -> Result<Vec<Option<u64>>> {
        let ask = self.ask.as_mut().context("the peer was ended")?;
        writeln!(ask, "{}", serde_json::to_string(ids)?).context("the peer process is gone")?;
        let mut line = String::new();
        if self.answers.read_line(&mut line).context("the peer process is gone")? == 0 {
            // The end of its output: it has printed why to standard error.
            bail!("the peer process ended early");
        }
        Ok(serde_json::from_str(&line)?)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Its input ends, so it does.
        drop(self.ask.take());
        let _ = self.child.wait();
    }
}

/// The peer process.
pub fn serve(args: ReplayPeerArgs) -> Result<()> {
    let tier = FileTier::open(
        FileConfig::new(args.path, super::size("--bytes", &args.bytes)?).with_name("peer"),
    )?;
    let arena = Arena::new(ArenaConfig::heap(BATCH_MAX * args.chunk.next_multiple_of(4096)))?;
    // A directory that `replay` sets up itself has our layout.
    let keys = Keys::new(args.chunk, LmcacheMode::MultiProcess);
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let ids: Vec<u64> = serde_json::from_str(&line?)?;
        let mut ops = Vec::with_capacity(ids.len());
        for id in &ids {
            ops.push(Load { key: keys.key(*id), into: vec![arena.lease(args.chunk)?] });
        }
        let done = wait(tier.load_waiting(&Ctx::within(Duration::from_secs(60)), ops));
        let verdict = |(done, id): (&kvtier::core::Done<Load, Loaded>, &u64)| match done.result {
            Ok(Loaded::Hit { .. }) => {
                let bytes = done.op.into.first().and_then(Lease::as_host).unwrap_or_default();
                Some(content::wrong(*id, bytes) + args.chunk.abs_diff(bytes.len()) as u64)
            }
            _ => None,
        };
        let answers: Vec<Option<u64>> = done.iter().zip(&ids).map(verdict).collect();
        writeln!(out, "{}", serde_json::to_string(&answers)?)?;
        // The other process waits for this line.
        out.flush()?;
    }
    Ok(())
}
