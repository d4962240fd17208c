//! What the libraries log, on standard error.

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

/// How much is logged.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct LogArgs {
    /// Log more: -v what happens, -vv every request, -vvv everything.
    #[arg(short, long, help_heading = "Logging", global = true, action = clap::ArgAction::Count, conflicts_with = "log_level")]
    verbose: u8,
    /// The least severe messages that are logged on standard error; requests to buckets are at
    /// debug.
    #[arg(long, help_heading = "Logging", global = true, value_enum, value_name = "LEVEL")]
    log_level: Option<Level>,
}

/// A severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Level {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl LogArgs {
    fn filter(self) -> LevelFilter {
        match (self.log_level, self.verbose) {
            (Some(Level::Off), _) => LevelFilter::OFF,
            (Some(Level::Error), _) => LevelFilter::ERROR,
            (Some(Level::Warn), _) | (None, 0) => LevelFilter::WARN,
            (Some(Level::Info), _) | (None, 1) => LevelFilter::INFO,
            (Some(Level::Debug), _) | (None, 2) => LevelFilter::DEBUG,
            (Some(Level::Trace), _) | (None, _) => LevelFilter::TRACE,
        }
    }
}

/// Logs from now on. Only kvtier's own crates are shown, which log neither credentials nor cache
/// salts; other libraries may log both at their finest level.
pub fn start(args: &LogArgs) {
    let ours = Targets::new().with_target("kvtier", args.filter());
    // Without colors: the library is built without them, and at a terminal panics or complains
    // where they are asked for.
    let layer = fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    // A subscriber that is there already is a test's.
    let _ = tracing_subscriber::registry().with(layer.with_filter(ours)).try_init();
}
