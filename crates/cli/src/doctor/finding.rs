use anyhow::Result;
use serde_json::Value;

use crate::json::json;

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
        crate::out::line(&format!("{:<16} {}", self.what, self.found))?;
        self.advice.iter().try_for_each(|advice| crate::out::line(&format!("{:<16} -> {advice}", "")))
    }
}
