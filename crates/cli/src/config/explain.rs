use anyhow::Result;
use kvtier::config::settings::{self, Setting};

use crate::BadInput;
use crate::json::json;

/// `kvtier config explain`.
#[derive(clap::Args)]
pub struct ExplainArgs {
    /// The setting's name, also an older one, or its variable; - reads names from standard input,
    /// one on each line.
    key: String,
    /// Print one JSON object a place where it stands.
    #[arg(long)]
    json: bool,
}

/// Explains a setting wherever it stands.
pub fn run(args: &ExplainArgs) -> Result<()> {
    if args.key != "-" {
        return explain(&args.key, args.json);
    }
    let names = super::standard_input()?;
    let mut names = names.lines().map(str::trim).filter(|name| !name.is_empty());
    names.try_for_each(|name| explain(name, args.json))
}

fn explain(name: &str, json: bool) -> Result<()> {
    let found = settings::named(name);
    if found.is_empty() {
        let hint = settings::nearest(name)
            .map_or("; docs/CONFIG.md lists all".to_owned(), |name| {
                format!("; did you mean {name:?}?")
            });
        return Err(BadInput(format!("no setting is called {name:?}{hint}")).into());
    }
    // One name can be a setting of several forms, with different meanings.
    for key in found {
        // Said only where the name is an older one, not where a plugin's name was replaced by
        // `<name>`.
        let old = (key.name != name).then(|| settings::old_name(name)).flatten().map(|_| name);
        if json { as_json(key, old)? } else { print(key, old)? }
    }
    Ok(())
}

fn default(key: &Setting) -> &str {
    match key.default_here() {
        "" => "required",
        "null" => "none",
        text => text,
    }
}

fn as_json(key: &Setting, old: Option<&str>) -> Result<()> {
    let all = json!({
        "key": key.name, "old_name": old, "where": key.section.to_string(), "takes": key.kind.takes(), "default": default(key),
        "here": key.role.says(), "meaning": key.what,
    });
    crate::stdout::line(&all.to_string())
}

fn print(key: &Setting, old: Option<&str>) -> Result<()> {
    let old = old.map_or(String::new(), |old| format!(" (formerly {old})"));
    let lines = [
        format!("{}{old}, in {}", key.name, key.section),
        format!("  meaning  {}", key.what),
        format!("  takes    {}", key.kind.takes()),
        format!("  default  {}", default(key)),
        format!("  here     {}", key.role.says()),
    ];
    lines.iter().try_for_each(|line| crate::stdout::line(line))
}
