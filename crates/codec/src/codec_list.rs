use kvtier_key::CodecId;

use crate::{Codec, Error, ErrorKind, IdentityCodec, Lz4};

// A chunk keeps the id of its codec for as long as it is stored, so ids are never reused, and no
// entry leaves this list.
const ALL: [&dyn Codec; 2] = [&IdentityCodec, &Lz4];

/// The codec that chunks with `id` were stored with. Errors: `Unsupported`, none of this build.
pub fn by_id(id: CodecId) -> Result<&'static dyn Codec, Error> {
    // An error and no miss: a later build may have written the chunk, and its bytes are not
    // damaged.
    let found = ALL.into_iter().find(|codec| codec.id() == id);
    found.ok_or_else(|| {
        Error::new(ErrorKind::Unsupported, format!("this build has no codec {}", id.0))
    })
}

/// The codec that configurations call `name`. Errors: `Unsupported`, none of this build, with those
/// there are.
pub fn by_name(name: &str) -> Result<&'static dyn Codec, Error> {
    let found = ALL.into_iter().find(|codec| codec.name() == name);
    found.ok_or_else(|| {
        let known = ALL.map(|codec| codec.name()).join(", ");
        Error::new(
            ErrorKind::Unsupported,
            format!("this build has no codec {name:?}; it has {known}"),
        )
    })
}
