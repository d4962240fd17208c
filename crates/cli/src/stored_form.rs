//! How a chunk is stored, as far as its medium says: codec, key id, raw and stored length; and its
//! columns and fields.

use kvtier::codec::stage_names;
use kvtier::file::inspect;
use kvtier::key::Facts;
use serde_json::{Map, Value};

use crate::json::json;

/// The codec of a chunk that is stored as it is.
pub const PLAIN: &str = "plain";

/// How a chunk is stored. What is not known is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredForm {
    /// Its stages in their order, such as `zstd+aes-256-gcm`, or [`PLAIN`].
    pub codec: Option<String>,
    /// The id of the key that encrypted it; 0 = none.
    pub key_id: Option<u32>,
    /// Its length.
    pub raw_bytes: Option<u64>,
    /// Its length as stored.
    pub stored_bytes: Option<u64>,
}

impl StoredForm {
    /// Of a chunk that is stored as it is.
    pub fn plain(bytes: u64) -> Self {
        StoredForm {
            codec: Some(PLAIN.to_owned()),
            key_id: Some(0),
            raw_bytes: Some(bytes),
            stored_bytes: Some(bytes),
        }
    }

    /// What facts say.
    pub fn of_facts(facts: &Facts) -> Self {
        let plain = StoredForm::plain(facts.raw_len);
        if facts.is_plain() {
            return plain;
        }
        StoredForm {
            codec: Some(stage_names(facts.codec).join("+")),
            key_id: Some(facts.key_id),
            stored_bytes: Some(facts.stored_len()),
            ..plain
        }
    }

    /// The columns of [`StoredForm::columns`].
    pub const HEAD: &str = "         RAW       STORED CODEC                KEY-ID";

    /// Raw and stored length, codec and key id.
    pub fn columns(&self) -> String {
        let number = |n: Option<u64>| n.map_or_else(|| "-".to_owned(), |n| n.to_string());
        let (raw, stored) = (number(self.raw_bytes), number(self.stored_bytes));
        let codec = self.codec.as_deref().unwrap_or("-");
        let key_id = number(self.key_id.map(u64::from));
        format!("{raw:>12} {stored:>12} {codec:<20} {key_id:>6}")
    }

    /// Adds the fields to an object.
    pub fn add_to(&self, object: &mut Map<String, Value>) {
        let fields = [
            ("codec", json!(self.codec)),
            ("key_id", json!(self.key_id)),
            ("raw_bytes", json!(self.raw_bytes)),
            ("stored_bytes", json!(self.stored_bytes)),
        ];
        object.extend(fields.map(|(name, value)| (name.to_owned(), value)));
    }
}

impl From<inspect::StoredForm> for StoredForm {
    fn from(form: inspect::StoredForm) -> Self {
        StoredForm {
            codec: Some(form.codec_name()),
            key_id: Some(form.key_id),
            raw_bytes: Some(form.raw_bytes),
            stored_bytes: Some(form.stored_bytes),
        }
    }
}
