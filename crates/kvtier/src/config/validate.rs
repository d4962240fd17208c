//! What the tiers of a configuration must not be together.

use std::path::PathBuf;

use kvtier_core::{Error, ErrorKind};

use super::TierList;
use super::{Config, TierSpec};

/// What a tier keeps its chunks on, to find two that share it.
// A build without some of the tiers has none of their media.
#[cfg_attr(not(all(feature = "file", feature = "s3")), allow(dead_code))]
enum TierMedium {
    Directory(PathBuf),
    #[cfg(feature = "s3")]
    Bucket {
        endpoint: kvtier_s3::Endpoint,
        prefix: String,
    },
}

impl TierMedium {
    fn is_same(&self, other: &TierMedium) -> bool {
        match (self, other) {
            (TierMedium::Directory(one), TierMedium::Directory(other)) => one == other,
            #[cfg(feature = "s3")]
            (
                TierMedium::Bucket { endpoint, prefix },
                TierMedium::Bucket { endpoint: other, prefix: other_prefix },
            ) => endpoint.is_same_bucket(other) && prefix == other_prefix,
            #[cfg(feature = "s3")]
            _ => false,
        }
    }
}

impl Config {
    /// Checks the tiers together: memory must be above files and buckets of the same list, and no
    /// two tiers may share a directory, or a bucket and prefix. A tier of a foreign layout may not
    /// encode. Tiers of several plugins or
    /// adapters are several lists, since LMCache uses each by itself. Opening checks the same.
    ///
    /// # Errors
    /// `Invalid`, naming the two tiers and a remedy.
    pub fn check(&self) -> Result<(), Error> {
        let is_memory = |tier: &TierSpec| matches!(tier, TierSpec::Host { .. });
        for (at, tier) in self.tiers.iter().enumerate() {
            let above = &self.tiers[..at];
            let start = self.list(at).map_or(0, |list| list.start);
            if is_memory(tier)
                && let Some(slower) = (start..at).find(|above| !is_memory(&self.tiers[*above]))
            {
                let what = format!(
                    "{} is memory below {}, which is slower: the first tier is the fastest; write the memory first",
                    self.title(at),
                    self.title(slower)
                );
                return Err(Error::new(ErrorKind::Invalid, what));
            }
            if let Some(why) = why_it_cannot_encode(tier) {
                let what = format!("{} encodes, and {why}", self.title(at));
                return Err(Error::new(ErrorKind::Invalid, what));
            }
            let medium = medium(tier);
            let Some(medium) = medium else { continue };
            let shared = above
                .iter()
                .position(|other| self::medium(other).is_some_and(|other| other.is_same(&medium)));
            if let Some(other) = shared {
                let what = match medium {
                    TierMedium::Directory(path) => {
                        format!("the directory {}; give each its own", path.display())
                    }
                    #[cfg(feature = "s3")]
                    TierMedium::Bucket { endpoint, prefix } => {
                        format!("the bucket {endpoint}/{prefix}; give each its own prefix")
                    }
                };
                let what = format!(
                    "{} and {} are two tiers over {what}",
                    self.title(other),
                    self.title(at)
                );
                return Err(Error::new(ErrorKind::Invalid, what));
            }
        }
        Ok(())
    }

    /// The list that a tier is of.
    fn list(&self, at: usize) -> Option<&TierList> {
        self.lists.iter().rev().find(|list| list.start <= at)
    }

    /// A tier for errors: where it is written, and its kind.
    fn title(&self, at: usize) -> String {
        let kind = self.tiers[at].facts().first().map(|(_, kind)| kind.clone()).unwrap_or_default();
        match self.list(at) {
            Some(list) if list.is_indexed => {
                format!("{}: tiers[{}] ({kind})", list.place, at - list.start)
            }
            Some(list) if !list.place.is_empty() => format!("{} ({kind})", list.place),
            list => format!("tiers[{}] ({kind})", at - list.map_or(0, |list| list.start)),
        }
    }
}

/// Why a tier that is to encode or decode cannot do so, and what to change.
fn why_it_cannot_encode(tier: &TierSpec) -> Option<String> {
    if let Some(layout) = foreign_layout_of_encoding(tier) {
        return Some(format!(
            "its layout is {layout}, whose readers expect chunks as they are; leave `encode` and `decode_keys` out, \
             or set `layout` to kvtier"
        ));
    }
    #[cfg(feature = "gds")]
    if let TierSpec::Gds(spec) = tier
        && spec.gpu.cufile == Some(kvtier_gds::CufileMode::Require)
        && spec.file.encoding.encrypts()
    {
        // Of the chunks that it stores, none would ever be loaded by cuFile.
        return Some(
            "its chunks are decrypted in host memory, past which `cufile: require` demands to load them; \
             set `cufile` to auto or off, or leave aes-256-gcm out"
                .to_owned(),
        );
    }
    None
}

/// The layout of a tier that is to encode or decode, where it is another program's.
fn foreign_layout_of_encoding(tier: &TierSpec) -> Option<String> {
    match tier {
        #[cfg(feature = "file")]
        TierSpec::File(spec) => foreign_layout_of_encoded_files(spec),
        #[cfg(feature = "gds")]
        TierSpec::Gds(spec) => foreign_layout_of_encoded_files(&spec.file),
        #[cfg(feature = "s3")]
        TierSpec::S3(spec) => {
            let is_own = spec.layout == kvtier_s3_tier::Layout::Kvtier;
            (!is_own && !spec.encoding.is_empty()).then(|| spec.layout.to_string())
        }
        _ => None,
    }
}

#[cfg(feature = "file")]
fn foreign_layout_of_encoded_files(spec: &super::FileSpec) -> Option<String> {
    let layout = spec.layout.filter(|layout| layout.is_foreign() && !spec.encoding.is_empty());
    layout.map(|layout| layout.to_string())
}

fn medium(tier: &TierSpec) -> Option<TierMedium> {
    match tier {
        TierSpec::Host { .. } => None,
        #[cfg(feature = "file")]
        TierSpec::File(spec) => Some(TierMedium::Directory(real(&spec.path))),
        #[cfg(feature = "gds")]
        TierSpec::Gds(spec) => Some(TierMedium::Directory(real(&spec.file.path))),
        // A bucket that does not resolve is an error of its own.
        #[cfg(feature = "s3")]
        TierSpec::S3(spec) => {
            let endpoint = spec.resolve().ok()?;
            Some(TierMedium::Bucket { endpoint, prefix: spec.prefix.trim_matches('/').to_owned() })
        }
    }
}

/// A path without links and relative parts; of one that is not there, as much as is.
#[cfg(feature = "file")]
fn real(path: &std::path::Path) -> PathBuf {
    // Two spellings of one directory must compare equal: links are resolved as far up as the path
    // exists, and the rest is appended.
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let resolve = |above: &std::path::Path| {
        let rest = absolute.strip_prefix(above).ok()?;
        Some(above.canonicalize().ok()?.join(rest))
    };
    absolute.ancestors().find_map(resolve).unwrap_or_else(|| absolute.clone())
}

#[cfg(all(test, feature = "file"))]
mod tests {
    use crate::config::Config;

    fn check(tiers: &[String]) -> Result<(), String> {
        let text = format!(r#"{{"tiers":[{}]}}"#, tiers.join(","));
        let config = Config::from_json(&text, "x.json").map_err(|e| e.to_string())?;
        let checked = config.check().map_err(|e| e.to_string());
        if checked.is_err() {
            assert_eq!(
                config.open().unwrap_err().to_string(),
                checked.clone().unwrap_err(),
                "opening says the same"
            );
        }
        checked
    }

    fn file(path: &str) -> String {
        format!(r#"{{"type":"file","path":{path:?},"bytes":"1MiB"}}"#)
    }

    #[test]
    fn memory_below_files_and_two_tiers_over_one_medium_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        std::fs::create_dir(at("a")).unwrap();
        std::os::unix::fs::symlink(at("a"), at("link")).unwrap();
        let host = r#"{"type":"host","bytes":"1MiB"}"#.to_owned();
        check(&[host.clone(), host.clone(), file(&at("a")), file(&at("b"))]).unwrap();
        check(&[file(&at("a")), file(&at("a/below"))]).unwrap();
        let e = check(&[file(&at("a")), host.clone()]).unwrap_err();
        assert!(
            e.contains("tiers[1] (host)")
                && e.contains("tiers[0] (file)")
                && e.contains("memory first"),
            "{e}"
        );
        for same in [at("a"), at("a/"), at("./a"), at("link"), at("link/")] {
            let e = check(&[host.clone(), file(&at("a")), file(&same)]).unwrap_err();
            assert!(
                e.contains("tiers[1] (file) and tiers[2] (file)") && e.contains("directory"),
                "{same}: {e}"
            );
        }
    }

    #[cfg(feature = "s3")]
    #[test]
    fn two_tiers_over_one_prefix_of_a_bucket_are_refused() {
        let s3 = |url: &str, prefix: &str| {
            format!(
                r#"{{"type":"s3","s3_endpoint":"{url}","s3_region":"eu-west-1","prefix":"{prefix}"}}"#
            )
        };
        check(&[s3("s3://b", "x"), s3("s3://b", "y"), s3("s3://c", "x")]).unwrap();
        let e = check(&[s3("s3://b", "x"), s3("https://b.s3.eu-west-1.amazonaws.com", "x/")])
            .unwrap_err();
        assert!(e.contains("tiers[0] (s3) and tiers[1] (s3)") && e.contains("prefix"), "{e}");
    }
}
