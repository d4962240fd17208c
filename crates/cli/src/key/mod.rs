//! `kvtier key`: explains names of chunks, and converts between their forms.

mod explain;
mod forms;
mod key_json;
mod stored_key;

use std::ffi::OsString;
use std::io::{BufRead, Read, Write};

use anyhow::Result;
use serde_json::Value;

use self::explain::{Question, answer};
use crate::{BadInput, table};

/// The longest line that is read from standard input, in bytes.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Explains names of chunks in any form (LMCache's keys, file names and S3 names, kvtier's file
/// names), and converts between forms. Of a path it reads what the file says of its chunk: footer,
/// facts or GDS header.
#[derive(clap::Args)]
#[command(after_help = format!("Forms: {}.", forms::ALL))]
pub struct KeyArgs {
    /// The names, or paths of chunks' files. Without any, or with -, standard input is read: a
    /// line is a name as a JSON string, or an object with `name` and, if wanted, `from` (a
    /// form) and `to` (a list of forms); each is answered by one line of JSON. No files are read
    /// for these.
    names: Vec<OsString>,
    /// Read the names as this form only.
    #[arg(long, value_name = "FORM")]
    from: Option<String>,
    /// Convert to these forms; with one form and without --json only the new name is printed.
    #[arg(long, value_name = "FORM", value_delimiter = ',')]
    to: Vec<String>,
    /// Print one line of JSON a name.
    #[arg(long)]
    json: bool,
}

/// Explains all; answers whether every name was one and every conversion worked.
pub fn run(args: KeyArgs) -> Result<bool> {
    let mut out = std::io::stdout().lock();
    let mut good = true;
    if args.names.is_empty() || args.names == ["-"] {
        return batch(&args, std::io::stdin().lock(), &mut out);
    }
    for name in &args.names {
        let answer = explain::answer_argument(name, args.from.as_deref(), &args.to)?;
        // All names are answered; the exit code says whether every one was understood.
        good &= is_good(&answer);
        if args.json {
            writeln!(out, "{answer}")?
        } else {
            text(&answer, args.to.len() == 1, &mut out)?
        }
    }
    Ok(good)
}

/// Answers line by line, so that a program can keep it running.
fn batch(args: &KeyArgs, mut from: impl BufRead, out: &mut dyn Write) -> Result<bool> {
    let mut good = true;
    for n in 1u64.. {
        let mut line = String::new();
        let wrong = |e: &dyn std::fmt::Display| {
            BadInput(format!(
                "standard input, line {n}: {e}; a line is a name as a JSON string, or an object with `name`"
            ))
        };
        // A line without an end must not fill memory. A cut one is no JSON and is reported as such.
        if from.by_ref().take(LINE_BYTES_MAX).read_line(&mut line).map_err(|e| wrong(&e))? == 0 {
            break;
        }
        if line.trim().is_empty() {
            continue;
        }
        let question = Question::parse(&line).map_err(|e| wrong(&e))?;
        let to = if question.to.is_empty() { args.to.clone() } else { question.to };
        let question =
            Question { from: question.from.or_else(|| args.from.clone()), to, ..question };
        let answer = answer(&question).map_err(|e| wrong(&e))?;
        good &= is_good(&answer);
        writeln!(out, "{answer}")?;
        // A program that asks name by name waits for each answer.
        out.flush()?;
    }
    Ok(good)
}

/// Whether the name was one and could be said in every form that was asked for.
fn is_good(answer: &Value) -> bool {
    let readings = answer["readings"].as_array().map(Vec::as_slice).unwrap_or_default();
    let names =
        readings.iter().flat_map(|r| r["names"].as_object()).flat_map(|names| names.values());
    answer.get("error").is_none() && !readings.is_empty() && names.into_iter().all(Value::is_string)
}

fn text(answer: &Value, only_name: bool, out: &mut dyn Write) -> Result<()> {
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    // With one `--to` the output is the name alone, for use in a shell.
    if only_name && is_good(answer) {
        let first =
            answer["readings"][0]["names"].as_object().and_then(|names| names.values().next());
        if let Some(name) = first {
            writeln!(out, "{}", plain(name))?;
            return Ok(());
        }
    }
    writeln!(out, "{}", plain(&answer["name"]))?;
    if let Some(error) = answer.get("error") {
        for line in table::labelled("", 2, &plain(error)) {
            writeln!(out, "{line}")?;
        }
    }
    for reading in answer["readings"].as_array().into_iter().flatten() {
        writeln!(out, "  read as {}", plain(&reading["form"]))?;
        for (field, value) in
            reading["key"].as_object().into_iter().flatten().filter(|(_, value)| !value.is_null())
        {
            writeln!(out, "    {field:<14} {}", plain(value))?;
        }
        if let Some(loss) = reading["loss"].as_str() {
            writeln!(out, "    uncertain      {loss}")?;
        }
        for (form, name) in reading["names"].as_object().into_iter().flatten() {
            writeln!(out, "    as {form:<17} {}", plain(name))?;
        }
    }
    Ok(())
}
