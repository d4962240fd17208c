//! `kvtier gen-trace`: request traces of made-up conversations, the same for the same seed.

mod binary_form;
mod workload;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use self::binary_form::Form;
use self::workload::{TraceRequest, Workload, WorkloadShape};
use crate::BadInput;
use crate::json::json;

/// What kind of conversations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum WorkloadKind {
    /// People chat: most ask once, some go on for several turns with minutes in between.
    Chat,
    /// Agents work: long prompts, dozens of tool calls seconds apart, now and then a person who
    /// takes minutes.
    Agents,
    /// Questions about documents: a common prompt, a few popular documents, one question.
    Rag,
}

/// Generates a request trace, as JSON lines: `timestamp` (ms), `session`, `block_tokens`,
/// `input_length`, `output_length`, `hash_ids`; or in the binary form that `replay` and `sim` read
/// too.
#[derive(clap::Args, Clone)]
pub struct GenTraceArgs {
    /// What kind of conversations.
    #[arg(value_enum)]
    kind: WorkloadKind,
    /// How many requests.
    #[arg(long, default_value_t = 2000)]
    requests: usize,
    /// Equal seeds and parameters make equal traces.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where to (default: standard output). A name that ends in .bin or .bin.zst gets the binary
    /// form, any other JSON lines.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Conversations that begin in a minute; times between are exponential [default: chat 60,
    /// agents 4, rag 60].
    #[arg(long)]
    sessions_per_minute: Option<f64>,
    /// Mean requests of a conversation; geometric [default: chat 2.5, agents 40, rag 1.3].
    #[arg(long)]
    turns: Option<f64>,
    /// Median time between an answer and a person's next request, in seconds; lognormal, σ = 1
    /// [default: chat 60, agents 240, rag 60].
    #[arg(long)]
    think_seconds: Option<f64>,
    /// How many system prompts there are; the n-th is asked for in proportion to 1/n [default:
    /// chat 16, agents 4, rag 4].
    #[arg(long)]
    prompts: Option<usize>,
    /// How many documents there are (rag only), asked for like prompts [default: 500].
    #[arg(long)]
    documents: Option<usize>,
    /// Tokens of a block.
    #[arg(long, default_value_t = 256)]
    block_tokens: u32,
}

impl GenTraceArgs {
    fn shape(&self) -> Result<WorkloadShape, BadInput> {
        let default = WorkloadShape::of(self.kind);
        if self.documents.is_some() && self.kind != WorkloadKind::Rag {
            return Err(BadInput(
                "--documents is for rag; the other kinds have none, leave it out".into(),
            ));
        }
        let positive = |flag: &str, asked: Option<f64>, default: f64| match asked.unwrap_or(default)
        {
            value if value.is_finite() && value > 0.0 => Ok(value),
            value => Err(BadInput(format!("{flag} {value} is out of range; set it above 0"))),
        };
        let shape = WorkloadShape {
            sessions_per_minute: positive(
                "--sessions-per-minute",
                self.sessions_per_minute,
                default.sessions_per_minute,
            )?,
            turns: positive("--turns", self.turns, default.turns)?,
            think_seconds: positive("--think-seconds", self.think_seconds, default.think_seconds)?,
            prompts: self.prompts.unwrap_or(default.prompts),
            documents: self.documents.unwrap_or(default.documents),
            ..default
        };
        let counted = [("--requests", self.requests), ("--prompts", shape.prompts)];
        let counted = counted
            .into_iter()
            .chain((self.kind == WorkloadKind::Rag).then_some(("--documents", shape.documents)));
        for (flag, n) in counted.chain([("--block-tokens", self.block_tokens as usize)]) {
            if n == 0 || n > 100_000_000 {
                return Err(BadInput(format!(
                    "{flag} {n} is out of range; set it to 1 to 100,000,000"
                )));
            }
        }
        Ok(shape)
    }
}

/// Writes the trace. A file gets its name when it is whole: a run that was ended leaves none.
pub fn run(args: &GenTraceArgs) -> Result<()> {
    let shape = args.shape()?;
    let form = Form::of(args.out.as_deref())?;
    let requests = Workload::new(shape, args.seed).take(args.requests);
    let Some(path) = &args.out else {
        let stdout = &mut std::io::stdout().lock();
        return write_as(form, stdout, args, requests).context("cannot write to standard output");
    };
    let cannot = |e: std::io::Error| {
        BadInput(format!("cannot write to {}: {e}; check the path", path.display()))
    };
    let to = || format!("cannot write to {}", path.display());
    // A pipe or a device is written as it is.
    // Nothing can be renamed over `/dev/stdout` or a pipe.
    if std::fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
        let mut file = File::options().write(true).open(path).map_err(cannot)?;
        return write_as(form, &mut file, args, requests).with_context(to);
    }
    crate::interrupt::watch()?;
    let folder =
        path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Temporary files are for their owner alone. A trace gets the usual mode, less the umask.
    let mode = std::fs::Permissions::from_mode(0o666);
    // A file beside the target, renamed over it at the end: an interrupted run leaves the old trace
    // as it was.
    let file =
        tempfile::Builder::new().prefix(".kvtier-trace-").permissions(mode).tempfile_in(folder);
    let mut file = file.map_err(cannot)?;
    let requests = requests.take_while(|_| !crate::interrupt::asked());
    write_as(form, file.as_file_mut(), args, requests).with_context(to)?;
    // The trace is cut short if the user interrupted, and must not get its name then.
    crate::interrupt::check()?;
    file.persist(path).map_err(|e| cannot(e.error))?;
    Ok(())
}

fn write_as(
    form: Form,
    out: &mut dyn Write,
    args: &GenTraceArgs,
    requests: impl Iterator<Item = TraceRequest>,
) -> Result<()> {
    let mut out = BufWriter::new(out);
    match form {
        Form::Lines => lines(&mut out, args, requests)?,
        Form::Binary => binary_form::binary(&mut out, binary_form::Head::of(args)?, requests)?,
        Form::Compressed => {
            let mut zstd = zstd::Encoder::new(&mut out, zstd::DEFAULT_COMPRESSION_LEVEL)?;
            binary_form::binary(&mut zstd, binary_form::Head::of(args)?, requests)?;
            // Writes the end of the frame. Without it readers report a file that is cut.
            zstd.finish()?;
        }
    }
    Ok(out.flush()?)
}

fn lines(
    out: &mut impl Write,
    args: &GenTraceArgs,
    requests: impl Iterator<Item = TraceRequest>,
) -> Result<()> {
    for request in requests {
        let tokens = |blocks: usize| blocks as u64 * u64::from(args.block_tokens);
        let line = json!({
            "timestamp": request.time_ms,
            "session": request.session,
            "block_tokens": args.block_tokens,
            "input_length": tokens(request.blocks.len()),
            "output_length": tokens(request.answer),
            "hash_ids": request.blocks,
        });
        writeln!(out, "{line}")?;
    }
    Ok(())
}
