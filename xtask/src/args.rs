//! The few command-line forms that the steps take, parsed by hand.

use std::collections::VecDeque;

use anyhow::{Context, Result, bail};

/// What is left of the command line.
#[derive(Debug)]
pub struct Args(VecDeque<String>);

impl Args {
    /// The arguments of this process, without its name.
    pub fn from_env() -> Args {
        Args(std::env::args().skip(1).collect())
    }

    /// Arguments that one step gives to another.
    pub fn of(words: &[&str]) -> Args {
        Args(words.iter().map(ToString::to_string).collect())
    }

    /// Takes the next argument, whatever it is.
    pub fn word(&mut self) -> Option<String> {
        self.0.pop_front()
    }

    /// Takes `--name` if it is there.
    pub fn flag(&mut self, name: &str) -> bool {
        let found = self.0.iter().position(|arg| arg == name);
        found.map(|at| self.0.remove(at)).is_some()
    }

    /// Takes `--name VALUE` if it is there.
    pub fn value(&mut self, name: &str) -> Result<Option<String>> {
        let Some(at) = self.0.iter().position(|arg| arg == name) else { return Ok(None) };
        self.0.remove(at);
        let value = self.0.remove(at).with_context(|| format!("{name} wants a value after it"))?;
        Ok(Some(value))
    }

    /// Takes `--name NUMBER` if it is there.
    pub fn number(&mut self, name: &str) -> Result<Option<u64>> {
        let Some(value) = self.value(name)? else { return Ok(None) };
        let number =
            value.parse().with_context(|| format!("{name} wants a number, not '{value}'"))?;
        Ok(Some(number))
    }

    /// Fails if anything is left that no step understood.
    pub fn end(&self) -> Result<()> {
        match self.0.front() {
            Some(arg) => bail!("'{arg}' is not an option of this step; see `cargo xtask help`"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Args {
        Args::of(&line.split_whitespace().collect::<Vec<_>>())
    }

    #[test]
    fn options_are_found_in_any_order() {
        let mut args = args("fuzz --seconds 7 key_text --smoke");
        assert_eq!(args.word().as_deref(), Some("fuzz"));
        assert!(args.flag("--smoke") && !args.flag("--smoke"));
        assert_eq!(args.number("--seconds").unwrap(), Some(7));
        assert_eq!(args.word().as_deref(), Some("key_text"));
        args.end().unwrap();
    }

    #[test]
    fn leftover_arguments_are_an_error() {
        assert!(args("--fast").end().is_err());
        assert!(args("--seconds").number("--seconds").is_err());
        assert!(args("--seconds soon").number("--seconds").is_err());
    }
}
