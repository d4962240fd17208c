//! The command line as a whole: what holds for every command, and the examples that end each help text.

use clap::{Arg, ArgAction, Command, CommandFactory};

/// Help texts fit this many columns.
const COLUMNS: usize = 80;

/// The command with all that its types do not say.
pub fn command() -> Command {
    finished(crate::Args::command().max_term_width(COLUMNS))
}

/// A number below zero is a value, not a flag: whoever writes `--turns -1` is told what `--turns` takes.
fn finished(command: Command) -> Command {
    let takes_values = |arg: &Arg| matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    let command = command.mut_args(|arg| if takes_values(&arg) { arg.allow_negative_numbers(true) } else { arg });
    command.mut_subcommands(finished)
}
