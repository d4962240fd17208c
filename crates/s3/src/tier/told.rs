use kvtier_core::Key;
use kvtier_key::Facts;

use crate::Object;

/// The metadata field that holds the facts, behind `x-amz-meta-`.
pub const FACTS: &str = "kvtier";

/// What an object's head says of the chunk in it.
pub enum Told {
    /// These are its facts.
    Facts(Box<Facts>),
    /// Another program wrote it.
    Nothing,
    /// It is not the key's, or not what it says.
    Wrong,
}

/// Reads an object's facts and checks all of them but the sums.
pub fn told(object: &Object, key: &Key) -> Told {
    use base64::Engine;
    let Some(text) = object.meta(FACTS) else { return Told::Nothing };
    let Some(facts) = base64::engine::general_purpose::STANDARD.decode(text).ok().and_then(|b| Facts::decode(&b).ok())
    else {
        return Told::Wrong;
    };
    let same = facts.key == *key.digest()
        && facts.namespace == key.namespace().digest()
        && facts.raw_len == object.total()
        && facts.sums.len() == object.total()
        && facts.codec.0 == 0
        && facts.key_id == 0;
    if same { Told::Facts(Box::new(facts)) } else { Told::Wrong }
}
