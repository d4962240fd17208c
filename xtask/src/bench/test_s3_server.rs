//! The S3 server of the tests, for benchmarks that read back what they stored: the server that
//! clients are measured at has the same bytes for all objects, lists nothing, and finds every name.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, Result};

use crate::machine;
use crate::sh::Cmd;
use crate::workspace;

const NAME: &str = "kvtier-s3-server";
/// The bucket of all objects.
const BUCKET: &str = "bench";

/// A running server on the last core. Dropping it ends it, and its objects with it.
pub struct ObjectStore {
    address: String,
    child: Child,
    _ends_when_closed: ChildStdin,
}

impl ObjectStore {
    /// Builds the program.
    pub fn build() -> Result<()> {
        Cmd::new("cargo build --locked --release -p kvtier-testkit --bin").arg(NAME).run()
    }

    /// Starts it without objects.
    pub fn start() -> Result<Self> {
        let program = workspace::target_dir().join("release").join(NAME);
        let core = (machine::cores() - 1).to_string();
        let mut child = Command::new("taskset")
            .args(["-c", &core])
            .arg(program)
            .args(["--bucket", BUCKET])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {NAME}"))?;
        let input = child.stdin.take().context("no standard input")?;
        let output = child.stdout.take().context("no standard output")?;
        let mut address = String::new();
        BufReader::new(output).read_line(&mut address)?;
        let address = format!("http://{}", address.trim());
        Ok(ObjectStore { address, child, _ends_when_closed: input })
    }

    /// The endpoint.
    pub fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for ObjectStore {
    fn drop(&mut self) {
        // It has nothing to bring to an end; a child that is gone is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
