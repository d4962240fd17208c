use std::path::{Path, PathBuf};

use anyhow::Result;
use kvtier::config::lmcache::{SettingEffect, SettingSource};
use kvtier::config::{ConfigReader, ParsedConfig, TierSpec, Value};
use serde_json::{Map, Value as Json};

use crate::BadInput;
use crate::json::json;

/// `kvtier config check`.
#[derive(clap::Args)]
pub struct CheckArgs {
    /// The file: kvtier's own (JSON, YAML or TOML with `tiers`), LMCache's YAML, or a list of
    /// `--l2-adapter` objects; - is standard input (JSON or YAML). Without it
    /// `LMCACHE_CONFIG_FILE`, or the environment alone.
    file: Option<PathBuf>,
    /// A `--l2-adapter` object as LMCache's server takes it, instead of a file; several in their
    /// order.
    #[arg(long, value_name = "JSON", conflicts_with = "file")]
    l2_adapter: Vec<String>,
    /// Treat invalid values as LMCache does: as not set, with a warning.
    #[arg(long)]
    lenient: bool,
    /// A setting of LMCache that overrides file and environment.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The number of the GPU on its machine: each GPU uses its own of several directories.
    #[arg(long, default_value_t = 0)]
    device: usize,
    /// Print every setting, also those at their defaults.
    #[arg(long)]
    all: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Reads and prints; returns whether the configuration is valid.
pub fn run(args: &CheckArgs) -> Result<bool> {
    let mut reader = ConfigReader::new();
    (reader.lenient, reader.device) = (args.lenient, args.device);
    for pair in &args.set {
        let (key, value) = pair
            .split_once('=')
            .ok_or_else(|| BadInput(format!("--set {pair:?}: write KEY=VALUE")))?;
        reader.overrides.push((key.to_owned(), Value::Text(value.to_owned())));
    }
    let read = match (&args.file, args.l2_adapter.as_slice()) {
        (Some(path), _) if path == Path::new("-") => {
            reader.text(&super::standard_input()?, "standard input")
        }
        (Some(path), _) => reader.file(path),
        (None, []) => reader.environment(),
        (None, adapters) => reader.adapters(adapters),
    };
    // Without a network: the check must give the same answer on a build machine.
    match read.and_then(reachable) {
        Ok(read) if args.json => {
            crate::stdout::line(&as_json(&read, args.all).to_string()).map(|()| true)
        }
        Ok(read) => print(&read, args.all).map(|()| true),
        Err(e) => {
            if args.json {
                let kind = format!("{:?}", e.kind()).to_lowercase();
                let error = crate::cannot_open(e);
                crate::stdout::line(&json!({ "error": error.0, "kind": kind }).to_string())?;
                // Both: JSON on the standard output for programs, and the exit code.
                return Err(error.into());
            }
            Err(crate::cannot_open(e).into())
        }
    }
}

/// Checks that each bucket has all that a request needs, and that the shape of chunks is known
/// where saves need it.
///
/// # Errors
/// `Invalid`, naming what is missing.
fn reachable(read: ParsedConfig) -> Result<ParsedConfig, kvtier::core::Error> {
    for tier in &read.config.tiers {
        if let TierSpec::S3(spec) = tier {
            spec.resolve()?;
        }
    }
    read.config.check_shapes()?;
    Ok(read)
}

/// The settings to print: those that were set, and with `all` the defaults.
fn shown(read: &ParsedConfig, all: bool) -> impl Iterator<Item = &SettingEffect> {
    read.settings.iter().filter(move |setting| all || setting.source != SettingSource::Default)
}

fn as_json(read: &ParsedConfig, all: bool) -> Json {
    let setting = |s: &SettingEffect| json!({ "key": s.name, "value": s.value.to_json(), "source": s.source.to_string(), "used": s.used, "why": s.why });
    let tier = |facts: Vec<(&str, String)>| {
        let map: Map<String, Json> =
            facts.into_iter().map(|(name, value)| (name.replace(' ', "_"), value.into())).collect();
        Json::Object(map)
    };
    json!({
        "form": read.form.to_string(),
        "settings": shown(read, all).map(setting).collect::<Vec<_>>(),
        "warnings": read.notes, "lossy": read.lossy,
        "tiers": (0..read.config.tiers.len()).map(|at| tier(read.config.facts(at))).collect::<Vec<_>>(),
    })
}

fn print(read: &ParsedConfig, all: bool) -> Result<()> {
    let form = match read.form.to_string().as_str() {
        "native" => "kvtier's own".to_owned(),
        "lmcache" => "LMCache's".to_owned(),
        other => format!("LMCache's --{other}"),
    };
    crate::stdout::line(&format!("form: {form}"))?;
    // Two lists: what an operator looks for is most often a setting that has no effect.
    let (used, idle): (Vec<&SettingEffect>, Vec<&SettingEffect>) =
        shown(read, all).partition(|setting| setting.used);
    section("in force", &used, |s| format!("{} = {}  ({})", s.name, s.value, s.source))?;
    section("without effect on the tiers", &idle, |s| {
        format!("{} = {}  ({}): {}", s.name, s.value, s.source, s.why)
    })?;
    section("warnings", &read.notes, Clone::clone)?;
    crate::stdout::line("\ntiers, fastest first:")?;
    for at in 0..read.config.tiers.len() {
        let facts = read.config.facts(at);
        let kind = facts.first().map_or(String::new(), |(_, kind)| kind.clone());
        let facts = facts.iter().skip(1).filter(|(_, value)| !value.is_empty());
        let facts: Vec<String> = facts.map(|(name, value)| format!("{name} {value}")).collect();
        let lines = crate::table::joined(&format!("  {}. {kind}:", at + 1), 5, &facts);
        lines.iter().try_for_each(|line| crate::stdout::line(line))?;
    }
    Ok(())
}

fn section<T>(title: &str, all: &[T], line: impl Fn(&T) -> String) -> Result<()> {
    if all.is_empty() {
        return Ok(());
    }
    crate::stdout::line(&format!("\n{title}:"))?;
    all.iter().try_for_each(|one| crate::stdout::line(&format!("  {}", line(one))))
}
