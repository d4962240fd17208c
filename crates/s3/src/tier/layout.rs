use kvtier_core::{Error, ErrorKind, Key};
use kvtier_key::Digest;
use kvtier_key::names::Form;

use super::Layout;

/// S3 takes no longer names.
const NAME_BYTES_MAX: usize = 1024;

/// The names of one tier's objects.
#[derive(Debug)]
pub struct Names {
    layout: Layout,
    prefix: String,
}

impl Names {
    pub fn new(layout: Layout, prefix: &str) -> Self {
        Names { layout, prefix: prefix.trim_matches('/').to_owned() }
    }

    /// What to list: empty or ending in a slash, as S3 Express wants it.
    pub fn root(&self) -> String {
        if self.prefix.is_empty() { String::new() } else { format!("{}/", self.prefix) }
    }

    /// Whether a name is made of the key's digest alone.
    pub fn is_own(&self) -> bool {
        self.layout == Layout::Kvtier
    }

    /// The name of the key's object. Errors: a key that this layout cannot spell.
    pub fn of(&self, key: &Key) -> Result<String, Error> {
        let prefix = self.prefix.clone();
        let quoted = match self.layout {
            Layout::Kvtier => return Ok(self.of_digest(key.digest())),
            Layout::LmcacheMp => Form::S3Mp { prefix }.format(key.id()),
            Layout::Lmcache => Form::S3NonMp { prefix }.format(key.id()),
        };
        let invalid = |what: &'static str| Error::new(ErrorKind::Unsupported, what).with_key(*key.digest());
        let quoted =
            quoted.map_err(|e| invalid("this layout has no name for the key; use the other").with_source(e))?;
        let name = unquote(quoted.trim_start_matches('/'));
        name.filter(|n| n.len() <= NAME_BYTES_MAX).ok_or_else(|| invalid("the key's name is too long for S3"))
    }

    /// The name of an object of our own layout: the hash comes first, so that keys spread over the store's ranges.
    pub fn of_digest(&self, digest: &Digest) -> String {
        let hex = digest.to_hex();
        format!("{}{}/{hex}", self.root(), &hex[..2])
    }

    /// Which chunk of our own layout has this name.
    pub fn digest(&self, name: &str) -> Option<Digest> {
        let (_, hex) = name.rsplit_once('/')?;
        let digest = Digest::from_hex(hex)?;
        (self.is_own() && self.of_digest(&digest) == name).then_some(digest)
    }
}

/// Undoes percent-encoding; `None` for what is none, or no text.
fn unquote(text: &str) -> Option<String> {
    let (mut out, mut bytes) = (Vec::with_capacity(text.len()), text.bytes());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        out.push((digit()? * 16 + digit()?) as u8);
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_names_begin_with_the_hash_and_read_back() {
        let names = Names::new(Layout::Kvtier, "/a/b/");
        let digest = Digest::of("test", b"x");
        let name = names.of_digest(&digest);
        assert_eq!(name, format!("a/b/{}/{digest}", &digest.to_hex()[..2], digest = digest.to_hex()));
        assert_eq!(names.digest(&name), Some(digest));
        assert_eq!(names.digest(&name.replacen("a/b", "c", 1)), None);
        assert_eq!(unquote("a%40b%2F"), Some("a@b/".into()));
        assert_eq!((unquote("%4"), unquote("%zz")), (None, None));
    }
}
