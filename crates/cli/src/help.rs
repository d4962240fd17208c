//! The command line as a whole: what holds for every command, the examples that end each help text,
//! completions, and manual pages.

mod examples;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Arg, ArgAction, Command, CommandFactory};
use clap_complete::Shell;

use self::examples::EXAMPLES;
use crate::BadInput;

/// Help texts fit this many columns.
const COLUMNS: usize = crate::table::COLUMNS;

/// `kvtier completions`.
#[derive(clap::Args)]
pub struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// `kvtier man`.
#[derive(clap::Args)]
pub struct ManArgs {
    /// Write kvtier.1, kvtier-replay.1, ... into this directory, which must exist.
    #[arg(long)]
    dir: Option<PathBuf>,
}

/// The command with all that its types do not say.
pub fn command() -> Command {
    finished(crate::Args::command().max_term_width(COLUMNS), "")
}

/// Adds examples. A number below zero is a value, not a flag: the error for `--turns -1` says what
/// `--turns` takes.
fn finished(command: Command, path: &str) -> Command {
    let takes_values = |arg: &Arg| matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    let mut command = command
        // `--gb -1` is then a value that the command refuses with a reason, and not an unknown
        // flag.
        .mut_args(|arg| if takes_values(&arg) { arg.allow_negative_numbers(true) } else { arg });
    let lines: Vec<&str> = EXAMPLES
        .iter()
        .filter(|example| example.command == path)
        .flat_map(|example| example.lines)
        .copied()
        .collect();
    if !lines.is_empty() {
        // The top command has exit codes there.
        let before = command.get_after_help().map_or(String::new(), |text| format!("{text}\n\n"));
        command = command.after_help(format!("{before}Examples:\n  {}", lines.join("\n  ")));
    }
    command.mut_subcommands(|sub| {
        let path = format!("{path} {}", sub.get_name());
        finished(sub, path.trim_start())
    })
}

/// Prints a shell's completions.
pub fn completions(args: &CompletionsArgs) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command(), "kvtier", &mut script);
    crate::stdout::line(String::from_utf8(script).context("completions are text")?.trim_end())
}

/// Prints the manual page of the command, or writes those of all commands.
pub fn man(args: &ManArgs) -> Result<()> {
    if let Some(dir) = &args.dir {
        let cannot = |e| {
            BadInput(format!(
                "cannot write manual pages to {}: {e}; name a directory",
                dir.display()
            ))
        };
        // A page for each subcommand; on the standard output only that of the program fits.
        return Ok(clap_mangen::generate_to(command(), dir).map_err(cannot)?);
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command()).render(&mut page).context("cannot make the manual page")?;
    crate::stdout::line(String::from_utf8(page).context("a manual page is text")?.trim_end())
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;

    fn paths(command: &Command, path: &str, found: &mut Vec<String>) {
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            let path = format!("{path} {}", sub.get_name()).trim_start().to_owned();
            paths(sub, &path, found);
            found.push(path);
        }
    }

    #[test]
    fn every_command_has_examples_and_every_example_is_taken() {
        let mut all = Vec::new();
        paths(&command(), "", &mut all);
        for path in &all {
            assert!(
                EXAMPLES.iter().any(|example| example.command == path),
                "{path} has no example"
            );
        }
        for example in EXAMPLES {
            assert!(
                example.command.is_empty() || all.iter().any(|path| path == example.command),
                "{}",
                example.command
            );
            for line in example.lines {
                assert!(line.len() + 2 <= COLUMNS, "{line}");
                assert!(
                    line.contains(&format!("kvtier {}", example.command)),
                    "{line} is no example of its command"
                );
                let words = line
                    .rsplit(" | ")
                    .next()
                    .unwrap()
                    .split(" > ")
                    .next()
                    .unwrap()
                    .split_whitespace();
                let taken = command().try_get_matches_from(words);
                let taken = taken.and_then(|matches| crate::Args::from_arg_matches(&matches));
                assert!(
                    taken.is_ok(),
                    "{line}: {}",
                    taken.err().map_or(String::new(), |e| e.to_string())
                );
            }
        }
    }

    #[test]
    fn help_fits_the_terminal_and_breaks_no_word() {
        let mut all = vec![String::new()];
        paths(&command(), "", &mut all);
        for path in all {
            let mut command = command();
            command.build();
            let found = path
                .split_whitespace()
                .fold(&mut command, |command, name| command.find_subcommand_mut(name).unwrap());
            let text = found.render_long_help().to_string();
            for line in text.lines() {
                assert!(
                    line.chars().count() <= COLUMNS || !line.trim().contains(' '),
                    "{path}: {line}"
                );
            }
        }
    }
}
