//! A chunk as a line of `ls --long`, and as an object of `ls --json`: the columns and fields.

use serde_json::Value;

use crate::age::{age_text, now_s};
use crate::chunk_info::{ChunkInfo, dash, known};
use crate::json::json;
use crate::stored_form::StoredForm;

/// The columns of `ls --long`; a key may be of any length and stands last.
pub fn long_head() -> String {
    format!("{}   AGE  USED TENANT                           MODEL KEY", StoredForm::HEAD)
}

impl ChunkInfo {
    /// A line of `ls --long`, under [`long_head`].
    pub fn line(&self, label: &str) -> String {
        let ago = |at_s: i64| age_text(now_s().saturating_sub(at_s));
        let age = self.written_s.map_or_else(dash, ago);
        let used = self.used.map_or_else(dash, |used| {
            let sign = if used.is_exact { "" } else { ">" };
            format!("{sign}{}", ago(i64::try_from(used.at_ms / 1000).unwrap_or(i64::MAX)))
        });
        let tenant = known(&self.tenant);
        let model = known(&self.model);
        let form = self.form.columns();
        format!("{form} {age:>5} {used:>5} {tenant:<32} {model} {label}")
    }

    /// The same as JSON.
    pub fn json(&self, label: &str, bytes: u64) -> Value {
        let mut all = json!({
            "key": label, "bytes": bytes, "model": self.model, "tenant": self.tenant,
            "namespace": self.namespace.map(|digest| digest.to_hex()), "written_s": self.written_s,
            "used_s": self.used.map(|used| used.at_ms / 1000), "used_exact": self.used.map(|used| used.is_exact),
        });
        all.as_object_mut().into_iter().for_each(|fields| self.form.add_to(fields));
        all
    }
}
