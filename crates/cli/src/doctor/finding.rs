use anyhow::Result;
use serde_json::Value;

use crate::json::json;

/// The width of the first column.
const LABEL_COLUMNS: usize = 17;

/// One thing that was found, and what follows.
pub struct Finding {
    pub what: &'static str,
    pub found: String,
    pub advice: Option<String>,
}

impl Finding {
    pub fn new(what: &'static str, found: impl Into<String>) -> Self {
        Finding { what, found: found.into(), advice: None }
    }

    /// With advice, where something is to be done.
    pub fn advising(mut self, needed: bool, advice: impl Into<String>) -> Self {
        self.advice = needed.then(|| advice.into());
        self
    }

    pub fn json(&self) -> Value {
        json!({ "what": self.what, "found": self.found, "advice": self.advice })
    }

    pub fn print(&self) -> Result<()> {
        print(self.what, &self.found)?;
        self.advice.iter().try_for_each(|advice| print("", &format!("-> {advice}")))
    }
}

/// Prints a label and what there is to say, in lines that fit the terminal.
pub fn print(label: &str, text: &str) -> Result<()> {
    crate::table::labelled(label, LABEL_COLUMNS, text)
        .iter()
        .try_for_each(|line| crate::stdout::line(line))
}
