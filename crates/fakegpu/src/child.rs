use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::report_path::REPORT;
use crate::{contexts, faults, libcufile, loaded_kernels, memory, report, streams};

/// Names the test that the child runs.
const CHILD: &str = "FAKEGPU_CHILD";

/// The name of the report in the directory of the libraries.
const REPORT_FILE: &str = "report";

/// The timeout of a child.
const TIMEOUT: Duration = Duration::from_secs(600);

/// The behaviour of the libraries in one test, whose body runs in a child process over them.
///
/// ```no_run
/// # use kvtier_fakegpu::Fakes;
/// #[test]
/// fn a_full_device_is_an_error() {
///     let fakes = Fakes::new().fail("cuMemAlloc_v2:1:2");
///     fakes.run("a_full_device_is_an_error", || { /* uses libcuda */ }, |report| assert_eq!(report.calls("cuMemAlloc_v2"), 1));
/// }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Fakes {
    cuda: bool,
    cufile: bool,
    variables: BTreeMap<String, String>,
    faults: String,
}

impl Fakes {
    /// One device of 1 GiB, and a cuFile that reaches NVMe directly.
    pub fn new() -> Self {
        Fakes { cuda: true, cufile: true, variables: BTreeMap::new(), faults: String::new() }
    }

    /// No `libcuda` at all.
    pub fn without_cuda(mut self) -> Self {
        self.cuda = false;
        self
    }

    /// No `libcufile`.
    pub fn without_cufile(mut self) -> Self {
        self.cufile = false;
        self
    }

    /// Makes calls fail: `symbol:nth:fault`, separated by commas. `nth` counts from 1; `*` is every
    /// call. The fault is a code of the symbol's library, `E` and an `errno`, `S` and the most bytes
    /// to transfer, `Z` for no bytes, or `H` for a call that never returns.
    pub fn fail(mut self, faults: &str) -> Self {
        self.faults = [&self.faults, ",", faults].concat();
        let all = self.faults.clone();
        self.with(faults::FAIL, all)
    }

    /// The number of devices.
    pub fn devices(self, count: usize) -> Self {
        self.with(contexts::DEVICES, count.to_string())
    }

    /// The bytes of a device.
    pub fn memory(self, bytes: usize) -> Self {
        self.with(memory::MEMORY, bytes.to_string())
    }

    /// The most bytes that can be registered with cuFile.
    pub fn bar1(self, bytes: usize) -> Self {
        self.with(libcufile::BAR1, bytes.to_string())
    }

    /// cuFile in compatibility mode.
    pub fn compat(self) -> Self {
        self.with(libcufile::TARGETS, "0".to_owned())
    }

    /// Makes kernels write wrong words.
    pub fn wrong_kernels(self) -> Self {
        self.with(loaded_kernels::WRONG, "1".to_owned())
    }

    /// The duration of each step of a stream.
    pub fn delay(self, time: Duration) -> Self {
        self.with(streams::DELAY_US, time.as_micros().to_string())
    }

    /// The report of the child waits for device memory only. NVIDIA's own libcufile keeps pinned memory,
    /// events and contexts for itself until the process ends, so that there would be nothing to wait for.
    pub fn await_only_device_memory(self) -> Self {
        self.with(report::ONLY_MEMORY, "1".to_owned())
    }

    /// Sets another variable for the child.
    pub fn with(mut self, name: &str, value: String) -> Self {
        self.variables.insert(name.to_owned(), value);
        self
    }

    /// Runs `body` in a child: this test program with only the test `name`, which is the caller. Then
    /// checks the report. Panics if the body does or takes more than ten minutes.
    pub fn run(&self, name: &str, body: impl FnOnce(), check: impl FnOnce(&Report)) {
        if std::env::var_os(CHILD).is_some_and(|child| child == name) {
            return body();
        }
        let dir = scratch(name);
        let program = std::env::current_exe().expect("a running program has a path");
        let mut command = self.program(&program, &dir);
        command.args(["--exact", name, "--nocapture"]).env(CHILD, name);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the test program");
        let output = wait(child, name);
        let report = Report::read(&dir);
        fs::remove_dir_all(&dir).expect("the scratch directory is writable");
        assert!(output.contains("1 passed"), "no test {name} ran in the child:\n{output}");
        check(&report);
    }

    /// A command that runs another program over the libraries. They are linked into `dir`, an empty
    /// directory, from which [`Report::read`] reads the report.
    pub fn program(&self, program: &Path, dir: &Path) -> Command {
        self.link_into(dir);
        let mut command = Command::new(program);
        let before = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
        command
            .env("LD_LIBRARY_PATH", format!("{}:{before}", dir.display()))
            .env(REPORT, dir.join(REPORT_FILE));
        command.envs(&self.variables);
        command
    }

    /// Links the library under the names that this test finds.
    fn link_into(&self, dir: &Path) {
        let library = library();
        for name in [self.cuda.then_some("libcuda.so.1"), self.cufile.then_some("libcufile.so.0")]
            .into_iter()
            .flatten()
        {
            std::os::unix::fs::symlink(&library, dir.join(name))
                .expect("a fresh directory takes a link");
        }
    }
}

impl Default for Fakes {
    fn default() -> Self {
        Fakes::new()
    }
}

/// The counts of the libraries at the end of the process.
#[derive(Clone, Debug, Default)]
pub struct Report(BTreeMap<String, u64>);

impl Report {
    /// Reads the report in `dir`. Without a report all counts are 0.
    pub fn read(dir: &Path) -> Self {
        let text = fs::read_to_string(dir.join(REPORT_FILE)).unwrap_or_default();
        let line = |line: &str| {
            line.rsplit_once(' ').and_then(|(name, n)| Some((name.to_owned(), n.parse().ok()?)))
        };
        Report(text.lines().filter_map(line).collect())
    }

    /// The number of calls of a function.
    pub fn calls(&self, symbol: &str) -> u64 {
        self.number(&format!("calls {symbol}"))
    }

    /// A counter: `pageable_bytes`, `read_bytes`, `written_bytes`, `unaligned`,
    /// `unregistered`, `stale`, `opened`, `kernels`.
    pub fn counter(&self, name: &str) -> u64 {
        self.number(&format!("counted {name}"))
    }

    /// The resources that were never released, by name.
    pub fn leaks(&self) -> Vec<(String, u64)> {
        let leaks = self.0.iter().filter(|(name, n)| name.starts_with("leaked ") && **n > 0);
        leaks.map(|(name, n)| (name["leaked ".len()..].to_owned(), *n)).collect()
    }

    /// Panics if a resource was not released, or a file was used after its descriptor was closed.
    pub fn assert_clean(&self) {
        assert_eq!(self.leaks(), [], "never released");
        assert_eq!(self.counter("stale"), 0, "files used after their descriptors were closed");
    }

    fn number(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }
}

/// The shared library, which cargo builds beside the test programs.
fn library() -> PathBuf {
    let program = std::env::current_exe().expect("a running program has a path");
    let name = "libkvtier_fakegpu.so";
    let here = program
        .ancestors()
        .skip(1)
        .take(2)
        .flat_map(|dir| [dir.join(name), dir.join("deps").join(name)]);
    let mut there = here.filter(|path| path.exists());
    there.next().unwrap_or_else(|| panic!("no {name} beside {}", program.display()))
}

fn scratch(name: &str) -> PathBuf {
    let name: String = name.chars().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect();
    let dir = std::env::temp_dir().join(format!("fakegpu-{}-{name}", std::process::id()));
    fs::create_dir_all(&dir).expect("the temporary directory can be written");
    dir
}

/// The output of the child, after it succeeded.
fn wait(mut child: Child, name: &str) -> String {
    let end = Instant::now() + TIMEOUT;
    let out = read(child.stdout.take());
    let err = read(child.stderr.take());
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child process") {
            break status;
        }
        if Instant::now() > end {
            let _ = child.kill();
            break child.wait().expect("a child process");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let output = [out, err].map(|thread| thread.join().expect("reading a pipe")).concat();
    assert!(status.success(), "{name} ended with {status} in the child:\n{output}");
    output
}

fn read(pipe: Option<impl std::io::Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
