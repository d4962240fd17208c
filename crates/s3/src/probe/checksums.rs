use super::Asker;
use crate::checksum::Checksum;
use crate::error::{ErrorKind, Result};
use crate::request::Request;

/// The objects of this part.
pub const KEYS: [&str; 1] = ["s"];

/// What a store makes of one checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Sum {
    /// Which.
    pub checksum: Checksum,
    /// Whether it refuses a body whose checksum is wrong. Otherwise damage on the way in is
    /// stored.
    pub verified: bool,
    /// Whether it returns it with the object, so that the client can verify what comes back.
    pub returned: bool,
}

impl Asker<'_> {
    /// Each checksum: once wrong, once right.
    pub async fn sums(&self, bytes: &[u8]) -> Result<Vec<Sum>> {
        let mut found = Vec::new();
        for checksum in [Checksum::Crc32c, Checksum::Crc64Nvme, Checksum::Sha256] {
            found.push(self.sum(checksum, bytes).await?);
        }
        Ok(found)
    }

    async fn sum(&self, checksum: Checksum, bytes: &[u8]) -> Result<Sum> {
        let key = format!("{}{}", self.prefix, KEYS[0]);
        let name = checksum.header().unwrap_or_default();
        let right = checksum.of(bytes).unwrap_or_default();
        let wrong = checksum.of(&bytes[1..]).unwrap_or_default();
        let verified = match self.put(&key, bytes, &[(name, &wrong)]).await {
            Ok(_) => false,
            Err(e) if matches!(e.status(), Some(400..=499)) && e.kind() != ErrorKind::Denied => {
                true
            }
            Err(e) if e.kind() == ErrorKind::Unsupported => false,
            Err(e) => return Err(e),
        };
        // A store that does not know the checksum refuses even this.
        if self.put(&key, bytes, &[(name, &right)]).await.is_err() {
            return Ok(Sum { checksum, verified: false, returned: false });
        }
        let request = Request {
            headers: &[("x-amz-checksum-mode", "ENABLED")],
            ..Request::new("HEAD", Some(&key))
        };
        let returned = self.ask("head", &request).await?.head.header(name).map(str::to_owned);
        Ok(Sum { checksum, verified, returned: returned.as_deref() == Some(&right) })
    }
}
