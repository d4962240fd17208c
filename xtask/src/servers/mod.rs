//! `cargo xtask s3-server`: real S3 servers of different lineage on loopback, for work by hand and
//! for the S3 client's tests.
//!
//! Each lives in a directory of its own under `target/`, on ports that were free, and dies by
//! `stop`; several can run at once.

mod ceph;
mod garage;
mod moto;
mod packages;
mod process;
mod swift;
mod tls_proxy;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use self::tls_proxy::TlsProxy;
pub use self::tls_proxy::Way;
use crate::args::Args;
use crate::sh::{Cmd, root};
use crate::testing::{self, Count};

/// The bucket that is there from the start.
const BUCKET: &str = "kvtier";
/// The domain before which buckets stand in virtual-host style.
const DOMAIN: &str = "s3.localhost";
/// The longest that a server may take until it answers.
const START_MAX: Duration = Duration::from_secs(300);

/// One of the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ceph,
    Swift,
    Garage,
    Moto,
}

/// What a client must know, as environment variables.
type Access = Vec<(&'static str, String)>;

/// What became of a start.
enum Started {
    Up(Access),
    /// It is not installed and could not be; why, and what to do.
    Absent(String),
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 4] = [Kind::Ceph, Kind::Swift, Kind::Garage, Kind::Moto];

    fn name(self) -> &'static str {
        match self {
            Kind::Ceph => "ceph",
            Kind::Swift => "swift",
            Kind::Garage => "garage",
            Kind::Moto => "moto",
        }
    }

    fn named(name: Option<&str>) -> Result<Kind> {
        let found = Kind::ALL.into_iter().find(|kind| name == Some(kind.name()));
        found.context("which server: ceph, swift, garage or moto?")
    }

    /// Makes an empty directory for it and starts it there.
    fn start(self, dir: &Path) -> Result<Started> {
        process::stop(dir)?;
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let started = match self {
            Kind::Ceph => ceph::start(dir),
            Kind::Swift => swift::start(dir),
            Kind::Garage => garage::start(dir),
            Kind::Moto => moto::start(dir),
        };
        match &started {
            Ok(Started::Up(access)) => fs::write(dir.join("env"), lines(access))?,
            Ok(Started::Absent(_)) => process::stop(dir)?,
            // What was logged says why: the directory stays until the next start.
            Err(_) => process::kill(dir)?,
        }
        started
    }
}

/// `s3-server KIND start|stop|status`.
pub fn run(args: &mut Args) -> Result<()> {
    let kind = Kind::named(args.word().as_deref())?;
    let what = args.word();
    args.end()?;
    let dir = dir(kind.name());
    let known =
        || fs::read_to_string(dir.join("env")).ok().filter(|_| !process::ours(&dir).is_empty());
    match what.as_deref() {
        Some("start") => {
            if let Some(lines) = known() {
                print!("{lines}");
                return Ok(());
            }
            match kind.start(&dir)? {
                Started::Up(access) => print!("{}", lines(&access)),
                Started::Absent(why) => bail!("{why}"),
            }
        }
        Some("stop") => process::stop(&dir)?,
        Some("status") => match known() {
            Some(lines) => {
                print!("{lines}");
                process::ours(&dir)
                    .iter()
                    .try_for_each(|pid| process::describe(*pid).map(|line| println!("# {line}")))?;
            }
            None => println!("# {} does not run", kind.name()),
        },
        _ => bail!("start, stop or status?"),
    }
    Ok(())
}

/// Runs the S3 client's tests against each of `kinds`, on servers of its own, by each of `ways`;
/// answers how many tests passed, and what this machine lacks, with the reason.
pub fn test(kinds: &[Kind], ways: &[Way]) -> Result<(Count, Vec<String>)> {
    let mut count = Count::default();
    let mut absent = Vec::new();
    let lacks = if ways == [Way::Plain] { None } else { TlsProxy::lacks()? };
    let ways: Vec<Way> =
        ways.iter().copied().filter(|way| *way == Way::Plain || lacks.is_none()).collect();
    absent.extend(lacks.map(|why| format!("TLS: {why}")));
    for kind in kinds {
        let dir = dir(&format!("{}-tests", kind.name()));
        match kind.start(&dir).with_context(|| format!("{} does not start", kind.name()))? {
            Started::Absent(why) => absent.push(format!("{}: {why}", kind.name())),
            Started::Up(access) => {
                let _ends = Ends(&dir);
                for way in &ways {
                    println!("on {}, {way:?}:", kind.name());
                    count += try_out(*way, &dir, &access)?;
                }
            }
        }
    }
    Ok((count, absent))
}

fn try_out(way: Way, dir: &Path, access: &Access) -> Result<Count> {
    let access = match way {
        Way::Plain => access.clone(),
        _ => way.through(&TlsProxy::start(dir, access).context("haproxy does not start")?, access),
    };
    let env: Vec<(&str, &str)> =
        access.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let mut count = testing::run_of("crates/s3", &["real"], &env)?;
    // The tier's suite needs no way but the plain one.
    if let Way::Plain = way {
        count += testing::run_of("crates/s3-tier", &["real"], &env)?;
    }
    Ok(count)
}

/// Stops a server when dropped.
struct Ends<'a>(&'a Path);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        if let Err(e) = process::stop(self.0) {
            eprintln!("{e:#}");
        }
    }
}

fn dir(name: &str) -> PathBuf {
    root().join("target/s3-servers").join(name)
}

/// For a shell's `eval`.
fn lines(access: &Access) -> String {
    access.iter().map(|(name, value)| format!("export {name}='{value}'\n")).collect()
}

/// What all servers say: where, the bucket and its region, who.
fn access(port: u16, provider: &str, region: &str, key: &str, secret: &str) -> Access {
    vec![
        ("S3_ENDPOINT", format!("http://127.0.0.1:{port}")),
        ("S3_BUCKET", BUCKET.into()),
        ("S3_PROVIDER", provider.into()),
        ("AWS_REGION", region.into()),
        ("AWS_ACCESS_KEY_ID", key.into()),
        ("AWS_SECRET_ACCESS_KEY", secret.into()),
    ]
}

/// Runs a command quietly; what it printed is part of the error.
fn quiet(cmd: &Cmd) -> Result<String> {
    match cmd.try_read()? {
        (true, text) => Ok(text),
        (false, text) => bail!("`{cmd}` failed: {}", text.trim()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_found_by_name() {
        for kind in Kind::ALL {
            assert_eq!(Kind::named(Some(kind.name())).unwrap(), kind);
        }
        assert!(Kind::named(Some("minio")).is_err() && Kind::named(None).is_err());
    }

    #[test]
    fn a_shell_can_read_the_access() {
        let text = lines(&access(7480, "ceph", "default", "K", "s/+"));
        assert!(text.starts_with(
            "export S3_ENDPOINT='http://127.0.0.1:7480'\nexport S3_BUCKET='kvtier'\n"
        ));
        assert!(text.ends_with("export AWS_SECRET_ACCESS_KEY='s/+'\n"));
    }
}
