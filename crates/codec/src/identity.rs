use kvtier_key::CodecId;

use crate::{Codec, Error, ErrorKind};

/// Stores the payload as it is. Configurations call it `naive`, as LMCache does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdentityCodec;

impl Codec for IdentityCodec {
    fn id(&self) -> CodecId {
        // What facts without any encoding have.
        CodecId(0)
    }

    fn name(&self) -> &'static str {
        "naive"
    }

    fn bound(&self, raw_len: usize) -> Result<usize, Error> {
        Ok(raw_len)
    }

    fn encode(&self, raw: &[u8], out: &mut [u8]) -> Result<usize, Error> {
        let needs = raw.len();
        let has = out.len();
        let out = out.get_mut(..needs);
        out.ok_or_else(|| {
            Error::new(
                ErrorKind::Invalid,
                format!("the buffer has {has} bytes, the payload needs {needs}"),
            )
        })?
        .copy_from_slice(raw);
        Ok(needs)
    }

    fn decode(&self, stored: &[u8], raw: &mut [u8]) -> Result<(), Error> {
        // `copy_from_slice` panics on other lengths, and stored bytes may be cut off.
        if stored.len() != raw.len() {
            let why = format!("{} stored bytes are not {} raw ones", stored.len(), raw.len());
            return Err(Error::new(ErrorKind::Corrupt, why));
        }
        raw.copy_from_slice(stored);
        Ok(())
    }
}
