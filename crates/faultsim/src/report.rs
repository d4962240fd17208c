//! The result of a simulation.

use std::fmt;
use std::time::Duration;

use crate::{Scope, SomeFaults};

/// A promise that was broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// When, since the start of the simulation, in virtual time.
    pub at: Duration,
    /// Which promise, in one word.
    pub kind: &'static str,
    /// What happened.
    pub what: String,
}

/// The result of a simulation.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// What was simulated.
    pub scope: Scope,
    /// How many events there were: requests, results of operations, faults.
    pub events: u64,
    /// How long it took in virtual time.
    pub virtual_time: Duration,
    /// A digest of all events with their times and results, in hex.
    pub digest: String,
    /// The promises that were broken.
    pub findings: Vec<Finding>,
    /// The shortest schedule of faults that breaks the first of them, a line each, where it was searched, or of
    /// [`run_some`](crate::run_some) the one that does. It may be empty.
    pub schedule: Option<Vec<String>>,
    /// The shortest one as numbers, which [`run_some`](crate::run_some) runs again.
    pub some_faults: Option<SomeFaults>,
    /// Every event, if it was asked for; with a shortest schedule the first one, which names what the
    /// seed chose, and the last ones before its finding.
    pub trace: Vec<String>,
}

impl Report {
    /// One without events.
    pub(crate) fn of(scope: Scope, seed: u64) -> Self {
        let (virtual_time, digest) = (Duration::ZERO, String::new());
        let (findings, trace) = (Vec::new(), Vec::new());
        let (schedule, some_faults) = (None, None);
        Report {
            seed,
            scope,
            events: 0,
            virtual_time,
            digest,
            findings,
            schedule,
            some_faults,
            trace,
        }
    }

    /// As one line of JSON: `seed`, `scope`, `events`, `virtual_s`, `digest`, `findings`.
    pub fn to_json(&self) -> String {
        let findings: Vec<String> = self
            .findings
            .iter()
            .map(|finding| {
                let (at, what) = (finding.at.as_secs_f64(), escape(&finding.what));
                format!("{{\"at_s\":{at:.3},\"kind\":\"{}\",\"what\":\"{what}\"}}", finding.kind)
            })
            .collect();
        format!(
            "{{\"seed\":{},\"scope\":\"{}\",\"events\":{},\"virtual_s\":{:.3},\"digest\":\"{}\",\"findings\":[{}]}}",
            self.seed,
            self.scope.name(),
            self.events,
            self.virtual_time.as_secs_f64(),
            self.digest,
            findings.join(",")
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.virtual_time.as_secs_f64();
        write!(
            f,
            "seed {} of {}: {} events in {seconds:.1} virtual seconds, digest {}",
            self.seed,
            self.scope.name(),
            self.events,
            self.digest
        )?;
        for Finding { at, kind, what } in &self.findings {
            write!(f, "\n  at {:.3} s, {kind}: {what}", at.as_secs_f64())?;
        }
        let Some(schedule) = &self.schedule else { return Ok(()) };
        let which = if self.some_faults.is_some() { "shortest schedule" } else { "schedule" };
        write!(f, "\n  {which}: {} faults", schedule.len())?;
        for fault in schedule {
            write!(f, "\n    {fault}")?;
        }
        let Some(some) = &self.some_faults else { return Ok(()) };
        let (seed, scope) = (self.seed, self.scope.name());
        write!(f, "\n  again: kvtier sim-fault --seed {seed} --scope {scope} --faults {some}")
    }
}

/// Text inside a JSON string.
fn escape(text: &str) -> String {
    let mut out = String::new();
    for char in text.chars() {
        match char {
            '"' | '\\' => out.extend(['\\', char]),
            char if char.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(char))),
            char => out.push(char),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Others read these fields by their names.
    #[test]
    fn json_names_each_field_and_each_finding() {
        let mut report = Report::of(Scope::Stack, 7);
        report.events = 12;
        report.virtual_time = Duration::from_millis(3500);
        report.digest = "0a".into();
        let without =
            r#"{"seed":7,"scope":"stack","events":12,"virtual_s":3.500,"digest":"0a","findings":["#;
        assert_eq!(report.to_json(), format!("{without}]}}"));
        let (at, what) = (Duration::from_millis(1250), "9 of \"8\"".to_owned());
        report.findings.push(Finding { at, kind: "cap", what });
        let finding = r#"{"at_s":1.250,"kind":"cap","what":"9 of \"8\""}"#;
        assert_eq!(report.to_json(), format!("{without}{finding}]}}"));
    }

    #[test]
    fn text_in_json_is_escaped() {
        assert_eq!(escape("a\"b\\c\n"), "a\\\"b\\\\c\\u000a");
    }
}
